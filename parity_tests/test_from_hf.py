"""`RopeConfig.from_hf` against every model of the installed transformers that has a rotary embedding.

For each class: the configuration with its defaults is read, our tables are compared with those of its own module,
ours again from the model's own frequencies, and the rotation with the model's own function. A model that is left out is
named below with the reason, and must be refused.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

import posenc_jax
import posenc_torch

from .hf_models import Rotary, configs_with_rope, rotaries
from .twins import TWINS

# Every model here is in the table of `_hf_models.py`.
pytestmark = pytest.mark.filterwarnings("error:.*is not known:UserWarning")

UNIT = 2.0**-24

# What no RopeConfig describes: from_hf refuses it.
REFUSED = {
    "gemma4.Gemma4VisionRotaryEmbedding": "halves are rotated within the channels of each axis",
    "hunyuan_vl.HunYuanVLRotaryEmbedding": "the two channels of a pair take different axes",
    "musicflamingo.MusicFlamingoRotaryEmbedding": "angles are products of two times",
}
# No configuration of the usual form, so there is nothing to read.
WITHOUT_CONFIG = {
    "clvp.ClvpRotaryPositionalEmbedding": "its width is a maximum written in the code",
    "esmfold2.EsmFold2RotaryEmbedding": "rotates by coordinates of atoms in space",
}
# Positions are computed inside, from an image: test_rope_axes.py gives them theirs.
FROM_IMAGES = {
    "dinov3_vit.DINOv3ViTRopePositionEmbedding",
    "efficientloftr.EfficientLoFTRRotaryEmbedding",
    "eomt_dinov3.EomtDinov3RotaryEmbedding",
    "llama4.Llama4VisionRotaryEmbedding",
    "sapiens2.Sapiens2RopePositionEmbedding",
}
# The rotation is not a function of its own in the model's file.
WITHOUT_FUNCTION = {
    "seamless_m4t.SeamlessM4TConformerRotaryPositionalEmbedding",
    "wav2vec2_bert.Wav2Vec2BertRotaryPositionalEmbedding",
    "wav2vec2_conformer.Wav2Vec2ConformerRotaryPositionalEmbedding",
}
# Configurations whose folder holds no model: their checkpoints run as another's.
BORROWED = {"exaone", "internlm3", "iquestcoder", "sarvam_mla", "sarvam_moe"}

ALL = rotaries()
MODELS = [
    pytest.param(rotary, id=str(rotary))
    for rotary in ALL
    if str(rotary) not in {*REFUSED, *WITHOUT_CONFIG, *FROM_IMAGES}
]
each = pytest.mark.parametrize("rotary", MODELS)

# Every position to 4096, then sparse to the model's maximum.
DENSE = np.arange(4097)


def layers_of(config: Any, rotary: Any) -> list[str | None]:
    """The layer types whose frequencies the model holds, or None for all layers."""
    parameters = getattr(config, "rope_parameters", None) or {}
    layers = [key for key, value in parameters.items() if isinstance(value, dict)]
    held = [key for key in layers if hasattr(rotary, f"{key}_inv_freq")]
    return held or [None]


def positions_for(config: Any, read: Any, longest: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    sparse = np.unique(np.geomspace(4097, max(longest, 4098), 64).astype(int) - 1)
    positions = np.concatenate((DENSE, sparse))
    positions = positions[positions < longest]
    if read.axes is None:
        return positions
    others = [rng.permutation(positions) for _ in range(max(read.axes))]
    return np.stack((positions, *others), -1)


def their_inv_freq(rotary: Rotary, module: Any, read: Any, layer: str | None) -> Any:
    """The model's own frequencies, [n] of our pairs."""
    name = "inv_freq" if layer is None else f"{layer}_inv_freq"
    held = getattr(module, name).detach().numpy()
    if read.progression == "per_axis":
        number = [read.axes[:i].count(axis) for i, axis in enumerate(read.axes)]
        return held[number]
    if str(rotary) == "ernie4_5_vl_moe.Ernie4_5_VLMoeTextRotaryEmbedding":
        # Held sorted by axis: even pairs, odd pairs, then those of time.
        spatial = len(read.axes) - read.axes.count(0)
        order = np.concatenate((np.r_[:spatial:2], np.r_[1:spatial:2]))
        sorted_back = np.empty(len(held), int)
        sorted_back[order] = np.arange(spatial)
        sorted_back[spatial:] = np.arange(spatial, len(held))
        return held[sorted_back]
    return held


def their_error(read: Any) -> float:
    """What transformers' float32 costs a frequency, relative.

    Its exponent i / n is rounded, by up to half a unit, which the power multiplies by ln base; the power, the
    reciprocal and what a scaling rule does with them are six more roundings at most; ours is one.
    """
    return (math.log(read.base) / 2 + 7) * UNIT


