"""Exact angles: right to two float32 units at every int32 position, and the same bits of phase in both packages."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import torch

import posenc_jax
import posenc_torch
from posenc_jax import _exact as exact_jax
from posenc_torch import _exact as exact_torch

from .twins import TWINS

both = pytest.mark.parametrize("twin", TWINS, ids=str)

# Two float32 units: the sine of at most a quarter turn is off by at most 1.74 of them, over all angles that it is asked
# for; an error of the phase of 1.1 * 2 ** -30 turns makes 0.11.
TWO_UNITS = 2 * 2.0**-24

EXTREMES = [0, 1, -1, 255, 257, 131_071, 2**24 + 1, 2**31 - 1, -(2**31)]
POSITIONS = np.concatenate(
    (np.random.default_rng(0).integers(-(2**31), 2**31, 60), EXTREMES)
).astype(np.int32)

FREQUENCIES = {
    "float64": posenc_torch.RopeConfig(24, base=500_000.0).inv_freq(dtype=np.float64),
    "float32": posenc_torch.RopeConfig(24).inv_freq(),
    "odd": np.array([3.75, -0.5, 0.0, 123_456.789, 1e-40, 1e30, 1e300]),
}
each = pytest.mark.parametrize("inv_freq", FREQUENCIES.values(), ids=FREQUENCIES)


def tables(twin, positions, inv_freq, **options):
    return twin.call("rope_cos_sin", positions, inv_freq, angles="exact", **options)


@both
@each
def test_rope_cos_sin_exact_is_right_everywhere(twin, inv_freq):
    cos, sin = tables(twin, POSITIONS, inv_freq)
    assert cos.dtype == sin.dtype == np.float32
    with mpmath.workdps(340):
        right = np.array(cos_sin([mpmath.mpf(float(f)) for f in inv_freq]))
    assert np.abs(cos - right[..., 0]).max() <= TWO_UNITS
    assert np.abs(sin - right[..., 1]).max() <= TWO_UNITS


def cos_sin(frequencies):
    """Of every position and frequency, as nested lists of floats, in mpmath's precision of the moment."""
    return [
        [tuple(map(float, mpmath.cos_sin(int(p) * f))) for f in frequencies]
        for p in POSITIONS
    ]


@both
def test_rope_cos_sin_exact_is_right_at_many_positions(twin):
    """Against float64 of the wrapped 64-bit product, which is right to 2 ** -64 of a turn per token."""
    positions = np.random.default_rng(2).integers(-(2**31), 2**31, 2**16)
    inv_freq = FREQUENCIES["odd"]
    turns = np.array(exact_torch.turns(inv_freq))
    angle = (positions[:, None] * turns).astype(np.float64) * (2 * np.pi / 2**64)
    cos, sin = tables(twin, positions, inv_freq)
    assert np.abs(cos - np.cos(angle)).max() <= TWO_UNITS
    assert np.abs(sin - np.sin(angle)).max() <= TWO_UNITS
    assert max(np.abs(cos).max(), np.abs(sin).max()) <= 1


@both
def test_rope_cos_sin_exact_at_position_0_is_1_and_0(twin):
    cos, sin = tables(twin, 1, FREQUENCIES["odd"])
    assert (cos == 1).all()
    assert (sin == 0).all()
    assert not np.signbit(sin).any()


@each
def test_turns_are_right(inv_freq):
    with mpmath.workdps(340):
        wrapped = [mpmath.mpf(float(f)) / (2 * mpmath.pi) % 1 for f in inv_freq]
        right = [int(mpmath.nint(turn * 2**64)) % 2**64 for turn in wrapped]
    assert [int(turn) % 2**64 for turn in exact_torch.turns(inv_freq)] == right


