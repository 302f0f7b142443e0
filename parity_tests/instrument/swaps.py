"""The swap test: given the port's numbers somewhere, does the original give the port's outputs from there on?

If it does, all that differs is before that place, and nothing after it. No idea of the fault is needed.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .parted import Change, Parted, explains, lines_of
from .stages import Recording, Region, Stage, leading_to, near, same_numbers
from .tolerances import EXPLAINS, STAGE_SHARE

__all__ = ["Swap", "swapped"]

MOST_SECONDS = 3
# Of the largest number: constants in float32 are off by 2^-24, and what is left of one more fault would be more.
NOTHING = 2.0**-20
# Axes whose orders are all tried.
MOST_AXES = 5


@dataclass(frozen=True)
class Swap:
    """Where the original is given the port's numbers.

    Args:
        parted: Both sides, with what leads to these places alone.
        at, ours: The places in the original, and in the port.
        before, after: The largest difference of the original's outputs from the port's, as a share, without and with
            these numbers.
        cause: What is left out or added, if all that differs is that.
    """

    parted: Parted
    at: tuple[int, ...]
    ours: tuple[int, ...]
    before: float
    after: float
    cause: str

    def __str__(self) -> str:
        sides = (self.parted.port, self.ours), (self.parted.original, self.at)
        ours, theirs = (_said(side.stages[at[0]]) for side, at in sides)
        return (
            f"swap test: with A's numbers of {ours} in place of B's of {theirs}, B is {self.after:.0e} from A, without "
            f"them {self.before:.0e}: what differs is before these, and nothing after"
        )


def _said(stage: Stage) -> str:
    return f"{stage.operation} at {stage.where}" if stage.where else stage.operation


def swapped(
    parted: Parted, outputs: Iterable[str], error: Callable[[dict[int, Change]], float]
) -> Swap | None:
    """The first place that passes the test, if one does but the outputs themselves.

    Args:
        parted: Both sides.
        outputs: Their names.
        error: The largest difference of the original's outputs from the port's, as a share of them, with changes in
            some of its stages.
    """
    before, until = error({}), time.monotonic() + MOST_SECONDS
    if not 0 < before < np.inf:
        return None
    # Of a small difference, stages that differ do so by less.
    share = min(STAGE_SHARE, EXPLAINS * before)
    ends = [parted.original.stages[parted.original.outputs[name]] for name in outputs]
    places = [
        stages
        for stages in _of_lines(parted.original, parted.region)
        if not any(
            _is(parted.original.stages[i], end, share) for i in stages for end in ends
        )
    ]
    for stages, ours in _first_first(places, _of_lines(parted.port, parted.parting)):
        for changes in _changes(parted, stages, ours, share):
            if time.monotonic() > until:
                return None
            after = error(changes)
            if after < NOTHING and explains(before, after):
                ours_at = dict(zip(stages, ours, strict=True))
                needed = _needed(changes, error, share)
                at = needed, tuple(ours_at[i] for i in needed)
                cause = _more_or_less(parted, *at, share)
                # What leads to the first of them says it for all.
                ends = [part[:1] for part in at]
                return Swap(_up_to(parted, *ends), *at, before, after, cause)
    return None


def _needed(
    changes: dict[int, Change],
    error: Callable[[dict[int, Change]], float],
    share: float,
) -> tuple[int, ...]:
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
    return (*(found or changes),)


def _of_lines(recording: Recording, region: Region) -> list[list[int]]:
    """The stages of a region, those of one line together: it is run for queries and for keys, or in every layer.

    A line may take a step several times, each of which is another place.
    """
    stages, steps = recording.stages, lines_of(recording)
    taken: list[dict[object, int]] = []  # On the way to a stage in its own line.
    for stage, step in zip(stages, steps, strict=True):
        times: dict[object, int] = {}
        for i in stage.parents:
            for other, n in taken[i].items() if stages[i].where == stage.where else ():
                times[other] = max(n, times.get(other, 0))
        taken.append({**times, step: times.get(step, 0) + 1})
    found: dict[object, list[int]] = {}
    for at in sorted({*region.known, *region.parting}):
        # What is given is not made: `exchanges` of weights are for that.
        if stages[at].tells and stages[at].parents:
            place = steps[at], taken[at][steps[at]]
            found.setdefault(place, []).append(at)
    return [*found.values()]


def _first_first(
    theirs: list[list[int]], ours: list[list[int]]
) -> Iterator[tuple[list[int], list[int]]]:
    """Pairs of places, the first of both sides first: the sides part just before."""
    for both in range(len(theirs) + len(ours) - 1):
        for n in range(max(0, both - len(ours) + 1), min(both + 1, len(theirs))):
            if len(theirs[n]) == len(ours[both - n]):
                yield theirs[n], ours[both - n]


def _changes(
    parted: Parted, stages: Sequence[int], ours: Sequence[int], share: float
) -> Iterator[dict[int, Change]]:
    """The port's numbers, in every order of axes that fits."""
    pairs = [
        (parted.original.stages[i], parted.port.stages[j])
        for i, j in zip(stages, ours, strict=True)
    ]
    if any(
        a.value.size != b.value.size or a.value.dtype != b.value.dtype for a, b in pairs
    ):
        return
    if all(_is(a, b, share) for a, b in pairs):
        return  # Which changes nothing.
    for order in _orders(*pairs[0]):
        values = [_in_order(b, order, a.value.shape) for a, b in pairs]
        if all(value is not None for value in values):
            yield {
                at: Change((), lambda x=value: x)
                for at, value in zip(stages, values, strict=True)
            }


