"""Resized tables: torch's interpolation and JAX's to the last bits of float64, gradients, dtypes, prefixes, sizes."""

from __future__ import annotations

from functools import partial
from importlib.resources import files
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

import posenc_torch

from .instrument.in_jax import run_jax
from .instrument.in_torch import run_torch
from .twins import TWINS, Twin

both = pytest.mark.parametrize("twin", TWINS, ids=str)

U = 2.0**-24  # unit roundoff of float32
# Float64 on both sides: weights, places of rows and sums are rounded some ten times on each axis, of numbers up to 9.
SAME = 1e-13

DIM = 3
# From one axis or grid to another: longer, shorter, either, one row, the same.
SIZES = {
    "line_up": ((5,), (8,)),
    "line_down": ((9,), (4,)),
    "line_same": ((5,), (5,)),
    "grid_up": ((3, 4), (5, 9)),
    "grid_down_and_up": ((7, 4), (3, 9)),
    "grid_one_axis_same": ((3, 4), (3, 7)),
    "grid_from_and_to_one_row": ((1, 4), (3, 1)),
    "grid_same": ((3, 4), (3, 4)),
}
KERNELS = (
    {"method": "linear"},
    {"method": "linear", "antialias": True},
    {"method": "linear", "align_corners": True},
    {"method": "cubic"},
    {"method": "cubic", "antialias": True},
    {"method": "cubic", "align_corners": True},
)
ALL_KERNELS = (
    *KERNELS,
    {"method": "keys_cubic"},
    {"method": "keys_cubic", "antialias": True},
    {"method": "keys_cubic", "align_corners": True},
)


def named(options: dict[str, Any]) -> str:
    method, *rest = options.values()
    return "-".join([method, *(name for name in options if rest and name != "method")])


sizes = pytest.mark.parametrize(("old", "new"), SIZES.values(), ids=SIZES)
each_kernel = pytest.mark.parametrize("options", ALL_KERNELS, ids=named)


def rows_of(grid: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(np.prod(grid), DIM))


def resized(
    twin: Twin,
    table: np.ndarray,
    new: tuple[int, ...],
    cotangent: np.ndarray | None = None,
    *,
    jit: bool = True,
    **options: Any,
) -> dict[str, np.ndarray]:
    """The resized table as "out", jitted in JAX; with a cotangent also the gradient, as "d_table"."""
    to = new[0] if len(new) == 1 else new

    def function(table: Any) -> dict[str, Any]:
        return {"out": twin.package.resize_position_table(table, to, **options)}

    runner = partial(run_jax, jit=jit) if twin.name == "jax" else run_torch
    wrt = () if cotangent is None else ("table",)
    if cotangent is None:
        rows = options.get("num_prefix", 0) + np.prod(new)
        cotangent = np.zeros((rows, table.shape[1]), table.dtype)
    return runner(function, {"table": table}, {"out": cotangent}, wrt)


def torch_resized(
    table: torch.Tensor,
    old: tuple[int, ...],
    new: tuple[int, ...] | None,
    scale_factor: tuple[float, ...] | None = None,
    *,
    method: str,
    antialias: bool = False,
    align_corners: bool = False,
) -> dict[str, torch.Tensor]:
    """The rows of `torch.nn.functional.interpolate`; a line is a grid of one column, as it has no cubic of a line."""
    height, width = (*old, 1)[:2]
    image = table.reshape(1, height, width, -1).permute(0, 3, 1, 2)
    image = interpolate(
        image,
        None if new is None else (*new, 1)[:2],
        None if scale_factor is None else (*scale_factor, 1.0)[:2],
        mode={"linear": "bilinear", "cubic": "bicubic"}[method],
        antialias=antialias,
        align_corners=align_corners,
    )
    return {"out": image[0].flatten(1).T}


# ------------------------------------------------------------------------------ values


def test_resize_is_one_file():
    """The rows and weights are made by the same lines."""
    texts = [files(twin.package).joinpath("_resize.py").read_text() for twin in TWINS]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("options", KERNELS, ids=named)
