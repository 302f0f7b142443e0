"""Attention block by block, in memory that grows with the number of tokens: any backend, any case.

For a block of queries, over the blocks of keys that they may attend to,

    peak = max(peak, max_j s[i, j]),   total = sum_j exp(s[i, j] - peak),   out = sum_j exp(s[i, j] - peak) v[j] / total

and peak and total are kept. Backward, the weights are w = exp(s - peak) / total once more, and the gradient of the
logits is ds = w (do . v - do . out); what makes the logits is differentiated by JAX, block by block.

Source: Milakov and Gimelshein, 2018, arXiv:1805.02867; Dao et al., 2022, arXiv:2205.14135; blocks that a rule empties
are never computed: Dao, 2023, arXiv:2307.08691.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from .._scores import (
    Operands,
    Rules,
    Terms,
    average,
    finite,
    products,
    score_dtype,
    scores,
)
from ._blocks import (
    Sums,
    add_at,
    block_of,
    block_size,
    first_and_last,
    padded,
    take,
    to_visit,
    whole,
)

__all__ = ["backward", "forward", "refusal"]

# Tokens of a block: on two cores of a CPU 256 is a tenth slower and 1024 a quarter.
BLOCK = 512
# With more heads in all than HEADS, blocks get smaller, down to SMALLEST, so that their scores take no more memory.
HEADS, SMALLEST = 64, 128


def refusal(rules: Rules, operands: Operands) -> None:  # noqa: ARG001
    """It takes every call."""
    return


def forward(rules: Rules, operands: Operands) -> tuple[Array, Sums]:
    """Outputs [batch, heads, q, value_dim] and the sums of their rows, in the dtype of the scores."""
    return _forward(rules, _largest(operands), operands)


def backward(
    rules: Rules, operands: Operands, out: Array, sums: Sums, d_out: Array
) -> tuple[Array, Array, Array, Terms]:
    """Gradients of query, key, value and terms but the scale, in the dtype of the scores."""
    return _backward(rules, _largest(operands), operands, out, sums, d_out)


def _largest(operands: Operands) -> int:
    batch, heads = operands.query.shape[:2]
    tokens = BLOCK
    while tokens > SMALLEST and batch * heads * tokens**2 > HEADS * BLOCK**2:
        tokens //= 2
    return tokens


# Compiled once, also for those who do not compile their own program.
@partial(jax.jit, static_argnums=(0, 1))
def _forward(rules: Rules, largest: int, operands: Operands) -> tuple[Array, Sums]:
    dtype = score_dtype(operands)
    q_len, value_dim = operands.query.shape[-2], operands.value.shape[-1]
    call, q_block, k_block, first, last = _cut(rules, largest, operands)
    shape = (*call.query.shape[:-2], q_block)

    def of_queries(i: Array) -> tuple[Array, Sums]:
        def of_keys(j: Array, state: tuple[Array, Array, Array]) -> Any:
            peak, total, out = state
            block = _block(call, i, j, q_block, k_block, dtype)
            logits = scores(rules, block, block.query, block.key, block.terms)
            # Nothing depends on the peak; its own derivative would compare logits that a compiler may round twice.
            higher = jnp.maximum(peak, lax.stop_gradient(logits).max(-1))
            weights = jnp.exp(logits - finite(higher)[..., None])
            decay = jnp.exp(peak - finite(higher))
            total = total * decay + weights.sum(-1)
            return higher, total, out * decay[..., None] + average(weights, block.value)

        start = (
            jnp.full_like(call.query, -math.inf, dtype, shape),
            jnp.zeros_like(call.query, dtype, shape),
            jnp.zeros_like(call.query, dtype, (*shape, value_dim)),
        )
        peak, total, out = lax.fori_loop(first[i], last[i], of_keys, start)
        sums = Sums(peak, total)
        return out / sums.divisor()[..., None], sums

    out, sums = lax.map(of_queries, jnp.arange(first.size, dtype=jnp.int32))
    sums = Sums(*(_joined(x, -1)[..., :q_len] for x in sums))
    return _joined(out, -2)[..., :q_len, :], sums


@partial(jax.jit, static_argnums=(0, 1))
def _backward(
    rules: Rules,
    largest: int,
    operands: Operands,
    out: Array,
    sums: Sums,
    d_out: Array,
) -> tuple[Array, Array, Array, Terms]:
    dtype = score_dtype(operands)
    q_len, k_len = operands.query.shape[-2], operands.key.shape[-2]
    call, q_block, k_block, first, last = _cut(rules, largest, operands)
    d_out = d_out.astype(dtype)
    delta = whole((d_out * out).sum(-1), {-1: q_block})
    # Of a padded row nothing comes back, however large its logits are.
    peak = whole(finite(sums.peak), {-1: q_block}, constant_values=math.inf)
    total = whole(sums.divisor(), {-1: q_block}, constant_values=1)
    d_out = whole(d_out, {-2: q_block})

    def of_queries(totals: tuple[Array, Array, Terms], i: Array) -> Any:
        d_out_i = take(d_out, i, q_block, -2)
        delta_i, peak_i, total_i = (
            take(x, i, q_block, -1)[..., None] for x in (delta, peak, total)
        )

        def of_keys(j: Array, totals: tuple[Array, Array, Array, Terms]) -> Any:
            block = _block(call, i, j, q_block, k_block, dtype)
            logits, pull = jax.vjp(
                partial(_scores_of, rules, block),
                block.query,
                block.key,
                _without_scale(block.terms),
            )
            weights = jnp.exp(logits - peak_i) / total_i
            # As outputs are averages of values, their gradient's products with the values are the gradient of the
            # weights, and pulled back, that of the values.
            d_weights, pull_value = jax.vjp(partial(products, d_out_i), block.value)
            (d_value_j,) = pull_value(weights)
            d_query_ij, d_key_j, d_terms_ij = pull(weights * (d_weights - delta_i))
            d_query, d_key, d_value, d_terms = totals
            return (
                d_query + d_query_ij,
                add_at(d_key, d_key_j, {-2: (j, k_block)}),
                add_at(d_value, d_value_j, {-2: (j, k_block)}),
                _add_terms(d_terms, d_terms_ij, (i, q_block), (j, k_block)),
            )

        shape = (*call.query.shape[:-2], q_block, call.query.shape[-1])
        d_query = jnp.zeros_like(call.query, dtype, shape)
        d_query, d_key, d_value, d_terms = lax.fori_loop(
            first[i], last[i], of_keys, (d_query, *totals)
        )
        return (d_key, d_value, d_terms), d_query

    start = (
        jnp.zeros_like(call.key, dtype),
        jnp.zeros_like(call.value, dtype),
        jax.tree.map(jnp.zeros_like, _without_scale(call.terms)),
    )
    totals, d_query = lax.scan(
        of_queries, start, jnp.arange(first.size, dtype=jnp.int32)
    )
    d_key, d_value, d_terms = totals
    if d_terms.bias is not None:
        q_rows, k_rows = operands.terms.bias.shape[-2:]
        d_terms = d_terms._replace(bias=d_terms.bias[..., :q_rows, :k_rows])
    return (
        _joined(d_query, -2)[..., :q_len, :],
        d_key[..., :k_len, :],
        d_value[..., :k_len, :],
        d_terms,
    )


def _cut(
    rules: Rules, largest: int, operands: Operands
) -> tuple[Operands, int, int, Array, Array]:
    """Whole blocks, their sizes, and for each block of queries the first block of keys and the one after the last."""
    q_block = block_size(operands.query.shape[-2], largest)
    k_block = block_size(operands.key.shape[-2], largest)
    call = padded(operands, q_block, k_block)
    dtype = score_dtype(operands)
    terms = Terms(
        *(x if x is None else jnp.asarray(x, dtype) for x in call.terms)
    )._replace(slopes=call.terms.slopes)
    call = call._replace(terms=terms)
    counts = call.query.shape[-2] // q_block, call.key.shape[-2] // k_block
    visit = to_visit(rules, call.query_tokens, call.key_tokens, *counts)
    return call, q_block, k_block, *first_and_last(visit.any(0))


def _block(
    call: Operands, i: Array, j: Array, q_block: int, k_block: int, dtype: Any
) -> Operands:
    block = block_of(call, i, j, q_block, k_block)
    query, key, value = (x.astype(dtype) for x in block[:3])
    return block._replace(query=query, key=key, value=value)


def _scores_of(
    rules: Rules, block: Operands, query: Array, key: Array, terms: Terms
) -> Array:
    return scores(rules, block, query, key, terms._replace(scale=block.terms.scale))


def _without_scale(terms: Terms) -> Terms:
    return terms._replace(scale=None)


def _add_terms(
    totals: Terms, parts: Terms, rows: tuple[Array, int], columns: tuple[Array, int]
) -> Terms:
    """The bias is cut into blocks, the others are summed over them."""
    sums = jax.tree.map(jnp.add, totals._replace(bias=None), parts._replace(bias=None))
    if totals.bias is None:
        return sums
    return sums._replace(bias=add_at(totals.bias, parts.bias, {-2: rows, -1: columns}))


def _joined(blocks: Array, axis: int) -> Array:
    """[blocks, ...] with the block's tokens in `axis` to all tokens in that axis."""
    moved = jnp.moveaxis(blocks, 0, axis - 1)
    shape = list(blocks.shape[1:])
    shape[axis] *= blocks.shape[0]
    return moved.reshape(shape)