def bound(angle: np.ndarray, relative: float, factor: float) -> np.ndarray:
    """A cosine is off by at most its angle's error, and by two units of its own and of the factor's product."""
    return factor * (np.abs(angle) * relative + 2 * UNIT)


@each
def test_from_hf_gives_the_model_s_tables(rotary: Rotary):
    config, module = rotary.build()
    for layer in layers_of(config, module):
        read = posenc_torch.RopeConfig.from_hf(config, layer_type=layer)
        longest = longest_position(rotary, config, module)
        positions = positions_for(config, read, longest)
        length = None
        if read.scaling is not None and read.scaling.needs_seq_len:
            length = int(positions.max()) + 1
        cos, sin = rotary.tables(config, module, positions, layer)
        ours = read.inv_freq(length)
        factor = read.attention_factor(length)
        axes = list(read.axes) if read.axes else None
        at = positions[:, axes] if axes else positions[:, None]
        # Both sides round the product once.
        limit = bound(at * ours, their_error(read) + 2 * UNIT, factor)
        for twin in TWINS:
            theirs = twin.package.RopeConfig.from_hf(config, layer_type=layer)
            assert dataclasses.asdict(theirs) == dataclasses.asdict(read)
            made = map(np.asarray, theirs.cos_sin(twin.array(positions), length))
            for table, right in zip(made, (cos, sin), strict=True):
                assert table.shape == right.shape
                excess = np.abs(table.astype(np.float64) - right) - limit
                assert excess.max() <= 0, (layer, twin.name, excess.max())


@each
def test_their_frequencies_give_their_tables_at_every_position(rotary: Rotary):
    """Two units, however far: the angle is the same float32 product, so only cos and sin differ."""
    config, module = rotary.build()
    for layer in layers_of(config, module):
        read = posenc_torch.RopeConfig.from_hf(config, layer_type=layer)
        if rotary.sin_first:
            assert not hasattr(module, "inv_freq")
            continue  # they hold tables, not frequencies
        longest = longest_position(rotary, config, module)
        positions = positions_for(config, read, longest)
        cos, sin = rotary.tables(config, module, positions, layer)
        inv_freq = their_inv_freq(rotary, module, read, layer)
        length = int(positions.max()) + 1
        factor = read.attention_factor(length)
        for twin in TWINS:
            made = twin.call(
                "rope_cos_sin",
                positions,
                inv_freq,
                attention_factor=factor,
                axes=list(read.axes) if read.axes else None,
            )
            for table, right in zip(made, (cos, sin), strict=True):
                assert np.abs(table - right).max() <= 2 * UNIT * factor, twin.name


@each
def test_from_hf_gives_the_model_s_rotation(rotary: Rotary):
    """Layout and placement, by the model's own function on its own tables."""
    config, module = rotary.build()
    layer = layers_of(config, module)[0]
    read = posenc_torch.RopeConfig.from_hf(config, layer_type=layer)
    rng = np.random.default_rng(1)
    positions = positions_for(config, read, 12)
    cos, sin = rotary.tables(config, module, positions, layer)
    x = rng.normal(size=(len(positions), 3, read.head_dim)).astype(np.float32)
    theirs = rotated_by_model(rotary, x, cos, sin, read)
    if str(rotary) in WITHOUT_FUNCTION:
        assert theirs is None
        return
    assert theirs is not None, "the model's file has no function that rotates"
    # Two products and a sum, of |x| up to its largest; theirs may be rounded in another order.
    limit = 4 * UNIT * 2 * np.abs(x).max() * max(1.0, float(np.abs(cos).max()))
    for twin in TWINS:
        ours = twin.package.RopeConfig.from_hf(config, layer_type=layer)
        given = (twin.heads(twin.array(x[None])), twin.array(cos), twin.array(sin))
        turned = np.asarray(twin.heads(ours.apply(*given)))
        np.testing.assert_allclose(turned[0], theirs, rtol=0, atol=limit)


def longest_position(rotary: Rotary, config: Any, module: Any) -> int:
    if "position_ids" not in rotary.arguments(module):
        return 600  # one table of every position, of a waveform's frames
    longest = getattr(config, "max_position_embeddings", None) or 4097
    # A grid has no more rows than float32 can tell apart, and no model says how many.
    return int(min(longest, 2**21))


