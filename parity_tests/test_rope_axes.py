"""Positions with several axes: every arrangement that a RopeConfig describes, against the models' own code.

Each row holds what we say of a model: a `RopeConfig`, written out. It must be what `from_hf` reads from the model's own
configuration, and give the model's own tables and, through the model's own function, its rotated queries and keys.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

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

UNIT = 2.0**-24
# A cosine or sine on each side, from one angle.
TWO_UNITS = 2 * UNIT

BATCH, QUERY_HEADS, KEY_HEADS = 2, 3, 5
# No grid here is square.
ROWS, COLUMNS = 3, 5
FAR = 131_072

Tables = tuple[np.ndarray, np.ndarray]
mrope_axes = posenc_torch.mrope_axes


# The models' own code: positions are [batch, seq, axes] or [seq, axes], queries [batch, seq, heads, channels].


@dataclass(frozen=True)
class Calls:
    """How a kind of model takes positions, and how its function takes queries and keys."""

    apply: str
    batched: bool
    ids: Callable[[np.ndarray], np.ndarray]
    to_heads: Callable[[np.ndarray], np.ndarray]
    options: dict[str, Any] = field(default_factory=dict)


def heads_first(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(-3, -2)


def one_image(x: np.ndarray) -> np.ndarray:
    return x[0]


def as_given(x: np.ndarray) -> np.ndarray:
    return x


TEXT = Calls("apply_rotary_pos_emb", True, lambda p: np.moveaxis(p, -1, 0), heads_first)
PATCHES = Calls("apply_rotary_pos_emb_vision", False, as_given, one_image)
MEMORY = Calls("apply_rotary_pos_emb_2d", False, as_given, heads_first)
PIXTRAL = Calls(
    "apply_rotary_pos_emb", False, as_given, heads_first, {"unsqueeze_dim": 0}
)


@dataclass(frozen=True)
class Model:
    """A model's own code, and the `RopeConfig` that we say describes it."""

    name: str
    file: str
    rotary: str
    config_class: str
    calls: Calls
    described: dict[str, Any]
    config_options: dict[str, Any] = field(default_factory=dict)
    layer_type: str | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def module(self) -> Any:
        return modeling(self.file)

    @property
    def config(self) -> Any:
        return getattr(self.module, self.config_class)(**self.config_options)

    def own(self) -> Any:
        return getattr(self.module, self.rotary)(self.config)

    def held(self) -> np.ndarray:
        """The model's own frequencies, one for each of our pairs."""
        prefix = "" if self.layer_type is None else f"{self.layer_type}_"
        held = getattr(self.own(), f"{prefix}inv_freq").numpy()
        axes = self.described["axes"]
        number = np.array([axes[:i].count(axis) for i, axis in enumerate(axes)])
        if self.described.get("progression") == "per_axis":
            return held[number]
        if self.file == "ernie4_5_vl_moe":
            # Held by axis: height, width, time.
            start = np.array([44, 0, 22])
            return held[start[list(axes)] + number]
        return held

    def tables(self, positions: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """The model's own, as wide as it makes them."""
        ids = torch.from_numpy(np.ascontiguousarray(self.calls.ids(positions)))
        options = {} if self.layer_type is None else {"layer_type": self.layer_type}
        return self.own()(torch.zeros(1), ids, **options)

    def rotated(
        self, tables: Any, query: np.ndarray, key: np.ndarray
    ) -> Iterator[np.ndarray]:
        """The model's own function of its own tables, in its own order of axes."""
        given = (torch.from_numpy(self.calls.to_heads(x)) for x in (query, key))
        function = getattr(self.module, self.calls.apply)
        for turned in function(*given, *tables, **self.calls.options):
            yield turned.numpy()

    def positions(self, seed: int = 0) -> np.ndarray:
        """A grid where there are two axes, then tokens anywhere; other numbers on every axis."""
        count = max(self.described["axes"]) + 1
        rng = np.random.default_rng(seed)
        if self.calls.batched:
            return rng.integers(0, FAR, (BATCH, 11, count))
        sizes = (2, ROWS, COLUMNS)[-count:]
        grid = posenc_jax.grid_positions(*sizes).astype(int)
        return np.concatenate((grid, rng.integers(0, FAR, (6, count))))


def modeling(file: str) -> Any:
    return importlib.import_module(f"transformers.models.{file}.modeling_{file}")


def blocks(*axes: int, pairs: int) -> tuple[int, ...]:
    """All pairs of one axis, then those of the next."""
    return tuple(axis for axis in axes for _ in range(pairs))


PER_AXIS = {"progression": "per_axis"}
INTERLEAVED = {"layout": "interleaved"}

MODELS = [
    # M-RoPE: one progression, shared out among time, height and width.
    Model(
        "qwen2_vl",
        "qwen2_vl",
        "Qwen2VLRotaryEmbedding",
        "Qwen2VLTextConfig",
        TEXT,
        {
            "head_dim": 128,
            "base": 1_000_000.0,
            "axes": blocks(0, pairs=16) + blocks(1, 2, pairs=24),
        },
    ),
    Model(
        "glm4v",
        "glm4v",
        "Glm4vTextRotaryEmbedding",
        "Glm4vTextConfig",
        TEXT,
        {
            "head_dim": 128,
            "rotary_dim": 64,
            "axes": blocks(0, pairs=8) + blocks(1, 2, pairs=12),
            **INTERLEAVED,
        },
        # The published checkpoints'; with the defaults the sections do not fit.
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [8, 12, 12],
            }
        },
    ),
    Model(
        "qwen3_vl",
        "qwen3_vl",
        "Qwen3VLTextRotaryEmbedding",
        "Qwen3VLTextConfig",
        TEXT,
        {"head_dim": 128, "base": 500_000.0, "axes": (0, 1, 2) * 20 + (0,) * 4},
    ),
    Model(
        "qwen3_5",
        "qwen3_5",
        "Qwen3_5TextRotaryEmbedding",
        "Qwen3_5TextConfig",
        TEXT,
        {"head_dim": 256, "rotary_dim": 64, "axes": (0, 1, 2) * 10 + (0, 1)},
    ),
    Model(
        "ernie4_5_vl",
        "ernie4_5_vl_moe",
        "Ernie4_5_VLMoeTextRotaryEmbedding",
        "Ernie4_5_VLMoeTextConfig",
        TEXT,
        {
            "head_dim": 128,
            "base": 500_000.0,
            "axes": (1, 2) * 22 + (0,) * 20,
            **INTERLEAVED,
        },
    ),
    Model(
        "neomme-sliding",
        "neomme",
        "NeoMMERotaryEmbedding",
        "NeoMMEConfig",
        TEXT,
        {"head_dim": 64, "axes": (0, 1) * 16},
        layer_type="sliding_attention",
    ),
    Model(
        "neomme-full",
        "neomme",
        "NeoMMERotaryEmbedding",
        "NeoMMEConfig",
        TEXT,
        {"head_dim": 64, "rotary_dim": 16, "base": 1_000_000.0, "axes": (0, 1) * 4},
        layer_type="full_attention",
    ),
    # Vision: rows and columns, each with a progression of its own.
    Model(
        "qwen2_vl-vision",
        "qwen2_vl",
        "Qwen2VLVisionRotaryEmbedding",
        "Qwen2VLVisionConfig",
        PATCHES,
        {"head_dim": 80, "axes": blocks(0, 1, pairs=20), **PER_AXIS},
    ),
    Model(
        "sam2_video",
        "sam2_video",
        "Sam2VideoVisionRotaryEmbedding",
        "Sam2VideoConfig",
        MEMORY,
        {"head_dim": 256, "axes": blocks(0, 1, pairs=64), **PER_AXIS, **INTERLEAVED},
    ),
    Model(
        "sam3",
        "sam3",
        "Sam3ViTRotaryEmbedding",
        "Sam3ViTConfig",
        MEMORY,
        {"head_dim": 64, "axes": blocks(0, 1, pairs=16), **PER_AXIS, **INTERLEAVED},
    ),
    Model(
        "pixtral",
        "pixtral",
        "PixtralVisionRotaryEmbedding",
        "PixtralVisionConfig",
        PIXTRAL,
        {"head_dim": 64, "axes": blocks(0, 1, pairs=16), "progression": "alternating"},
    ),
    Model(
        "kimi_k25-vision",
        "kimi_k25",
        "Kimi_K25VisionRotaryEmbedding",
        "Kimi_K25VisionConfig",
        PATCHES,
        {"head_dim": 72, "axes": (1, 0) * 18, **PER_AXIS},
    ),
    Model(
        "step3p7-vision",
        "step3p7",
        "Step3p7VisionRotaryEmbedding",
        "Step3p7VisionConfig",
        PATCHES,
        {"head_dim": 96, "axes": blocks(1, 0, pairs=24), **PER_AXIS},
    ),
    Model(
        "inkling2-vision",
        "inkling2",
        "Inkling2VisionRotaryEmbedding",
        "Inkling2VisionConfig",
        PATCHES,
        {"head_dim": 64, "axes": blocks(1, 0, pairs=16), **PER_AXIS, **INTERLEAVED},
    ),
    Model(
        "minimax_m3_vl-vision",
        "minimax_m3_vl",
        "MiniMaxM3VLVisionRotaryEmbedding",
        "MiniMaxM3VLVisionConfig",
        PATCHES,
        {
            "head_dim": 80,
            "rotary_dim": 78,
            "axes": blocks(0, 1, 2, pairs=13),
            **PER_AXIS,
        },
    ),
]
each = pytest.mark.parametrize("model", MODELS, ids=str)


