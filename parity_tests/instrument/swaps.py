"""The swap test: given the port's numbers somewhere, does the original give the port's outputs from there on?

If it does, all that differs is before that place, and nothing after it. No idea of the fault is needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from .parted import Change, Error, Parted, explains, places_of
from .stages import (
    Recording,
    Region,
    Stage,
    leading_to,
    near,
    orders,
    said,
    same_numbers,
)
from .tolerances import EXPLAINS, PEER_FLOOR_UNITS, PORT_FACTOR, STAGE_SHARE

__all__ = ["Swap", "swapped", "up_to"]

# Of the processor.
MOST_SECONDS = 4
# What is left of a difference if nothing more differs: no more than two right programs may in float32, of which one may
# have constants or take steps in it.
NOTHING = PORT_FACTOR * PEER_FLOOR_UNITS * 2.0**-24


@dataclass(frozen=True)
class Swap:
    """Where the original is given the port's numbers.

    Args:
        at, ours: The places in the original, and in the port.
        words: That it passes.
        cause: What is left out or added, if all that differs is that.
    """

    at: tuple[int, ...]
    ours: tuple[int, ...]
    words: str
    cause: str


def swapped(parted: Parted, outputs: Iterable[str], error: Error) -> Swap | None:
    """The first place that passes the test, if one does but the outputs themselves.

    Args:
        parted: Both sides.
        outputs: Those that differ.
        error: Of changes in some stages of the original.
    """
    before = error({})
    if not 0 < before < np.inf:
        return None
    test = _Test(parted, error, before, [*outputs])
    return test.forwards() or test.backwards()


class _Test:
    """Of pairs of places, half of the time from the first ones on, half from the last ones back."""

    def __init__(
        self, parted: Parted, error: Error, before: float, outputs: list[str]
    ) -> None:
        self.parted, self.error, self.before = parted, error, before
        # Of a small difference, stages that differ do so by less.
        self.share = min(STAGE_SHARE, EXPLAINS * before)
        stages, last = parted.original.stages, _last(parted.original, outputs)
        self.theirs = [
            places
            for places in _of_lines(parted.original, parted.region)
            if not any(_is(stages[i], end, self.share) for i in places for end in last)
        ]
        self.ours = _of_lines(parted.port, parted.parting)
        self.start = time.process_time()

    def late(self, part: float = 1.0) -> bool:
        return time.process_time() > self.start + part * MOST_SECONDS

    def forwards(self) -> Swap | None:
        for n, m in _first_first(len(self.theirs), len(self.ours)):
            if self.late(0.5):
                break
            if found := self.swap(self.theirs[n], self.ours[m]):
                return found
        return None

    def backwards(self) -> Swap | None:
        """Always to earlier places, as far as the time goes."""
        theirs, ours = self.theirs[::-1], self.ours[::-1]
        best, least = None, (0, 0)
        for n, m in _first_first(len(theirs), len(ours)):
            if self.late():
                break
            if (
                n >= least[0]
                and m >= least[1]
                and (found := self.swap(theirs[n], ours[m]))
            ):
                best, least = found, (n, m)
        return best

    def swap(self, at: list[int], ours: list[int]) -> Swap | None:
        passed = self.passing(at, ours)
        if passed is None:
            return None
        # A step that leaves A's numbers as they are, as relu those of abs, may be what A has another in place of.
        later = self.taken_on(at)
        while later and (found := self.passing(later, ours)):
            passed, later = found, self.taken_on(later)
        changes, after = passed
        needed = _needed(changes, self.error, self.share)
        pairs = [pair for pair in zip(changes, ours, strict=True) if pair[0] in needed]
        their_places, our_places = zip(*pairs, strict=True)
        cause = _more_or_less(self.parted, *pairs[0], self.share)
        words = _words(self.parted, their_places, our_places, self.before, after)
        return Swap(their_places, our_places, words, cause)

    def passing(
        self, at: list[int], ours: list[int]
    ) -> tuple[dict[int, Change], float] | None:
        """The changes that pass, and what they leave; places that are not as many, or of other sizes, do not."""
        for changes in _changes(self.parted, at, ours, self.share):
            if self.late():
                break
            after = self.error(changes)
            if after < NOTHING and explains(self.before, after):
                return changes, after
        return None

    def taken_on(self, at: list[int]) -> list[int]:
        """The places of a next step that has other numbers than what it is made of."""
        stages = self.parted.original.stages
        for later in self.theirs:
            pairs = [*zip(at, later, strict=False)]
            if len(at) == len(later) and all(
                i in stages[j].parents and not _is(stages[i], stages[j], self.share)
                for i, j in pairs
            ):
                return later
        return []


def _last(recording: Recording, outputs: Iterable[str]) -> list[Stage]:
    """Outputs that lead to no other: that they give themselves says nothing."""
    ends = {recording.outputs[name] for name in outputs}
    before = {i for end in ends for i in leading_to(recording, [end]) - {end}}
    return [recording.stages[end] for end in ends - before]


def _words(
    parted: Parted,
    at: Sequence[int],
    ours: Sequence[int],
    before: float,
    after: float,
) -> str:
    a, b = (
        _which_run(side, places[0])
        for side, places in ((parted.port, ours), (parted.original, at))
    )
    each = f" at each of {len(at)} places" if len(at) > 1 else ""
    nothing = "nothing else" if len(at) > 1 else "nothing after"
    return (
        f"swap test: given A's numbers of {a} for its own of {b}{each}, B is {after:.0e} from A, without them "
        f"{before:.0e}: what differs is before, and {nothing}"
    )


def _which_run(recording: Recording, at: int) -> str:
    """A line may be run several times."""
    places = places_of(recording)
    n = places[: at + 1].count(places[at])
    return said(recording.stages[at]) + (f" (run {n})" if n > 1 else "")


def _needed(changes: dict[int, Change], error: Error, share: float) -> list[int]:
    """Without those that are right once those before them are: in a second layer queries follow the first."""
    found: list[int] = []

    def seen(at: int, change: Change) -> Change:
        def apply(x: np.ndarray) -> np.ndarray:
            value = change.apply()
            if not near(x, value, share):
                found.append(at)
            return value

        return Change((at,), apply)

    error({at: seen(at, change) for at, change in changes.items()})
    return found or [*changes]


def _of_lines(recording: Recording, region: Region) -> list[list[int]]:
    """The stages of a region, those of one place together: it is run for queries and for keys, or in every layer.

    Once with those that the other side has, and once without.
    """
    places, stages = places_of(recording), recording.stages
    found: dict[object, list[int]] = {}
    for at in sorted({*region.known, *region.parting}):
        # What is given is not made: `exchanges` of weights are for that.
        if stages[at].tells and stages[at].parents:
            found.setdefault(places[at], []).append(at)
    parting = {*region.parting}
    alone = [[at for at in together if at in parting] for together in found.values()]
    both = {tuple(group) for group in (*found.values(), *alone) if group}
    return [[*group] for group in sorted(both)]


def _first_first(n: int, m: int) -> Iterator[tuple[int, int]]:
    """Pairs of numbers, small ones first: the sides part just before the first places of both."""
    for both in range(n + m - 1):
        for i in range(max(0, both - m + 1), min(both + 1, n)):
            yield i, both - i


def _changes(
    parted: Parted, at: Sequence[int], ours: Sequence[int], share: float
) -> Iterator[dict[int, Change]]:
    """The port's numbers, in every order of axes that fits."""
    if len(at) != len(ours):
        return
    pairs = [
        (parted.original.stages[i].value, parted.port.stages[j].value)
        for i, j in zip(at, ours, strict=True)
    ]
    if any(a.size != b.size for a, b in pairs):
        return
    if all(same_numbers(a, b, share) for a, b in pairs):
        return  # Which changes nothing.
    a, b = (x.squeeze() for x in pairs[0])
    # The port's own order, also where axes are joined, and those that give the original's shape.
    fitting = (order for order in orders(b.ndim) if b.transpose(order).shape == a.shape)
    for order in (tuple(range(b.ndim)), *fitting):
        values = [(a.shape, b.squeeze()) for a, b in pairs]
        if all(b.ndim == len(order) for _, b in values):
            turned = (b.transpose(order).reshape(shape) for shape, b in values)
            yield {
                i: Change((), partial(np.array, b))
                for i, b in zip(at, turned, strict=True)
            }


