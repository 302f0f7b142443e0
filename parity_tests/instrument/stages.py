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

from .tolerances import HUGE, STAGE_SHARE

__all__ = [
    "Recording",
    "Region",
    "Stage",
    "diverging",
    "line_of",
    "near",
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


@dataclass(frozen=True, eq=False)
class Stage:
    """An array on the way: what made it, of which stages, and where in the code."""

    operation: str
    value: np.ndarray
    parents: tuple[int, ...]
    where: str

    @cached_property
    def sorted(self) -> np.ndarray:
        return np.sort(self.value, axis=None)

    @cached_property
    def tells(self) -> bool:
        """Whether it holds enough to be told from another: several numbers, and more than two different ones."""
        if self.value.dtype.kind == "b" or not 3 <= self.value.size <= MOST_NUMBERS:
            return False
        inside = self.value[
            (self.value > self.value.min()) & (self.value < self.value.max())
        ]
        return inside.size > 0


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
    """In float64. What is beyond HUGE stands for minus infinity, as which some write the least number there is."""
    if value.dtype.kind == "b":
        return value
    value = value.astype(np.float64)
    return np.where(np.abs(value) > HUGE, np.copysign(np.inf, value), value)


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


def same_numbers(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are one, up to rounding, in some order of their axes and however these are split."""
    if a.size != b.size or a.size == 0:
        return False
    flat, x = b.reshape(-1), a.squeeze()
    orders = (
        itertools.permutations(range(x.ndim))
        if x.ndim <= MOST_AXES
        else [range(x.ndim)]
    )
    return any(near(x.transpose(order).reshape(-1), flat) for order in orders)


def near(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal but for STAGE_SHARE of the largest number."""
    sizes = np.abs(b[np.isfinite(b)])
    share = STAGE_SHARE * (sizes.max() if sizes.size else 0.0)
    with np.errstate(invalid="ignore"):
        return bool(((a == b) | (np.abs(a - b) <= share)).all())


def diverging(
    a: Recording, b: Recording, outputs: Iterable[str]
) -> tuple[Region, Region]:
    """Where the two sides part on the way to these outputs."""
    pairs = [
        (i, j)
        for i, j in itertools.product(range(len(a.stages)), range(len(b.stages)))
        if _alike(a.stages[i], b.stages[j])
    ]
    outputs = list(outputs)
    return (
        _region(a, {i for i, _ in pairs}, outputs),
        _region(b, {j for _, j in pairs}, outputs),
    )


def _alike(a: Stage, b: Stage) -> bool:
    if not (a.tells and b.tells) or a.value.size != b.value.size:
        return False
    return near(a.sorted, b.sorted) and same_numbers(a.value, b.value)


def _region(recording: Recording, matched: set[int], outputs: Iterable[str]) -> Region:
    """Walk back from the outputs as far as nothing has a counterpart."""
    known: set[int] = set()
    parts: dict[int, bool] = {}

    def walk(at: int) -> bool:
        """Whether it, or something before it, has no counterpart."""
        if at in matched:
            known.add(at)
            return False
        if at not in parts:
            stage, parts[at] = recording.stages[at], True
            before = [walk(parent) for parent in stage.parents]
            parts[at] = stage.tells or any(before)
        return parts[at]

    for name in outputs:
        walk(recording.outputs[name])
    parting = (at for at, does in parts.items() if does)
    return Region(tuple(sorted(known)), tuple(sorted(parting)))