def their_error(base: float) -> float:
    """How far transformers' float32 frequency is from ours, relative.

    Its exponent, below 1, is rounded by up to half a unit, which the power multiplies by ln base; the power (2 units)
    and the reciprocal are rounded; ours is rounded once.
    """
    return (math.log(base) / 2 + 4) * UNIT


def one_per_pair(table: Any, layout: str) -> np.ndarray:
    """A column for each pair, of tables that hold it for both channels."""
    table = np.asarray(table)
    n = table.shape[-1] // 2
    halves = (table[..., :n], table[..., n:])
    first, second = halves if layout == "half" else (table[..., ::2], table[..., 1::2])
    np.testing.assert_array_equal(first, second)
    return first


def tables(twin: Any, config: Any, positions: np.ndarray, **options: Any) -> Tables:
    """Ours, from the config's frequencies or others."""
    inv_freq = options.pop("inv_freq", None)
    if inv_freq is None:
        inv_freq = config.inv_freq()
    return twin.call("rope_cos_sin", positions, inv_freq, axes=config.axes, **options)


def rotated(twin: Any, config: Any, x: np.ndarray, made: Tables) -> np.ndarray:
    static = {"layout": config.layout, "placement": config.placement}
    return twin.call_heads("apply_rope", x, *made, count=1, **static)


