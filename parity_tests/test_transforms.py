"""What a program may do with the functions: compile, map, differentiate, scan, lower.

One table of operations is put through each transform. Values are compared with the plain
call; derivatives, which have no plain call, with the other framework in float64.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.extend import core as jex_core

import posenc_jax
import posenc_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

U = 2.0**-24  # unit roundoff of float32
# Per unit of the largest result:
TOLERANCE = {
    # One float32 program compiled in two ways: XLA may fuse a multiplication and an
    # addition, which saves one rounding. Exact angles: two units on either side.
    "elementwise": 4 * U,
    # A float32 gradient by a table: a sum over heads of products of results like those.
    "gradient": 16 * U,
    # Angles of up to 26 radians: XLA may fuse a product with the sum of two, and multiplies by 2 pi in another order.
    "fourier": 26 * 2 * U,
    # On each of two axes, a sum of up to 6 products.
    "resize": 16 * U,
    # Sums over 8 channels and 7 keys, exp, tanh and a division.
    "attention": 32 * U,
    # The same formula in float64: 2 ** -53 a step, some hundred steps.
    "float64": 1e-13,
}
# A backward rotation over a forward one. Memory decides: both read and write what they
# rotate once. Arithmetic: the transpose of a slice is a pad and an addition, so where the
# pairs are swapped by slices there are 4 operations to an element instead of 3.
VJP_COST = {"bytes accessed": 1.05, "flops": 4 / 3}

# ----------------------------------------------------------------------- operations


@dataclass(frozen=True)
class Op:
    """A call: the arrays it is differentiated by, and everything else."""

    function: str
    arrays: dict[str, tuple[int, ...]]
    static: dict[str, Any]
    heads: tuple[str, ...] = ()  # arrays whose axes the frameworks order differently
    dtype_of: str | None = None  # the array whose dtype is the argument `dtype`
    tolerance: str = "elementwise"


TOKENS = np.array([[3, 4, 5, 6, 7], [0, 1, 2, 9, 13]])
TABLES = {"cos": (2, 5, 3), "sin": (2, 5, 3)}  # random: no angle has them
POINTS = np.stack((TOKENS % 3, TOKENS[::-1] % 4), -1)
QKV = {"query": (2, 5, 6, 8), "key": (2, 7, 3, 8), "value": (2, 7, 3, 4)}
OPS = {
    "tables": Op(
        "rope_cos_sin", {"inv_freq": (4,)}, {"positions": TOKENS}, dtype_of="inv_freq"
    ),
    "tables_by_axes": Op(
        "rope_cos_sin",
        {"inv_freq": (4,), "positions": (2, 5, 3)},  # real coordinates
        {"axes": (0, 2, 1, 0)},
        dtype_of="inv_freq",
    ),
    "rotate": Op("apply_rope", {"x": (2, 5, 3, 8), **TABLES}, {}, ("x",)),
    "rotate_back": Op(
        "apply_rope",
        {"x": (2, 5, 3, 8), **TABLES},
        {"layout": "interleaved", "placement": "trailing", "inverse": True},
        ("x",),
    ),
    "rotate_to_half": Op(
        "apply_rope",
        {"x": (2, 5, 3, 8), **TABLES},
        {"layout": "interleaved_to_half"},
        ("x",),
    ),
    "rotate_both": Op(
        "apply_rotary_pos_emb",
        {"q": (2, 5, 6, 8), "k": (2, 5, 3, 8), **TABLES},
        {},
        ("q", "k"),
    ),
    "quarter_turn": Op("rotate_half", {"x": (2, 8)}, {"layout": "interleaved"}),
    "permute": Op(
        "permute_rope_weights", {"weight": (24,)}, {"num_heads": 3, "to": "half"}
    ),
    "sinusoid": Op(
        "sinusoidal_position_encoding",
        {"positions": (2, 5)},
        {"dim": 7},
        dtype_of="positions",
    ),
    "sinusoid_by_axes": Op(
        "sinusoidal_position_encoding",
        {"positions": (2, 5, 2), "amplitude": ()},
        {
            "dim": 10,  # two blocks of 5: an odd width, with a column of zeros
            "axes": (1, 0),
            "base": (100.0, 20.0),
            "spacing": "half",
            "layout": "half_across_axes",
            "angle_scale": 1.5,
        },
        dtype_of="positions",
    ),
    "fourier": Op(
        "fourier_position_encoding",
        {"positions": (2, 5, 2), "frequencies": (2, 4)},
        {},
        tolerance="fourier",
    ),
    "add": Op("add_position_encoding", {"x": (2, 5, 8), "encoding": (5, 8)}, {}),
    "lookup": Op(
        "learned_position_encoding",
        {"table": (7, 8)},
        {"positions": TOKENS, "out_of_range": "clip"},
    ),
    "lookup_beside_padding": Op(
        "learned_position_encoding",
        {"table": (7, 8)},
        {"positions": TOKENS, "padding_idx": 4, "out_of_range": "zero"},
    ),
    "lookup_by_axes": Op(
        "axial_position_encoding",
        {"table_0": (3, 8), "table_1": (4, 6)},
        {"positions": POINTS, "out_of_range": "clip"},
    ),
    "lookup_summed": Op(
        "axial_position_encoding",
        {"table_0": (3, 8), "table_1": (4, 8)},
        {"positions": POINTS, "out_of_range": "clip", "combine": "sum"},
    ),
    "resize": Op(
        "resize_position_table",
        {"table": (13, 8)},
        {
            "length_or_grid": (2, 5),
            "old_grid": (3, 4),
            "antialias": True,
            "num_prefix": 1,
        },
        tolerance="resize",
    ),
    "bias_by_axes": Op(
        "alibi_bias",
        {"slopes": (3,)},
        {"query_positions": POINTS, "key_positions": POINTS, "kind": "euclidean"},
    ),
    "bias": Op(
        "alibi_bias", {"slopes": (3,)}, {"query_positions": 5, "key_positions": 7}
    ),
    "attend": Op(
        "dot_product_attention",
        {
            **QKV,
            "bias": (6, 5, 7),
            "alibi_slopes": (6,),
            "scale": (),
            "logit_softcap": (),
        },
        {
            "mask": np.random.default_rng(1).random((2, 1, 5, 7)) < 0.9,
            "is_causal": True,
            "query_positions": np.arange(2, 7),
            "key_positions": np.arange(7),
            "query_segment_ids": np.array([0, 0, 0, 1, 1]),
            "key_segment_ids": np.array([0, 0, 0, 0, 0, 1, 1]),
            "sliding_window": 5,
        },
        ("query", "key", "value"),
        tolerance="attention",
    ),
    "attend_alibi": Op(
        "scaled_dot_product_attention_with_alibi",
        {**QKV, "slopes": (6,)},
        {"is_causal": True},
        ("query", "key", "value"),
        tolerance="attention",
    ),
}
each_op = pytest.mark.parametrize("name", OPS)
# Of tests that hold however a program is rounded.
quickly = pytest.mark.usefixtures("compiled_quickly")


def drawn(name: str, seed: int = 0, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """Arrays in JAX's order of axes; scalars are positive."""
    rng = np.random.default_rng([seed, *name.encode()])
    made = {k: rng.normal(size=shape) for k, shape in OPS[name].arrays.items()}
    return {k: (v if v.ndim else abs(v) + 0.5).astype(dtype) for k, v in made.items()}


