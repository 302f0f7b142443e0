"""Calls of attention cut into blocks, and which blocks a rule leaves nothing of."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from .._scores import Operands, Rules, Tokens, reach

__all__ = [
    "Sums",
    "add_at",
    "block_of",
    "block_size",
    "first_and_last",
    "mask_refusal",
    "padded",
    "take",
    "to_visit",
    "whole",
]


class Sums(NamedTuple):
    """Of every row of scores, [batch, heads, q]: a key's weight is exp(its logit - peak) / total.

    Not as peak + log(total), in which a large peak leaves nothing of the total.
    """

    peak: Array
    total: Array

    def divisor(self) -> Array:
        """A row without keys has a total of 0, and nothing to divide."""
        return jnp.where(self.total == 0, 1, self.total)


def mask_refusal(operands: Operands) -> str | None:
    """A kernel holds no array of all scores: it takes a mask of keys alone."""
    mask = operands.mask
    if mask is None or all(size == 1 for size in mask.shape[-3:-1]):
        return None
    return "a `mask` that differs between heads or queries (causality is `is_causal`)"


def block_size(length: int, largest: int, multiple_of: int = 1) -> int:
    """Of as few blocks as will do, and those equal."""
    equal = -(-length // -(-length // largest))
    return -(-equal // multiple_of) * multiple_of


def padded(operands: Operands, q_block: int, k_block: int) -> Operands:
    """Whole blocks: more queries, whose results mean nothing, and more keys, which are not there."""
    query, key, value, terms, mask, query_tokens, key_tokens = operands
    k_len = key.shape[-2]

    def of_scores(x: Any) -> Any:
        if x is None:
            return None
        sizes = {-2: q_block, -1: k_block}
        # An axis of one is broadcast and stays.
        return whole(x, {axis: n for axis, n in sizes.items() if x.shape[axis] != 1})

    def of_tokens(tokens: Tokens, block: int) -> Tokens:
        # A token more where the last one stands makes no block reach farther.
        sizes = {-1: block}
        return Tokens(
            *(x if x is None else whole(x, sizes, mode="edge") for x in tokens)
        )

    key_tokens = of_tokens(key_tokens, k_block)
    if k_len % k_block:
        real = jnp.arange(k_len + -k_len % k_block)[None] < k_len
        key_tokens = key_tokens._replace(are_there=real)
    return Operands(
        whole(query, {-2: q_block}),
        whole(key, {-2: k_block}),
        whole(value, {-2: k_block}),
        terms._replace(bias=of_scores(terms.bias)),
        of_scores(mask),
        of_tokens(query_tokens, q_block),
        key_tokens,
    )


def block_of(
    operands: Operands, i: Array, j: Array, q_block: int, k_block: int
) -> Operands:
    """Block i of the queries and j of the keys."""
    query, key, value, terms, mask, query_tokens, key_tokens = operands

    def of_scores(x: Any) -> Any:
        return take(take(x, i, q_block, -2), j, k_block, -1)

    return Operands(
        take(query, i, q_block, -2),
        take(key, j, k_block, -2),
        take(value, j, k_block, -2),
        terms._replace(bias=of_scores(terms.bias)),
        of_scores(mask),
        Tokens(*(take(x, i, q_block, -1) for x in query_tokens)),
        Tokens(*(take(x, j, k_block, -1) for x in key_tokens)),
    )


def take(x: Any, index: Array, size: int, axis: int) -> Any:
    """Block `index` of an axis; an axis of one is broadcast and stays."""
    if x is None or x.shape[axis] == 1:
        return x
    return lax.dynamic_slice_in_dim(x, index * size, size, axis)


def add_at(x: Any, part: Array, indices: dict[int, tuple[Array, int]]) -> Any:
    """`part` added to the block of x that `indices` tell: for an axis, the block and its size."""
    start = [jnp.zeros((), jnp.int32)] * x.ndim
    for axis, (index, size) in indices.items():
        if x.shape[axis] != 1:
            start[axis] = index * size
    there = lax.dynamic_slice(x, start, part.shape)
    return lax.dynamic_update_slice(x, there + part, start)


def to_visit(
    rules: Rules, query: Tokens, key: Tokens, q_blocks: int, k_blocks: int
) -> Array:
    """False for blocks in which no query may attend to any key, by its first and last positions and segments.

    Returns:
        bool [batch or 1, q_blocks, k_blocks]. The mask is not looked at.
    """
    visit = jnp.ones((1, q_blocks, k_blocks), bool)
    if rules.is_causal or rules.sliding_window is not None:
        low_q, high_q = (x[..., :, None] for x in _ends(query.positions, q_blocks))
        low_k, high_k = (x[..., None, :] for x in _ends(key.positions, k_blocks))
        if rules.is_causal:
            visit &= low_k <= high_q
        if rules.sliding_window is not None:
            far = reach(rules.sliding_window, jnp.iinfo(low_q.dtype).max)
            # A difference that wraps is negative: such a block is visited.
            visit &= (low_k <= high_q) | (low_k - high_q <= far)
            visit &= (low_q <= high_k) | (low_q - high_k <= far)
    if query.segment_ids is not None:
        low_q, high_q = (x[..., :, None] for x in _ends(query.segment_ids, q_blocks))
        low_k, high_k = (x[..., None, :] for x in _ends(key.segment_ids, k_blocks))
        visit &= (low_k <= high_q) & (low_q <= high_k)
    return visit


def first_and_last(visit: Array) -> tuple[Array, Array]:
    """The first block of the last axis to visit and the one after the last, int32; 0 and 0 if there is none."""
    count = visit.shape[-1]
    some = visit.any(-1)
    first = visit.argmax(-1).astype(jnp.int32)
    last = count - visit[..., ::-1].argmax(-1).astype(jnp.int32)
    return first, jnp.where(some, last, 0)


def _ends(x: Array, blocks: int) -> tuple[Array, Array]:
    parts = x.reshape(*x.shape[:-1], blocks, -1)
    return parts.min(-1), parts.max(-1)


def whole(x: Array, blocks: dict[int, int], **how: Any) -> Array:
    """More at the ends of axes, so that blocks of these sizes divide them; `how` as in `jnp.pad`."""
    widths = [(0, 0)] * x.ndim
    for axis, size in blocks.items():
        widths[axis] = (0, -x.shape[axis] % size)
    return jnp.pad(x, widths, **how) if any(map(any, widths)) else x
