"""The Flax twins of transformers 4.57, the last release that has them, against their originals in PyTorch.

    python -m parity_tests.flax_twins --environment FOLDER

makes an environment in FOLDER, of the releases named here, and runs itself in it, from a checkout. Nothing is
downloaded but packages: the models are small and their weights random. It ends with 0 if every pair is found to be what
is written down here, and with 1 if one is not.
"""

from __future__ import annotations

import argparse
import inspect
import os
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from flax import linen

from .instrument import PASSING, Report, compare

__all__ = ["TWINS", "Original", "Port", "Twin", "compared", "environment", "main"]

RELEASES = ("transformers==4.57.6", "flax==0.12.8", "jax==0.10.2", "torch==2.13.0")
CHECKOUT = Path(__file__).parents[1]
# All sizes differ. No table ends at the last token, and none is a power of two long.
BATCH, TOKENS, DECODER_TOKENS, VOCABULARY, LONGEST, WIDTH = 2, 83, 71, 97, 131, 48
PAD = 0
# Said of a twin that cannot be run, as no verdict of the instrument is.
ERROR = "ERROR"


@dataclass(frozen=True)
class Twin:
    """A pair of models, and what is to be found.

    Args:
        model: As in `FlaxLlamaModel` and `LlamaModel`.
        verdict: The instrument's, or ERROR.
        words: That must be among what is printed of the report, or of the error.
        options: Of the configuration.
        pads: Whether there are pad tokens, where the attention mask is 0 and first in a decoder.
        why: Which side is right, and what is wrong with the other.
    """

    model: str
    verdict: str = "AGREE"
    words: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    pads: bool = True
    why: str = ""


LLAMA = {
    "hidden_size": WIDTH,
    "intermediate_size": 60,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": LONGEST,
}
GPT = {
    "n_embd": WIDTH,
    "n_inner": 60,
    "n_head": 3,
    "n_layer": 2,
    "n_positions": LONGEST,
}
# "sdpa", which the original has by default, does not read the option either.
UNSCALED = GPT | {
    "n_layer": 1,
    "scale_attn_weights": False,
    "attn_implementation": "eager",
}
BLOOM = {"hidden_size": WIDTH, "n_layer": 2}
MARIAN = {
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 60,
    "decoder_ffn_dim": 72,
    "max_position_embeddings": LONGEST,
    "scale_embedding": True,
    "pad_token_id": PAD,
    "decoder_start_token_id": PAD,
    "eos_token_id": 1,
}

TWINS = {
    "Llama": Twin("Llama", options=LLAMA),
    "Llama of base 500000": Twin(
        "Llama",
        "DIVERGE",
        "base 10000 in place of 500000",
        LLAMA | {"rope_theta": 500_000.0},
        why="the original; the twin does not read `rope_theta`",
    ),
    "GPT-J": Twin("GPTJ", options=GPT | {"rotary_dim": 6}),
    "BLOOM": Twin("Bloom", options=BLOOM | {"n_head": 4}),
    "BLOOM of 6 heads": Twin(
        "Bloom",
        ERROR,
        "module 'jax.numpy' has no attribute 'cat'",
        BLOOM | {"n_head": 6},
        why="the original; the twin calls `jnp.cat` where heads are no power of two",
    ),
    "GPT-2": Twin("GPT2", options=GPT),
    "GPT-2 without a scale": Twin(
        "GPT2",
        "DIVERGE",
        "multiplied by 1/4",
        UNSCALED,
        why="the original; the twin does not read `scale_attn_weights`",
    ),
    "Marian": Twin(
        "Marian",
        "DIVERGE",
        "2 rows of the report fail, first d_model.shared.weight float64",
        MARIAN,
        why="the original; `padding_idx` keeps its row for pads from being trained, the twin's is",
    ),
    "Marian without pad tokens": Twin("Marian", options=MARIAN, pads=False),
}


class Port(linen.Module):
    """The module of a Flax model, in the dtype of the run: its own is fixed when it is made."""

    module: Any
    config: Any

    @linen.compact
    def __call__(self, **inputs: Any) -> dict[str, Any]:
        dtype = jnp.zeros(()).dtype
        model = self.module(self.config, dtype=dtype, name="model")
        return _outputs(model(**_taken(model.__call__, inputs)), inputs)


class Original(torch.nn.Module):
    """A PyTorch model. What it has as a parameter and does not learn, as Marian's tables, is no weight."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        for module in model.modules():
            for name, weight in [*module.named_parameters(recurse=False)]:
                if not weight.requires_grad:
                    delattr(module, name)
                    module.register_buffer(name, weight.data)

    def forward(self, **inputs: Any) -> dict[str, Any]:
        return _outputs(self.model(**_taken(self.model.forward, inputs)), inputs)


def _taken(function: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that a model has: some make the positions themselves."""
    names = inspect.signature(function).parameters
    return {name: x for name, x in inputs.items() if name in names}