@sizes
def test_resize_position_table_is_torchs_interpolate(old, new, options):
    """Values and gradients."""
    table, cotangent = rows_of(old), rows_of(new, seed=1)
    theirs = partial(torch_resized, old=old, new=new, **options)
    inputs, cotangents = {"table": table}, {"out": cotangent}
    expected = run_torch(theirs, inputs, cotangents, ("table",))
    for twin in TWINS:
        found = resized(twin, table, new, cotangent, old_grid=old, **options)
        for name in ("out", "d_table"):
            assert found[name].dtype == np.float64
            np.testing.assert_allclose(
                found[name], expected[name], rtol=0, atol=SAME, err_msg=f"{twin} {name}"
            )


# torch makes as many rows as there are in old times factor, rounded down. Where an axis keeps its size it copies the
# rows, whatever the factor, but for the plain bicubic: there the others are left out.
FACTORS = {
    "line_dinov2": ((5,), (7,), (7.1 / 5,)),
    "line_down": ((9,), (4,), (0.5,)),
    "grid_dinov2": ((3, 4), (5, 6), (5.1 / 3, 6.1 / 4)),
    "grid_down_and_up": ((7, 4), (3, 6), (3.1 / 7, 6.1 / 4)),
    "grid_same": ((3, 4), (3, 4), (3.1 / 3, 4.1 / 4)),
}
FACTOR_CASES = [
    pytest.param(*case, options, id=f"{name}-{named(options)}")
    for name, case in FACTORS.items()
    for options in KERNELS
    if "align_corners" not in options
    and (name != "grid_same" or options == {"method": "cubic"})
]


@both
@pytest.mark.parametrize(("old", "new", "factors", "options"), FACTOR_CASES)
def test_resize_position_table_scale_factor_is_torchs(old, new, factors, options, twin):
    table = rows_of(old)
    theirs = torch_resized(torch.from_numpy(table), old, None, factors, **options)
    more = {"old_grid": old, **options}
    found = resized(twin, table, new, scale_factor=factors, **more)["out"]
    np.testing.assert_allclose(found, theirs["out"].numpy(), rtol=0, atol=SAME)
    plain = resized(twin, table, new, **more)["out"]
    assert np.abs(found - plain).max() > 1e-3


@both
def test_resize_position_table_one_scale_factor_is_of_every_axis(twin):
    table, more = rows_of((3, 5)), {"old_grid": (3, 5)}
    one = resized(twin, table, (4, 7), scale_factor=1.45, **more)["out"]
    two = resized(twin, table, (4, 7), scale_factor=(1.45, 1.45), **more)["out"]
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("antialias", [False, True], ids=["plain", "antialias"])
@pytest.mark.parametrize("method", ["linear", "keys_cubic"])
@sizes
def test_resize_position_table_is_jax_image_resize(old, new, method, antialias):
    table = rows_of(old)
    with jax.enable_x64(True):
        grid = jnp.asarray(table).reshape(*old, DIM)
        method_there = method.removeprefix("keys_")
        theirs = jax.image.resize(grid, (*new, DIM), method_there, antialias)
        expected = np.asarray(theirs).reshape(-1, DIM)
    for twin in TWINS:
        options = {"old_grid": old, "method": method, "antialias": antialias}
        found = resized(twin, table, new, **options)["out"]
        np.testing.assert_allclose(
            found, expected, rtol=0, atol=SAME, err_msg=str(twin)
        )


@both
def test_resize_position_table_cubics_differ_even_where_nothing_shrinks(twin):
    """F8: -3/4 and the last row repeated, against -1/2 and only rows that are there."""
    plain, smooth, keys = (
        resized(twin, rows_of((4,)), (6,), method=method, antialias=antialias)["out"]
        for method, antialias in (
            ("cubic", False),
            ("cubic", True),
            ("keys_cubic", False),
        )
    )
    assert np.abs(plain - smooth).max() > 1e-2
    np.testing.assert_array_equal(keys, smooth)


