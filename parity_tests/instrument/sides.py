"""A program to compare, whatever it is made of: named weights, and a function of weights and inputs.

A side is a function, a `torch.nn.Module`, a `flax.nnx.Module` or a `flax.linen.Module`. In a float64 run every weight,
input and other state that is floating is float64, and PyTorch's side computes in it whatever its code says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from .dtypes import DTYPES, Arrays, Function

__all__ = [
    "BUFFER",
    "INPUT",
    "NO_TAPS",
    "TAP",
    "WEIGHT",
    "Side",
    "as_real",
    "bound",
    "called",
    "cast",
    "is_module",
    "named",
    "of_kind",
    "source_of",
]


# What an array of a call is, before its name.
INPUT, WEIGHT, BUFFER, TAP = "input ", "weight ", "buffer ", "tap "
NO_TAPS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Side:
    """One of the two programs.

    Args:
        weights: By their names there ("attn/query/kernel", "attn.q_proj.weight"), in the dtype they were made in.
        call: Takes arrays of the framework: weights, inputs, and a dtype for what else is floating; gives any tree of
            outputs, and what was tapped on the way, by name.
        source: Where it is defined, for the report.
        cast: An output in a dtype.
        run: The framework's runner, which takes a function, inputs, cotangents and the names of what to differentiate.
        taps: What is to be tapped, its name here by its name in the report.
        buffers: Other arrays that it has and nobody differentiates; they are given with the weights.
        frozen: Weights that do not learn, and may be a constant of the other side.
    """

    weights: Arrays
    call: Callable[[dict[str, Any], dict[str, Any], str], tuple[Any, dict[str, Any]]]
    source: str
    cast: Callable[[Any, str], Any]
    run: Callable[[Function, Arrays, Arrays, tuple[str, ...]], dict[str, np.ndarray]]
    taps: Mapping[str, str]
    buffers: Arrays = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()

    def function(self, dtype: str) -> Callable[..., dict[str, Any]]:
        """As `outputs`, but all of them, whole numbers and truth values too, are in the dtype."""
        outputs = self.outputs(dtype)

        def function(**arrays: Any) -> dict[str, Any]:
            return {n: self.cast(x, dtype) for n, x in outputs(**arrays).items()}

        return function

    def outputs(self, dtype: str) -> Callable[..., dict[str, Any]]:
        """What the program gives, a function of arrays named as what they are."""

        def outputs(**arrays: Any) -> dict[str, Any]:
            weights, buffers, inputs = (
                of_kind(arrays, kind) for kind in (WEIGHT, BUFFER, INPUT)
            )
            tree, tapped = self.call({**weights, **buffers}, inputs, dtype)
            for name in self.taps.values():
                if name not in tapped:
                    raise ValueError(
                        f"`taps` must name what {self.source} has, {', '.join(tapped) or 'nothing'}; got {name!r}."
                    )
            taps = {TAP + name: tapped[own] for name, own in self.taps.items()}
            return as_real({**taps, **named(tree)})

        return outputs

    def results(
        self, numbers: Arrays, cotangents: Arrays, dtype: str, held: str
    ) -> dict[str, np.ndarray]:
        """Outputs and gradients of a run in `dtype`, on numbers that `held` holds."""
        learnt = tuple(
            name
            for name, x in numbers.items()
            if x.dtype in DTYPES.values() and not name.startswith(BUFFER)
        )
        cots = cast(cast(cotangents, held), dtype)
        given = _given(numbers, dtype, held)
        return self.run(self.function(dtype), given, cots, learnt)

    def dtypes(self, numbers: Arrays, dtype: str) -> dict[str, str]:
        """Of the arrays that the program gives in a run; a number of Python has none."""
        outputs = self.outputs(dtype)

        def arrays(**given: Any) -> dict[str, Any]:
            found = outputs(**given).items()
            return {name: x for name, x in found if not isinstance(x, np.ndarray)}

        found = self.run(arrays, _given(numbers, dtype, dtype), {}, ())
        return {name: str(x.dtype) for name, x in found.items()}


def _given(numbers: Arrays, dtype: str, held: str) -> dict[str, np.ndarray]:
    # What a module keeps is as exact as it keeps it: to round that is its own doing.
    kept = {name: x for name, x in numbers.items() if name.startswith(BUFFER)}
    return cast(cast(numbers, held) | kept, dtype)


def as_real(outputs: dict[str, Any]) -> dict[str, Any]:
    """Complex numbers as two outputs."""
    found = {}
    for name, x in outputs.items():
        if "complex" in str(x.dtype):
            found |= {f"{name}.real": x.real, f"{name}.imag": x.imag}
        else:
            found[name] = x
    return found


def of_kind(arrays: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Those whose names begin so, without it."""
    return {
        name.removeprefix(kind): x
        for name, x in arrays.items()
        if name.startswith(kind)
    }