def _orders(a: Stage, b: Stage) -> Iterator[tuple[int, ...]]:
    """Of the axes of b, that make it a: its own, also where axes are joined, and those that give a's shape."""
    axes = tuple(range(b.value.squeeze().ndim))
    yield axes
    if len(axes) <= MOST_AXES:
        shape = a.value.squeeze().shape
        for order in itertools.islice(itertools.permutations(axes), 1, None):
            if b.value.squeeze().transpose(order).shape == shape:
                yield order


def _in_order(
    b: Stage, order: tuple[int, ...], shape: tuple[int, ...]
) -> np.ndarray | None:
    x = b.value.squeeze()
    if x.ndim != len(order) or math.prod(shape) != x.size:
        return None
    return x.transpose(order).reshape(shape)


def _is(a: Stage, b: Stage, share: float) -> bool:
    return a.value.dtype == b.value.dtype and same_numbers(a.value, b.value, share)


def _more_or_less(
    parted: Parted, at: Sequence[int], ours: Sequence[int], share: float
) -> str:
    """Where one side passes on what the other takes further steps with."""
    original, port = parted.original.stages, parted.port.stages
    # One step that is left out is said by `faults`, and in what way.
    near_by = {at[0], *original[at[0]].parents}
    for words, recording, end, numbers, but in (
        ("left out", parted.original, at[0], port[ours[0]], near_by),
        ("added", parted.port, ours[0], original[at[0]], {ours[0]}),
    ):
        stages = recording.stages
        there = leading_to(recording, [end]) - but
        same = [i for i in there if _is(stages[i], numbers, share)]
        if same:
            first, last = _said(stages[max(same)]), _said(stages[end])
            return f"the steps after {first} up to {last} are {words}"
    return ""


def _up_to(parted: Parted, stages: Sequence[int], ours: Sequence[int]) -> Parted:
    """What leads there alone."""

    def cut(recording: Recording, region: Region, ends: Sequence[int]) -> Region:
        there = leading_to(recording, ends)
        return Region(
            *(
                tuple(i for i in part if i in there)
                for part in (region.known, region.parting)
            )
        )

    return replace(
        parted,
        region=cut(parted.original, parted.region, stages),
        parting=cut(parted.port, parted.parting, ours),
    )
