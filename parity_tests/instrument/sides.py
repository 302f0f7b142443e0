"""A program to compare, whatever it is made of: named weights, and a function of weights and inputs.

A side is a function, a `torch.nn.Module`, a `flax.nnx.Module` or a `flax.linen.Module`. In a float64 run every weight,
input and other state that is floating is float64, and PyTorch's side computes in it whatever its code says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .dtypes import DTYPES, Arrays, Function

__all__ = ["INPUT", "WEIGHT", "Side", "bound", "called", "cast", "named", "source_of"]


# What an array of a call is, before its name.
INPUT, WEIGHT = "input ", "weight "


@dataclass(frozen=True)
class Side:
    """One of the two programs.

    Args:
        weights: By their names there ("attn/query/kernel", "attn.q_proj.weight"), in the dtype they were made in.
        call: Takes arrays of the framework: weights, inputs, and a dtype for what else is floating; gives any tree of
            outputs.
        source: Where it is defined, for the report.
        cast: An output in a dtype.
        run: The framework's runner, which takes a function, inputs, cotangents and the names of what to differentiate.
    """

    weights: Arrays
    call: Callable[[dict[str, Any], dict[str, Any], str], Any]
    source: str
    cast: Callable[[Any, str], Any]
    run: Callable[[Function, Arrays, Arrays, tuple[str, ...]], dict[str, np.ndarray]]

    def function(self, dtype: str) -> Callable[..., dict[str, Any]]:
        """Of arrays named as what they are; its outputs, whole numbers and truth values too, are in the dtype."""

        def function(**arrays: Any) -> dict[str, Any]:
            weights, inputs = (
                {
                    name.removeprefix(kind): x
                    for name, x in arrays.items()
                    if name.startswith(kind)
                }
                for kind in (WEIGHT, INPUT)
            )
            outputs = named(self.call(weights, inputs, dtype))
            return {name: self.cast(x, dtype) for name, x in outputs.items()}

        return function

    def results(
        self, numbers: Arrays, cotangents: Arrays, dtype: str, held: str
    ) -> dict[str, np.ndarray]:
        """Outputs and gradients of a run in `dtype`, on numbers that `held` holds."""
        learnt = tuple(n for n, x in numbers.items() if x.dtype in DTYPES.values())
        given = (cast(cast(x, held), dtype) for x in (numbers, cotangents))
        found = self.run(self.function(dtype), *given, learnt)
        return {
            name.replace(f"d_{WEIGHT}", "d_").replace(f"d_{INPUT}", "d_"): x
            for name, x in found.items()
        }


def cast(arrays: Arrays, dtype: str) -> dict[str, np.ndarray]:
    """What is floating in this dtype."""
    return {
        name: x.astype(DTYPES[dtype]) if x.dtype in DTYPES.values() else x
        for name, x in arrays.items()
    }


def named(tree: Any) -> dict[str, Any]:
    """The arrays of any tree of outputs, under the path that leads to each."""
    if hasattr(tree, "shape") and hasattr(tree, "dtype"):
        return {"out": tree}
    if isinstance(tree, Mapping):
        items = tree.items()
    elif isinstance(tree, (tuple, list)):
        items = enumerate(tree)
    elif tree is None:
        return {}
    elif hasattr(tree, "__dataclass_fields__"):
        items = ((name, getattr(tree, name)) for name in tree.__dataclass_fields__)
    else:
        raise TypeError(
            f"an output must be an array or a tree of arrays, got {type(tree).__name__}."
        )
    flat = {}
    for key, value in items:
        for name, array in named(value).items():
            flat[str(key) if name == "out" else f"{key}/{name}"] = array
    return flat


def called(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    arguments = bound(function, given)
    return function(*arguments.args, **arguments.kwargs)


def bound(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """By name where the function has it; the others in the order in which they were given."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # Of a builtin.
        signature = inspect.signature(lambda *arguments: None)
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    if inspect.Parameter.VAR_POSITIONAL in kinds.values():
        return signature.bind(*given.values())
    with suppress(TypeError):
        return signature.bind(**given)
    rest = iter([x for name, x in given.items() if name not in kinds])
    free = [name for name in kinds if name not in given]
    values = {**given, **dict(zip(free, rest, strict=False))}
    if left := len(list(rest)):
        raise TypeError(f"a side takes {left} inputs fewer than {', '.join(given)}.")
    first = [name for name in kinds if kinds[name] is inspect.Parameter.POSITIONAL_ONLY]
    return signature.bind(
        *(values[name] for name in first if name in values),
        **{
            name: values[name] for name in kinds if name in values and name not in first
        },
    )


def source_of(thing: Any) -> str:
    """Its name and line."""
    name = getattr(thing, "__name__", type(thing).__name__)
    try:
        file, line = inspect.getsourcefile(thing), inspect.getsourcelines(thing)[1]
    except (OSError, TypeError):
        return name
    return f"{name} ({Path(file or '').name}:{line})"
