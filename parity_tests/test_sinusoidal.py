"""Sinusoidal encoding: parity of tables, of the gradient in time, and of attention; its algebra."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import posenc_jax
import posenc_torch

from .twins import TWINS
from .variants import U
from .variants_sinusoidal import VARIANTS

PARITY = ("sinusoidal", "path.sinusoidal")

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
@pytest.mark.parametrize("spacing", ["dim", "endpoint", "half", "next_even"])
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


# Presets ---------------------------------------------------------------------------------------------------------

NAMES = posenc_torch._presets.NAMES
each_preset = pytest.mark.parametrize("name", NAMES)


def somewhere(name: str) -> np.ndarray | int:
    """Positions that a preset takes, on no square grid."""
    axes = posenc_torch.sinusoidal_preset(name)["axes"]
    if axes is None:
        return np.arange(5)
    return np.stack(np.meshgrid([0, 3, 7], [1, 2], *[[4, 6]] * (len(axes) - 2)), -1)


def of_preset(twin, name, **options):
    return encoded(twin, somewhere(name), 24, preset=name, **options)


@both
@each_preset
def test_preset_is_its_arguments(twin, name):
    arguments = twin.package.sinusoidal_preset(name)
    np.testing.assert_array_equal(
        of_preset(twin, name), encoded(twin, somewhere(name), 24, **arguments)
    )


@each_preset
def test_preset_is_the_same_in_both(name):
    found = [of_preset(twin, name) for twin in TWINS]
    np.testing.assert_allclose(*found, rtol=0, atol=ROUNDING)
    kept = {"angles": "exact"}
    single = [
        twin.call(
            "sinusoidal_position_encoding", somewhere(name), 24, preset=name, **kept
        )
        for twin in TWINS
    ]
    # Exact angles are within two units, of a factor of at most one.
    for one in single:
        np.testing.assert_allclose(one, found[0], rtol=0, atol=2 * U)


def test_preset_of_a_model_is_named_by_its_model_type():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    def spelling(name):
        return name.replace("-", "").replace("_", "")

    models = {spelling(name): name for name in CONFIG_MAPPING_NAMES}
    found = [name for name in NAMES if spelling(name) in models]
    assert len(found) > 30
    assert found == [models[spelling(name)] for name in found]


def test_every_preset_is_tested_against_its_source():
    """By name, or by a name that means the same table."""
    tested = {name for name in NAMES if any(f'"{name}"' in v.call for v in VARIANTS)}
    arguments = [posenc_torch.sinusoidal_preset(name) for name in tested]
    untested = [n for n in NAMES if posenc_torch.sinusoidal_preset(n) not in arguments]
    assert untested == []


@both
@pytest.mark.parametrize(
    "options",
    [
        {"base": 77.0},
        {"layout": "half"},
        {"spacing": "dim"},
        {"angle_scale": 2.0},
        {"amplitude": 3.0},
        {"padding_idx": 0},
    ],
    ids=lambda options: next(iter(options)),
)
def test_option_beats_the_preset(twin, options):
    """And the other arguments stay the preset's."""
    base = twin.package.sinusoidal_preset("musicgen")
    (name,) = options
    assert base[name] != options[name]
    found = encoded(twin, 9, 7, preset="musicgen", **options)
    np.testing.assert_array_equal(found, encoded(twin, 9, 7, **{**base, **options}))
    assert (found != encoded(twin, 9, 7, preset="musicgen")).any()


# Options ---------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("dim", [7, 8], ids=str)
def test_spacings_are_the_formulas(twin, dim):
    """Read off position 1, whose first columns are the sines of the frequencies."""
    half = dim // 2
    wholes = {
        "dim": (dim, dim - half),
        "next_even": (dim + dim % 2, dim - half),
        "half": (2 * half, half),
        "endpoint": (2 * (half - 1), half),
    }
    for spacing, (whole, sines) in wholes.items():
        (row,) = encoded(twin, np.array([1]), dim, layout="half", spacing=spacing)
        frequencies = 10_000.0 ** (-2 * np.arange(sines) / whole)
        np.testing.assert_allclose(row[:sines], np.sin(frequencies), atol=ROUNDING)
        cosines = row[sines : sines + half]
        np.testing.assert_allclose(cosines, np.cos(frequencies[:half]), atol=ROUNDING)
        np.testing.assert_array_equal(row[sines + half :], np.zeros(dim - sines - half))


@both
@pytest.mark.parametrize("layout", ["interleaved", "half", "half_cos_first"])
def test_axes_are_blocks_in_their_order(twin, layout):
    """Each block is the encoding of one coordinate, with its own base; a grid that is no square tells which."""
    grid = np.stack(np.meshgrid(np.arange(3), np.arange(5), indexing="ij"), -1)
    found = encoded(twin, grid, 14, axes=(1, 0), base=(50.0, 900.0), layout=layout)
    blocks = [
        encoded(twin, grid[..., axis], 7, base=base, layout=layout)
        for axis, base in ((1, 900.0), (0, 50.0))
    ]
    np.testing.assert_array_equal(found, np.concatenate(blocks, -1))


@both
def test_half_across_axes_has_all_sines_first(twin):
    grid = np.stack(np.meshgrid(np.arange(3), np.arange(5), indexing="ij"), -1)
    found = encoded(twin, grid, 12, axes=(0, 1), layout="half_across_axes")
    y, x = (encoded(twin, grid[..., axis], 6, layout="half") for axis in (0, 1))
    order = (y[..., :3], x[..., :3], y[..., 3:], x[..., 3:])
    np.testing.assert_array_equal(found, np.concatenate(order, -1))


