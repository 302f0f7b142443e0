"""The modules of torch, Flax NNX and Flax Linen are the same four modules, and Flax's own attention takes encodings."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import posenc_jax
import posenc_jax.linen
import posenc_jax.nnx
import posenc_torch
import posenc_torch.modules
from posenc_jax._presets import LINE_NAMES

pytestmark = pytest.mark.usefixtures("compiled_quickly")

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

# Units (eps of the result's dtype) of the largest number: a sine from two libraries (1 unit each), the product with a
# factor, and the one sum that a module makes, each rounded once.
UNITS = 4
# The same through Flax's attention: four sums of at most 24 products in another order, and angles of up to 14 radians.
ATTENTION_UNITS = 16

BATCH, SEQ, DIM, MAX_LEN = 2, 5, 7, 11
HEADS, QUERIES, KEYS = 3, 4, 6


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


TABLE = normal(MAX_LEN, DIM, seed=1)

# ---------------------------------------------------------------------- frameworks


DTYPES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Framework:
    """How the tests, which speak NumPy, make and call modules."""

    name: str
    classes: ModuleType
    arrays: ModuleType

    def __str__(self) -> str:
        return self.name

    @property
    def package(self) -> ModuleType:
        return posenc_torch if self.arrays is torch else posenc_jax

    def array(self, value: Any) -> Any:
        """Arrays and dtypes (by name) of this framework."""
        if isinstance(value, np.ndarray):
            tensors = self.arrays is torch
            return torch.from_numpy(value.copy()) if tensors else jnp.asarray(value)
        return getattr(self.arrays, value) if value in DTYPES else value

    def make(self, name: str, *args: Any, **options: Any) -> Call:
        """A module as a function of NumPy arrays; a learned table holds the numbers of `TABLE`."""
        dtype = options.get("dtype", "float32")
        options = {key: self.array(value) for key, value in options.items()}
        learned = name == "LearnedPositionalEncoding"
        if learned and self.name == "nnx":
            options["rngs"] = flax.nnx.Rngs(0)
        module = getattr(self.classes, name)(*args, **options)
        if learned:
            table = self.array(TABLE.astype(np.dtype(dtype)))
        if self.name == "linen":
            variables = {"params": {"table": table}} if learned else {}
            return Call(self, module, partial(module.apply, variables))
        if learned and self.name == "nnx":
            module.table[...] = table
        if learned and self.name == "torch":
            module.table.data = table
        return Call(self, module, module)


@dataclass(frozen=True)
class Call:
    """A module that takes and gives NumPy arrays."""

    framework: Framework
    module: Any
    function: Callable

    def __call__(self, *args: Any, **given: Any) -> Any:
        array = self.framework.array
        out = self.function(
            *map(array, args), **{k: array(v) for k, v in given.items()}
        )
        return tuple(map(to_numpy, out)) if isinstance(out, tuple) else to_numpy(out)


def to_numpy(x: Any) -> np.ndarray:
    return x.detach().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)


TORCH = Framework("torch", posenc_torch.modules, torch)
NNX = Framework("nnx", posenc_jax.nnx, jnp)
LINEN = Framework("linen", posenc_jax.linen, jnp)
FRAMEWORKS = (TORCH, NNX, LINEN)
FLAX = (NNX, LINEN)

each_framework = pytest.mark.parametrize("framework", FRAMEWORKS, ids=str)
each_flax = pytest.mark.parametrize("framework", FLAX, ids=str)


def integers(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


def assert_close(got: np.ndarray, want: np.ndarray, *, units: int = UNITS) -> None:
    assert got.shape == want.shape
    assert np.isfinite(want).all()
    bound = units * np.finfo(got.dtype).eps * np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=bound)


def heads_last(x: np.ndarray) -> np.ndarray:
    """torch's [..., heads, seq, head_dim] as JAX's [..., seq, heads, head_dim]."""
    return np.swapaxes(x, -3, -2)


def angles(positions: np.ndarray, dim: int) -> np.ndarray:
    """What float32 frequencies and one float32 product give, as float64."""
    inv_freq = np.float64(10_000) ** -(np.arange(0, dim, 2) / dim)
    product = positions[..., None].astype(np.float32) * inv_freq.astype(np.float32)
    return product.astype(np.float64)


# ---------------------------------------------------------------------- one surface

# What one framework has and the others do not, with the reason.
OWN_ARGUMENTS = {
    "generator": "torch draws from a generator",
    "rngs": "nnx draws from streams",
    "parent": "every linen module has it",
    "name": "every linen module has it",
}
RENAMED = {"table_init": "init"}  # a linen module has a method `init`
CLASSES = {
    "SinusoidalPositionalEncoding": (MAX_LEN, DIM),
    "LearnedPositionalEncoding": (MAX_LEN, DIM),
    "RotaryPositionEmbedding": (8,),
    "AlibiPositionEmbedding": (HEADS,),
}
# Options of functions that the modules have too.
SINUSOIDAL_OPTIONS = {
    "whisper": {"preset": "whisper"},
    "fairseq": {"preset": "fairseq"},
    "x_transformers": {"preset": "x_transformers"},
    "flux": {"preset": "flux"},
    "preset_but_for_one": {"preset": "ddpm", "layout": "half_cos_first"},
    "amplitude": {"amplitude": 0.5},
    "rsqrt_dim": {"amplitude": "rsqrt_dim"},
    "angle_scale": {"angle_scale": 2.5, "base": 300.0},
    "padding": {"padding_idx": 4},
    "padding_past": {"padding_idx": MAX_LEN + 1},  # a position beyond the stored table
    "padding_0": {"padding_idx": 0, "spacing": "half"},
}
SLOPES_OF = {
    "bias_max": {"bias_max": 4.0},
    "uniform": {"rule": "uniform"},
    "num_biased": {"num_biased": 2},
    "none_biased": {"num_biased": 0},
    "all": {"rule": "uniform", "bias_max": 3.0, "num_biased": 1},
}


def arguments(function: Callable) -> list[tuple[str, ...]]:
    """Name, kind and default of every argument that all three have."""
    return [
        (RENAMED.get(p.name, p.name), p.kind.name, default_name(p.default))
        for p in inspect.signature(function).parameters.values()
        if p.name not in OWN_ARGUMENTS
    ]


def default_name(value: Any) -> str:
    """A default as text, a dtype by its name."""
    is_dtype = value is jnp.float32
    return "float32" if is_dtype else str(value).removeprefix("torch.")


def constructor_of(framework: Framework, name: str) -> Callable:
    return getattr(framework.classes, name).__init__


def call_of(framework: Framework, name: str) -> Callable:
    made = getattr(framework.classes, name)
    return made.forward if framework is TORCH else made.__call__


@pytest.mark.parametrize("name", CLASSES)
@each_flax
def test_constructor_arguments_agree(framework, name):
    ours, torchs = (constructor_of(f, name) for f in (framework, TORCH))
    assert arguments(ours) == arguments(torchs)


@pytest.mark.parametrize("name", CLASSES)
@each_flax
def test_call_arguments_agree(framework, name):
    ours, torchs = (call_of(f, name) for f in (framework, TORCH))
    assert arguments(ours) == arguments(torchs)


def documented(text: str) -> list[str]:
    """Names in the Args section, in order."""
    section = re.search(r"Args:\n((?: {4}.*\n)+)", inspect.cleandoc(text) + "\n")[1]
    entries = re.findall(r"^ {4}([a-z_, ]+):", section, re.M)
    return [name for entry in entries for name in entry.split(", ")]


def taken(function: Callable) -> list[str]:
    names = list(inspect.signature(function).parameters)
    return [name for name in names if name not in ("self", "parent", "name")]


@pytest.mark.parametrize("name", CLASSES)
@each_framework
def test_docstrings_name_every_argument_in_order(framework, name):
    text = getattr(framework.classes, name).__doc__
    assert documented(text) == taken(constructor_of(framework, name))
    call = call_of(framework, name)
    assert documented(call.__doc__) == taken(call)


@pytest.mark.parametrize("name", CLASSES)
@each_flax
def test_docstrings_open_alike(framework, name):
    for of in (lambda f: getattr(f.classes, name), lambda f: call_of(f, name)):
        ours, torchs = (
            inspect.getdoc(of(f)).splitlines()[0] for f in (framework, TORCH)
        )
        assert ours == torchs


@pytest.mark.parametrize("name", CLASSES)
@each_framework
def test_modules_export_the_class(framework, name):
    assert name in framework.classes.__all__


# ---------------------------------------------------------------------- sinusoidal


@pytest.mark.parametrize("dim", [6, 7])
@pytest.mark.parametrize("spacing", ["dim", "endpoint"])
@pytest.mark.parametrize("layout", ["interleaved", "half", "half_cos_first"])
def test_sinusoidal_agrees(layout, spacing, dim):
    x = normal(BATCH, SEQ, dim)
    options = {"base": 100.0, "layout": layout, "spacing": spacing}
    ours = [
        f.make("SinusoidalPositionalEncoding", MAX_LEN, dim, **options)(x, offset=3)
        for f in FRAMEWORKS
    ]
    for got in ours[1:]:
        assert_close(got, ours[0])


@each_framework
def test_sinusoidal_adds_the_papers_encoding_of_odd_width(framework):
    x = normal(BATCH, SEQ, DIM)
    angle = angles(np.arange(SEQ), DIM)
    want = x.astype(np.float64)
    want[..., 0::2] += np.sin(angle)
    want[..., 1::2] += np.cos(angle)[:, : DIM // 2]
    got = framework.make("SinusoidalPositionalEncoding", MAX_LEN, DIM)(x)
    assert got.dtype == np.float32
    assert_close(got, want)


@each_framework
def test_sinusoidal_takes_real_times(framework):
    x, times = np.zeros((3, 4), np.float32), np.array([0.5, 2.25, 900.0], np.float32)
    got = framework.make("SinusoidalPositionalEncoding", 8, 4)(x, positions=times)
    assert_close(got[:, 0::2], np.sin(angles(times, 4)))
    assert_close(got[:, 1::2], np.cos(angles(times, 4)))


@pytest.mark.parametrize("offset", [0, 3, MAX_LEN - 2], ids=["0", "3", "past"])
@pytest.mark.parametrize("case", SINUSOIDAL_OPTIONS)
@each_framework
def test_sinusoidal_options_are_those_of_the_function(framework, case, offset):
    options = SINUSOIDAL_OPTIONS[case]
    call = framework.make("SinusoidalPositionalEncoding", MAX_LEN, DIM, **options)
    encode = framework.package.sinusoidal_position_encoding
    places = np.arange(SEQ, dtype=np.int32) + offset
    want = to_numpy(encode(framework.array(places), DIM, **options))
    # Over all offsets, an option left out would be seen.
    chosen, plain = (
        to_numpy(encode(MAX_LEN + SEQ - 2, DIM, **given)) for given in (options, {})
    )
    assert np.abs(chosen - plain).max() > 0.1
    x = np.zeros((SEQ, DIM), np.float32)
    np.testing.assert_array_equal(call(x, offset=offset), want)
    np.testing.assert_array_equal(call(x, positions=places[::-1].copy()), want[::-1])


@each_framework
def test_sinusoidal_padding_passes_tokens_on_as_they_are(framework):
    """fairseq's positions of a padded batch: row 1 of its table is zero."""
    mask = np.array([[False, True, True, True, True], [True, True, True, False, False]])
    positions = framework.package.positions_from_mask(
        framework.array(mask), start=2, padding=1
    )
    x = normal(BATCH, SEQ, DIM)
    call = framework.make(
        "SinusoidalPositionalEncoding", MAX_LEN, DIM, preset="fairseq"
    )
    got = call(x, positions=to_numpy(positions))
    np.testing.assert_array_equal(got[~mask], x[~mask])
    assert (got[mask] != x[mask]).any(-1).all()