@pytest.mark.parametrize("exact", [exact_torch, exact_jax])
@pytest.mark.parametrize(("base", "width"), [(10_000.0, 1000), (123.456, 7), (0.5, 64)])
@pytest.mark.parametrize("scale", [1.0, 1000.0, 2 * np.pi, 1e-3])
def test_geometric_turns_are_right(exact, base, width, scale):
    count = (width + 1) // 2
    with mpmath.workdps(80):
        powers = [mpmath.power(base, -mpmath.mpf(2 * i) / width) for i in range(count)]
        turns = [scale * power / (2 * mpmath.pi) for power in powers]
        right = [int(mpmath.nint(turn * 2**64)) for turn in turns]
    found = exact.geometric_turns(base, 2, width, count, scale)
    assert [int(turn) % 2**64 for turn in found] == [turn % 2**64 for turn in right]


@each
def test_phases_have_the_same_bits_in_both(inv_freq):
    # Only so that no warning comes of what float32 cannot hold.
    with jax.enable_x64(True):
        turns = exact_jax.turns(inv_freq)
    np.testing.assert_array_equal(turns, exact_torch.turns(inv_freq))
    ours = exact_jax.phase(jnp.asarray(POSITIONS)[:, None], turns)
    theirs = exact_torch.phase(torch.from_numpy(POSITIONS).long()[:, None], turns)
    np.testing.assert_array_equal(ours, theirs.numpy())


@each
def test_phases_are_right(inv_freq):
    turns = exact_torch.turns(inv_freq)
    found = exact_torch.phase(torch.from_numpy(POSITIONS).long()[:, None], turns)
    for position, row in zip(POSITIONS.tolist(), found.tolist(), strict=True):
        for turn, phase in zip(turns.tolist(), row, strict=True):
            off = (phase * 2**32 - position * turn + 2**63) % 2**64 - 2**63
            # Each constant is rounded to 46 bits and multiplied by up to 2 ** 16 or 2 ** 15; the carry is rounded down.
            assert abs(off) <= (2**-31 + 2**-32 + 2**-32) * 2**64


WIDTHS = {  # dim: spacings that it has
    1: ("dim", "next_even"),
    2: ("dim", "endpoint"),
    7: ("dim", "endpoint", "half", "next_even"),
    12: ("dim", "endpoint"),
}


@both
@pytest.mark.parametrize("layout", ["interleaved", "half", "half_cos_first"])
@pytest.mark.parametrize(
    ("dim", "spacing"), [(dim, s) for dim, spacings in WIDTHS.items() for s in spacings]
)
@pytest.mark.parametrize("base", [10_000.0, 123.456])
def test_sinusoidal_position_encoding_exact_is_right_everywhere(
    twin, layout, dim, spacing, base
):
    """Against the formula, whose powers float64 has wrong by 1e-6 radians at the last position."""
    options = {"layout": layout, "spacing": spacing, "base": base, "angles": "exact"}
    found = twin.call("sinusoidal_position_encoding", POSITIONS, dim, **options)
    assert found.dtype == np.float32
    with mpmath.workdps(40):
        right = encoding(dim, layout, spacing, base)
    assert found.shape == right.shape
    assert np.abs(found - right).max() <= TWO_UNITS


@both
@pytest.mark.parametrize("spacing", ["dim", "half", "endpoint", "next_even"])
@pytest.mark.parametrize("scale", [1000.0, 2 * np.pi, 0.3])
def test_sinusoidal_position_encoding_exact_is_right_of_scaled_axes(
    twin, spacing, scale
):
    """A factor that is no power of two, and two coordinates, each with its base: the same two units."""
    options = {"spacing": spacing, "angle_scale": scale, "base": (10_000.0, 123.456)}
    found = twin.call(
        "sinusoidal_position_encoding",
        np.stack((POSITIONS, POSITIONS[::-1]), -1),
        14,
        axes=(1, 0),
        layout="half",
        angles="exact",
        **options,
    )
    with mpmath.workdps(40):
        rows, columns = (
            encoding(7, "half", spacing, base, mpmath.mpf(scale))
            for base in options["base"]
        )
    right = np.concatenate((columns[::-1], rows), -1)
    assert np.abs(found - right).max() <= TWO_UNITS