def cast(arrays: Arrays, dtype: str) -> dict[str, np.ndarray]:
    """What is floating in this dtype, and what is complex in that of two such, or of two of float32."""
    pairs = np.complex128 if dtype == "float64" else np.complex64

    def held(x: np.ndarray) -> np.ndarray:
        if x.dtype in DTYPES.values():
            return x.astype(DTYPES[dtype])
        return x.astype(pairs) if x.dtype.kind == "c" else x

    return {name: held(x) for name, x in arrays.items()}


def named(tree: Any) -> dict[str, Any]:
    """The arrays of any tree of outputs, under the path that leads to each; "out" if it is an array itself."""
    found: dict[str, Any] = {}
    for path, array in _leaves(tree):
        name = "/".join(path) or "out"
        if name in found:
            raise ValueError(f"two outputs have the name {name}.")
        found[name] = array
    return found


def _leaves(tree: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(tree, (int, float, complex)):
        tree = np.asarray(tree)
    if hasattr(tree, "shape") and hasattr(tree, "dtype"):
        yield (), tree
        return
    if isinstance(tree, Mapping):
        items = tree.items()
    elif isinstance(tree, (tuple, list)):
        items = enumerate(tree)
    elif tree is None:
        return
    elif hasattr(tree, "__dataclass_fields__"):
        items = ((name, getattr(tree, name)) for name in tree.__dataclass_fields__)
    else:
        raise TypeError(
            f"an output must be an array or a tree of arrays, got {type(tree).__name__}."
        )
    for key, value in items:
        for path, array in _leaves(value):
            yield (str(key), *path), array


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
    needed = [
        name
        for name in free
        if signature.parameters[name].default is inspect.Parameter.empty
    ]
    unnamed = sum(name not in kinds for name in given)
    if unnamed not in (len(free), len(needed)):
        raise TypeError(
            f"inputs must have the names of parameters, or be as many as those that are free, "
            f"{', '.join(free) or 'none'}; got {', '.join(given)}."
        )
    free = needed if unnamed == len(needed) else free
    values = {**given, **dict(zip(free, rest, strict=True))}
    first = [name for name in kinds if kinds[name] is inspect.Parameter.POSITIONAL_ONLY]
    return signature.bind(
        *(values[name] for name in first if name in values),
        **{
            name: values[name] for name in kinds if name in values and name not in first
        },
    )


def is_module(program: Any, library: str) -> bool:
    """Whether it is a `Module` of "torch.nn", "flax.nnx" or "flax.linen", which need not be loaded to know."""
    return any(
        base.__name__ == "Module" and base.__module__.startswith(library)
        for base in type(program).__mro__
    )


def source_of(thing: Any) -> str:
    """Its name and line."""
    while isinstance(thing, partial):
        thing = thing.func
    name = getattr(thing, "__name__", type(thing).__name__)
    try:
        file, line = inspect.getsourcefile(thing), inspect.getsourcelines(thing)[1]
    except (OSError, TypeError):
        return name
    return f"{name} ({Path(file or '').name}:{line})"