@pytest.mark.parametrize("name", [n for n in CLASSES if n[:6] != "Rotary"])
@each_framework
def test_sum_is_rounded_once_to_the_dtype_of_its_input(framework, name):
    half = framework.array("bfloat16")
    cast = torch.Tensor.to if framework is TORCH else jnp.astype
    shape = (HEADS, QUERIES, KEYS) if name[:5] == "Alibi" else (BATCH, SEQ, DIM)
    x = cast(framework.array(normal(*shape)), half)
    call = framework.make(name, *CLASSES[name])
    got, exact = call.function(x), call.function(cast(x, framework.array("float32")))
    assert got.dtype == half
    assert bool((got == cast(exact, half)).all())


# ---------------------------------------------------------------------- learned


def learned(framework: Framework, **options: Any) -> Call:
    return framework.make("LearnedPositionalEncoding", MAX_LEN, DIM, **options)


@each_framework
def test_learned_adds_rows_of_its_table(framework):
    x = normal(BATCH, SEQ, DIM)
    np.testing.assert_array_equal(learned(framework)(x), x + TABLE[:SEQ])
    packed = integers(0, 1, 2, 0, 1)
    got = learned(framework)(x, positions=packed)
    np.testing.assert_array_equal(got, x + TABLE[packed])


def learned_gradients(
    framework: Framework, x: Any, given: dict, cotangent: Any, **options: Any
) -> Any:
    """Of sum(out * cotangent), to x and to the table."""
    call = learned(framework, **options)
    given = {key: framework.array(value) for key, value in given.items()}
    x, cotangent = framework.array(x), framework.array(cotangent)
    if framework is TORCH:
        x.requires_grad_()
        out = call.module(x, **given)
        return torch.autograd.grad(out, (x, call.module.table), cotangent)
    if framework is NNX:

        def loss(module: Any, x: Any) -> Any:
            return (module(x, **given) * cotangent).sum()

        to_module, to_x = flax.nnx.grad(loss, argnums=(0, 1))(call.module, x)
        return to_x, to_module.table[...]

    def loss_of(variables: Any, x: Any) -> Any:
        return (call.module.apply(variables, x, **given) * cotangent).sum()

    variables = {"params": {"table": jnp.asarray(TABLE)}}
    to_variables, to_x = jax.grad(loss_of, argnums=(0, 1))(variables, x)
    return to_x, to_variables["params"]["table"]


@pytest.mark.parametrize(
    "given",
    [{}, {"offset": 4}, {"positions": integers(0, 1, 2, 0, 1)}],
    ids=["first", "offset", "packed"],
)
@each_framework
def test_learned_gradients_are_the_cotangents_of_each_position(framework, given):
    x, cotangent = normal(BATCH, SEQ, DIM), normal(BATCH, SEQ, DIM, seed=2)
    positions = given.get("positions", np.arange(SEQ) + given.get("offset", 0))
    want = np.zeros((MAX_LEN, DIM))
    np.add.at(want, np.broadcast_to(positions, (BATCH, SEQ)), cotangent)
    to_x, to_table = learned_gradients(framework, x, given, cotangent)
    np.testing.assert_array_equal(to_numpy(to_x), cotangent)
    assert_close(to_numpy(to_table), want)


@each_framework
def test_learned_out_of_range_clip_gives_the_last_row(framework):
    x = normal(BATCH, SEQ, DIM)
    got = learned(framework, out_of_range="clip")(x, offset=MAX_LEN - 2)
    rows = np.minimum(np.arange(SEQ) + MAX_LEN - 2, MAX_LEN - 1)
    np.testing.assert_array_equal(got, x + TABLE[rows])


def first_table(framework: Framework, *sizes: int, **options: Any) -> Any:
    """What a module begins with."""
    made = framework.classes.LearnedPositionalEncoding
    if framework is TORCH:
        return made(
            *sizes, generator=torch.Generator().manual_seed(1), **options
        ).table.detach()
    if framework is NNX:
        return made(*sizes, rngs=flax.nnx.Rngs(1), **options).table[...]
    options = {"table_init" if k == "init" else k: v for k, v in options.items()}
    x = jnp.zeros((1, sizes[1]))
    return made(*sizes, **options).init(jax.random.key(1), x)["params"]["table"]


@pytest.mark.parametrize(
    "init", ["normal", "truncated_normal", "uniform", "sinusoidal", "patchtst"]
)
@each_framework
def test_learned_padding_row_begins_as_zero_and_alone(framework, init):
    plain = to_numpy(first_table(framework, MAX_LEN, DIM, init=init))
    padded = to_numpy(first_table(framework, MAX_LEN, DIM, init=init, padding_idx=1))
    np.testing.assert_array_equal(padded[1], 0.0)
    assert plain[1].any()
    others = np.arange(MAX_LEN) != 1
    np.testing.assert_array_equal(padded[others], plain[others])


@each_framework
def test_learned_padding_row_passes_no_gradient(framework):
    x, cotangent = normal(BATCH, SEQ, DIM), normal(BATCH, SEQ, DIM, seed=2)
    given = {"positions": integers(1, 2, 3, 1, 2)}
    got = learned(framework, padding_idx=1)(x, **given)
    np.testing.assert_array_equal(got, x + TABLE[given["positions"]])
    plain = learned_gradients(framework, x, given, cotangent)
    padded = learned_gradients(framework, x, given, cotangent, padding_idx=1)
    np.testing.assert_array_equal(to_numpy(padded[0]), cotangent)
    want = to_numpy(plain[1]).copy()
    assert want[1].any()
    want[1] = 0.0
    np.testing.assert_array_equal(to_numpy(padded[1]), want)


@each_framework
def test_learned_padding_row_stays_zero_in_training(framework):
    """Three steps of gradient descent on a padded batch, with positions counted from the mask."""
    mask = np.array([[False, True, True, True, True], [True, True, True, False, False]])
    positions = to_numpy(
        framework.package.positions_from_mask(framework.array(mask), start=2, padding=1)
    )
    x, target = (framework.array(normal(BATCH, SEQ, DIM, seed=s)) for s in (0, 2))
    tokens = framework.array(positions)
    options = {"padding_idx": 1}
    first = to_numpy(first_table(framework, MAX_LEN, DIM, **options)).copy()
    made = framework.classes.LearnedPositionalEncoding
    if framework is TORCH:
        module = made(MAX_LEN, DIM, **options)
        module.table.data = torch.from_numpy(first.copy())
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (module(x, positions=tokens) - target).square().sum().backward()
            optimizer.step()
        last = module.table.detach().numpy()
    elif framework is NNX:
        module = made(MAX_LEN, DIM, rngs=flax.nnx.Rngs(0), **options)
        module.table[...] = jnp.asarray(first)

        def loss(module: Any) -> Any:
            return jnp.square(module(x, positions=tokens) - target).sum()

        for _ in range(3):
            gradient = flax.nnx.grad(loss)(module).table[...]
            module.table[...] = module.table[...] - 0.1 * gradient
        last = np.asarray(module.table[...])
    else:
        module = made(MAX_LEN, DIM, **options)

        def loss_of(variables: Any) -> Any:
            out = module.apply(variables, x, positions=tokens)
            return jnp.square(out - target).sum()

        variables = {"params": {"table": jnp.asarray(first)}}
        for _ in range(3):
            gradient = jax.grad(loss_of)(variables)
            variables = jax.tree.map(lambda v, g: v - 0.1 * g, variables, gradient)
        last = np.asarray(variables["params"]["table"])
    np.testing.assert_array_equal(last[1], 0.0)
    used = np.unique(positions[mask])
    assert (last[used] != first[used]).any(-1).all()


@pytest.mark.parametrize("preset", ["whisper", "fairseq", "marian"])
@each_framework
def test_learned_first_table_has_the_preset_of_the_sinusoid(framework, preset):
    got = first_table(framework, MAX_LEN, DIM, init="sinusoidal", preset=preset)
    encode = framework.package.sinusoidal_position_encoding
    want = to_numpy(encode(MAX_LEN, DIM, preset=preset))
    np.testing.assert_array_equal(to_numpy(got), want)
    assert np.abs(want - to_numpy(encode(MAX_LEN, DIM))).max() > 0.1


@each_framework
def test_learned_out_of_range_zero_passes_tokens_on_as_they_are(framework):
    x = normal(BATCH, SEQ, DIM)
    got = learned(framework, out_of_range="zero")(x, offset=MAX_LEN - 2)
    want = x.copy()
    want[:, :2] += TABLE[-2:]
    np.testing.assert_array_equal(got, want)


