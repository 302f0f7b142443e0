"""The usual faults of a port, tried as hypotheses: PyTorch's side is run again with the fault in its stages.

A hypothesis explains a difference if the original then gives the port's outputs. It is consistent with what was seen,
and the error before and after says how well. Which there are is in `faults.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .faults import faults_of
from .parted import Change, Parted, explains
from .stages import Recording, Stage, leading_to, same_numbers
from .swaps import Swap
from .tolerances import STAGE_SHARE

__all__ = ["Cause", "explained"]

# What a diagnosis may take, also if its place is known, and how much longer to look for others that explain it too.
MOST_SECONDS, SECONDS_AFTER_SWAP, MORE_SECONDS = 15, 8, 2
# How many explanations are said, and which before which.
SAID = 3
PLAINEST_FIRST = (
    "rounded",
    "softmax",
    "eps",
    "activation",
    "mask",
    "base",
    "slopes",
    "rotation",
    "sign",
    "positions",
    "left out",
    "multiplied",
    "heads",
    "reshaped",
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
        if self.ours and self.ours.where:
            where += f", in the port at {self.ours.where}"
        return (
            f"{self.words} ({self.stage.operation}{where}; the original with that is "
            f"{self.after:.0e} from the port, without it {self.before:.0e})"
        )


def explained(
    parted: Parted,
    swap: Swap | None,
    error: Callable[[dict[int, Change]], float],
) -> list[Cause]:
    """The hypotheses that explain the difference, the plainest first.

    Args:
        parted: Both sides.
        swap: Before which the fault is, if that is known.
        error: The largest difference of the original's outputs from the port's, as a share of them, with changes in
            some of its stages.
    """
    causes: list[Cause] = []
    before = error({})
    until = time.monotonic() + (SECONDS_AFTER_SWAP if swap else MOST_SECONDS)
    if not np.isfinite(before):
        return []
    faults = {at: _first(faults_of(parted, at)) for at in _nearest_first(parted)}
    tried: set[tuple[str, tuple[int, ...]]] = set()
    for at, words, ours in _likeliest_first(parted, swap, faults):
        change = faults[at][words]
        for stages in _together(parted, swap, at, [*faults]):
            changes = {
                i: faults[i].get(words) or _there(parted.original, change, at, i)
                for i in stages
            }
            changes = {i: c for i, c in sorted(changes.items()) if c}
            if (words, (*changes,)) in tried or time.monotonic() > until:
                continue
            tried.add((words, (*changes,)))
            after = error(changes)
            if explains(before, after):
                causes.append(
                    Cause(words, parted.original.stages[at], ours, before, after)
                )
                until = min(until, time.monotonic() + MORE_SECONDS)
                break
    plain: dict[str, Cause] = {}
    for cause in sorted(causes, key=_plainness):
        plain.setdefault(cause.words.split(",")[0], cause)
    return [*plain.values()][:SAID]


def _there(recording: Recording, change: Change, at: int, other: int) -> Change | None:
    """The change of a stage in another, if it is of no more than the stage and what that is made of.

    In a second layer the port has other numbers, so they suggest nothing there.
    """
    here, there = ((i, *recording.stages[i].parents) for i in (at, other))
    if len(here) != len(there) or not {*change.of} <= {*here}:
        return None
    return Change(tuple(there[here.index(i)] for i in change.of), change.apply)


def _first(found: Iterator[tuple[str, Change]]) -> dict[str, Change]:
    """Of those of the same words."""
    faults: dict[str, Change] = {}
    for words, change in found:
        faults.setdefault(words, change)
    return faults


def _nearest_first(parted: Parted) -> list[int]:
    """From where the sides part on, then back from there."""
    near = sorted({*parted.region.parting, *parted.region.known})
    return near + [at for at in parted.before[::-1] if at not in near]


def _likeliest_first(
    parted: Parted, swap: Swap | None, faults: dict[int, dict[str, Change]]
) -> list[tuple[int, str, Stage | None]]:
    """Those that give numbers which the port has, and where it has them, then the others; of both those before a swap.

    To run the original again takes long; to look through the port's stages does not.
    """
    held = _Held(parted)
    found = [
        (at, words, held.holding(parted.applied(change)))
        for at in faults
        for words, change in faults[at].items()
    ]
    before = leading_to(parted.original, swap.at[:1] if swap else ())
    return sorted(found, key=lambda fault: (fault[2] is None, fault[0] not in before))


class _Held:
    """The port's stages on the way to its outputs, by sums that are the same in any order of axes."""

    def __init__(self, parted: Parted) -> None:
        numbers = [*parted.parting.parting, *parted.parting.known]
        stages = (parted.port.stages[at] for at in numbers)
        self.stages = [stage for stage in stages if stage.tells]
        self.sums = np.array([_sums(stage.value) for stage in self.stages])

    def holding(self, value: np.ndarray) -> Stage | None:
        if not self.stages:
            return None
        sums = np.array(_sums(value))
        same = np.abs(self.sums - sums) <= STAGE_SHARE * (1 + sums[1])
        for i in np.flatnonzero(same.all(1)):
            if same_numbers(self.stages[i].value, value):
                return self.stages[i]
        return None


def _sums(x: np.ndarray) -> tuple[float, float, int]:
    there = x[np.isfinite(x)]
    return float(there.real.sum()), float(np.abs(there).sum()), x.size


def _together(
    parted: Parted, swap: Swap | None, at: int, all_of_them: list[int]
) -> Iterator[list[int]]:
    """In which stages a fault may be at once: this alone, this line, all that are made in the same way.

    Or, where it is known before which stages it is, one before each.
    """
    if swap:
        before = (_last_of_line(parted, at, end) for end in swap.at)
        stages = [i for i in before if i is not None]
        if at in stages:
            yield stages
    yield [at]
    # A line is run for queries and for keys, or in every layer; a sine is what its cosine is.
    lines = {parted.lines[i] for i in (at, *parted.partners.get(at, ()))}
    yield [i for i in all_of_them if parted.lines[i] in lines]
    yield [i for i in all_of_them if parted.steps[i] == parted.steps[at]]


def _last_of_line(parted: Parted, at: int, end: int) -> int | None:
    """The last stage of the line of `at` on the way to `end`."""
    there = leading_to(parted.original, [end])
    return max((i for i in there if parted.lines[i] == parted.lines[at]), default=None)


def _plainness(cause: Cause) -> int:
    """Some faults are the same function: positions that go back are a sine without its sign."""
    said = (n for n, word in enumerate(PLAINEST_FIRST) if word in cause.words)
    return next(said, len(PLAINEST_FIRST))
