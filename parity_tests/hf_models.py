"""The rotary embeddings of the installed transformers, run by their own code.

`rotaries()` finds every class, by its name in the models' files; nothing is imported before a test asks for it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

__all__ = ["Rotary", "configs_with_rope", "rotaries"]

ROTARY = re.compile(
    r"^class (\w*(?:Rotary|Rope)\w*Embedding)\((?:nn\.Module|\w*Rotary\w*)\)", re.M
)

# Classes whose annotation names another configuration than the one they are used with.
CONFIGS = {"Qwen3OmniMoeRotaryEmbedding": "Qwen3OmniMoeTalkerCodePredictorConfig"}

# Models whose default configuration does not run or does not rotate, with what their checkpoints say instead.
PUBLISHED: dict[str, dict[str, Any]] = {
    "CohereCompassTextConfig": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    },
    "EsmConfig": {"position_embedding_type": "rotary"},
    "Glm4MoeConfig": {"head_dim": 128},
    "Glm4vMoeTextConfig": {"head_dim": 128},
    "Glm4vTextConfig": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
            "mrope_section": [8, 12, 12],
        }
    },
    "GlmImageTextConfig": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
            "mrope_section": [8, 12, 12],
        }
    },
    "GraniteMoeHybridConfig": {"position_embedding_type": "rope"},
    "Qwen3OmniMoeTextConfig": {"head_dim": 128},
    "Zamba2Config": {"use_mem_rope": True},
    "SeamlessM4TConfig": {"position_embeddings_type": "rotary"},
    "Wav2Vec2BertConfig": {"position_embeddings_type": "rotary"},
    "Wav2Vec2ConformerConfig": {"position_embeddings_type": "rotary"},
}


@dataclass(frozen=True)
class Rotary:
    """One class of rotary embedding: the file it is in and its name."""

    module_name: str
    name: str

    def __str__(self) -> str:
        return f"{self.module_name.split('.')[2]}.{self.name}"

    @property
    def module(self) -> ModuleType:
        return importlib.import_module(self.module_name)

    def build(self) -> tuple[Any, Any]:
        """A configuration with its defaults, and the rotary embedding of it."""
        kind = getattr(self.module, self.name)
        config = self._config_class(kind)
        failure: Exception | None = None
        for part in _parts(config(**PUBLISHED.get(config.__name__, {}))):
            if type(part).__name__ in PUBLISHED and type(part) is not config:
                part = type(part)(**PUBLISHED[type(part).__name__])
            try:
                return part, kind(part)
            except Exception as error:
                failure = failure or error
        raise AssertionError(f"no configuration runs {self}") from failure

    def _config_class(self, kind: type) -> Any:
        if self.name in CONFIGS:
            return getattr(self.module, CONFIGS[self.name])
        hint = typing.get_type_hints(kind.__init__).get("config")
        if inspect.isclass(hint):
            return hint
        # Older files do not say: the configuration of the file's first model.
        models = [
            value
            for value in vars(self.module).values()
            if inspect.isclass(value) and value.__module__ == self.module_name
        ]
        return next(
            value.config_class for value in models if hasattr(value, "config_class")
        )

    def tables(
        self, config: Any, rotary: Any, positions: np.ndarray, layer_type: str | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The model's own cos and sin at positions [seq] or [seq, axes], one column per pair."""
        at = torch.from_numpy(positions)
        x = torch.zeros(1, len(positions), 4)
        options = {} if layer_type is None else {"layer_type": layer_type}
        if "position_ids" not in self.arguments(rotary):
            tables = tuple(t[:, 0, 0] for t in rotary(x))
        elif self.axial:
            tables = rotary(x, at[None] if "gemma4" in self.module_name else at)
        elif positions.ndim == 2:
            tables = rotary(x, at.T[:, None], **options)
        else:
            tables = rotary(x, at[None], **options)
        if isinstance(tables, torch.Tensor):
            tables = tables.real, tables.imag
        elif self.sin_first:
            tables = tables[::-1]
        cos, sin = (table.squeeze(0).detach().numpy() for table in tables)
        return _halved(cos), _halved(sin)

    def arguments(self, rotary: Any) -> list[str]:
        return list(inspect.signature(rotary.forward).parameters)

    @property
    def axial(self) -> bool:
        kind = getattr(self.module, self.name)
        return hasattr(kind, "compute_axial_rope_parameters")

    @property
    def sin_first(self) -> bool:
        return self.name in ("GPTJRotaryEmbedding", "CodeGenRotaryEmbedding")

    def rotate(
        self, x: torch.Tensor, cos: np.ndarray, sin: np.ndarray, layout: str
    ) -> torch.Tensor | None:
        """X [seq, heads, channels] rotated by the model's own function; None where it has none that stands alone."""
        apply = self._apply(layout)
        if apply is None:
            return None
        cos, sin = (torch.from_numpy(table) for table in (cos, sin))
        names = list(inspect.signature(apply).parameters)
        if "freqs_cis" in names:
            turned = torch.complex(cos, sin)[None]
            heads = x[None] if "llama4" in self.module_name else x.transpose(0, 1)[None]
            out = apply(heads, heads, turned)[0][0]
            return out if "llama4" in self.module_name else out.transpose(0, 1)
        if self.sin_first:
            return apply(x[None], sin[None], cos[None])[0]
        if self._takes_pairs(apply):
            wide = cos, sin
        elif layout == "interleaved" and not self._halves(apply):
            wide = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
        else:
            wide = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
        if "vision" in apply.__name__:
            return apply(x, x, *wide)[0]
        heads = x.transpose(0, 1)[None]
        tables = tuple(table[None] for table in wide)
        if "2d" in apply.__name__:
            out = apply(heads, heads, *tables)
        elif names[0] == "x":
            out = apply(heads, *tables)
        else:
            out = apply(heads, heads, *tables)
        out = out[0] if isinstance(out, tuple) else out
        return out[0].transpose(0, 1)

    def _apply(self, layout: str) -> Callable[..., Any] | None:
        names = ["apply_rotary_pos_emb", "apply_rotary_emb"]
        if self.axial:
            names = [
                "apply_rotary_pos_emb_vision",
                "apply_rotary_pos_emb_2d",
                "apply_rotary_pos_emb_2d_self_attn",
                "apply_rotary_pos_emb",
            ]
        elif layout == "interleaved_to_half":
            names = ["apply_rotary_pos_emb_interleave"]
        found = (getattr(self.module, name, None) for name in names)
        return next((function for function in found if function is not None), None)

    def _halves(self, apply: Callable[..., Any]) -> bool:
        """Whether the model keeps the first half of its tables, of which it holds every column twice."""
        text = inspect.getsource(apply)
        if "stack_freqs" in text:
            text = inspect.getsource(self.module.stack_freqs)
        return "// 2" in text

    def _takes_pairs(self, apply: Callable[..., Any]) -> bool:
        """Whether the model's tables have one column per pair."""
        folder = self.module_name.split(".")[2]
        return folder in ("deepseek_v4", "gpt_oss", "openai_privacy_filter")


