"""A TPU kernel for attention whose causality, windows, segments and ALiBi go by positions, forward and backward.

The algorithm is that of `blockwise`, with bias and mask made of positions inside the kernel. Scores stand as [keys,
queries] there, so that what belongs to a query (peak and total) is a row. Which blocks are the first and the last to
visit is known before the kernel starts: those before and after are neither computed nor fetched.

Products of two bfloat16 arrays are exact in float32. Weights and gradients of scores are float32; against bfloat16 they
go through the matrix unit as two bfloat16 halves, an error of 2 ** -17. Float32 is multiplied at the highest precision.

Source: as for `blockwise`. Gradients of queries and of keys by two kernels, each of which writes a block once: JAX's
own attention for TPU, `jax.experimental.pallas.ops.tpu.flash_attention`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .._scores import Operands, Rules, Terms, Tokens, finite, logits, score_dtype
from ._blocks import (
    Sums,
    block_size,
    first_and_last,
    mask_refusal,
    padded,
    to_visit,
    whole,
)

__all__ = ["backward", "forward", "refusal"]

# Tokens of a block at most, and what their number must be a multiple of.
BLOCK = 512
LANES = 128
# What the number of channels must be a multiple of.
CHANNELS = 8

# Where they are among the numbers of a call.
SCALE, SOFTCAP, SLOPES = range(3)

# How the kernels run where there is no TPU: slowly, for tests; `pltpu.InterpretParams()` also simulates its memory.
INTERPRET: Any = True


def refusal(rules: Rules, operands: Operands) -> str | None:  # noqa: ARG001
    """What of the call this kernel does not take, or None."""
    if score_dtype(operands) == jnp.float64 and jax.default_backend() == "tpu":
        return "float64 on a TPU"
    if operands.terms.bias is not None:
        return "a `bias`"
    for x in _of_64_bits(operands):
        if not isinstance(x, Tracer) and not _fits_32_bits(x).all():
            return "positions or segment ids beyond int32"
    return mask_refusal(operands)


def _of_64_bits(operands: Operands) -> list[Any]:
    """Numbers of tokens of which a kernel holds no more than 32 bits."""
    tokens = (*operands.query_tokens, *operands.key_tokens)
    return [x for x in tokens if x is not None and x.dtype.itemsize > 4]


def _fits_32_bits(x: Any) -> Any:
    """For every row of tokens."""
    return (x == x.astype(jnp.int32).astype(x.dtype)).all(-1)


def forward(rules: Rules, operands: Operands) -> tuple[Array, Sums]:
    """Outputs [batch, heads, q, value_dim] and the sums of their rows, in the dtype of the scores."""
    return _forward(rules, BLOCK, INTERPRET, operands)


def backward(
    rules: Rules, operands: Operands, out: Array, sums: Sums, d_out: Array
) -> tuple[Array, Array, Array, Terms]:
    """Gradients of query, key, value and terms but the scale, in the dtype of the scores."""
    return _backward(rules, BLOCK, INTERPRET, operands, out, sums, d_out)


# Compiled once, also for those who do not compile their own program.
@partial(jax.jit, static_argnums=(0, 1, 2))
def _forward(
    rules: Rules, largest: int, interpret: Any, operands: Operands
) -> tuple[Array, Sums]:
    call = _cut(rules, largest, operands)

    def kernel(step: _Step, inputs: Any, outputs: Any, scratch: Any) -> None:
        (out, sums), (peak, total, acc) = outputs, scratch

        @pl.when(step.is_first)
        def _() -> None:
            peak[...] = jnp.full_like(peak, -math.inf)
            total[...] = jnp.zeros_like(total)
            acc[...] = jnp.zeros_like(acc)

        @pl.when(step.is_visited)
        def _() -> None:
            query, key, value, *rows = (x[...] for x in inputs)
            logits_of, learnt = _logits(call, step, query, key, *rows)
            logits = logits_of(*learnt)
            higher = jnp.maximum(peak[...], logits.max(0, keepdims=True))
            weights = jnp.exp(logits - finite(higher))
            decay = jnp.exp(peak[...] - finite(higher))
            peak[...] = higher
            total[...] = total[...] * decay + weights.sum(0, keepdims=True)
            acc[...] = acc[...] * decay + _dot(value, weights, 0, 0)

        @pl.when(step.is_last)
        def _() -> None:
            out[...] = (acc[...] / Sums(peak[...], total[...]).divisor()).T
            sums[:1], sums[1:] = peak[...], total[...]

    batch, heads, q_len, _ = call.query.shape
    channels = call.value.shape[-1]
    row = (1, call.q_block)
    out, sums = _run(
        call,
        kernel,
        interpret,
        outputs=[
            ("query", (batch, heads, q_len, channels)),
            ("row", (batch, heads, 2, q_len)),
        ],
        scratch=(row, row, (channels, call.q_block)),
    )
    q_len, value_dim = operands.query.shape[-2], operands.value.shape[-1]
    sums = Sums(sums[..., 0, :q_len], sums[..., 1, :q_len])
    return out[..., :q_len, :value_dim], sums


@partial(jax.jit, static_argnums=(0, 1, 2))
def _backward(
    rules: Rules,
    largest: int,
    interpret: Any,
    operands: Operands,
    out: Array,
    sums: Sums,
    d_out: Array,
) -> tuple[Array, Array, Array, Terms]:
    call = _cut(rules, largest, operands)
    delta = (d_out.astype(call.dtype) * out).sum(-1)
    d_out = _channels(whole(d_out, {-2: call.q_block})).astype(call.query.dtype)
    # Of a padded row nothing comes back, however large its logits are.
    peak = whole(finite(sums.peak), {-1: call.q_block}, constant_values=math.inf)
    total = whole(sums.divisor(), {-1: call.q_block}, constant_values=1)
    stats = jnp.stack([peak, total, whole(delta, {-1: call.q_block})], -2)

    def at_logits(step: _Step, inputs: Any) -> Any:
        """Weights [keys, queries], and the gradients of products and of what is learnt."""
        query, key, value, query_rows, key_rows, d_out, stats = (x[...] for x in inputs)
        logits_of, learnt = _logits(call, step, query, key, query_rows, key_rows)
        logits, pull = jax.vjp(logits_of, *learnt)
        weights = jnp.exp(logits - stats[:1]) / stats[1:2]
        return weights, pull(weights * (_dot(value, d_out, 1, 1) - stats[2:]))

    def of_queries(step: _Step, inputs: Any, outputs: Any, _: Any) -> None:
        d_query, d_terms = outputs
        _clear(step, outputs)

        @pl.when(step.is_visited)
        def _() -> None:
            _, (d_products, *d_learnt) = at_logits(step, inputs)
            _, key, *_ = inputs
            d_query[...] += _dot(d_products, key[...], 0, 0)
            for row, part in enumerate(d_learnt):
                if part is not None:
                    d_terms[row : row + 1] += part

    def of_keys(step: _Step, inputs: Any, outputs: Any, _: Any) -> None:
        d_key, d_value = outputs
        _clear(step, outputs)

        @pl.when(step.is_visited)
        def _() -> None:
            weights, (d_products, *_) = at_logits(step, inputs)
            query, *_, d_out, _ = inputs
            d_key[...] += _dot(d_products, query[...], 1, 0)
            d_value[...] += _dot(weights, d_out[...], 1, 0)

    more = [("query", d_out), ("row", stats)]
    batch, heads, q_len, _ = call.query.shape
    d_query, d_terms = _run(
        call,
        of_queries,
        interpret,
        more,
        outputs=[("query", call.query.shape), ("row", (batch, heads, 2, q_len))],
    )
    d_key, d_value = _run(
        call,
        of_keys,
        interpret,
        more,
        outputs=[("key", call.key.shape), ("key", call.value.shape)],
        by_key=True,
    )
    (_, q_len, head_dim), (k_len, value_dim) = (
        operands.query.shape[1:],
        operands.value.shape[-2:],
    )
    _, softcap, slopes, _ = operands.terms
    return (
        d_query[..., :q_len, :head_dim],
        d_key[..., :k_len, :head_dim],
        d_value[..., :k_len, :value_dim],
        Terms(
            None,
            None if softcap is None else d_terms[:, :, 0].sum(),
            None if slopes is None else d_terms[:, :, 1].sum((0, 2)),
        ),
    )


class _Call(NamedTuple):
    """A call in whole blocks.

    Args:
        terms, query_tokens, key_tokens: Which there are.
        query, key, value: [batch, heads or kv_heads, tokens, channels].
        query_rows, key_rows: int32 [batch or 1, kinds, tokens]: what there is of the tokens.
        numbers: [2 + heads], at SCALE, at SOFTCAP and from SLOPES on; 0 where there are none.
        visit: bool [batch or 1, blocks of queries, blocks of keys].
    """

    rules: Rules
    terms: Terms
    query_tokens: Tokens
    key_tokens: Tokens
    q_block: int
    k_block: int
    query: Array
    key: Array
    value: Array
    query_rows: Array
    key_rows: Array
    numbers: Array
    visit: Array

    @property
    def dtype(self) -> Any:
        return self.numbers.dtype


class _Step(NamedTuple):
    """A place of the grid: whether it begins or ends a block of results, and whether it has anything to do."""

    head: Any
    numbers: Any
    is_first: Any
    is_last: Any
    is_visited: Any


def _cut(rules: Rules, largest: int, operands: Operands) -> _Call:
    dtype = score_dtype(operands)
    lengths = operands.query.shape[-2], operands.key.shape[-2]
    q_block, k_block = (block_size(n, largest, LANES) for n in lengths)
    blocks = padded(operands._replace(mask=None), q_block, k_block)
    # There is no float16 on a TPU, and bfloat16 is multiplied as it is.
    halves = dtype == jnp.float32 and operands.query.dtype == jnp.bfloat16
    query, key, value = (
        _channels(x).astype(jnp.bfloat16 if halves else dtype) for x in blocks[:3]
    )
    scale, softcap, slopes, _ = operands.terms
    numbers = (
        jnp.asarray(scale, dtype)[None],
        jnp.asarray(0 if softcap is None else softcap, dtype)[None],
        jnp.zeros(query.shape[1], dtype) if slopes is None else slopes.astype(dtype),
    )
    query_tokens, key_tokens = blocks.query_tokens, blocks.key_tokens
    if operands.mask is not None:
        mask = operands.mask[:, 0, 0]
        mask = jnp.broadcast_to(mask, (*mask.shape[:-1], lengths[1]))
        key_tokens = key_tokens._replace(are_there=whole(mask, {-1: k_block}))
    counts = query.shape[-2] // q_block, key.shape[-2] // k_block
    visit = to_visit(rules, query_tokens, key_tokens, *counts)
    for x in _of_64_bits(blocks):
        # Traced, it could not be refused, and must not become attention at other positions.
        query = jnp.where(_fits_32_bits(x)[..., None, None, None], query, math.nan)
    return _Call(
        rules,
        operands.terms,
        query_tokens,
        key_tokens,
        q_block,
        k_block,
        query,
        key,
        value,
        _packed(query_tokens, query.shape[-2]),
        _packed(key_tokens, key.shape[-2]),
        jnp.concatenate(numbers),
        visit,
    )


def _logits(
    call: _Call,
    step: _Step,
    query: Array,
    key: Array,
    query_rows: Array,
    key_rows: Array,
) -> tuple[Callable[..., Array], tuple[Array, Any, Any]]:
    """Logits [keys, queries] as a function of the products and, a number for each query, softcap and slope."""
    of_queries = _unpacked(query_rows, call.query_tokens, 0)
    of_keys = _unpacked(key_rows.T, call.key_tokens, 1)
    if of_keys.are_there is not None:
        of_keys = of_keys._replace(are_there=of_keys.are_there != 0)

    def number(at: Any) -> Array:
        return jnp.full((1, call.q_block), step.numbers[at], call.dtype)

    def logits_of(products: Array, softcap: Any, slope: Any) -> Array:
        scaled = products * step.numbers[SCALE]
        terms = Terms(None, softcap, slope)
        return logits(call.rules, scaled, terms, None, of_queries, of_keys)

    return logits_of, (
        _dot(key, query, 1, 1),
        None if call.terms.softcap is None else number(SOFTCAP),
        None if call.terms.slopes is None else number(SLOPES + step.head),
    )


def _packed(tokens: Tokens, length: int) -> Array:
    given = [x.astype(jnp.int32) for x in tokens if x is not None]
    nothing = [jnp.zeros((1, length), jnp.int32)]
    return jnp.stack(jnp.broadcast_arrays(*given or nothing), -2)


def _unpacked(packed: Array, tokens: Tokens, axis: int) -> Tokens:
    kinds = [kind for kind, x in tokens._asdict().items() if x is not None]
    return Tokens(
        **{
            kind: lax.slice_in_dim(packed, n, n + 1, axis=axis)
            for n, kind in enumerate(kinds)
        }
    )


def _run(
    call: _Call,
    kernel: Callable[..., None],
    interpret: Any,
    more: Sequence[tuple[str, Array]] = (),
    *,
    outputs: Sequence[tuple[str, tuple[int, ...]]],
    scratch: tuple[tuple[int, int], ...] = (),
    by_key: bool = False,
) -> list[Array]:
    """Run `kernel(step, inputs, outputs, scratch)` for every block of results, over the blocks of the other side.

    Results are of the queries of one head, or, `by_key`, of the keys of one key head and of all heads that share it.
    What goes in and out is of a kind, which says what of it belongs to a place of the grid.
    """
    inputs = [
        ("query", call.query),
        ("key", call.key),
        ("key", call.value),
        ("query_rows", call.query_rows),
        ("key_rows", call.key_rows),
        *more,
    ]
    batch, heads, kv_heads = *call.query.shape[:2], call.key.shape[1]
    visit = call.visit.mT if by_key else call.visit
    visit = jnp.broadcast_to(visit, (batch, *visit.shape[1:]))
    # Of 32 bits whether or not `jax_enable_x64` is on, as the places of the grid are.
    group, blocks, others = map(np.int32, (heads // kv_heads, *visit.shape[1:]))
    grid = (batch, heads, blocks, others)
    if by_key:
        grid = (batch, kv_heads, blocks, group * others)

    def parted(head: Any, t: Any) -> tuple[Any, Any]:
        """Head of the queries, and block of the other side."""
        if by_key:
            return head * group + lax.div(t, others), lax.rem(t, others)
        return head, t

    def place(
        b: Any, head: Any, block: Any, t: Any, first: Any, last: Any, _: Any
    ) -> Any:
        """Batch, head, key head, and blocks of queries and keys: for nothing to do, the nearest, which is there."""
        h, other = parted(head, t)
        near = jnp.maximum(jnp.minimum(other, last[b, block] - 1), first[b, block])
        return b, h, lax.div(h, group), *((near, block) if by_key else (block, near))

    def body(first: Any, last: Any, numbers: Any, *refs: Any) -> None:
        b, head, block, t = map(pl.program_id, range(4))
        h, other = parted(head, t)
        is_visited = (first[b, block] <= other) & (other < last[b, block])
        step = _Step(h, numbers, t == 0, t == pl.num_programs(3) - 1, is_visited)
        ends = len(inputs), len(inputs) + len(outputs)
        kernel(step, refs[: ends[0]], refs[ends[0] : ends[1]], refs[ends[1] :])

    def run(interpret: Any) -> Callable[..., list[Array]]:
        return pl.pallas_call(
            body,
            out_shape=[_result(shape, call) for _, shape in outputs],
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=3,
                grid=tuple(map(int, grid)),
                in_specs=[_spec(kind, x.shape, call, place) for kind, x in inputs],
                out_specs=[_spec(*output, call, place) for output in outputs],
                scratch_shapes=[pltpu.VMEM(shape, call.dtype) for shape in scratch],
            ),
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
            ),
            interpret=interpret,
        )

    arrays = (*first_and_last(visit), call.numbers, *(x for _, x in inputs))
    return lax.platform_dependent(*arrays, tpu=run(False), default=run(interpret))


def _spec(
    kind: str, shape: tuple[int, ...], call: _Call, place: Callable[..., Any]
) -> pl.BlockSpec:
    """What of an array of this shape belongs to a place; an axis of one batch is everyone's."""
    size = {
        "query": (None, None, call.q_block, shape[-1]),
        "key": (None, None, call.k_block, shape[-1]),
        "row": (None, None, shape[-2], call.q_block),
        "query_rows": (None, shape[-2], call.q_block),
        "key_rows": (None, shape[-2], call.k_block),
    }[kind]

    def index(*ids: Any) -> Any:
        b, h, kv_head, i, j = place(*ids)
        zero = np.int32(0)
        b = b if shape[0] > 1 else zero
        return {
            "query": (b, h, i, zero),
            "key": (b, kv_head, j, zero),
            "row": (b, h, zero, i),
            "query_rows": (b, zero, i),
            "key_rows": (b, zero, j),
        }[kind]

    return pl.BlockSpec(size, index)


