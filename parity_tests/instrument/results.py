"""Two results that are there already, and nothing is known of what made them: rounding or a fault, and which?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .answers import apart, finite, kinds
from .bounded import Bounded
from .causes import Cause, explained
from .dtypes import DTYPES, unit_roundoff
from .parted import Change, Parted
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
        a, b, right = (_numbers(x, name) for x in (actual, expected, truth or expected))
        rows.append(_row(name, a, b, right))
        if rows[-1].verdict == "DIVERGE":
            causes += [f"consistent with: {cause}" for cause in _causes(name, a, right)]
    return Report("actual | expected", tuple(rows), tuple(causes))


def _numbers(arrays: Mapping[str, Any], name: str) -> np.ndarray:
    """A complex number is two along a last axis."""
    if name not in arrays:
        raise ValueError(f"`truth` must have what the others have, it lacks {name}.")
    x = np.asarray(arrays[name])
    if x.dtype.kind == "c":
        return np.stack([x.real, x.imag], -1)
    if x.dtype.kind not in "biufV":
        raise TypeError(f"{name} must be an array of numbers, got {x.dtype}.")
    return x.astype(np.int8) if x.dtype.kind == "b" else x


def _row(name: str, a: np.ndarray, b: np.ndarray, right: np.ndarray) -> Row:
    if a.shape != b.shape:
        hint = ", the same numbers in another order" if same_numbers(a, b) else ""
        return Row(name, "CONTRACT", reason=f"A has {a.shape}, B {b.shape}{hint}")
    if a.dtype != b.dtype:
        return Row(name, "CONTRACT", reason=f"A is {a.dtype}, B {b.dtype}")
    whole = a.dtype not in DTYPES.values()
    if not np.array_equal(kinds(a, whole=whole), kinds(right, whole=whole)):
        return Row(
            name, "CONTRACT", reason="A and B are infinite or NaN at other places"
        )
    if np.array_equal(a, right, equal_nan=True):
        return Row(name, "EQUAL")
    unit = 0.0 if whole else unit_roundoff(a.dtype)
    right, held = finite(right, whole=whole), np.dtype(np.float64)
    size = np.nan_to_num(np.abs(right)).max(initial=0)
    units = np.full(a.shape, PLAIN_UNITS * unit * size / unit_roundoff(np.float64) / 2)
    a, b = (finite(x, whole=whole) for x in (a, b))
    return judge(name, a, b, Bounded(right, units), dtype=held, compute=held)


def _causes(name: str, a: np.ndarray, b: np.ndarray) -> list[Cause]:
    """Of the usual faults of one array, those that make of B what A is."""
    a, b = wide(a), wide(b)
    port, original = (Recording((Stage(name, x, (), ""),), {name: 0}) for x in (a, b))
    all_of_it = Region((), (0,))

    def error(instead: dict[int, Change]) -> float:
        with np.errstate(all="ignore"):
            return apart(a, instead[0].apply(b) if instead else b)

    causes, _ = explained(Parted(original, all_of_it, port, all_of_it), None, error)
    return causes
