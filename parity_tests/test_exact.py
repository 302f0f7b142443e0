"""Exact angles: right to two float32 units at every int32 position, and the same bits of phase in both packages."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import torch

import posenc_jax
import posenc_torch

from .twins import TWINS

both = pytest.mark.parametrize("twin", TWINS, ids=str)

# Two float32 units: of the rest of at most pi / 4, rounded twice, and of its cosine or sine.
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
        angles = [
            [mpmath.mpf(int(p)) * mpmath.mpf(float(f)) for f in inv_freq]
            for p in POSITIONS
        ]
        right = np.array([[mpmath.cos_sin(angle) for angle in row] for row in angles])
    right = right.astype(np.float64)
    assert np.abs(cos - right[..., 0]).max() <= TWO_UNITS
    assert np.abs(sin - right[..., 1]).max() <= TWO_UNITS


@each
def test_phases_have_the_same_bits_in_both(inv_freq):
    from posenc_jax import _exact as in_jax
    from posenc_torch import _exact as in_torch

    turns = in_jax.turns(inv_freq)
    np.testing.assert_array_equal(turns, in_torch.turns(inv_freq))
    ours = np.asarray(in_jax.phase(jnp.asarray(POSITIONS), turns)).astype(np.int64)
    theirs = in_torch.phase(torch.from_numpy(POSITIONS).long(), turns).numpy()
    np.testing.assert_array_equal(ours, theirs)


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
        positions = np.arange(4, dtype=np.int32) + np.int32(offset - 0)
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
