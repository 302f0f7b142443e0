"""x-transformers, whose code is another's, against ours: where it is one function with ours, and where it is worse."""

from __future__ import annotations

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen

import posenc_jax

from .instrument import PASSING, Report, compare

with warnings.catch_warnings():
    # It is scripted as it is imported, which PyTorch would rather have compiled.
    warnings.simplefilter("ignore", DeprecationWarning)
    from x_transformers.x_transformers import (
        AlibiPositionalBias,
        RotaryEmbedding,
        ScaledSinusoidalEmbedding,
        apply_rotary_pos_emb,
    )

HEADS, HEAD_DIM, ROTARY_DIM, DIM = 3, 16, 12, 14
HALF = ("float32", "bfloat16", "float16")


class Rotated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary = RotaryEmbedding(ROTARY_DIM)

    def forward(self, x, positions):
        return apply_rotary_pos_emb(x, *self.rotary(positions))


class Biased(torch.nn.Module):
    def __init__(self, heads: int, biased: int):
        super().__init__()
        self.alibi = AlibiPositionalBias(biased, total_heads=heads)

    def forward(self, scores, queries, keys):
        return scores + self.alibi.forward_custom_pos(queries, keys)


class Sinusoidal(linen.Module):
    @linen.compact
    def __call__(self, x, pos):
        scale = self.param("scale", lambda key: jnp.ones(1) * DIM**-0.5)
        return posenc_jax.sinusoidal_position_encoding(
            pos, DIM, layout="half", amplitude=scale[0]
        )


def rotated(x, positions, inv_freq):
    """Heads before tokens, as theirs."""
    tables = posenc_jax.rope_cos_sin(positions, inv_freq)
    out = posenc_jax.apply_rope(x.swapaxes(-2, -3), *tables, layout="interleaved")
    return out.swapaxes(-2, -3)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape)


def numbers(first: int, last: int) -> np.ndarray:
    return np.arange(first, last, dtype=np.int32)


def rope_report(positions: np.ndarray, dtypes=("float32",)) -> Report:
    """Of their frequencies, which are saved with a model."""
    original = Rotated()
    inv_freq = original.rotary.inv_freq.numpy()
    x = normal(2, HEADS, positions.size, HEAD_DIM)
    inputs = {"x": x, "positions": positions}
    return compare(
        lambda x, positions: rotated(x, positions, inv_freq),
        original,
        inputs,
        dtypes=dtypes,
    )


def sinusoidal_report(positions: np.ndarray, dtypes=("float32",)) -> Report:
    """Of our frequencies."""
    original = ScaledSinusoidalEmbedding(DIM)
    own = posenc_jax.RopeConfig(DIM).inv_freq()
    original.inv_freq.copy_(torch.from_numpy(own))
    inputs = {"x": normal(2, positions.size, DIM), "pos": positions}
    return compare(Sinusoidal(), original, inputs, dtypes=dtypes)


@pytest.mark.parametrize("kind", [RotaryEmbedding, ScaledSinusoidalEmbedding])
def test_frequencies_are_ours_but_for_rounding(kind):
    """Theirs are rounded in the exponent, the power and the division, ours once."""
    theirs, ours = kind(DIM).inv_freq.numpy(), posenc_jax.RopeConfig(DIM).inv_freq()
    # The exponent's rounding, 2 ** -24 of at most 1, counts by the logarithm of the base, 9.2.
    np.testing.assert_allclose(theirs, ours, rtol=(9.2 + 3) * 2**-24)


@pytest.mark.parametrize("positions", [numbers(0, 100), numbers(131_040, 131_072)])
def test_rotary_embedding_is_ours(positions):
    report = rope_report(positions)
    report.check()
    assert {row.name for row in report.rows} >= {"out float64", "d_x float32"}


def test_scaled_sinusoid_is_ours():
    """Its learnt scale is our amplitude."""
    tokens = 100
    rows = {row.name: row for row in sinusoidal_report(numbers(0, tokens)).rows}
    scale = rows.pop("d_scale float32"), rows.pop("d_scale float64")
    assert {row.verdict for row in rows.values()} <= {*PASSING}
    # One number: what rounding costs it is a matter of luck, and no more than a unit of each of its terms, all below 4.
    assert max(row.apart for row in scale) < 2 * tokens * DIM * 4 * 2**-24


def bias_report(heads: int, biased: int, dtypes=("float32",)) -> Report:
    """Queries are the last of the keys, and look ahead too."""
    slopes = posenc_jax.alibi_slopes(heads, num_biased=biased)
    inputs = {
        "scores": normal(heads, 11, 40),
        "queries": numbers(29, 40),
        "keys": numbers(0, 40),
    }
    return compare(
        lambda scores, queries, keys: (
            scores + posenc_jax.alibi_bias(queries, keys, slopes)
        ),
        Biased(heads, biased),
        inputs,
        dtypes=dtypes,
    )


@pytest.mark.parametrize(("heads", "biased"), [(8, 8), (7, 6), (14, 12)])
def test_alibi_is_ours(heads, biased):
    bias_report(heads, biased).check()


@pytest.mark.parametrize("positions", [numbers(1000, 1040), numbers(4056, 4096)])
@pytest.mark.parametrize("kind", ["rope", "sinusoidal"])
def test_angles_in_bfloat16_are_worse(kind, positions):
    """A module of theirs that is cast has its frequencies and positions in that dtype, where there is no 4095."""
    report_of = {"rope": rope_report, "sinusoidal": sinusoidal_report}[kind]
    rows = {row.name: row for row in report_of(positions, HALF).rows}
    assert rows["out float32"].verdict in PASSING
    assert rows["out bfloat16"].verdict == "B_WORSE"
    assert rows["out bfloat16"].error_b > 100 * rows["out bfloat16"].error_a
    if positions[-1] > 2048:  # float16 has every number up to there.
        assert rows["out float16"].verdict == "B_WORSE"


def test_bias_in_bfloat16_is_less_exact_than_ours():
    """Slopes are rounded too, where they are no powers of two; the verdict allows it."""
    report = bias_report(14, 12, ("float32", "bfloat16"))
    report.check()
    rows = {row.name: row for row in report.rows}
    assert rows["out bfloat16"].error_b > rows["out bfloat16"].error_a