def rotaries() -> list[Rotary]:
    """Every rotary embedding class of the installed transformers."""
    return [
        Rotary(f"transformers.models.{path.parent.name}.{path.stem}", name)
        for path in sorted(_models().glob("*/modeling_*.py"))
        for name in ROTARY.findall(path.read_text("utf-8"))
    ]


def configs_with_rope() -> Iterator[tuple[str, str]]:
    """Folder and class of every configuration that has rope parameters by default."""
    from transformers import PretrainedConfig

    for path in sorted(_models().glob("*/configuration_*.py")):
        name = f"transformers.models.{path.parent.name}.{path.stem}"
        for kind in vars(importlib.import_module(name)).values():
            ours = inspect.isclass(kind) and kind.__module__ == name
            if ours and issubclass(kind, PretrainedConfig):
                # A few need arguments; none of those has rope parameters of its own.
                with contextlib.suppress(Exception):
                    if getattr(kind(), "rope_parameters", None):
                        yield path.parent.name, kind.__name__


def _models() -> Path:
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "models"


def _parts(config: Any) -> Iterator[Any]:
    """A configuration and the configurations inside it."""
    yield config
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if hasattr(part, "sub_configs"):
            yield from _parts(part)


def _halved(table: np.ndarray) -> np.ndarray:
    """One column per pair, of a table that holds every column twice, in either order, or once."""
    n = table.shape[-1] // 2
    if np.array_equal(table[..., :n], table[..., n:]):
        return table[..., :n]
    if np.array_equal(table[..., ::2], table[..., 1::2]):
        return table[..., ::2]
    return table