def _result(shape: tuple[int, ...], call: _Call) -> Any:
    """Varying over the axes of a mesh that the queries vary over."""
    return jax.typeof(call.query).update(shape=shape, dtype=call.dtype)


def _clear(step: _Step, totals: Any) -> None:
    @pl.when(step.is_first)
    def _() -> None:
        for total in totals:
            total[...] = jnp.zeros_like(total)


def _dot(a: Array, b: Array, axis_a: int, axis_b: int) -> Array:
    """Sum over an axis of each, in float32 or better."""
    if a.dtype == b.dtype:
        halves = a.dtype == jnp.bfloat16
        return lax.dot_general(
            a,
            b,
            (((axis_a,), (axis_b,)), ((), ())),
            # Said outright, since `jax_default_matmul_precision` may be what bfloat16 does not compile with.
            precision=lax.Precision.DEFAULT if halves else lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32 if halves else a.dtype,
        )
    if a.dtype == jnp.bfloat16:
        high, low = _split(b)
        return _dot(a, high, axis_a, axis_b) + _dot(a, low, axis_a, axis_b)
    high, low = _split(a)
    return _dot(high, b, axis_a, axis_b) + _dot(low, b, axis_a, axis_b)


def _split(x: Array) -> tuple[Array, Array]:
    """float32 as the sum of two bfloat16, to 2 ** -17 of itself."""
    high = x.astype(jnp.bfloat16)
    return high, (x - high.astype(x.dtype)).astype(jnp.bfloat16)


def _channels(x: Array) -> Array:
    return whole(x, {-1: CHANNELS})
