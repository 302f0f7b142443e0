"""What every implementation of attention takes: `python -m parity_tests.implementations` prints the table.

Some minutes; `python -m parity_tests.implementations causal float16` prints these rows.

A feature is one call that has nothing else to refuse. What the printer runs is what test_implementations.py runs: the
values and all gradients, by the instrument. The kernels of others are tried in bfloat16 where a feature names no dtype,
and on a CPU they are interpreted (Pallas) or what they are handed is computed by JAX's own attention (cuDNN).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import posenc_jax
import posenc_torch
from posenc_jax.kernels import IMPLEMENTATIONS, cudnn

from .instrument import run
from .schemes import Call, attention

__all__ = ["FEATURES", "REFUSED", "Feature", "cut_into", "main", "outcome"]

# Of a block in the table's calls: the least that a TPU's lanes allow.
BLOCK = 128

# Two blocks of tokens, in which nothing is special.
PLAIN = Call(
    tokens=2 * BLOCK,
    queries=tuple(range(2 * BLOCK)),
    heads=2,
    kv_heads=2,
    head_dim=64,
    value_dim=64,
    by_position=False,
    profiles=("dense",),
)

# In what an implementation is tried, unless a feature says: the kernels of others are made for half precision.
USUAL = {"splash": "bfloat16", "cudnn": "bfloat16"}


@dataclass(frozen=True)
class Feature:
    """A row of the table."""

    name: str
    call: Call
    dtype: str | None = None

    def __str__(self) -> str:
        return self.name.replace(" ", "_")


def _with(options: dict[str, Any] | None = None, *drawn: str, **changes: Any) -> Call:
    return replace(PLAIN, options=options or {}, drawn=drawn, **changes)


def _wide(head_dim: int) -> Call:
    """With a power of two as the scale, by which half-precision queries are multiplied exactly."""
    return _with({"scale": 0.125}, head_dim=head_dim, value_dim=head_dim)


def _alibi(kind: str, **options: Any) -> Call:
    """Slopes that are known when the program is built, of two heads that look about 10 and 100 tokens far."""
    slopes = np.array([0.1, 0.01], np.float32)
    return _with({"alibi_kind": kind, "alibi_slopes": slopes, **options})


def _few(options: dict[str, Any], *drawn: str, **changes: Any) -> Call:
    """A quarter of the tokens: a gradient summed over all scores would drown in the bound on its rounding."""
    tokens = BLOCK // 2
    return _with(
        options, *drawn, tokens=tokens, queries=tuple(range(tokens)), **changes
    )


FEATURES = (
    Feature("float32", PLAIN, "float32"),
    Feature("float64", PLAIN, "float64"),
    Feature("bfloat16, head_dim 128", _wide(128), "bfloat16"),
    Feature("float16", PLAIN, "float16"),
    Feature("head_dim 32, wider values", replace(_wide(32), value_dim=64)),
    Feature("head_dim 256", _wide(256)),
    Feature("grouped-query heads", _with(heads=4)),
    Feature("fewer queries than keys", _with(queries=tuple(range(BLOCK)))),
    Feature(
        "length no multiple of the block",
        _with(tokens=BLOCK + 1, queries=tuple(range(BLOCK + 1))),
    ),
    Feature("causal", _with({"is_causal": True})),
    Feature(
        "causal by explicit positions",
        _with({"is_causal": True}, by_position=True, profiles=("sparse",)),
    ),
    Feature("ALiBi, symmetric", _alibi("symmetric")),
    Feature("ALiBi, symmetric, causal", _alibi("symmetric", is_causal=True)),
    Feature("ALiBi, signed", _alibi("signed")),
    Feature("ALiBi, key, causal", _alibi("key", is_causal=True)),
    Feature(
        "ALiBi, learnable slopes",
        _few({"alibi_kind": "symmetric", "is_causal": True}, "alibi_slopes"),
    ),
    Feature("sliding window", _with({"sliding_window": 100})),
    Feature("causal sliding window", _with({"is_causal": True, "sliding_window": 100})),
    Feature("soft cap", _with({"logit_softcap": 1.5})),
    Feature("learnable scale and soft cap", _few({}, "scale", "logit_softcap")),
    Feature(
        "segment ids",
        _with({}, "query_segment_ids", "key_segment_ids", profiles=("packed",)),
    ),
    Feature("padding mask", _with({}, "padding")),
    Feature("mask for each head", _with({}, "head_mask")),
    Feature("learnable bias", _with({}, "bias")),
    Feature(
        "rows with nothing to attend",
        _with({}, "lonely_segment_ids", "key_segment_ids", profiles=("packed",)),
    ),
    Feature("RoPE applied outside", _few({}, "cos", "sin", head_dim=32)),
)

_BY_THOSE_OF_OTHERS = {
    "float64",
    "causal by explicit positions",
    "ALiBi, symmetric",
    "ALiBi, learnable slopes",
    "learnable scale and soft cap",
    "mask for each head",
    "learnable bias",
}
# The features that an implementation refuses by name; it takes all others.
REFUSED = {
    "pallas_tpu": {"mask for each head", "learnable bias"},
    "splash": _BY_THOSE_OF_OTHERS | {"float16"},
    "cudnn": _BY_THOSE_OF_OTHERS
    | {"float32", "sliding window", "soft cap", "segment ids", "padding mask"}
    | {"rows with nothing to attend"},
}


def outcome(feature: Feature, implementation: str) -> str:
    """What the table says: "yes" if values and all gradients are right by the instrument, or the refusal's words.

    Raises:
        AssertionError: if they are not right.
    """
    pair = attention(
        posenc_jax, posenc_torch, feature.name, feature.call, implementation
    )
    (profile,) = pair.profiles
    dtype = feature.dtype or USUAL.get(implementation, "float32")
    with (
        cut_into(BLOCK),
        gpu_stand_in() if implementation == "cudnn" else nullcontext(),
    ):
        try:
            report = run(pair, dtype=dtype, profile=profile, seed=0, jit=True)
        except ValueError as error:
            if "`implementation`" not in str(error):
                raise
            return str(error)
    report.check()
    return "yes"


@contextmanager
def gpu_stand_in() -> Iterator[None]:
    """A GPU that has cuDNN, in whose place JAX's own attention computes, in float32 of what it is handed."""
    own = jax.nn.dot_product_attention

    def dot_product_attention(*arrays: Any, implementation: str, **options: Any) -> Any:
        wide = (x.astype(jnp.float32) for x in arrays)
        out = own(*wide, implementation="xla", **options)
        return out.astype(arrays[0].dtype)

    with (
        mock.patch.object(cudnn, "_compute_capability", return_value=9.0),
        mock.patch.object(jax.nn, "dot_product_attention", dot_product_attention),
    ):
        yield


