"""Scaled dot-product attention that goes by positions: causality, windows and ALiBi never look at an index.

    out[h, i] = sum_j softmax_j( cap(q[h, i] . k[g, j] scale) + bias[h, i, j] ) v[g, j]

over the keys j that query i may attend to; g = h // (heads / kv_heads) is the key head of query head h, and
cap(s) = logit_softcap tanh(s / logit_softcap). A query that may attend to nothing gets zeros and passes no gradient.

Source: Vaswani et al., 2017, arXiv:1706.03762, eq. 1; grouped heads: Ainslie et al., 2023, arXiv:2305.13245.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from jax import Array

from ._checks import (
    as_boolean,
    as_factor,
    as_floating,
    as_integers,
    as_positions,
    as_table,
    check_choice,
    check_fits,
    check_flag,
    check_rank,
    check_size,
    dtype_name,
    is_size,
)
from ._scores import Operands, Rules, Terms, Tokens
from .alibi import KINDS, Kind
from .kernels import IMPLEMENTATIONS, attend
from .positions import last_positions

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

__all__ = ["dot_product_attention", "scaled_dot_product_attention_with_alibi"]

Implementation = Literal["reference", "blockwise", "pallas_tpu", "splash", "cudnn"]


def dot_product_attention(
    query: Float[Array, "*batch q heads head_dim"],
    key: Float[Array, "*batch k kv_heads head_dim"],
    value: Float[Array, "*batch k kv_heads value_dim"],
    *,
    bias: Float[Array, "*#scores"] | None = None,
    mask: Bool[Array, "*#scores"] | None = None,
    is_causal: bool = False,
    scale: float | Float[Array, ""] | None = None,
    alibi_slopes: Float[np.ndarray | Array, " heads"] | None = None,
    alibi_kind: Kind = "symmetric",
    query_positions: Int[Array, "*#batch q"] | int | None = None,
    key_positions: Int[Array, "*#batch k"] | int | None = None,
    query_segment_ids: Int[Array, "*#batch q"] | None = None,
    key_segment_ids: Int[Array, "*#batch k"] | None = None,
    sliding_window: int | None = None,
    logit_softcap: float | Float[Array, ""] | None = None,
    implementation: Implementation | None = None,
) -> Float[Array, "*batch q heads value_dim"]:
    """Attend from queries to keys and average the values.

    Args:
        query: [*batch, q, heads, head_dim], any float dtype.
        key, value: Same dtype; `kv_heads` divides `heads`. `value_dim` may differ from `head_dim`.
        bias: Added to the scaled logits; broadcastable to [*batch, heads, q, k]. -inf excludes a key.
        mask: True where a query may attend; broadcastable to [*batch, heads, q, k]. Two axes are [q, k]; padding
            [batch, k] is `padding[:, None, None, :]`.
        is_causal: Attend only to keys with key_position <= query_position.
        scale: Factor of q . k, above 0; None means 1 / sqrt(head_dim).
        alibi_slopes: Adds `alibi_bias(query_positions, key_positions, alibi_slopes)`; [heads], differentiable.
        alibi_kind: "symmetric", "signed", "key", "past" or "future"; see `alibi_bias`.
        query_positions, key_positions: Tokens, [q] and [k] or with batch axes. None means 0, 1, 2, ...
            for keys, and for queries if there are as many queries as keys; otherwise where the queries stand
            must be said, since half of the field aligns them with the first keys and half with the last. Less than
            2^31 apart for ALiBi.
        query_segment_ids, key_segment_ids: Attend only where they are equal (packed documents); both or neither.
        sliding_window: Attend only to keys with abs(query_position - key_position) < sliding_window, tokens (with
            `is_causal`: to the last `sliding_window` keys, its own among them, as in Hugging Face's Mistral).
        logit_softcap: Cap scaled logits to (-c, c) by c tanh(s / c), before any bias (as flash-attention does).
        implementation: How it is computed. What one does not take it refuses by name.
            "reference": all scores at once, [*batch, heads, q, k]; any derivative.
            "blockwise": by blocks of 512 x 512 scores of every head (128 x 128 where heads times the batch are a
            thousand), in memory that grows with q + k, on any backend.
            The gradient computes the scores once more; it has no forward-mode derivative, and the gradient no reverse
            one. For a block of queries, blocks of keys before the first and after the last that positions and segments
            leave something of, in any row of the batch, are not computed.
            "pallas_tpu": likewise, as a TPU kernel, for each row of the batch; no `bias`, a `mask` of keys only, and
            positions and segments of 32 bits (traced others give NaN). Beside bfloat16 values, weights have 17 bits. It
            runs on one device or inside a `jax.shard_map` of all axes of the mesh. Where there is no TPU it is
            interpreted, slowly (inside `jax.shard_map` with `check_vma=False`).
            "splash": JAX's own TPU kernel; positions must be 0, 1, 2, ..., known when the program is built, and ALiBi
            is carried in more channels of the heads, where that is exact. It rounds queries once they are multiplied
            by the scale, and weights, to the dtype of `query`.
            "cudnn": NVIDIA's kernel, likewise; bfloat16 or float16, no mask, bias, segments or cap.
            None: "reference" where the scores are small (512 x 512 of every head, or no more than the keys, as in
            decoding); else "pallas_tpu" on a TPU if it takes the call and runs there; else "blockwise".
    Returns:
        [*batch, q, heads, value_dim] in the dtype of `query`. Products, softmax and sums are computed in
        float32 (float64 if queries, slopes or bias are) and rounded once, where `implementation` says nothing else.
    Raises:
        TypeError: if an array or number is of the wrong type, or query, key and value differ in dtype.
        ValueError: if shapes do not fit, a number is out of range, or positions are needed and not given.
    Source:
        arXiv:1706.03762, eq. 1.
    """
    check_choice("implementation", implementation, (None, *IMPLEMENTATIONS))
    rules, operands = _checked(
        query,
        key,
        value,
        bias=bias,
        mask=mask,
        is_causal=is_causal,
        scale=scale,
        alibi_slopes=alibi_slopes,
        alibi_kind=alibi_kind,
        query_positions=query_positions,
        key_positions=key_positions,
        query_segment_ids=query_segment_ids,
        key_segment_ids=key_segment_ids,
        sliding_window=sliding_window,
        logit_softcap=logit_softcap,
    )
    return attend(implementation, rules, operands).swapaxes(-2, -3)


def scaled_dot_product_attention_with_alibi(
    query: Float[Array, "*batch q heads head_dim"],
    key: Float[Array, "*batch k kv_heads head_dim"],
    value: Float[Array, "*batch k kv_heads value_dim"],
    alibi: Any,
    *,
    mask: Bool[Array, "*#scores"] | None = None,
    is_causal: bool = False,
    scale: float | Float[Array, ""] | None = None,
    query_positions: Int[Array, "*#batch q"] | int | None = None,
    key_positions: Int[Array, "*#batch k"] | int | None = None,
) -> Float[Array, "*batch q heads value_dim"]:
    """Attend with the slopes of an ALiBi module: `dot_product_attention` in the tutorials' spelling.

    Where there are fewer queries than keys, it takes them for the last ones, as the module does.

    Args:
        query, key, value: As in `dot_product_attention`.
        alibi: An `AlibiPositionEmbedding`, or anything with its `slopes` and `kind`.
        mask, is_causal, scale: As in `dot_product_attention`.
        query_positions, key_positions: Tokens; None means 0, 1, 2, ... for keys and the last of them for queries,
            as `AlibiPositionEmbedding` does.
    Returns:
        [*batch, q, heads, value_dim] in the dtype of `query`.
    Raises:
        TypeError, ValueError: as `dot_product_attention`, or if there are more queries than keys and no positions.
    """
    if not (hasattr(alibi, "slopes") and hasattr(alibi, "kind")):
        raise TypeError(
            f"`alibi` must have `slopes` and `kind`, as `AlibiPositionEmbedding` does, "
            f"got {type(alibi).__name__}."
        )
    if query_positions is None and key_positions is None:
        query, key = as_floating("query", query), as_floating("key", key)
        check_rank("query", query, "[..., q, heads, head_dim]", at_least=3)
        check_rank("key", key, "[..., k, kv_heads, head_dim]", at_least=3)
        query_positions = last_positions(query.shape[-3], key.shape[-3])
    return dot_product_attention(
        query,
        key,
        value,
        mask=mask,
        is_causal=is_causal,
        scale=scale,
        alibi_slopes=alibi.slopes,
        alibi_kind=alibi.kind,
        query_positions=query_positions,
        key_positions=key_positions,
    )


def _checked(
    query: Any,
    key: Any,
    value: Any,
    *,
    bias: Any = None,
    mask: Any = None,
    is_causal: bool,
    scale: Any,
    alibi_slopes: Any,
    alibi_kind: str,
    query_positions: Any,
    key_positions: Any,
    query_segment_ids: Any,
    key_segment_ids: Any,
    sliding_window: int | None,
    logit_softcap: Any,
) -> tuple[Rules, Operands]:
    """A call of attention, whose heads come before its tokens."""
    check_choice("alibi_kind", alibi_kind, KINDS)
    check_flag("is_causal", is_causal)
    query, key, value = _check_qkv(query, key, value)
    *batch, q_len, heads, head_dim = query.shape
    shape = (*batch, heads, q_len, key.shape[-3])
    by_position = is_causal or alibi_slopes is not None or sliding_window is not None
    positions = _positions(query_positions, key_positions, shape, required=by_position)
    segments = _segments(query_segment_ids, key_segment_ids, shape)
    if scale is None:
        scale = 1 / math.sqrt(head_dim)
    else:
        scale = as_factor("scale", scale)
    if logit_softcap is not None:
        logit_softcap = as_factor("logit_softcap", logit_softcap)
    if sliding_window is not None:
        check_size("sliding_window", sliding_window)
    if mask is not None:
        mask = as_boolean("mask", mask)
        check_fits("mask", mask.shape, shape, exact=0)
    if bias is not None:
        bias = as_floating("bias", bias)
        check_fits("bias", bias.shape, shape, exact=0)
    slopes = None if alibi_slopes is None else _check_slopes(alibi_slopes, heads)

    query, key, value = (x.swapaxes(-2, -3) for x in (query, key, value))
    operands = Operands(
        query,
        key,
        value,
        Terms(scale, logit_softcap, slopes, bias),
        mask,
        Tokens(positions[0], segments[0]),
        Tokens(positions[1], segments[1]),
    )
    return Rules(is_causal, sliding_window, alibi_kind), operands


def _positions(
    query_positions: Any,
    key_positions: Any,
    shape: tuple[int, ...],
    *,
    required: bool,
) -> tuple[Array | None, Array | None]:
    *batch, _, q_len, k_len = shape
    if query_positions is None and key_positions is None and not required:
        return None, None
    if query_positions is None and (key_positions is not None or q_len != k_len):
        raise ValueError(
            f"`query_positions` must be given where `key_positions` are or where there "
            f"are not as many queries as keys, got None for {q_len} and {k_len}; the "
            f"last of the keys are `last_positions({q_len}, {k_len})`."
        )
    query_positions = q_len if query_positions is None else query_positions
    key_positions = k_len if key_positions is None else key_positions
    fitting = (
        _fitting("query_positions", query_positions, (*batch, q_len)),
        _fitting("key_positions", key_positions, (*batch, k_len)),
    )
    return fitting if required else (None, None)


def _fitting(name: str, positions: Any, shape: tuple[int, ...]) -> Any:
    """What came from the host stays there: kernels that go by index must know it when a program is built."""
    if is_size(positions):
        check_size(name, positions, at_least=0)
        check_fits(name, (positions,), shape, exact=1)
        if isinstance(positions, int):
            return np.arange(positions, dtype=jax.dtypes.canonicalize_dtype(np.int64))
    array = as_positions(name, positions)
    check_fits(name, array.shape, shape, exact=1)
    return positions.astype(array.dtype) if isinstance(positions, np.ndarray) else array


def _segments(
    query_ids: Any, key_ids: Any, shape: tuple[int, ...]
) -> tuple[Array | None, Array | None]:
    if query_ids is None and key_ids is None:
        return None, None
    if query_ids is None or key_ids is None:
        missing = "query" if query_ids is None else "key"
        raise ValueError(
            f"`query_segment_ids` and `key_segment_ids` must be given together, "
            f"got None for `{missing}_segment_ids`."
        )
    *batch, _, q_len, k_len = shape
    query_ids = as_integers("query_segment_ids", query_ids)
    key_ids = as_integers("key_segment_ids", key_ids)
    check_fits("query_segment_ids", query_ids.shape, (*batch, q_len), exact=1)
    check_fits("key_segment_ids", key_ids.shape, (*batch, k_len), exact=1)
    return query_ids, key_ids


def _check_slopes(slopes: Any, heads: int) -> Any:
    array = as_table("alibi_slopes", slopes)
    if array.shape != (heads,):
        raise ValueError(
            f"`alibi_slopes` must have one slope for each of the {heads} heads "
            f"of `query`, got shape {tuple(array.shape)}."
        )
    # What came from the host stays there: folding them into heads needs their values when a program is built.
    return slopes.astype(array.dtype) if isinstance(slopes, np.ndarray) else array


def _check_qkv(query: Any, key: Any, value: Any) -> tuple[Array, Array, Array]:
    query = as_floating("query", query)
    key, value = as_floating("key", key), as_floating("value", value)
    for name, x in (("key", key), ("value", value)):
        if x.dtype != query.dtype:
            raise TypeError(
                f"`{name}` must have the dtype of `query`, "
                f"got {dtype_name(x.dtype)} and {dtype_name(query.dtype)}."
            )
    check_rank("query", query, "[..., q, heads, head_dim]", at_least=3)
    check_rank("key", key, "[..., k, kv_heads, head_dim]", at_least=3)
    check_rank("value", value, "[..., k, kv_heads, value_dim]", at_least=3)
    *batch, _, heads, head_dim = query.shape
    k_len, kv_heads = key.shape[-3], key.shape[-2]
    if head_dim == 0:
        raise ValueError("`query` must have a `head_dim` of at least 1, got 0.")
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(
            f"`key` must have a number of heads that divides that of `query`, "
            f"got {kv_heads} and {heads}."
        )
    check_fits("key", key.shape, (*batch, k_len, kv_heads, head_dim), exact=query.ndim)
    value_shape = (*batch, k_len, kv_heads, value.shape[-1])
    check_fits("value", value.shape, value_shape, exact=query.ndim)
    return query, key, value
