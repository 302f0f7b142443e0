"""The usual faults of a port, tried as hypotheses: PyTorch's side is run again with the fault in its stages.

A hypothesis explains a difference if the original then gives the port's outputs. It is consistent with what was seen,
and the error before and after says how well.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import ml_dtypes
import numpy as np
from scipy import special

from .stages import Recording, Region, Stage, near, same_numbers
from .tolerances import EXPLAINS

__all__ = ["Cause", "Change", "explained"]

# What a diagnosis may take, and how much longer to look for others that explain it too.
MOST_SECONDS, MORE_SECONDS = 15, 2
# Of RoPE in common models.
USUAL_BASES = (1e4, 1e5, 5e5, 1e6, 1e7)
# How many explanations are said, and which before which.
SAID = 3
PLAINEST_FIRST = (
    "rounded",
    "activation",
    "mask",
    "base",
    "rotation",
    "sign",
    "positions",
    "left out",
    "multiplied",
    "axes",
    "axis",
)


class Change(NamedTuple):
    """What a stage has in place of its numbers: a function of those of some stages, as they are when it is run."""

    of: tuple[int, ...]
    apply: Callable[..., np.ndarray]


Found = Iterator[tuple[str, Change]]


@dataclass(frozen=True)
class Cause:
    """What explains the difference.

    Args:
        words: What the port has.
        stage, ours: What the original has there, and a stage of the port that holds the numbers of the hypothesis.
        before, after: The largest difference of the original from the port, as a share, without and with the fault.
    """

    words: str
    stage: Stage
    ours: Stage | None
    before: float
    after: float

    def __str__(self) -> str:
        where = f" at {self.stage.where}" if self.stage.where else ""
        where += f", in the port at {self.ours.where}" if self.ours else ""
        return (
            f"{self.words} ({self.stage.operation}{where}; the original with that is "
            f"{self.after:.0e} from the port, without it {self.before:.0e})"
        )


def explained(
    original: Recording,
    region: Region,
    port: Recording,
    parting: Region,
    error: Callable[[dict[int, Change]], float],
) -> list[Cause]:
    """The hypotheses that explain the difference, the plainest first.

    Args:
        original, port: What the sides did.
        region, parting: Where they part, in the original and in the port.
        error: The largest difference of the original's outputs from the port's, as a share of them, with changes in
            some of its stages.
    """
    causes: list[Cause] = []
    before, until = error({}), time.monotonic() + MOST_SECONDS
    theirs = [port.stages[at].value for at in parting.parting]
    faults = {
        at: dict(_faults(original, at, region, theirs))
        for at in sorted({*region.parting, *_before(original, region.known)})
    }
    for at in faults:
        stage = original.stages[at]
        for words, change in faults[at].items():
            # In this stage alone, or wherever the same line does the same.
            alike = [
                i
                for i in faults
                if words in faults[i] and _is_like(stage, original.stages[i])
            ]
            for stages in [[at], alike][: len(alike)]:
                after = error({i: faults[i][words] for i in stages})
                if after < EXPLAINS * before:
                    value = change.apply(*(original.stages[i].value for i in change.of))
                    ours = _holding(port, parting, value)
                    causes.append(Cause(words, stage, ours, before, after))
                    until = min(until, time.monotonic() + MORE_SECONDS)
                    break
        if time.monotonic() > until:
            break
    plain: dict[str, Cause] = {}
    for cause in sorted(causes, key=_plainness):
        plain.setdefault(cause.words.split(",")[0], cause)
    return [*plain.values()][:SAID]


def _plainness(cause: Cause) -> int:
    """Some faults are the same function: positions that go back are a sine without its sign."""
    return next(n for n, word in enumerate(PLAINEST_FIRST) if word in cause.words)


def _before(recording: Recording, stages: tuple[int, ...]) -> set[int]:
    """These and all that they were computed from."""
    found, left = set(), list(stages)
    while left:
        at = left.pop()
        if at not in found:
            found.add(at)
            left += recording.stages[at].parents
    return found


def _holding(port: Recording, parting: Region, value: np.ndarray) -> Stage | None:
    for at in parting.parting:
        stage = port.stages[at]
        if stage.tells and stage.where and same_numbers(stage.value, value):
            return stage
    return None


def _is_like(a: Stage, b: Stage) -> bool:
    """The same step, for queries and keys or in another layer."""
    if (a.operation, a.where) != (b.operation, b.where):
        return False
    return a.value.ndim == b.value.ndim and a.value.shape[-1] == b.value.shape[-1]


def _faults(
    original: Recording, at: int, region: Region, theirs: list[np.ndarray]
) -> Found:
    """What a port may have in place of this stage; fewer of those that looked the same in the port."""
    stage = original.stages[at]
    value = stage.value
    if not stage.tells or not np.isfinite(value).any():
        return
    if any(_is_copy(original.stages[i], stage) for i in stage.parents):
        return  # Nothing is to be said that was not said of what it is a copy of.
    elsewhere = at not in region.parting
    for words, apply in _alone(value, theirs, few=elsewhere):
        yield words, Change((at,), apply)
    if not elsewhere:
        yield from _skipped(stage, original)
        yield from _activated(stage, original)
        yield from _masked(stage, original)
        yield from _rotated(value, original, [i for i in region.known if i < at])


def _is_copy(a: Stage, b: Stage) -> bool:
    """A constant cannot be changed itself."""
    return a.operation != "constant" and np.array_equal(a.value, b.value)


def _skipped(stage: Stage, original: Recording) -> Found:
    """As if it gave one of those that it is made of."""
    parents = [i for i in stage.parents if original.stages[i].value.dtype.kind == "f"]
    for n, parent in enumerate(parents, 1):
        if original.stages[parent].value.shape == stage.value.shape:
            of = f" but for its input {n}" if len(parents) > 1 else ""
            words = f"the step {stage.operation!r} is left out{of}"
            yield words, Change((parent,), np.array)


def _activated(stage: Stage, original: Recording) -> Found:
    """Of an activation, the others."""
    for parent in stage.parents:
        before = original.stages[parent].value
        if before.shape != stage.value.shape or not np.isfinite(before).all():
            continue
        is_it = [
            name for name, f in ACTIVATIONS.items() if near(f(before), stage.value)
        ]
        for name, function in ACTIVATIONS.items() if is_it else ():
            if name not in is_it:
                words = f"activation {name} in place of {is_it[0]}"
                yield words, Change((parent,), function)


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu by erf": lambda x: x * (1 + special.erf(x / np.sqrt(2))) / 2,
    "gelu by tanh": lambda x: (
        x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
    ),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * special.expit(x),
}


def _masked(stage: Stage, original: Recording) -> Found:
    """By a mask that ends a key later or earlier, as it does for the query after or before."""
    if stage.operation != "masked_fill" or len(stage.parents) < 2:
        return
    scores, mask = stage.parents[:2]
    if original.stages[mask].value.ndim < 2:
        return

    def moved(by: int, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        queries = np.arange(mask.shape[-2]) + by
        queries = np.clip(queries, 0, mask.shape[-2] - 1)
        return np.where(mask[..., queries, :], -np.inf, x)

    for way, by in (("later", 1), ("earlier", -1)):
        yield f"mask by one key {way}", Change((scores, mask), partial(moved, by))


# ------------------------------------------------------- faults of a stage by itself

Applied = Iterator[tuple[str, Callable[[np.ndarray], np.ndarray]]]


def _alone(value: np.ndarray, theirs: list[np.ndarray], *, few: bool) -> Applied:
    yield from _rounded(value)
    yield from _shifted(value)
    if value.ndim >= 2 and value.shape[-1] == value.shape[-2]:
        yield "the last two axes exchanged", lambda x: x.swapaxes(-1, -2)
    if few:
        return
    for other in theirs:
        if other.size == value.size and other.dtype.kind == "f":
            yield from _of_another_size(value, other)
            yield from _of_another_base(value, other)
    yield from _of_usual_bases(value)
    yield "the sign is changed", np.negative
    yield from _reordered(value)


def _of_another_size(value: np.ndarray, other: np.ndarray) -> Applied:
    """By a factor that a stage of the port suggests."""
    finite = np.isfinite(value) & (value != 0)
    sizes = [np.abs(x[np.isfinite(x)]).max(initial=0) for x in (other, value)]
    if not (finite.any() and all(sizes)):
        return
    factor = sizes[0] / sizes[1]
    for signed in (factor, -factor):
        scaled = np.sort(signed * value, axis=None)
        if abs(abs(signed) - 1) > 1e-6 and near(scaled, np.sort(other, axis=None)):
            yield f"multiplied by {_number(signed)}", partial(np.multiply, signed)


def _number(x: float) -> str:
    """As a root or its inverse, if it is one of a whole number."""
    sign, x = ("-" if x < 0 else ""), abs(x)
    for text, value in (
        ("{}", x),
        ("1/{}", 1 / x),
        ("sqrt({})", x**2),
        ("1/sqrt({})", x**-2),
    ):
        if value > 1.5 and abs(value - round(value)) < 1e-4:
            return sign + text.format(round(value))
    return f"{sign}{x:.6g}"


def _of_another_base(value: np.ndarray, other: np.ndarray) -> Applied:
    """Frequencies base^(-i/n), from 1 down."""
    n = value.size
    ours, theirs = (np.sort(x, axis=None)[::-1] for x in (value, other))
    if any(x[-1] <= 0 or abs(x[0] - 1) > 1e-6 or x[1] >= 1 for x in (ours, theirs)):
        return
    power = np.log(theirs[-1]) / np.log(ours[-1])
    if abs(power - 1) > 1e-6 and near(ours**power, theirs):
        bases = (x[1] ** -float(n) for x in (theirs, ours))
        words = "base {:.6g} in place of {:.6g}".format(*bases)
        words += (
            f", or a width of {2 * n / power:.6g} in place of {2 * n} in the exponent"
        )
        yield words, partial(_to_the_power, power)


def _of_usual_bases(value: np.ndarray) -> Applied:
    """As of a port whose tables were made elsewhere, so that no stage of it has its frequencies."""
    n, ordered = value.size, np.sort(value, axis=None)[::-1]
    if ordered[-1] <= 0 or abs(ordered[0] - 1) > 1e-6:
        return
    ratios = ordered[1:] / ordered[:-1]
    if ratios[0] > 1 - 1e-6 or not near(ratios, np.full(n - 1, ratios[0])):
        return
    base = ratios[0] ** -float(n)
    for other in USUAL_BASES:
        if abs(other / base - 1) > 1e-3:
            power = np.log(other) / np.log(base)
            words = f"base {other:.6g} in place of {base:.6g}"
            yield words, partial(_to_the_power, power)


def _to_the_power(power: float, x: np.ndarray) -> np.ndarray:
    return x**power


def _rounded(value: np.ndarray) -> Applied:
    for dtype in (ml_dtypes.bfloat16, np.float16):

        def apply(x: np.ndarray, dtype: type = dtype) -> np.ndarray:
            with np.errstate(over="ignore"):
                return x.astype(dtype).astype(np.float64)

        if not near(value, apply(value)):
            yield f"rounded to {np.dtype(dtype).name}", apply


def _shifted(value: np.ndarray) -> Applied:
    """Positions, angles, or what else grows evenly along an axis."""
    for axis in range(value.ndim):
        with np.errstate(invalid="ignore"):
            steps = np.diff(value, axis=axis)
        if value.shape[axis] < 3 or not np.isfinite(steps).all():
            continue
        step = steps.take([0], axis)
        if step.any() and near(steps, np.broadcast_to(step, steps.shape)):
            for way, by in (("after", step), ("before", -step)):
                yield f"positions {way} their own by 1", partial(np.add, by)


def _reordered(value: np.ndarray) -> Applied:
    for axis, n in enumerate(value.shape):
        if n < 3:
            continue
        orders = {"reversed": np.arange(n)[::-1]}
        if n % 2 == 0:
            pairs = np.arange(n).reshape(2, -1).T.ravel()
            orders["in neighbouring pairs in place of halves"] = pairs
            orders["in halves in place of neighbouring pairs"] = np.argsort(pairs)
        for words, order in orders.items():
            yield f"axis {axis} {words}", partial(np.take, indices=order, axis=axis)


# ---------------------------------------------------------------------------- rotations


def _rotated(value: np.ndarray, original: Recording, before: list[int]) -> Found:
    """Of a rotation, the others that are in use."""
    if value.ndim < 3:
        return
    known = [(at, original.stages[at].value) for at in before]
    xs = [(at, x) for at, x in known if x.shape == value.shape]
    tables = [
        (at, x)
        for at, x in known
        if x.dtype.kind == "f" and np.abs(x).max() <= 1 + 1e-6
    ]
    for (i, x), ((j, cos), (k, sin)) in itertools.product(
        xs, itertools.permutations(tables, 2)
    ):
        if cos.shape != sin.shape or not near(cos**2 + sin**2, np.ones(cos.shape)):
            continue
        ways = [
            way for way in _ways(x, cos) if near(_rotation(way, x, cos, sin), value)
        ]
        for way in _ways(x, cos) if ways else ():
            if way not in ways:
                words = f"a rotation {way} in place of one {ways[0]}"
                yield words, Change((i, j, k), partial(_rotation, way))


class _Way(NamedTuple):
    layout: str
    sign: int
    axis: int

    def __str__(self) -> str:
        return f"in the layout {self.layout!r}{'' if self.sign > 0 else ', backwards'}"


def _ways(x: np.ndarray, cos: np.ndarray) -> list[_Way]:
    """Every layout and direction, tokens along an axis that the table has."""
    table = _of_pairs(cos)
    axes = [
        axis
        for axis in range(x.ndim - 1)
        if table.ndim == 2
        and x.shape[axis] == table.shape[0]
        and x.shape[-1] >= 2 * table.shape[1]
    ]
    return [
        _Way(*way)
        for way in itertools.product(("half", "interleaved"), (1, -1), axes[-1:])
    ]


def _of_pairs(table: np.ndarray) -> np.ndarray:
    """[tokens, pairs] of a table that may hold each pair twice."""
    table = table.squeeze()
    half = table.shape[-1] // 2 if table.ndim == 2 else 0
    if half and near(table[:, :half], table[:, half : 2 * half]):
        return table[:, :half]
    if half and near(table[:, ::2], table[:, 1::2]):
        return table[:, ::2]
    return table


def _rotation(way: _Way, x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    cos, sin = _of_pairs(cos), _of_pairs(sin)
    n = cos.shape[1]
    shape = [1] * x.ndim
    shape[way.axis], shape[-1] = cos.shape
    cos, sin = cos.reshape(shape), way.sign * sin.reshape(shape)
    i, j = slice(0, n), slice(n, 2 * n)
    if way.layout == "interleaved":
        i, j = slice(0, 2 * n, 2), slice(1, 2 * n, 2)
    y = x.copy()
    y[..., i] = x[..., i] * cos - x[..., j] * sin
    y[..., j] = x[..., j] * cos + x[..., i] * sin
    return y
