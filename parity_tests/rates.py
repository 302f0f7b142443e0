"""How often the comparison of ports is wrong: `python -m parity_tests.rates` and `... --missed`, some minutes each.

False alarms: right pairs, those of this project and functions that the two libraries both have, at other inputs,
weights and position profiles in every drawing.
Missed: faults planted in the port, those of `mutants` but for the kernels', whose function is the reference's. Either
way no oracle is given, and nothing of what the pairs know of themselves but the two functions.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import posenc_jax
import posenc_torch

from .instrument import Pair, compare
from .instrument.cases import PairCase
from .instrument.draws import Draw
from .instrument.verdicts import Report
from .library_pairs import SIZES, library_pairs
from .mutants import MUTANTS, PROFILES, Mutant, mutated
from .schemes import IMPLEMENTED, pairs

__all__ = ["main"]

CAUSE = "consistent with: "


def main() -> int:
    """Print every wrong verdict, and how many there were; return their number."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drawings", type=int, default=7, help="of every right pair")
    parser.add_argument("--missed", action="store_true", help="of planted faults")
    options = parser.parse_args()
    return _missed() if options.missed else _false_alarms(options.drawings)


def _false_alarms(drawings: int) -> int:
    wrong = number = 0
    for seed in range(drawings):
        for name, compared in {**_of_this_project(), **_of_libraries()}.items():
            number += 1
            report = compared(seed)
            if not report.passed:
                wrong += 1
                print(f"{name}, drawing {seed}\n{report}", flush=True)
    print(f"{wrong} false alarms in {number} right pairs.")
    return wrong


def _of_this_project() -> dict[str, Callable[[int], Report]]:
    def compared(pair: Pair, seed: int) -> Report:
        profile = pair.profiles[seed % len(pair.profiles)]
        inputs = pair.draw(np.random.default_rng(seed), profile)
        return compare(pair.jax, pair.torch, inputs, seed=seed)

    # One function of the reference is enough: the kernels' are the same.
    return {
        name: partial(compared, pair)
        for name, pair in pairs(posenc_jax, posenc_torch).items()
        if not name.startswith(tuple(IMPLEMENTED))
    }


def _of_libraries() -> dict[str, Callable[[int], Report]]:
    def compared(sides: tuple[Any, Any], draws: dict[str, Draw], seed: int) -> Report:
        return PairCase(sides, draws, SIZES, {}, seed, {}).report()

    return {
        name: partial(compared, sides, draws)
        for name, (sides, draws) in library_pairs().items()
    }


def _missed() -> int:
    chosen = [
        mutant
        for mutant in MUTANTS
        if mutant.file.startswith("posenc_jax")
        and not mutant.pair.startswith(tuple(IMPLEMENTED))
    ]
    found = {}
    for mutant in chosen:
        found[mutant.name, mutant.file] = said = _said(mutant)
        print(f"{mutant.name:<48} {said}", flush=True)
    missed = [said for said in found.values() if not said]
    named = [said for said in found.values() if CAUSE in said]
    print(
        f"{len(missed)} of {len(found)} faults in a port missed; a cause is said of {len(named)}."
    )
    return len(missed)


def _said(mutant: Mutant) -> str:
    """A cause or a verdict; nothing if the fault is not seen."""
    with mutated(mutant) as package:
        pair = pairs(package, posenc_torch)[mutant.pair]
        return next(filter(None, _reports(pair)), "")


def _reports(pair: Pair) -> Iterator[str]:
    profiles = [profile for profile in PROFILES if profile in pair.profiles]
    halves = [] if pair.float32 else ["bfloat16", "float16"]
    for half, profile in itertools.product([None, *halves], profiles):
        inputs = pair.draw(np.random.default_rng(0), profile)
        dtypes = ("float32", half) if half else ("float32",)
        try:
            report = compare(pair.jax, pair.torch, inputs, dtypes=dtypes)
        except (TypeError, ValueError) as error:
            # What one side takes in a half precision it may refuse in another.
            yield "" if half else type(error).__name__
            continue
        causes = [cause for cause in report.causes if cause.startswith(CAUSE)]
        yield "" if report.passed else next(iter(causes), report.verdict)


if __name__ == "__main__":
    raise SystemExit(main())