@contextmanager
def cut_into(tokens: int, package: ModuleType = posenc_jax) -> Iterator[None]:
    """Blocks of so many tokens where sequences are otherwise too short to be cut; a TPU's are of 128 at least."""
    with ExitStack() as stack:
        for name, least in (("blockwise", 1), ("pallas_tpu", 128), ("splash", 128)):
            module = import_module(f"{package.__name__}.kernels.{name}")
            stack.enter_context(mock.patch.object(module, "BLOCK", max(tokens, least)))
        yield


def main() -> None:
    """Print the table, in Markdown."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("features", nargs="*", help="its rows; all if none is named")
    chosen = parser.parse_args().features or [feature.name for feature in FEATURES]
    print(f"| feature | {' | '.join(IMPLEMENTATIONS)} | tested by |")
    print(f"|---|{'---|' * len(IMPLEMENTATIONS)}---|")
    for feature in FEATURES:
        if feature.name not in chosen:
            continue
        cells = [_cell(outcome(feature, name)) for name in IMPLEMENTATIONS]
        test = f"`test_feature[{feature}-*]`"
        print(f"| {feature.name} | {' | '.join(cells)} | {test} |", flush=True)


def _cell(found: str) -> str:
    """Of a refusal, what it is that is refused."""
    refused = re.search("must be .* or None for (.*), got", found)
    return f"no: {refused[1]}" if refused else found


if __name__ == "__main__":
    main()
