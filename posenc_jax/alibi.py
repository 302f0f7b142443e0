"""Attention with linear biases (ALiBi): attention scores fall off linearly with distance.

    bias[h, i, j] = -m[h] |i - j|,    m[h] = 2 ** (-8 (h + 1) / num_heads)

for query position i, key position j and head h of num_heads, a power of two.

Source: Press, Smith and Lewis, "Train Short, Test Long", 2022, arXiv:2108.12409, section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from ._checks import (
    as_positions,
    as_table,
    check_choice,
    check_rank,
    check_size,
    host_dtype,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["alibi_bias", "alibi_slopes"]

Kind = Literal["symmetric", "signed", "key"]

KINDS = ("symmetric", "signed", "key")


def alibi_slopes(
    num_heads: int, *, dtype: Any = jnp.float32
) -> Float[np.ndarray, " heads"]:
    """Slope of every head, by the authors' rule for any number of heads.

        m[h] = 2 ** (-8 (h + 1) / num_heads)                       num_heads a power of two
        m    = slopes(p), then slopes(2 p)[0], [2], [4], ...       p the largest power of two below num_heads

    The list is not monotone when num_heads is not a power of two.

    Args:
        num_heads: Query heads.
        dtype: float32 or float64; computed in float64 and rounded once.
    Returns:
        NumPy array [num_heads] in `dtype`, logits per token: a constant of any compiled program, on no device.
    Raises:
        TypeError, ValueError: if `num_heads` is not an int of at least 1, or dtype is neither float.
    Source:
        arXiv:2108.12409, section 3, and `get_slopes` in the authors' repository.
    """
    check_size("num_heads", num_heads)
    dtype = host_dtype("dtype", dtype)
    power = 2 ** (num_heads.bit_length() - 1)
    between = _geometric(2 * power)[0::2]
    slopes = _geometric(power) + between[: num_heads - power]
    return np.array(slopes, dtype)


def alibi_bias(
    query_positions: int | Int[Array, "*batch q"],
    key_positions: int | Int[Array, "*batch k"],
    slopes: Float[np.ndarray | Array, " heads"],
    *,
    kind: Kind = "symmetric",
) -> Float[Array, "*batch heads q k"]:
    """Bias to add to scaled attention scores.

        symmetric    bias[h, i, j] = -m[h] |i - j|
        signed       bias[h, i, j] =  m[h] (j - i)
        key          bias[h, i, j] =  m[h] j

    Where j <= i, the three differ by a constant of each row, so under a causal mask they give the same
    attention. Without one, only "symmetric" is a distance: "signed" and "key" reward the future.

    Args:
        query_positions: An int n for 0..n-1, or integers [*batch, q]; distances must stay below 2 ** 31.
        key_positions: Likewise, [*batch, k].
        slopes: [heads], float32 or float64, logits per token; differentiable.
        kind: "symmetric", "signed" or "key".
    Returns:
        [*batch, heads, q, k] in the dtype of `slopes`. Distances are exact integers before the product.
    Raises:
        TypeError: if positions are not integers or slopes not float32 or float64.
        ValueError: if slopes are not one axis, batch axes do not match, or `kind` is unknown.
    Source:
        arXiv:2108.12409, section 3. "key" is BLOOM's and the authors' own code; "symmetric" is their answer
        for bidirectional attention (ofirpress/attention_with_linear_biases, issue 5).
    """
    check_choice("kind", kind, KINDS)
    query_positions = as_positions("query_positions", query_positions)
    key_positions = as_positions("key_positions", key_positions)
    slopes = as_table("slopes", slopes)
    check_rank("query_positions", query_positions, "[..., q]", at_least=1)
    check_rank("key_positions", key_positions, "[..., k]", at_least=1)
    if slopes.ndim != 1:
        raise ValueError(f"`slopes` must be [heads], got shape {tuple(slopes.shape)}.")
    _check_batches(query_positions.shape[:-1], key_positions.shape[:-1])
    query, key = query_positions[..., :, None], key_positions[..., None, :]
    if kind == "key":
        distance = jnp.broadcast_to(key, jnp.broadcast_shapes(query.shape, key.shape))
    else:
        distance = key - query if kind == "signed" else -jnp.abs(key - query)
    return slopes[:, None, None] * distance[..., None, :, :].astype(slopes.dtype)


def _geometric(num_heads: int) -> list[float]:
    return [2.0 ** (-8 * (h + 1) / num_heads) for h in range(num_heads)]


def _check_batches(query: tuple[int, ...], key: tuple[int, ...]) -> None:
    pairs = zip(reversed(query), reversed(key), strict=False)
    if any(a != b and 1 not in (a, b) for a, b in pairs):
        raise ValueError(
            f"`query_positions` and `key_positions` must have the same batch axes, "
            f"got {tuple(query)} and {tuple(key)}."
        )