def arguments(op: Op, given: dict[str, Any], convert: Callable) -> dict[str, Any]:
    """The arguments of a call; those given come before those of the operation."""
    made = {
        k: convert(v) if isinstance(v, np.ndarray) else v
        for k, v in (op.static | given).items()
    }
    if op.function == "scaled_dot_product_attention_with_alibi":
        made["alibi"] = SimpleNamespace(slopes=made.pop("slopes"), kind="symmetric")
    if op.function == "axial_position_encoding":
        made["tables"] = [made.pop("table_0"), made.pop("table_1")]
    return made | ({"dtype": made[op.dtype_of].dtype} if op.dtype_of else {})


def as_tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def jax_call(name: str) -> Callable[[dict[str, Any]], tuple[jax.Array, ...]]:
    op = OPS[name]
    function = getattr(posenc_jax, op.function)
    return lambda given: as_tuple(function(**arguments(op, given, jnp.asarray)))


def torch_call(name: str) -> Callable[[dict[str, Any]], tuple[torch.Tensor, ...]]:
    """In JAX's order of axes, so that both calls are one function of one input."""
    op = OPS[name]
    function = getattr(posenc_torch, op.function)

    def call(given: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        made = arguments(op, given, torch.from_numpy)
        moved = {k: made[k].transpose(-2, -3) for k in op.heads}
        found = as_tuple(function(**made | moved))
        return tuple(v.transpose(-2, -3) for v in found) if op.heads else found

    return call


def to_torch(tree: dict[str, np.ndarray], **options: Any) -> dict[str, torch.Tensor]:
    return {k: torch.tensor(v, **options) for k, v in tree.items()}


def assert_same(found: Any, expected: Any, kind: str) -> None:
    """Two trees of arrays: same structure, shapes, dtypes, and values to a tolerance."""
    found, expected = (jax.tree.map(np.asarray, tree) for tree in (found, expected))
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for one, other in pairs:
        assert one.dtype == other.dtype
        assert np.isfinite(other).all()
        scale = float(np.max(np.abs(other), initial=0.0))
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE[kind] * scale)


@functools.lru_cache
def cotangents(name: str, seed: int = 7) -> tuple[np.ndarray, ...]:
    """Random, in float64, and the same for both frameworks."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(jax_call(name), drawn(name))
    return tuple(rng.normal(size=shape.shape) for shape in shapes)


def dot(left: Sequence[Any], right: Sequence[Any]) -> Any:
    return sum((a * b).sum() for a, b in zip(left, right, strict=True))


def test_operations_cover_the_public_functions():
    rules = {name for name in posenc_jax.__all__ if name.endswith("Scaling")}
    made_on_the_host = {
        "RopeConfig",
        "alibi_slopes",
        "grid_positions",
        "init_position_table",
        "mrope_axes",
        "patch_centres",
        "sinusoidal_preset",
        "yarn_mscale",
    }
    of_integers = {"last_positions", "position_range", "xpos_scale"}
    of_integers |= {function for function, _, _ in OF_INTEGERS.values()}
    covered = {op.function for op in OPS.values()}
    others = rules | made_on_the_host | of_integers
    # Ring attention is JAX's alone, and has test_sharding.py.
    both = set(posenc_jax.__all__) & set(posenc_torch.__all__)
    assert covered == both - others


# ----------------------------------------------------------------------- jit and vmap


@each_op
def test_jit_equals_eager(name):
    found, expected = jax.jit(jax_call(name))(drawn(name)), jax_call(name)(drawn(name))
    assert_same(found, expected, OPS[name].tolerance)


# Case: operation and the arguments that are mapped over; the others are shared.
MAPPED = {
    "tables_by_inv_freq": ("tables", ["inv_freq"]),
    "tables_by_positions": ("tables", ["positions"]),
    "axes_by_coordinates": ("tables_by_axes", ["positions"]),
    "rotate_by_all": ("rotate", ["x", "cos", "sin"]),
    "rotate_to_half_by_all": ("rotate_to_half", ["x", "cos", "sin"]),
    "rotate_back_by_tables": ("rotate_back", ["cos", "sin"]),
    "rotate_both_by_all": ("rotate_both", ["q", "k", "cos", "sin"]),
    "sinusoid_by_times": ("sinusoid", ["positions"]),
    "sinusoid_by_points": ("sinusoid_by_axes", ["positions"]),
    "sinusoid_by_amplitude": ("sinusoid_by_axes", ["amplitude"]),
    "fourier_by_both": ("fourier", ["positions", "frequencies"]),
    "add_by_encoding": ("add", ["encoding"]),
    "lookup_by_table": ("lookup", ["table"]),
    "lookup_by_positions": ("lookup", ["positions"]),
    "lookup_by_both": ("lookup", ["table", "positions"]),
    "lookup_by_padded_table": ("lookup_beside_padding", ["table", "positions"]),
    "lookup_by_tables": ("lookup_by_axes", ["table_0", "table_1"]),
    "lookup_by_points": ("lookup_summed", ["positions"]),
    "resize_by_table": ("resize", ["table"]),
    "bias_by_slopes": ("bias", ["slopes"]),
    "bias_by_points": ("bias_by_axes", ["query_positions"]),
    "attend_by_inputs": ("attend", ["query", "key", "value"]),
    "attend_by_numbers": ("attend", ["alibi_slopes", "scale", "logit_softcap"]),
    "attend_by_positions": ("attend", ["query_positions", "key_positions"]),
    "attend_by_segments": ("attend", ["bias", "mask", "query_segment_ids"]),
}
each_map = pytest.mark.parametrize("case", MAPPED)


def mapped(case: str) -> dict[str, np.ndarray]:
    """Three values of every mapped argument, stacked; integers are rolled, to differ."""
    name, arguments_mapped = MAPPED[case]
    given = [drawn(name, seed) for seed in range(3)]
    rolled = OPS[name].static
    return {
        k: np.stack(
            [g[k] if k in g else np.roll(rolled[k], i) for i, g in enumerate(given)]
        )
        for k in arguments_mapped
    }


@quickly
@each_map
def test_jax_vmap_equals_one_by_one(case):
    name, rows = MAPPED[case][0], mapped(case)
    call = jax.jit(lambda given: jax_call(name)(drawn(name) | given))
    expected = [call({k: v[i] for k, v in rows.items()}) for i in range(3)]
    expected = jax.tree.map(lambda *x: np.stack(x), *expected)
    assert_same(jax.vmap(call)(rows), expected, OPS[name].tolerance)


@each_map
def test_torch_vmap_equals_one_by_one(case):
    name, rows = MAPPED[case][0], to_torch(mapped(case))
    shared = to_torch(drawn(name))
    call = torch_call(name)
    expected = [call(shared | {k: v[i] for k, v in rows.items()}) for i in range(3)]
    expected = jax.tree.map(lambda *x: np.stack(x), *expected)
    found = torch.func.vmap(lambda given: call(shared | given))(rows)
    assert_same(found, expected, OPS[name].tolerance)


@pytest.mark.parametrize("layout", ["half", "interleaved", "interleaved_to_half"])
def test_apply_rope_vmap_over_the_batch_equals_the_batched_call(layout):
    given = drawn("rotate")
    call = functools.partial(posenc_jax.apply_rope, layout=layout)
    found = jax.vmap(call)(*given.values())
    assert_same(found, call(*given.values()), "elementwise")


def test_rope_cos_sin_vmap_over_positions_equals_the_batched_call():
    call = functools.partial(
        posenc_jax.rope_cos_sin, inv_freq=drawn("tables")["inv_freq"]
    )
    positions = jnp.asarray(TOKENS)
    assert_same(jax.vmap(call)(positions), call(positions), "elementwise")


# ------------------------------------------------------------- derivatives, in float64

FLOAT64 = functools.partial(drawn, dtype=np.float64)


def jax_gradient(name: str) -> Callable[[dict[str, Any]], dict[str, jax.Array]]:
    """Of the result's product with the random cotangents, by every array."""
    return jax.grad(lambda given: dot(jax_call(name)(given), cotangents(name)))