def queries_and_keys(seq: int, channels: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(channels)
    shapes = ((BATCH, seq, heads, channels) for heads in (QUERY_HEADS, KEY_HEADS))
    query, key = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return query, key


def rotation_error(x: np.ndarray) -> float:
    """Of two products and a sum on each side, and of tables that are two units apart."""
    return 2 * float(np.abs(x).max()) * (6 * UNIT + TWO_UNITS)


def angles(config: Any, positions: np.ndarray) -> np.ndarray:
    """Radians in float64, without the package's arithmetic."""
    return positions[..., list(config.axes)] * config.inv_freq(dtype="float64")


@both
@each
def test_from_hf_reads_what_is_written_here(twin, model):
    read = twin.package.RopeConfig.from_hf(model.config, layer_type=model.layer_type)
    assert read == twin.package.RopeConfig(**model.described)


@both
@each
def test_rope_cos_sin_with_axes_gives_the_model_s_tables(twin, model):
    config = twin.package.RopeConfig(**model.described)
    positions = model.positions()
    made = tables(twin, config, positions)
    # Besides the frequency, the product is rounded on each side.
    limit = np.abs(angles(config, positions)) * (their_error(config.base) + 2 * UNIT)
    for table, theirs in zip(made, model.tables(positions), strict=True):
        theirs = one_per_pair(theirs, config.layout).reshape(table.shape)
        assert (np.abs(table - theirs) <= limit + TWO_UNITS).all()


@both
@each
def test_their_frequencies_give_their_tables_queries_and_keys(twin, model):
    """At every position: the angle is the same float32 product."""
    config = twin.package.RopeConfig(**model.described)
    positions = model.positions(1)
    made = tables(twin, config, positions, inv_freq=model.held())
    theirs = model.tables(positions)
    for table, right in zip(made, theirs, strict=True):
        right = one_per_pair(right, config.layout).reshape(table.shape)
        assert np.abs(table - right).max() <= TWO_UNITS
    given = queries_and_keys(positions.shape[-2], config.head_dim)
    # Both in one call, which is half the programs.
    turned = rotated(twin, config, np.concatenate(given, -2), made)
    ours = np.split(turned, [QUERY_HEADS], -2)
    for x, y, right in zip(given, ours, model.rotated(theirs, *given), strict=True):
        found = model.calls.to_heads(y)
        np.testing.assert_allclose(found, right, rtol=0, atol=rotation_error(x))


@both
def test_axes_go_with_a_scaling_rule(twin):
    """Qwen2-VL for long videos, as published: YaRN's frequencies, shared out among the axes, and its magnitude."""
    parameters = {
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32_768,
        "mrope_section": [16, 24, 24],
    }
    module = modeling("qwen2_vl")
    own_config = module.Qwen2VLTextConfig(rope_parameters=parameters)
    own = module.Qwen2VLRotaryEmbedding(own_config)
    config = twin.package.RopeConfig.from_hf(own_config)
    factor = config.attention_factor()
    assert factor == pytest.approx(0.1 * math.log(4) + 1, rel=2.0**-52)
    positions = np.random.default_rng(9).integers(0, FAR, (BATCH, 11, 3))
    theirs = own(torch.zeros(1), torch.from_numpy(TEXT.ids(positions).copy()))
    held = own.inv_freq.numpy()
    # Some ten float32 roundings more than plain frequencies have: the ramp and the blend.
    relative = their_error(config.base) + 10 * UNIT
    np.testing.assert_allclose(held, config.inv_freq(dtype="float64"), rtol=relative)
    options = {"inv_freq": held, "attention_factor": factor}
    made = tables(twin, config, positions, **options)
    for table, right in zip(made, theirs, strict=True):
        # The product with the factor is rounded on each side, too.
        off = np.abs(table - one_per_pair(right, "half")).max()
        assert off <= factor * (TWO_UNITS + 2 * UNIT)


# Models whose positions come from the image ---------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("file", "rotary", "config_class"),
    [
        ("dinov3_vit", "DINOv3ViTRopePositionEmbedding", "DINOv3ViTConfig"),
        ("eomt_dinov3", "EomtDinov3RotaryEmbedding", "EomtDinov3Config"),
        ("sapiens2", "Sapiens2RopePositionEmbedding", "Sapiens2Config"),
    ],
)
def test_patch_centres_give_dinov3_s_rotation(twin, file, rotary, config_class):
    """The class and register tokens, which do not rotate, are at the centre of the image, (0, 0)."""
    own_config = getattr(modeling(file), config_class)()
    own = getattr(modeling(file), rotary)(own_config).eval()
    config = twin.package.RopeConfig.from_hf(own_config)
    pairs = config.head_dim // 4
    assert config == twin.package.RopeConfig(
        config.head_dim, base=100.0, axes=blocks(0, 1, pairs=pairs), **PER_AXIS
    )
    side = own_config.patch_size
    image = torch.zeros(1, 3, ROWS * side, COLUMNS * side)
    prefix = 4
    positions = np.concatenate(
        (np.zeros((prefix, 2)), np.asarray(twin.package.patch_centres(ROWS, COLUMNS)))
    )
    inv_freq = (2 * math.pi * config.inv_freq(dtype="float64")).astype(np.float32)
    made = tables(twin, config, positions.astype(np.float32), inv_freq=inv_freq)
    # Their centre, below 1, is rounded three times; 2 pi, two products and the frequency on their side, and the centre,
    # the frequency and the product on ours, are relative to the angle.
    frequency = 2 * math.pi * config.inv_freq(dtype="float64")
    relative = their_error(config.base) + 6 * UNIT
    limit = frequency * (3 * UNIT + np.abs(positions[:, list(config.axes)]) * relative)
    theirs = own(image)
    for table, right in zip(made, theirs, strict=True):
        right = one_per_pair(right, "half")
        off = np.abs(table[prefix:] - right)
        assert (off <= (limit + TWO_UNITS)[prefix:]).all()
    given = queries_and_keys(len(positions), config.head_dim)
    heads = (torch.from_numpy(heads_first(x)) for x in given)
    apply = modeling(file).apply_rotary_pos_emb
    for x, right in zip(given, apply(*heads, *theirs), strict=True):
        ours = rotated(twin, config, x, made)
        np.testing.assert_array_equal(ours[:, :prefix], x[:, :prefix])
        # What the tables are apart, once for each channel of a pair.
        atol = rotation_error(x) + 2 * np.abs(x).max() * limit.max()
        np.testing.assert_allclose(heads_first(ours), right, rtol=0, atol=atol)


