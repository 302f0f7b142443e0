"""ALiBi: parity of biases, slopes, gradients and attention; the authors' slopes for every head count; the kinds."""

from __future__ import annotations

import numpy as np
import pytest

from .instrument import oracles
from .twins import TWINS

PARITY = ("alibi.", "path.alibi")

both = pytest.mark.parametrize("twin", TWINS, ids=str)

# Float64 scores of order 1 under biases of order 10.
ROUNDING = 1e-13


def test_alibi_parity(parity_case):
    parity_case.run().check()


@both
@pytest.mark.parametrize("num_heads", range(1, 257))
def test_alibi_slopes_follow_the_authors(twin, num_heads):
    slopes = twin.call("alibi_slopes", num_heads)
    expected = oracles.alibi_slopes(num_heads)
    assert slopes.dtype == np.float32
    assert slopes.shape == (num_heads,)
    # Powers of two are exact, and the others one rounding of a float64 power.
    np.testing.assert_array_equal(slopes, expected.astype(np.float32))


@both
def test_alibi_bias_of_the_paper(twin):
    """Figure 3 of the paper, with the distances it draws; and flash-attention's symmetric matrix."""
    half = np.array([0.5])
    signed = twin.call("alibi_bias", 3, 3, half, kind="signed")
    np.testing.assert_array_equal(
        np.tril(signed[0]), [[0, 0, 0], [-0.5, 0, 0], [-1, -0.5, 0]]
    )
    symmetric = twin.call("alibi_bias", 3, 3, half)
    np.testing.assert_array_equal(
        symmetric[0], [[0, -0.5, -1], [-0.5, 0, -0.5], [-1, -0.5, 0]]
    )
    key = twin.call("alibi_bias", 3, 3, half, kind="key")
    np.testing.assert_array_equal(key[0], [[0, 0.5, 1]] * 3)


@both
@pytest.mark.parametrize("kind", ["signed", "key"])
def test_alibi_kinds_give_the_same_causal_attention(twin, kind):
    rng = np.random.default_rng(6)
    q, k, v = rng.normal(size=(3, 2, 9, 6, 4))
    slopes = oracles.alibi_slopes(6)

    def attend(kind, is_causal):
        return twin.call_heads(
            "dot_product_attention",
            q,
            k,
            v,
            count=3,
            is_causal=is_causal,
            alibi_slopes=slopes,
            alibi_kind=kind,
        )

    causal = attend("symmetric", True)
    np.testing.assert_allclose(attend(kind, True), causal, atol=ROUNDING)
    # Without the mask they reward the future instead.
    assert np.abs(attend(kind, False) - attend("symmetric", False)).max() > 0.1


@both
@pytest.mark.parametrize("kind", ["symmetric", "signed", "key"])
def test_alibi_bias_of_a_step_is_the_row_of_the_whole(twin, kind):
    slopes = oracles.alibi_slopes(6)
    whole = twin.call("alibi_bias", 9, 9, slopes, kind=kind)
    step = twin.call("alibi_bias", np.array([8]), 9, slopes, kind=kind)
    np.testing.assert_array_equal(step, whole[:, 8:])


@both
def test_alibi_bias_is_exact_at_large_positions(twin):
    """Distances are integers: at two billion float32 positions would be 128 apart."""
    positions = 2**31 - 1 - np.arange(4)[::-1]
    bias = twin.call("alibi_bias", positions, positions, np.array([1.0]))
    near = twin.call("alibi_bias", 4, 4, np.array([1.0]))
    np.testing.assert_array_equal(bias, near)
