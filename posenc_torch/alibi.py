"""Attention with linear biases (ALiBi): attention scores fall off linearly with distance.

    bias[h, i, j] = -m[h] |i - j|,    m[h] = 2 ** (-8 (h + 1) / num_heads)

for query position i, key position j and head h of num_heads, a power of two.

Source: Press, Smith and Lewis, "Train Short, Test Long", 2022, arXiv:2108.12409, section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ._checks import (
    as_positions,
    as_table,
    check_choice,
    check_positive,
    check_rank,
    check_size,
    check_table_dtype,
)
from ._scores import signed_distance

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["alibi_bias", "alibi_slopes"]

Kind = Literal["symmetric", "signed", "key", "past", "future"]
GridKind = Literal["manhattan", "euclidean"]
Rule = Literal["authors", "uniform"]

KINDS = ("symmetric", "signed", "key", "past", "future")
GRID_KINDS = ("manhattan", "euclidean")
RULES = ("authors", "uniform")


def alibi_slopes(
    num_heads: int,
    *,
    rule: Rule = "authors",
    bias_max: float = 8.0,
    num_biased: int | None = None,
    dtype: Any = torch.float32,
) -> Float[Tensor, " heads"]:
    """Slope of every head, by the authors' rule for any number of heads.

        m[h] = 2 ** (-8 (h + 1) / num_heads)                       num_heads a power of two
        m    = slopes(p), then slopes(2 p)[0], [2], [4], ...       p the largest power of two below num_heads

    The list is not monotone when num_heads is not a power of two. The slopes of one tensor-parallel shard are the slice
    of the list that its heads have. Slopes of one's own, rounded (Falcon has them in bfloat16) or learnt, are passed to
    `alibi_bias` in place of these.

    Args:
        num_heads: Query heads.
        rule: "authors", or "uniform", the first formula for any number of heads (FlexAttention's examples).
        bias_max: In place of 8; MPT's `alibi_bias_max`.
        num_biased: Heads with a bias; the slopes are those of so many heads, then 0. None means all.
        dtype: float32 or float64; computed in float64 and rounded once.
    Returns:
        [num_heads] in `dtype`, logits per token.
    Raises:
        TypeError, ValueError: if `num_heads` is not an int of at least 1, `num_biased` not one from 0 to `num_heads`,
            `bias_max` not positive, the rule unknown, or dtype is neither float.
    Source:
        arXiv:2108.12409, section 3, and `get_slopes` in the authors' repository; `bias_max` from llm-foundry,
        `num_biased` from x-transformers (`alibi_num_heads`).
    """
    check_size("num_heads", num_heads)
    check_table_dtype("dtype", dtype)
    check_choice("rule", rule, RULES)
    check_positive("bias_max", bias_max)
    bias_max = float(bias_max)
    biased = num_heads if num_biased is None else num_biased
    check_size("num_biased", biased, at_least=0)
    if biased > num_heads:
        raise ValueError(
            f"`num_biased` must be at most {num_heads}, `num_heads`, got {biased}."
        )
    if rule == "uniform":
        slopes = _geometric(biased, bias_max)
    else:
        power = 2 ** max(biased.bit_length() - 1, 0)
        between = _geometric(2 * power, bias_max)[0::2]
        slopes = (_geometric(power, bias_max) + between)[:biased]
    return torch.tensor(slopes + [0.0] * (num_heads - biased), dtype=dtype)


def alibi_bias(
    query_positions: int | Int[Tensor, "*batch q"],
    key_positions: int | Int[Tensor, "*batch k"],
    slopes: Float[Tensor, " heads"],
    *,
    kind: Kind | GridKind = "symmetric",
) -> Float[Tensor, "*batch heads q k"]:
    """Bias to add to scaled attention scores.

        symmetric    bias[h, i, j] = -m[h] |i - j|
        signed       bias[h, i, j] =  m[h] (j - i)
        key          bias[h, i, j] =  m[h] j
        past         bias[h, i, j] = -m[h] max(i - j, 0)
        future       bias[h, i, j] = -m[h] max(j - i, 0)
        manhattan    bias[h, i, j] = -m[h] (|i[0] - j[0]| + |i[1] - j[1]| + ...)
        euclidean    bias[h, i, j] = -m[h] sqrt((i[0] - j[0]) ** 2 + (i[1] - j[1]) ** 2 + ...)

    Where j <= i, the first four differ by a constant of each row, so under a causal mask they give the same
    attention. Without one, "signed" and "key" reward the future, and "past" gives it 0, however far. "past" with one
    list of slopes plus "future" with another is the authors' non-symmetric form for encoders.

    Args:
        query_positions: An int n for 0..n-1, or integers [*batch, q]; distances must stay below 2 ** 31. For
            "manhattan" and "euclidean", coordinates, integers [*batch, q, axes].
        key_positions: Likewise, [*batch, k] or [*batch, k, axes]. (BLOOM's come from `positions_from_mask`; MPT's form
            is "signed" with the last key's position for every query.)
        slopes: [heads], float32 or float64, logits per token; differentiable.
        kind: One of the seven.
    Returns:
        [*batch, heads, q, k] in the dtype of `slopes`. Distances are exact integers before the product (but for
        "euclidean").
    Raises:
        TypeError: if positions are not integers or slopes not float32 or float64.
        ValueError: if slopes are not one axis, batch axes or coordinates do not match, or `kind` is unknown.
    Source:
        arXiv:2108.12409, section 3. "key" is BLOOM's and the authors' own code; "symmetric" and the sum of "past" and
        "future" are their answers for encoders (ofirpress/attention_with_linear_biases, issue 5); "past" is
        GPT-NeoX's; "manhattan" and "euclidean" are data2vec 2.0's for images.
    """
    check_choice("kind", kind, KINDS + GRID_KINDS)
    query_positions = as_positions("query_positions", query_positions)
    key_positions = as_positions("key_positions", key_positions)
    slopes = as_table("slopes", slopes, query_positions.device)
    if slopes.ndim != 1:
        raise ValueError(f"`slopes` must be [heads], got shape {tuple(slopes.shape)}.")
    if kind in GRID_KINDS:
        distance = _grid_distance(query_positions, key_positions, kind, slopes.dtype)
    else:
        distance = _distance(query_positions, key_positions, kind)
    return slopes[:, None, None] * distance[..., None, :, :].to(slopes.dtype)


def _distance(query: Tensor, key: Tensor, kind: str) -> Tensor:
    """What the slope multiplies, [*batch, q, k]."""
    check_rank("query_positions", query, "[..., q]", at_least=1)
    check_rank("key_positions", key, "[..., k]", at_least=1)
    _check_batches(query.shape[:-1], key.shape[:-1])
    return signed_distance(query[..., :, None], key[..., None, :], kind)


def _grid_distance(query: Tensor, key: Tensor, kind: str, dtype: Any) -> Tensor:
    """The same for coordinates, [*batch, q, axes] and [*batch, k, axes]."""
    check_rank("query_positions", query, "[..., q, axes]", at_least=2)
    check_rank("key_positions", key, "[..., k, axes]", at_least=2)
    if not 0 < query.shape[-1] == key.shape[-1]:
        raise ValueError(
            f"`query_positions` and `key_positions` must have the same coordinates, one or more, "
            f"got {query.shape[-1]} and {key.shape[-1]}."
        )
    _check_batches(query.shape[:-2], key.shape[:-2])

    def part(axis: int) -> Tensor:
        apart = query[..., :, None, axis] - key[..., None, :, axis]
        return apart.abs() if kind == "manhattan" else apart.to(dtype).square()

    # Axis by axis, so that no array is larger than the bias of one head.
    total = part(0)
    for axis in range(1, query.shape[-1]):
        total = total + part(axis)
    return -total if kind == "manhattan" else -total.sqrt()


def _geometric(num_heads: int, bias_max: float) -> list[float]:
    return [2.0 ** (-bias_max * (h + 1) / num_heads) for h in range(num_heads)]


def _check_batches(query: tuple[int, ...], key: tuple[int, ...]) -> None:
    pairs = zip(reversed(query), reversed(key), strict=False)
    if any(a != b and 1 not in (a, b) for a, b in pairs):
        raise ValueError(
            f"`query_positions` and `key_positions` must have the same batch axes, "
            f"got {tuple(query)} and {tuple(key)}."
        )
