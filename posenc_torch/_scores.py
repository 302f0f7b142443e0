"""Attention scores, of a whole call or of any block of it.

    logits[h, i, j] = cap(scale q[h, i] . k[g, j]) + bias[h, i, j] + m[h] distance(i, j)    where i may attend to j
    logits[h, i, j] = -inf                                                                  elsewhere

Heads come before tokens here: [*batch, heads, q, head_dim] and [*batch, kv_heads, k, head_dim].
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._checks import compute_dtype

__all__ = [
    "Operands",
    "Rules",
    "Terms",
    "Tokens",
    "attend",
    "average",
    "finite",
    "logits",
    "may_attend",
    "products",
    "reach",
    "score_dtype",
    "scores",
    "signed_distance",
    "softmax",
]


class Rules(NamedTuple):
    """What is known when a program is compiled."""

    is_causal: bool
    sliding_window: int | None
    alibi_kind: str


class Tokens(NamedTuple):
    """Of queries or of keys, integers [*batch, tokens]; None where no rule looks at them."""

    positions: Any = None
    segment_ids: Any = None


class Terms(NamedTuple):
    """What makes logits of products, and may be learnt; slopes [heads], bias broadcastable to the scores."""

    scale: Any
    softcap: Any = None
    slopes: Any = None
    bias: Any = None


class Operands(NamedTuple):
    """A call of attention, or a block of one; mask broadcastable to the scores."""

    query: Tensor
    key: Tensor
    value: Tensor
    terms: Terms
    mask: Any
    query_tokens: Tokens
    key_tokens: Tokens


def attend(rules: Rules, operands: Operands) -> Tensor:
    """The definition, which holds all scores at once: [*batch, heads, q, value_dim]."""
    dtype = score_dtype(operands)
    query, key, value = (x.to(dtype) for x in operands[:3])
    weights = softmax(scores(rules, operands, query, key, operands.terms))
    return average(weights, value).to(operands.query.dtype)


def score_dtype(operands: Operands) -> Any:
    """float32, or float64 where any array is."""
    terms = operands.terms
    learnt = (x for x in (terms.slopes, terms.bias) if x is not None)
    return compute_dtype(operands.query, *learnt)


def scores(
    rules: Rules, operands: Operands, query: Tensor, key: Tensor, terms: Terms
) -> Tensor:
    """Logits [*batch, heads, q, k], in the dtype of `query` and `key`."""
    slopes = terms.slopes
    return logits(
        rules,
        products(query * terms.scale, key),
        terms._replace(slopes=None if slopes is None else slopes[:, None, None]),
        operands.mask,
        Tokens(*(x if x is None else x[..., None, :, None] for x in operands[-2])),
        Tokens(*(x if x is None else x[..., None, None, :] for x in operands[-1])),
    )


def products(query: Tensor, key: Tensor) -> Tensor:
    """q . k of every query head with its key head."""
    grouped = _matmul(_by_key_head(query, key.shape[-3]), key.mT)
    return grouped.reshape(*query.shape[:-1], key.shape[-2])


def logits(
    rules: Rules,
    products: Tensor,
    terms: Terms,
    mask: Any,
    query: Tokens,
    key: Tokens,
) -> Tensor:
    """Logits of scaled products; terms, mask and the tokens of both sides broadcast against them."""
    logits, dtype = products, products.dtype
    if terms.softcap is not None:
        logits = terms.softcap * torch.tanh(logits / terms.softcap)
    if terms.bias is not None:
        logits = logits + terms.bias.to(dtype)
    if terms.slopes is not None:
        distance = signed_distance(query.positions, key.positions, rules.alibi_kind)
        logits = logits + terms.slopes.to(dtype) * distance.to(dtype)
    allowed = may_attend(rules, mask, query, key)
    return logits if allowed is None else torch.where(allowed, logits, -math.inf)


def signed_distance(query: Tensor, key: Tensor, kind: str) -> Tensor:
    """What the slope multiplies: of positions that broadcast against each other."""
    if kind == "key":
        return key.expand(torch.broadcast_shapes(query.shape, key.shape))
    ahead = key - query
    if kind == "signed":
        return ahead
    if kind == "symmetric":
        return -ahead.abs()
    return ahead.clamp(max=0) if kind == "past" else -ahead.clamp(min=0)


def may_attend(rules: Rules, mask: Any, query: Tokens, key: Tokens) -> Tensor | None:
    """True where a query may attend to a key; None where it always may."""
    conditions = []
    if mask is not None:
        conditions.append(mask)
    if rules.is_causal:
        conditions.append(key.positions <= query.positions)
    if rules.sliding_window is not None:
        higher = torch.maximum(query.positions, key.positions)
        apart = higher - torch.minimum(query.positions, key.positions)
        # What is too far apart for an integer wraps to a negative number.
        far = reach(rules.sliding_window, torch.iinfo(apart.dtype).max)
        conditions.append((apart >= 0) & (apart <= far))
    if query.segment_ids is not None:
        conditions.append(query.segment_ids == key.segment_ids)
    return reduce(torch.logical_and, conditions) if conditions else None


def reach(sliding_window: int, largest: int) -> int:
    """How far a window goes, in an integer that can hold `largest`."""
    return min(sliding_window - 1, largest)


def softmax(logits: Tensor) -> Tensor:
    """Softmax over keys; a row of -inf gives zeros, and zero gradient, where the usual form gives NaN."""
    if logits.shape[-1] == 0:
        return logits
    peak = logits.detach().amax(-1, keepdim=True)
    weights = torch.exp(logits - finite(peak))
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1, total)


def finite(peak: Tensor) -> Tensor:
    """A row of -inf has no peak; any will do."""
    return torch.where(peak == -math.inf, 0, peak)


def average(weights: Tensor, value: Tensor) -> Tensor:
    """Values averaged by the weights of every query head, [*batch, heads, q, value_dim]."""
    grouped = _matmul(_by_key_head(weights, value.shape[-3]), value)
    return grouped.reshape(*weights.shape[:-1], value.shape[-1])


def _by_key_head(x: Tensor, kv_heads: int) -> Tensor:
    """The rows of the query heads that share a key head, one after the other: [*batch, kv_heads, rows, columns]."""
    *batch, heads, tokens, columns = x.shape
    return x.reshape(*batch, kv_heads, heads // kv_heads * tokens, columns)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in the dtype of both: autocast would round them to half precision."""
    if not torch.amp.is_autocast_available(a.device.type):
        return a @ b
    with torch.autocast(a.device.type, enabled=False):
        return a @ b