def _is(a: Stage, b: Stage, share: float) -> bool:
    return a.value.dtype == b.value.dtype and same_numbers(a.value, b.value, share)


def _more_or_less(parted: Parted, at: int, ours: int, share: float) -> str:
    """If one side passes on what the other takes further steps with."""
    original, port = parted.original, parted.port
    first = _holding(
        original, leading_to(original, [at]) - {at}, port.stages[ours], share
    )
    if first:
        return f"the steps after {said(first)} up to {said(original.stages[at])} are left out"
    first = _holding(
        port, leading_to(port, [ours]) - {ours}, original.stages[at], share
    )
    return (
        f"the steps after {said(first)} up to {said(port.stages[ours])} are added"
        if first
        else ""
    )


def _holding(
    recording: Recording, among: Iterable[int], other: Stage, share: float
) -> Stage | None:
    """The last of these stages that has these numbers."""
    stages = (recording.stages[i] for i in sorted(among, reverse=True))
    return next((stage for stage in stages if _is(stage, other, share)), None)


def up_to(parted: Parted, swap: Swap) -> Parted:
    """What leads to the first of its places alone."""

    def cut(recording: Recording, region: Region, end: int) -> Region:
        there = leading_to(recording, [end])
        known, parting = (
            tuple(i for i in part if i in there)
            for part in (region.known, region.parting)
        )
        return Region(known, parting)

    return replace(
        parted,
        region=cut(parted.original, parted.region, swap.at[0]),
        parting=cut(parted.port, parted.parting, swap.ours[0]),
    )
