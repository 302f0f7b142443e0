"""Every rule passes what is right here, and names the line of what is wrong elsewhere."""

from __future__ import annotations

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from jax.experimental import pallas as pl
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import posenc_jax
import posenc_jax.nnx

from .instrument.lints import RULES, lint

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 7, 4, 8))
DENSE = np.arange(7, dtype=np.int32)
TOKENS = {"x": X, "positions": DENSE}
TABLE = {"table": RNG.normal(size=(9, 8)), "positions": DENSE}
OFFSET = {"table": RNG.normal(size=(9, 8)), "offset": np.int32(1)}
ROPE = posenc_jax.RopeConfig(8)
ROWS = {"x": RNG.normal(size=(3, 10))}
INV_FREQ = ROPE.inv_freq()


def apply(x, angle):
    return posenc_jax.apply_rope(x, jnp.cos(angle), jnp.sin(angle))


# ------------------------------------------------------------------------ what is right


def rope(x, positions):
    return ROPE.apply(x, *ROPE.cos_sin(positions))


@jax.jit
def rope_compiled(x, positions):
    return rope(x, positions)


def rope_exact(x, positions):
    return ROPE.apply(x, *ROPE.cos_sin(positions, angles="exact"))


def rope_from_offset(x, offset):
    return rope(x, offset + jnp.arange(x.shape[1]))


def rope_in_a_loop(x, positions):
    return jax.lax.scan(lambda h, _: (rope(h, positions), None), x, length=3)[0]


def alibi(slopes, query_positions, key_positions):
    return posenc_jax.alibi_bias(query_positions, key_positions, slopes)


def attention(query, key, query_positions, key_positions):
    return posenc_jax.dot_product_attention(
        rope(query, query_positions),
        rope(key, key_positions),
        key,
        is_causal=True,
        query_positions=query_positions,
        key_positions=key_positions,
        implementation="blockwise",
    )


def sinusoidal(positions):
    return posenc_jax.sinusoidal_position_encoding(positions, 16)


def precise_product(x, positions):
    positions = positions.astype(jnp.float32)
    angle = jnp.einsum("s,n->sn", positions, INV_FREQ, precision="highest")
    return apply(x, angle + jnp.outer(positions, INV_FREQ))


def product_of_features(x, weight):
    """A sine of what is no position."""
    return jnp.sin(x.astype(jnp.bfloat16) @ weight.astype(jnp.bfloat16))


def network_of_sines(table, positions):
    """No layer of it makes an angle of positions, whatever it is computed in."""
    rows = table.at[positions].get(mode="clip") + jnp.sin(positions)[:, None]
    hidden = jnp.sin(rows.astype(jnp.bfloat16) @ table.T.astype(jnp.bfloat16))
    return jnp.sin(jnp.where(hidden > 0, positions[:, None], 0))


def clipped(table, positions):
    ahead = jnp.clip(positions, 0, table.shape[0] - 1)
    return table[ahead] + table[jnp.clip(positions, -table.shape[0], -1)]


def wrapped(table, positions):
    return table[positions % table.shape[0]]


