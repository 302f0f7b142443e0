"""The usual faults of a port, tried as hypotheses: PyTorch's side is run again with the fault in one of its stages.

A hypothesis explains a difference if the original then gives the port's outputs. It is consistent with what was seen,
and the error before and after says how well.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from .stages import Recording, Region, Stage, near, same_numbers
from .tolerances import EXPLAINS

__all__ = ["Cause", "explained"]

Found = Iterator[tuple[str, np.ndarray]]
# What a diagnosis may take, and how much longer to look for others that explain it too.
MOST_SECONDS, MORE_SECONDS = 15, 2
# Of RoPE in common models.
USUAL_BASES = (1e4, 1e5, 5e5, 1e6, 1e7)
# How many explanations are said, and which before which.
SAID = 3
PLAINEST_FIRST = (
    "rounded",
    "base",
    "rotation",
    "sign",
    "positions",
    "left out",
    "multiplied",
    "axes",
    "axis",
)


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
    error: Callable[[dict[int, np.ndarray]], float],
) -> list[Cause]:
    """Every hypothesis that explains the difference, those of the earliest stage.

    Args:
        original, port: What the sides did.
        region, parting: Where they part, in the original and in the port.
        error: The largest difference of the original's outputs from the port's, as a share of them, with other numbers
            in some of its stages.
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
        for words, value in faults[at].items():
            # In this stage alone, or wherever the same line does the same.
            alike = [
                i
                for i in faults
                if words in faults[i] and _is_of(stage, original.stages[i])
            ]
            for stages in [[at], alike][: len(alike)]:
                after = error({i: faults[i][words] for i in stages})
                if after < EXPLAINS * before:
                    ours = _holding(port, parting, value)
                    causes.append(Cause(words, stage, ours, before, after))
                    until = min(until, time.monotonic() + MORE_SECONDS)
                    break
        if time.monotonic() > until:
            break
    plain = {cause.words: cause for cause in sorted(causes, key=_plainness)[::-1]}
    return [*plain.values()][::-1][:SAID]


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


def _is_of(a: Stage, b: Stage) -> bool:
    return (a.operation, a.where) == (b.operation, b.where)


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
    yield from _rounded(value)
    yield from _shifted(value)
    if value.ndim >= 2 and value.shape[-1] == value.shape[-2]:
        yield "the last two axes exchanged", value.swapaxes(-1, -2)
    if at not in region.parting:
        return
    yield from _skipped(stage, original)
    yield from _of_another_size(value, theirs)
    yield from _of_usual_bases(value)
    yield "the sign is changed", -value
    yield from _reordered(value)
    yield from _rotated(value, original, region)


def _is_copy(a: Stage, b: Stage) -> bool:
    """A constant cannot be changed itself."""
    return a.operation != "constant" and np.array_equal(a.value, b.value)


def _skipped(stage: Stage, original: Recording) -> Found:
    for parent in stage.parents:
        before = original.stages[parent].value
        if before.dtype.kind == "f" and before.shape == stage.value.shape:
            yield f"the step {stage.operation!r} is left out", before


def _of_another_size(value: np.ndarray, theirs: list[np.ndarray]) -> Found:
    """By a factor, or frequencies of another base, that a stage of the port suggests."""
    for other in theirs:
        if other.size != value.size or other.dtype.kind != "f":
            continue
        finite = np.isfinite(value) & (value != 0)
        sizes = [np.abs(x[np.isfinite(x)]).max(initial=0) for x in (other, value)]
        if not (finite.any() and all(sizes)):
            continue
        factor = sizes[0] / sizes[1]
        for signed in (factor, -factor):
            if abs(signed - 1) > 1e-6 and near(
                np.sort(signed * value, axis=None), np.sort(other, axis=None)
            ):
                yield f"multiplied by {_number(signed)}", signed * value
        yield from _of_another_base(value, other)


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


def _of_another_base(value: np.ndarray, other: np.ndarray) -> Found:
    """Frequencies base^(-i/n), from 1 down."""
    n = value.size
    ours, theirs = (np.sort(x, axis=None)[::-1] for x in (value, other))
    if any(x[-1] <= 0 or abs(x[0] - 1) > 1e-6 or x[1] >= 1 for x in (ours, theirs)):
        return
    power = np.log(theirs[-1]) / np.log(ours[-1])
    if abs(power - 1) > 1e-6 and near(ours**power, theirs):
        bases = (x[1] ** -float(n) for x in (theirs, ours))
        yield (
            "base {:.6g} in place of {:.6g}".format(*bases)
            + f", or a width of {2 * n / power:.6g} in place of {2 * n} in the exponent",
            value**power,
        )


