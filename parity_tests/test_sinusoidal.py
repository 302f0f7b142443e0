"""Sinusoidal encoding: parity of tables, of the gradient in time, and of attention; its algebra."""

from __future__ import annotations

import numpy as np
import pytest

from .twins import TWINS

PARITY = ("sinusoidal.", "path.sinusoidal")

both = pytest.mark.parametrize("twin", TWINS, ids=str)

# Float64, angles below 200 radians: 200 * 2 * 1.1e-16.
ROUNDING = 1e-13


def test_sinusoidal_parity(parity_case):
    parity_case.run().check()


def encoded(twin, positions, dim, **options):
    return twin.call(
        "sinusoidal_position_encoding", positions, dim, dtype=twin.float64, **options
    )


@both
def test_sinusoidal_position_encoding_shift_is_a_rotation(twin):
    """PE[t + k] is a fixed rotation of PE[t], for every t: what the paper hopes attention will use."""
    dim, shift = 8, 5
    now, later = (encoded(twin, np.arange(100) + k, dim) for k in (0, shift))
    angle = shift * 10_000.0 ** (-np.arange(0, dim, 2) / dim)
    sin, cos = now[:, 0::2], now[:, 1::2]
    turned = sin * np.cos(angle) + cos * np.sin(angle)
    np.testing.assert_allclose(later[:, 0::2], turned, atol=ROUNDING)


@both
@pytest.mark.parametrize("spacing", ["dim", "endpoint"])
@pytest.mark.parametrize("dim", [7, 8], ids=str)
def test_sinusoidal_position_encoding_layouts_are_permutations(twin, spacing, dim):
    options = {"spacing": spacing}
    inter = encoded(twin, 9, dim, layout="interleaved", **options)
    half = encoded(twin, 9, dim, layout="half", **options)
    flipped = encoded(twin, 9, dim, layout="half_cos_first", **options)
    np.testing.assert_array_equal(np.sort(inter), np.sort(half))
    np.testing.assert_array_equal(np.sort(flipped), np.sort(half))
    assert (inter != half).any()
    assert (flipped != half).any()


@both
def test_sinusoidal_position_encoding_int_is_a_range(twin):
    np.testing.assert_array_equal(
        encoded(twin, 6, 8), encoded(twin, np.arange(6, dtype=np.int32), 8)
    )


@both
def test_sinusoidal_position_encoding_takes_any_shape(twin):
    positions = np.arange(24).reshape(2, 3, 4)
    flat = encoded(twin, positions.ravel(), 6)
    np.testing.assert_array_equal(encoded(twin, positions, 6), flat.reshape(2, 3, 4, 6))


@both
def test_add_position_encoding_rounds_once(twin):
    """In bfloat16's stead float32 over float64: the sum is that of the wider type, rounded at the end."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(2, 3, 4)).astype(np.float32)
    encoding = rng.normal(size=(3, 4))
    total = twin.call("add_position_encoding", x, encoding)
    np.testing.assert_array_equal(total, (x + encoding).astype(np.float32))
