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

# Each table, and the names that mean it.
FAMILIES = (
    # One coordinate.
    (
        PAPER,
        "paper pytorch_tutorial speecht5 florence2 xlm flaubert distilbert videomae wav2vec2-conformer keras_hub "
        "flax_nlp_seq axlearn_roformer",
    ),
    (Options(spacing="next_even"), "positional_encodings"),
    (
        HALF,
        "marian pegasus roformer autoformer informer time_series_transformer xlnet transformer_xl",
    ),
    (
        ENDPOINT,
        "tensor2tensor flax_wmt flax_lm1b maxtext praxis axlearn timesfm pegasus_x tipsv2 gemma4_audio whisper "
        "qwen2_audio ddpm",
    ),
    (
        FAIRSEQ,
        "fairseq fsmt m2m_100 nllb-moe xglm speech_to_text trocr kosmos-2 seamless_m4t",
    ),
    (ENDPOINT._replace(layout="half_cos_first"), "musicgen"),
    (COSINES_FIRST, "stable_diffusion sdxl flux vibevoice"),
    (SCALED, "x_transformers canary"),
    # Two coordinates, (height, width), or three, (depth, height, width).
    (COLUMNS_FIRST, "mae vit_mae dit pixart scenic"),
    (COLUMNS_FIRST._replace(axes=(0, 2, 1)), "scenic_3d"),
    (ENDPOINT._replace(axes=(1, 0)), "big_vision simple_vit"),
    (ROWS_FIRST._replace(layout="half_across_axes"), "timm"),
    (ROWS_FIRST, "timm_interleaved praxis_2d rt_detr d_fine moco_v3"),
    (Options(axes=(0, 1)), "detr_unnormalized"),
    (
        DETR,
        "detr conditional_detr deformable_detr maskformer mask2former oneformer sam2",
    ),
    (DETR._replace(base=20.0), "dab-detr grounding-dino"),
)

PRESETS = MappingProxyType(
    {name: options for options, names in FAMILIES for name in names.split()}
)
NAMES = tuple(PRESETS)
LINE_NAMES = tuple(name for name in NAMES if PRESETS[name].axes is None)


def expand(preset: str, **given: Any) -> Options:
    """The options of a preset, but for those given."""
    chosen = {name: value for name, value in given.items() if value is not None}
    return PRESETS[preset]._replace(**chosen)