def encoding(dim, layout, spacing, base, scale=1):
    half = dim // 2
    whole, sines = {
        "dim": (dim, dim - half),
        "next_even": (dim + dim % 2, dim - half),
        "half": (2 * half, half),
        "endpoint": (2 * max(half - 1, 1), half),
    }[spacing]
    exponents = [mpmath.mpf(2 * i) / whole for i in range(sines)]
    right = np.array(cos_sin([scale * mpmath.power(base, -e) for e in exponents]))
    cos, sin = right[:, :half, 0], right[..., 1]
    columns = {
        "half": [*sin.T, *cos.T],
        "half_cos_first": [*cos.T, *sin.T],
        "interleaved": [
            c for pair in zip(sin.T[:half], cos.T, strict=True) for c in pair
        ]
        + [*sin.T[half:]],
    }[layout]
    zeros = [np.zeros(len(POSITIONS))] * (dim - len(columns))
    return np.stack(columns + zeros, -1)


@both
def test_sinusoidal_position_encoding_exact_refuses_real_times(twin):
    sentence = "`positions` must be an int or an array of signed integers, got float32."
    with pytest.raises(TypeError, match=re.escape(sentence)):
        twin.call("sinusoidal_position_encoding", np.float32([0.5]), 4, angles="exact")


@both
def test_sinusoidal_position_encoding_exact_refuses_float64(twin):
    sentence = "`dtype` must be float32 for exact angles, got float64."
    with pytest.raises(ValueError, match=re.escape(sentence)):
        twin.call(
            "sinusoidal_position_encoding", 4, 4, angles="exact", dtype=twin.float64
        )


@both
def test_rope_scores_exact_depend_on_distance_only_at_any_offset(twin):
    """In float32, two billion tokens from the start; float32 angles are off by radians there."""
    rng = np.random.default_rng(1)
    query, key = rng.normal(size=(2, 1, 8, 3, 24)).astype(np.float32)

    def scores(offset):
        positions = np.arange(8) + offset
        q, k = (
            twin.call_heads(
                "apply_rope",
                x,
                *tables(twin, positions, FREQUENCIES["float64"]),
                count=1,
            )
            for x in (query, key)
        )
        return np.einsum("bqhd,bkhd->bhqk", q, k)

    # Products of 24 channels of order 1, each off by a few float32 units.
    near = scores(0)
    np.testing.assert_allclose(scores(2**31 - 8), near, atol=24 * 8 * TWO_UNITS)
    assert np.abs(near).max() > 1


def test_rope_cos_sin_exact_under_jit_compiles_once():
    count = 0

    @jax.jit
    def step(positions):
        nonlocal count
        count += 1
        inv_freq = FREQUENCIES["float64"]
        return posenc_jax.rope_cos_sin(positions, inv_freq, angles="exact")

    for offset in (0, 5, 2**31 - 4):
        positions = np.arange(4, dtype=np.int32) + np.int32(offset)
        eager = posenc_jax.rope_cos_sin(
            positions, FREQUENCIES["float64"], angles="exact"
        )
        for a, b in zip(step(positions), eager, strict=True):
            np.testing.assert_allclose(a, b, atol=TWO_UNITS)
    assert count == 1


@both
def test_rope_cos_sin_exact_scales_by_the_attention_factor(twin):
    plain, scaled = (
        tables(twin, POSITIONS, FREQUENCIES["float32"], attention_factor=factor)
        for factor in (1.0, 2.0)
    )
    for one, two in zip(plain, scaled, strict=True):
        np.testing.assert_array_equal(2 * one, two)


def test_rope_cos_sin_exact_refuses_a_traced_frequency():
    def trace(inv_freq):
        return posenc_jax.rope_cos_sin(4, inv_freq, angles="exact")

    with pytest.raises(TypeError, match="must be a constant for exact angles"):
        jax.jit(trace)(FREQUENCIES["float32"])


# Programs


def right(positions, inv_freq):
    """In float64, of positions whose angles are small enough for it."""
    angle = positions[..., None] * inv_freq
    return np.cos(angle), np.sin(angle)


def assert_right(found, positions, inv_freq):
    for a, b in zip(found, right(positions, inv_freq), strict=True):
        assert np.abs(np.asarray(a) - b).max() <= TWO_UNITS


