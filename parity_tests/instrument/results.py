"""Two results that are there already, and nothing is known of what made them: rounding or a fault, and which?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .answers import apart, finite
from .bounded import Bounded
from .causes import Cause, explained
from .dtypes import DTYPES, unit_roundoff
from .faults import Change
from .stages import Recording, Region, Stage, same_numbers, wide
from .tolerances import PLAIN_UNITS
from .verdicts import Report, Row, judge

__all__ = ["explain"]


def explain(
    actual: Mapping[str, Any],
    expected: Mapping[str, Any],
    *,
    truth: Mapping[str, Any] | None = None,
) -> Report:
    """Compare arrays of one name.

    Args:
        actual: What is in question, A.
        expected: What it should be, B, as rounded as it may be.
        truth: The right numbers, in float64; None takes those of `expected`.
    Returns:
        A report with a row for each name; its causes say what of the usual explains a difference.
    Raises:
        ValueError: if there is nothing to compare.
    """
    if not {*actual} & {*expected}:
        raise ValueError(
            f"`actual` and `expected` must have a name in common, got {', '.join(actual) or 'none'} and "
            f"{', '.join(expected) or 'none'}."
        )
    rows, causes = [], []
    for name in dict.fromkeys((*expected, *actual)):
        if name not in actual or name not in expected:
            side = "A" if name in expected else "B"
            rows.append(Row(name, "CONTRACT", reason=f"{side} has none"))
            continue
        a, b = np.asarray(actual[name]), np.asarray(expected[name])
        right = np.asarray((truth or expected)[name])
        rows.append(_row(name, a, b, right))
        if rows[-1].verdict == "DIVERGE":
            causes += [f"consistent with: {cause}" for cause in _causes(name, a, right)]
    return Report("actual | expected", tuple(rows), tuple(causes))


def _row(name: str, a: np.ndarray, b: np.ndarray, right: np.ndarray) -> Row:
    if a.shape != b.shape:
        hint = ", the same numbers in another order" if same_numbers(a, b) else ""
        return Row(name, "CONTRACT", reason=f"A has {a.shape}, B {b.shape}{hint}")
    if a.dtype != b.dtype:
        return Row(name, "CONTRACT", reason=f"A is {a.dtype}, B {b.dtype}")
    whole = a.dtype not in DTYPES.values()
    unit = 0.0 if whole else unit_roundoff(a.dtype)
    right, held = finite(right), np.dtype(np.float64)
    size = np.nan_to_num(np.abs(right)).max(initial=0)
    units = np.full(a.shape, PLAIN_UNITS * unit * size / unit_roundoff(np.float64) / 2)
    a, b = (finite(x) for x in (a, b))
    return judge(name, a, b, Bounded(right, units), dtype=held, compute=held)


def _causes(name: str, a: np.ndarray, b: np.ndarray) -> list[Cause]:
    """Of the usual faults of one array, those that make of B what A is."""
    a, b = wide(a), wide(b)
    port, original = (Recording((Stage(name, x, (), ""),), {name: 0}) for x in (a, b))
    all_of_it = Region((), (0,))

    def error(instead: dict[int, Change]) -> float:
        with np.errstate(all="ignore"):
            return apart(a, instead[0].apply(b) if instead else b)

    return explained(original, all_of_it, port, all_of_it, error)