def halved(table, positions):
    return table[jnp.minimum(jnp.abs(positions) // 2, 8)] + table[::-1][DENSE]


def never_chosen(table, positions):
    return table[jnp.where(~(jnp.clip(positions, 0, 6) < 7), 100, 1)]


def promised(table, positions):
    return table.at[positions].get(mode="promise_in_bounds")


def promised_on_many_lines(table, positions):
    return jnp.take(
        table,
        positions,
        axis=0,
        mode="clip",
    )


def not_a_number(table, positions):
    return jnp.take(table, positions, axis=0)


def constant_rows(table, positions):
    rows = table[jnp.arange(7)[::-1]] + table[np.array([0, -1, 8, 3, 3, 1, 2])]
    half = jnp.floor(jnp.arange(7) / 2).astype(int)  # Of floats nothing is known.
    return rows * positions[:, None] + table[half]


def counted(table, mask):
    """Positions of a padding mask, which are less than its length."""
    return table[jnp.maximum(jnp.cumsum(mask, -1) - 1, 0)]


def nearest(table, x):
    return table[jnp.argmax(x @ table.T, -1)]


def two_axes(table, x):
    index = jnp.argmax(x @ table.T, -1)
    return (x @ table.T)[jnp.arange(7), index]


def sorted_rows(table, x):
    order = jnp.argsort(x[:, 0])
    best = jax.lax.top_k(x[:, 1], 3)[1]
    return x[order] + x[best].sum() + table[0]


def summed(table, x):
    """Whose repetitions are counted by a scatter, a program of single numbers."""
    repeated = jnp.repeat(table, jnp.ones(9, int), axis=0, total_repeat_length=9)
    chosen = x[jnp.nonzero(x[:, 0] > 0, size=3)[0] % 7]
    return repeated.sum(0) + chosen.sum(0) + jnp.roll(x, x.shape[0], 0)


def dropped(x, positions):
    keep = jax.random.bernoulli(jax.random.key(positions[0]), 0.5, x.shape)
    return rope(jnp.where(keep, x, 0), positions)


RIGHT = {
    "rope": (rope, TOKENS),
    "rope-compiled": (rope_compiled, TOKENS),
    "rope-exact": (rope_exact, TOKENS),
    "rope-offset": (rope_from_offset, {"x": X, "offset": np.int32(3)}),
    "rope-loop": (rope_in_a_loop, TOKENS),
    "alibi": (
        alibi,
        {
            "slopes": posenc_jax.alibi_slopes(4),
            "query_positions": DENSE,
            "key_positions": np.arange(11),
        },
    ),
    "attention": (
        attention,
        {
            "query": X,
            "key": RNG.normal(size=(2, 11, 4, 8)),
            "query_positions": DENSE,
            "key_positions": np.arange(11),
        },
    ),
    "sinusoidal": (sinusoidal, {"positions": DENSE}),
    "precise": (precise_product, TOKENS),
    "features": (product_of_features, {"x": X, "weight": RNG.normal(size=(8, 5))}),
    "learned": (
        posenc_jax.nnx.LearnedPositionalEncoding(9, 8, rngs=nnx.Rngs(0)),
        {"x": X[:, :, 0], "offset": np.int32(1)},
    ),
    "embed-nnx": (nnx.Embed(9, 8, rngs=nnx.Rngs(0)), {"inputs": DENSE}),
    "embed-linen": (linen.Embed(9, 8), {"inputs": DENSE}),
    "counted": (counted, {"table": TABLE["table"], "mask": np.ones((2, 7), bool)}),
    "nearest": (nearest, {"table": TABLE["table"], "x": X[0, :, 0]}),
    "sorted": (sorted_rows, {"table": TABLE["table"], "x": X[0, :, 0]}),
    "summed": (summed, {"table": TABLE["table"], "x": X[0, :, 0]}),
    "dropped": (dropped, TOKENS),
    "two-axes": (two_axes, {"table": TABLE["table"], "x": X[0, :, 0]}),
    **{
        function.__name__: (function, TABLE)
        for function in (
            network_of_sines,
            clipped,
            wrapped,
            halved,
            never_chosen,
            promised,
            promised_on_many_lines,
            not_a_number,
            constant_rows,
        )
    },
}


@pytest.mark.parametrize("program", RIGHT)
def test_right_programs_pass(program):
    function, inputs = RIGHT[program]
    report = lint(function, inputs)
    assert {row.name: row.verdict for row in report.rows} == dict.fromkeys(
        RULES, "AGREE"
    ), str(report)


# ------------------------------------------------------------------------ what is wrong


def angles_by_matmul(x, positions):
    return apply(x, positions.astype(float)[:, None] @ INV_FREQ[None])  # here


@jax.jit
def angles_by_einsum(x, positions):
    half = jnp.stack([positions, positions], -1)[:, 0]
    angle = jnp.einsum("s,n->sn", half, INV_FREQ)  # here
    return apply(x, angle)


def whole_floats(x, positions):
    angle = jnp.tensordot(positions, INV_FREQ, 0)  # here
    return jnp.exp(1j * angle).real + x[0, 0, 0, 0]


def positions_in_the_dtype_of_x(x, positions):
    angle = positions.astype(x.dtype)[:, None] * INV_FREQ  # here
    return apply(x, angle.astype(jnp.float32))


def index_in_bfloat16(x, positions):
    index = jnp.arange(x.shape[1], dtype=jnp.bfloat16)  # here
    index = index + 1
    return apply(x, index.astype(jnp.float32)[:, None] * INV_FREQ) * positions[0]


def frequencies_in_float16(x, positions):
    inv_freq = jnp.asarray(INV_FREQ).astype(jnp.float16)  # here
    return apply(x, positions[:, None] * inv_freq.astype(jnp.float32))


def narrow_in_a_loop(x, positions):
    def layer(h, _):
        angle = positions[:, None].astype(h.dtype) * INV_FREQ  # here
        return apply(h, angle.astype(jnp.float32)), None

    return jax.lax.scan(layer, x, length=3)[0]


def narrow_in_a_shard(x, positions):
    def part(x, positions):
        angle = positions[:, None].astype(jnp.bfloat16) * INV_FREQ  # here
        return apply(x, angle.astype(jnp.float32))

    mesh = AbstractMesh((2,), ("batch",), axis_types=(AxisType.Auto,))
    split, whole = PartitionSpec("batch"), PartitionSpec()
    return jax.shard_map(part, mesh=mesh, in_specs=(split, whole), out_specs=split)(
        x, positions
    )


def last_row(table, positions):
    return table[positions]  # here


def clipped_from_below(table, positions):
    return table[jnp.maximum(positions, 0)]  # here


def too_far_from_the_end(table, positions):
    return table[jnp.minimum(-1 - positions, -1)]  # here


def clipped_one_too_far(table, positions):
    return jnp.abs(table[jnp.clip(positions, 0, table.shape[0])])  # here


def with_other_bits(table, positions):
    return table[jnp.clip(positions, 0, 8) | 3]  # here


def with_all_other_bits(table, positions):
    return table[~jnp.clip(positions, 0, 9)]  # here


def moved_back(table, offset):
    return jax.lax.dynamic_slice_in_dim(table, offset, 7)  # here


def one_row(table, offset):
    return table[offset]  # here


def one_row_by_name(table, offset):
    return jax.lax.dynamic_index_in_dim(table, offset, keepdims=False)  # here


def row_of_each(table, positions):
    return jax.vmap(lambda row, at: row[at])(table[:7], positions)  # here


def least_integer(table, positions):
    return jnp.take(jnp.arange(9), positions)[:, None] * table[0]  # here


def fixed_offset(table, offset):
    return table[offset : offset + 7]  # here


def asked_offset(table, offset):
    if offset > 2:  # here
        return table[:7]
    return table[2:]


@partial(jax.jit, static_argnames="offset")
def static_offset(table, offset):
    return table[offset : offset + 7]


class KeptTable:
    table = None

    def __call__(self, x, positions):
        if self.table is None:
            self.table = jnp.cos(positions[:, None] * INV_FREQ)
        return x[..., :4] * self.table[:, None]  # here


def double(x_ref, out_ref):
    out_ref[...] = x_ref[...] * 2


def unaligned_kernel(x):
    block = pl.BlockSpec((1, 5), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    kernel = pl.pallas_call(
        double, grid=(3,), in_specs=[block], out_specs=block, out_shape=shape
    )
    return kernel(x)  # here


def eigenvalues(x):
    return jnp.linalg.eigvals(x).real  # here


PRODUCT = "multiply by broadcasting"
NARROW = "make angles in float32"
CLAMPED = 'get(mode="fill"'
DECIDES = "an integer input decides what is compiled"
WRONG = {
    "matmul": ("angle-products", angles_by_matmul, TOKENS, PRODUCT),
    "einsum": ("angle-products", angles_by_einsum, TOKENS, PRODUCT),
    "floats": (
        "angle-products",
        whole_floats,
        {"x": X, "positions": DENSE.astype(float)},
        PRODUCT,
    ),
    "dtype": ("angle-precision", positions_in_the_dtype_of_x, TOKENS, NARROW),
    "arange": ("angle-precision", index_in_bfloat16, TOKENS, NARROW),
    "frequencies": ("angle-precision", frequencies_in_float16, TOKENS, "in float16"),
    "loop": ("angle-precision", narrow_in_a_loop, TOKENS, NARROW),
    "shard": ("angle-precision", narrow_in_a_shard, TOKENS, NARROW),
    "last-row": ("table-reads", last_row, TABLE, CLAMPED),
    "below": ("table-reads", clipped_from_below, TABLE, CLAMPED),
    "end": ("table-reads", too_far_from_the_end, TABLE, CLAMPED),
    "too-far": ("table-reads", clipped_one_too_far, TABLE, CLAMPED),
    "bits": ("table-reads", with_other_bits, TABLE, CLAMPED),
    "all-bits": ("table-reads", with_all_other_bits, TABLE, CLAMPED),
    "moved": ("table-reads", moved_back, OFFSET, "past the end of (9, 8)"),
    "one-row": ("table-reads", one_row, OFFSET, CLAMPED),
    "by-name": ("table-reads", one_row_by_name, OFFSET, CLAMPED),
    "vmap": ("table-reads", row_of_each, TABLE, CLAMPED),
    "integers": ("table-reads", least_integer, TABLE, "the least integer"),
    "slice": ("one-program", fixed_offset, OFFSET, DECIDES),
    "if": ("one-program", asked_offset, OFFSET, DECIDES),
    "static": ("one-program", static_offset, OFFSET, DECIDES),
    "kept": ("one-program", KeptTable(), TOKENS, "is kept for the next"),
    "block": ("lowers-for-tpu", unaligned_kernel, ROWS, "divisible by 8"),
    "eigen": ("lowers-for-tpu", eigenvalues, {"x": X[0, 0, :, :4][:4]}, "'eig'"),
    "copies": ("lowers-for-cuda", unaligned_kernel, ROWS, "divisible"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_programs_are_named(fault):
    rule, function, inputs, told = WRONG[fault]
    rows = {row.name: row for row in lint(function, inputs).rows}
    assert rows[rule].verdict == "CONTRACT"
    assert told in rows[rule].reason
    if function is not static_offset:  # JAX refuses the call itself.
        assert rows[rule].reason.startswith(f"test_lints.py:{line_of(function)}: ")
    others = {row.verdict for name, row in rows.items() if name != rule}
    assert others == {"AGREE"} or function is unaligned_kernel


def line_of(function):
    """Where it says that it is wrong."""
    function = inspect.unwrap(function)
    source = function if inspect.isfunction(function) else type(function)
    lines, first = inspect.getsourcelines(source)
    return first + next(i for i, line in enumerate(lines) if "# here" in line)


def test_more_findings_are_counted():
    def twice(table, positions):
        rows = table[positions]
        return rows + table[2 * positions]

    (row,) = (r for r in lint(twice, TABLE).rows if r.name == "table-reads")
    assert row.reason.endswith("(and at 1 more)")


def test_what_raises_is_not_a_finding():
    def refuses(x):
        raise KeyError("refused")

    with pytest.raises(KeyError, match="refused"):
        lint(refuses, {"x": X})


def test_report_says_the_worst_first():
    report = lint(last_row, TABLE)
    assert report.verdict == "CONTRACT"
    head, first, *_ = str(report).splitlines()
    assert head.startswith("CHECK CONTRACT  last_row (test_lints.py:")
    assert first.startswith("table-reads      CONTRACT  test_lints.py:")
