"""xPos: the scale against mpmath and a peer's printed values; scores that depend on distance alone and fade with it."""

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
layouts = pytest.mark.parametrize("layout", ["half", "interleaved"])

UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}

HEAD_DIM, ROTARY_DIM, BASE = 12, 8, 512.0
RNG = np.random.default_rng(5)
QUERY, KEY = RNG.normal(size=(2, 2, 7, 3, HEAD_DIM))
FAR = 4_000
POSITIONS = RNG.integers(0, FAR, (2, 7))

# Float64. Scores add a dozen products of order 1 to 10, whose two factors exp(x), |x| up to 10, are off by 2 |x| units.
SCORES = 12 * 10 * 2 * 20 * UNIT["float64"]

# What the docstring says of float32, tokens from the center: 102 ln 2 / ln 3.5 = 56.4 bases, which leaves 24 bits for
# products with small numbers, and 126 ln 2 / ln 3.5 = 69.7 bases, where the normal numbers end.
REACH, END = 28_895, 35_694


def angles_to(farthest):
    """What the angles cost a score: two roundings of the farthest, on both sides, in sums of 12 products up to 10."""
    return 12 * 10 * 4 * farthest * UNIT["float64"]


def zetas(width):
    return (2 * np.arange(width // 2) + 0.4 * width) / (1.4 * width)


def rotated(twin, x, positions, *, layout="half", center=0, sign=1, **options):
    """Queries with sign 1, keys with sign -1, in float64."""
    config = twin.package.RopeConfig(HEAD_DIM, rotary_dim=ROTARY_DIM)
    double = {"dtype": twin.float64}
    inv_freq = config.inv_freq(dtype=np.float64)
    cos, sin = twin.call("rope_cos_sin", positions, inv_freq, **double)
    scale = twin.call(
        "xpos_scale", positions, ROTARY_DIM, center=center, **double, **options
    )
    scale = scale**sign
    tables = (cos * scale, sin * scale)
    return twin.call_heads("apply_rope", x, *tables, count=1, layout=layout)


def scores(twin, query_positions, key_positions, **options):
    query = rotated(twin, QUERY, query_positions, **options)
    key = rotated(twin, KEY, key_positions, sign=-1, **options)
    return np.einsum("bqhd,bkhd->bhqk", query, key)


@both
@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize(
    ("width", "base", "center"), [(2, 512.0, 0), (8, 300.0, 7), (64, 512.0, -40)]
)
def test_xpos_scale_is_the_paper_s_power(twin, dtype, width, base, center):
    """The exponent is rounded twice, which exp passes on as that many units of itself; exp itself is off by 2.

    On the host, six roundings of zeta in float64 move its logarithm, and so the exponent, by m - center times as much.
    """
    reach = int(69.6 * base)
    positions = np.unique(
        np.r_[-300:300, np.linspace(-reach, reach, 301).astype(int)] + center
    )
    options = {"dtype": twin.float64} if dtype == "float64" else {}
    made = twin.call(
        "xpos_scale", positions, width, scale_base=base, center=center, **options
    )
    assert made.dtype == dtype
    with mpmath.workdps(40):
        logs = [
            mpmath.log(
                (2 * i + mpmath.mpf(4) / 10 * width) / (mpmath.mpf(14) / 10 * width)
            )
            for i in range(width // 2)
        ]
        powers = [
            [log * (int(m) - center) / mpmath.mpf(base) for log in logs]
            for m in positions
        ]
        off = np.array(
            [
                [
                    float(mpmath.mpf(float(a)) / mpmath.exp(x) - 1)
                    for a, x in zip(*rows, strict=True)
                ]
                for rows in zip(made, powers, strict=True)
            ]
        )
    host = 6 * np.abs(positions - center)[:, None] / base * UNIT["float64"]
    limit = (2 * np.abs(np.array(powers, float)) + 2) * UNIT[dtype] + host
    assert (np.abs(off) <= limit).all()


# What rotary-embedding-torch 0.9.1 printed for the last of four tokens:
# RotaryEmbedding(8, use_xpos=True).rotate_queries_and_keys(ones, ones), pair by pair, and its scale.
PEER_QUERY = [
    (-1.1283482313156128, -0.8467980027198792),
    (0.6588282585144043, 1.24898362159729),
    (0.9687182307243347, 1.0286574363708496),
    (0.996612548828125, 1.002610206604004),
]
PEER_KEY = [
    (-1.1338834762573242, -0.8509520292282104),
    (0.6608057618141174, 1.252732515335083),
    (0.970391571521759, 1.0304343700408936),
    (0.9973786473274231, 1.0033808946609497),
]
PEER_SCALE = [
    0.997556209564209,
    0.9985025525093079,
    0.9991374015808105,
    0.9996158480644226,
]


@both
def test_xpos_scale_gives_a_peer_s_queries_and_keys(twin):
    """It centers at half the length, 2."""
    made = twin.call("xpos_scale", 4, 8, center=2)
    cos, sin = twin.call("rope_cos_sin", 4, twin.package.RopeConfig(8).inv_freq())
    ones = np.ones((4, 1, 8), np.float32)
    # Of numbers up to 1.3 on each side: the power or its inverse, a cosine and a sine, two products each, a sum.
    limit = {"rtol": 0, "atol": 1.3 * 2 * 6 * UNIT["float32"]}
    np.testing.assert_allclose(made[3], PEER_SCALE, **limit)
    for scale, right in ((made, PEER_QUERY), (1 / made, PEER_KEY)):
        tables = cos * scale, sin * scale
        turned = twin.call_heads(
            "apply_rope", ones, *tables, count=1, layout="interleaved"
        )
        np.testing.assert_allclose(turned[3, 0], np.ravel(right), **limit)


@both
@pytest.mark.parametrize(
    ("length", "powers", "center"),
    [
        # flash-attention, x-transformers, rotary-embedding-torch: arange(L) - L // 2
        (7, np.arange(-3, 4), 7 // 2),
        # torchscale: arange(-L // 2, L + (-L // 2)), where Python rounds down
        (7, np.arange(-4, 3), -(-7 // 2)),
        (8, np.arange(-4, 4), 8 // 2),
    ],
)
def test_xpos_scale_expresses_the_centers_of_others(twin, length, powers, center):
    made = twin.call(
        "xpos_scale", length, ROTARY_DIM, center=center, dtype=twin.float64
    )
    theirs = zetas(ROTARY_DIM) ** (powers[:, None] / BASE)
    # A power here, a logarithm and an exponential there, of exponents below 1.
    np.testing.assert_allclose(made, theirs, rtol=6 * UNIT["float64"])


def pairs(x, layout):
    """Pairs as complex numbers."""
    x, n = x[..., :ROTARY_DIM], ROTARY_DIM // 2
    if layout == "half":
        return x[..., :n] + 1j * x[..., n:]
    return x[..., ::2] + 1j * x[..., 1::2]


@both
@layouts
def test_xpos_scores_are_rotation_and_fading_by_the_distance(twin, layout):
    """The real part of q conj(k), turned by (m - n) f and multiplied by zeta ** ((m - n) / 512)."""
    distance = (POSITIONS[:, :, None] - POSITIONS[:, None, :])[..., None]
    inv_freq = 10_000.0 ** (-np.arange(0, ROTARY_DIM, 2) / ROTARY_DIM)
    factor = zetas(ROTARY_DIM) ** (distance / BASE) * np.exp(1j * distance * inv_freq)
    query, key = pairs(QUERY, layout), pairs(KEY, layout).conj()
    right = np.einsum("bqhi,bkhi,bqki->bhqk", query, key, factor).real
    right += np.einsum("bqhd,bkhd->bhqk", *(x[..., ROTARY_DIM:] for x in (QUERY, KEY)))
    made = scores(twin, POSITIONS, POSITIONS, layout=layout)
    # Where a key comes after its query, its factor is above 1.
    largest = np.maximum(1, np.abs(factor).max(-1))[:, None]
    assert (np.abs(made - right) <= largest * (SCORES + angles_to(FAR))).all()


@both
@layouts
def test_xpos_scores_do_not_depend_on_where_or_on_the_center(twin, layout):
    positions = np.sort(POSITIONS % 500, -1)
    here = scores(twin, positions, positions, layout=layout)
    for shift, center in ((0, 250), (1_000_000, 1_000_250), (1_000_000, 999_000)):
        there = scores(
            twin, positions + shift, positions + shift, layout=layout, center=center
        )
        np.testing.assert_allclose(
            there, here, rtol=0, atol=SCORES + angles_to(1_001_000)
        )
    assert np.abs(here).max() > 1


@both
def test_xpos_scores_of_cached_keys_need_their_center(twin):
    """Keys rotated earlier keep their center; a query that takes another is off by zeta ** (shift / 512)."""
    query_positions, key_positions = np.arange(7, 14), np.arange(7)
    right = scores(twin, query_positions, key_positions, center=3)
    cached = rotated(twin, KEY, key_positions, sign=-1, center=3)
    for center, same in ((3, True), (7, False)):
        query = rotated(twin, QUERY, query_positions, center=center)
        found = np.einsum("bqhd,bkhd->bhqk", query, cached)
        assert (np.abs(found - right).max() <= SCORES) == same


@both
def test_xpos_scores_fade_with_distance(twin):
    """Without the rotation, a vector's product with itself falls strictly as its key goes back, and rises ahead."""
    distances = np.arange(0, 20_000, 250)
    scale = twin.call("xpos_scale", distances, HEAD_DIM, dtype=twin.float64)
    query = np.repeat(QUERY[:1, :1], len(distances), 1)
    none = np.zeros_like(scale)
    turned = twin.call_heads("apply_rope", query, scale, none, count=1)
    products = np.einsum("bqhd,bqhd->bhq", turned, query)
    assert (np.diff(products, axis=-1) < 0).all()
    # The slowest pair, zeta 0.88, is at 0.88 ** (19750 / 512) = 0.0076 there.
    assert (products[..., -1] < 0.008 * products[..., 0]).all()
    ahead = twin.call("xpos_scale", -distances, HEAD_DIM, dtype=twin.float64)
    # The exponents are the same but for their sign; each power and the product are rounded.
    np.testing.assert_allclose(ahead * scale, 1, rtol=6 * UNIT["float64"])


def test_xpos_gradients_are_finite_to_the_end_and_the_same_in_both():
    """Float32, tokens at the documented reach on both sides of the center, a random causal cotangent."""
    center = 40_000
    positions = np.array(
        [center - REACH, center - 9, center, center + 800, center + REACH]
    )
    rng = np.random.default_rng(9)
    query, key = rng.normal(size=(2, 5, 2, ROTARY_DIM)).astype(np.float32)
    cotangent = np.tril(rng.normal(size=(2, 5, 5))).astype(np.float32)

    def in_jax(query, key):
        inv_freq = posenc_jax.RopeConfig(ROTARY_DIM).inv_freq()
        cos, sin = posenc_jax.rope_cos_sin(
            jnp.asarray(positions), inv_freq, angles="exact"
        )
        scale = posenc_jax.xpos_scale(jnp.asarray(positions), ROTARY_DIM, center=center)
        query = posenc_jax.apply_rope(query, cos * scale, sin * scale)
        key = posenc_jax.apply_rope(key, cos / scale, sin / scale)
        return (jnp.einsum("qhd,khd->hqk", query, key) * cotangent).sum()

    def in_torch(query, key):
        inv_freq = posenc_torch.RopeConfig(ROTARY_DIM).inv_freq()
        at = torch.from_numpy(positions)
        cos, sin = posenc_torch.rope_cos_sin(at, inv_freq, angles="exact")
        scale = posenc_torch.xpos_scale(at, ROTARY_DIM, center=center)
        query = posenc_torch.apply_rope(query, cos * scale, sin * scale)
        key = posenc_torch.apply_rope(key, cos / scale, sin / scale)
        products = torch.einsum("hqd,hkd->hqk", query, key)
        return (products * torch.from_numpy(cotangent)).sum()

    in_jax_order = jax.jit(jax.grad(in_jax, (0, 1)))(query, key)
    leaves = [
        torch.from_numpy(x).transpose(0, 1).requires_grad_() for x in (query, key)
    ]
    in_torch_order = torch.autograd.grad(in_torch(*leaves), leaves)
    for a, b in zip(in_jax_order, in_torch_order, strict=True):
        ours, theirs = np.asarray(a), b.transpose(0, 1).numpy()
        assert np.isfinite(ours).all()
        assert np.isfinite(theirs).all()
        assert np.abs(ours).max() > 1
        # Sums of ten products of order 10. The exponents have the same bits, so a product is off by some eight
        # roundings on each side: two powers, their products with cosines and vectors.
        np.testing.assert_allclose(
            ours, theirs, rtol=0, atol=100 * 16 * UNIT["float32"]
        )


@both
def test_xpos_scale_reaches_as_far_as_documented_and_not_much_farther(twin):
    tiny = np.finfo(np.float32).tiny
    for reach, spare in ((REACH, 2.0**24), (END, 1.0)):
        scale = twin.call("xpos_scale", np.array([-reach, reach]), ROTARY_DIM)
        for factor in (scale, 1 / scale):
            assert np.isfinite(factor).all()
            assert factor.min() >= tiny * spare
    # ln(2 ** 128) / ln 3.5 = 70.8 bases
    after, before = twin.call("xpos_scale", np.array([36_300, -36_300]), ROTARY_DIM)
    assert after[0] < tiny
    assert np.isinf(before[0])


@both
def test_xpos_scale_takes_the_distance_in_integers(twin):
    """In float32, 2 ** 24 + 1 is 2 ** 24."""
    far = twin.call("xpos_scale", np.array([2**24 + 1]), ROTARY_DIM, center=2**24)
    near = twin.call("xpos_scale", np.array([1]), ROTARY_DIM)
    np.testing.assert_array_equal(far, near)
    assert (near < 1).all()


@both
def test_xpos_scale_takes_a_center_as_int_or_array(twin):
    by_int = twin.call("xpos_scale", 9, ROTARY_DIM, center=4)
    by_array = twin.call(
        "xpos_scale", 9, ROTARY_DIM, center=twin.array(np.array([4], np.int32))[0]
    )
    np.testing.assert_array_equal(by_int, by_array)
    np.testing.assert_array_equal(by_int[4], np.ones(ROTARY_DIM // 2))


@both
def test_xpos_scale_takes_any_shape(twin):
    positions = np.arange(24).reshape(2, 3, 4)
    flat = twin.call("xpos_scale", 24, ROTARY_DIM)
    made = twin.call("xpos_scale", positions, ROTARY_DIM)
    np.testing.assert_array_equal(made, flat.reshape(2, 3, 4, -1))


def test_xpos_scale_under_jit_compiles_once_for_every_center():
    count = 0

    @jax.jit
    def step(positions, center):
        nonlocal count
        count += 1
        return posenc_jax.xpos_scale(positions, ROTARY_DIM, center=center)

    for offset, center in ((0, 0), (5, 8), (9_000, 9_001)):
        positions = jnp.arange(4) + offset
        eager = posenc_jax.xpos_scale(positions, ROTARY_DIM, center=center)
        # The same exponent; XLA may compute exp in another way within a program.
        made = step(positions, jnp.asarray(center))
        np.testing.assert_allclose(made, eager, rtol=4 * UNIT["float32"])
    assert count == 1


@both
@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"rotary_dim": 7}, ValueError, "`rotary_dim` must be even, got 7."),
        ({"rotary_dim": 0}, ValueError, "`rotary_dim` must be at least 2, got 0."),
        (
            {"scale_base": -1.0},
            ValueError,
            "`scale_base` must be positive and finite, got -1.0.",
        ),
        (
            {"center": 0.5},
            TypeError,
            "`center` must be an int or an array of signed integers, got float.",
        ),
        (
            {"center": np.arange(2)},
            ValueError,
            r"`center` must be a scalar, got shape \(2,\).",
        ),
        (
            {"positions": np.arange(2.0)},
            TypeError,
            "`positions` must be an int or an array of signed integers, got float64.",
        ),
        ({"dtype": "bfloat16"}, TypeError, "`dtype` must be float32 or float64, got"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_xpos_scale_refuses(twin, changes, error, sentence):
    given = {"positions": 4, "rotary_dim": ROTARY_DIM} | changes
    with pytest.raises(error, match=f"^{sentence}"):
        twin.call("xpos_scale", **given)
