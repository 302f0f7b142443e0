"""What the code of each model in Hugging Face's transformers does and its configuration does not say.

One row for a model, by `model_type` (without a final "_text"). The same file is in both packages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = ["MODELS", "Model", "rows_first"]

Grid = Callable[[int], tuple[int, ...]]


def rows_first(n: int) -> tuple[int, ...]:
    """n pairs of rows, then n of columns."""
    return (0,) * n + (1,) * n


def columns_first(n: int) -> tuple[int, ...]:
    """n pairs of columns, then n of rows."""
    return (1,) * n + (0,) * n


def alternating(n: int) -> tuple[int, ...]:
    """Row, column, row, ..."""
    return (0, 1) * n


def columns_alternating(n: int) -> tuple[int, ...]:
    """Column, row, column, ..."""
    return (1, 0) * n


def thirds(n: int) -> tuple[int, ...]:
    """n pairs of time, n of rows, n of columns."""
    return (0,) * n + (1,) * n + (2,) * n


class OldLayers(NamedTuple):
    """How a configuration used to describe its two types of layers, in flat keys.

    Args:
        full, sliding: The keys of their bases.
        scaled: The types that `rope_scaling` is for.
    """

    full: str
    sliding: str
    scaled: tuple[str, ...] = ("full_attention",)


class Model(NamedTuple):
    """One model.

    Args:
        layout, placement, inverse: As in `RopeConfig`.
        partial: The part of a head that rotates where `partial_rotary_factor` is absent.
        reads_rotary_dim: It may state that part by the key `rotary_dim`.
        base: The base, where it is written in the code.
        mrope: How M-RoPE shares the pairs out, and into what sections where `mrope_section` is absent.
        grid: From the pairs of one axis to `RopeConfig.axes`, where pairs turn with rows and columns.
        progression: As in `RopeConfig`, where there is a `grid`.
        types: Other names of its rope types.
        old_layers: Its older description of layers.
        other_keys: Rope parameters that its attention reads for other ends.
        only_if: It rotates only if this key has this value.
        own_head_dim: Its class has a default `head_dim` of its own, so that a dict must state it.
        nested: Its rope parameters must be nested by layer type.
        latent: A dict must state `qk_rope_head_dim`, all that rotates.
        unlike: Why no `RopeConfig` describes it.
    """

    layout: str = "half"
    placement: str = "leading"
    inverse: bool = False
    partial: float = 1.0
    reads_rotary_dim: bool = False
    base: float | None = None
    mrope: tuple[Any, tuple[int, ...]] | None = None
    grid: Grid | None = None
    progression: str = "per_axis"
    types: tuple[tuple[str, str], ...] = ()
    old_layers: OldLayers | None = None
    other_keys: tuple[str, ...] = ()
    only_if: tuple[str, Any] | None = None
    own_head_dim: bool = False
    nested: bool = False
    latent: bool = False
    unlike: str | None = None


GEMMA = OldLayers("rope_theta", "rope_local_base_freq")
MIMO = OldLayers("rope_theta", "swa_rope_theta")
OLMO = OldLayers("rope_theta", "rope_theta")
MODERNBERT = OldLayers(
    "global_rope_theta", "local_rope_theta", ("full_attention", "sliding_attention")
)

# Nothing to say: pairs (i, i + n) of the whole head, or of the part that the configuration names.
PLAIN = """
afmoe apertus apertus1p5 arcee aria beam bitnet chameleon csm csm_depth_decoder_model cwm dbrx deepseek_ocr2
deepseek_ocr2_encoder dia_decoder dia_encoder diffllama diffusion_gemma doge dory dots1 embedding_gemma2
emu3_text_model esmc eurobert evolla exaone exaone4 exaone_moe falcon falcon_h1 flex_olmo flint gemma gemma2
gemma4 gemma4_unified gpt_neox_japanese gpt_oss gradium_phonon_tts granite granite4_vision granite_docling
granite_swa granitemoe granitemoe_swa granitemoeshared gte higgs_audio_v2 hrm hunyuan_v1_dense hunyuan_v1_moe
hy_v3 hy_v4 hyperclovax idefics internlm2 internlm3 iquestcoder jais2 jetmoe jina_embeddings_v3 kolibri1
kyutai_speech_to_text laguna lara_mini lasr_encoder lfm2 lfm2_moe lfm3 llama mellum mimi mimi_decoder
mimi_encoder minicpm3 minimax ministral mistral mixtral mllama_text_model molmo2 moshi muse_glimmer
muse_glimmer_assistant muse_spark nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_word_timestamp
nemotron3_diarization_audio neucodec nomic_bert olmo olmo2 olmo_hybrid olmoe phi3_v phimoe pocket_tts
pocket_tts_audio_tokenizer pocket_tts_audio_tokenizer_decoder pocket_tts_audio_tokenizer_encoder qwen2
qwen2_5_omni_dit qwen2_moe qwen3 qwen3_moe qwen3_omni_moe_talker_code_predictor sarvam_moe seed_oss smollm3
solar_open starcoder2 step3p5 t5_gemma_module t5gemma2_encoder timesfm2_5 ultrabert unlimited_ocr vaultgemma
voxtral_realtime voxtral_realtime_encoder xcodec2 zaya
"""
# Vision towers: rows first, each axis with a progression of its own, of a base that older code had written in it.
VISION = """
cohere_compass_vision dots3_note_vision_encoder ernie4_5_vl_moe_vision exaone4_5_vision glm4v_moe_vision
glm4v_vision glm5_next_vision glm_ocr_vision mlcd_vision_model muse_glimmer_vision muse_spark_vision
paddleocr_vl_vision qwen2_5_omni_vision_encoder qwen2_5_vl_vision qwen2_vl_vision qwen3_5_moe_vision
qwen3_5_vision qwen3_omni_moe_vision_encoder qwen3_vl_moe_vision qwen3_vl_vision qwen4_exp_vision
video_llama_3_vision
"""
# Their classes have a default `head_dim` that is not what the hidden size and the heads say.
OWN_HEAD_DIM = """
afmoe beam cohere2_moe cosmos3_edge cwm deepseek_v4 dia_encoder diffusion_gemma dory embedding_gemma2 ernie4_5
flint gemma gemma2 gemma3 gemma3n gemma4 gemma4_unified glm glm4 gpt_oss helium higgs_audio_v2 hrm hy_v3 jetmoe
kolibri1 laguna lara_mini lfm3 llama4 mellum mimo_v2_flash minimax_m2 minimax_m3_vl ministral3 molmo2
muse_glimmer muse_glimmer_assistant muse_spark neomme neucodec openai_privacy_filter paddleocr_vl
pe_audio_encoder pe_audio_video_encoder pe_video_encoder qwen2_5_omni_dit qwen3 qwen3_5 qwen3_5_moe qwen3_next
qwen3_omni_moe_talker_code_predictor qwen3_vl qwen4_exp seed_oss solar_open step3p5 t5_gemma_module t5gemma2
timesfm2_5 vaultgemma xcodec2 zaya
"""

ROWS: Mapping[str, Model] = MappingProxyType(
    {
        **dict.fromkeys(PLAIN.split(), Model()),
        **dict.fromkeys(VISION.split(), Model(grid=rows_first, base=10_000.0)),
        "axk1": Model(layout="interleaved_to_half"),
        "axk2": Model(layout="interleaved_to_half"),
        "bailing_hybrid": Model(layout="interleaved_to_half"),
        "bamba": Model(partial=0.5),
        "blt": Model(layout="interleaved"),
        "blt_global_transformer": Model(layout="interleaved"),
        "blt_local_decoder": Model(layout="interleaved"),
        "blt_local_encoder": Model(layout="interleaved"),
        "blt_patcher": Model(layout="interleaved"),
        "codegen": Model(layout="interleaved", base=10_000.0, reads_rotary_dim=True),
        "cohere": Model(layout="interleaved"),
        "cohere2": Model(layout="interleaved"),
        "cohere2_moe": Model(layout="interleaved"),
        "cohere_compass": Model(mrope=("interleaved", (24, 20, 20))),
        "cosmos3_edge": Model(mrope=("interleaved", (24, 20, 20))),
        "deepseek_v2": Model(layout="interleaved"),
        "deepseek_v3": Model(layout="interleaved_to_half"),
        "deepseek_v32": Model(layout="interleaved_to_half"),
        "deepseek_v4": Model(
            layout="interleaved",
            placement="trailing",
            other_keys=("compress_rope_theta",),
        ),
        "dinov3_vit": Model(grid=rows_first),
        "dots3_note": Model(layout="interleaved_to_half"),
        "dots3_note_audio_encoder": Model(partial=0.5),
        "edgetam_video": Model(layout="interleaved", grid=rows_first),
        "efficientloftr": Model(layout="interleaved", grid=alternating),
        "eomt_dinov3": Model(grid=rows_first),
        "ernie4_5": Model(layout="interleaved"),
        "ernie4_5_moe": Model(layout="interleaved"),
        "ernie4_5_vl_moe": Model(layout="interleaved", mrope=("ernie", (22, 22, 20))),
        "esm": Model(only_if=("position_embedding_type", "rotary")),
        "gemma3": Model(old_layers=GEMMA),
        "gemma3n": Model(old_layers=GEMMA),
        "gemma4_vision": Model(
            unlike="it rotates halves within the channels of each axis"
        ),
        "glm": Model(layout="interleaved", partial=0.5),
        "glm4": Model(layout="interleaved", partial=0.5),
        "glm4_moe": Model(partial=0.5),
        "glm4_moe_lite": Model(layout="interleaved_to_half"),
        "glm4v": Model(layout="interleaved", mrope=("chunked", (8, 12, 12))),
        "glm4v_moe": Model(partial=0.5, mrope=("chunked", (8, 12, 12))),
        "glm_image": Model(mrope=("chunked", (8, 12, 12))),
        "glm_moe_dsa": Model(layout="interleaved_to_half"),
        "glm_ocr": Model(layout="interleaved", mrope=("chunked", (8, 12, 12))),
        "glmasr_encoder": Model(partial=0.5),
        "gpt_neox": Model(partial=0.25),
        "gptj": Model(layout="interleaved", base=10_000.0, reads_rotary_dim=True),
        "granitemoehybrid": Model(only_if=("position_embedding_type", "rope")),
        "helium": Model(layout="interleaved"),
        "hunyuan_vl": Model(
            unlike="the two channels of a pair turn by angles of different axes"
        ),
        "hy_v4_vl": Model(layout="interleaved", mrope=("interleaved", (12, 10, 10))),
        "inkling2_vision": Model(layout="interleaved", grid=columns_first),
        "kimi_linear": Model(unlike="it has no positions"),
        "nemotron_h": Model(unlike="it has no positions"),
        "zamba2": Model(only_if=("use_mem_rope", True)),
        "kimi_k2": Model(layout="interleaved_to_half"),
        "kimi_k25_vision": Model(grid=columns_alternating),
        "lfm3_vl_vision": Model(grid=rows_first),
        "llama4": Model(layout="interleaved"),
        "llama4_vision_model": Model(layout="interleaved", grid=columns_first),
        "longcat_flash": Model(layout="interleaved_to_half"),
        "minimax_m3_vl": Model(other_keys=("rotary_dim",)),
        "mimo_v2_flash": Model(partial=0.334, old_layers=MIMO),
        "minimax_m2": Model(reads_rotary_dim=True),
        "minimax_m3_vl_vision": Model(grid=thirds),
        "ministral3": Model(
            other_keys=("llama_4_scaling_beta", "max_position_embeddings")
        ),
        "mistral4": Model(
            layout="interleaved_to_half",
            other_keys=("llama_4_scaling_beta", "max_position_embeddings"),
        ),
        "mistral_large4": Model(layout="interleaved_to_half"),
        "modernbert": Model(old_layers=MODERNBERT),
        "modernbert-decoder": Model(old_layers=MODERNBERT),
        "moonshine": Model(layout="interleaved", partial=0.9),
        "moonshine_streaming": Model(layout="interleaved"),
        "musicflamingo": Model(unlike="its angles are products of two times"),
        "nanochat": Model(inverse=True),
        "nemotron": Model(partial=0.5),
        "neomme": Model(grid=alternating, progression="shared"),
        "olmo3": Model(old_layers=OLMO),
        "openai_privacy_filter": Model(layout="interleaved"),
        "paddleocr_vl": Model(mrope=("chunked", (16, 24, 24))),
        "pe_audio_encoder": Model(layout="interleaved"),
        "pe_audio_video_encoder": Model(layout="interleaved"),
        "pe_video_encoder": Model(layout="interleaved"),
        "persimmon": Model(partial=0.5),
        "phi": Model(partial=0.5),
        "phi3": Model(types=(("yarn", "longrope"),)),
        "phi4_multimodal": Model(types=(("yarn", "longrope"),)),
        "pixtral": Model(grid=rows_first, progression="alternating"),
        "qwen2_5_omni": Model(mrope=("chunked", (16, 24, 24))),
        "qwen2_5_omni_talker": Model(mrope=("chunked", (16, 24, 24))),
        "qwen2_5_vl": Model(mrope=("chunked", (16, 24, 24))),
        "qwen2_vl": Model(mrope=("chunked", (16, 24, 24))),
        "qwen3_5": Model(partial=0.25, mrope=("interleaved", (11, 11, 10))),
        "qwen3_5_moe": Model(partial=0.25, mrope=("interleaved", (11, 11, 10))),
        "qwen3_next": Model(partial=0.25),
        "qwen3_omni_moe": Model(mrope=("interleaved", (24, 20, 20))),
        "qwen3_omni_moe_talker": Model(mrope=("interleaved", (24, 20, 20))),
        "qwen3_vl": Model(mrope=("interleaved", (24, 20, 20))),
        "qwen3_vl_moe": Model(mrope=("interleaved", (24, 20, 20))),
        "qwen4_exp": Model(mrope=("interleaved", (11, 11, 10))),
        "recurrent_gemma": Model(partial=0.5),
        "roformer": Model(layout="interleaved", base=10_000.0),
        "sam2_video": Model(layout="interleaved", grid=rows_first),
        "sam3_tracker_video": Model(layout="interleaved", grid=rows_first),
        "sam3_vit_model": Model(layout="interleaved", grid=rows_first),
        "sapiens2": Model(grid=rows_first),
        "sarvam_mla": Model(layout="interleaved_to_half"),
        "seamless_m4t": Model(only_if=("position_embeddings_type", "rotary")),
        "stablelm": Model(partial=0.25),
        "step3p5_vision": Model(grid=columns_first),
        "t5gemma2": Model(old_layers=GEMMA),
        "t5gemma2_decoder": Model(old_layers=GEMMA),
        "vjepa2": Model(unlike="the two channels of a pair turn by different angles"),
        "wav2vec2-bert": Model(only_if=("position_embeddings_type", "rotary")),
        "wav2vec2-conformer": Model(only_if=("position_embeddings_type", "rotary")),
        "youtu": Model(layout="interleaved_to_half"),
    }
)

# Latent attention: only the slice of `qk_rope_head_dim` channels rotates, and it is kept apart.
LATENT = """
axk1 axk2 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 dots3_note glm4_moe_lite glm_moe_dsa hy_v4 hy_v4_vl
kimi_k2 longcat_flash minicpm3 mistral4 mistral_large4 sarvam_mla youtu
"""
# Layers differ, in more than their bases: flat rope parameters cannot say how.
NESTED = """
beam deepseek_v4 diffusion_gemma dory dots3_note embedding_gemma2 gemma4 gemma4_unified laguna lfm3 mellum neomme
step3p5 ultrabert zaya
"""

MODELS: Mapping[str, Model] = MappingProxyType(
    {
        name: row._replace(
            own_head_dim=name in OWN_HEAD_DIM.split(),
            nested=name in NESTED.split(),
            latent=name in LATENT.split(),
        )
        for name, row in ROWS.items()
    }
)