def along(gradient: dict[str, Any], tangents: dict[str, Any]) -> Any:
    return dot([gradient[k] for k in tangents], list(tangents.values()))


@functools.lru_cache
def jax_derivatives(name: str) -> dict[str, Any]:
    """By all arrays at once: first, second along the tangents, and the tangents' image."""
    tangents = FLOAT64(name, seed=1)

    @jax.jit
    def derivatives(given: dict[str, Any]) -> dict[str, Any]:
        gradient = jax_gradient(name)
        return {
            "gradient": gradient(given),
            "second": jax.grad(lambda given: along(gradient(given), tangents))(given),
            "image": jax.jvp(jax_call(name), (given,), (tangents,))[1],
        }

    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, derivatives(FLOAT64(name)))


def torch_gradient(
    name: str, given: dict[str, torch.Tensor], *, create_graph: bool = False
) -> dict[str, torch.Tensor]:
    weights = [torch.from_numpy(v) for v in cotangents(name)]
    found = torch.autograd.grad(
        dot(torch_call(name)(given), weights),
        list(given.values()),
        create_graph=create_graph,
        materialize_grads=True,
    )
    return dict(zip(given, found, strict=True))


@quickly
@each_op
def test_gradient_is_equal_in_both(name):
    expected = torch_gradient(name, to_torch(FLOAT64(name), requires_grad=True))
    assert_same(jax_derivatives(name)["gradient"], expected, "float64")


@each_op
def test_gradient_is_not_trivial(name):
    """A gradient of zeros, or one that ignores the input, would agree as well."""
    gradient = torch_gradient(name, to_torch(drawn(name), requires_grad=True))
    assert all(v.abs().max() > 1e-3 for v in gradient.values())


@quickly
@each_op
def test_gradient_of_gradient_is_equal_in_both(name):
    given = to_torch(FLOAT64(name), requires_grad=True)
    first = torch_gradient(name, given, create_graph=True)
    product = along(first, to_torch(FLOAT64(name, seed=1)))
    # Where the call is linear, the gradient is constant and would not be in the graph.
    product = product + 0.0 * dot(given.values(), given.values())
    expected = torch.autograd.grad(product, list(given.values()))
    expected = dict(zip(given, expected, strict=True))
    assert_same(jax_derivatives(name)["second"], expected, "float64")


@quickly
@each_op
@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated"
)  # torch's own use
def test_jvp_is_equal_in_both(name):
    given, tangents = to_torch(FLOAT64(name)), to_torch(FLOAT64(name, seed=1))
    _, expected = torch.func.jvp(torch_call(name), (given,), (tangents,))
    assert_same(jax_derivatives(name)["image"], expected, "float64")


@quickly
@each_op
def test_jvp_is_the_transpose_of_vjp(name):
    found = jax_derivatives(name)
    forward = dot(found["image"], cotangents(name))
    backward = along(found["gradient"], FLOAT64(name, seed=1))
    assert_same(forward, backward, "float64")


@quickly
@pytest.mark.parametrize(
    "name",
    [
        *("tables", "tables_by_axes", "sinusoid", "sinusoid_by_axes"),
        *("fourier", "resize", "bias"),
    ],
)
def test_jacfwd_equals_jacrev(name):
    call = jax_call(name)
    with jax.enable_x64(True):
        found, expected = jax.jit(
            lambda given: (jax.jacfwd(call)(given), jax.jacrev(call)(given))
        )(FLOAT64(name))
    assert_same(found, expected, "float64")


@each_op
def test_torch_func_grad_equals_autograd(name):
    given = to_torch(FLOAT64(name))
    weights = [torch.from_numpy(v) for v in cotangents(name)]
    found = torch.func.grad(lambda given: dot(torch_call(name)(given), weights))(given)
    tracked = {k: v.clone().requires_grad_() for k, v in given.items()}
    assert_same(found, torch_gradient(name, tracked), "float64")


@pytest.mark.parametrize("name", ["tables", "rotate", "sinusoid", "lookup", "attend"])
def test_remat_gives_the_same_gradient(name):
    weights = [v.astype(np.float32) for v in cotangents(name)]

    def loss(given: dict[str, Any], call: Callable) -> Any:
        # The sine leaves residuals worth dropping, even where the call is linear.
        return dot(list(map(jnp.sin, call(given))), weights)

    @jax.jit
    def both(given: dict[str, Any]) -> tuple[Any, Any]:
        calls = jax.checkpoint(jax_call(name)), jax_call(name)
        return tuple(jax.grad(loss)(given, call) for call in calls)

    found, expected = both(drawn(name))
    assert_same(found, expected, "attention" if name == "attend" else "gradient")


def test_remat_computes_the_tables_again():
    """Nothing in their making keeps alive what the checkpoint drops."""
    call = jax.checkpoint(jax_call("tables"))
    pulled = jax.make_jaxpr(jax.grad(lambda given: dot(call(given), call(given))))
    cosines = [e for e in equations(pulled(drawn("tables")).jaxpr) if named(e, "cos")]
    assert len(cosines) > 2


TINY = {
    "rotate": {"x": (1, 2, 1, 6), "cos": (1, 2, 2), "sin": (1, 2, 2)},
    "rotate_back": {"x": (1, 2, 1, 6), "cos": (1, 2, 2), "sin": (1, 2, 2)},
    "rotate_to_half": {"x": (1, 2, 1, 6), "cos": (1, 2, 2), "sin": (1, 2, 2)},
    "tables_by_axes": {"inv_freq": (4,), "positions": (2, 3)},
    "sinusoid_by_axes": {"positions": (3, 2), "amplitude": ()},
    "fourier": {"positions": (3, 2), "frequencies": (2, 2)},
    "lookup_by_axes": {"table_0": (3, 2), "table_1": (4, 1)},
    "resize": {"table": (13, 1)},
    "bias": {"slopes": (2,)},
    "attend_alibi": {
        "query": (1, 2, 2, 2),
        "key": (1, 3, 1, 2),
        "value": (1, 3, 1, 2),
        "slopes": (2,),
    },
}


@pytest.mark.parametrize("check", ["gradcheck", "gradgradcheck"])
@pytest.mark.parametrize("name", TINY)
def test_torch_gradient_is_the_difference_quotient(name, check):
    rng = np.random.default_rng(0)
    tiny = {k: rng.normal(size=shape) for k, shape in TINY[name].items()}
    names = list(tiny)
    assert getattr(torch.autograd, check)(
        lambda *given: torch_call(name)(dict(zip(names, given, strict=True))),
        tuple(to_torch(tiny, requires_grad=True).values()),
    )


# ---------------------------------------------------------------- rows that see nothing

# Query 1 of 5 may attend to nothing, for four different reasons.
NOTHING = {
    "mask": {"mask": np.arange(5)[:, None] != np.full(7, 1)},
    "bias": {"bias": np.where(np.arange(5)[:, None] == 1, -np.inf, np.zeros((5, 7)))},
    "positions": {
        "is_causal": True,
        "query_positions": np.array([9, -1, 9, 9, 9]),
        "key_positions": np.arange(7),
    },
    "segments": {
        "query_segment_ids": np.array([0, 5, 0, 0, 0]),
        "key_segment_ids": np.zeros(7, int),
    },
}


