"""Between a model's Hugging Face configuration and the fields of `RopeConfig`.

`read` follows transformers 5, `modeling_rope_utils`, and each model's own code where it departs from it. The same file
is in both packages.
"""

from __future__ import annotations

import contextlib
import inspect
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
from ._hf_models import MODELS, Model, rows_first
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
RULES: Mapping[str, Any] = MappingProxyType(
    {
        "linear": LinearScaling,
        "dynamic": DynamicNtkScaling,
        "ntk_alpha": NtkScaling,
        "yarn": YarnScaling,
        "longrope": LongRopeScaling,
        "llama3": Llama3Scaling,
        "proportional": ProportionalScaling,
    }
)
TRAINED = "original_max_position_embeddings"
# Older names of types.
RENAMED = MappingProxyType({"su": "longrope", "mrope": "default"})

# Keys beside them that are used, or say which layers rotate and how they are trained.
BESIDE = (
    "layer_rope_theta",
    "memory_attention_rope_dropout",
    "memory_attention_rope_feat_sizes",
    "memory_attention_rope_k_sizes",
    "no_rope_layer_interval",
    "no_rope_layers",
    "qk_rope_head_dim",
    "rope_interleave",
    "rope_parameters",
    "rope_scaling",
    "rope_scaling_layers",
    "rotary",
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
    _check_unread(config, model)
    rope = _parameters(get, layer_type, model)
    head_dim, width = _widths(_of_type(get, layer_type), rope, model)
    layout = model.layout
    if layout == "interleaved_to_half" and get("rope_interleave") is False:
        layout = "half"
    fields = {
        "head_dim": head_dim,
        "base": rope["rope_theta"],
        "rotary_dim": width,
        "layout": layout,
        "placement": model.placement,
        "inverse": model.inverse,
        "scaling": _scaling(get, rope),
    }
    return fields | _axes(rope, model, width)


def write(
    config: Any, model_type: str | None, layer_type: str | None
) -> dict[str, Any]:
    """The configuration of a `RopeConfig`, in the current form, from which `read` gives the same."""
    if not isinstance(model_type, str | None):
        raise TypeError(f"`model_type` must be a string, got {describe(model_type)}.")
    rope: dict[str, Any] = {"rope_type": _type(config), "rope_theta": config.base}
    written: dict[str, Any] = {"head_dim": config.head_dim, "rope_parameters": rope}
    if model_type is not None:
        written["model_type"] = model_type
    model = _row(model_type or "") or Model()
    if model.only_if is not None:
        written |= [model.only_if]
    if model.latent:
        written["qk_rope_head_dim"] = config.head_dim
    if model is MODELS["efficientloftr"]:
        written["hidden_size"] = config.head_dim
    if config.rotary_dim != config.head_dim or model.partial != 1:
        rope["partial_rotary_factor"] = _part(config.rotary_dim, config.head_dim)
        if model.reads_rotary_dim:
            written["rotary_dim"] = config.rotary_dim
    if config.scaling is not None:
        for name, value in vars(config.scaling).items():
            if name == "max_position_embeddings":
                written[name] = value
            elif value is not None:
                rope[name] = list(value) if isinstance(value, tuple) else value
    if config.axes is not None and config.progression == "shared":
        rope |= _sections(config.axes, model)
    if layer_type is not None:
        written["rope_parameters"] = {layer_type: rope}
    _check_written(config, written, layer_type)
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


def _row(name: str) -> Model | None:
    return MODELS.get(name) or MODELS.get(name.removesuffix("_text"))


def _model(get: Callable[[str], Any]) -> Model:
    """What is known of the model; halves where nothing is."""
    name = get("model_type") or ""
    if not isinstance(name, str):
        raise TypeError(f"`model_type` must be a string, got {describe(name)}.")
    model = _row(name)
    if model is None and name:
        _warn(f"`model_type` {name!r} is not known: its pairs are taken to be halves.")
    model = model or Model()
    unlike = model.unlike
    if get("alibi"):
        unlike = "it has linear biases (ALiBi) in place of a rotation"
    elif model.only_if is not None and get(model.only_if[0]) != model.only_if[1]:
        key, value = model.only_if
        unlike = f"it rotates where `{key}` is {value!r}, and that is {get(key)!r}"
    if unlike is not None:
        raise ValueError(
            f"`config` must be of a model whose rotation a RopeConfig describes, "
            f"got {name!r}: {unlike}."
        )
    return model


def _named(get: Callable[[str], Any], key: str) -> Any:
    """The value of a key under the first of its names that has one."""
    found = (get(name) for name in NAMES[key])
    return next((value for value in found if value is not None), None)


# Rope parameters -----------------------------------------------------------------------------------------------------


def _parameters(
    get: Callable[[str], Any], layer_type: str | None, model: Model
) -> dict[str, Any]:
    """The rope parameters of these layers in the current form, flat."""
    rope = _of_layers(_by_layer(get, _given(get), model), layer_type)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    names = {**RENAMED, **dict(model.types)}
    kind = names.get(kind, kind) if isinstance(kind, str) else kind
    if kind == "dynamic" and rope.get("alpha") is not None:
        kind = "ntk_alpha"
    check_choice("rope_type", kind, tuple(KEYS))
    rope["rope_type"] = kind
    rope.pop("type", None)
    for key in ("rope_theta", "partial_rotary_factor"):
        if rope.get(key) is None and _named(get, key) is not None:
            rope[key] = _named(get, key)
    if model.base is not None:
        rope.setdefault("rope_theta", model.base)
    # Phi-3 keeps it beside the dict, where it has priority over that of all layers.
    trained = get(TRAINED)
    wanted = TRAINED in KEYS[kind][0] and trained is not None
    if wanted and (layer_type is None or TRAINED not in rope):
        rope[TRAINED] = trained
    _check_keys(get, rope, model)
    return rope


def _given(get: Callable[[str], Any]) -> Mapping[str, Any]:
    """The parameters under their newer name or their older one."""
    new, old = get("rope_parameters") or {}, get("rope_scaling") or {}
    for name, rope in (("rope_parameters", new), ("rope_scaling", old)):
        if not isinstance(rope, Mapping):
            raise TypeError(f"`{name}` must be a dict, got {describe(rope)}.")
    if not (new or old) and get("text_config"):
        raise ValueError(
            "`config` must be that of one part of a model, such as `config.text_config`, "
            "got that of several."
        )
    if new and old and new != old:
        raise ValueError(
            "`rope_scaling` must not be given beside other `rope_parameters`, "
            f"got {dict(old)} and {dict(new)}."
        )
    return new or old


def _by_layer(
    get: Callable[[str], Any], rope: Mapping[str, Any], model: Model
) -> Mapping[str, Any]:
    """Nested by layer type, where the model's layers differ and an older configuration says it in flat keys."""
    nested = any(isinstance(value, Mapping) for value in rope.values())
    if model.nested and not nested:
        raise ValueError(
            "`rope_parameters` must be nested by layer type for this model, whose "
            "layers differ, got flat keys."
        )
    old = model.old_layers
    if old is None:
        return rope
    layers = dict(rope) if nested else dict.fromkeys(old.scaled, rope)
    for layer, key in (
        ("full_attention", old.full),
        ("sliding_attention", old.sliding),
    ):
        own = layers.get(layer, None if nested else {})
        if not isinstance(own, Mapping) or "rope_theta" in own:
            continue
        if get(key) is None:
            raise ValueError(
                f"`{key}` must be given beside rope parameters that do not state the base "
                f"of each layer type, got None."
            )
        layers[layer] = {"rope_theta": get(key), **own}
    return layers


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


def _check_keys(
    get: Callable[[str], Any], rope: Mapping[str, Any], model: Model
) -> None:
    kind = rope["rope_type"]
    required, others = KEYS[kind]
    given = {key for key in rope if rope[key] is not None}
    if kind == "yarn" and "factor" in rope:
        given.add("factor")  # None: the ratio of the lengths
    for key in ("rope_theta", *required):
        if key not in given:
            raise ValueError(
                f"`{key}` must be given for the rope type {kind!r}, "
                f"got only {', '.join(sorted(given))}."
            )
    check_positive("rope_theta", rope["rope_theta"])
    by_layer = get("layer_rope_theta") or ()
    if any(base not in (0, rope["rope_theta"]) for base in by_layer):
        raise ValueError(
            f"`layer_rope_theta` must be `rope_theta` or 0 in every layer, got {by_layer}."
        )
    # Keys that a model's code reads for other ends, as its configuration class says.
    elsewhere = set(get("ignore_keys_at_rope_validation") or ())
    elsewhere |= set(model.other_keys)
    unused = given - ALWAYS - set(required) - set(others) - elsewhere
    if "mrope_section" in rope:
        unused -= {"interleaved", "mrope_interleaved"}
    if unused:
        _warn(
            f"`rope_parameters` of type {kind!r} do not use {', '.join(sorted(unused))}."
        )


def _check_unread(config: Any, model: Model) -> None:
    """Keys beside the rope parameters that look as if they were some: models outside transformers have their own."""
    if not isinstance(config, Mapping):
        return
    named = (name for names in NAMES.values() for name in names)
    read = {*BESIDE, *named, *model.other_keys, *(model.only_if or ())[:1]}
    if model.reads_rotary_dim:
        read.add("rotary_dim")
    if model.old_layers is not None:
        read |= {model.old_layers.full, model.old_layers.sliding}
    unread = [
        key
        for key, value in config.items()
        if isinstance(key, str) and ("rope" in key or "rotary" in key)
        if key not in read and value is not None and value is not False
    ]
    if unread:
        _warn(f"`config` has keys that are not used: {', '.join(sorted(unread))}.")


def _warn(sentence: str) -> None:
    """Point at the caller of `RopeConfig.from_hf`."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__package__") == __package__:
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, UserWarning, stacklevel=level)


def _scaling(get: Callable[[str], Any], rope: Mapping[str, Any]) -> Any:
    kind = rope["rope_type"]
    required, others = KEYS[kind]
    given = {
        key: rope[key] for key in (*required, *others) if rope.get(key) is not None
    }
    if kind not in RULES:
        return None
    if kind == "ntk_alpha":
        given.pop("factor", None)  # published beside alpha, and not used
    if kind == "dynamic":
        given["max_position_embeddings"] = _longest(get, kind)
    if kind in ("yarn", "longrope") and "factor" not in given:
        trained = given[TRAINED]
        check_length(TRAINED, trained)
        given["factor"] = _longest(get, kind) / trained
    return RULES[kind](**given)


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
    get: Callable[[str], Any], rope: Mapping[str, Any], model: Model
) -> tuple[int, int]:
    """Channels of a head, and how many of them rotate."""
    sliced = get("qk_rope_head_dim")
    if model.latent and not sliced:
        raise ValueError("`qk_rope_head_dim` must be given for this model, got None.")
    if sliced and model.placement == "leading":  # latent attention keeps it apart
        check_size("qk_rope_head_dim", sliced)
        return sliced, sliced
    head_dim = _of_head(get, rope, model)
    check_size("head_dim", head_dim)
    if model is MODELS["efficientloftr"]:  # rotates before heads are split
        check_size("hidden_size", get("hidden_size"))
        return get("hidden_size"), get("hidden_size")
    if model is MODELS["minimax_m3_vl_vision"]:
        return head_dim, 6 * (head_dim // 6)
    part = rope.get("partial_rotary_factor")
    if rope["rope_type"] == "proportional":
        part = 1.0
    elif part is None and model.reads_rotary_dim and get("rotary_dim"):
        return head_dim, get("rotary_dim")
    elif part is None:
        part = sliced / head_dim if sliced else model.partial
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
        of_type = (str(i) for i, kind in enumerate(types) if kind == layer_type)
        found = {str(int(i)): own for i, own in layers.items() if str(i).isdecimal()}
        own = next((found[i] for i in of_type if i in found), {})
        return lambda key: own[key] if key in own else get(key)
    # Where layers of one type differ in other things, the object refuses.
    with contextlib.suppress(ValueError):
        return _getter(layers[layer_type])
    return get


def _of_head(get: Callable[[str], Any], rope: Mapping[str, Any], model: Model) -> Any:
    if rope["rope_type"] == "proportional" and get("global_head_dim"):
        return get("global_head_dim")
    head_dim = _named(get, "head_dim")
    if head_dim:
        return head_dim
    if model.own_head_dim:
        raise ValueError(
            "`head_dim` must be given for this model, whose class has a default of its "
            "own for it, got None."
        )
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


def _axes(rope: Mapping[str, Any], model: Model, width: int) -> dict[str, Any]:
    pairs = width // 2
    if model.grid is not None or rope["rope_type"] == "axial":
        grid = model.grid or rows_first
        axes = grid(pairs // len(grid(1)))
        return {"axes": axes, "progression": model.progression}
    order, sections = model.mrope or ("chunked", None)
    sections = rope.get("mrope_section") or sections
    if sections is None:
        return {}
    if model.mrope is None and rope.get("mrope_interleaved"):
        order = "interleaved"
    check_sections("mrope_section", sections, order)
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
    if config.scaling is None:
        return "default" if config.progression == "shared" else "axial"
    kinds = {rule: kind for kind, rule in RULES.items()}
    kind = kinds.get(type(config.scaling))
    if kind is None or (
        kind == "proportional" and config.rotary_dim != config.head_dim
    ):
        raise ValueError(
            f"`scaling` must be a rule that a Hugging Face configuration can hold for "
            f"{config.rotary_dim} of {config.head_dim} channels, "
            f"got {type(config.scaling).__name__}."
        )
    return "dynamic" if kind == "ntk_alpha" else kind  # as it is published


def _part(width: int, head_dim: int) -> float:
    """The factor that gives this width back, rounded down as it will be."""
    part = width / head_dim
    return part if int(head_dim * part) == width else (width + 0.5) / head_dim


def _sections(axes: tuple[int, ...], model: Model) -> dict[str, Any]:
    """Pairs of each axis, and whether they are interleaved where the model does not say."""
    sections = [axes.count(axis) for axis in range(max(axes) + 1)]
    if model.mrope is not None and model.mrope[0] == "ernie":
        sections = [*sections[1:], sections[0]]
    keys: dict[str, Any] = {"mrope_section": sections}
    if model.mrope is None and axes != tuple(sorted(axes)):
        keys["mrope_interleaved"] = True
    return keys


def _check_written(
    config: Any, written: Mapping[str, Any], layer_type: str | None
) -> None:
    """What a configuration does not hold must be in the model's code."""
    found = {"axes": None, "progression": "shared"} | read(written, layer_type)
    differ = [name for name, value in vars(config).items() if found[name] != value]
    if differ:
        raise ValueError(
            f"`model_type` must be of a model whose code has this {', '.join(differ)}, "
            f"which a configuration does not hold, got {written.get('model_type')!r}."
        )