@each_framework
def test_learned_out_of_range_nan_gives_nan(framework):
    got = learned(framework, out_of_range="nan")(
        normal(BATCH, SEQ, DIM), offset=MAX_LEN - 2
    )
    assert np.isnan(got).all(-1).tolist() == [[False, False, True, True, True]] * BATCH


@each_flax
def test_learned_out_of_range_length_raises_while_it_compiles(framework):
    call, x = learned(framework), jnp.zeros((MAX_LEN + 1, DIM))
    with pytest.raises(ValueError, match=r"must be in 0\.\.10, .* got 0 to 11"):
        jax.jit(lambda x: call.function(x))(x)


@each_framework
def test_learned_first_table_is_drawn_with_the_given_deviation(framework):
    rows, stddev = 4096, 0.5
    table = to_numpy(first_table(framework, rows, 2, stddev=stddev))
    assert table.shape == (rows, 2)
    # Five standard errors of a deviation estimated from n draws, stddev / sqrt(2 n) each.
    assert abs(table.std() - stddev) < 5 * stddev / np.sqrt(2 * table.size)


def test_learned_first_table_sinusoidal_agrees():
    x = np.zeros((MAX_LEN, DIM), np.float32)
    want = TORCH.make("SinusoidalPositionalEncoding", MAX_LEN, DIM)(x)
    for framework in FRAMEWORKS:
        table = first_table(framework, MAX_LEN, DIM, init="sinusoidal")
        assert_close(to_numpy(table), want)


# ---------------------------------------------------------------------- rotary


@each_framework
def test_rotary_tables_have_one_column_per_pair(framework):
    cos, sin = framework.make("RotaryPositionEmbedding", 8, 6)(seq_len=5)
    assert cos.dtype == sin.dtype == np.float32
    assert_close(cos, np.cos(angles(np.arange(5), 8)))
    assert_close(sin, np.sin(angles(np.arange(5), 8)))


@each_framework
def test_rotary_length_defaults_to_that_of_its_input(framework):
    x = normal(BATCH, HEADS, SEQ, 8)  # torch's order
    x = x if framework is TORCH else heads_last(x)
    call = framework.make("RotaryPositionEmbedding", 8)
    for got, want in zip(call(x), call(seq_len=SEQ), strict=True):
        assert got.shape == (SEQ, 4)
        np.testing.assert_array_equal(got, want)


@each_framework
def test_rotary_seq_len_goes_before_its_input(framework):
    call = framework.make("RotaryPositionEmbedding", 8)
    assert call(normal(BATCH, HEADS, SEQ, 8), 9)[0].shape == (9, 4)


@each_framework
def test_rotary_extends_past_max_seq_len(framework):
    short = framework.make("RotaryPositionEmbedding", 8, 4)(seq_len=9)
    long = framework.make("RotaryPositionEmbedding", 8, 16)(seq_len=9)
    for got, want in zip(short, long, strict=True):
        assert_close(got, want)


@each_framework
def test_sinusoidal_extends_past_max_len(framework):
    x = normal(9, DIM)
    short = framework.make("SinusoidalPositionalEncoding", 4, DIM)(x)
    assert_close(short, framework.make("SinusoidalPositionalEncoding", 16, DIM)(x))


@pytest.mark.parametrize("start", [0, 3, 4090, 70_000])
def test_rotary_agrees(start):
    ours = [
        f.make("RotaryPositionEmbedding", 12, 4096, base=500.0)(
            seq_len=SEQ, offset=start
        )
        for f in FRAMEWORKS
    ]
    for tables in ours[1:]:
        for got, want in zip(tables, ours[0], strict=True):
            assert_close(got, want)


@each_framework
def test_rotary_tables_rotate_heads(framework):
    x = normal(BATCH, HEADS, SEQ, 8)
    call = framework.make("RotaryPositionEmbedding", 8)
    rotate = (posenc_torch if framework is TORCH else posenc_jax).apply_rope
    given = framework.array(x if framework is TORCH else heads_last(x))
    got = to_numpy(rotate(given, *call.function(given)))
    cos, sin = np.cos(angles(np.arange(SEQ), 8)), np.sin(angles(np.arange(SEQ), 8))
    a, b = x[..., :4], x[..., 4:]
    want = np.concatenate((a * cos - b * sin, b * cos + a * sin), -1)
    assert_close(got if framework is TORCH else heads_last(got), want)


@each_framework
def test_rotary_scaling_reaches_the_tables(framework):
    """YaRN's frequencies and its magnitude, in the stored tables and past them."""
    package = posenc_torch if framework is TORCH else posenc_jax
    rule = package.YarnScaling(4.0, 2048)
    call = framework.make("RotaryPositionEmbedding", 64, 4, scaling=rule)
    config = package.RopeConfig(64, scaling=rule)
    angle = np.arange(9)[:, None] * config.inv_freq(dtype="float64")
    factor = 0.1 * np.log(4) + 1
    for cos, sin in (call(seq_len=9), call(positions=framework.array(np.arange(9)))):
        assert_close(cos, np.cos(angle) * factor, units=2 * factor)
        assert_close(sin, np.sin(angle) * factor, units=2 * factor)


@each_framework
def test_rotary_refuses_a_scaling_that_needs_the_length(framework):
    package = posenc_torch if framework is TORCH else posenc_jax
    with pytest.raises(ValueError, match="`scaling` must not depend on the length"):
        framework.make(
            "RotaryPositionEmbedding", 8, scaling=package.DynamicNtkScaling(2.0, 4)
        )


# ---------------------------------------------------------------------- ALiBi


def scores() -> np.ndarray:
    return normal(BATCH, HEADS, QUERIES, KEYS)


def biased(framework: Framework, x: np.ndarray, *args: Any, **given: Any) -> np.ndarray:
    return framework.make("AlibiPositionEmbedding", x.shape[-3])(x, *args, **given)


@each_framework
def test_alibi_adds_minus_slope_times_distance(framework):
    x = normal(BATCH, 8, SEQ, SEQ)
    distance = np.abs(np.arange(SEQ)[:, None] - np.arange(SEQ))
    want = x - 2.0 ** -np.arange(1, 9)[:, None, None] * distance
    assert_close(biased(framework, x), want)


@each_framework
def test_alibi_never_rewards_a_key(framework):
    assert (biased(framework, np.zeros((8, SEQ, SEQ), np.float32)) <= 0).all()


@pytest.mark.parametrize("kind", ["symmetric", "signed", "key", "past", "future"])
@pytest.mark.parametrize("heads", [4, 6])
def test_alibi_agrees(kind, heads):
    x = normal(BATCH, heads, QUERIES, KEYS)
    ours = [f.make("AlibiPositionEmbedding", heads, kind=kind)(x) for f in FRAMEWORKS]
    for got in ours[1:]:
        assert_close(got, ours[0])


@pytest.mark.parametrize("kind", ["symmetric", "signed", "key", "past", "future"])
@pytest.mark.parametrize("case", SLOPES_OF)
@each_framework
def test_alibi_options_are_those_of_the_functions(framework, case, kind):
    options = SLOPES_OF[case]
    call = framework.make("AlibiPositionEmbedding", HEADS, kind=kind, **options)
    slopes = framework.package.alibi_slopes(HEADS, **options)
    assert (
        to_numpy(slopes).tolist() != to_numpy(posenc_jax.alibi_slopes(HEADS)).tolist()
    )
    np.testing.assert_array_equal(to_numpy(call.module.slopes), to_numpy(slopes))
    queries = framework.array(np.arange(KEYS - QUERIES, KEYS, dtype=np.int32))
    want = framework.package.alibi_bias(queries, KEYS, slopes, kind=kind)
    got = call(np.zeros((HEADS, QUERIES, KEYS), np.float32))
    np.testing.assert_array_equal(got, to_numpy(want))


@each_framework
def test_alibi_without_a_bias_leaves_scores_as_they_are(framework):
    call = framework.make("AlibiPositionEmbedding", HEADS, num_biased=1)
    got = call(scores())
    np.testing.assert_array_equal(got[:, 1:], scores()[:, 1:])
    assert (got[:, 0] != scores()[:, 0]).any()


@each_framework
def test_alibi_queries_are_the_last_of_the_keys(framework):
    full = biased(framework, np.zeros((HEADS, KEYS, KEYS), np.float32))
    step = biased(framework, np.zeros((HEADS, 1, KEYS), np.float32))
    np.testing.assert_array_equal(step, full[:, -1:])
    some = biased(framework, np.zeros((HEADS, QUERIES, KEYS), np.float32))
    np.testing.assert_array_equal(some, full[:, -QUERIES:])


@each_framework
def test_alibi_offset_is_the_position_of_the_first_query(framework):
    full = biased(framework, np.zeros((HEADS, KEYS, KEYS), np.float32))
    some = biased(framework, np.zeros((HEADS, 2, KEYS), np.float32), offset=1)
    np.testing.assert_array_equal(some, full[:, 1:3])


@each_framework
def test_alibi_takes_the_lengths_of_its_scores(framework):
    x = scores()
    got = biased(framework, x, QUERIES, KEYS)
    np.testing.assert_array_equal(got, biased(framework, x))


@each_framework
def test_alibi_takes_offset_with_key_positions(framework):
    ring = integers(4, 5, 0, 1, 2, 3)  # a ring buffer that holds keys 0..5
    plain = biased(framework, np.zeros((HEADS, 1, KEYS), np.float32))
    got = biased(
        framework, np.zeros((HEADS, 1, KEYS), np.float32), key_positions=ring, offset=5
    )
    np.testing.assert_array_equal(got, plain[..., ring])


def test_alibi_modules_are_taken_by_attention():
    query, key, value = (normal(BATCH, HEADS, n, 8, seed=n) for n in (4, 6, 6))
    alibi = posenc_torch.AlibiPositionEmbedding(HEADS, kind="signed")
    want = posenc_torch.scaled_dot_product_attention_with_alibi(
        *map(torch.from_numpy, (query, key, value)), alibi, is_causal=True
    )
    for framework in FLAX:
        module = framework.classes.AlibiPositionEmbedding(HEADS, kind="signed")
        got = posenc_jax.scaled_dot_product_attention_with_alibi(
            *map(heads_last, (query, key, value)), module, is_causal=True
        )
        assert_close(heads_last(np.asarray(got)), want.numpy(), units=ATTENTION_UNITS)


