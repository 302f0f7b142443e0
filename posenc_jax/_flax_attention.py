"""Attention for Flax's own attention modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._checks import (
    as_positions,
    as_table,
    check_choice,
    check_fits,
    check_flag,
    check_rank,
    check_size,
)
from .alibi import KINDS, Kind
from .attention import Implementation, dot_product_attention
from .kernels import IMPLEMENTATIONS
from .positions import position_range
from .rope import RopeConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int

__all__ = ["make_attention_fn"]


def make_attention_fn(
    *,
    is_causal: bool = False,
    rope: RopeConfig | None = None,
    alibi_slopes: Float[np.ndarray | Array, " heads"] | None = None,
    alibi_kind: Kind = "symmetric",
    query_positions: Int[Array, "*#batch q"] | int | None = None,
    key_positions: Int[Array, "*#batch k"] | int | None = None,
    sliding_window: int | None = None,
    seq_len: int | Int[Array, ""] | None = None,
    decode: bool = False,
    implementation: Implementation | None = None,
) -> Callable[..., Array]:
    """Make an `attention_fn` for `flax.nnx.MultiHeadAttention` or `flax.linen.MultiHeadDotProductAttention`.

    It rotates queries and keys and calls `dot_product_attention`. Flax's masks are heeded (0 or False excludes a
    key), but a query that may attend to nothing gets zeros, where Flax averages all values.

    With `decode`, Flax keeps unrotated keys in its cache and hands over one query, all `max_len` keys and a mask
    that ends at the newest one; how many there are is not said otherwise. So the query stands where the last key
    that its row of the mask allows stands, which is right as long as every token may attend to itself: padding
    masks may be added, on either side. The keys are rotated anew at every step. A step past the end of the cache is
    not seen.

    Args:
        is_causal: Attend only to keys that are not after the query, as where the module is called with `is_causal`,
            which Flax's linen and older nnx modules have not. Causality as a mask would hold all scores.
        rope: The rotary embedding; its `head_dim` must be that of the queries. None means no rotation.
        seq_len: Tokens attended over, for a `rope` whose scaling depends on it; see `RopeConfig.inv_freq`.
        alibi_slopes: As from `alibi_slopes`, [heads]. None means no bias. Of slopes that are learnt, give the array:
            make the function where the module is called.
        alibi_kind: "symmetric", "signed", "key", "past" or "future"; see `alibi_bias`.
        query_positions, key_positions: Tokens, both or neither; None means 0, 1, 2, ..., for as many queries
            as keys. Only differences matter to the result, so left padding needs nothing but the mask.
        sliding_window: As in `dot_product_attention`.
        decode: Whether the module runs with `decode=True`. The function also takes full sequences, such as
            those of linen's `init`.
        implementation: As in `dot_product_attention`.
    Returns:
        A function (query [*batch, q, heads, head_dim], key, value, bias=None, mask=None, ...) that takes what Flax
        passes and gives [*batch, q, heads, value_dim] in the dtype of `query`, or in `dtype` if Flax passes one.
        Products are in float32 or better at the highest precision, whatever `precision` asks for.
        It has no dropout, keeps no weights and takes no einsum: asked for these, it raises ValueError.
    Raises:
        ValueError, TypeError: if an option is unknown or out of range, or positions are given by half or
            with `decode`.
    """
    check_flag("is_causal", is_causal)
    check_choice("alibi_kind", alibi_kind, KINDS)
    check_choice("implementation", implementation, (None, *IMPLEMENTATIONS))
    _check_rope(rope, seq_len)
    if alibi_slopes is not None:
        as_table("alibi_slopes", alibi_slopes)
    if sliding_window is not None:
        check_size("sliding_window", sliding_window)
    _check_given(query_positions, key_positions, decode=decode)
    encoded = not (rope is None and alibi_slopes is None and sliding_window is None)
    always_causal = is_causal

    # linen passes only the arguments it finds in this signature; those that cannot be honoured are here to be
    # refused. `force_fp32_for_softmax` is not, since the softmax never has less.
    def attention_fn(
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None = None,
        mask: Array | None = None,
        broadcast_dropout: bool = True,  # noqa: ARG001
        dropout_rng: Array | None = None,  # noqa: ARG001
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: Any = None,
        precision: Any = None,
        module: Any = None,
        is_causal: bool = False,
        qk_attn_weights_einsum: Any = None,
        attn_weights_value_einsum: Any = None,
    ) -> Array:
        _check_dropout(dropout_rate, deterministic)
        _check_precision(precision)
        _check_none(
            module=module,
            qk_attn_weights_einsum=qk_attn_weights_einsum,
            attn_weights_value_einsum=attn_weights_value_einsum,
        )
        is_causal = is_causal or always_causal
        check_rank("query", query, "[..., q, heads, head_dim]", at_least=3)
        check_rank("key", key, "[..., k, kv_heads, head_dim]", at_least=3)
        if dtype is not None:
            query, key, value = (x.astype(dtype) for x in (query, key, value))
        mask = None if mask is None else mask.astype(bool)
        q_len, k_len = query.shape[-3], key.shape[-3]
        positions = query_positions, key_positions
        if decode and q_len != k_len:
            positions = _decode_positions(mask, k_len)
        elif query_positions is None:
            if q_len != k_len and (encoded or is_causal):
                raise ValueError(
                    f"`decode` for a cache, or positions, must be given to "
                    f"`make_attention_fn` where there are not as many queries as keys, "
                    f"got {q_len} and {k_len}."
                )
            positions = (q_len, k_len) if q_len == k_len else (None, None)
        if rope is not None:
            query = _rotate("query", query, positions[0], rope, seq_len)
            key = _rotate("key", key, positions[1], rope, seq_len)
        return dot_product_attention(
            query,
            key,
            value,
            bias=bias,
            mask=mask,
            is_causal=is_causal,
            alibi_slopes=alibi_slopes,
            alibi_kind=alibi_kind,
            query_positions=positions[0],
            key_positions=positions[1],
            sliding_window=sliding_window,
            implementation=implementation,
        )

    return attention_fn


def _decode_positions(mask: Array | None, k_len: int) -> tuple[Array, int]:
    """Positions of cached keys, and of a query at the last one that it may attend to."""
    if mask is None:
        raise ValueError(
            "`mask` must be given in a decoding step, since it tells how many keys are "
            "in the cache, got None."
        )
    check_rank("mask", mask, "[..., heads, q, k]", at_least=3)
    allowed = jnp.broadcast_to(mask.any(-3), (*mask.shape[:-3], mask.shape[-2], k_len))
    return jnp.where(allowed, position_range(k_len), 0).max(-1), k_len


def _rotate(
    name: str, x: Array, positions: Any, rope: RopeConfig, seq_len: Any
) -> Array:
    *batch, seq, _, head_dim = x.shape
    if head_dim != rope.head_dim:
        raise ValueError(
            f"`{name}` must have the `head_dim` of `rope`, "
            f"got {head_dim} and {rope.head_dim}."
        )
    positions = as_positions(f"{name}_positions", positions)
    check_fits(f"{name}_positions", positions.shape, (*batch, seq), exact=1)
    dtype = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
    return rope.apply(x, *rope.cos_sin(positions, seq_len, dtype=dtype))


def _check_rope(rope: Any, seq_len: Any) -> None:
    if not isinstance(rope, RopeConfig | None):
        raise TypeError(f"`rope` must be a `RopeConfig`, got {type(rope).__name__}.")
    if rope is None:
        if seq_len is not None:
            raise ValueError("`rope` must be given with `seq_len`, got None.")
        return
    if rope.axes is not None:
        raise ValueError(
            "`rope` must have no `axes`, since Flax's attention has positions of one "
            "coordinate."
        )
    rope.attention_factor(seq_len)


def _check_given(query_positions: Any, key_positions: Any, *, decode: bool) -> None:
    if (query_positions is None) != (key_positions is None):
        missing = "query" if query_positions is None else "key"
        raise ValueError(
            f"`query_positions` and `key_positions` must be given together, "
            f"got None for `{missing}_positions`."
        )
    if decode and query_positions is not None:
        raise ValueError(
            "`query_positions` and `key_positions` must be None with `decode`, since "
            "tokens stand where the cache has them."
        )


def _check_dropout(dropout_rate: float, deterministic: bool) -> None:
    if dropout_rate and not deterministic:
        raise ValueError(
            f"`dropout_rate` must be 0 unless `deterministic`, since this attention has "
            f"no dropout, got {dropout_rate}."
        )


def _check_precision(precision: Any) -> None:
    for part in precision if isinstance(precision, tuple) else (precision,):
        try:
            jax.lax.Precision(part)
        except ValueError:
            raise ValueError(
                f"`precision` must be a `jax.lax.Precision` or None, got {part}."
            ) from None


def _check_none(**others: Any) -> None:
    for name, value in others.items():
        if value is not None:
            asked = "`module` (`sow_weights=True`)" if name == "module" else f"`{name}`"
            raise ValueError(
                f"{asked} must be None, since this attention has no use for it, "
                f"got {type(value).__name__}."
            )