# sayakpaul/cmmd-pytorch#5 (F8): 0..7, half as long, to three decimals.
HALVED = {False: [0.5, 2.5, 4.5, 6.5], True: [0.714, 2.5, 4.5, 6.286]}


@both
@pytest.mark.parametrize("antialias", HALVED)
def test_resize_position_table_antialias_is_as_said(antialias, twin):
    table = np.arange(8.0)[:, None]
    found = resized(twin, table, (4,), method="linear", antialias=antialias)["out"]
    np.testing.assert_allclose(found[:, 0], HALVED[antialias], rtol=0, atol=6e-4)


@both
@each_kernel
@pytest.mark.parametrize("old", [(9, 4), (1, 1)], ids=str)
def test_resize_position_table_weights_of_a_row_sum_to_one(old, options, twin):
    """The rows of a resized identity are the weights."""
    identity = np.eye(np.prod(old))
    weights = resized(twin, identity, (3, 5), old_grid=old, **options)["out"]
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=0, atol=SAME)


@both
@each_kernel
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_resize_position_table_to_its_own_size_is_the_identity(dtype, options, twin):
    """Of three axes, such as frames, rows and columns."""
    table = rows_of((2, 3, 4)).astype(dtype)
    found = resized(twin, table, (2, 3, 4), old_grid=(2, 3, 4), **options)["out"]
    assert found.tobytes() == table.tobytes()


# Of a sine of w radians per row, with x = 1/4 or 3/4 the way between two of them, by Taylor's theorem: linear is off by
# at most w^2 / 8; Keys' cubic, which takes the slope from the neighbours, by x (1 - x) (1 - 2 x) w^3 / 6 and terms of
# the fourth order, less than w^4; torch's takes that slope times 3/2, which is off by x (1 - x) (1 - 2 x) w / 2 and,
# as slopes differ from row to row, a fortieth of w^2.
FAR = {
    "linear": lambda w: w**2 / 8,
    "keys_cubic": lambda w: 3 / 32 * w**3 / 6 + w**4,
    "cubic": lambda w: 3 / 32 * w / 2 + w**2 / 40 + FAR["keys_cubic"](w),
}


@both
@pytest.mark.parametrize("method", FAR)
def test_resize_position_table_of_a_sinusoid_is_the_longer_sinusoid(method, twin):
    rows, dim, base = 24, 6, 50.0
    options = {"base": base, "dtype": twin.float64}
    table, longer = (
        twin.call("sinusoidal_position_encoding", at, dim, **options)
        for at in (rows, (np.arange(2 * rows) + 0.5) / 2 - 0.5)
    )
    # Slow columns only, and without the ends, beyond which nothing is known.
    w = np.repeat(base ** (-np.arange(0, dim, 2) / dim), 2)[2:]
    found = resized(twin, table, (2 * rows,), method=method)["out"]
    apart = np.abs(found - longer)[3:-3, 2:]
    assert (apart <= FAR[method](w)).all()
    assert (apart.max(0) > 0.1 * FAR[method](w)).any()


# ------------------------------------------------------------------- prefix and old grid