@each_flax
def test_alibi_modules_are_taken_by_attention_inside_jit(framework):
    query = jnp.asarray(normal(1, SEQ, HEADS, 8))
    module = framework.classes.AlibiPositionEmbedding(HEADS)
    attend = posenc_jax.scaled_dot_product_attention_with_alibi
    got = jax.jit(lambda q: attend(q, q, q, module))(query)
    want = attend(query, query, query, module)
    assert_close(np.asarray(got), np.asarray(want), units=ATTENTION_UNITS)


# ---------------------------------------------------------------------- offsets

# A module, its sizes, and a call of it with 4 tokens or queries.
POSITIONED = {
    "SinusoidalPositionalEncoding": ((MAX_LEN, DIM), (normal(BATCH, 4, DIM),)),
    "LearnedPositionalEncoding": ((MAX_LEN, DIM), (normal(BATCH, 4, DIM),)),
    "RotaryPositionEmbedding": ((8, MAX_LEN), (None, 4)),
    "AlibiPositionEmbedding": ((HEADS,), (scores(),)),
}
each_positioned = pytest.mark.parametrize("name", POSITIONED)


def positioned(framework: Framework, name: str) -> Callable:
    """A call with only the offset or positions left to say."""
    sizes, args = POSITIONED[name]
    call = framework.make(name, *sizes)

    def with_positions(**given: Any) -> tuple[np.ndarray, ...]:
        left = args
        if "positions" in given and name.startswith("Alibi"):
            given["query_positions"] = given.pop("positions")
        if "positions" in given and name.startswith("Rotary"):
            left = ()
        out = call(*left, **given)
        return out if isinstance(out, tuple) else (out,)

    return with_positions


@pytest.mark.parametrize("offset", [0, 3, MAX_LEN - 4], ids=["0", "3", "last"])
@each_positioned
@each_framework
def test_offset_and_positions_agree(framework, name, offset):
    call = positioned(framework, name)
    want = call(offset=offset)
    others = (
        call(offset=integers(offset)[0:1].reshape(())),
        call(positions=integers(*range(offset, offset + 4))),
    )
    for other in others:
        for got, table in zip(other, want, strict=True):
            assert_close(got, table)


@pytest.mark.parametrize("offset", [-2, MAX_LEN - 3, 99], ids=["before", "end", "past"])
@pytest.mark.parametrize("name", [n for n in POSITIONED if n[:7] != "Learned"])
@each_framework
def test_offset_outside_the_table_agrees_with_positions(framework, name, offset):
    call = positioned(framework, name)
    want = call(positions=integers(*range(offset, offset + 4)))
    for got, table in zip(call(offset=offset), want, strict=True):
        assert_close(got, table)


@each_positioned
@each_framework
def test_offset_may_differ_by_batch_row(framework, name):
    call = positioned(framework, name)
    got = call(offset=integers(1, 5))
    rows = [call(offset=offset) for offset in (1, 5)]
    for index, both in enumerate(got):
        for row in range(BATCH):
            want = rows[row][index]
            assert_close(both[row], want if name.startswith("Rotary") else want[row])


@each_positioned
@each_flax
def test_traced_offset_compiles_once(framework, name):
    sizes, args = POSITIONED[name]
    call = framework.make(name, *sizes)
    traces = []

    @jax.jit
    def jitted(offset: Any) -> Any:
        traces.append(offset)
        return call.function(*args, offset=offset)

    for offset in (0, 3, MAX_LEN - 4):
        outs = jax.tree.leaves(jitted(offset))
        wants = jax.tree.leaves(call.function(*args, offset=offset))
        for got, want in zip(outs, wants, strict=True):
            assert_close(np.asarray(got), np.asarray(want))
    assert len(traces) == 1


@each_flax
def test_traced_offset_past_a_learned_table_gives_nan(framework):
    call, x = learned(framework), jnp.zeros((1, DIM))
    got = jax.jit(lambda offset: call.function(x, offset=offset))(MAX_LEN)
    assert np.isnan(got).all()


@each_positioned
def test_modules_agree_in_float64(name):
    sizes, args = POSITIONED[name]
    args = tuple(a.astype(np.float64) if isinstance(a, np.ndarray) else a for a in args)
    with jax.enable_x64(True):
        ours = [f.make(name, *sizes, dtype="float64")(*args) for f in FRAMEWORKS]
    ours = [out if isinstance(out, tuple) else (out,) for out in ours]
    for index, want in enumerate(ours[0]):
        assert want.dtype == np.float64
        for other in ours[1:]:
            assert other[index].dtype == np.float64
            assert_close(other[index], want)


# ---------------------------------------------------------------------- torch: constants


def torch_modules() -> torch.nn.ModuleDict:
    return torch.nn.ModuleDict(
        {
            "sinusoidal": posenc_torch.SinusoidalPositionalEncoding(MAX_LEN, DIM),
            "rotary": posenc_torch.RotaryPositionEmbedding(64, 16),
            "alibi": posenc_torch.AlibiPositionEmbedding(HEADS),
            "fairseq": posenc_torch.SinusoidalPositionalEncoding(
                MAX_LEN, DIM, preset="fairseq", amplitude=0.3, angle_scale=1.5
            ),
            "mpt": posenc_torch.AlibiPositionEmbedding(
                HEADS, rule="uniform", bias_max=5.0, num_biased=2
            ),
        }
    )


def assert_same_buffers(got: torch.nn.Module, want: torch.nn.Module) -> None:
    ours, theirs = dict(got.named_buffers()), dict(want.named_buffers())
    assert ours.keys() == theirs.keys()
    for name, buffer in ours.items():
        assert buffer.dtype == theirs[name].dtype, name
        assert torch.equal(buffer, theirs[name]), name


@pytest.mark.parametrize(
    "cast",
    [
        lambda m: m.half(),
        lambda m: m.bfloat16(),
        lambda m: m.double(),
        lambda m: m.to(torch.bfloat16),
        lambda m: m.bfloat16().float(),
        lambda m: m.half().to_empty(device="cpu"),
    ],
    ids=["half", "bfloat16", "double", "to", "there and back", "to_empty"],
)
def test_torch_cast_leaves_constants_alone(cast):
    assert_same_buffers(cast(torch_modules()), torch_modules())


def test_torch_constants_of_float64_stay_float64():
    module = posenc_torch.RotaryPositionEmbedding(8, dtype=torch.float64).half()
    assert {b.dtype for b in module.buffers()} == {torch.float64}


@pytest.mark.parametrize("max_seq_len", [4096, 16], ids=["stored", "computed"])
def test_torch_rotary_cast_to_bfloat16_is_right_at_position_4095(max_seq_len):
    module = posenc_torch.RotaryPositionEmbedding(64, max_seq_len).bfloat16()
    cos, sin = module(seq_len=4096)
    assert_close(cos[-1].numpy(), np.cos(angles(np.array(4095), 64)))
    assert_close(sin[-1].numpy(), np.sin(angles(np.array(4095), 64)))


def test_torch_learned_table_is_cast():
    module = posenc_torch.LearnedPositionalEncoding(MAX_LEN, DIM).bfloat16()
    assert module.table.dtype == torch.bfloat16


def test_torch_meta_modules_stay_on_meta():
    with torch.device("meta"):
        modules = torch_modules()
    assert {b.device.type for b in modules.half().buffers()} == {"meta"}
    assert {b.dtype for b in modules.buffers()} == {torch.float32}


def test_torch_meta_modules_are_complete_after_to_empty():
    with torch.device("meta"):
        modules = torch_modules()
    assert_same_buffers(modules.to_empty(device="cpu"), torch_modules())


@pytest.mark.parametrize(
    "options",
    [{}, {"padding_idx": 1}, {"init": "patchtst", "preset": "whisper"}],
    ids=["plain", "padding", "preset"],
)
def test_torch_meta_learned_is_complete_after_reset(options):
    with torch.device("meta"):
        module = posenc_torch.LearnedPositionalEncoding(MAX_LEN, DIM, **options)
    assert module.table.device.type == "meta"
    module.to_empty(device="cpu").reset_parameters(
        generator=torch.Generator().manual_seed(3)
    )
    want = posenc_torch.LearnedPositionalEncoding(
        MAX_LEN, DIM, generator=torch.Generator().manual_seed(3), **options
    )
    assert torch.equal(module.table, want.table)


def test_torch_meta_modules_compute_nothing():
    with torch.device("meta"):
        module = posenc_torch.RotaryPositionEmbedding(8, 2**50)
    assert module.half().cos.shape == (2**50, 4)


def test_torch_learned_table_of_float64_is_drawn_in_float64():
    module = posenc_torch.LearnedPositionalEncoding(MAX_LEN, DIM, dtype=torch.float64)
    assert (module.table != module.table.float()).any()


def test_torch_state_dict_holds_the_learned_table_only():
    modules = torch_modules()
    modules["learned"] = posenc_torch.LearnedPositionalEncoding(
        MAX_LEN, DIM, init="sinusoidal", preset="whisper", padding_idx=1
    )
    assert list(modules.state_dict()) == ["learned.table"]
    assert [name for name, _ in modules.named_parameters()] == ["learned.table"]


@pytest.mark.parametrize(
    "clone",
    [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))],
    ids=["deepcopy", "pickle"],
)
def test_torch_modules_are_copied_whole(clone):
    modules = torch_modules()
    copied = clone(modules)
    assert_same_buffers(copied, modules)
    assert_same_buffers(copied.bfloat16(), modules)


@pytest.mark.parametrize("offset", [0, 3, 9], ids=["0", "3", "past"])
@pytest.mark.parametrize("name", [n for n in POSITIONED if n[:7] != "Learned"])
def test_torch_modules_compile_in_one_graph(name, offset):
    torch._dynamo.reset()
    sizes, args = POSITIONED[name]
    # A width for which float64 exponents are exact: `torch.compile` rewrites NumPy's powers.
    sizes = (MAX_LEN, 8) if name.startswith("Sinusoidal") else sizes
    args = (normal(BATCH, 4, 8),) if name.startswith("Sinusoidal") else args
    module = TORCH.make(name, *sizes).module
    args = tuple(map(TORCH.array, args))
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    got, want = compiled(*args, offset=offset), module(*args, offset=offset)
    both = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
    for ours, theirs in both:
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("case", SINUSOIDAL_OPTIONS)
def test_torch_sinusoidal_options_compile_in_one_graph(case):
    torch._dynamo.reset()
    options = SINUSOIDAL_OPTIONS[case]
    module = TORCH.make("SinusoidalPositionalEncoding", MAX_LEN, 8, **options).module
    x = torch.from_numpy(normal(BATCH, SEQ, 8))
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    for offset in (2, MAX_LEN - 2):
        assert torch.equal(compiled(x, offset=offset), module(x, offset=offset))