@both
def test_flux_from_its_own_class(twin):
    """Its angles are float64: ours are, and so are exact ones as far as float32 shows."""
    from diffusers.models.embeddings import apply_rotary_emb
    from diffusers.models.transformers.transformer_flux import FluxPosEmbed

    config = twin.package.RopeConfig(
        128,
        layout="interleaved",
        axes=blocks(0, pairs=8) + blocks(1, 2, pairs=28),
        progression="per_axis",
    )
    grid = posenc_jax.grid_positions(2, ROWS, COLUMNS).astype(int)
    far = np.random.default_rng(2).integers(0, FAR, (6, 3))
    positions = np.concatenate((grid, far))
    theirs = FluxPosEmbed(10_000, [16, 56, 56])(torch.from_numpy(positions))
    inv_freq = config.inv_freq(dtype="float64")
    options = {"inv_freq": inv_freq}
    double = tables(twin, config, positions, dtype=twin.float64, **options)
    exact = tables(twin, config, positions, angles="exact", **options)
    for wide, narrow, right in zip(double, exact, theirs, strict=True):
        right = one_per_pair(right, "interleaved")
        # Their rounding to float32, and an angle of 131072 that is off by 10 float64 units of itself.
        assert np.abs(wide - right).max() <= UNIT / 2 + 10 * FAR * 2.0**-53
        assert np.abs(narrow - right).max() <= TWO_UNITS + UNIT / 2
    for x in queries_and_keys(len(positions), 128):
        right = apply_rotary_emb(torch.from_numpy(heads_first(x)), theirs)
        ours = heads_first(rotated(twin, config, x, exact))
        np.testing.assert_allclose(ours, right, rtol=0, atol=rotation_error(x))


