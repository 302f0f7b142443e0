"""Positional encodings for transformers in JAX: sinusoidal, learned, rotary (RoPE) and linear biases (ALiBi)."""

from .alibi import alibi_bias, alibi_slopes
from .attention import (
    dot_product_attention,
    scaled_dot_product_attention_with_alibi,
)
from .learned import init_position_table, learned_position_encoding
from .positions import last_positions, position_range
from .rope import (
    RopeConfig,
    apply_rope,
    apply_rotary_pos_emb,
    permute_rope_weights,
    rope_cos_sin,
    rotate_half,
)
from .rope_axes import grid_positions, mrope_axes, patch_centres
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
from .sinusoidal import add_position_encoding, sinusoidal_position_encoding
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
    "dot_product_attention",
    "grid_positions",
    "init_position_table",
    "last_positions",
    "learned_position_encoding",
    "mrope_axes",
    "patch_centres",
    "permute_rope_weights",
    "position_range",
    "rope_cos_sin",
    "rotate_half",
    "scaled_dot_product_attention_with_alibi",
    "sinusoidal_position_encoding",
    "xpos_scale",
    "yarn_mscale",
]
