"""The usual faults of a port, tried as hypotheses: PyTorch's side is run again with the fault in its stages.

A hypothesis explains a difference if the original then gives the port's outputs. It is consistent with what was seen,
and the error before and after says how well. Which there are is in `faults.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .faults import faults_of
from .parted import Change, Error, Parted, explains
from .stages import Held, Recording, Stage, leading_to
from .swaps import Swap

__all__ = ["Cause", "explained"]

# Of the processor, so that a busy machine says the same: what a search may take, also if the place is known, and how
# much longer to look for others that explain it too.
MOST_SECONDS, SECONDS_AFTER_SWAP, MORE_SECONDS = 10, 5, 1
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
    parted: Parted, swap: Swap | None, error: Error
) -> tuple[list[Cause], bool]:
    """The hypotheses that explain the difference, the plainest first, and whether all were tried.

    Args:
        parted: Both sides.
        swap: Before which the fault is, if that is known.
        error: Of changes in some stages of the original.
    """
    causes: list[Cause] = []
    before, start = error({}), time.process_time()
    if not np.isfinite(before):
        return [], True
    until = start + (SECONDS_AFTER_SWAP if swap else MOST_SECONDS)
    places = _nearest_first(parted, swap)
    likeliest, faults = _likeliest_first(parted, places, (start + until) / 2)
    all_tried = len(faults) == len(places)
    tried: set[tuple[str, tuple[int, ...]]] = set()
    for at, words, ours in likeliest:
        change = faults[at][words]
        for stages in _together(parted, swap, at, places):
            changes = {
                i: faults.get(i, {}).get(words)
                or _there(parted.original, change, at, i)
                for i in stages
            }
            changes = {i: c for i, c in sorted(changes.items()) if c}
            if (words, (*changes,)) in tried:
                continue
            if time.process_time() > until:
                all_tried = False
                break
            tried.add((words, (*changes,)))
            after = error(changes)
            if explains(before, after):
                causes.append(
                    Cause(words, parted.original.stages[at], ours, before, after)
                )
                until = min(until, time.process_time() + MORE_SECONDS)
                break
    plain: dict[str, Cause] = {}
    for cause in sorted(causes, key=_plainness):
        plain.setdefault(cause.words.split(",")[0], cause)
    return [*plain.values()][:SAID], all_tried


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


def _nearest_first(parted: Parted, swap: Swap | None) -> list[int]:
    """From where the sides part on, then back from there; what leads to a swap before all."""
    near = sorted({*parted.region.parting, *parted.region.known})
    stages = near + [at for at in parted.before[::-1] if at not in near]
    first = leading_to(parted.original, swap.at[:1] if swap else ())
    return sorted(stages, key=lambda at: at not in first or at not in near)


def _likeliest_first(
    parted: Parted, places: list[int], until: float
) -> tuple[list[tuple[int, str, Stage | None]], dict[int, dict[str, Change]]]:
    """Hypotheses that give numbers which the port has, and where it has them, then the others; and all of each place.

    To run the original again takes long; to look through the port's stages does not.
    """
    theirs = (*parted.parting.parting, *parted.parting.known)
    held = Held(parted.port.stages[at] for at in theirs)
    faults: dict[int, dict[str, Change]] = {}
    found: list[tuple[int, str, Stage | None]] = []
    for at in places:
        if time.process_time() > until:
            break
        faults[at] = _first(faults_of(parted, at))
        for words, change in faults[at].items():
            found.append((at, words, held.holding(parted.applied(change))))
    found.sort(key=lambda fault: fault[2] is None)
    return found, faults


def _together(
    parted: Parted, swap: Swap | None, at: int, all_of_them: list[int]
) -> Iterator[list[int]]:
    """In which stages a fault may be at once: this alone, this line, all that are made in the same way.

    Or, where it is known before which stages it is, one before each.
    """
    if swap:
        before = (_last_of_place(parted, at, end) for end in swap.at)
        stages = [i for i in before if i is not None]
        if at in stages:
            yield stages
    yield [at]
    # A line is run for queries and for keys, or in every layer; a sine is what its cosine is.
    lines = {parted.lines[i] for i in (at, *parted.partners.get(at, ()))}
    yield [i for i in all_of_them if parted.lines[i] in lines]
    yield [i for i in all_of_them if parted.steps[i] == parted.steps[at]]


def _last_of_place(parted: Parted, at: int, end: int) -> int | None:
    """The last stage of the place of `at` on the way to `end`."""
    there, places = leading_to(parted.original, [end]), parted.places
    return max((i for i in there if places[i] == places[at]), default=None)


def _plainness(cause: Cause) -> int:
    """Some faults are the same function: positions that go back are a sine without its sign."""
    said = (n for n, word in enumerate(PLAINEST_FIRST) if word in cause.words)
    return next(said, len(PLAINEST_FIRST))
