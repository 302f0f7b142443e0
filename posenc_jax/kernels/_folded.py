"""ALiBi inside the products of queries and keys, for kernels that go by index and know no bias.

    m (j - i) = m (j - c) + (what is the same for the whole row i, which a softmax does not see)

    q'[h, i] = [q[h, i], s[0, h], s[0, h], s[1, h], s[1, h], ...]       m[h] / scale = s[0, h] + s[1, h] + ...
    k'[g, j] = [k[g, j], a[j],    b[j],    a[j],    b[j],    ...]       j - c = a[j] + b[j]

so that scale q' . k' = scale q . k + m (j - c). With c in the middle of the sequence, a is a multiple of 256 and b is
from 0 to 255: bfloat16 and float16 hold both exactly. Each s has the next 8 (11) bits of the slope, so that one is
enough for a power of two and three for any float32 (float16 has no bits below 2^-24; what is left over counts below).
These products are exact in float32, and only their sum is rounded.

That sum is where it may fail: its terms are as large as A = max(m) max(|a| + b), whereas the reference adds m (i - j),
which is small wherever the weight is not. A float32 sum of n terms rounds n times, each time by up to 2^-24 A, and such
errors add up like sqrt(n), in whatever order: 2 sqrt(n) 2^-24 A is at least 3.4 of their standard deviations (Higham
and Mary, 2019, SIAM J. Sci. Comput. 41(5), A2815). Where logits are off by e, a weight is off by a factor of 1 + 2 e at
most, by its own logit and by the total of its row. The kernel rounds weights to the p bits of the inputs, an error of
2^-p in each; with e <= 2^-p this one is at most twice that. So the condition is

    2 sqrt(n) 2^-24 A + max(|m - scale sum(s)|) max(|a| + b)  <=  2^-p

With head_dim 64 and slopes up to 1/2 that is up to 15 000 tokens in bfloat16 and up to 1 200 in float16. In float32,
whose sums would have to be wider than float32, it holds only where the bias is next to nothing.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from .._scores import Operands, Rules, Tokens

__all__ = ["alibi_refusal", "fold", "folded_channels", "positions_refusal"]

BASE = 256
PARTS = 3
# Up to here |a| <= 2 ** 15, which float16 holds.
TOKENS = 2**16


def positions_refusal(rules: Rules, operands: Operands) -> str | None:
    """A kernel that goes by index takes positions, where a rule looks at them, if they are known to be indices."""
    by_position = rules.is_causal or rules.sliding_window is not None
    if not by_position and operands.terms.slopes is None:
        return None
    q_len, k_len = operands.query.shape[-2], operands.key.shape[-2]
    if q_len != k_len:
        return f"positions of {q_len} queries and {k_len} keys"
    for tokens in operands[-2:]:
        if isinstance(tokens.positions, Tracer):
            return "positions that are not known when the program is built"
        if not _are_indices(tokens):
            return "positions other than 0, 1, 2, ..."
    return None


def alibi_refusal(rules: Rules, operands: Operands, scale: float) -> str | None:
    """What cannot be folded exactly into products that the kernel multiplies by `scale`."""
    if not _is_folded(rules, operands):
        return None
    if not rules.is_causal and rules.alibi_kind not in ("signed", "key"):
        return f"the `alibi_kind` {rules.alibi_kind!r} without `is_causal`"
    if isinstance(operands.terms.slopes, Tracer):
        return "`alibi_slopes` that are not known when the program is built"
    if operands.terms.softcap is not None:
        return "`alibi_slopes` with a `logit_softcap`, which would cap the bias too"
    tokens, dtype = operands.key.shape[-2], operands.query.dtype
    if tokens > TOKENS:
        return f"`alibi_slopes` with more than {TOKENS} tokens (here {tokens})"
    slopes = _host(operands.terms.slopes)
    channels = operands.query.shape[-1] + folded_channels(rules, operands, scale)
    error = _error(slopes, scale, tokens, channels, dtype)
    bits = jnp.finfo(dtype).nmant + 1
    if not error <= 2.0**-bits:
        return (
            f"`alibi_slopes` up to {np.abs(slopes).max():.3g} with {tokens} tokens in {dtype} "
            f"(folded into heads, a logit may be off by {error:.1e}, more than 2^-{bits})"
        )
    return None


def folded_channels(rules: Rules, operands: Operands, scale: float) -> int:
    """How many more channels a head has."""
    if not _is_folded(rules, operands):
        return 0
    return 2 * len(_parts(_host(operands.terms.slopes) / scale, operands.query.dtype))


def fold(rules: Rules, operands: Operands, scale: float) -> tuple[Array, Array]:
    """Queries and keys, [batch, heads, tokens, head_dim + folded_channels]."""
    query, key = operands.query, operands.key
    if not _is_folded(rules, operands):
        return query, key
    parts = _parts(_host(operands.terms.slopes) / scale, query.dtype)
    of_key = np.tile(_digits(key.shape[-2]), len(parts))
    return (
        _with_channels(query, parts.repeat(2, axis=0).T[:, None]),
        _with_channels(key, of_key),
    )


def _is_folded(rules: Rules, operands: Operands) -> bool:
    """Under causality nothing is in the future, and its bias adds nothing."""
    nothing = rules.is_causal and rules.alibi_kind == "future"
    return operands.terms.slopes is not None and not nothing


def _are_indices(tokens: Tokens) -> bool:
    positions = np.asarray(tokens.positions)
    return bool((positions == np.arange(positions.shape[-1])).all())


def _host(slopes: Any) -> np.ndarray:
    return np.asarray(slopes, np.float64)


def _digits(tokens: int) -> np.ndarray:
    """a and b for every j, [tokens, 2]; c is the multiple of BASE next to the middle."""
    index = np.arange(tokens)
    middle = BASE * round(tokens / (2 * BASE))
    return np.stack([index - index % BASE - middle, index % BASE], -1)


def _parts(slopes: np.ndarray, dtype: Any) -> np.ndarray:
    """[parts, heads], values of `dtype` in float64 that add up to the slopes as nearly as PARTS of them can."""
    parts = [np.zeros_like(slopes)]
    left = slopes
    with np.errstate(over="ignore", invalid="ignore"):
        while left.any() and len(parts) <= PARTS:
            parts.append(left.astype(dtype).astype(np.float64))
            left = left - parts[-1]
    return np.stack(parts[1:] or parts)


def _error(
    slopes: np.ndarray, scale: float, tokens: int, channels: int, dtype: Any
) -> float:
    """By how much a logit may be off, as worked out above."""
    farthest = np.abs(_digits(tokens)).sum(-1).max()
    summed = 2 * math.sqrt(channels) * 2.0**-24 * np.abs(slopes).max()
    left = np.abs(slopes - scale * _parts(slopes / scale, dtype).sum(0)).max()
    return float((summed + left) * farthest)


def _with_channels(x: Array, channels: np.ndarray) -> Array:
    more = jnp.asarray(channels.astype(x.dtype))
    more = jnp.broadcast_to(more, (*x.shape[:-1], more.shape[-1]))
    return jnp.concatenate([x, more], -1)
