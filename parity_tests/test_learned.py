"""Learned encoding: parity of rows, gradients and attention; the policies; padding; several axes; the first table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.nn.functional import embedding

from .instrument.in_jax import run_jax
from .instrument.in_torch import run_torch
from .twins import TWINS, Twin

PARITY = ("learned", "path.learned")

both = pytest.mark.parametrize("twin", TWINS, ids=str)
each_way = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])

TABLE = np.random.default_rng(4).normal(size=(5, 3))
# Float64: a gradient is a sum of a few cotangents of size 1, in any order.
SAME = 1e-14


def cotangent(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).normal(size=shape)


def run(
    twin: Twin,
    call: Callable[..., Any],
    tables: dict[str, np.ndarray],
    received: np.ndarray,
    *,
    compiled: bool = False,
) -> dict[str, np.ndarray]:
    """What `call` of the package and the tables gives, as "out", and each table's gradient, as "d_" and its name."""

    def function(**arrays: Any) -> dict[str, Any]:
        return {"out": call(twin.package, **arrays)}

    cotangents, wrt = {"out": received}, tuple(tables)
    if twin.name == "jax":
        return run_jax(function, tables, cotangents, wrt, jit=compiled)
    if compiled:
        torch.compiler.reset()
        function = torch.compile(function, backend="eager", fullgraph=True)
    return run_torch(function, tables, cotangents, wrt)