@pytest.mark.parametrize("padding_idx", [None, 3])
def test_torch_learned_compiles_in_one_graph(padding_idx):
    torch._dynamo.reset()
    module = learned(TORCH, padding_idx=padding_idx).module
    x = torch.from_numpy(normal(BATCH, SEQ, DIM))
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x, offset=2), module(x, offset=2))


# ---------------------------------------------------------------------- Flax: no state


WITHOUT_PARAMETERS = [
    *((name, {}) for name in CLASSES if name[:7] != "Learned"),
    ("SinusoidalPositionalEncoding", {"preset": "fairseq", "amplitude": 0.5}),
    ("AlibiPositionEmbedding", SLOPES_OF["all"]),
]


@pytest.mark.parametrize(("name", "options"), WITHOUT_PARAMETERS)
def test_nnx_modules_without_parameters_hold_no_arrays(name, options):
    module = getattr(posenc_jax.nnx, name)(*CLASSES[name], **options)
    assert jax.tree.leaves(flax.nnx.state(module)) == []


@pytest.mark.parametrize(("name", "options"), WITHOUT_PARAMETERS)
def test_linen_modules_without_parameters_have_no_variables(name, options):
    args = {"RotaryPositionEmbedding": (None, 3), "AlibiPositionEmbedding": (scores(),)}
    module = getattr(posenc_jax.linen, name)(*CLASSES[name], **options)
    x = normal(BATCH, SEQ, DIM)
    assert module.init(jax.random.key(0), *args.get(name, (x,))) == {}


def test_nnx_learned_table_is_a_parameter():
    module = NNX.make("LearnedPositionalEncoding", MAX_LEN, DIM, padding_idx=1).module
    state = flax.nnx.state(module, flax.nnx.Param)
    assert jax.tree.map(jnp.shape, flax.nnx.to_pure_dict(state)) == {
        "table": (MAX_LEN, DIM)
    }


def test_linen_learned_table_is_a_parameter():
    module = posenc_jax.linen.LearnedPositionalEncoding(MAX_LEN, DIM, padding_idx=1)
    variables = module.init(jax.random.key(0), normal(BATCH, SEQ, DIM))
    assert jax.tree.map(jnp.shape, variables) == {"params": {"table": (MAX_LEN, DIM)}}


def test_nnx_modules_pass_through_jit():
    module = NNX.make("SinusoidalPositionalEncoding", MAX_LEN, DIM).module
    x = jnp.asarray(normal(BATCH, SEQ, DIM))
    got = flax.nnx.jit(lambda m, x: m(x))(module, x)
    assert_close(np.asarray(got), np.asarray(module(x)))


# ---------------------------------------------------------------------- errors

X = normal(BATCH, SEQ, DIM)
LEFT_OUT = "must be left out where `{}` are given, got {}."
# name: (module, its sizes, what it is called with, error)
BAD_CALLS: dict[str, tuple[str, tuple, tuple, dict, Exception]] = {}


def bad(label: str, name: str, error: Exception, *args: Any, **given: Any) -> None:
    BAD_CALLS[label] = (name, CLASSES[name], args, given, error)


for scheme in ("Sinusoidal", "Learned"):
    encoding, short = f"{scheme}PositionalEncoding", scheme.lower()
    bad(
        f"{short} positions and offset",
        encoding,
        ValueError("`offset` " + LEFT_OUT.format("positions", 3)),
        X,
        positions=SEQ,
        offset=3,
    )
    bad(
        f"{short} positions and array of offsets",
        encoding,
        ValueError("`offset` " + LEFT_OUT.format("positions", "int32")),
        X,
        positions=SEQ,
        offset=integers(0, 0),
    )
    bad(
        f"{short} channels",
        encoding,
        ValueError(
            f"`x` must have 7 channels, `d_model`, got shape {X[..., :6].shape}."
        ),
        X[..., :6],
    )
    bad(
        f"{short} rank",
        encoding,
        ValueError("`x` must be [..., seq, d_model], at least 2 axes, got shape (7,)."),
        X[0, 0],
    )
    bad(
        f"{short} tokens",
        encoding,
        TypeError("`x` must be a floating-point array, got int32."),
        integers(1, 2),
    )
    bad(
        f"{short} too few positions",
        encoding,
        ValueError(
            "`positions` must have shape (2, 5) (the first 1 axes may be 1 or absent), "
            "got (4,)."
        ),
        X,
        positions=SEQ - 1,
    )
    bad(
        f"{short} too many offsets",
        encoding,
        ValueError(
            "`offset` must have shape (2,) (the first 1 axes may be 1 or absent), "
            "got (3,)."
        ),
        X,
        offset=integers(0, 1, 2),
    )
    bad(
        f"{short} fractional offset",
        encoding,
        TypeError("`offset` must be an int or an array of signed integers, got float."),
        X,
        offset=1.5,
    )
bad(
    "learned real positions",
    "LearnedPositionalEncoding",
    TypeError(
        "`positions` must be an int or an array of signed integers, got float32."
    ),
    X,
    positions=X[0, :, 0],
)
bad(
    "learned past its table",
    "LearnedPositionalEncoding",
    ValueError("`positions` must be in 0..10, the rows of `table`, got 8 to 12."),
    X,
    offset=8,
)
bad(
    "learned before its table",
    "LearnedPositionalEncoding",
    ValueError("`positions` must be in 0..10, the rows of `table`, got -1 to 3."),
    X,
    offset=-1,
)
bad(
    "learned array past its table",
    "LearnedPositionalEncoding",
    ValueError("`positions` must be in 0..10, the rows of `table`, got 8 to 12."),
    X,
    offset=np.array(8, np.int32),
)
bad(
    "rotary nothing",
    "RotaryPositionEmbedding",
    ValueError("`x`, `seq_len` or `positions` must be given, got None."),
)
bad(
    "rotary positions and seq_len",
    "RotaryPositionEmbedding",
    ValueError("`seq_len` " + LEFT_OUT.format("positions", 5)),
    None,
    5,
    positions=5,
)
bad(
    "rotary positions and offset",
    "RotaryPositionEmbedding",
    ValueError("`offset` " + LEFT_OUT.format("positions", 2)),
    positions=5,
    offset=2,
)
bad(
    "rotary fractional seq_len",
    "RotaryPositionEmbedding",
    TypeError("`seq_len` must be an int, got float."),
    None,
    5.0,
)
bad(
    "rotary negative seq_len",
    "RotaryPositionEmbedding",
    ValueError("`seq_len` must be at least 0, got -1."),
    None,
    -1,
)
bad(
    "rotary tokens",
    "RotaryPositionEmbedding",
    TypeError("`x` must be a floating-point array, got int32."),
    integers(1, 2),
)
bad(
    "rotary real positions",
    "RotaryPositionEmbedding",
    TypeError(
        "`positions` must be an int or an array of signed integers, got float32."
    ),
    positions=X[0, :, 0],
)
bad(
    "alibi heads",
    "AlibiPositionEmbedding",
    ValueError(
        "`attention_scores` must have `num_heads` heads in axis -3, got 2 and 3."
    ),
    scores()[:, :2],
)
bad(
    "alibi rank",
    "AlibiPositionEmbedding",
    ValueError(
        "`attention_scores` must be [..., heads, q, k], at least 3 axes, "
        "got shape (4, 6)."
    ),
    scores()[0, 0],
)
bad(
    "alibi integer scores",
    "AlibiPositionEmbedding",
    TypeError("`attention_scores` must be a floating-point array, got int32."),
    integers(1, 2),
)
for side, axis, length in (("q", -2, QUERIES), ("k", -1, KEYS)):
    bad(
        f"alibi seq_len_{side}",
        "AlibiPositionEmbedding",
        ValueError(
            f"`seq_len_{side}` must be the length of axis {axis} of "
            f"`attention_scores`, got 9 and {length}."
        ),
        scores(),
        **{f"seq_len_{side}": 9},
    )
    of = {"q": "query_positions", "k": "key_positions"}[side]
    bad(
        f"alibi {of} and seq_len_{side}",
        "AlibiPositionEmbedding",
        ValueError(f"`seq_len_{side}` " + LEFT_OUT.format(of, length)),
        scores(),
        **{"query_positions": QUERIES, of: length, f"seq_len_{side}": length},
    )
    bad(
        f"alibi too few {of}",
        "AlibiPositionEmbedding",
        ValueError(
            f"`{of}` must have shape (2, {length}) (the first 1 axes may be 1 or "
            f"absent), got ({length - 1},)."
        ),
        scores(),
        **{"query_positions": QUERIES, of: length - 1},
    )
bad(
    "alibi query_positions and offset",
    "AlibiPositionEmbedding",
    ValueError("`offset` " + LEFT_OUT.format("query_positions", 0)),
    scores(),
    query_positions=QUERIES,
    offset=0,
)
bad(
    "alibi key_positions alone",
    "AlibiPositionEmbedding",
    ValueError(
        "`query_positions` or `offset` must be given with `key_positions`, got None."
    ),
    scores(),
    key_positions=KEYS,
)
bad(
    "alibi more queries than keys",
    "AlibiPositionEmbedding",
    ValueError("`seq_len_k` must be at least 6, got 4."),
    np.swapaxes(scores(), -1, -2),
)
bad(
    "alibi too many offsets",
    "AlibiPositionEmbedding",
    ValueError(
        "`offset` must have shape (2,) (the first 1 axes may be 1 or absent), got (3,)."
    ),
    scores(),
    offset=integers(0, 1, 2),
)


@pytest.mark.parametrize("label", BAD_CALLS)
@each_framework
def test_bad_call_raises_the_same_sentence(framework, label):
    name, sizes, args, given, error = BAD_CALLS[label]
    call = framework.make(name, *sizes)
    with pytest.raises(type(error)) as caught:
        call(*args, **given)
    assert str(caught.value) == str(error)


