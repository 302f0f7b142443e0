"""What explains that a port's outputs are another function's than the original's, and where the two part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from .answers import Answers, apart, finite
from .causes import explained
from .in_jax import anew, record_jax
from .in_torch import record_torch, replayed_torch, to_torch
from .parted import Change, Parted, explains
from .sides import TAP, Side, cast
from .stages import Recording, Region, diverging, leading_to, said
from .swaps import swapped, up_to
from .weights import WeightMap, exchanges

__all__ = ["diagnosed"]

Arrays = dict[str, np.ndarray]
# Of the processor, for weights in each other's place.
MOST_SECONDS = 4
# How many lines of each side.
SAID = 3


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@_one_thread()
def diagnosed(
    port: Side,
    original: Side,
    names: WeightMap,
    answers: Answers,
    outputs: list[str],
) -> list[str]:
    """In words. PyTorch's side runs many times, in one thread: to hand small tensors over takes longer than the rest.

    Args:
        port, original: The two sides.
        names: Which weight of the port is which of the original.
        answers: What the original was given, and gave.
        outputs: Those that differ.
    """

    def given() -> dict[str, Any]:
        """Anew for every run, which may write into them."""
        return {n: to_torch(x) for n, x in cast(answers.numbers, "float64").items()}

    with anew(double=True):
        numbers = _of_jax(port, names, answers)
        port_did = record_jax(_flat(port), numbers)
    original_did = record_torch(_flat(original), given())
    ours, theirs = diverging(port_did, original_did, outputs)
    found = {name: port_did.stages[at].value for name, at in port_did.outputs.items()}
    sizes = {name: answers.sizes(name) for name in found}

    def error(instead: dict[int, Change], among: Iterable[str] = outputs) -> float:
        try:
            again = replayed_torch(_flat(original), given(), instead)
        except Exception:  # Anybody's code follows, and may not take such numbers.
            return np.inf
        return max(apart(found[n], again[n], sizes[n]) for n in among)

    parted = Parted(original_did, theirs, port_did, ours)
    # What is right must stay so; what is tapped may be before the place that is looked for.
    ends = [name for name in found if not name.startswith(TAP)]
    wrong = [name for name in outputs if name in ends]
    swap = swapped(parted, wrong, partial(error, among=ends)) if wrong else None
    causes, all_tried = explained(parted, swap, error)
    words = [*_exchanged(port, names, answers, outputs), *map(str, causes)]
    if swap and swap.cause and not words:
        words = [swap.cause]
    none = "none of the usual faults explains it"
    if not all_tried:
        none = "none of the usual faults that were tried in the time explains it"
    parted = up_to(parted, swap) if swap else parted
    return [
        *(f"consistent with: {cause}" for cause in words),
        *([] if words else [none]),
        *([swap.words] if swap else []),
        *_said("B", parted.original, parted.region),
        *_said("A", parted.port, parted.parting),
    ]


def _flat(side: Side) -> Callable[[Any], dict[str, Any]]:
    return lambda given: side.function("float64")(**given)


def _of_jax(port: Side, names: WeightMap, answers: Answers) -> dict[str, Any]:
    numbers = cast(answers.of_port(names, port.weights), "float64")
    return {name: jnp.asarray(x) for name, x in numbers.items()}


def _exchanged(
    port: Side, names: WeightMap, answers: Answers, outputs: list[str]
) -> Iterator[str]:
    """What the map of weights, or the port where it uses them, has in another place."""
    until = time.process_time() + MOST_SECONDS
    run = jax.jit(_flat(port))

    def off(names: WeightMap) -> float:
        found = run(_of_jax(port, names, answers))
        right = answers.tensors["float32"]
        return max(
            apart(
                finite(right[name].double),
                finite(np.asarray(found[name])),
                answers.sizes(name),
            )
            for name in outputs
        )

    with anew(double=True):
        before = off(names)
        for words, others in exchanges(names, port.weights, answers.weights):
            if time.process_time() > until:
                return
            after = off(others)
            if explains(before, after):
                yield f"{words} (the port with them so is {after:.0e} from the original, otherwise {before:.0e})"
                return


def _said(side: str, recording: Recording, region: Region) -> Iterator[str]:
    """The last lines that have the numbers of the other side, and the first that have others."""

    def lines(stages: Sequence[int]) -> str:
        placed = (recording.stages[at] for at in stages if recording.stages[at].where)
        return ", ".join([*dict.fromkeys(map(said, placed))][:SAID])

    # What the first that differs is made of.
    before = leading_to(recording, region.parting[:1])
    same = lines(sorted(before & {*region.known}, reverse=True))
    other = lines(region.parting)
    if same or other:  # Not where all is done by a library.
        parting = f"; not from {other or 'its outputs'}" if region.parting else ""
        yield f"{side} is the same up to {same or 'its inputs'}{parting}"
