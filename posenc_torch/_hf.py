"""Between a model's Hugging Face configuration and the fields of `RopeConfig`.

`read` follows transformers 5, `modeling_rope_utils`, and each model's own code where it departs from it. The same file
is in both packages.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ._checks import (
    check_choice,
    check_length,
    check_positive,
    check_sections,
    check_size,
    describe,
)
from .rope_axes import mrope_axes
from .rope_scaling import (
    DynamicNtkScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NtkScaling,
    ProportionalScaling,
    YarnScaling,
)

__all__ = ["read", "write"]

# What a model's code does and its configuration does not say, by `model_type` (without a final "_text"). -------------

# Pairs (2i, 2i + 1). All others form pairs (i, i + n).
INTERLEAVED = frozenset(
    {
        "blt",
        "blt_global_transformer",
        "blt_local_decoder",
        "blt_local_encoder",
        "blt_patcher",
        "codegen",
        "cohere",
        "cohere2",
        "cohere2_moe",
        "deepseek_v2",
        "deepseek_v4",
        "edgetam_video",
        "efficientloftr",
        "ernie4_5",
        "ernie4_5_moe",
        "ernie4_5_vl_moe",
        "glm",
        "glm4",
        "glm4v",
        "glm_ocr",
        "gptj",
        "helium",
        "hy_v4_vl",
        "inkling2_vision",
        "llama4",
        "llama4_vision_model",
        "moonshine",
        "moonshine_streaming",
        "openai_privacy_filter",
        "pe_audio_encoder",
        "pe_audio_video_encoder",
        "pe_video_encoder",
        "sam2_video",
        "sam3_tracker_video",
        "sam3_vit_model",
    }
)
# Pairs (2i, 2i + 1), written as (i, i + n), unless the configuration says otherwise by `rope_interleave`.
INTERLEAVED_TO_HALF = frozenset(
    {
        "axk1",
        "axk2",
        "bailing_hybrid",
        "deepseek_v3",
        "deepseek_v32",
        "dots3_note",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "longcat_flash",
        "mistral4",
        "mistral_large4",
        "sarvam_mla",
        "youtu",
    }
)
TRAILING = frozenset({"deepseek_v4"})
INVERSE = frozenset({"nanochat"})

# The part of a head that rotates where `partial_rotary_factor` is absent.
PARTIAL = MappingProxyType(
    {
        "bamba": 0.5,
        "dots3_note_audio_encoder": 0.5,
        "glm": 0.5,
        "glm4": 0.5,
        "glm4_moe": 0.5,
        "glm4v_moe": 0.5,
        "glmasr_encoder": 0.5,
        "gpt_neox": 0.25,
        "mimo_v2_flash": 0.334,
        "moonshine": 0.9,
        "nemotron": 0.5,
        "persimmon": 0.5,
        "phi": 0.5,
        "qwen3_5": 0.25,
        "qwen3_5_moe": 0.25,
        "qwen3_next": 0.25,
        "recurrent_gemma": 0.5,
        "stablelm": 0.25,
    }
)

# How M-RoPE shares the pairs out, and into what sections where `mrope_section` is absent.
MROPE: Mapping[str, tuple[Any, tuple[int, ...]]] = MappingProxyType(
    {
        "cohere_compass": ("interleaved", (24, 20, 20)),
        "cosmos3_edge": ("interleaved", (24, 20, 20)),
        "ernie4_5_vl_moe": ("ernie", (22, 22, 20)),
        "glm4v": ("chunked", (8, 12, 12)),
        "glm4v_moe": ("chunked", (8, 12, 12)),
        "glm_image": ("chunked", (8, 12, 12)),
        "glm_ocr": ("chunked", (8, 12, 12)),
        "hy_v4_vl": ("interleaved", (24, 20, 20)),
        "paddleocr_vl": ("chunked", (16, 24, 24)),
        "qwen2_5_omni": ("chunked", (16, 24, 24)),
        "qwen2_5_vl": ("chunked", (16, 24, 24)),
        "qwen2_vl": ("chunked", (16, 24, 24)),
        "qwen3_5": ("interleaved", (11, 11, 10)),
        "qwen3_5_moe": ("interleaved", (11, 11, 10)),
        "qwen3_omni_moe": ("interleaved", (24, 20, 20)),
        "qwen3_vl": ("interleaved", (24, 20, 20)),
        "qwen3_vl_moe": ("interleaved", (24, 20, 20)),
        "qwen4_exp": ("interleaved", (11, 11, 10)),
    }
)

# Models whose pairs turn with rows and columns although their rope type is the default one.
UNNAMED_AXIAL = frozenset(
    {
        "dinov3_vit",
        "efficientloftr",
        "eomt_dinov3",
        "llama4_vision_model",
        "sapiens2",
    }
)
# Those that do not put the rows' pairs before the columns': pairs per axis -> axes.
AXIAL: Mapping[str, Callable[[int], tuple[int, ...]]] = MappingProxyType(
    {
        "efficientloftr": lambda n: (0, 1) * n,
        "inkling2_vision": lambda n: (1,) * n + (0,) * n,
        "kimi_k25_vision": lambda n: (1, 0) * n,
        "llama4_vision_model": lambda n: (1,) * n + (0,) * n,
        "minimax_m3_vl_vision": lambda n: (0,) * n + (1,) * n + (2,) * n,
        "neomme": lambda n: (0, 1) * n,
        "step3p5_vision": lambda n: (1,) * n + (0,) * n,
    }
)

UNLIKE = MappingProxyType(
    {
        "gemma4_vision": "it rotates halves within the channels of each axis",
        "hunyuan_vl": "the two channels of a pair turn by angles of different axes",
        "musicflamingo": "its angles are products of two times",
        "vjepa2": "the two channels of a pair turn by different angles",
    }
)

# The keys of `rope_parameters` that a type uses: those it must have, and others.
ALWAYS = frozenset(
    {"rope_type", "rope_theta", "partial_rotary_factor", "mrope_section"}
)
KEYS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        "default": ((), ()),
        "axial": ((), ()),
        "linear": (("factor",), ()),
        "dynamic": (("factor",), ()),
        "ntk_alpha": (("alpha",), ("factor",)),
        "yarn": (
            ("factor", "original_max_position_embeddings"),
            (
                "attention_factor",
                "beta_fast",
                "beta_slow",
                "mscale",
                "mscale_all_dim",
                "truncate",
            ),
        ),
        "longrope": (
            ("short_factor", "long_factor", "original_max_position_embeddings"),
            ("factor", "attention_factor", "short_mscale", "long_mscale"),
        ),
        "llama3": (
            (
                "factor",
                "low_freq_factor",
                "high_freq_factor",
                "original_max_position_embeddings",
            ),
            (),
        ),
        "proportional": (("partial_rotary_factor",), ("factor",)),
    }
)
TRAINED = "original_max_position_embeddings"
# Older names of types.
RENAMED = MappingProxyType({"su": "longrope", "mrope": "default"})
# Keys among them that a model's attention reads.
ELSEWHERE = MappingProxyType(
    {
        "ministral3": {"llama_4_scaling_beta", "max_position_embeddings"},
        "mistral4": {"llama_4_scaling_beta", "max_position_embeddings"},
    }
)

# Other names of the keys beside them, first come first served.
NAMES = MappingProxyType(
    {
        "rope_theta": ("rope_theta", "rotary_emb_base", "rotary_embedding_base"),
        "partial_rotary_factor": ("partial_rotary_factor", "rotary_pct"),
        "max_position_embeddings": (
            "max_position_embeddings",
            "n_positions",
            "max_seq_len",
        ),
        "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
        # Qwen2-VL's vision tower has both of the first; its `hidden_size` is the text model's.
        "hidden_size": ("embed_dim", "hidden_size", "n_embd", "d_model"),
        "num_attention_heads": (
            "num_attention_heads",
            "num_heads",
            "n_head",
            "n_heads",
            "decoder_num_attention_heads",
            "speech_encoder_attention_heads",
        ),
    }
)


def read(config: Any, layer_type: str | None) -> dict[str, Any]:
    """The fields of `RopeConfig` for a configuration object or dict."""
    get = _getter(config)
    model = _model(get)
    rope = _parameters(get, layer_type)
    head_dim, width = _widths(get, layer_type, rope, model)
    fields = {
        "head_dim": head_dim,
        "base": rope["rope_theta"],
        "rotary_dim": width,
        "layout": _layout(get, model),
        "placement": "trailing" if model in TRAILING else "leading",
        "inverse": model in INVERSE,
        "scaling": _scaling(get, rope),
    }
    return fields | _axes(rope, model, width)


def write(config: Any) -> dict[str, Any]:
    """The configuration of a `RopeConfig`, in the current form."""
    scaling = config.scaling
    rope: dict[str, Any] = {"rope_type": _type(config), "rope_theta": config.base}
    written: dict[str, Any] = {"head_dim": config.head_dim, "rope_parameters": rope}
    if config.rotary_dim != config.head_dim:
        rope["partial_rotary_factor"] = _part(config.rotary_dim, config.head_dim)
    if scaling is not None:
        for name, value in vars(scaling).items():
            if name == "max_position_embeddings":
                written[name] = value
            elif value is not None:
                rope[name] = list(value) if isinstance(value, tuple) else value
    if config.axes is not None:
        rope |= _mrope_keys(config)
    return written


def _getter(config: Any) -> Callable[[str], Any]:
    if isinstance(config, Mapping):
        return config.get
    if not hasattr(config, "model_type"):
        raise TypeError(
            f"`config` must be a Hugging Face configuration or a dict, "
            f"got {describe(config)}."
        )
    return lambda key: getattr(config, key, None)


def _model(get: Callable[[str], Any]) -> str:
    model = get("model_type") or ""
    if not isinstance(model, str):
        raise TypeError(f"`model_type` must be a string, got {describe(model)}.")
    model = model.removesuffix("_text")
    unlike = UNLIKE.get(model)
    if get("alibi"):
        unlike = "it has linear biases (ALiBi) in place of a rotation"
    if unlike is not None:
        raise ValueError(
            f"`config` must be of a model whose rotation a RopeConfig describes, "
            f"got {model!r}: {unlike}."
        )
    return model


def _named(get: Callable[[str], Any], key: str) -> Any:
    """The value of a key under the first of its names that has one."""
    found = (get(name) for name in NAMES[key])
    return next((value for value in found if value is not None), None)


# Rope parameters -----------------------------------------------------------------------------------------------------


def _parameters(get: Callable[[str], Any], layer_type: str | None) -> dict[str, Any]:
    """The rope parameters of these layers in the current form, flat."""
    rope = _of_layers(_two_bases(get, _given(get)), layer_type)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    kind = RENAMED.get(kind, kind) if isinstance(kind, str) else kind
    if kind == "dynamic" and rope.get("alpha") is not None:
        kind = "ntk_alpha"
    check_choice("rope_type", kind, tuple(KEYS))
    rope["rope_type"] = kind
    rope.pop("type", None)
    for key in ("rope_theta", "partial_rotary_factor"):
        if rope.get(key) is None and _named(get, key) is not None:
            rope[key] = _named(get, key)
    model = get("model_type")
    if model in ("gptj", "codegen"):
        rope.setdefault("rope_theta", 10_000.0)  # written in their code
    if model in UNNAMED_AXIAL:
        rope["rope_type"] = "axial"
    # Phi-3 keeps it beside the dict, where it has priority over that of all layers.
    trained = get(TRAINED)
    wanted = TRAINED in KEYS[rope["rope_type"]][0] and trained is not None
    if wanted and (layer_type is None or TRAINED not in rope):
        rope[TRAINED] = trained
    _check_keys(get, rope)
    return rope


def _given(get: Callable[[str], Any]) -> Mapping[str, Any]:
    """The parameters under their newer name or their older one."""
    new, old = get("rope_parameters") or {}, get("rope_scaling") or {}
    for name, rope in (("rope_parameters", new), ("rope_scaling", old)):
        if not isinstance(rope, Mapping):
            raise TypeError(f"`{name}` must be a dict, got {describe(rope)}.")
    if new and old and new != old:
        raise ValueError(
            "`rope_scaling` must not be given beside other `rope_parameters`, "
            f"got {dict(old)} and {dict(new)}."
        )
    return new or old


def _two_bases(get: Callable[[str], Any], rope: Mapping[str, Any]) -> Mapping[str, Any]:
    """Gemma 3 and ModernBERT used to name the bases of their two layer types one by one."""
    full, local = get("rope_theta"), get("rope_local_base_freq")
    if local is None:
        full, local = get("global_rope_theta"), get("local_rope_theta")
    if local is None or any(isinstance(value, Mapping) for value in rope.values()):
        return rope
    return {
        "full_attention": {"rope_theta": full, **rope},
        "sliding_attention": {"rope_theta": local},
    }


def _of_layers(rope: Mapping[str, Any], layer_type: str | None) -> dict[str, Any]:
    layers = [key for key, value in rope.items() if isinstance(value, Mapping)]
    if not layers:
        if layer_type is not None:
            raise ValueError(
                f"`layer_type` must be None, since all layers have one set of rope "
                f"parameters, got {layer_type!r}."
            )
        return dict(rope)
    if layer_type not in layers:
        raise ValueError(
            f"`layer_type` must be one of {', '.join(map(repr, layers))}, "
            f"got {layer_type!r}."
        )
    return dict(rope[layer_type])


def _check_keys(get: Callable[[str], Any], rope: Mapping[str, Any]) -> None:
    kind = rope["rope_type"]
    required, others = KEYS[kind]
    given = {key for key in rope if rope[key] is not None}
    if kind == "yarn" and "factor" in rope:
        given.add("factor")  # None: the ratio of the lengths
    for key in ("rope_theta", *required):
        if key not in given:
            part = "; give `text_config` alone" if get("text_config") else ""
            raise ValueError(
                f"`{key}` must be given for the rope type {kind!r}, "
                f"got only {', '.join(sorted(given))}{part}."
            )
    check_positive("rope_theta", rope["rope_theta"])
    # Keys that a model's code reads for other ends, as its configuration class says.
    elsewhere = set(get("ignore_keys_at_rope_validation") or ())
    elsewhere |= ELSEWHERE.get(get("model_type") or "", set())
    unused = given - ALWAYS - set(required) - set(others) - elsewhere
    unused -= {"mrope_interleaved"} if "mrope_section" in rope else set()
    if unused:
        warnings.warn(
            f"`rope_parameters` of type {kind!r} do not use {', '.join(sorted(unused))}.",
            UserWarning,
            stacklevel=5,
        )


def _scaling(get: Callable[[str], Any], rope: Mapping[str, Any]) -> Any:
    kind = rope["rope_type"]
    required, others = KEYS[kind]
    given = {
        key: rope[key] for key in (*required, *others) if rope.get(key) is not None
    }
    if kind == "linear":
        return LinearScaling(**given)
    if kind == "ntk_alpha":
        return NtkScaling(given["alpha"])
    if kind == "dynamic":
        return DynamicNtkScaling(**given, max_position_embeddings=_longest(get, kind))
    if kind == "llama3":
        return Llama3Scaling(**given)
    if kind == "proportional":
        return ProportionalScaling(**given)
    if kind not in ("yarn", "longrope"):
        return None
    trained = given["original_max_position_embeddings"]
    check_length("original_max_position_embeddings", trained)
    if "factor" not in given:
        given["factor"] = _longest(get, kind) / trained
    if kind == "yarn":
        return YarnScaling(**given)
    return LongRopeScaling(**given)


def _longest(get: Callable[[str], Any], kind: str) -> int:
    longest = _named(get, "max_position_embeddings")
    if longest is None:
        raise ValueError(
            f"`max_position_embeddings` must be given for the rope type {kind!r}, "
            f"got None."
        )
    check_length("max_position_embeddings", longest)
    return longest


# Shape of the rotation -----------------------------------------------------------------------------------------------


def _widths(
    get: Callable[[str], Any],
    layer_type: str | None,
    rope: Mapping[str, Any],
    model: str,
) -> tuple[int, int]:
    """Channels of a head, and how many of them rotate."""
    get = _of_type(get, layer_type)
    sliced = get("qk_rope_head_dim")
    if sliced and model not in TRAILING:  # latent attention keeps the slice apart
        check_size("qk_rope_head_dim", sliced)
        return sliced, sliced
    head_dim = _of_head(get, rope)
    check_size("head_dim", head_dim)
    if model in ("gptj", "codegen"):
        return head_dim, get("rotary_dim") or head_dim
    if model == "efficientloftr":  # rotates before heads are split
        return get("hidden_size"), get("hidden_size")
    if model == "minimax_m3_vl_vision":
        return head_dim, 6 * (head_dim // 6)
    part = rope.get("partial_rotary_factor")
    if rope["rope_type"] == "proportional":
        part = 1.0
    elif part is None:
        part = sliced / head_dim if sliced else PARTIAL.get(model, 1.0)
    check_positive("partial_rotary_factor", part)
    width = int(head_dim * part) if part <= 1 else 0
    if width % 2 or width < 2:
        raise ValueError(
            f"`partial_rotary_factor` must leave an even number of channels, from 2 to "
            f"`head_dim`, got {part} of {head_dim}."
        )
    return head_dim, width


def _of_type(get: Callable[[str], Any], layer_type: str | None) -> Callable[[str], Any]:
    """The configuration of these layers, where they have a head of their own (Gemma 4)."""
    layers = get("per_layer_config")
    if layer_type is None or not layers:
        return get
    if isinstance(layers, Mapping):
        types = get("layer_types") or ()
        own = next((layers[i] for i in layers if types[int(i)] == layer_type), {})
        return lambda key: own[key] if key in own else get(key)
    # Where layers of one type differ in other things, the object refuses.
    with contextlib.suppress(ValueError):
        return _getter(layers[layer_type])
    return get


def _of_head(get: Callable[[str], Any], rope: Mapping[str, Any]) -> Any:
    if rope["rope_type"] == "proportional" and get("global_head_dim"):
        return get("global_head_dim")
    head_dim = _named(get, "head_dim")
    if head_dim:
        return head_dim
    if get("memory_attention_hidden_size"):  # SAM 2 rotates in its memory
        names = [
            f"memory_attention_{name}"
            for name in ("hidden_size", "downsample_rate", "num_attention_heads")
        ]
        for name in names:
            check_size(name, get(name))
        width, rate, heads = map(get, names)
        return width // (rate * heads)
    width, heads = (_named(get, key) for key in ("hidden_size", "num_attention_heads"))
    if width is None or heads is None:
        raise ValueError(
            f"`head_dim`, or `hidden_size` and `num_attention_heads`, must be given, "
            f"got None, {width} and {heads}."
        )
    check_size("hidden_size", width)
    check_size("num_attention_heads", heads)
    return width // heads


def _layout(get: Callable[[str], Any], model: str) -> str:
    if model in INTERLEAVED_TO_HALF and get("rope_interleave") is not False:
        return "interleaved_to_half"
    return "interleaved" if model in INTERLEAVED else "half"


def _axes(rope: Mapping[str, Any], model: str, width: int) -> dict[str, Any]:
    if rope["rope_type"] == "axial":
        if model == "pixtral":
            axes = (0,) * (width // 4) + (1,) * (width // 4)
            return {"axes": axes, "progression": "dealt"}
        arrange = AXIAL.get(model, lambda n: (0,) * n + (1,) * n)
        count = max(arrange(1)) + 1
        return {"axes": arrange(width // 2 // count), "progression": "per_axis"}
    if model == "neomme":
        return {"axes": AXIAL[model](width // 4)}
    order, sections = MROPE.get(model, ("chunked", None))
    sections = rope.get("mrope_section") or sections
    if sections is None:
        return {}
    if model not in MROPE and rope.get("mrope_interleaved"):
        order = "interleaved"
    check_sections("mrope_section", sections, order)
    pairs = width // 2
    if order == "interleaved":
        # The sections only bound height and width; time takes the rest.
        high, wide = min(sections[1], (pairs + 1) // 3), min(sections[2], pairs // 3)
        sections = (pairs - high - wide, high, wide)
    elif sum(sections) != pairs:
        raise ValueError(
            f"`mrope_section` must add up to the {pairs} pairs, got {list(sections)}."
        )
    return {"axes": mrope_axes(tuple(sections), order=order)}


# Writing -------------------------------------------------------------------------------------------------------------


def _type(config: Any) -> str:
    names = {
        LinearScaling: "linear",
        NtkScaling: "dynamic",
        DynamicNtkScaling: "dynamic",
        YarnScaling: "yarn",
        LongRopeScaling: "longrope",
        Llama3Scaling: "llama3",
        ProportionalScaling: "proportional",
    }
    if config.scaling is None:
        return "default"
    kind = names.get(type(config.scaling))
    if kind is None or (
        kind == "proportional" and config.rotary_dim != config.head_dim
    ):
        raise ValueError(
            f"`scaling` must be a rule that a Hugging Face configuration can hold for "
            f"{config.rotary_dim} of {config.head_dim} channels, "
            f"got {type(config.scaling).__name__}."
        )
    return kind


def _part(width: int, head_dim: int) -> float:
    """The factor that gives this width back, rounded down as it will be."""
    part = width / head_dim
    return part if int(head_dim * part) == width else (width + 0.5) / head_dim


def _mrope_keys(config: Any) -> dict[str, Any]:
    axes = config.axes
    sections = tuple(axes.count(axis) for axis in range(max(axes) + 1))
    for order in ("chunked", "interleaved"):
        if config.progression == "shared" and len(sections) == 3:
            keys = {"mrope_section": list(sections)}
            if order == "interleaved":
                keys |= {"mrope_interleaved": True}
            # Where the sections do not fit the order, it is not the one.
            with contextlib.suppress(ValueError):
                if mrope_axes(sections, order=order) == axes:
                    return keys
    raise ValueError(
        f"`axes` must be those of `mrope_axes` to have a form in a Hugging Face "
        f"configuration, got {axes}."
    )