def test_rope_cos_sin_exact_in_torch_compile_sees_every_frequency():
    """They are read from the host, which breaks the graph; as constants of it they would be those of the first call."""

    def step(positions, inv_freq):
        return posenc_torch.rope_cos_sin(positions, inv_freq, angles="exact")

    torch.compiler.reset()
    compiled = torch.compile(step, backend="eager")
    positions = np.arange(5)
    for inv_freq in (FREQUENCIES["float64"], FREQUENCIES["float64"] / 2):
        found = compiled(torch.from_numpy(positions), inv_freq)
        assert_right(found, positions, inv_freq)


def test_sinusoidal_position_encoding_exact_compiles_into_one_graph():
    def step(positions, dim):
        return posenc_torch.sinusoidal_position_encoding(
            positions, dim, layout="half_cos_first", angles="exact"
        )

    torch.compiler.reset()
    compiled = torch.compile(step, backend="eager", fullgraph=True)
    positions = np.arange(5)
    for dim in (6, 8, 10):
        inv_freq = 10_000.0 ** (-np.arange(0, dim, 2) / dim)
        found = compiled(torch.from_numpy(positions), dim).chunk(2, -1)
        assert_right(found, positions, inv_freq)


# torch maps an in-place product and sum of integers one by one, and says so.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("package", [posenc_torch, posenc_jax])
def test_rope_cos_sin_exact_vmap_over_positions_equals_the_batched_call(package):
    positions = np.stack([POSITIONS[:7], POSITIONS[-7:]])
    if package is posenc_torch:
        positions, vmap = torch.from_numpy(positions), torch.func.vmap
    else:
        positions, vmap = jnp.asarray(positions), jax.vmap

    def step(positions):
        return package.rope_cos_sin(positions, FREQUENCIES["float64"], angles="exact")

    for a, b in zip(vmap(step)(positions), step(positions), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=TWO_UNITS)


def test_rope_cos_sin_exact_has_the_gradient_of_the_attention_factor():
    """The tables are linear in it."""
    factor = torch.tensor(1.5, requires_grad=True)
    found = posenc_torch.rope_cos_sin(
        torch.from_numpy(POSITIONS),
        FREQUENCIES["float32"],
        attention_factor=factor,
        angles="exact",
    )
    for table in found:
        (gradient,) = torch.autograd.grad(table.sum(), factor, retain_graph=True)
        # A sum of as many elements in float32, each off by a unit at most.
        torch.testing.assert_close(
            1.5 * gradient, table.sum(), atol=table.numel() * TWO_UNITS, rtol=0
        )


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_exact_position_that_cannot_be_seen_gives_nan_beyond_int32():
    """As DESIGN's policy for what a program cannot look at: in both packages, and only there."""
    positions = np.array([1, 2**31 - 1, 2**31, 2**40, -(2**31) - 1])
    outside = np.abs(positions) > 2**31 - 1
    config = posenc_torch.RopeConfig(8)

    def in_torch(at):
        return config.cos_sin(at, angles="exact")[1]

    given = torch.from_numpy(positions)
    compiled = torch.compile(in_torch, backend="eager")(given)
    mapped = torch.func.vmap(in_torch)(given)
    with jax.enable_x64(True):
        traced = jax.jit(
            lambda at: posenc_jax.RopeConfig(8).cos_sin(at, angles="exact")[1]
        )(jnp.asarray(positions))
    for sin in (compiled.numpy(), mapped.numpy(), np.asarray(traced)):
        np.testing.assert_array_equal(np.isnan(sin), np.tile(outside[:, None], 4))
    with pytest.raises(ValueError, match="must fit int32"):
        in_torch(given)


@both
def test_config_cos_sin_exact_takes_its_frequencies_in_float64(twin):
    """Those of float32 are off by radians near 2 ** 31."""
    config = twin.package.RopeConfig(24, base=500_000.0)
    made = config.cos_sin(twin.array(POSITIONS), angles="exact")
    wide, narrow = (
        tables(twin, POSITIONS, config.inv_freq(dtype=name))
        for name in ("float64", "float32")
    )
    for table, right, wrong in zip(made, wide, narrow, strict=True):
        np.testing.assert_array_equal(np.asarray(table), right)
        assert np.abs(right - wrong).max() > 0.1