KINDS = "'symmetric', 'signed', 'key', 'past', 'future'"
OF_ONE_COORDINATE = ", ".join(map(repr, LINE_NAMES))
BAD_OPTIONS = {
    "sinusoidal max_len": (
        "SinusoidalPositionalEncoding",
        (0, DIM),
        {},
        ValueError("`max_len` must be at least 1, got 0."),
    ),
    "sinusoidal d_model": (
        "SinusoidalPositionalEncoding",
        (MAX_LEN, 7.0),
        {},
        TypeError("`d_model` must be an int, got float."),
    ),
    "sinusoidal base": (
        "SinusoidalPositionalEncoding",
        (MAX_LEN, DIM),
        {"base": -1.0},
        ValueError("`base` must be positive and finite, got -1.0."),
    ),
    "sinusoidal layout": (
        "SinusoidalPositionalEncoding",
        (MAX_LEN, DIM),
        {"layout": "full"},
        ValueError(
            "`layout` must be one of 'interleaved', 'half', 'half_cos_first', "
            "'half_across_axes', got 'full'."
        ),
    ),
    **{
        f"{short} preset {preset}": (
            f"{short.title()}PositionalEncoding",
            (MAX_LEN, DIM),
            {"preset": preset},
            ValueError(f"`preset` must be one of {OF_ONE_COORDINATE}, got {preset!r}."),
        )
        for short in ("sinusoidal", "learned")
        # Those of several coordinates, and an unknown one.
        for preset in ("timm", "detr", "Whisper")
    },
    **{
        f"sinusoidal {case}": (
            "SinusoidalPositionalEncoding",
            (MAX_LEN, DIM),
            options,
            error,
        )
        for case, options, error in (
            (
                "amplitude name",
                {"amplitude": "sqrt_dim"},
                ValueError("`amplitude` must be one of 'rsqrt_dim', got 'sqrt_dim'."),
            ),
            (
                "amplitude zero",
                {"amplitude": 0},
                ValueError("`amplitude` must be positive and finite, got 0."),
            ),
            (
                "bases",
                {"base": (100.0, 20.0)},
                TypeError("`base` must be a number, got tuple."),
            ),
            (
                "spacing",
                {"spacing": "full"},
                ValueError(
                    "`spacing` must be one of 'dim', 'half', 'endpoint', 'next_even', "
                    "got 'full'."
                ),
            ),
            (
                "padding_idx flag",
                {"padding_idx": True},
                TypeError("`padding_idx` must be an int, got bool."),
            ),
        )
    },
    **{
        f"learned {case}": (
            "LearnedPositionalEncoding",
            (MAX_LEN, DIM),
            options,
            error,
        )
        for case, options, error in (
            (
                "stddev",
                {"stddev": -1.0},
                ValueError("`stddev` must be positive and finite, got -1.0."),
            ),
            (
                "padding_idx below",
                {"padding_idx": -1},
                ValueError("`padding_idx` must be at least 0, got -1."),
            ),
            (
                "padding_idx flag",
                {"padding_idx": True},
                TypeError("`padding_idx` must be an int, got bool."),
            ),
        )
    },
    **{
        f"alibi {case}": ("AlibiPositionEmbedding", (HEADS,), options, error)
        for case, options, error in (
            (
                "kind of a grid",
                {"kind": "manhattan"},
                ValueError(f"`kind` must be one of {KINDS}, got 'manhattan'."),
            ),
            (
                "bias_max",
                {"bias_max": 0},
                ValueError("`bias_max` must be positive and finite, got 0."),
            ),
            (
                "num_biased flag",
                {"num_biased": True},
                TypeError("`num_biased` must be an int, got bool."),
            ),
        )
    },
    "sinusoidal amplitude": (
        "SinusoidalPositionalEncoding",
        (MAX_LEN, DIM),
        {"amplitude": np.array(0.5, np.float32)},
        TypeError("`amplitude` must be a number in a module, got float32."),
    ),
    "sinusoidal padding_idx": (
        "SinusoidalPositionalEncoding",
        (MAX_LEN, DIM),
        {"padding_idx": 1.0},
        TypeError("`padding_idx` must be an int, got float."),
    ),
    "sinusoidal angle_scale": (
        "SinusoidalPositionalEncoding",
        (MAX_LEN, DIM),
        {"angle_scale": 0.0},
        ValueError("`angle_scale` must be positive and finite, got 0.0."),
    ),
    "sinusoidal dtype": (
        "SinusoidalPositionalEncoding",
        (MAX_LEN, DIM),
        {"dtype": "bfloat16"},
        TypeError("`dtype` must be float32 or float64, got bfloat16."),
    ),
    "learned max_len": (
        "LearnedPositionalEncoding",
        (0, DIM),
        {},
        ValueError("`max_len` must be at least 1, got 0."),
    ),
    "learned d_model": (
        "LearnedPositionalEncoding",
        (MAX_LEN, 0),
        {},
        ValueError("`d_model` must be at least 1, got 0."),
    ),
    "learned out_of_range": (
        "LearnedPositionalEncoding",
        (MAX_LEN, DIM),
        {"out_of_range": "wrap"},
        ValueError(
            "`out_of_range` must be one of 'error', 'nan', 'clip', 'zero', got 'wrap'."
        ),
    ),
    "learned padding_idx": (
        "LearnedPositionalEncoding",
        (MAX_LEN, DIM),
        {"padding_idx": MAX_LEN},
        ValueError("`padding_idx` must be in 0..10, the rows, got 11."),
    ),
    "learned dtype": (
        "LearnedPositionalEncoding",
        (MAX_LEN, DIM),
        {"dtype": "float16"},
        TypeError("`dtype` must be float32 or float64, got float16."),
    ),
    "rotary odd dim": (
        "RotaryPositionEmbedding",
        (7,),
        {},
        ValueError("`dim` must be even, got 7."),
    ),
    "rotary dim": (
        "RotaryPositionEmbedding",
        (0,),
        {},
        ValueError("`dim` must be at least 2, got 0."),
    ),
    "rotary max_seq_len": (
        "RotaryPositionEmbedding",
        (8, 0),
        {},
        ValueError("`max_seq_len` must be at least 1, got 0."),
    ),
    "rotary base": (
        "RotaryPositionEmbedding",
        (8,),
        {"base": 0.0},
        ValueError("`base` must be positive and finite, got 0.0."),
    ),
    "rotary dtype": (
        "RotaryPositionEmbedding",
        (8,),
        {"dtype": "bfloat16"},
        TypeError("`dtype` must be float32 or float64, got bfloat16."),
    ),
    "alibi num_heads": (
        "AlibiPositionEmbedding",
        (0,),
        {},
        ValueError("`num_heads` must be at least 1, got 0."),
    ),
    "alibi kind": (
        "AlibiPositionEmbedding",
        (HEADS,),
        {"kind": "causal"},
        ValueError(f"`kind` must be one of {KINDS}, got 'causal'."),
    ),
    "alibi rule": (
        "AlibiPositionEmbedding",
        (HEADS,),
        {"rule": "sorted"},
        ValueError("`rule` must be one of 'authors', 'uniform', got 'sorted'."),
    ),
    "alibi num_biased": (
        "AlibiPositionEmbedding",
        (HEADS,),
        {"num_biased": 4},
        ValueError("`num_biased` must be at most 3, `num_heads`, got 4."),
    ),
    "alibi dtype": (
        "AlibiPositionEmbedding",
        (HEADS,),
        {"dtype": "bfloat16"},
        TypeError("`dtype` must be float32 or float64, got bfloat16."),
    ),
}


@pytest.mark.parametrize("label", BAD_OPTIONS)
@each_framework
def test_bad_option_raises_the_same_sentence_at_construction(framework, label):
    name, sizes, options, error = BAD_OPTIONS[label]
    with pytest.raises(type(error)) as caught:
        framework.make(name, *sizes, **options)
    assert str(caught.value) == str(error)


@pytest.mark.parametrize(
    ("framework", "option"), [(TORCH, "init"), (NNX, "init"), (LINEN, "table_init")]
)
def test_learned_rejects_an_unknown_first_table(framework, option):
    with pytest.raises(ValueError, match=f"`{option}` must be one of 'normal', 'tru"):
        framework.make("LearnedPositionalEncoding", MAX_LEN, DIM, **{option: "ones"})


@each_flax
def test_rotary_rejects_an_input_whose_length_is_not_certain(framework):
    call = framework.make("RotaryPositionEmbedding", 8)
    with pytest.raises(
        ValueError, match=r"4 axes.*`seq_len` or `positions`.*\(5, 3, 8\)"
    ):
        call(normal(SEQ, HEADS, 8))


def test_torch_rotary_rejects_an_input_without_heads():
    with pytest.raises(ValueError, match=r"\[\.\.\., heads, seq, head_dim\].*\(5, 8\)"):
        TORCH.make("RotaryPositionEmbedding", 8)(normal(SEQ, 8))


# ---------------------------------------------------------------------- Flax attention

LENGTH, WIDTH, N_HEADS = 6, 24, 3
ROPE = posenc_jax.RopeConfig(
    8, rotary_dim=6, layout="interleaved", placement="trailing"
)
SLOPES = posenc_jax.alibi_slopes(N_HEADS)
ENCODINGS = {
    "none": {},
    "rope": {"rope": ROPE},
    "alibi": {"alibi_slopes": SLOPES, "alibi_kind": "symmetric"},
    "key alibi": {"alibi_slopes": SLOPES, "alibi_kind": "key"},
    "both": {"rope": ROPE, "alibi_slopes": SLOPES},
    "window": {"rope": ROPE, "alibi_slopes": SLOPES, "sliding_window": 3},
}
each_encoding = pytest.mark.parametrize("encoding", ENCODINGS)
TOKENS = normal(BATCH, LENGTH, WIDTH, seed=4)
CAUSAL = np.tril(np.ones((1, 1, LENGTH, LENGTH), bool))


def make_attention_fn(framework: Framework, **options: Any) -> Callable:
    return framework.classes.make_attention_fn(**options)