def _of_usual_bases(value: np.ndarray) -> Found:
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
            yield f"base {other:.6g} in place of {base:.6g}", value**power


def _rounded(value: np.ndarray) -> Found:
    for dtype in (ml_dtypes.bfloat16, np.float16):
        with np.errstate(over="ignore"):
            rounded = value.astype(dtype).astype(np.float64)
        if not near(value, rounded):
            yield f"rounded to {np.dtype(dtype).name}", rounded


def _shifted(value: np.ndarray) -> Found:
    """Positions, angles, or what else grows evenly along an axis."""
    for axis in range(value.ndim):
        with np.errstate(invalid="ignore"):
            steps = np.diff(value, axis=axis)
        if value.shape[axis] < 3 or not np.isfinite(steps).all():
            continue
        step = steps.take([0], axis)
        if step.any() and near(steps, np.broadcast_to(step, steps.shape)):
            for by in (1, -1):
                yield (
                    f"positions {'after' if by > 0 else 'before'} their own by 1",
                    value + by * step,
                )


def _reordered(value: np.ndarray) -> Found:
    for axis, n in enumerate(value.shape):
        if n < 3:
            continue
        orders = {f"axis {axis} reversed": np.arange(n)[::-1]}
        if n % 2 == 0:
            pairs = np.arange(n).reshape(2, -1).T.ravel()
            orders[f"axis {axis} in neighbouring pairs in place of halves"] = pairs
            orders[f"axis {axis} in halves in place of neighbouring pairs"] = (
                np.argsort(pairs)
            )
        for words, order in orders.items():
            yield words, value.take(order, axis)


# ---------------------------------------------------------------------------- rotations


def _rotated(value: np.ndarray, original: Recording, region: Region) -> Found:
    """Of a rotation, the others that are in use."""
    if value.ndim < 3:
        return
    before = [original.stages[at].value for at in region.known]
    xs = [x for x in before if x.size == value.size and x.ndim >= 3]
    tables = [x for x in before if x.dtype.kind == "f" and np.abs(x).max() <= 1 + 1e-6]
    for x, (cos, sin) in itertools.product(xs, itertools.permutations(tables, 2)):
        if x.shape != value.shape or cos.shape != sin.shape:
            continue
        if not near(cos**2 + sin**2, np.ones(cos.shape)):
            continue
        ways = dict(_rotations(x, cos, sin))
        mine = [words for words, rotated in ways.items() if near(rotated, value)]
        for words, rotated in ways.items() if mine else ():
            if words not in mine:
                yield f"a rotation {words} in place of one {mine[0]}", rotated


def _rotations(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> Found:
    """Of every layout and direction; tables are [tokens, pairs], or hold each pair twice."""
    cos, sin = cos.squeeze(), sin.squeeze()
    if cos.ndim != 2:
        return
    half = cos.shape[-1] // 2
    if half and near(cos[:, :half], cos[:, half : 2 * half]):
        cos, sin = cos[:, :half], sin[:, :half]
    elif half and near(cos[:, ::2], cos[:, 1::2]):
        cos, sin = cos[:, ::2], sin[:, ::2]
    tokens, n = cos.shape
    for axis in range(x.ndim - 1):
        if x.shape[axis] != tokens or x.shape[-1] < 2 * n:
            continue
        shape = [1] * x.ndim
        shape[axis], shape[-1] = tokens, n
        c, s = cos.reshape(shape), sin.reshape(shape)
        for layout, sign in itertools.product(("half", "interleaved"), (1, -1)):
            i, j = slice(0, n), slice(n, 2 * n)
            if layout == "interleaved":
                i, j = slice(0, 2 * n, 2), slice(1, 2 * n, 2)
            y = x.copy()
            y[..., i] = x[..., i] * c - sign * x[..., j] * s
            y[..., j] = x[..., j] * c + sign * x[..., i] * s
            yield f"in the layout {layout!r}{'' if sign > 0 else ', backwards'}", y
