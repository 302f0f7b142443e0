"""A TPU kernel for attention whose causality, windows, segments and ALiBi go by positions, forward and backward.

The algorithm is that of `blockwise`, with bias and mask made of positions inside the kernel. Scores stand as [keys,
queries] there, so that what belongs to a query (peak, total, lse) is a row. Blocks that a rule empties are neither
computed nor fetched: the first and the last to visit are known before the kernel starts.

Products of two bfloat16 arrays are exact in float32. Weights and gradients of scores are float32; against bfloat16 they
go through the matrix unit as two bfloat16 halves, an error of 2 ** -17. Float32 is multiplied at the highest precision.

Source: as for `blockwise`; the two passes of the backward kernel: Dao, 2023, arXiv:2307.08691.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .._scores import Operands, Rules, Terms, Tokens, logits, score_dtype
from ._blocks import block_size, first_and_last, padded, to_visit, whole

__all__ = ["backward", "forward", "refusal"]

# Tokens of a block at most, and what their number must be a multiple of.
BLOCK = 512
LANES = 128
# What the number of channels must be a multiple of.
CHANNELS = 8

# How the kernels run where there is no TPU: slowly, for tests; `pltpu.InterpretParams()` also simulates its memory.
INTERPRET: Any = True


def refusal(rules: Rules, operands: Operands) -> str | None:  # noqa: ARG001
    """What of the call this kernel does not take, or None."""
    if score_dtype(operands) == jnp.float64 and jax.default_backend() == "tpu":
        return "float64 on a TPU"
    if operands.terms.bias is not None:
        return "a `bias`"
    mask = operands.mask
    if mask is not None and any(size != 1 for size in mask.shape[-3:-1]):
        return "a `mask` that differs between heads or queries"
    return None


def forward(rules: Rules, operands: Operands) -> tuple[Array, Array]:
    """Outputs [batch, heads, q, value_dim] and lse [batch, heads, q], in the dtype of the scores."""
    call = _cut(rules, operands)

    def kernel(step: Step, inputs: Any, outputs: Any, scratch: Any) -> None:
        (out, lse), (peak, total, acc) = outputs, scratch

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
            weights = jnp.exp(logits - _finite(higher))
            decay = jnp.exp(peak[...] - _finite(higher))
            peak[...] = higher
            total[...] = total[...] * decay + weights.sum(0, keepdims=True)
            acc[...] = acc[...] * decay + _dot(value, weights, 0, 0)

        @pl.when(step.is_last)
        def _() -> None:
            sums = jnp.where(total[...] == 0, 1, total[...])
            out[...] = (acc[...] / sums).T
            lse[...] = peak[...] + jnp.log(total[...])

    batch, heads, q_len, _ = call.query.shape
    channels = call.value.shape[-1]
    row = (1, call.q_block)
    out, lse = _run(
        call,
        kernel,
        outputs=[
            ("query", (batch, heads, q_len, channels)),
            ("row", (batch, heads, 1, q_len)),
        ],
        scratch=(row, row, (channels, call.q_block)),
    )
    q_len, value_dim = operands.query.shape[-2], operands.value.shape[-1]
    return out[..., :q_len, :value_dim], lse[..., 0, :q_len]


def backward(
    rules: Rules, operands: Operands, out: Array, lse: Array, d_out: Array
) -> tuple[Array, Array, Array, Terms]:
    """Gradients of query, key, value and terms but the scale, in the dtype of the scores."""
    call = _cut(rules, operands)
    delta = (d_out.astype(call.dtype) * out).sum(-1)
    d_out = _channels(whole(d_out, {-2: call.q_block})).astype(call.query.dtype)
    # Of a padded row nothing comes back, however large its logits are.
    lse = whole(_finite(lse), {-1: call.q_block}, constant_values=math.inf)
    stats = jnp.stack([lse, whole(delta, {-1: call.q_block})], -2)

    def at_logits(step: Step, inputs: Any) -> Any:
        """Weights [keys, queries], and the gradients of products and of what is learnt."""
        query, key, value, query_rows, key_rows, d_out, stats = (x[...] for x in inputs)
        logits_of, learnt = _logits(call, step, query, key, query_rows, key_rows)
        logits, pull = jax.vjp(logits_of, *learnt)
        weights = jnp.exp(logits - stats[:1])
        return weights, pull(weights * (_dot(value, d_out, 1, 1) - stats[1:]))

    def of_queries(step: Step, inputs: Any, outputs: Any, _: Any) -> None:
        d_query, d_terms = outputs
        _clear(step, outputs)

        @pl.when(step.is_visited)
        def _() -> None:
            _, (d_products, *d_learnt) = at_logits(step, inputs)
            d_query[...] += _dot(d_products, inputs[1][...], 0, 0)
            for row, part in enumerate(d_learnt):
                if part is not None:
                    d_terms[row : row + 1] += part

    def of_keys(step: Step, inputs: Any, outputs: Any, _: Any) -> None:
        d_key, d_value = outputs
        _clear(step, outputs)

        @pl.when(step.is_visited)
        def _() -> None:
            weights, (d_products, *_) = at_logits(step, inputs)
            d_key[...] += _dot(d_products, inputs[0][...], 1, 0)
            d_value[...] += _dot(weights, inputs[5][...], 1, 0)

    more = {"query": d_out, "row": stats}
    batch, heads, q_len, _ = call.query.shape
    d_query, d_terms = _run(
        call,
        of_queries,
        more,
        outputs=[("query", call.query.shape), ("row", (batch, heads, 2, q_len))],
    )
    d_key, d_value = _run(
        call,
        of_keys,
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


class Call(NamedTuple):
    """A call in whole blocks.

    Args:
        operands: As they came.
        query, key, value: [batch, heads or kv_heads, tokens, channels].
        query_rows, key_rows: int32 [batch or 1, kinds, tokens]: positions, segments and whether the mask allows the
            key, as far as there are any.
        numbers: [2 + heads]: scale, softcap and slopes; 0 where there are none.
        visit: bool [batch or 1, blocks of queries, blocks of keys].
    """

    rules: Rules
    operands: Operands
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


class Step(NamedTuple):
    """A place of the grid: whether it begins or ends a block of results, and whether it has anything to do."""

    head: Any
    numbers: Any
    is_first: Any
    is_last: Any
    is_visited: Any


def _cut(rules: Rules, operands: Operands) -> Call:
    dtype = score_dtype(operands)
    q_block, k_block = (
        -(-block_size(x.shape[-2], BLOCK) // LANES) * LANES for x in operands[:2]
    )
    whole = padded(operands, q_block, k_block)
    # There is no float16 on a TPU, and bfloat16 is multiplied as it is.
    halves = dtype == jnp.float32 and operands.query.dtype == jnp.bfloat16
    query, key, value = (
        _channels(x).astype(jnp.bfloat16 if halves else dtype) for x in whole[:3]
    )
    scale, softcap, slopes, _ = operands.terms
    heads = query.shape[1]
    numbers = (
        jnp.asarray(scale, dtype)[None],
        jnp.asarray(0 if softcap is None else softcap, dtype)[None],
        jnp.zeros(heads, dtype) if slopes is None else slopes.astype(dtype),
    )
    mask = None if whole.mask is None else whole.mask[:, 0, 0]
    counts = query.shape[-2] // q_block, key.shape[-2] // k_block
    return Call(
        rules,
        operands,
        q_block,
        k_block,
        query,
        key,
        value,
        _packed(whole.query_tokens, None, query.shape[-2]),
        _packed(whole.key_tokens, mask, key.shape[-2]),
        jnp.concatenate(numbers),
        to_visit(rules, whole.query_tokens, whole.key_tokens, *counts),
    )


def _logits(
    call: Call,
    step: Step,
    query: Array,
    key: Array,
    query_rows: Array,
    key_rows: Array,
) -> tuple[Callable[..., Array], tuple[Array, Any, Any]]:
    """Logits [keys, queries] as a function of the products and, a number for each query, softcap and slope."""
    operands = call.operands
    of_queries, _ = _unpacked(query_rows, operands.query_tokens, False, 0)
    padded = call.key.shape[-2] != operands.key.shape[-2]
    masked = operands.mask is not None or padded
    of_keys, mask = _unpacked(key_rows.T, operands.key_tokens, masked, 1)
    terms = operands.terms

    def number(at: Any) -> Array:
        return jnp.full((1, call.q_block), step.numbers[at], call.dtype)

    def logits_of(products: Array, softcap: Any, slope: Any) -> Array:
        numbers = Terms(step.numbers[0], softcap, slope)
        return logits(call.rules, products, numbers, mask, of_queries, of_keys)

    return logits_of, (
        _dot(key, query, 1, 1),
        None if terms.softcap is None else number(1),
        None if terms.slopes is None else number(2 + step.head),
    )


def _packed(tokens: Tokens, mask: Any, length: int) -> Array:
    given = [x.astype(jnp.int32) for x in (*tokens, mask) if x is not None]
    return jnp.stack(
        jnp.broadcast_arrays(*given or [jnp.zeros((1, length), jnp.int32)]), -2
    )


def _unpacked(packed: Array, tokens: Tokens, masked: bool, axis: int) -> Any:
    count = 0

    def next_one(wanted: bool) -> Any:
        nonlocal count
        if not wanted:
            return None
        count += 1
        return lax.slice_in_dim(packed, count - 1, count, axis=axis)

    found = Tokens(*(next_one(x is not None) for x in tokens))
    mask = next_one(masked)
    return found, None if mask is None else mask != 0


def _run(
    call: Call,
    kernel: Callable[..., None],
    more: dict[str, Array] | None = None,
    *,
    outputs: list[tuple[str, tuple[int, ...]]],
    scratch: tuple[tuple[int, int], ...] = (),
    by_key: bool = False,
) -> list[Array]:
    """Run a kernel over blocks of results, and for each over the blocks of the other side, `kernel(step, inputs, ...)`.

    Inputs and outputs are of a kind that says which block of them belongs to a place of the grid.
    """
    batch, heads = call.query.shape[:2]
    kv_heads = call.key.shape[1]
    # Of 32 bits whether or not `jax_enable_x64` is on, as the places of the grid are.
    group = np.int32(heads // kv_heads)
    rows, columns = map(np.int32, call.visit.shape[-2:])
    first, last = first_and_last(call.visit.mT if by_key else call.visit)
    first, last = (jnp.broadcast_to(x, (batch, x.shape[-1])) for x in (first, last))
    grid = (
        (batch, kv_heads, columns, group * rows)
        if by_key
        else (batch, heads, rows, columns)
    )

    def place(b: Any, head: Any, block: Any, t: Any, first: Any, last: Any) -> Any:
        """Head, block of queries and block of keys; where there is nothing to do, the nearest that is there already."""
        other = lax.rem(t, rows) if by_key else t
        near = jnp.maximum(jnp.minimum(other, last[b, block] - 1), first[b, block])
        if by_key:
            return head * group + lax.div(t, rows), near, block
        return head, block, near

    def spec(kind: str, shape: tuple[int, ...]) -> pl.BlockSpec:
        q, k = call.q_block, call.k_block
        size = {
            "query": (None, None, q, shape[-1]),
            "key": (None, None, k, shape[-1]),
            "row": (None, None, shape[-2], q),
            "query_rows": (None, shape[-2], q),
            "key_rows": (None, shape[-2], k),
        }[kind]

        def index(
            b: Any, head: Any, block: Any, t: Any, first: Any, last: Any, _: Any
        ) -> Any:
            h, i, j = place(b, head, block, t, first, last)
            b = b if shape[0] > 1 else 0
            return {
                "query": (b, h, i, 0),
                "key": (b, lax.div(h, group), j, 0),
                "row": (b, h, 0, i),
                "query_rows": (b, 0, i),
                "key_rows": (b, 0, j),
            }[kind]

        return pl.BlockSpec(size, index)

    def body(first: Any, last: Any, numbers: Any, *refs: Any) -> None:
        b, head, block, t = map(pl.program_id, range(4))
        other = lax.rem(t, rows) if by_key else t
        step = Step(
            head * group + lax.div(t, rows) if by_key else head,
            numbers,
            t == 0,
            t == grid[-1] - 1,
            (first[b, block] <= other) & (other < last[b, block]),
        )
        ends = len(inputs), len(inputs) + len(outputs)
        kernel(step, refs[: ends[0]], refs[ends[0] : ends[1]], refs[ends[1] :])

    inputs = [
        ("query", call.query),
        ("key", call.key),
        ("key", call.value),
        ("query_rows", call.query_rows),
        ("key_rows", call.key_rows),
        *(more or {}).items(),
    ]

    def run(interpret: Any) -> Callable[..., list[Array]]:
        return pl.pallas_call(
            body,
            out_shape=[_result(shape, call) for _, shape in outputs],
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=3,
                grid=tuple(map(int, grid)),
                in_specs=[spec(kind, x.shape) for kind, x in inputs],
                out_specs=[spec(*output) for output in outputs],
                scratch_shapes=[pltpu.VMEM(shape, call.dtype) for shape in scratch],
            ),
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
            ),
            interpret=interpret,
        )

    arrays = (first, last, call.numbers, *(x for _, x in inputs))
    return lax.platform_dependent(*arrays, tpu=run(False), default=run(INTERPRET))


def _result(shape: tuple[int, ...], call: Call) -> Any:
    """Varying over the axes of a mesh that the queries vary over."""
    return jax.typeof(call.query).update(shape=shape, dtype=call.dtype)


def _clear(step: Step, totals: Any) -> None:
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


def _finite(peak: Array) -> Array:
    """A row of -inf has no peak; any will do."""
    return jnp.where(peak == -math.inf, 0, peak)
