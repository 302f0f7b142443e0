"""Both sides of a port that is another function, where they part, and what a fault is: other numbers in a stage."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from .stages import Recording, Region, Stage, leading_to, near
from .tolerances import EXPLAINS

__all__ = [
    "Applied",
    "Change",
    "Error",
    "Found",
    "Parted",
    "Tables",
    "constant_of",
    "explains",
    "is_copy",
    "of_pairs",
    "places_of",
    "tables_of",
]

# What a port that takes a step in float32, as Flax's Embed may, is off with any hypothesis; a right one is then seen by
# so many times less than was off without it.
IN_FLOAT32, CLEARLY = 2.0**-23, 20
# Of one step, of which all orders are tried.
MOST_PIECES = 3


class Change(NamedTuple):
    """What a stage has in place of its numbers: a function of those of some stages, as they are when it is run."""

    of: tuple[int, ...]
    apply: Callable[..., np.ndarray]


# The largest difference of the original's outputs from the port's with such changes, as a share of them.
Error = Callable[[dict[int, Change]], float]
Found = Iterator[tuple[str, Change]]


Applied = tuple[str, Callable[[np.ndarray], np.ndarray]]


class Tables(NamedTuple):
    """Cosines and sines, and of which stages."""

    of: tuple[int, ...]
    cos: np.ndarray
    sin: np.ndarray


@dataclass(frozen=True)
class Parted:
    """Both sides, and where they part."""

    original: Recording
    region: Region
    port: Recording
    parting: Region

    @cached_property
    def known(self) -> set[int]:
        """The last stages that both have, and what they are copies of."""
        found, left = set(), [*self.region.known]
        while left:
            at = left.pop()
            stage = self.original.stages[at]
            found.add(at)
            left += [
                i
                for i in stage.parents
                if i not in found and is_copy(self.original.stages[i], stage)
            ]
        return found

    @cached_property
    def before(self) -> tuple[int, ...]:
        return tuple(sorted(leading_to(self.original, self.region.known)))

    def applied(self, change: Change) -> np.ndarray:
        """What a stage would be if it alone were changed."""
        with np.errstate(all="ignore"):
            return change.apply(*(self.original.stages[i].value for i in change.of))

    @cached_property
    def theirs(self) -> dict[int, list[Stage]]:
        """What the port has that the original has not, of numbers that are real, by how many they are."""
        found: dict[int, list[Stage]] = {}
        for stage in (self.port.stages[at] for at in self.parting.parting):
            if stage.tells and stage.value.dtype.kind == "f":
                found.setdefault(stage.value.size, []).append(stage)
        return found

    @cached_property
    def added(self) -> set[float]:
        """What the port adds to all numbers of a stage."""
        return self._constants(np.subtract)

    @cached_property
    def factors(self) -> set[float]:
        """What the port multiplies all numbers of a stage by."""
        return self._constants(np.divide)

    def _constants(self, of: np.ufunc) -> set[float]:
        found = (
            constant_of(stage.value, self.port.stages[parent].value, of)
            for stage in self.port.stages
            for parent in stage.parents
        )
        return {float(f"{x:.12g}") for x in found if x is not None}

    @cached_property
    def tables(self) -> list[Tables]:
        """The original's."""
        stages = sorted({*self.before, *self.region.parting})
        return tables_of(self.original, stages)

    @cached_property
    def their_tables(self) -> list[Tables]:
        return tables_of(self.port, [*self.parting.known, *self.parting.parting])

    @cached_property
    def partners(self) -> dict[int, set[int]]:
        """The sine of a cosine, and the other way."""
        found: dict[int, set[int]] = {}
        for table in self.tables:
            for i, j in itertools.permutations(table.of, 2):
                found.setdefault(i, set()).add(j)
        return found

    @cached_property
    def pieces(self) -> dict[int, list[int]]:
        """All that one step of the original gives, if it gives a few of one shape."""
        stages = self.original.stages

        def made_by(at: int) -> tuple[Any, ...]:
            stage = stages[at]
            return stage.operation, stage.where, stage.parents, stage.value.shape

        rows = ([*row] for _, row in itertools.groupby(range(len(stages)), made_by))
        return {at: row for row in rows if 1 < len(row) <= MOST_PIECES for at in row}

    @cached_property
    def lines(self) -> list[tuple[Any, ...]]:
        return _lines_of(self.original)

    @cached_property
    def places(self) -> list[tuple[Any, ...]]:
        """What is the same of stages that one place makes, of whatever sizes."""
        return [(*step[:2], n) for step, n in places_of(self.original)]

    @cached_property
    def steps(self) -> list[tuple[Any, ...]]:
        """What is the same of stages of other layers: one size, made in one way of what is made in one way."""
        stages = self.original.stages
        return [
            (
                stage.value.shape,
                _step(stage),
                *(_step(stages[i]) for i in stage.parents),
            )
            for stage in stages
        ]


