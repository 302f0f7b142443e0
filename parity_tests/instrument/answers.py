"""What an original gives for numbers drawn once: all that a port is judged by, and all that a golden file holds."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .dtypes import DTYPES, Arrays, infinite, unit_roundoff
from .environment import environment
from .sides import (
    BUFFER,
    INPUT,
    TAP,
    WEIGHT,
    Side,
    as_real,
    called,
    cast,
    named,
    of_kind,
)
from .tolerances import (
    COST_RUNS,
    FEW,
    HALF_UNITS,
    PEER_FLOOR_UNITS,
)
from .weights import WeightMap, carried

__all__ = ["Answer", "Answers", "apart", "asked", "finite", "kinds", "least_of_slices"]

FORMAT = 2


class Answer(NamedTuple):
    """Of one tensor, an output or a gradient.

    Args:
        truth: In float64: of the oracle, or of the original.
        double, rounded: What the original gives in float64 and in the dtype of the run.
        cost: What rounding costs, as it was seen to cost the original.
    """

    truth: np.ndarray
    double: np.ndarray
    rounded: np.ndarray
    cost: np.ndarray


@dataclass(frozen=True)
class Answers:
    """Of an original.

    Args:
        source: Where it is defined.
        numbers: What it was given, in float32 and whole numbers, named "input " or "weight " and its name.
        cotangents: Of its outputs.
        tensors: By the dtype of a run, then by name: outputs, and gradients as "d_" and the name of a number.
        frozen: Weights that do not learn.
        dtypes: Of the outputs as they were given, by the dtype of a run, then by name.
        taps: Their names.
    """

    source: str
    numbers: dict[str, np.ndarray]
    cotangents: dict[str, np.ndarray]
    tensors: dict[str, dict[str, Answer]]
    frozen: frozenset[str]
    dtypes: dict[str, dict[str, str]]
    taps: tuple[str, ...]

    @property
    def weights(self) -> dict[str, np.ndarray]:
        return of_kind(self.numbers, WEIGHT)

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        return of_kind(self.numbers, INPUT)

    def sizes(self, name: str) -> np.ndarray:
        """What a difference of an output is a share of, so that it counts as it does in a verdict.

        The largest number of the least slice, or more where float32 costs more than its roundings.
        """
        answer = self.tensors["float32"][name]
        sizes = answer.cost / (PEER_FLOOR_UNITS * unit_roundoff(np.float32))
        whole = np.nan_to_num(np.abs(finite(answer.truth))).max(initial=0) or 1.0
        return np.where(sizes > 0, sizes, whole)

    def of_port(self, names: WeightMap, weights: Arrays) -> dict[str, np.ndarray]:
        """The numbers that a port with such weights is given."""
        inputs = {INPUT + name: x for name, x in self.inputs.items()}
        return inputs | {
            WEIGHT + a: carried(self.weights[b], how, weights[a].shape)
            for a, (b, how) in names.items()
        }

    def check_inputs(self, inputs: Arrays) -> None:
        """That they are those which were recorded."""
        given = cast(inputs, "float32")
        for name in {*given, *self.inputs}:
            if (
                name not in given
                or name not in self.inputs
                or not np.array_equal(given[name], self.inputs[name], equal_nan=True)
            ):
                raise ValueError(
                    f"`inputs` must be those of the recorded answers of {self.source}; {name} is another."
                )

    def save(self, path: Path) -> None:
        """As an npz file, which says in `manifest` what made it."""
        arrays = {f"numbers/{name}": x for name, x in self.numbers.items()}
        arrays |= {f"cotangents/{name}": x for name, x in self.cotangents.items()}
        for dtype, tensors in self.tensors.items():
            for name, answer in tensors.items():
                for field, x in answer._asdict().items():
                    # NumPy's files have no bfloat16; float32 holds it.
                    wide = np.float32 if x.dtype == DTYPES["bfloat16"] else x.dtype
                    arrays[f"{dtype}/{field}/{name}"] = x.astype(wide)
        manifest = {
            "format": FORMAT,
            "sha256": _digest(arrays),
            "source": self.source,
            "dtypes": self.dtypes,
            "frozen": sorted(self.frozen),
            "taps": self.taps,
            "tensors": list(next(iter(self.tensors.values()))),
            "environment": environment(),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            np.savez_compressed(
                file, allow_pickle=False, manifest=json.dumps(manifest), **arrays
            )

    @classmethod
    def load(cls, path: Path) -> Answers:
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
                arrays = dict(found)
            manifest = json.loads(str(arrays.pop("manifest")))
            whole = manifest["format"] == FORMAT, manifest["sha256"] == _digest(arrays)
        except FileNotFoundError:
            raise
        except Exception as error:  # Of a file of any other kind.
            raise ValueError(
                f"{path.name} must be a file of `record`, got {type(error).__name__}: {error}."
            ) from error
        if not all(whole):
            raise ValueError(
                f"{path.name} must be a file of `record` of format {FORMAT} as it was written, got format "
                f"{manifest['format']}{'' if whole[1] else ', changed since'}."
            )

        def answer(dtype: str, name: str) -> Answer:
            fields = (arrays[f"{dtype}/{field}/{name}"] for field in Answer._fields)
            found = Answer(*fields)
            return found._replace(rounded=found.rounded.astype(DTYPES[dtype]))

        tensors = {
            dtype: {name: answer(dtype, name) for name in manifest["tensors"]}
            for dtype in manifest["dtypes"]
        }
        given = (of_kind(arrays, f"{kind}/") for kind in ("numbers", "cotangents"))
        return cls(
            manifest["source"],
            *given,
            tensors,
            frozenset(manifest["frozen"]),
            manifest["dtypes"],
            tuple(manifest["taps"]),
        )


def asked(
    original: Side,
    inputs: Mapping[str, np.ndarray],
    dtypes: Sequence[str],
    seed: int,
    oracle: Callable[..., Any] | None = None,
) -> Answers:
    """Ask an original.

    Args:
        original: Any side.
        inputs: By name.
        dtypes: Of the runs.
        seed: Of weights, which are drawn anew around those that it has, and of cotangents.
        oracle: Takes the inputs by name, in float64, and gives the right outputs, in NumPy. Their gradients are the
            original's.
    """
    rng = np.random.default_rng(seed)
    numbers = {INPUT + name: x for name, x in cast(inputs, "float32").items()}
    numbers |= {
        WEIGHT + n: w if n in original.frozen else _around(w, rng)
        for n, w in cast(original.weights, "float32").items()
    }
    numbers |= {BUFFER + n: x for n, x in original.buffers.items()}
    outputs = original.run(original.function("float32"), numbers, {}, ())
    cotangents = {name: rng.normal(size=x.shape) for name, x in outputs.items()}
    # What is tapped is no output: gradients are of outputs alone.
    cotangents |= {n: 0 * x for n, x in cotangents.items() if n.startswith(TAP)}
    # All float64 runs first: in some modules a table of one run is left for the next.
    doubles = {
        dtype: original.results(numbers, cotangents, "float64", dtype)
        for dtype in dtypes
    }
    tensors = {}
    for dtype, double in doubles.items():
        rounded = original.results(numbers, cotangents, dtype, dtype)
        costs = _costs(original, numbers, cotangents, dtype, (double, rounded))
        truth = {**double, **_right(oracle, inputs, dtype, double)}
        tensors[dtype] = {
            name: Answer(truth[name], double[name], rounded[name], costs[name])
            for name in double
        }
    given = {dtype: original.dtypes(numbers, dtype) for dtype in dtypes}
    return Answers(
        original.source,
        numbers,
        cotangents,
        tensors,
        original.frozen,
        given,
        tuple(original.taps),
    )


def _digest(arrays: Arrays) -> str:
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        found.update(np.ascontiguousarray(arrays[name]).tobytes())
    return found.hexdigest()


def _right(
    oracle: Callable[..., Any] | None, inputs: Arrays, dtype: str, double: Arrays
) -> dict[str, np.ndarray]:
    """What the oracle gives for inputs that the dtype holds."""
    if oracle is None:
        return {}
    given = cast(cast(inputs, dtype), "float64")
    outputs = {
        name: np.asarray(x, np.float64)
        for name, x in as_real(named(called(oracle, given))).items()
    }
    for name, x in outputs.items():
        if name not in double or double[name].shape != x.shape:
            shape = double[name].shape if name in double else "none"
            raise ValueError(
                f"`oracle` must give {', '.join(double)} as the original does; it gives {name} {x.shape}, "
                f"the original {shape}."
            )
    return outputs


def _costs(
    original: Side,
    numbers: Arrays,
    cotangents: Arrays,
    dtype: str,
    first: tuple[Arrays, Arrays],
) -> dict[str, np.ndarray]:
    """What rounding costs, at worst of a first run and a few near by: of few numbers one may be lucky."""
    rng = np.random.default_rng(0)
    errors: dict[str, np.ndarray] = {}
    # Whole numbers, as tokens that are chosen, and truth values are not rounded.
    whole = {*cotangents}

    def moved(by: float, kinds: tuple[str, ...]) -> dict[str, np.ndarray]:
        return {
            name: np.asarray(x * (1 + by * rng.normal(size=x.shape)))
            for name, x in numbers.items()
            if x.dtype in DTYPES.values() and name.startswith(kinds)
        }

    def see(exact: Arrays, rounded: Arrays) -> None:
        for name, x in rounded.items():
            right = finite(exact[name])
            if name.startswith("d_") or (np.nan_to_num(right) % 1).any():
                whole.discard(name)
            error = np.nan_to_num(np.abs(finite(x) - right))
            errors[name] = np.maximum(errors.get(name, 0.0), error)

    see(*first)
    for _ in range(COST_RUNS):
        near_by = {**numbers, **moved(2**-6, (INPUT, WEIGHT))}
        # For one cotangent all that is summed to a gradient may cancel.
        others = {
            n: np.where(c != 0, rng.normal(size=c.shape), 0.0)
            for n, c in cotangents.items()
        }
        exact = original.results(near_by, others, "float64", dtype)
        # A table that is kept in float32 may be rounded otherwise.
        near_by |= moved(unit_roundoff(np.float32), (BUFFER,))
        see(exact, original.results(near_by, others, dtype, dtype))
    return {
        name: np.zeros(error.shape)
        if name in whole
        else _cost(np.nan_to_num(np.abs(finite(first[0][name]))), error, dtype)
        for name, error in errors.items()
    }


def _cost(size: np.ndarray, error: np.ndarray, dtype: str) -> np.ndarray:
    """At every place the least of what was seen in the slices that it is in, one for each axis.

    So no head, position or channel hides among those with larger numbers or errors.
    """
    unit = unit_roundoff(DTYPES[dtype])
    cost = np.full(size.shape, np.inf)
    if not size.ndim:
        cost = np.maximum(error, PEER_FLOOR_UNITS * unit * size)
    for axis in range(size.ndim if size.size else 0):
        seen, sizes = (_largest_of_slices(x, axis) for x in (error, size))
        seen = np.maximum(seen, PEER_FLOOR_UNITS * unit * sizes)
        if dtype != "float32":
            capped = np.minimum(seen, HALF_UNITS * unit * sizes)
            # What is zero, as the gradient of a bias of keys, is nothing but rounding.
            nothing = sizes < unit_roundoff(np.float32) * seen
            seen = np.where(nothing, seen, capped)
        cost = np.minimum(cost, seen)
    return cost


def least_of_slices(size: np.ndarray) -> np.ndarray:
    """Of every number the least of the largest in the slices that it is in."""
    least = np.array(size) if not size.ndim else np.full(size.shape, np.inf)
    for axis in range(size.ndim if size.size else 0):
        least = np.minimum(least, _largest_of_slices(size, axis))
    return least


def _largest_of_slices(x: np.ndarray, axis: int) -> np.ndarray:
    """Along an axis, in blocks of at least FEW numbers; of the shape of `x` but for other axes, which are 1."""
    rows = np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
    block = math.ceil(FEW / rows.shape[1])
    starts = np.arange(0, max(len(rows) - block, 0) + 1, block)
    largest = np.maximum.reduceat(rows.max(1), starts)
    shape = [-1 if k == axis else 1 for k in range(x.ndim)]
    return np.repeat(largest, np.diff([*starts, len(rows)])).reshape(shape)


def finite(x: np.ndarray, *, whole: bool = False) -> np.ndarray:
    """In float64; what stands for infinity is no number, but of whole numbers, which do not."""
    x = x.astype(np.float64)
    return np.where(np.isfinite(x) if whole else ~infinite(x), x, np.nan)


def kinds(x: np.ndarray, *, whole: bool = False) -> np.ndarray:
    """What each is: 0 a number, 1 or -1 infinity or what stands for it, 2 NaN."""
    x = x.astype(np.float64)
    large = np.isinf(x) if whole else infinite(x)
    return np.where(np.isnan(x), 2.0, np.where(large, np.sign(x), 0.0))


def apart(a: np.ndarray, b: np.ndarray, sizes: np.ndarray | None = None) -> float:
    """The largest difference, as a share of these sizes or of the largest number.

    Infinite if they have not the same shape and places.
    """
    there = np.isfinite(a)
    if a.shape != b.shape or (there != np.isfinite(b)).any():
        return np.inf
    size = np.abs(a[there]).max(initial=0) or 1.0
    size = size if sizes is None else sizes[there]
    return float((np.abs(a[there] - b[there]) / size).max(initial=0))


def _around(weight: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Other weights of that size: zeros and ones would hide what they are added to or multiply."""
    size = np.abs(weight).mean() or 0.1
    return (weight + 0.3 * size * rng.normal(size=weight.shape)).astype(np.float32)