def weights() -> dict[str, dict[str, np.ndarray]]:
    """Of a layer with 3 heads of 8 channels, in linen's spelling."""
    into = {
        name: {
            "kernel": normal(WIDTH, N_HEADS, 8, seed=seed) / np.float32(5),
            "bias": normal(N_HEADS, 8, seed=seed + 10),
        }
        for seed, name in enumerate(("query", "key", "value"), 5)
    }
    kernel = normal(N_HEADS, 8, WIDTH, seed=8) / np.float32(5)
    return into | {"out": {"kernel": kernel, "bias": normal(WIDTH, seed=9)}}


def attention_layer(framework: Framework, fn: Callable, **options: Any) -> Any:
    """Flax's own layer with the weights above; for linen, bound to them."""
    if framework is LINEN:
        return flax.linen.MultiHeadDotProductAttention(
            num_heads=N_HEADS, attention_fn=fn, **options
        )
    options.setdefault("decode", False)
    layer = flax.nnx.MultiHeadAttention(
        N_HEADS, WIDTH, attention_fn=fn, rngs=flax.nnx.Rngs(0), **options
    )
    for name, values in weights().items():
        getattr(layer, name).kernel[...] = jnp.asarray(values["kernel"])
        getattr(layer, name).bias[...] = jnp.asarray(values["bias"])
    return layer


def attend(framework: Framework, fn: Callable, x: Any, *more: Any, **given: Any) -> Any:
    """The output of Flax's layer; options of the layer are under `layer`."""
    layer = attention_layer(framework, fn, **given.pop("layer", {}))
    if framework is LINEN:
        out = layer.apply({"params": weights()}, x, *more, **given)
    else:
        out = layer(x, *more, **given)
    return np.asarray(out)


def by_hand(x: np.ndarray, allowed: np.ndarray, encoding: str) -> np.ndarray:
    """The same layer in float64 NumPy, from the formulas, pair by pair and key by key."""
    parts, w = x.astype(np.float64), weights()
    query, key, value = (
        np.einsum("bsc,chd->bshd", parts, w[name]["kernel"]) + w[name]["bias"]
        for name in ("query", "key", "value")
    )
    options, positions = ENCODINGS[encoding], np.arange(x.shape[1])
    if "rope" in options:
        query, key = rotate_by_hand(query), rotate_by_hand(key)
    logits = np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(8)
    distance = np.abs(positions[:, None] - positions)
    if "alibi_slopes" in options:
        # Under a causal mask every kind gives the same attention.
        logits = logits - SLOPES[:, None, None] * distance
    if "sliding_window" in options:
        allowed = allowed & (distance < options["sliding_window"])
    logits = np.where(allowed, logits, -np.inf)
    peak = logits.max(-1, keepdims=True)
    attention = np.exp(logits - np.where(np.isfinite(peak), peak, 0))
    total = attention.sum(-1, keepdims=True)
    attention = attention / np.where(total == 0, 1, total)
    out = np.einsum("bhqk,bkhd->bqhd", attention, value)
    return np.einsum("bqhd,hdc->bqc", out, w["out"]["kernel"]) + w["out"]["bias"]


def rotate_by_hand(x: np.ndarray) -> np.ndarray:
    """The last 6 of 8 channels, in neighbouring pairs."""
    angle = angles(np.arange(x.shape[1]), 6)[:, None, :]
    first, second, rotated = x[..., 2::2], x[..., 3::2], x.copy()
    rotated[..., 2::2] = first * np.cos(angle) - second * np.sin(angle)
    rotated[..., 3::2] = second * np.cos(angle) + first * np.sin(angle)
    return rotated


@each_encoding
@each_flax
def test_attention_fn_matches_attention_by_hand(framework, encoding):
    fn = make_attention_fn(framework, **ENCODINGS[encoding])
    got = attend(framework, fn, TOKENS, mask=CAUSAL)
    assert_close(got, by_hand(TOKENS, CAUSAL, encoding), units=ATTENTION_UNITS)


@each_flax
def test_attention_fn_uses_all_of_its_rope(framework):
    """Scaling with a length, magnitude, layout, placement and direction, against the functions by hand."""
    rule = posenc_jax.LongRopeScaling((1.0,) * 3, (1.0, 2.0, 8.0), 64, 16.0)
    rope = posenc_jax.RopeConfig(
        8,
        rotary_dim=6,
        layout="interleaved",
        placement="trailing",
        inverse=True,
        scaling=rule,
    )
    query, key, value = (
        normal(BATCH, LENGTH, N_HEADS, 8, seed=seed) for seed in (1, 2, 3)
    )
    got = make_attention_fn(framework, rope=rope, seq_len=65)(query, key, value)
    angle = np.arange(LENGTH)[:, None] * rope.inv_freq(65, dtype="float64")
    factor = np.sqrt(1 + np.log(16) / np.log(64))

    def rotate(x: np.ndarray) -> np.ndarray:
        cos, sin = np.cos(angle)[:, None] * factor, -np.sin(angle)[:, None] * factor
        first, second, turned = x[..., 2::2], x[..., 3::2], x.copy()
        turned[..., 2::2] = first * cos - second * sin
        turned[..., 3::2] = second * cos + first * sin
        return turned

    want = posenc_jax.dot_product_attention(rotate(query), rotate(key), value)
    assert_close(np.asarray(got), np.asarray(want), units=ATTENTION_UNITS)


@each_flax
def test_attention_fn_takes_masks_of_zeros_and_ones(framework):
    fn = make_attention_fn(framework, **ENCODINGS["both"])
    got = attend(framework, fn, TOKENS, mask=CAUSAL.astype(np.float32))
    np.testing.assert_array_equal(got, attend(framework, fn, TOKENS, mask=CAUSAL))


def test_attention_fn_takes_is_causal_from_nnx():
    fn = make_attention_fn(NNX, **ENCODINGS["both"])
    got = attend(NNX, fn, TOKENS, is_causal=True)
    np.testing.assert_array_equal(got, attend(NNX, fn, TOKENS, mask=CAUSAL))


@each_flax
def test_attention_fn_without_encoding_matches_flax(framework):
    fn = make_attention_fn(framework)
    flaxs = {"nnx": flax.nnx, "linen": flax.linen}[framework.name].dot_product_attention
    memory = normal(BATCH, LENGTH + 2, WIDTH, seed=3)
    got = attend(framework, fn, TOKENS, memory)
    want = attend(framework, flaxs, TOKENS, memory)
    assert_close(got, want, units=ATTENTION_UNITS)


@each_flax
def test_attention_fn_query_that_may_attend_to_nothing_gets_zeros(framework):
    fn = make_attention_fn(framework, **ENCODINGS["both"])
    got = attend(framework, fn, TOKENS, mask=np.zeros_like(CAUSAL))
    np.testing.assert_array_equal(
        got, np.broadcast_to(weights()["out"]["bias"], got.shape)
    )


@each_flax
def test_attention_fn_result_has_the_dtype_that_flax_passes(framework):
    fn = make_attention_fn(framework, **ENCODINGS["both"])
    layer = attention_layer(framework, fn, dtype=jnp.bfloat16)
    layer = partial(layer.apply, {"params": weights()}) if framework is LINEN else layer
    assert jax.eval_shape(lambda: layer(TOKENS)).dtype == jnp.bfloat16
    query = normal(LENGTH, N_HEADS, 8)
    out = jax.eval_shape(lambda: fn(query, query, query, dtype=jnp.bfloat16))
    assert out.dtype == jnp.bfloat16


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_attention_fn_result_has_the_dtype_of_query(dtype):
    fn = make_attention_fn(NNX, **ENCODINGS["both"])
    query = jax.ShapeDtypeStruct((LENGTH, N_HEADS, 8), dtype)
    assert jax.eval_shape(fn, query, query, query).dtype == dtype


def test_attention_fn_takes_grouped_heads():
    fn = make_attention_fn(NNX, rope=ROPE, alibi_slopes=posenc_jax.alibi_slopes(6))
    query, key = normal(LENGTH, 6, 8), normal(LENGTH, 3, 8, seed=1)
    got = jax.jit(partial(fn, mask=CAUSAL[0]))(query, key, key)
    repeated = np.repeat(key, 2, -2)
    want = jax.jit(partial(fn, mask=CAUSAL[0]))(query, repeated, repeated)
    assert_close(np.asarray(got), np.asarray(want), units=ATTENTION_UNITS)


@pytest.mark.parametrize("kind", ["symmetric", "signed", "key", "past", "future"])
def test_attention_fn_heeds_the_kind_of_alibi_and_a_bias(kind):
    query = normal(LENGTH, N_HEADS, 8)
    bias = posenc_jax.alibi_bias(LENGTH, LENGTH, SLOPES, kind=kind)
    fn = make_attention_fn(NNX, alibi_slopes=SLOPES, alibi_kind=kind)
    want = make_attention_fn(NNX)(query, query, query, bias=bias)
    got = fn(query, query, query)
    assert_close(np.asarray(got), np.asarray(want), units=ATTENTION_UNITS)


@pytest.mark.parametrize("encoding", ["both", "window"])
@each_flax
def test_attention_fn_depends_on_differences_of_positions(framework, encoding):
    shifted = np.arange(LENGTH, dtype=np.int32) + 9
    plain = make_attention_fn(framework, **ENCODINGS[encoding])
    moved = make_attention_fn(
        framework, query_positions=shifted, key_positions=shifted, **ENCODINGS[encoding]
    )
    got, want = (attend(framework, fn, TOKENS, mask=CAUSAL) for fn in (moved, plain))
    assert_close(got, want, units=ATTENTION_UNITS)


@pytest.mark.parametrize("encoding", ["rope", "alibi"])
@each_flax
def test_attention_fn_goes_by_positions_of_packed_documents(framework, encoding):
    packed = integers(0, 1, 2, 0, 1, 2)
    together = make_attention_fn(
        framework, query_positions=packed, key_positions=packed, **ENCODINGS[encoding]
    )
    apart = make_attention_fn(framework, **ENCODINGS[encoding])
    blocks = np.kron(np.eye(2, dtype=bool), np.ones((3, 3), bool))[None, None]
    got = attend(framework, together, TOKENS, mask=blocks)
    want = [attend(framework, apart, TOKENS[:, i : i + 3]) for i in (0, 3)]
    assert_close(got, np.concatenate(want, 1), units=ATTENTION_UNITS)