@both
@pytest.mark.parametrize("new", [(3, 7), (4, 4)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resize_position_table_keeps_the_prefix(dtype, new, twin):
    table = rows_of((2 + 16,)).astype(dtype)
    table[0] = [np.nan, np.inf, -0.0]
    found = resized(twin, table, new, num_prefix=2)["out"]
    assert found[:2].tobytes() == table[:2].tobytes()
    np.testing.assert_array_equal(found[2:], resized(twin, table[2:], new)["out"])
    assert np.isfinite(found[2:].astype(np.float32)).all()


@both
def test_resize_position_table_takes_rows_for_a_square(twin):
    """huggingface/pytorch-image-models#2542 (F9): a remainder by the root found a class token among 196 rows."""
    table = rows_of((197,))
    patches = resized(twin, table[1:], (7, 5))["out"]
    given = resized(twin, table[1:], (7, 5), old_grid=(14, 14))["out"]
    np.testing.assert_array_equal(patches, given)
    with_class = resized(twin, table, (7, 5), num_prefix=1)["out"]
    np.testing.assert_array_equal(with_class, np.concatenate((table[:1], patches)))
    with pytest.raises(ValueError, match=r"`old_grid` must be given .* got 197 rows"):
        resized(twin, table, (7, 5))


@both
@pytest.mark.parametrize("factor", [1.0, 3.5, (2.0, 1.0)], ids=str)
def test_resize_position_table_refuses_a_factor_of_other_sizes(factor, twin):
    """Rows that stand far beyond the table would be made of nothing."""
    with pytest.raises(ValueError, match="`scale_factor` must be less than one row"):
        resized(twin, rows_of((4, 4)), (8, 8), scale_factor=factor, antialias=True)


# --------------------------------------------------------------------------- gradients


@both
@each_kernel
def test_resize_position_table_gradient_is_the_transpose(options, twin):
    """<J u, g> is <u, J' g>, wherever the gradient is taken; the prefix gets what it passed on."""
    old, new, prefix = (3, 4), (5, 2), 2
    table, u = (rows_of((prefix + 12,), seed) for seed in (0, 1))
    g = rows_of((prefix + 10,), seed=2)
    more = {"old_grid": old, "num_prefix": prefix, **options}
    at_table = resized(twin, table, new, g, **more)["d_table"]
    at_u = resized(twin, u, new, g, **more)
    np.testing.assert_array_equal(at_u["d_table"], at_table)
    # Sums of some forty products each, whose sizes come to less than 40.
    assert (at_u["out"] * g).sum() == pytest.approx((u * at_table).sum(), abs=40 * SAME)
    np.testing.assert_array_equal(at_table[:prefix], g[:prefix])


# ---------------------------------------------------------------------- dtypes and jit


@both
@each_kernel
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_resize_position_table_is_rounded_once(dtype, options, twin):
    old, new = (7, 4), (3, 9)
    table = rows_of(old).astype(dtype)
    found, exact = (
        resized(twin, table.astype(inner), new, old_grid=old, **options)["out"]
        for inner in (dtype, "float64")
    )
    assert found.dtype == table.dtype
    # On each axis a weight, a product and up to 5 sums are rounded in float32, of 1.375 of the largest row at most.
    apart = 2 * 7 * 1.375**2 * U * np.abs(table.astype("float64")).max()
    low, high = ((exact + side * apart).astype(dtype) for side in (-1, 1))
    assert ((low <= found) & (found <= high)).all()


def test_resize_position_table_jitted_is_the_same():
    """What the other tests run is jitted: XLA may then round a product and a sum once."""
    table, cotangent = (rows_of(grid).astype("float32") for grid in ((3, 4), (5, 2)))
    # Of up to 20 products and sums on the way back, of numbers below 4.
    atol = 20 * 4 * U
    for options in (KERNELS[0], KERNELS[4], ALL_KERNELS[6]):
        eager, jitted = (
            resized(
                TWINS[0],
                table,
                (5, 2),
                cotangent,
                jit=jit,
                old_grid=(3, 4),
                **options,
            )
            for jit in (False, True)
        )
        for name, array in eager.items():
            assert jitted[name].dtype == np.float32
            np.testing.assert_allclose(jitted[name], array, rtol=0, atol=atol)


def test_resize_position_table_compiled_is_the_same():
    """The weights are constants of one graph, though NumPy made them."""
    table = torch.from_numpy(rows_of((3, 4)))

    def call(table: torch.Tensor, **options: Any) -> torch.Tensor:
        return posenc_torch.resize_position_table(
            table, (5, 2), old_grid=(3, 4), **options
        )

    torch.compiler.reset()
    for options in (KERNELS[0], KERNELS[4]):
        compiled = torch.compile(call, backend="eager", fullgraph=True)
        assert torch.equal(compiled(table, **options), call(table, **options))
