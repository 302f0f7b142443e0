"""Every array on the way from inputs to outputs, on both sides, and the first that has no counterpart on the other.

Nobody has to mark anything: PyTorch's operations are recorded as they are dispatched, JAX's as the equations of the
traced program, each with the line of the user's code. Two stages are counterparts if they hold the same numbers, in
any order of axes. Right programs may compute the same in other ways, so a stage without a counterpart is no fault; but
where an output is wrong, some stage between it and the last counterparts before it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from .dtypes import infinite
from .tolerances import STAGE_SHARE

__all__ = [
    "Held",
    "Recording",
    "Region",
    "Stage",
    "diverging",
    "leading_to",
    "line_of",
    "near",
    "orders",
    "said",
    "same_numbers",
    "wide",
]

# Whose lines are not the user's.
LIBRARIES = (
    *(
        f"{Path(spec.origin).parent}/"
        for spec in map(find_spec, ("jax", "torch"))
        if spec and spec.origin
    ),
    *("/flax/", "/jaxlib/", "<"),
)
HERE = f"{Path(__file__).parent}/"
# Axes whose orders are all tried, and numbers of an array that are compared with others.
MOST_AXES, MOST_NUMBERS = 5, 2**20
# Of the largest number: what a long sum may cost in float64, so that no finer comparison would tell.
LEAST_SHARE = 1e-12


@dataclass(frozen=True, eq=False)
class Stage:
    """An array on the way: what made it, of which stages, and where in the code."""

    operation: str
    value: np.ndarray
    parents: tuple[int, ...]
    where: str

    @cached_property
    def sorted(self) -> np.ndarray:
        """Complex numbers have no order; their sizes have one."""
        complex_ = self.value.dtype.kind == "c"
        return np.sort(np.abs(self.value) if complex_ else self.value, axis=None)

    @cached_property
    def tells(self) -> bool:
        """Whether it holds enough to be told from another: several numbers, and more than two different ones."""
        if self.value.dtype.kind == "b" or not 3 <= self.value.size <= MOST_NUMBERS:
            return False
        x = np.ascontiguousarray(self.value).view(np.float64)
        return bool(((x > x.min()) & (x < x.max())).any())


@dataclass(frozen=True)
class Recording:
    """All stages of a call, each after those it was computed from, and which of them are its outputs."""

    stages: tuple[Stage, ...]
    outputs: dict[str, int]


@dataclass(frozen=True)
class Region:
    """Where a side goes wrong, by the numbers of its stages, each in the order of the program.

    Args:
        known: The last stages that have counterparts on the other side.
        parting: All on the way from there to the outputs.
    """

    known: tuple[int, ...]
    parting: tuple[int, ...]


def wide(value: np.ndarray) -> np.ndarray:
    """In float64, complex numbers of two such; what stands for infinity is infinite, but among whole numbers."""
    if value.dtype.kind == "b":
        return value
    if value.dtype.kind == "c":
        return value.astype(np.complex128)
    x = value.astype(np.float64)
    if value.dtype.kind in "iu":
        return x
    return np.where(infinite(x), np.copysign(np.inf, x), x)


def said(stage: Stage) -> str:
    return f"{stage.operation} at {stage.where}" if stage.where else stage.operation


def line_of(frames: Iterable[tuple[str, int]]) -> str:
    """The innermost line that is the user's; none where this package does something itself."""
    for file, line in itertools.dropwhile(
        lambda frame: frame[0].startswith(HERE), frames
    ):
        if file.startswith(HERE):
            return ""
        if not any(library in file for library in LIBRARIES):
            return f"{Path(file).name}:{line}"
    return ""


# --------------------------------------------------------------------------- comparison


def same_numbers(a: np.ndarray, b: np.ndarray, share: float = STAGE_SHARE) -> bool:
    """Whether two arrays are one, up to rounding, in some order of their axes and however these are split."""
    if a.size != b.size or a.size == 0:
        return False
    flat, x = b.reshape(-1), a.squeeze()
    if near(x.reshape(-1), flat, share):
        return True
    turned = (x.transpose(order) for order in orders(x.ndim))
    if not any(near(y.reshape(-1), flat, share) for y in turned):
        return False
    # Distances from i to j are those from j to i but for their sign: in another order of axes they are not the same.
    return not any(
        near(-y, x, share)
        for y in (x.transpose(order) for order in orders(x.ndim))
        if y.shape == x.shape
    )


