"""`jax.nn.dot_product_attention(implementation="cudnn")`, NVIDIA's own kernel, where it takes a call exactly.

It goes by index. It would materialise masks and round a bias to the dtype of the queries, so both are refused; ALiBi
is folded into heads, see `_folded`. It rounds weights to the dtype of the queries before they meet the values.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer

from .._scores import Operands, Rules
from ._folded import alibi_refusal, fold, folded_channels, positions_refusal

__all__ = ["attend", "refusal"]

# What the number of channels must be a multiple of.
CHANNELS = 8


def refusal(rules: Rules, operands: Operands) -> str | None:
    """What this kernel does not take, or None."""
    query, _, _, terms, mask, query_tokens, _ = operands
    capability = _compute_capability()
    if capability is None:
        return f"a backend without an NVIDIA GPU (here {jax.default_backend()})"
    if capability < 8:
        return f"an NVIDIA GPU before Ampere (here of compute capability {capability})"
    if query.dtype not in (jnp.bfloat16, jnp.float16):
        return f"{query.dtype}"
    if terms.bias is not None:
        return "a `bias`"
    if mask is not None:
        return "a `mask`"
    if query_tokens.segment_ids is not None:
        return "segment ids"
    if terms.softcap is not None:
        return "a `logit_softcap`"
    if isinstance(terms.scale, Tracer):
        return "a `scale` that is not known when the program is built"
    if rules.sliding_window is not None and not rules.is_causal:
        return "a `sliding_window` without `is_causal`"
    refused = positions_refusal(rules, operands) or alibi_refusal(
        rules, operands, float(terms.scale)
    )
    if refused is not None:
        return refused
    channels, most = _channels(rules, operands), 256 if capability >= 9 else 128
    if channels > most:
        return f"more than {most} channels of a head (here {channels}, with those of ALiBi and padding)"
    return None


def attend(rules: Rules, operands: Operands) -> Array:
    """[batch, heads, q, value_dim]; operands have one batch axis."""
    scale, tokens = float(operands.terms.scale), operands.key.shape[-2]
    channels = _channels(rules, operands)

    def to_kernel(x: Array) -> Array:
        """[batch, tokens, heads, channels]."""
        widths = [(0, 0)] * 3 + [(0, channels - x.shape[-1])]
        return jnp.pad(x, widths).swapaxes(1, 2)

    query, key = fold(rules, operands, scale)
    window = rules.sliding_window
    out = jax.nn.dot_product_attention(
        to_kernel(query),
        to_kernel(key),
        to_kernel(operands.value),
        scale=scale,
        is_causal=rules.is_causal,
        # Tokens to the left and to the right of the query's own, which is one of the window.
        local_window_size=None if window is None else (min(window, tokens) - 1, 0),
        implementation="cudnn",
    )
    return out[..., : operands.value.shape[-1]].swapaxes(1, 2)


def _channels(rules: Rules, operands: Operands) -> int:
    """Of a head in the kernel, which has as many for values as for keys."""
    keys = operands.key.shape[-1]
    keys += folded_channels(rules, operands, float(operands.terms.scale))
    return -(-max(keys, operands.value.shape[-1]) // CHANNELS) * CHANNELS


def _compute_capability() -> float | None:
    """Of the NVIDIA GPU that programs are for; None if they are for something else."""
    capability: Any = getattr(jax.devices()[0], "compute_capability", None)
    try:
        return None if capability is None else float(capability)
    except ValueError:  # A GPU of AMD's has letters there.
        return None