def nothing_inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [rng.normal(size=shape) for shape in QKV.values()]


def nothing_output(case: str, library: Any) -> Callable[..., Any]:
    """Attention of [*batch, seq, heads, head_dim], in both libraries."""
    is_torch = library is posenc_torch
    convert = torch.from_numpy if is_torch else jnp.asarray
    given = {
        k: convert(v) if isinstance(v, np.ndarray) else v
        for k, v in NOTHING[case].items()
    }

    def turned(x: Any) -> Any:
        return x.transpose(1, 2) if is_torch else x

    return lambda *qkv: turned(
        library.dot_product_attention(*map(turned, qkv), **given)
    )


WEIGHTS = np.random.default_rng(3).normal(size=(2, 5, 6, 4))


@functools.lru_cache
def jax_nothing(case: str) -> dict[str, Any]:
    """Output, first derivatives, and those of the squares of the first ones."""

    @jax.jit
    def derivatives(*qkv: Any) -> dict[str, Any]:
        call = nothing_output(case, posenc_jax)
        first = jax.grad(lambda *qkv: (call(*qkv) * WEIGHTS).sum(), (0, 1, 2))
        second = jax.grad(lambda *qkv: dot(first(*qkv), first(*qkv)), (0, 1, 2))
        return {"out": call(*qkv), "first": first(*qkv), "second": second(*qkv)}

    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, derivatives(*nothing_inputs()))


def torch_nothing(case: str) -> dict[str, Any]:
    tensors = [torch.tensor(x, requires_grad=True) for x in nothing_inputs()]
    out = nothing_output(case, posenc_torch)(*tensors)
    loss = (out * torch.from_numpy(WEIGHTS)).sum()
    first = torch.autograd.grad(loss, tensors, create_graph=True)
    second = torch.autograd.grad(dot(first, first), tensors)
    return {
        "out": out.detach(),
        "first": tuple(x.detach() for x in first),
        "second": second,
    }


@quickly
@pytest.mark.parametrize("case", NOTHING)
def test_row_that_sees_nothing_is_finite_and_equal_in_both(case):
    assert_same(jax_nothing(case), torch_nothing(case), "float64")


@quickly
@pytest.mark.parametrize("case", NOTHING)
def test_row_that_sees_nothing_is_zero_and_passes_no_gradient(case):
    found = jax_nothing(case)
    for_query, *_ = found["first"]
    np.testing.assert_array_equal(found["out"][:, 1], 0.0)
    np.testing.assert_array_equal(for_query[:, 1], 0.0)
    assert np.abs(for_query[:, 2:]).max() > 1e-3


# ------------------------------------------------------------------- loops and offsets


def test_scan_over_layers_equals_a_loop():
    given = drawn("rotate")
    gains = jnp.asarray([0.5, -1.25, 2.0], jnp.float32)

    def layer(x: jax.Array, gain: jax.Array) -> tuple[jax.Array, None]:
        return gain * posenc_jax.apply_rope(x, given["cos"], given["sin"]), None

    found, _ = jax.jit(lambda x: jax.lax.scan(layer, x, gains))(given["x"])
    expected = functools.reduce(lambda x, gain: layer(x, gain)[0], gains, given["x"])
    assert_same(found, expected, "elementwise")


def attended(query: Any, key: Any, value: Any, positions: Any) -> jax.Array:
    """One causal layer with rotated queries and keys, and a linear bias on top."""
    inv_freq = posenc_jax.RopeConfig(8).inv_freq()
    everywhere = posenc_jax.position_range(key.shape[1])
    query = posenc_jax.apply_rope(query, *posenc_jax.rope_cos_sin(positions, inv_freq))
    key = posenc_jax.apply_rope(key, *posenc_jax.rope_cos_sin(everywhere, inv_freq))
    return posenc_jax.dot_product_attention(
        query,
        key,
        value,
        is_causal=True,
        alibi_slopes=posenc_jax.alibi_slopes(query.shape[2]),
        query_positions=positions,
        key_positions=everywhere,
    )