def orders(axes: int) -> Iterable[tuple[int, ...]]:
    """But for their own."""
    found = itertools.permutations(range(axes)) if axes <= MOST_AXES else ()
    return itertools.islice(found, 1, None)


def near(a: np.ndarray, b: np.ndarray, share: float = STAGE_SHARE) -> bool:
    """Equal but for a share of the largest number."""
    sizes = np.abs(b[np.isfinite(b)])
    error = share * (sizes.max() if sizes.size else 0.0)
    with np.errstate(invalid="ignore"):
        return bool(((a == b) | (np.abs(a - b) <= error)).all())


def diverging(
    a: Recording, b: Recording, outputs: Iterable[str]
) -> tuple[Region, Region]:
    """Where the two sides part on the way to these outputs, which differ."""
    outputs = list(outputs)
    ends = [
        (a.stages[a.outputs[name]].value, b.stages[b.outputs[name]].value)
        for name in outputs
    ]
    share = STAGE_SHARE
    # Of a fault that is smaller than that, the stages before differ by no more either.
    while share > LEAST_SHARE and all(near(x, y, share) for x, y in ends):
        share /= 10
    pairs = _counterparts(a, b, outputs, share)
    return (
        _region(a, {i for i, _ in pairs}, outputs),
        _region(b, {j for _, j in pairs}, outputs),
    )


def leading_to(recording: Recording, stages: Iterable[int]) -> set[int]:
    """These and all that they were computed from."""
    found, left = set(), list(stages)
    while left:
        at = left.pop()
        if at not in found:
            found.add(at)
            left += recording.stages[at].parents
    return found


def _counterparts(
    a: Recording, b: Recording, outputs: list[str], share: float
) -> list[tuple[int, int]]:
    """Of the stages that lead to these outputs: what is computed and not used is not part of the program."""
    ours, theirs = (
        [
            at
            for at in sorted(leading_to(side, [side.outputs[n] for n in outputs]))
            if side.stages[at].tells
        ]
        for side in (a, b)
    )
    held = Held([b.stages[j] for j in theirs])
    return [
        (i, theirs[n])
        for i in ours
        for n in held.maybe(a.stages[i].value, share)
        if _alike(a.stages[i], held.stages[n], share)
    ]


class Held:
    """Stages, to be found by their numbers: by sums first, which are the same in any order of axes."""

    def __init__(self, stages: Iterable[Stage]) -> None:
        self.stages = [stage for stage in stages if stage.tells]
        self.sums = np.array([_sums(stage.value) for stage in self.stages])

    def maybe(self, value: np.ndarray, share: float = STAGE_SHARE) -> list[int]:
        """The places of those that may hold these numbers, but for a share of the largest."""
        if not self.stages:
            return []
        sums, size = np.array(_sums(value)), value.size
        near_by = np.abs(self.sums - sums) <= share * sums[2] * np.array(
            [size, size, 1, 0]
        )
        return [int(n) for n in np.flatnonzero(near_by.all(1))]

    def holding(self, value: np.ndarray) -> Stage | None:
        found = (self.stages[n] for n in self.maybe(value))
        return next((s for s in found if same_numbers(s.value, value)), None)


def _sums(x: np.ndarray) -> tuple[float, float, float, int]:
    there = x[np.isfinite(x)]
    sizes = np.abs(there)
    return (
        float(there.real.sum()),
        float(sizes.sum()),
        float(sizes.max(initial=0)),
        x.size,
    )


def _alike(a: Stage, b: Stage, share: float) -> bool:
    if a.value.dtype != b.value.dtype or not near(a.sorted, b.sorted, share):
        return False
    return same_numbers(a.value, b.value, share)


def _region(recording: Recording, matched: set[int], outputs: Iterable[str]) -> Region:
    """Back from the outputs as far as nothing has a counterpart."""
    known: set[int] = set()
    reached: set[int] = set()
    left = [recording.outputs[name] for name in outputs]
    while left:
        at = left.pop()
        if at in matched:
            known.add(at)
        elif at not in reached:
            reached.add(at)
            left += recording.stages[at].parents
    parting: set[int] = set()
    for at in sorted(reached):  # Each after those that it is made of.
        stage = recording.stages[at]
        if stage.tells or parting & {*stage.parents}:
            parting.add(at)
    return Region(tuple(sorted(known)), tuple(sorted(parting)))