def rotated_by_model(
    rotary: Rotary, x: np.ndarray, cos: np.ndarray, sin: np.ndarray, read: Any
) -> np.ndarray | None:
    """Where the model's function takes the rotated channels alone, the rest is put back."""
    whole = torch.from_numpy(x)
    try:
        out = rotary.rotate(whole, cos, sin, read.layout)
        return None if out is None else out.numpy()
    except RuntimeError:
        width = read.rotary_dim
        assert width < read.head_dim
        assert read.placement == "leading"
        out = rotary.rotate(whole[..., :width], cos, sin, read.layout)
        return None if out is None else np.concatenate((out, x[..., width:]), -1)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_from_hf_refuses_what_it_cannot_describe(name: str):
    rotary = next(rotary for rotary in ALL if str(rotary) == name)
    config, _ = rotary.build()
    for twin in TWINS:
        with pytest.raises(ValueError, match="whose rotation a RopeConfig describes"):
            twin.package.RopeConfig.from_hf(config)


def test_every_configuration_with_rope_is_tried():
    """The names above are all there are, and each is still in transformers."""
    folders = {str(rotary).split(".")[0] for rotary in ALL}
    missing = {folder for folder, _ in configs_with_rope()} - folders
    assert missing == BORROWED
    named = {*REFUSED, *WITHOUT_CONFIG, *FROM_IMAGES, *WITHOUT_FUNCTION}
    assert named <= {str(rotary) for rotary in ALL}
    assert len(MODELS) > 200


@each
def test_a_dict_says_what_the_object_says(rotary: Rotary):
    """The contents of config.json, in the current form and, where the parameters are flat, in the oldest."""
    config, module = rotary.build()
    contents = config.to_dict()
    for layer in layers_of(config, module):
        read = posenc_jax.RopeConfig.from_hf(config, layer_type=layer)
        assert posenc_jax.RopeConfig.from_hf(contents, layer_type=layer) == read
        if layer is not None or "rope_parameters" not in contents:
            continue
        old = dict(contents)
        rope = dict(old.pop("rope_parameters"))
        old["rope_theta"] = rope.pop("rope_theta")
        for key in ("partial_rotary_factor", "original_max_position_embeddings"):
            if key in rope:
                old[key] = rope.pop(key)
        rope["type"] = rope.pop("rope_type")
        old["rope_scaling"] = rope if rope != {"type": "default"} else None
        assert posenc_jax.RopeConfig.from_hf(old) == read


@each
def test_to_hf_gives_it_back(rotary: Rotary):
    config, module = rotary.build()
    for layer in layers_of(config, module):
        read = posenc_torch.RopeConfig.from_hf(config, layer_type=layer)
        written = read.to_hf(config.model_type or None, layer_type=layer)
        assert posenc_torch.RopeConfig.from_hf(written, layer_type=layer) == read


def test_roformer_rotates_neighbours_by_its_sinusoids():
    """The paper's own model has no rotary class: it takes a sinusoidal table apart."""
    from transformers.models.roformer import modeling_roformer as roformer

    config = roformer.RoFormerConfig()
    read = posenc_torch.RopeConfig.from_hf(config)
    width = config.hidden_size // config.num_attention_heads
    embedding = roformer.RoFormerSinusoidalPositionalEmbedding(
        config.max_position_embeddings, width
    )
    table = embedding.create_weight()
    x = np.random.default_rng(0).normal(size=(1, len(table), 2, width))
    x = x.astype(np.float32)
    heads = torch.from_numpy(x).transpose(1, 2)
    rotate = roformer.RoFormerSelfAttention.apply_rotary_position_embeddings
    theirs, _ = rotate(table[None, None], heads, heads)
    # Their table is float64, rounded once; our angle is off by a unit of the frequency and one of the product.
    limit = 2 * UNIT * len(table) + 4 * UNIT
    for twin in TWINS:
        cos, sin = twin.call("rope_cos_sin", np.arange(len(table)), read.inv_freq())
        ours = twin.call_heads("apply_rope", x, cos, sin, count=1, layout=read.layout)
        error = np.abs(ours - theirs.transpose(1, 2).numpy())
        assert error.max() <= limit * 2 * np.abs(x).max()


def test_nested_truncate_is_heeded():
    """transformers 5.24 reads YaRN's `truncate` beside the layer types, where nested parameters never have it."""
    from transformers.models.olmo3 import modeling_olmo3 as olmo3

    rope = {"rope_type": "yarn", "factor": 8.0, "rope_theta": 5e5, "truncate": False}
    rope["original_max_position_embeddings"] = 8192
    layer = "full_attention"
    plain = {"rope_type": "default", "rope_theta": 5e5}
    config = olmo3.Olmo3Config(
        rope_parameters={layer: rope, "sliding_attention": plain}
    )
    held = olmo3.Olmo3RotaryEmbedding(config).full_attention_inv_freq.numpy()
    read = posenc_torch.RopeConfig.from_hf(config, layer_type=layer)
    rounded = dataclasses.replace(
        read, scaling=dataclasses.replace(read.scaling, truncate=True)
    )
    np.testing.assert_allclose(held, rounded.inv_freq(), rtol=their_error(read))
    assert np.abs(held / read.inv_freq() - 1).max() > 1e-3
