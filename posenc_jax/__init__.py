"""Positional encodings for transformers in JAX: sinusoidal, learned, rotary (RoPE) and linear biases (ALiBi)."""

from .alibi import alibi_bias, alibi_slopes
from .attention import (
    dot_product_attention,
    scaled_dot_product_attention_with_alibi,
)
from .learned import (
    axial_position_encoding,
    init_position_table,
    learned_position_encoding,
    resize_position_table,
)
from .positions import (
    grid_positions,
    grid_positions_from_mask,
    last_positions,
    patch_centres,
    position_range,
    positions_from_mask,
    positions_from_segments,
    shard_positions,
)
from .ring import ring_attention
from .rope import (
    RopeConfig,
    apply_rope,
    apply_rotary_pos_emb,
    permute_rope_weights,
    rope_cos_sin,
    rotate_half,
)
from .rope_axes import mrope_axes
from .rope_scaling import (
    DynamicNtkScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NtkScaling,
    ProportionalScaling,
    Scaling,
    YarnScaling,
    yarn_mscale,
)
from .sinusoidal import (
    add_position_encoding,
    fourier_position_encoding,
    sinusoidal_position_encoding,
    sinusoidal_preset,
)
from .xpos import xpos_scale

__all__ = [
    "DynamicNtkScaling",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "NtkScaling",
    "ProportionalScaling",
    "RopeConfig",
    "Scaling",
    "YarnScaling",
    "add_position_encoding",
    "alibi_bias",
    "alibi_slopes",
    "apply_rope",
    "apply_rotary_pos_emb",
    "axial_position_encoding",
    "dot_product_attention",
    "fourier_position_encoding",
    "grid_positions",
    "grid_positions_from_mask",
    "init_position_table",
    "last_positions",
    "learned_position_encoding",
    "mrope_axes",
    "patch_centres",
    "permute_rope_weights",
    "position_range",
    "positions_from_mask",
    "positions_from_segments",
    "resize_position_table",
    "ring_attention",
    "rope_cos_sin",
    "rotate_half",
    "scaled_dot_product_attention_with_alibi",
    "shard_positions",
    "sinusoidal_position_encoding",
    "sinusoidal_preset",
    "xpos_scale",
    "yarn_mscale",
]
