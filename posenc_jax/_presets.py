"""Which sinusoidal table each library or model ships, as arguments.

The same file is in both packages. A name is that of a library, or the `model_type` of a model in transformers; those of
diffusion models mean their times.
"""

from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = ["LINE_NAMES", "NAMES", "Options", "expand"]


class Options(NamedTuple):
    """What `sinusoidal_position_encoding` is told beside positions and columns; here, the paper's."""

    base: Any = 10_000.0
    layout: Any = "interleaved"
    spacing: Any = "dim"
    axes: Any = None
    angle_scale: Any = 1.0
    amplitude: Any = 1.0
    padding_idx: Any = None


PAPER = Options()

HALF = Options(layout="half")
ENDPOINT = Options(layout="half", spacing="endpoint")
FAIRSEQ = Options(layout="half", spacing="endpoint", padding_idx=1)
COSINES_FIRST = Options(layout="half_cos_first", spacing="half")
SCALED = Options(layout="half", amplitude="rsqrt_dim")
ROWS_FIRST = Options(layout="half", spacing="half", axes=(0, 1))
COLUMNS_FIRST = Options(layout="half", spacing="half", axes=(1, 0))
# Of positions from 0 to 1: `grid_positions_from_mask(mask, normalize="end")`, or "centre" for Deformable DETR.
DETR = Options(axes=(0, 1), angle_scale=6.283185307179586)

# Names that mean the same table.
FAMILIES = (
    # One coordinate.
    (("paper", "pytorch_tutorial", "speecht5", "florence2", "xlm"), PAPER),
    (("flaubert", "distilbert", "videomae"), PAPER),
    (("wav2vec2-conformer", "keras_hub", "flax_nlp_seq", "axlearn_roformer"), PAPER),
    (("positional_encodings",), Options(spacing="next_even")),
    (("marian", "pegasus", "roformer", "autoformer", "informer"), HALF),
    (("time_series_transformer", "xlnet", "transformer_xl"), HALF),
    (("tensor2tensor", "flax_wmt", "flax_lm1b", "maxtext", "praxis"), ENDPOINT),
    (("axlearn", "timesfm", "pegasus_x", "tipsv2", "gemma4_audio"), ENDPOINT),
    (("whisper", "qwen2_audio", "ddpm"), ENDPOINT),
    (("fairseq", "fsmt", "m2m_100", "nllb-moe"), FAIRSEQ),
    (("xglm", "speech_to_text", "trocr", "kosmos-2", "seamless_m4t"), FAIRSEQ),
    (("musicgen",), ENDPOINT._replace(layout="half_cos_first")),
    (("stable_diffusion", "sdxl", "flux", "vibevoice"), COSINES_FIRST),
    (("x_transformers", "canary"), SCALED),
    # Two coordinates, (height, width), or three, (depth, height, width).
    (("mae", "vit_mae", "dit", "pixart", "scenic"), COLUMNS_FIRST),
    (("scenic_3d",), COLUMNS_FIRST._replace(axes=(0, 2, 1))),
    (("big_vision", "simple_vit"), ENDPOINT._replace(axes=(1, 0))),
    (("timm",), ROWS_FIRST._replace(layout="half_across_axes")),
    (("timm_interleaved", "praxis_2d", "rt_detr", "d_fine", "moco_v3"), ROWS_FIRST),
    (("detr_unnormalized",), Options(axes=(0, 1))),
    (("detr", "conditional_detr", "deformable_detr", "maskformer"), DETR),
    (("mask2former", "oneformer", "sam2"), DETR),
    (("dab-detr", "grounding-dino"), DETR._replace(base=20.0)),
)

PRESETS = MappingProxyType(
    {name: options for names, options in FAMILIES for name in names}
)
NAMES = tuple(PRESETS)
LINE_NAMES = tuple(name for name in NAMES if PRESETS[name].axes is None)


def expand(preset: str, **given: Any) -> Options:
    """The options of a preset, but for those given."""
    chosen = {name: value for name, value in given.items() if value is not None}
    return PRESETS[preset]._replace(**chosen)