def run_embedding(positions: np.ndarray, **options: Any) -> dict[str, np.ndarray]:
    """torch's own lookup in `TABLE`, likewise."""

    def function(table: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": embedding(torch.from_numpy(positions), table, **options)}

    received = {"out": cotangent(*positions.shape, 3)}
    return run_torch(function, {"table": TABLE}, received, ("table",))


def run_lookup(
    twin: Twin, positions: np.ndarray, *, compiled: bool = False, **options: Any
) -> dict[str, np.ndarray]:
    """The package's lookup in `TABLE`, likewise."""
    tokens = twin.array(positions)

    def call(package: Any, table: Any) -> Any:
        return package.learned_position_encoding(table, tokens, **options)

    received = cotangent(*positions.shape, 3)
    return run(twin, call, {"table": TABLE}, received, compiled=compiled)


def test_learned_parity(parity_case):
    parity_case.run().check()


@both
@pytest.mark.parametrize("position", [5, -1, 131_071, -(2**31)], ids=str)
def test_learned_position_encoding_out_of_range(twin, position):
    positions = np.array([0, position, 4], np.int32)
    with pytest.raises(ValueError, match=r"`positions` must be in 0\.\.4"):
        twin.call("learned_position_encoding", TABLE, positions)
    missing, clipped = (
        twin.call("learned_position_encoding", TABLE, positions, out_of_range=policy)
        for policy in ("nan", "clip")
    )
    np.testing.assert_array_equal(missing[[0, 2]], TABLE[[0, 4]])
    assert np.isnan(missing[1]).all()
    edge = 0 if position < 0 else 4
    np.testing.assert_array_equal(clipped, TABLE[[0, edge, 4]])


@both
def test_learned_position_encoding_one_row_table(twin):
    """Flax's own Embed gives the only row of a one-row table for any index."""
    positions = np.array([0, 1], np.int32)
    rows = twin.call(
        "learned_position_encoding", TABLE[:1], positions, out_of_range="nan"
    )
    np.testing.assert_array_equal(np.isnan(rows).all(-1), [False, True])


# ----------------------------------------------------------------------------- padding

# Rows that are read twice and thrice, the padding's among them.
TOKENS = np.array([[2, 1, 1, 4], [0, 2, 1, 2]], np.int32)


@both
@each_way
@pytest.mark.parametrize("padding_idx", [None, 0, 1, 4], ids=str)
def test_learned_position_encoding_padding_idx_is_torchs(padding_idx, compiled, twin):
    """The row is read as it is, here not zero, and has no gradient; the others have the one they had."""
    expected = run_embedding(TOKENS, padding_idx=padding_idx)
    found = run_lookup(twin, TOKENS, padding_idx=padding_idx, compiled=compiled)
    np.testing.assert_array_equal(found["out"], TABLE[TOKENS])
    np.testing.assert_array_equal(found["out"], expected["out"])
    np.testing.assert_allclose(found["d_table"], expected["d_table"], rtol=0, atol=SAME)
    trained = np.abs(found["d_table"]).min(-1) > 0
    np.testing.assert_array_equal(
        trained, [row in TOKENS and row != padding_idx for row in range(5)]
    )
    free = run_lookup(twin, TOKENS, compiled=compiled)["d_table"]
    np.testing.assert_array_equal(found["d_table"][trained], free[trained])


@both
@pytest.mark.parametrize("out_of_range", ["nan", "clip", "zero"])
def test_learned_position_encoding_padding_row_has_no_gradient_from_outside(
    out_of_range, twin
):
    """A clipped position reads the padding's row too."""
    positions = np.array([-1, 0, 2, 5], np.int32)
    options = {"padding_idx": 0, "out_of_range": out_of_range}
    gradient = run_lookup(twin, positions, **options)["d_table"]
    assert not gradient[0].any()
    np.testing.assert_array_equal(gradient[2], cotangent(4, 3)[2])
    last = cotangent(4, 3)[3] if out_of_range == "clip" else np.zeros(3)
    np.testing.assert_array_equal(gradient[4], last)


@both
def test_padding_idx_is_not_for_a_table_without_padding(twin):
    """huggingface/transformers#10200 (D8): a row that is a real position's must train."""
    positions = np.arange(5, dtype=np.int32)
    trains, frozen = (
        run_lookup(twin, positions, padding_idx=padding_idx)["d_table"].any(-1)
        for padding_idx in (None, 2)
    )
    assert trains.all()
    np.testing.assert_array_equal(frozen, [True, True, False, True, True])


@both
def test_positions_after_padding_need_a_longer_table(twin):
    """huggingface/transformers#15292 (D7): L tokens, none of them padding, need L + padding_idx + 1 rows."""
    ids, padding_idx = np.array([[5, 6, 7, 8], [9, 1, 1, 1]]), 1
    positions = twin.call(
        "positions_from_mask",
        ids != padding_idx,
        start=padding_idx + 1,
        padding=padding_idx,
    )
    np.testing.assert_array_equal(positions, [[2, 3, 4, 5], [2, 1, 1, 1]])
    long_enough = np.random.default_rng(6).normal(size=(6, 3))
    rows = twin.call("learned_position_encoding", long_enough, positions)
    np.testing.assert_array_equal(rows, long_enough[positions])
    with pytest.raises(ValueError, match=r"`positions` must be in 0\.\.4.* got 1 to 5"):
        twin.call("learned_position_encoding", long_enough[:5], positions)


# ------------------------------------------------------------------------ out of range


@both
@each_way
def test_learned_position_encoding_zero_is_a_product_with_one_hot_rows(compiled, twin):
    """Values and gradients: nothing is read or trained by a position outside the table."""
    positions = np.array([[0, 5, -1, 4], [3, -(2**31), 2**31 - 1, 0]], np.int32)
    one_hot = (positions[..., None] == np.arange(5)).astype(np.float64)
    found = run_lookup(twin, positions, out_of_range="zero", compiled=compiled)
    np.testing.assert_array_equal(found["out"], one_hot @ TABLE)
    received = cotangent(2, 4, 3).reshape(-1, 3)
    expected = one_hot.reshape(-1, 5).T @ received
    np.testing.assert_allclose(found["d_table"], expected, rtol=0, atol=SAME)


# ------------------------------------------------------------------------ several axes

HEIGHT, WIDTH = 3, 4
# Rows and columns of a grid, in no order and some of them twice.
POINTS = np.array([[[2, 3], [0, 0], [2, 1]], [[1, 3], [2, 3], [0, 2]]], np.int32)


@both
@each_way
@pytest.mark.parametrize("combine", ["concat", "sum"])
def test_axial_position_encoding_is_a_lookup_in_the_table_of_the_grid(
    combine, compiled, twin
):
    """Values and gradients, of the table that has a row for each point of the grid."""
    rng, widths = np.random.default_rng(7), (2, 5) if combine == "concat" else (3, 3)
    rows, columns = (
        rng.normal(size=(size, width))
        for size, width in zip((HEIGHT, WIDTH), widths, strict=True)
    )
    across, down = np.repeat(rows, WIDTH, 0), np.tile(columns, (HEIGHT, 1))
    grid = np.concatenate((across, down), -1) if combine == "concat" else across + down
    received = cotangent(*POINTS.shape[:2], grid.shape[-1])
    points, places = twin.array(POINTS), twin.array(POINTS @ np.array([WIDTH, 1]))

    def axial(package: Any, rows: Any, columns: Any) -> Any:
        return package.axial_position_encoding((rows, columns), points, combine=combine)

    def whole(package: Any, grid: Any) -> Any:
        return package.learned_position_encoding(grid, places)

    tables = {"rows": rows, "columns": columns}
    found = run(twin, axial, tables, received, compiled=compiled)
    expected = run(twin, whole, {"grid": grid}, received, compiled=compiled)
    np.testing.assert_array_equal(found["out"], expected["out"])
    of_grid = expected["d_grid"].reshape(HEIGHT, WIDTH, -1)
    np.testing.assert_allclose(
        found["d_rows"], of_grid[..., : widths[0]].sum(1), rtol=0, atol=SAME
    )
    np.testing.assert_allclose(
        found["d_columns"], of_grid[..., -widths[1] :].sum(0), rtol=0, atol=SAME
    )


# --------------------------------------------------------------------- the first table


def made(twin: Twin, *sizes: int, seed: int = 1, **options: Any) -> np.ndarray:
    if twin.name == "jax":
        return twin.call("init_position_table", jax.random.key(seed), *sizes, **options)
    generator = torch.Generator().manual_seed(seed)
    return twin.call("init_position_table", *sizes, generator=generator, **options)


@both
@pytest.mark.parametrize("preset", ["paper", "whisper", "musicgen", "fairseq"])
@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
def test_init_position_table_sinusoidal_is_the_encoding(double, preset, twin):
    options = {"preset": preset, **({"dtype": twin.float64} if double else {})}
    table = made(twin, 6, 8, init="sinusoidal", **options)
    expected = twin.call("sinusoidal_position_encoding", 6, 8, **options)
    assert table.dtype == (np.float64 if double else np.float32)
    np.testing.assert_array_equal(table, expected)
    assert table[1].any() != (preset == "fairseq")


# 40 000 draws: a mean is within 6 s / 200 and s itself within 4 %, but for once in 10^8 runs.
DRAWS, MEAN, SPREAD = (400, 100), 6 / 200, 0.04
# Mean and standard deviation; that of N(0, 1) drawn again beyond 2 is the root of 1 - 4 phi(2) / (2 Phi(2) - 1).
MOMENTS = {
    "normal": ({}, 0.0, 0.02),
    "normal_of_fairseq": ({"stddev": 100**-0.5}, 0.0, 0.1),
    "truncated_normal": ({"init": "truncated_normal"}, 0.0, 0.02 * 0.87962566),
    "uniform": ({"init": "uniform"}, 0.5, 12**-0.5),
}


@both
@pytest.mark.parametrize(("options", "mean", "stddev"), MOMENTS.values(), ids=MOMENTS)
def test_init_position_table_has_its_moments(options, mean, stddev, twin):
    table = made(twin, *DRAWS, **options)
    assert table.dtype == np.float32
    assert abs(table.mean() - mean) < stddev * MEAN
    assert table.std() == pytest.approx(stddev, rel=SPREAD)


# Where draws end. Of 40 000 some are in the last hundredth, but for once in e^80 runs.
ENDS = {
    "truncated_normal": (-0.04, 0.04),
    "uniform": (0.0, 1.0),
}


@both
@pytest.mark.parametrize("init", ENDS)
def test_init_position_table_has_its_ends(init, twin):
    low, high = ENDS[init]
    table, near = made(twin, *DRAWS, init=init), (high - low) / 100
    assert low <= table.min() < low + near
    assert high - near < table.max() <= np.float32(high)


@both
def test_init_position_table_patchtst_is_patchtsts(twin):
    from transformers import PatchTSTConfig
    from transformers.models.patchtst import modeling_patchtst

    config = PatchTSTConfig(d_model=6, positional_encoding_type="sincos")
    module = modeling_patchtst.PatchTSTPositionalEncoding
    expected = module._init_pe(config, 8).numpy()
    table = made(twin, 8, 6, init="patchtst")
    # A sine, of an angle up to 7 whose frequency is off by 8 units, less a mean, over 7: three units, and as many of
    # the quotient of numbers below 1/4.
    np.testing.assert_allclose(table, expected, rtol=0, atol=6 * 2.0**-24)
    assert table.mean() == pytest.approx(0, abs=1e-7)
    assert table.std(ddof=1) == pytest.approx(0.1, rel=1e-6)


@both
@pytest.mark.parametrize("init", ["normal", "truncated_normal", "uniform", "patchtst"])
def test_init_position_table_padding_row_is_zero(init, twin):
    free, padded = (
        made(twin, 5, 4, init=init, padding_idx=padding_idx)
        for padding_idx in (None, 3)
    )
    assert free[3].any()
    expected = np.where(np.arange(5)[:, None] == 3, 0, free)
    np.testing.assert_array_equal(padded, expected)


@both
@pytest.mark.parametrize("init", ["normal", "truncated_normal", "uniform"])
def test_init_position_table_follows_its_source_of_randomness(init, twin):
    same, again, other = (made(twin, 3, 4, init=init, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(same, again)
    assert not (same == other).any()


@pytest.mark.parametrize("init", ["normal", "truncated_normal", "uniform"])
def test_init_position_table_takes_torchs_own_source_if_none_is_given(init):
    twin = TWINS[1]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        table = twin.call("init_position_table", 3, 4, init=init)
    np.testing.assert_array_equal(table, made(twin, 3, 4, init=init, seed=1))