def _outputs(found: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Hidden states, but for those of masked tokens, which nobody reads."""
    mask = inputs["attention_mask"]
    masks = {
        "last_hidden_state": inputs.get("decoder_attention_mask", mask),
        "encoder_last_hidden_state": mask,
    }
    return {
        name: found[name] * mask[..., None]
        for name, mask in masks.items()
        if name in found
    }


def compared(twin: Twin) -> Report:
    """The report on a twin, whose map of weights is guessed."""
    import transformers

    transformers.logging.set_verbosity_error()
    config = getattr(transformers, f"{twin.model}Config")(
        vocab_size=VOCABULARY, use_cache=False, **twin.options
    )
    torch.manual_seed(0)
    port = getattr(transformers, f"Flax{twin.model}Model").module_class
    original = getattr(transformers, f"{twin.model}Model")(config)
    return compare(Port(port, config), Original(original), _inputs(twin))


def _inputs(twin: Twin) -> dict[str, np.ndarray]:
    """Rows of which one is padded, on the side that is usual for the model."""
    rng = np.random.default_rng(0)
    seq2seq = twin.model == "Marian"
    mask = np.ones((BATCH, TOKENS), np.int32)
    mask[1, -13:] = 0
    if not seq2seq:
        mask = mask[:, ::-1].copy()
    inputs = {"input_ids": _tokens(rng, TOKENS), "attention_mask": mask}
    inputs["position_ids"] = np.maximum(mask.cumsum(-1, dtype=np.int32) - 1, 0)
    if seq2seq:
        ids = inputs["decoder_input_ids"] = _tokens(rng, DECODER_TOKENS)
        inputs["decoder_attention_mask"] = np.ones_like(ids)
        inputs["decoder_position_ids"] = np.cumsum(np.ones_like(ids), -1, np.int32) - 1
        inputs["position_ids"] = np.cumsum(np.ones_like(mask), -1, np.int32) - 1
    if twin.pads:
        inputs["input_ids"][mask == 0] = PAD
        if seq2seq:
            inputs["decoder_input_ids"][:, 0] = PAD
    return inputs


def _tokens(rng: np.random.Generator, tokens: int) -> np.ndarray:
    return rng.integers(PAD + 1, VOCABULARY, (BATCH, tokens)).astype(np.int32)


def _is_as_written(name: str) -> bool:
    """Compare a pair and print what is found."""
    twin = TWINS[name]
    try:
        report = compared(twin)
        verdict, lines = report.verdict, [*_lines(report)]
    except Exception as error:  # The twin may not run at all.
        verdict, lines = ERROR, [f"{type(error).__name__}: {error}"]
    right = verdict == twin.verdict and twin.words in "\n".join(lines)
    if not right:
        lines.append(f"NOT AS WRITTEN DOWN: {twin.verdict} {twin.words}")
    elif twin.why:
        lines.append(f"right is {twin.why}")
    print("\n  ".join([f"{name}: {verdict}", *lines]), flush=True)
    return right


def _lines(report: Report) -> Iterator[str]:
    """How far outputs are apart, the causes, and what else is wrong."""
    outputs = [row for row in report.rows if not row.name.startswith("d_")]
    float64, float32 = (
        [row for row in outputs if row.name.endswith(dtype)]
        for dtype in ("float64", "float32")
    )
    apart = max((row.apart for row in float64), default=0.0)
    yield f"float64: outputs are apart by {apart:.1e}"
    a = max((row.ratio_a for row in float32), default=0.0)
    b = max((row.ratio_b for row in float32), default=0.0)
    yield f"float32: the twin's error is {a:.2g} of its bound, the original's {b:.2g}"
    yield from report.causes
    failing = [row.name for row in report.rows if row.verdict not in PASSING]
    if failing:
        yield f"{len(failing)} rows of the report fail, first {failing[0]}"


def environment(folder: Path) -> Path:
    """Make an environment with RELEASES in `folder`, if it is not there, and return its Python."""
    places = "Scripts/python.exe" if os.name == "nt" else "bin/python"
    python = folder.absolute() / places
    if not python.exists():
        venv.create(folder, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *RELEASES], check=True)
    return python


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return how it ends."""
    parser = argparse.ArgumentParser(
        prog="python -m parity_tests.flax_twins",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "twins", nargs="*", metavar="NAME", help=f"of {', '.join(TWINS)}; all if none"
    )
    parser.add_argument(
        "--environment",
        type=Path,
        metavar="FOLDER",
        help="where to make, or find, the environment to run in; by default in this one",
    )
    options = parser.parse_args(arguments)
    if unknown := {*options.twins} - {*TWINS}:
        parser.error(f"no twin is named {', '.join(sorted(unknown))}")
    if options.environment:
        python = environment(options.environment)
        command = [python, "-m", "parity_tests.flax_twins", *options.twins]
        return subprocess.run(command, cwd=CHECKOUT).returncode
    if not version("transformers").startswith("4.57."):
        parser.error(
            f"transformers {version('transformers')} is not 4.57: give --environment"
        )
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    found = [_is_as_written(name) for name in options.twins or TWINS]
    print(f"{sum(found)} of {len(found)} pairs are as written down")
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