@both
def test_angle_scale_multiplies_the_times(twin):
    times = np.array([0.25, 1.5, 40.0])
    np.testing.assert_allclose(
        encoded(twin, times, 8, angle_scale=1000.0),
        encoded(twin, 1000 * times, 8),
        # Angles to 40000, rounded twice.
        atol=40_000 * 2 * 2.0**-53,
    )


@both
@pytest.mark.parametrize("dim", [7, 8], ids=str)
def test_amplitude_multiplies_the_encoding(twin, dim):
    plain = encoded(twin, 5, dim)
    for amplitude, factor in ((0.75, 0.75), ("rsqrt_dim", dim**-0.5)):
        found = encoded(twin, 5, dim, amplitude=amplitude)
        np.testing.assert_allclose(found, plain * factor, rtol=2.0**-52, atol=0)


@both
@pytest.mark.parametrize(
    "given", [9, np.array([[3, 1, 4], [1, 0, 3]])], ids=["n", "array"]
)
def test_padding_idx_is_zero_and_nothing_else_is(twin, given):
    found = encoded(twin, given, 6, padding_idx=3)
    where = np.arange(given) if isinstance(given, int) else given
    assert (found[where == 3] == 0).all()
    plain = encoded(twin, given, 6)
    np.testing.assert_array_equal(found[where != 3], plain[where != 3])


PADDED, PAD = np.array([[3, 1, 4], [1, 0, 3]]), 3
TRACED = {
    "jit": jax.jit,
    "vmap in JAX": jax.vmap,
    "compile": lambda encode: torch.compile(encode, backend="eager", fullgraph=True),
    "vmap in torch": torch.func.vmap,
}


@pytest.mark.parametrize("how", TRACED)
@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_padding_idx_is_zero_of_positions_that_cannot_be_seen(how, kind):
    """Tokens and times, in a program; half a token away there is an encoding."""
    in_jax = how in ("jit", "vmap in JAX")
    package, array = (
        (posenc_jax, jnp.asarray) if in_jax else (posenc_torch, torch.from_numpy)
    )
    where = PADDED if kind is np.int32 else np.where(PADDED == 4, PAD + 0.5, PADDED)

    def encode(positions):
        return package.sinusoidal_position_encoding(positions, 6, padding_idx=PAD)

    torch.compiler.reset()
    given = array(where.astype(kind))
    found = np.asarray(TRACED[how](encode)(given))
    assert (found[where == PAD] == 0).all()
    assert (found[where != PAD] != 0).any(-1).all()
    # XLA may take another sine inside a fusion, a unit away.
    np.testing.assert_allclose(found, np.asarray(encode(given)), rtol=0, atol=U)


@pytest.mark.parametrize("twin", TWINS, ids=str)
def test_amplitude_that_is_learnt_has_its_gradient(twin):
    """The encoding is linear in it: its gradient is that of a factor, sum(cotangent * encoding) / amplitude."""
    cotangent = np.random.default_rng(4).normal(size=(5, 7))
    options = {"preset": "x_transformers", "dtype": twin.float64}

    def encode(amplitude):
        encoding = twin.package.sinusoidal_position_encoding(
            5, 7, amplitude=amplitude, **options
        )
        return encoding, (encoding * twin.array(cotangent)).sum()

    with jax.enable_x64(True):
        if twin.package is posenc_torch:
            amplitude = torch.tensor(0.75, dtype=torch.float64, requires_grad=True)
            encoding, total = encode(amplitude)
            (gradient,) = torch.autograd.grad(total, amplitude)
            encoding = encoding.detach()
        else:
            encoding, _ = encode(jnp.asarray(0.75))
            gradient = jax.grad(lambda a: encode(a)[1])(jnp.asarray(0.75))
        encoding, gradient = np.asarray(encoding), np.asarray(gradient)
    plain = encoded(twin, 5, 7, preset="x_transformers", amplitude=1.0)
    np.testing.assert_allclose(encoding, 0.75 * plain, rtol=2.0**-52, atol=0)
    expected = (cotangent * encoding).sum() / 0.75
    # A sum of 35 terms of order 1 in float64.
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=ROUNDING)


# One name for each table.
DIFFERENT = {posenc_torch._presets.PRESETS[name]: name for name in NAMES}.values()


@pytest.mark.parametrize("name", DIFFERENT)
def test_jit_equals_eager(name):
    positions = jnp.asarray(somewhere(name))

    def encode(positions):
        return posenc_jax.sinusoidal_position_encoding(positions, 24, preset=name)

    # XLA may take another sine inside a fusion, a unit away.
    np.testing.assert_allclose(
        jax.jit(encode)(positions), encode(positions), rtol=0, atol=U
    )


# Fourier features ------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("layout", ["half", "half_cos_first", "interleaved"])
def test_fourier_position_encoding_is_its_formula(twin, layout):
    rng = np.random.default_rng(3)
    positions, frequencies = rng.uniform(-1, 1, (2, 3, 2)), rng.normal(size=(2, 5))
    angle = 2 * np.pi * positions @ frequencies
    sin, cos = np.sin(angle), np.cos(angle)
    expected = {
        "half": np.concatenate((sin, cos), -1),
        "half_cos_first": np.concatenate((cos, sin), -1),
        "interleaved": np.stack((sin, cos), -1).reshape(2, 3, 10),
    }[layout]
    found = twin.call(
        "fourier_position_encoding", positions, frequencies, layout=layout
    )
    np.testing.assert_allclose(found, expected, atol=ROUNDING)
