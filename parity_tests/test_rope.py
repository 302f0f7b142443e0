"""RoPE: parity of tables, rotation, gradients and attention; the algebra of rotations; weight permutation."""

from __future__ import annotations

import numpy as np
import pytest

from .instrument.inputs import FAR
from .twins import TWINS

PARITY = ("rope.", "rope_apply.", "rope_scaled.", "rope_axes.", "path.rope")

both = pytest.mark.parametrize("twin", TWINS, ids=str)
layouts = pytest.mark.parametrize("layout", ["half", "interleaved"])
all_layouts = pytest.mark.parametrize(
    "layout", ["half", "interleaved", "interleaved_to_half"]
)
placements = pytest.mark.parametrize("placement", ["leading", "trailing"])

# Float64 throughout. An angle of up to 131071 radians is off by two roundings of 1.1e-16 of itself.
ANGLE = 4 * FAR * 2.0**-53
# Scores and rotated channels are sums of numbers of order 1 to 10 that each carry that error.
SCORES = 50 * ANGLE
# A product of rotated channels sums a dozen terms of order 1 to 10.
ROUNDING = 1e-13

HEAD_DIM, ROTARY_DIM = 12, 8
RNG = np.random.default_rng(11)
X, Y = RNG.normal(size=(2, 3, 7, 5, HEAD_DIM))
POSITIONS = RNG.integers(0, FAR, (3, 7))


def test_rope_parity(parity_case):
    parity_case.run().check()


def tables(twin, positions, **config):
    spec = twin.package.RopeConfig(HEAD_DIM, **{"rotary_dim": ROTARY_DIM, **config})
    inv_freq = spec.inv_freq(dtype=np.float64)
    return twin.call("rope_cos_sin", positions, inv_freq, dtype=twin.float64)


def rotated(twin, x, positions, *, layout="half", placement="leading", **options):
    cos, sin = tables(twin, positions, layout=layout, placement=placement)
    static = {"layout": layout, "placement": placement, **options}
    return twin.call_heads("apply_rope", x, cos, sin, count=1, **static)


def scores(query, key):
    return np.einsum("bqhd,bkhd->bhqk", query, key)


@both
@all_layouts
@placements
def test_apply_rope_scores_depend_on_distance_only(twin, layout, placement):
    static = {"layout": layout, "placement": placement}
    here, there = (
        scores(*(rotated(twin, x, POSITIONS + shift, **static) for x in (X, Y)))
        for shift in (0, 1_000)
    )
    np.testing.assert_allclose(here, there, atol=SCORES)
    unrotated = scores(X, Y)
    assert np.abs(here - unrotated).max() > 1


@both
@all_layouts
def test_apply_rope_keeps_the_norm_of_every_pair(twin, layout):
    turned = rotated(twin, X, POSITIONS, layout=layout)
    np.testing.assert_allclose(
        np.linalg.norm(turned, axis=-1), np.linalg.norm(X, axis=-1), atol=ROUNDING
    )


@both
@layouts
@placements
def test_apply_rope_composes(twin, layout, placement):
    static = {"layout": layout, "placement": placement}
    twice = rotated(twin, rotated(twin, X, POSITIONS, **static), POSITIONS, **static)
    once = rotated(twin, X, 2 * POSITIONS, **static)
    np.testing.assert_allclose(twice, once, atol=SCORES)


@both
@all_layouts
@placements
def test_apply_rope_inverse_undoes_it(twin, layout, placement):
    static = {"layout": layout, "placement": placement}
    turned = rotated(twin, X, POSITIONS, **static)
    back = rotated(twin, turned, POSITIONS, inverse=True, **static)
    np.testing.assert_allclose(back, X, atol=ROUNDING)


@both
@all_layouts
@placements
def test_apply_rope_passes_the_rest_bit_for_bit(twin, layout, placement):
    x = X.astype(np.float32)
    x[0, 0, 0, -1] = x[0, 0, 0, 0] = -0.0
    turned = rotated(twin, x, POSITIONS, layout=layout, placement=placement)
    rest = slice(ROTARY_DIM, None) if placement == "leading" else slice(0, 4)
    assert turned[..., rest].tobytes() == x[..., rest].tobytes()


@both
def test_apply_rope_does_nothing_at_position_zero(twin):
    zero = np.zeros((3, 7), np.int32)
    np.testing.assert_array_equal(rotated(twin, X, zero), X)


