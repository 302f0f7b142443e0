"""Attention scores, of a whole call or of any block of it.

    logits[h, i, j] = cap(scale q[h, i] . k[g, j]) + bias[h, i, j] + m[h] distance(i, j)    where i may attend to j
    logits[h, i, j] = -inf                                                                  elsewhere

Heads come before tokens here: [*batch, heads, q, head_dim] and [*batch, kv_heads, k, head_dim].
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

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
    """Of queries or of keys, [*batch, tokens]; None where no rule looks at them, and where all keys are there."""

    positions: Any = None
    segment_ids: Any = None
    are_there: Any = None


class Terms(NamedTuple):
    """What makes logits of products, and may be learnt; slopes [heads], bias broadcastable to the scores."""

    scale: Any
    softcap: Any = None
    slopes: Any = None
    bias: Any = None


class Operands(NamedTuple):
    """A call of attention, or a block of one; mask broadcastable to the scores."""

    query: Array
    key: Array
    value: Array
    terms: Terms
    mask: Any
    query_tokens: Tokens
    key_tokens: Tokens


def attend(rules: Rules, operands: Operands) -> Array:
    """The definition, which holds all scores at once: [*batch, heads, q, value_dim]."""
    dtype = score_dtype(operands)
    query, key, value = (x.astype(dtype) for x in operands[:3])
    weights = softmax(scores(rules, operands, query, key, operands.terms))
    return average(weights, value).astype(operands.query.dtype)


def score_dtype(operands: Operands) -> Any:
    """float32, or float64 where any array is."""
    terms = operands.terms
    learnt = (x for x in (terms.slopes, terms.bias) if x is not None)
    return compute_dtype(operands.query, *learnt)


def scores(
    rules: Rules, operands: Operands, query: Array, key: Array, terms: Terms
) -> Array:
    """Logits [*batch, heads, q, k], in the dtype of `query` and `key`."""
    slopes = terms.slopes
    # Not the products: a compiler would join that to the subtraction of the peak, and round a logit another way there.
    query = query * jnp.asarray(terms.scale, query.dtype)
    return logits(
        rules,
        products(query, key),
        terms._replace(
            slopes=None if slopes is None else jnp.asarray(slopes)[:, None, None]
        ),
        operands.mask,
        _broadcast(operands.query_tokens, (..., None, slice(None), None)),
        _broadcast(operands.key_tokens, (..., None, None, slice(None))),
    )


def _broadcast(tokens: Tokens, index: tuple[Any, ...]) -> Tokens:
    """As traced arrays: of host constants NumPy would make all pairs, which would be a constant of the program."""
    return Tokens(*(x if x is None else jnp.asarray(x)[index] for x in tokens))


def products(query: Array, key: Array) -> Array:
    """q . k of every query head with its key head."""
    grouped = _matmul(_by_key_head(query, key.shape[-3]), key.mT)
    return grouped.reshape(*query.shape[:-1], key.shape[-2])


def logits(
    rules: Rules,
    products: Array,
    terms: Terms,
    mask: Any,
    query: Tokens,
    key: Tokens,
) -> Array:
    """Logits of scaled products; terms, mask and the tokens of both sides broadcast against them."""
    logits, dtype = products, products.dtype
    if terms.softcap is not None:
        cap = jnp.asarray(terms.softcap, dtype)
        logits = cap * jnp.tanh(logits / cap)
    if terms.bias is not None:
        logits = logits + terms.bias.astype(dtype)
    if terms.slopes is not None:
        distance = signed_distance(query.positions, key.positions, rules.alibi_kind)
        logits = logits + terms.slopes.astype(dtype) * distance.astype(dtype)
    allowed = may_attend(rules, mask, query, key)
    return logits if allowed is None else jnp.where(allowed, logits, -math.inf)


def signed_distance(query: Array, key: Array, kind: str) -> Array:
    """What the slope multiplies: of positions that broadcast against each other."""
    if kind == "key":
        return jnp.broadcast_to(key, jnp.broadcast_shapes(query.shape, key.shape))
    ahead = key - query
    if kind == "signed":
        return ahead
    if kind == "symmetric":
        return -jnp.abs(ahead)
    return jnp.minimum(ahead, 0) if kind == "past" else -jnp.maximum(ahead, 0)


def may_attend(rules: Rules, mask: Any, query: Tokens, key: Tokens) -> Array | None:
    """True where a query may attend to a key; None where it always may."""
    conditions = []
    if mask is not None:
        conditions.append(mask)
    if rules.is_causal:
        conditions.append(key.positions <= query.positions)
    if rules.sliding_window is not None:
        higher = jnp.maximum(query.positions, key.positions)
        apart = higher - jnp.minimum(query.positions, key.positions)
        # What is too far apart for an integer wraps to a negative number.
        far = reach(rules.sliding_window, jnp.iinfo(apart.dtype).max)
        conditions.append((apart >= 0) & (apart <= far))
    if key.are_there is not None:
        conditions.append(key.are_there)
    if query.segment_ids is not None:
        conditions.append(query.segment_ids == key.segment_ids)
    return reduce(jnp.logical_and, conditions) if conditions else None


def reach(sliding_window: int, largest: int) -> int:
    """How far a window goes, in an integer that can hold `largest`."""
    return min(sliding_window - 1, largest)


def softmax(logits: Array) -> Array:
    """Softmax over keys; a row of -inf gives zeros, and zero gradient, where the usual form gives NaN."""
    if logits.shape[-1] == 0:
        return logits
    peak = jax.lax.stop_gradient(logits.max(-1, keepdims=True))
    weights = jnp.exp(logits - finite(peak))
    total = weights.sum(-1, keepdims=True)
    return weights / jnp.where(total == 0, 1, total)


def finite(peak: Array) -> Array:
    """A row of -inf has no peak; any will do."""
    return jnp.where(peak == -math.inf, 0, peak)


def average(weights: Array, value: Array) -> Array:
    """Values averaged by the weights of every query head, [*batch, heads, q, value_dim]."""
    grouped = _matmul(_by_key_head(weights, value.shape[-3]), value)
    return grouped.reshape(*weights.shape[:-1], value.shape[-1])


def _by_key_head(x: Array, kv_heads: int) -> Array:
    """The rows of the query heads that share a key head, one after the other: [*batch, kv_heads, rows, columns]."""
    *batch, heads, tokens, columns = x.shape
    return x.reshape(*batch, kv_heads, heads // kv_heads * tokens, columns)


def _matmul(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision="highest")
