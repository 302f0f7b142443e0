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
from .sinusoidal import add_position_encoding, sinusoidal_position_encoding

__all__ = [
    "RopeConfig",
    "add_position_encoding",
    "alibi_bias",
    "alibi_slopes",
    "apply_rope",
    "apply_rotary_pos_emb",
    "dot_product_attention",
    "init_position_table",
    "last_positions",
    "learned_position_encoding",
    "permute_rope_weights",
    "position_range",
    "rope_cos_sin",
    "rotate_half",
    "scaled_dot_product_attention_with_alibi",
    "sinusoidal_position_encoding",
]