@both
@placements
@pytest.mark.parametrize("inverse", [False, True], ids=["forward", "inverse"])
def test_interleaved_to_half_is_interleaved_in_another_order(twin, placement, inverse):
    """Bit for bit: the pairs are the same, and only where they are left (or, inverse, found) is not."""
    start = 0 if placement == "leading" else HEAD_DIM - ROTARY_DIM
    order = np.arange(HEAD_DIM)
    turned = order[start : start + ROTARY_DIM]
    order[start : start + ROTARY_DIM] = np.concatenate((turned[::2], turned[1::2]))
    static = {"placement": placement, "inverse": inverse}
    given = X[..., order] if inverse else X
    found = rotated(twin, given, POSITIONS, layout="interleaved_to_half", **static)
    expected = rotated(twin, X, POSITIONS, layout="interleaved", **static)
    np.testing.assert_array_equal(found, expected if inverse else expected[..., order])
    assert (found != expected).any() != inverse


@both
def test_apply_rotary_pos_emb_rotates_both(twin):
    cos, sin = tables(twin, POSITIONS, rotary_dim=None)
    key = Y[:, :, :2]
    pair = twin.call_heads("apply_rotary_pos_emb", X, key, cos, sin, count=2)
    for given, result in zip((X, key), pair, strict=True):
        alone = twin.call_heads("apply_rope", given, cos, sin, count=1)
        np.testing.assert_array_equal(result, alone)


@both
@layouts
def test_rotate_half_is_a_quarter_turn(twin, layout):
    n = HEAD_DIM // 2
    right_angle = np.zeros((7, n)), np.ones((7, n))
    turned = twin.call_heads("apply_rope", X, *right_angle, count=1, layout=layout)
    np.testing.assert_array_equal(twin.call("rotate_half", X, layout=layout), turned)


@both
@pytest.mark.parametrize("base", [100.0, 10_000.0, 500_000.0, 1e6, 1e7], ids=str)
@pytest.mark.parametrize("dim", [2, 64, 128, 256], ids=str)
def test_inv_freq_is_rounded_once(twin, base, dim):
    """Half a unit in the last place of the closed form, in float64 arithmetic good to far better than float32's."""
    inv_freq = twin.package.RopeConfig(dim, base=base).inv_freq()
    expected = np.exp(-np.log(np.longdouble(base)) * np.arange(0, dim, 2) / dim)
    assert inv_freq.dtype == np.float32
    np.testing.assert_array_equal(inv_freq, expected.astype(np.float32))


def test_inv_freq_has_the_same_bits_in_both():
    first, second = (
        twin.package.RopeConfig(128, base=500_000.0).inv_freq() for twin in TWINS
    )
    assert first.tobytes() == second.tobytes()


@both
@placements
@pytest.mark.parametrize("rotary_dim", [ROTARY_DIM, HEAD_DIM], ids=str)
@pytest.mark.parametrize("to", ["half", "interleaved"])
def test_permute_rope_weights_gives_the_same_attention(twin, placement, rotary_dim, to):
    """Layout `to` on permuted projections equals the other layout on the old ones, grouped heads and biases too."""
    (origin,) = {"half", "interleaved"} - {to}
    features = RNG.normal(size=(3, 7, 6))
    static = {"rotary_dim": rotary_dim, "placement": placement}

    def projected(heads, weight, bias, layout):
        cos, sin = tables(twin, POSITIONS, layout=layout, **static)
        x = (features @ weight + bias).reshape(3, 7, heads, HEAD_DIM)
        return twin.call_heads(
            "apply_rope", x, cos, sin, count=1, layout=layout, placement=placement
        )

    def permuted(weight, heads):
        weight = weight if twin.heads_last else weight.T
        moved = twin.call("permute_rope_weights", weight, heads, to=to, **static)
        return moved if twin.heads_last else moved.T

    before, after = [], []
    for heads in (4, 2):
        weight = RNG.normal(size=(6, heads * HEAD_DIM))
        bias = RNG.normal(size=heads * HEAD_DIM)
        before.append(projected(heads, weight, bias, origin))
        new = permuted(weight, heads), permuted(bias, heads)
        after.append(projected(heads, *new, to))
    for group in (slice(0, 2), slice(2, 4)):
        expected = scores(before[0][:, :, group], before[1])
        np.testing.assert_allclose(
            scores(after[0][:, :, group], after[1]), expected, atol=10 * ANGLE
        )
    assert np.abs(before[0] - after[0]).max() > 0.1


@both
@placements
def test_permute_rope_weights_is_undone_by_the_other_way(twin, placement):
    weight = RNG.normal(size=4 * HEAD_DIM)
    static = {"rotary_dim": ROTARY_DIM, "placement": placement}
    there = twin.call("permute_rope_weights", weight, 4, to="half", **static)
    back = twin.call("permute_rope_weights", there, 4, to="interleaved", **static)
    np.testing.assert_array_equal(back, weight)
    assert (there != weight).any()