def _lines_of(recording: Recording) -> list[tuple[Any, ...]]:
    """What is the same of stages that one line makes."""
    return [
        (_step(stage), stage.where, stage.value.ndim, stage.value.shape[-1:])
        for stage in recording.stages
    ]


def places_of(recording: Recording) -> list[tuple[tuple[Any, ...], int]]:
    """Of every stage its step in its line, and the how many-th of such steps in a row there."""
    stages, steps = recording.stages, _lines_of(recording)
    taken: list[dict[object, int]] = []  # On the way to a stage in its own line.
    for stage, step in zip(stages, steps, strict=True):
        times: dict[object, int] = {}
        for i in stage.parents:
            for other, n in taken[i].items() if stages[i].where == stage.where else ():
                times[other] = max(n, times.get(other, 0))
        taken.append({**times, step: times.get(step, 0) + 1})
    return [(step, times[step]) for step, times in zip(steps, taken, strict=True)]


def explains(before: float, after: float) -> bool:
    """Whether so little is left of a difference."""
    return after < max(EXPLAINS * before, min(IN_FLOAT32, before / CLEARLY))


def _step(stage: Stage) -> str:
    """In place or not."""
    return stage.operation.rstrip("_")


def constant_of(a: np.ndarray, b: np.ndarray, of: np.ufunc) -> float | None:
    """By which all numbers of a and b differ, if it is one."""
    if a.shape != b.shape or {a.dtype.kind, b.dtype.kind} != {"f"}:
        return None
    there = np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0)
    if not there.any():
        return None
    found = of(a[there], b[there])
    rounding = 8 * np.finfo(np.float64).eps
    rounding *= np.abs(a[there] if of is np.subtract else found).max()
    middle = float(np.median(found))
    is_one = np.ptp(found) <= rounding < abs(middle - (of is np.divide)) / 4
    return middle if is_one else None


def is_copy(a: Stage, b: Stage) -> bool:
    """A constant cannot be changed itself."""
    return a.operation != "constant" and np.array_equal(a.value, b.value)


def tables_of(recording: Recording, among: Iterable[int]) -> list[Tables]:
    """What may be cosines and sines, or both in complex numbers; those that are made anew once."""
    found: dict[tuple[bytes, bytes], Tables] = {}
    bounded: dict[tuple[int, ...], list[tuple[int, np.ndarray]]] = {}

    def add(of: tuple[int, ...], cos: np.ndarray, sin: np.ndarray) -> None:
        table = Tables(of, of_pairs(cos), of_pairs(sin))
        found.setdefault((table.cos.tobytes(), table.sin.tobytes()), table)

    for at in among:
        stage = recording.stages[at]
        x = stage.value
        if not stage.tells or not np.isfinite(x).all() or np.abs(x).max() > 1 + 1e-6:
            continue
        if x.dtype.kind == "f":
            bounded.setdefault(x.shape, []).append((at, x))
        elif near(np.abs(x), np.ones(x.shape)):
            add((at,), x.real, x.imag)
    for alike in bounded.values():
        for (i, cos), (j, sin) in itertools.combinations(alike, 2):
            if abs(cos.flat[0] ** 2 + sin.flat[0] ** 2 - 1) > 1e-3:
                continue
            if near(cos**2 + sin**2, np.ones(cos.shape)):
                # The slowest pair has hardly turned.
                if np.abs(cos[..., -1]).sum() < np.abs(sin[..., -1]).sum():
                    add((j, i), sin, cos)
                else:
                    add((i, j), cos, sin)
    return [*found.values()]


def of_pairs(table: np.ndarray) -> np.ndarray:
    """[tokens, pairs] of a table that may hold each pair twice."""
    table = table.squeeze()
    half, odd = divmod(table.shape[-1], 2) if table.ndim == 2 else (0, 1)
    if odd:
        return table
    if half and near(table[:, :half], table[:, half : 2 * half]):
        return table[:, :half]
    if half and near(table[:, ::2], table[:, 1::2]):
        return table[:, ::2]
    return table