@quickly
def test_scan_over_steps_equals_the_whole_sequence():
    """Decoding with a traced position gives what the whole sequence gives at once."""
    rng = np.random.default_rng(0)
    shapes = ((2, 7, 6, 8), (2, 7, 3, 8), (2, 7, 3, 4))
    query, key, value = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes)

    def step(offset: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        positions = posenc_jax.position_range(1, offset=offset)
        return offset + 1, attended(row[:, None], key, value, positions)[:, 0]

    rows = jnp.moveaxis(query, 1, 0)
    _, found = jax.jit(lambda rows: jax.lax.scan(step, jnp.int32(0), rows))(rows)
    expected = jax.jit(attended)(query, key, value, jnp.arange(7))
    assert_same(jnp.moveaxis(found, 0, 1), expected, "attention")


TABLE = np.random.default_rng(0).normal(size=(131_080, 4)).astype(np.float32)
INV_FREQ = posenc_jax.RopeConfig(8).inv_freq()


def offset_call(name: str, library: Any) -> Callable[[Any], Any]:
    """Each scheme as a function of the position of the first of its 5 tokens.

    Results are in JAX's order of axes.
    """
    given = {"x": drawn("rotate")["x"], "table": TABLE, **drawn("attend_alibi")}
    given["slopes"] = posenc_jax.alibi_slopes(6)
    if library is posenc_torch:
        given = to_torch(given)

    def turned(x: Any) -> Any:
        return x.transpose(1, 2) if library is posenc_torch else x

    def tokens(offset: Any, length: int = 5) -> Any:
        return library.position_range(length, offset=offset)

    def crossed(at: Any) -> Any:
        """Points off the diagonal of a grid."""
        stack = torch.stack if library is posenc_torch else jnp.stack
        return stack((at, at // 2), -1)

    def rope(offset: Any) -> Any:
        tables = library.rope_cos_sin(tokens(offset), INV_FREQ)
        return turned(library.apply_rope(turned(given["x"]), *tables))

    def attention(offset: Any) -> Any:
        out = library.dot_product_attention(
            *(turned(given[name]) for name in ("query", "key", "value")),
            is_causal=True,
            alibi_slopes=given["slopes"],
            query_positions=tokens(offset),
            key_positions=tokens(offset - 2, 7),
        )
        return turned(out)

    return {
        "position_range": tokens,
        "rope": rope,
        "sinusoidal": lambda at: library.sinusoidal_position_encoding(tokens(at), 8),
        "sinusoidal_exact": lambda at: library.sinusoidal_position_encoding(
            tokens(at), 8, angles="exact"
        ),
        "sinusoidal_axes": lambda at: library.sinusoidal_position_encoding(
            crossed(tokens(at)), 8, preset="timm"
        ),
        "sinusoidal_padding": lambda at: library.sinusoidal_position_encoding(
            tokens(at), 8, preset="fairseq"
        ),
        "xpos": lambda at: library.xpos_scale(tokens(at), 8, center=at),
        "learned": lambda at: library.learned_position_encoding(
            given["table"], tokens(at)
        ),
        "learned_padding": lambda at: library.learned_position_encoding(
            given["table"], tokens(at), padding_idx=7
        ),
        "alibi": lambda at: library.alibi_bias(tokens(at), 7, given["slopes"]),
        "alibi_axes": lambda at: library.alibi_bias(
            crossed(tokens(at)),
            crossed(tokens(at, 7)),
            given["slopes"],
            kind="manhattan",
        ),
        "attention": attention,
    }[name]


each_scheme = pytest.mark.parametrize(
    "name",
    [
        *("position_range", "rope", "sinusoidal", "sinusoidal_exact", "xpos"),
        *("sinusoidal_axes", "sinusoidal_padding", "learned", "learned_padding"),
        *("alibi", "alibi_axes", "attention"),
    ],
)
OFFSETS = [0, 7, 131_071]


def offset_results(name: str) -> list[np.ndarray]:
    """The plain calls of torch; integers in the width that JAX has without x64."""
    call = offset_call(name, posenc_torch)
    found = [call(torch.tensor(offset)).numpy() for offset in OFFSETS]
    integers = name == "position_range"
    return [v.astype(np.int32) for v in found] if integers else found


def compiled_once(call: Callable, values: Sequence[Any]) -> list[jax.Array]:
    """The results of a jitted call, which must be traced for the first value alone."""
    traces = 0

    @jax.jit
    def counted(value: jax.Array) -> jax.Array:
        nonlocal traces
        traces += 1
        return call(value)

    found = [counted(value) for value in values]
    assert traces == 1
    return found


@quickly
@each_scheme
def test_traced_offset_compiles_once(name):
    found = compiled_once(offset_call(name, posenc_jax), OFFSETS)
    kind = "attention" if name == "attention" else "elementwise"
    assert_same(found, offset_results(name), kind)


@each_scheme
def test_torch_compile_takes_another_offset_without_compiling_again(name):
    graphs, call = 0, offset_call(name, posenc_torch)

    def counting(graph: Any, _: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph

    torch.compiler.reset()
    compiled = torch.compile(call, backend=counting, fullgraph=True)
    found = [compiled(torch.tensor(offset)) for offset in OFFSETS]
    assert graphs == 1
    expected = [call(torch.tensor(offset)) for offset in OFFSETS]
    kind = "attention" if name == "attention" else "elementwise"
    assert_same(found, expected, kind)


@pytest.mark.parametrize(
    "name", ["rope", "sinusoidal", "sinusoidal_axes", "xpos", "alibi", "learned"]
)
def test_torch_autocast_changes_nothing(name):
    """Autocast lowers products of matrices, and no position goes through one."""
    call = offset_call(name, posenc_torch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = call(4_090)
    torch.testing.assert_close(found, call(4_090), rtol=0, atol=0)


@quickly
@pytest.mark.parametrize("mode", ["jit", "vmap", "scan"])
def test_learned_position_encoding_gives_nan_for_what_it_cannot_see(mode):
    """Under "error" a traced position out of range is NaN, never a wrong row."""
    lookup = functools.partial(posenc_jax.learned_position_encoding, TABLE[:4])
    run = {
        "jit": jax.jit(lookup),
        "vmap": jax.vmap(lookup),
        "scan": lambda at: jax.lax.scan(lambda c, p: (c, lookup(p)), None, at)[1],
    }[mode]
    found = run(jnp.asarray([0, 3, 4, -1, 2**31 - 1]))
    expected = np.concatenate((TABLE[[0, 3]], np.full((3, 4), np.nan, np.float32)))
    np.testing.assert_array_equal(found, expected)


def test_learned_position_encoding_passes_no_gradient_to_nan():
    weights = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)

    @jax.jit
    def gradient(table: jax.Array, at: jax.Array) -> jax.Array:
        _, pull = jax.vjp(lambda t: posenc_jax.learned_position_encoding(t, at), table)
        return pull(jnp.asarray(weights))[0]

    expected = np.zeros((4, 4), np.float32)
    expected[[0, 3]] = weights[:2]
    found = gradient(TABLE[:4], np.array([0, 3, 4, -1]))
    np.testing.assert_array_equal(found, expected)


CONSTANTS = {
    "jax": lambda values: jnp.asarray(values, jnp.int32),
    "jax_int8": lambda values: jnp.asarray(values, jnp.int8),
    "numpy": lambda values: np.asarray(values),
}


@pytest.mark.parametrize("made", CONSTANTS)
def test_learned_position_encoding_checks_constants_of_a_compiled_program(made):
    """Their values can be seen, under jit as anywhere."""
    right, wrong = CONSTANTS[made]([0, 3]), CONSTANTS[made]([0, 4])
    lookup = posenc_jax.learned_position_encoding
    found = jax.jit(lambda table: lookup(table, right))(TABLE[:4])
    np.testing.assert_array_equal(found, TABLE[[0, 3]])
    with pytest.raises(ValueError, match=r"in 0\.\.3, .* got 0 to 4\."):
        jax.eval_shape(lambda table: lookup(table, wrong), TABLE[:4])


def test_axial_position_encoding_checks_constants_of_a_compiled_program():
    """Those of `grid_positions` above all, for tables of another grid."""
    grid = posenc_jax.grid_positions(2, 5)
    lookup = posenc_jax.axial_position_encoding
    with pytest.raises(ValueError, match=r"in 0\.\.3, .* got 0 to 4\."):
        jax.eval_shape(lambda table: lookup([table, table], grid), TABLE[:4])
    jax.eval_shape(lambda table: lookup([table, table], grid), TABLE[:5])


# ------------------------------------------------------------- functions of integers

RNG = np.random.default_rng(5)
# The function, three values of its array, and everything else.
OF_INTEGERS = {
    "mask": (
        "positions_from_mask",
        {"mask": RNG.random((3, 2, 5)) < 0.7},
        {"start": 2, "padding": 1},
    ),
    "grid_mask": (
        "grid_positions_from_mask",
        {"mask": RNG.random((3, 2, 4, 5)) < 0.7},
        {"normalize": "centre"},
    ),
    "grid_mask_counts": (
        "grid_positions_from_mask",
        {"mask": RNG.random((3, 2, 4, 5)) < 0.7},
        {},
    ),
    "segments": (
        "positions_from_segments",
        {"segment_ids": RNG.integers(0, 2, (3, 2, 7))},
        {},
    ),
    "shard": (
        "shard_positions",
        {"shard": np.array([[0, 1], [2, 2], [1, 0]])},
        {"length": 18, "num_shards": 3, "order": "zigzag"},
    ),
}
each_of_integers = pytest.mark.parametrize("name", OF_INTEGERS)


def of_integers(name: str, library: Any) -> tuple[Callable[[Any], Any], list[Any]]:
    """The function of its array alone, and three values of that."""
    function, arrays, options = OF_INTEGERS[name]
    ((argument, values),) = arrays.items()
    convert = torch.from_numpy if library is posenc_torch else jnp.asarray
    call = getattr(library, function)
    return lambda given: call(**{argument: given}, **options), list(convert(values))


def one_by_one(name: str) -> list[np.ndarray]:
    """The plain calls of torch; integers in the width that JAX has without x64."""
    call, values = of_integers(name, posenc_torch)
    found = [call(value).numpy() for value in values]
    return [v.astype(np.int32) if v.dtype.kind == "i" else v for v in found]


@quickly
@each_of_integers
def test_traced_integers_compile_once(name):
    call, values = of_integers(name, posenc_jax)
    found = compiled_once(call, values)
    assert_same(found, one_by_one(name), "elementwise")
    assert_same([call(value) for value in values], one_by_one(name), "elementwise")


@each_of_integers
def test_torch_compile_takes_other_integers_without_compiling_again(name):
    graphs, (call, values) = 0, of_integers(name, posenc_torch)

    def counting(graph: Any, _: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph

    torch.compiler.reset()
    compiled = torch.compile(call, backend=counting, fullgraph=True)
    found = [compiled(value) for value in values]
    assert graphs == 1
    assert_same(found, [call(value) for value in values], "elementwise")


@quickly
@each_of_integers
@pytest.mark.parametrize("library", [posenc_torch, posenc_jax], ids=["torch", "jax"])
def test_vmap_over_integers_equals_one_by_one(library, name):
    call, values = of_integers(name, library)
    if library is posenc_torch:
        found = torch.func.vmap(call)(torch.stack(values)).numpy()
        found = found.astype(np.int32) if found.dtype.kind == "i" else found
    else:
        found = np.asarray(jax.vmap(call)(jnp.stack(values)))
    assert_same(found, np.stack(one_by_one(name)), "elementwise")


def test_shard_positions_takes_the_index_of_an_axis():
    """What a shard asks for inside `jax.shard_map`: every token once, and no copy of the others' in between."""
    found = jax.vmap(
        lambda _: posenc_jax.shard_positions(
            12, jax.lax.axis_index("shards"), 3, order="zigzag"
        ),
        axis_name="shards",
    )(jnp.zeros(3))
    expected = [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]]
    np.testing.assert_array_equal(found, expected)


def test_shard_positions_checks_constants_of_a_compiled_program():
    """A shard that is traced cannot be seen; one that is not is looked at while it compiles."""
    for shard in (3, np.array([0, 3]), jnp.asarray([0, 3])):
        with pytest.raises(
            ValueError, match=r"`shard` must be in 0\.\.2, got . to 3\."
        ):
            jax.eval_shape(lambda s=shard: posenc_jax.shard_positions(12, s, 3))


# ------------------------------------------------------------- what a model is made of


def test_rope_config_is_a_static_argument():
    traces = 0

    @functools.partial(jax.jit, static_argnums=0)
    def tables(config: posenc_jax.RopeConfig, positions: jax.Array) -> Any:
        nonlocal traces
        traces += 1
        return posenc_jax.rope_cos_sin(positions, config.inv_freq())

    config = posenc_jax.RopeConfig(8, base=500_000.0)
    same = posenc_jax.RopeConfig(8, rotary_dim=8, base=500_000.0)
    found = [tables(c, jnp.asarray(TOKENS)) for c in (config, same)]
    assert traces == 1
    tables(posenc_jax.RopeConfig(8), jnp.asarray(TOKENS))
    assert traces == 2
    expected = posenc_jax.rope_cos_sin(jnp.asarray(TOKENS), config.inv_freq())
    assert_same(found, [expected, expected], "elementwise")


def test_rope_config_frequencies_are_the_same_under_jit():
    """XLA would rewrite the power; the host's constant has the same bits everywhere."""
    config = posenc_jax.RopeConfig(128, base=500_000.0)
    found = jax.jit(lambda: jnp.asarray(config.inv_freq()))()
    np.testing.assert_array_equal(found, config.inv_freq())


# ------------------------------------------------------------- what a rotation compiles

ROTATIONS = {
    "half_leading": {"layout": "half", "placement": "leading"},
    "half_trailing": {"layout": "half", "placement": "trailing"},
    "interleaved_leading": {"layout": "interleaved", "placement": "leading"},
    "interleaved_trailing": {"layout": "interleaved", "placement": "trailing"},
    "to_half_leading": {"layout": "interleaved_to_half", "placement": "leading"},
    "to_half_trailing": {"layout": "interleaved_to_half", "placement": "trailing"},
}
each_rotation = pytest.mark.parametrize("case", ROTATIONS)


@quickly
@each_rotation
@pytest.mark.parametrize("inverse", [False, True], ids=["forward", "inverse"])
def test_apply_rope_vjp_is_the_inverse_rotation(case, inverse):
    """With tables of no angle, so that cos ** 2 + sin ** 2 = 1 cannot hide a fault."""
    x, cos, sin = drawn("rotate").values()
    cotangent = drawn("rotate", seed=1)["x"]
    rotate = functools.partial(posenc_jax.apply_rope, **ROTATIONS[case])
    _, pull = jax.vjp(lambda x: rotate(x, cos, sin, inverse=inverse), jnp.asarray(x))
    (found,) = pull(jnp.asarray(cotangent))
    expected = rotate(jnp.asarray(cotangent), cos, sin, inverse=not inverse)
    assert_same(found, expected, "elementwise")


@each_rotation
def test_torch_apply_rope_backward_is_the_inverse_rotation(case):
    given = to_torch(drawn("rotate"))
    tables = given["cos"], given["sin"]
    x = given["x"].transpose(1, 2).requires_grad_()
    cotangent = torch.tensor(drawn("rotate", seed=1)["x"]).transpose(1, 2)
    rotate = functools.partial(posenc_torch.apply_rope, **ROTATIONS[case])
    (found,) = torch.autograd.grad(rotate(x, *tables), x, cotangent)
    assert_same(found, rotate(cotangent, *tables, inverse=True), "elementwise")


@pytest.mark.parametrize("figure", VJP_COST)
@each_rotation
def test_apply_rope_vjp_costs_what_the_forward_costs(case, figure):
    """With so much to rotate that tables, which XLA may write out as wide as a head, are 3 % of it."""
    shape = jax.ShapeDtypeStruct((8, 64, 8, 32), jnp.float32)
    table = jax.ShapeDtypeStruct((64, 16), jnp.float32)
    rotate = functools.partial(posenc_jax.apply_rope, **ROTATIONS[case])

    def backward(cotangent: Any, cos: Any, sin: Any) -> Any:
        zeros = jnp.zeros(shape.shape, shape.dtype)
        return jax.vjp(lambda x: rotate(x, cos, sin), zeros)[1](cotangent)[0]

    forward_cost, backward_cost = (
        jax.jit(f).lower(shape, table, table).compile().cost_analysis()[figure]
        for f in (rotate, backward)
    )
    assert 0 < backward_cost <= VJP_COST[figure] * forward_cost


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a program, those of its inner programs among them."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda v: isinstance(v, INNER)
        ):
            if isinstance(value, INNER):
                yield from equations(getattr(value, "jaxpr", value))


INNER = (jex_core.Jaxpr, jex_core.ClosedJaxpr)


def named(equation: Any, name: str) -> bool:
    return str(equation.primitive) == name


def primitives(function: Callable, *args: Any) -> set[str]:
    return {str(e.primitive) for e in equations(jax.make_jaxpr(function)(*args).jaxpr)}


def dtypes(function: Callable, *args: Any) -> set[str]:
    """Of every value that a program computes."""
    found = equations(jax.make_jaxpr(function)(*args).jaxpr)
    return {v.aval.dtype.name for e in found for v in e.outvars}


ANGLES = {
    "rope": lambda at: posenc_jax.rope_cos_sin(at, INV_FREQ),
    "rope_by_axes": lambda at: posenc_jax.rope_cos_sin(
        jnp.stack((at, at), -1), INV_FREQ, axes=(0, 1, 1, 0)
    ),
    "sinusoidal": lambda at: posenc_jax.sinusoidal_position_encoding(at, 8),
    "sinusoidal_by_axes": lambda at: posenc_jax.sinusoidal_position_encoding(
        jnp.stack((at, at), -1), 8, preset="detr"
    ),
    "fourier": lambda at: posenc_jax.fourier_position_encoding(
        jnp.stack((at, at), -1), np.ones((2, 4), np.float32)
    ),
}
each_angle = pytest.mark.parametrize("name", ANGLES)


@each_angle
def test_angles_use_no_matrix_product(name):
    """None comes before the sine and the cosine."""
    program = equations(jax.make_jaxpr(ANGLES[name])(jnp.asarray(TOKENS)).jaxpr)
    order = [str(equation.primitive) for equation in program]
    angles = order[: max(order.index("cos"), order.index("sin"))]
    assert "mul" in angles
    assert "dot_general" not in angles


@each_angle
@pytest.mark.parametrize("width", ["int8", "int16", "int32"])
def test_angles_are_never_narrowed(name, width):
    """No value of half precision exists, and no float is made of a short integer."""
    found = dtypes(ANGLES[name], jnp.asarray(TOKENS, width))
    assert found - {width} <= {"int32", "float32", "bool"}


def test_angles_are_not_narrowed_by_bfloat16_activations():
    x = jnp.zeros((2, 5, 3, 8), jnp.bfloat16)

    def rotate(at: jax.Array) -> jax.Array:
        return posenc_jax.apply_rope(x, *ANGLES["rope"](at))

    program = jax.make_jaxpr(rotate)(jnp.asarray(TOKENS)).jaxpr
    used = [e for e in equations(program) if str(e.primitive) in ("cos", "sin", "mul")]
    assert {v.aval.dtype.name for e in used for v in e.invars} == {"float32"}


@each_op
@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_lowers_for_an_accelerator_from_a_cpu(name, platform):
    def value_and_gradient(given: dict[str, Any]) -> Any:
        loss = jax.value_and_grad(
            lambda given: dot(jax_call(name)(given), cotangents(name))
        )
        return loss(given)

    lowered = jax.jit(value_and_gradient).trace(drawn(name))
    text = lowered.lower(lowering_platforms=(platform,)).as_text()
    assert "func.func public @main" in text


@pytest.mark.parametrize("platform", ["tpu", "cuda", "cpu"])
def test_apply_rope_swaps_by_a_matrix_on_tpu_alone(platform):
    traced = jax.jit(posenc_jax.apply_rope).trace(*drawn("rotate").values())
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("dot_general" in text) == (platform == "tpu")


def on_tpu(*args: Any, tpu: Callable, default: Callable) -> Any:
    return tpu(*args)


@each_rotation
@pytest.mark.parametrize(
    "dtype",
    [
        *("bfloat16", "float32"),
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in ("float16", "float64")
        ),
    ],
)
def test_apply_rope_has_the_same_bits_by_matrix_and_by_slices(dtype, case, monkeypatch):
    """By quarter turns: products with 0 and +-1 are exact however XLA fuses them."""

    def forward_and_back(x: Any, cotangent: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
        rotate = functools.partial(posenc_jax.apply_rope, **ROTATIONS[case])
        out, pull = jax.vjp(lambda x: rotate(x, cos, sin), x)
        return out, pull(cotangent)[0]

    with jax.enable_x64(True):
        x, cotangent = (
            jnp.asarray(drawn("rotate", seed)["x"], dtype) for seed in range(2)
        )
        sin = np.sign(drawn("rotate")["sin"]).astype(np.float32)
        given = x, cotangent, np.zeros_like(sin), sin
        by_slices = jax.jit(forward_and_back)(*given)
        monkeypatch.setattr(jax.lax, "platform_dependent", on_tpu)
        by_matrix = jax.jit(lambda *given: forward_and_back(*given))(*given)
    assert all(map(np.array_equal, by_matrix, by_slices))
    assert by_matrix[0].dtype == dtype
    assert not np.array_equal(by_matrix[0], x)


def test_apply_rope_by_matrix_is_what_the_patch_reaches(monkeypatch):
    monkeypatch.setattr(jax.lax, "platform_dependent", on_tpu)
    found = primitives(
        lambda *args: posenc_jax.apply_rope(*args), *drawn("rotate").values()
    )
    assert "dot_general" in found


@quickly
@pytest.mark.parametrize("layout", ["half", "interleaved", "interleaved_to_half"])
def test_apply_rope_by_matrix_keeps_nan_in_its_head(layout, monkeypatch):
    monkeypatch.setattr(jax.lax, "platform_dependent", on_tpu)
    x, cos, sin = drawn("rotate").values()
    x[1, 2, 1, 0] = np.nan
    out = np.asarray(posenc_jax.apply_rope(x, cos, sin, layout=layout))
    broken = np.isnan(out).any(-1)
    assert broken[1, 2, 1]
    assert broken.sum() == 1


# ------------------------------------------------------------------------ strictness

DYNAMIC = posenc_jax.RopeConfig(
    8,
    scaling=posenc_jax.DynamicNtkScaling(2.0, 4),
)
LONGROPE = posenc_jax.RopeConfig(
    8,
    scaling=posenc_jax.LongRopeScaling(
        (1.0, 1.5, 2.0, 2.5),
        (1.0, 2.0, 4.0, 8.0),
        original_max_position_embeddings=4,
        factor=4.0,
        short_mscale=1.125,
        long_mscale=1.25,
    ),
)
# What takes no array to differentiate.
OTHERS = {
    "alibi_slopes": lambda: posenc_jax.alibi_slopes(6),
    "init_position_table": lambda: posenc_jax.init_position_table(
        jax.random.key(0), 5, 8
    ),
    "init_position_table_sinusoidal": lambda: posenc_jax.init_position_table(
        jax.random.key(0), 5, 8, init="sinusoidal"
    ),
    "last_positions": lambda: posenc_jax.last_positions(2, 5),
    "position_range": lambda: posenc_jax.position_range(5, offset=jnp.int32(3)),
    "position_range_int": lambda: posenc_jax.position_range(5, offset=3),
    "inv_freq": lambda: posenc_jax.RopeConfig(8).inv_freq(),
    **{
        f"inv_freq_of_a_length_{name}": lambda config=config: (
            config.inv_freq(jnp.int32(5)),
            config.attention_factor(jnp.int32(5)),
        )
        for name, config in {
            "plain": posenc_jax.RopeConfig(8),
            "dynamic": DYNAMIC,
            "longrope": LONGROPE,
        }.items()
    },
    "tables_of_a_length": lambda: posenc_jax.rope_cos_sin(
        jnp.asarray(TOKENS),
        LONGROPE.inv_freq(jnp.int32(5)),
        attention_factor=LONGROPE.attention_factor(jnp.int32(5)),
    ),
    "xpos_scale": lambda: posenc_jax.xpos_scale(
        jnp.asarray(TOKENS), 8, center=jnp.int32(3)
    ),
    "grid_positions": lambda: posenc_jax.grid_positions(2, 3),
    **{
        f"{function}_{case}": lambda f=function, given=given, options=options: getattr(
            posenc_jax, f
        )(**{k: jnp.asarray(v) for k, v in given.items()}, **options)
        for case, (function, given, options) in OF_INTEGERS.items()
    },
    "shard_positions_int": lambda: posenc_jax.shard_positions(8, 1, 2, order="zigzag"),
    "init_position_table_padding": lambda: posenc_jax.init_position_table(
        jax.random.key(0), 5, 8, init="patchtst", padding_idx=1
    ),
    "learned_zero": lambda: posenc_jax.learned_position_encoding(
        jnp.ones((7, 8), jnp.bfloat16),
        jnp.asarray(TOKENS),
        padding_idx=1,
        out_of_range="zero",
    ),
    "sinusoidal_padding": lambda: posenc_jax.sinusoidal_position_encoding(
        jnp.asarray(TOKENS), 8, preset="fairseq"
    ),
    "sinusoidal_amplitude": lambda: posenc_jax.sinusoidal_position_encoding(
        5, 8, amplitude=np.float64(0.5), angle_scale=np.float64(0.5)
    ),
    "alibi_by_axes": lambda: posenc_jax.alibi_bias(
        jnp.asarray(POINTS), jnp.asarray(POINTS), jnp.ones(3), kind="manhattan"
    ),
    "patch_centres": lambda: posenc_jax.patch_centres(2, 3),
    "sinusoidal_int": lambda: posenc_jax.sinusoidal_position_encoding(5, 8),
    "sinusoidal_exact": lambda: posenc_jax.sinusoidal_position_encoding(
        jnp.asarray(TOKENS), 8, angles="exact"
    ),
    "int8_positions": lambda: posenc_jax.rope_cos_sin(
        jnp.asarray([3], jnp.int8), INV_FREQ
    ),
    "learned_nan": lambda: posenc_jax.learned_position_encoding(
        jnp.ones((7, 8), jnp.bfloat16), jnp.asarray(TOKENS), out_of_range="nan"
    ),
    "attention_numbers": lambda: posenc_jax.dot_product_attention(
        *(jnp.ones((2, 5, 3, 8), jnp.bfloat16) for _ in range(3)),
        scale=0.5,
        logit_softcap=30.0,
        sliding_window=3,
    ),
}


# dtype of the arrays, and whether JAX has 64 bits, so that a stray one would show
STRICT = {
    "bfloat16": ("bfloat16", False),
    "bfloat16_x64": ("bfloat16", True),
    "float32": ("float32", False),
    "float32_x64": ("float32", True),
    "float64_x64": ("float64", True),
}


@each_op
@pytest.mark.parametrize("case", STRICT)
def test_strict_promotion_is_enough(name, case):
    """Tables that must be float32 or float64 stay so beside bfloat16 activations."""
    dtype, x64 = STRICT[case]
    tables = {"inv_freq", "slopes", "alibi_slopes", "positions", "frequencies"}
    wide = "float32" if dtype == "bfloat16" else dtype
    with jax.enable_x64(x64), jax.numpy_dtype_promotion("strict"):
        given = {
            k: jnp.asarray(v, wide if k in tables else dtype)
            for k, v in drawn(name).items()
        }
        jax.eval_shape(jax_call(name), given)


@pytest.mark.parametrize("name", OTHERS)
def test_strict_promotion_is_enough_for_what_takes_no_array(name):
    with jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(OTHERS[name])


@each_op
def test_x64_does_not_widen_float32(name):
    """Neither the result nor any value on the way to it."""
    with jax.enable_x64(True):
        found = jax.eval_shape(jax_call(name), drawn(name))
        computed = dtypes(jax_call(name), drawn(name))
    assert {v.dtype.name for v in found} == {"float32"}
    assert "float64" not in computed


# Programs for export, and those that a number turns into ------------------------------


def attend_by_position(package: Any, x: Any) -> Any:
    slopes = package.alibi_slopes(2)
    return package.dot_product_attention(x, x, x, is_causal=True, alibi_slopes=slopes)


@quickly
def test_jax_export_with_symbolic_sizes():
    batch, seq = jax.export.symbolic_shape("batch, seq")
    attend = jax.jit(lambda x: attend_by_position(posenc_jax, x))
    spec = jax.ShapeDtypeStruct((batch, seq, 2, 8), jnp.float32)
    exported = jax.export.export(attend)(spec)
    x = np.random.default_rng(0).normal(size=(2, 5, 2, 8)).astype(np.float32)
    np.testing.assert_array_equal(exported.call(x), attend(x))


# Each as a function of one array, [batch, seq, ...].
EXPORTED = {
    "mask": (lambda lib, x: lib.positions_from_mask(x), (), "bool"),
    "grid_mask": (
        lambda lib, x: lib.grid_positions_from_mask(x, normalize="end"),
        (),
        "bool",
    ),
    "segments": (lambda lib, x: lib.positions_from_segments(x), (), "int32"),
    "sinusoid_by_axes": (
        lambda lib, x: lib.sinusoidal_position_encoding(x, 8, preset="timm"),
        (2,),
        "float32",
    ),
    "fourier": (
        lambda lib, x: lib.fourier_position_encoding(x, np.ones((2, 3), np.float32)),
        (2,),
        "float32",
    ),
    "alibi_by_axes": (
        lambda lib, x: lib.alibi_bias(x, x, np.ones(3, np.float32), kind="euclidean"),
        (2,),
        "int32",
    ),
}
each_exported = pytest.mark.parametrize("name", EXPORTED)


def exported_input(name: str, batch: int, seq: int) -> np.ndarray:
    _, shape, dtype = EXPORTED[name]
    drawn = np.random.default_rng(0).integers(0, 2, (batch, seq, *shape))
    return drawn.astype(dtype)


@quickly
@each_exported
def test_jax_export_of_each_scheme_with_symbolic_sizes(name):
    function, shape, dtype = EXPORTED[name]
    call = jax.jit(lambda x: function(posenc_jax, x))
    batch, seq = jax.export.symbolic_shape("batch, seq")
    spec = jax.ShapeDtypeStruct((batch, seq, *shape), dtype)
    exported = jax.export.export(call)(spec)
    x = exported_input(name, 2, 5)
    assert_same(exported.call(x), call(x), "elementwise")


class Calls(torch.nn.Module):
    """A function as the module that `torch.export` asks for."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = EXPORTED[name][0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(posenc_torch, x)


@each_exported
def test_torch_export_of_each_scheme_with_a_dynamic_axis(name):
    module = Calls(name)
    # From 3 on: torch makes a graph of its own for axes of 1, and neighbours are compared in one of seq - 1.
    sizes = {"x": {1: torch.export.Dim("seq", min=3, max=60)}}
    example = torch.from_numpy(exported_input(name, 2, 5))
    exported = torch.export.export(module, (example,), dynamic_shapes=sizes)
    x = torch.from_numpy(exported_input(name, 2, 9))
    assert torch.equal(exported.module()(x), module(x))


def test_torch_export_with_a_dynamic_axis():
    table = posenc_torch.LearnedPositionalEncoding(64, 8)
    sizes = {"x": {1: torch.export.Dim("seq", min=2, max=60)}}
    exported = torch.export.export(table, (torch.ones(2, 5, 8),), dynamic_shapes=sizes)
    x = torch.ones(2, 9, 8)
    assert torch.equal(exported.module()(x), table(x))


def test_torch_compile_takes_numbers_and_sizes_that_vary():
    def attend(x: torch.Tensor, scale: float) -> torch.Tensor:
        return posenc_torch.dot_product_attention(x, x, x, is_causal=True, scale=scale)

    torch.compiler.reset()
    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    for size, scale in ((4, 0.1), (6, 0.2), (8, 0.3)):
        x = torch.ones(1, 2, size, size)
        assert torch.equal(compiled(x, scale), attend(x, scale))


def test_torch_compile_takes_shards_of_sequences_that_vary():
    def shards(length: int, shard: torch.Tensor) -> torch.Tensor:
        return posenc_torch.shard_positions(length, shard, 2, order="zigzag")

    torch.compiler.reset()
    compiled = torch.compile(shards, backend="eager", fullgraph=True)
    for length, shard in ((8, [0, 1]), (12, [1, 1]), (16, [1, 0])):
        given = length, torch.tensor(shard)
        assert torch.equal(compiled(*given), shards(*given))