@both
def test_timm_s_printed_table(twin):
    """timm 1.0.31 (EVA02): build_rotary_pos_embed([2, 3], dim=8, in_pixels=False) of row 1, column 2, each twice."""
    sin = [0.8414709568023682, 0.009999833069741726]
    sin += [0.9092974066734314, 0.019998665899038315]
    cos = [0.5403023362159729, 0.9999499917030334]
    cos += [-0.416146844625473, 0.9998000264167786]
    config = twin.package.RopeConfig(
        8, layout="interleaved", axes=(0, 0, 1, 1), progression="per_axis"
    )
    made = tables(twin, config, np.asarray(twin.package.grid_positions(2, 3)))
    for table, right in zip(made, (cos, sin), strict=True):
        # Angles of 1, 2 and below 0.02, whose frequency is 1 or a few units off.
        np.testing.assert_allclose(table[5], right, rtol=0, atol=TWO_UNITS)


# Models that from_hf refuses, and what of them axes describe ----------------------------------------------------------


@both
def test_gemma4_s_vision_is_plain_rope_of_half_a_head_for_each_axis(twin):
    """The axes of a position become a batch axis: x [batch, 2, seq, heads, head_dim / 2]."""
    module = modeling("gemma4")
    own_config = module.Gemma4VisionConfig()
    own = module.Gemma4VisionRotaryEmbedding(own_config)
    width = own_config.head_dim // 2
    config = twin.package.RopeConfig(
        width, base=own_config.rope_parameters["rope_theta"]
    )
    grid = posenc_jax.grid_positions(ROWS, COLUMNS).astype(int)
    positions = np.stack((grid, grid[::-1] + FAR))
    theirs = own(torch.zeros(1), torch.from_numpy(positions))
    made = twin.call(
        "rope_cos_sin", np.moveaxis(positions, -1, 1), own.inv_freq.numpy()
    )
    for x in queries_and_keys(len(grid), own_config.head_dim):
        right = module.apply_multidimensional_rope(
            torch.from_numpy(x), *theirs, torch.from_numpy(positions)
        )
        parts = np.moveaxis(x.reshape(*x.shape[:-1], 2, width), -2, 1)
        ours = np.moveaxis(rotated(twin, config, parts, made), 1, -2).reshape(x.shape)
        np.testing.assert_allclose(ours, right, rtol=0, atol=rotation_error(x))
    # Their frequencies and the config's.
    held, written = own.inv_freq.numpy(), config.inv_freq(dtype="float64")
    np.testing.assert_allclose(held, written, rtol=their_error(config.base))