@each_flax
def test_attention_fn_needs_only_the_mask_for_left_padding(framework):
    fn = make_attention_fn(framework, **ENCODINGS["both"])
    padded = np.concatenate((normal(BATCH, 2, WIDTH, seed=20), TOKENS[:, :4]), 1)
    real = np.arange(LENGTH) >= 2
    got = attend(framework, fn, padded, mask=CAUSAL & real)[:, 2:]
    want = attend(framework, fn, TOKENS[:, :4], mask=CAUSAL[..., :4, :4])
    assert_close(got, want, units=ATTENTION_UNITS)


# ---------------------------------------------------------------------- Flax decoding


def decode_steps(framework: Framework, encoding: str, masks: Any) -> np.ndarray:
    """Token after token through a cache, in one compiled step; masks[i] is given at step i."""
    fn = make_attention_fn(
        framework, decode=True, is_causal=True, **ENCODINGS[encoding]
    )
    layer = attention_layer(framework, fn, decode=True)
    traces, outs = [], []
    if framework is LINEN:
        cache = layer.init(jax.random.key(0), TOKENS)["cache"]
    else:
        layer.init_cache(TOKENS.shape)
        cache = layer

    def step(cache: Any, x: Any, mask: Any) -> Any:
        traces.append(x)
        if framework is NNX:
            return cache(x, mask=mask), None
        variables = {"params": weights(), "cache": cache}
        out, new = layer.apply(variables, x, mask=mask, mutable=["cache"])
        return out, new["cache"]

    jitted = jax.jit(step) if framework is LINEN else flax.nnx.jit(step)
    for index in range(LENGTH):
        out, new = jitted(cache, TOKENS[:, index : index + 1], masks[index])
        cache = cache if framework is NNX else new
        outs.append(np.asarray(out))
    assert len(traces) == 1
    return np.concatenate(outs, 1)


@pytest.mark.parametrize("encoding", ["rope", "alibi"])
@each_flax
def test_decode_matches_the_full_causal_forward(framework, encoding):
    got = decode_steps(framework, encoding, [None] * LENGTH)
    assert_close(got, by_hand(TOKENS, CAUSAL, encoding), units=ATTENTION_UNITS)


@each_flax
def test_decode_takes_masks_of_padding(framework):
    token = np.arange(LENGTH)
    real = np.stack((token >= 2, token < 4))  # pads on the left, and on the right
    mask = real[:, None, None, :]
    got = decode_steps(framework, "window", [mask] * LENGTH)
    want = by_hand(TOKENS, CAUSAL & mask, "window")
    assert_close(got[real], want[real], units=ATTENTION_UNITS)
    assert np.isfinite(got).all()


@each_flax
def test_decode_takes_a_mask_that_differs_by_head(framework):
    one_head = np.ones((1, N_HEADS, 1, LENGTH), bool)
    one_head[0, 0, 0, 1:] = False  # the first head sees only the first token
    got = decode_steps(framework, "rope", [one_head] * LENGTH)
    assert_close(got, by_hand(TOKENS, CAUSAL & one_head, "rope"), units=ATTENTION_UNITS)


@each_flax
def test_decode_takes_full_sequences(framework):
    fn = make_attention_fn(framework, decode=True, **ENCODINGS["both"])
    plain = make_attention_fn(framework, **ENCODINGS["both"])
    got, want = (attend(framework, f, TOKENS, mask=CAUSAL) for f in (fn, plain))
    np.testing.assert_array_equal(got, want)


# ---------------------------------------------------------------------- refusals

QUERY = jnp.zeros((LENGTH, N_HEADS, 8))
BOTH = ENCODINGS["both"]
REFUSED_CALLS = {
    "dropout": (BOTH, {"dropout_rate": 0.1}, "`dropout_rate` must be 0 unless `deter"),
    "weights": (
        BOTH,
        {"module": object()},
        "`module` (`sow_weights=True`) must be None",
    ),
    "einsum": (
        BOTH,
        {"qk_attn_weights_einsum": jnp.einsum},
        "`qk_attn_weights_einsum` must be None",
    ),
    "other einsum": (
        BOTH,
        {"attn_weights_value_einsum": jnp.einsum},
        "`attn_weights_value_einsum` must be None",
    ),
    "precision": (
        BOTH,
        {"precision": "F32_F32_F32"},
        "`precision` must be a `jax.lax.P",
    ),
    "head_dim": (
        {"rope": posenc_jax.RopeConfig(4)},
        {},
        "`query` must have the `head_dim` of `rope`, got 8 and 4.",
    ),
    "fewer queries": (
        {"rope": ROPE},
        {"query": QUERY[:1]},
        "`decode` for a cache, or positions, must be given to `make_attention_fn`",
    ),
    "fewer queries of ALiBi": (
        {"alibi_slopes": SLOPES},
        {"query": QUERY[:1]},
        "`decode` for a cache, or positions, must be given to `make_attention_fn`",
    ),
    "decoding without mask": (
        {"rope": ROPE, "decode": True},
        {"query": QUERY[:1]},
        "`mask` must be given in a decoding step",
    ),
    "mask rank": (
        {"rope": ROPE, "decode": True},
        {"query": QUERY[:1], "mask": jnp.ones((1, LENGTH))},
        "`mask` must be [..., heads, q, k], at least 3 axes, got shape (1, 6).",
    ),
    "rank": (BOTH, {"query": QUERY[0]}, "`query` must be [..., q, heads, head_dim]"),
    "positions": (
        {"rope": ROPE, "query_positions": 5, "key_positions": 6},
        {},
        "`query_positions` must have shape (6,), got (5,).",
    ),
}


@pytest.mark.parametrize("label", REFUSED_CALLS)
def test_attention_fn_refuses_what_it_cannot_honour(label):
    options, given, sentence = REFUSED_CALLS[label]
    fn = make_attention_fn(NNX, **options)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        fn(**({"query": QUERY, "key": QUERY, "value": QUERY} | given))


REFUSED_OPTIONS = {
    "kind": ({"alibi_kind": "causal"}, "`alibi_kind` must be one of"),
    "implementation": (
        {"implementation": "flash"},
        "`implementation` must be one of",
    ),
    "window": ({"sliding_window": 0}, "`sliding_window` must be at least 1, got 0."),
    "half of the positions": (
        {"query_positions": 4},
        "must be given together, got None for `key_positions`.",
    ),
    "other half": (
        {"key_positions": 4},
        "must be given together, got None for `query_positions`.",
    ),
    "length of nothing": (
        {"seq_len": 4},
        "`rope` must be given with `seq_len`, got None.",
    ),
    "no length": (
        {
            "rope": posenc_jax.RopeConfig(
                8, scaling=posenc_jax.DynamicNtkScaling(2.0, 4)
            )
        },
        "`seq_len` must be given for DynamicNtkScaling, got None.",
    ),
    "axes": (
        {"rope": posenc_jax.RopeConfig(8, axes=(0, 1, 0, 1))},
        "`rope` must have no `axes`",
    ),
    "positions of a cache": (
        {"query_positions": 4, "key_positions": 4, "decode": True},
        "must be None with `decode`",
    ),
}


@pytest.mark.parametrize("label", REFUSED_OPTIONS)
def test_make_attention_fn_rejects_bad_options(label):
    options, sentence = REFUSED_OPTIONS[label]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        make_attention_fn(NNX, **options)


@each_flax
def test_layers_cannot_drop_silently_what_attention_fn_refuses(framework):
    fn = make_attention_fn(framework, **BOTH)
    with pytest.raises(ValueError, match="sow_weights"):
        attend(framework, fn, TOKENS, sow_weights=True)
    layer = {"dropout_rate": 0.5, "deterministic": False}
    key = {"dropout_rng": jax.random.key(0)} if framework is LINEN else {}
    with pytest.raises(ValueError, match="dropout"):
        attend(framework, fn, TOKENS, layer=layer, **key)


@each_flax
def test_layers_may_have_dropout_that_is_off(framework):
    fn = make_attention_fn(framework, **BOTH)
    layer = {"dropout_rate": 0.5, "deterministic": True}
    got = attend(framework, fn, TOKENS, layer=layer)
    np.testing.assert_array_equal(got, attend(framework, fn, TOKENS))


def test_linen_layer_cannot_drop_a_quantised_einsum():
    fn = make_attention_fn(LINEN, **BOTH)
    layer = {
        "qk_attn_weights_einsum_cls": lambda: jnp.einsum,
        "attn_weights_value_einsum_cls": lambda: jnp.einsum,
    }
    with pytest.raises(ValueError, match="einsum` must be None"):
        attend(LINEN, fn, TOKENS, layer=layer)


@each_flax
def test_layers_attend_by_the_implementation_that_is_asked_for(framework):
    fn = make_attention_fn(framework, **BOTH, implementation="blockwise")
    want = attend(framework, make_attention_fn(framework, **BOTH), TOKENS)
    assert_close(attend(framework, fn, TOKENS), want, units=ATTENTION_UNITS)
    fn = make_attention_fn(framework, **BOTH, implementation="pallas_tpu")
    mask = np.tril(np.ones((TOKENS.shape[1],) * 2, bool))[None, None]
    with pytest.raises(ValueError, match="for a `mask` that differs between"):
        attend(framework, fn, TOKENS, mask=mask)


@pytest.mark.parametrize("implementation", [None, "blockwise", "pallas_tpu"])
@each_flax
def test_layers_are_causal_without_a_mask(framework, implementation):
    """Linen's layer has no `is_causal` of its own, and nnx's gives False where nothing is said."""
    causal = {"is_causal": True, "implementation": implementation}
    got = attend(framework, make_attention_fn(framework, **BOTH, **causal), TOKENS)
    mask = np.tril(np.ones((TOKENS.shape[1],) * 2, bool))[None, None]
    want = attend(framework, make_attention_fn(framework, **BOTH), TOKENS, mask=mask)
    assert_close(got, want, units=ATTENTION_UNITS)


@pytest.mark.parametrize("precision", [None, "highest", jax.lax.Precision.DEFAULT])
@each_flax
def test_layers_may_ask_for_any_precision(framework, precision):
    fn = make_attention_fn(framework, **BOTH)
    got = attend(framework, fn, TOKENS, layer={"precision": precision})
    want = attend(framework, fn, TOKENS)
    assert_close(got, want, units=ATTENTION_UNITS)