@both
def test_llama4_s_vision_is_axial_with_columns_first(twin):
    """Rows and columns from 1; the class token, the last, at (0, 0), where nothing turns."""
    module = modeling("llama4")
    own_config = module.Llama4VisionConfig(image_size=5 * 14, patch_size=14)
    theirs = module.Llama4VisionRotaryEmbedding(own_config)(torch.zeros(1))
    width = own_config.hidden_size // own_config.num_attention_heads
    config = twin.package.RopeConfig(
        width,
        layout="interleaved",
        axes=blocks(1, 0, pairs=width // 4),
        progression="per_axis",
    )
    assert twin.package.RopeConfig.from_hf(own_config) == config
    positions = np.concatenate((posenc_jax.grid_positions(5, 5) + 1, [[0, 0]]))
    made = tables(twin, config, positions)
    limit = np.abs(angles(config, positions)) * (their_error(config.base) + 2 * UNIT)
    turns = theirs.reshape(len(positions), -1)
    for table, right in zip(made, (turns.real, turns.imag), strict=True):
        assert (np.abs(table - right.numpy()) <= limit + TWO_UNITS).all()
    query, key = queries_and_keys(len(positions), width)
    given = (torch.from_numpy(x) for x in (query, key))
    rights = module.vision_apply_rotary_emb(*given, theirs)
    for x, right in zip((query, key), rights, strict=True):
        ours = rotated(twin, config, x, made)
        atol = rotation_error(x) + 2 * np.abs(x).max() * limit.max()
        np.testing.assert_allclose(ours, right, rtol=0, atol=atol)


@both
def test_efficientloftr_rotates_the_whole_width_before_heads_are_split(twin):
    """As one head as wide as the model, rows and columns from 1, pair by pair."""
    module = modeling("efficientloftr")
    own_config = module.EfficientLoFTRConfig()
    own = module.EfficientLoFTRRotaryEmbedding(own_config)
    width, stride = own_config.hidden_size, own_config.q_aggregation_stride
    theirs = own(torch.zeros(1, width, ROWS * stride, COLUMNS * stride))
    theirs = [table.reshape(1, ROWS * COLUMNS, width) for table in theirs]
    config = twin.package.RopeConfig(
        width, layout="interleaved", axes=(0, 1) * (width // 4), progression="per_axis"
    )
    assert twin.package.RopeConfig.from_hf(own_config) == config
    positions = posenc_jax.grid_positions(ROWS, COLUMNS)[None] + 1
    held = np.repeat(own.inv_freq.numpy(), 2)
    np.testing.assert_allclose(
        held, config.inv_freq(dtype="float64"), rtol=their_error(config.base)
    )
    made = tables(twin, config, positions, inv_freq=held)
    x = queries_and_keys(ROWS * COLUMNS, width)[0][:, :, :1]
    given = torch.from_numpy(x)
    right, _ = module.apply_rotary_pos_emb(given, given, *theirs, unsqueeze_dim=2)
    ours = rotated(twin, config, x, made)
    np.testing.assert_allclose(ours, right, rtol=0, atol=rotation_error(x))


@both
def test_musicflamingo_turns_by_two_real_coordinates(twin):
    """The window's number and the frame's, as parts of the longest audio, each times the time; no heads."""
    module = modeling("musicflamingo")
    own_config = module.MusicFlamingoConfig()
    own = module.MusicFlamingoRotaryEmbedding(own_config)
    number, frames = np.array([[3], [1_000]]), 7
    step = own_config.audio_frame_step * 4
    times = (number * frames * step + np.arange(frames) * step).astype(np.float32)
    theirs = own(torch.from_numpy(times), frames)
    longest, pairs = own.max_seq_len_cached, len(own.inv_freq)
    window, frame = number / longest, 2 * math.pi * np.arange(frames) / longest
    positions = np.stack(np.broadcast_arrays(window, frame), -1)
    positions = (positions * -2 * math.pi * times[..., None]).astype(np.float32)
    config = twin.package.RopeConfig(
        own_config.head_dim,
        base=own_config.rope_parameters["rope_theta"],
        rotary_dim=4 * pairs,
        layout="interleaved",
        axes=blocks(0, 1, pairs=pairs),
        progression="per_axis",
    )
    made = tables(twin, config, positions)
    # Their coordinate and angle are five float32 products and quotients; our coordinate is rounded, and our product.
    limit = np.abs(angles(config, positions)) * (their_error(config.base) + 7 * UNIT)
    for table, right in zip(made, theirs, strict=True):
        right = one_per_pair(right, "interleaved")
        assert (np.abs(table - right) <= limit + TWO_UNITS).all()
    assert np.abs(positions).max() > 1_000
    x = queries_and_keys(frames, config.head_dim)[0][:, :, :1]
    right = module.apply_rotary_time_emb(torch.from_numpy(x[:, :, 0]), *theirs)
    ours = rotated(twin, config, x, made)[:, :, 0]
    atol = rotation_error(x) + 2 * np.abs(x).max() * limit.max()
    np.testing.assert_allclose(ours, right, rtol=0, atol=atol)


def test_hunyuan_vl_turns_the_two_channels_of_a_pair_by_different_axes():
    """So only where all coordinates are equal, in text, is it a rotation of pairs, and there it is plain RoPE."""
    module = modeling("hunyuan_vl")
    sections = [16, 16, 16, 16]
    parameters = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections}
    own = module.HunYuanVLRotaryEmbedding(
        module.HunYuanVLTextConfig(head_dim=128, rope_parameters=parameters)
    )
    channel = torch.arange(128)
    text = torch.arange(11).expand(4, BATCH, 11)
    one_per_pair(own(torch.zeros(1), text)[0], "half")
    apart = text * torch.tensor([1, 2, 3, 5])[:, None, None]
    cos, _ = own(torch.zeros(1), apart)
    angle = apart[channel // 32].movedim(0, -1) * own.inv_freq[channel % 64]
    assert (cos - angle.cos()).abs().max() <= TWO_UNITS
    assert (cos[..., :64] - cos[..., 64:]).abs().max() > 0.1


def test_vjepa2_is_not_a_rotation():
    """It tiles frequencies as for halves and pairs neighbours: the two channels of a pair turn by different angles."""
    module = modeling("vjepa2")
    x = torch.from_numpy(heads_first(queries_and_keys(11, 8)[0]))
    turned = module.rotate_queries_or_keys(x, torch.arange(11))
    angle = torch.arange(11)[:, None] * 10_000.0 ** -(torch.arange(4) / 4)
    first, second = x[..., ::2], x[..., 1::2]
    cos, sin = angle.repeat(1, 2).cos(), angle.repeat(1, 2).sin()
    one = first * cos[:, ::2] - second * sin[:, ::2]
    other = second * cos[:, 1::2] + first * sin[:, 1::2]
    formula = torch.stack((one, other), -1).flatten(-2)
    # Angles up to 10, whose frequencies are a few units off, times channels up to 4.
    assert (turned - formula).abs().max() <= 2 * 4 * 10 * 6 * UNIT
    lengths = [part.unflatten(-1, (-1, 2)).norm(dim=-1) for part in (x, turned)]
    assert (lengths[0] - lengths[1]).abs().max() > 0.1


# What holds for all arrangements --------------------------------------------------------------------------------------

ARRANGED = {
    "chunked": {"head_dim": 12, "axes": mrope_axes((1, 2, 3))},
    "interleaved": {
        "head_dim": 16,
        "axes": mrope_axes((4, 2, 2), order="interleaved"),
        **INTERLEAVED,
    },
    "ernie": {"head_dim": 12, "axes": mrope_axes((2, 2, 2), order="ernie")},
    "partial": {"head_dim": 16, "rotary_dim": 12, "axes": mrope_axes((1, 2, 3))},
}
arranged = pytest.mark.parametrize("described", ARRANGED.values(), ids=ARRANGED)


@both
@arranged
@pytest.mark.parametrize("how", ["float32", "exact"])
def test_equal_coordinates_are_plain_rope_bit_for_bit(twin, described, how):
    config = twin.package.RopeConfig(**described)
    positions = np.random.default_rng(3).integers(0, FAR, (BATCH, 11))
    by_axes = tables(twin, config, np.stack((positions,) * 3, -1), angles=how)
    plain = twin.call("rope_cos_sin", positions, config.inv_freq(), angles=how)
    for one, other in zip(by_axes, plain, strict=True):
        np.testing.assert_array_equal(one, other)


@both
def test_exact_angles_with_axes_are_right_everywhere(twin):
    """Two units, as without axes: of the rest of at most pi / 4, rounded twice, and of its cosine or sine."""
    config = twin.package.RopeConfig(16, axes=(0, 1, 2, 0, 1, 2, 0, 0))
    rng = np.random.default_rng(4)
    extremes = np.array([[0, 2**31 - 1, -(2**31)], [-1, 2**24 + 1, 131_071]])
    drawn = rng.integers(-(2**31), 2**31, (20, 3))
    positions = np.concatenate((drawn, extremes)).astype(np.int32)
    inv_freq = config.inv_freq(dtype="float64")
    made = tables(twin, config, positions, inv_freq=inv_freq, angles="exact")
    with mpmath.workdps(40):
        right = [
            [
                mpmath.cos_sin(mpmath.mpf(int(token[axis])) * mpmath.mpf(float(f)))
                for axis, f in zip(config.axes, inv_freq, strict=True)
            ]
            for token in positions
        ]
        right = np.array(right, float)
    for i, table in enumerate(made):
        assert np.abs(table - right[..., i]).max() <= TWO_UNITS


@both
@arranged
def test_batch_axes_of_positions_may_be_fewer_or_one(twin, described):
    """Positions [2, 1, seq, axes] of x [4, 2, 3, seq, heads, channels] are those of every sequence alone."""
    config = twin.package.RopeConfig(**described)
    rng = np.random.default_rng(6)
    x = rng.normal(size=(4, 2, 3, 7, 5, config.head_dim))
    positions = rng.integers(0, 100, (2, 1, 7, 3))
    together = rotated(twin, config, x, tables(twin, config, positions))
    for i in range(2):
        made = tables(twin, config, positions[i, 0])
        alone = rotated(twin, config, x[2, i, 1], made)
        np.testing.assert_array_equal(together[2, i, 1], alone)


def directions(twin: Any, config: Any, positions: np.ndarray) -> np.ndarray:
    """The gradient with respect to positions, of a random cotangent of rotated queries, in float64."""
    inv_freq = config.inv_freq(dtype="float64")

    def rotate(positions: Any, x: Any) -> Any:
        options = {"axes": config.axes, "dtype": twin.float64}
        made = twin.package.rope_cos_sin(positions, inv_freq, **options)
        return twin.package.apply_rope(x, *made, layout=config.layout)

    x, cotangent = (twin.heads(part) for part in QUERY_AND_COTANGENT)
    if twin.name == "torch":
        at = torch.from_numpy(positions).requires_grad_()
        turned = rotate(at, torch.from_numpy(np.ascontiguousarray(x)))
        loss = (turned * torch.from_numpy(np.ascontiguousarray(cotangent))).sum()
        return torch.autograd.grad(loss, at)[0].numpy()
    with jax.enable_x64(True):
        gradient = jax.grad(lambda at: (rotate(at, x) * cotangent).sum())
        return np.asarray(jax.jit(gradient)(jnp.asarray(positions)))


QUERY_AND_COTANGENT = np.random.default_rng(7).normal(
    size=(2, ROWS * COLUMNS, QUERY_HEADS, 16)
)


@both
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("axes", [blocks(0, 1, pairs=4), (1, 0) * 4], ids=str)
def test_gradient_in_real_coordinates(twin, layout, axes):
    """An angle moves its pair by the quarter turn of what it has become, and a coordinate moves its pairs' angles."""
    config = twin.package.RopeConfig(
        16, base=100.0, axes=axes, layout=layout, **PER_AXIS
    )
    positions = np.asarray(twin.package.patch_centres(ROWS, COLUMNS))
    x, cotangent = QUERY_AND_COTANGENT
    options = {"inv_freq": config.inv_freq(dtype="float64"), "dtype": twin.float64}
    turned = rotated(twin, config, x, tables(twin, config, positions, **options))
    quarter = twin.call("rotate_half", turned, layout=layout)
    moved = (cotangent * quarter).sum(1)
    moved = moved.reshape(len(moved), *((2, 8) if layout == "half" else (8, 2)))
    by_pair = moved.sum(1 if layout == "half" else 2) * options["inv_freq"]
    right = np.stack(
        [by_pair[:, np.array(axes) == axis].sum(-1) for axis in (0, 1)], -1
    )
    # Float64 sums of 24 products of order 1 to 10.
    found = directions(twin, config, positions)
    np.testing.assert_allclose(found, right, rtol=0, atol=24 * 10 * 8 * 2.0**-53)
    assert np.abs(right).max() > 1


@arranged
def test_axes_under_jit_compile_once_for_every_position(described):
    config = posenc_jax.RopeConfig(**described)
    count = 0

    @partial(jax.jit, static_argnames="config")
    def step(positions, config):
        nonlocal count
        count += 1
        return posenc_jax.rope_cos_sin(positions, config.inv_freq(), axes=config.axes)

    rng = np.random.default_rng(8)
    for farthest in (10, 1_000, FAR):
        positions = jnp.asarray(rng.integers(0, farthest, (BATCH, 11, 3)), jnp.int32)
        same = posenc_jax.RopeConfig(**described)
        eager = posenc_jax.rope_cos_sin(positions, config.inv_freq(), axes=config.axes)
        for one, other in zip(step(positions, same), eager, strict=True):
            assert np.abs(one - other).max() <= TWO_UNITS
    assert count == 1


@both
def test_grid_positions_run_over_the_last_axis_first(twin):
    made = np.asarray(twin.package.grid_positions(2, 3))
    right = [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    np.testing.assert_array_equal(made, right)
    assert np.issubdtype(made.dtype, np.signedinteger)


@both
def test_patch_centres_are_symmetric_about_the_centre_of_the_image(twin):
    made = np.asarray(twin.package.patch_centres(ROWS, COLUMNS)).reshape(
        ROWS, COLUMNS, 2
    )
    np.testing.assert_allclose(made, -made[::-1, ::-1], atol=2.0**-53)
    np.testing.assert_allclose(made[0, 0], [1 / ROWS - 1, 1 / COLUMNS - 1], rtol=1e-15)
