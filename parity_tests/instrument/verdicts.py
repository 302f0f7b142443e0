"""From two results and the truth to a verdict in words.

EQUAL              the two sides agree bit for bit, and are right
AGREE              both are as right as their arithmetic allows
A_WORSE, B_WORSE   one side is outside what its arithmetic allows, or far worse than its peer
BOTH_POOR          both are outside, and together: a fault they share
DIVERGE            they compute different functions: in float64 one side is outside, or both, each its own way
CONTRACT           shape, dtype or NaN mask is wrong
INVALID            nothing was compared: empty, constant, not finite, or less than rounding may cost
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np

from .bounded import Bounded
from .dtypes import unit_roundoff
from .tolerances import (
    ORACLE_SHARE,
    PEER_FACTOR,
    PEER_FLOOR_SHARE,
    PEER_FLOOR_UNITS,
    UNDERFLOW,
)

__all__ = ["PASSING", "VERDICTS", "Findings", "Report", "Row", "judge"]

VERDICTS = (
    "EQUAL",
    "AGREE",
    "A_WORSE",
    "B_WORSE",
    "BOTH_POOR",
    "DIVERGE",
    "CONTRACT",
    "INVALID",
)
PASSING = ("EQUAL", "AGREE")
# Of a report that is printed; the worst if there are more.
MOST_ROWS = 12
# Of rows that are wrong, those of which it is said where; and of an axis, how many pieces.
MOST_WHERES, MOST_PIECES = 2, 4


@dataclass(frozen=True)
class Row:
    """One tensor.

    `error_a` and `error_b` are the largest absolute errors, `apart` the largest difference of the sides; `ratio_a` and
    `ratio_b` the largest errors as multiples of their bound, so at most 1 is right; `peer` how many times worse A is.
    `where` says in which part of the tensor a side is wrong, and `errors` has the larger error of every number that is
    beyond its bound, and 0 for others.
    """

    name: str
    verdict: str
    error_a: float = 0.0
    error_b: float = 0.0
    apart: float = 0.0
    bound: float = 0.0
    ratio_a: float = 0.0
    ratio_b: float = 0.0
    peer: float = 0.0
    reason: str = ""
    where: str = ""
    errors: np.ndarray | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Report:
    """What was found.

    A row for each tensor, what may have caused a difference, what else is to be known, where it was made, and the
    arguments of the command that makes it again.
    """

    title: str
    rows: tuple[Row, ...]
    causes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    again: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        if not self.rows:
            return "INVALID"
        return max((row.verdict for row in self.rows), key=VERDICTS.index)

    @property
    def passed(self) -> bool:
        return self.verdict in PASSING

    def wrong(self) -> list[Row]:
        """The first row of every tensor in which it is known where it is wrong."""
        first: dict[str, Row] = {}
        for row in self.rows:
            if row.where:
                first.setdefault(row.name.rpartition(" ")[0] or row.name, row)
        return [*first.values()]

    def check(self) -> None:
        if not self.passed:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        shown = self.rows
        if len(shown) > MOST_ROWS:
            shown = sorted(shown, key=lambda row: -VERDICTS.index(row.verdict))
        shown, left = shown[:MOST_ROWS], shown[MOST_ROWS:]
        width = max([10, *(len(row.name) for row in shown)])
        head = f"{'tensor':<{width}} {'|A-true|':>9} {'|B-true|':>9} {'bound':>9}"
        head += f" {'A/bound':>8} {'B/bound':>8} {'A:B':>7}  verdict"
        lines = [f"PARITY {self.verdict}  {self.title}  (A = jax, B = torch)"]
        lines += [*self.causes, *self._wheres(), head]
        lines += [
            f"{r.name:<{width}} {r.error_a:9.1e} {r.error_b:9.1e} {r.bound:9.1e}"
            f" {r.ratio_a:8.2g} {r.ratio_b:8.2g} {r.peer:7.2g}  {r.verdict} {r.reason}"
            for r in shown
        ]
        fail = sum(row.verdict not in PASSING for row in left)
        too = f", of which {fail} fail" if fail else ""
        lines += [f"and {len(left)} tensors no worse{too}"] if left else []
        lines += [*self.notes, *self._made()]
        return "\n".join(line.rstrip() for line in lines)

    def save(self, path: Path | str) -> None:
        """To a file whose name says as what: .html, .json, .xml (JUnit), .py (a script that runs it again) or .txt."""
        from .reports import saved

        saved(self, Path(path))

    def _wheres(self) -> Iterator[str]:
        """Of outputs, or of gradients if outputs are right."""
        wrong = self.wrong()
        outputs = [row for row in wrong if not row.name.startswith("d_")]
        for row in (outputs or wrong)[:MOST_WHERES]:
            yield f"{row.name}: {row.where}"

    def _made(self) -> Iterator[str]:
        sides = [side for side in ("JAX", "PyTorch") if side in self.environment]
        if sides:
            yield "; ".join(
                f"{side} {self.environment[side]}, matrix products "
                f"{self.environment.get(f'{side}, matrix products', 'none')}"
                for side in sides
            )


class Findings(Report):
    """A report of checks of one program: no two sides, so verdicts and reasons alone."""

    def __str__(self) -> str:
        width = max((len(row.name) for row in self.rows), default=0)
        rows = sorted(self.rows, key=lambda row: -VERDICTS.index(row.verdict))
        lines = [f"CHECK {self.verdict}  {self.title}"]
        lines += [f"{r.name:<{width}}  {r.verdict:<8}  {r.reason}" for r in rows]
        return "\n".join(line.rstrip() for line in [*lines, *self.notes])


def judge(
    name: str,
    a: np.ndarray,
    b: np.ndarray,
    truth: Bounded,
    *,
    dtype: np.dtype,
    compute: np.dtype,
    peers: bool = True,
) -> Row:
    """Judge one tensor of two sides.

    Args:
        name: What it is called in the report.
        a, b: The two results.
        truth: The oracle's value and error units.
        dtype: What the result must be in.
        compute: What the arithmetic is done in; `dtype` is then reached by one rounding.
        peers: Whether a side may also be much worse than the other; not where the bound is of what one was seen to do.
    """
    problem = _contract(a, b, truth.value, dtype)
    if problem:
        return Row(name, "CONTRACT", reason=problem)
    problem = _emptiness(truth.value)
    bound = _bound(truth, dtype, compute)
    there = ~np.isnan(truth.value)
    if not there.any():
        return Row(name, "INVALID", reason=problem)
    if not problem and (np.abs(truth.value) <= bound)[there].all():
        problem = "the bound admits zero everywhere"
    errors = [
        np.where(there, np.abs(side.astype(np.float64) - truth.value), 0.0)
        for side in (a, b)
    ]
    over = [_over(error, bound) for error in errors]
    ratios = [float(x.max()) for x in over]
    gap = np.where(there, np.abs(a.astype(np.float64) - b.astype(np.float64)), 0.0)
    together = _over(gap, 2 * bound).max() <= 1
    largest = [float(x.max()) for x in (*errors, gap, bound)]
    if problem:
        return Row(name, "INVALID", *largest, *ratios, reason=problem)
    floor = PEER_FLOOR_UNITS * unit_roundoff(dtype) * np.abs(truth.value[there]).max()
    peer = 1.0
    if peers and compute != np.float64:
        peer = _peer_ratio(*errors, np.maximum(PEER_FLOOR_SHARE * bound, floor))
    same = np.array_equal(a, b, equal_nan=True)
    verdict = _verdict(same, *ratios, peer, together)
    if compute == np.float64 and verdict in ("A_WORSE", "B_WORSE"):
        # Nothing but another formula is that far off in float64.
        verdict = "DIVERGE"
    excess = np.maximum(*over)
    where = "" if verdict in PASSING else _where(excess, a, b, truth.value)
    wrong = np.where(excess > 1, np.maximum(*errors), 0.0).astype(np.float32)
    return Row(name, verdict, *largest, *ratios, peer, where=where, errors=wrong)


def _where(excess: np.ndarray, a: np.ndarray, b: np.ndarray, truth: np.ndarray) -> str:
    """Which numbers are beyond their bound, along every axis that has others too, and the worst of them."""
    bad = excess > 1
    parts = [f"{100 * bad.mean():.3g} % of the numbers"] if bad.any() else []
    for axis, size in enumerate(bad.shape):
        at = np.flatnonzero(bad.any(tuple(k for k in range(bad.ndim) if k != axis)))
        if 0 < len(at) < size:
            parts.append(f"axis {axis} at {_pieces(at)} of {size}")
    worst = tuple(int(i) for i in np.unravel_index(excess.argmax(), excess.shape))
    numbers = (f"{float(x[worst]):.6g}" for x in (a, b, truth))
    parts.append("worst {}: A {}, B {}, true {}".format(list(worst), *numbers))
    return "; ".join(parts)


def _pieces(at: np.ndarray) -> str:
    """As 0-3, 8."""
    pieces = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
    said = [f"{p[0]}-{p[-1]}" if len(p) > 1 else f"{p[0]}" for p in pieces]
    more = [f"and {len(said) - MOST_PIECES} more pieces"][: len(said) > MOST_PIECES]
    return ", ".join(said[:MOST_PIECES] + more)


def _verdict(
    same: bool, ratio_a: float, ratio_b: float, peer: float, together: bool
) -> str:
    poor_a, poor_b = ratio_a > 1, ratio_b > 1
    if poor_a and poor_b:
        return "BOTH_POOR" if together else "DIVERGE"
    if poor_a or peer > PEER_FACTOR:
        return "A_WORSE"
    if poor_b or peer < 1 / PEER_FACTOR:
        return "B_WORSE"
    return "EQUAL" if same else "AGREE"


def _contract(a: np.ndarray, b: np.ndarray, truth: np.ndarray, dtype: np.dtype) -> str:
    for side, result in (("A", a), ("B", b)):
        if result.shape != truth.shape:
            return f"{side} has shape {result.shape}, expected {truth.shape}"
        if result.dtype != dtype:
            return f"{side} is {result.dtype}, expected {dtype}"
        wrong = ~np.isfinite(result.astype(np.float64)) & np.isfinite(truth)
        if wrong.any():
            return f"{side} is not finite at {wrong.sum()} of {wrong.size} places"
        if (np.isnan(truth) & ~np.isnan(result.astype(np.float64))).any():
            return f"{side} has a number where NaN is right"
    return ""


def _emptiness(truth: np.ndarray) -> str:
    numbers = truth[np.isfinite(truth)]
    if numbers.size == 0:
        return "no number to compare"
    if numbers.size > 1 and numbers.min() == numbers.max():
        return f"the right answer is {numbers[0]:g} everywhere"
    return ""


def _bound(truth: Bounded, dtype: np.dtype, compute: np.dtype) -> np.ndarray:
    """Arithmetic in `compute`, one rounding to `dtype`, and the oracle's own rounding where it is no finer.

    Where nothing is computed (units 0 and the value representable) the bound is 0: such places are exact.
    """
    share = ORACLE_SHARE if compute == np.float64 else 1.0
    arithmetic = share * unit_roundoff(compute) * truth.units
    if dtype == compute:
        rounding = 0.0
    else:
        size = np.abs(truth.value) + arithmetic
        rounding = np.maximum(unit_roundoff(dtype) * size, _half_step_at_zero(dtype))
        representable = truth.value.astype(dtype).astype(np.float64) == truth.value
        rounding = np.where((truth.units == 0) & representable, 0.0, rounding)
    underflow = np.where(truth.units == 0, 0.0, UNDERFLOW)
    return np.where(np.isnan(truth.value), 0.0, arithmetic + rounding + underflow)


def _half_step_at_zero(dtype: np.dtype) -> float:
    return float(ml_dtypes.finfo(dtype).smallest_subnormal) / 2


def _over(error: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """As multiples of the bound; an error where that is 0 is infinitely too large."""
    with np.errstate(divide="ignore"):
        return np.divide(error, bound, out=np.zeros_like(error), where=error > 0)


def _peer_ratio(error_a: np.ndarray, error_b: np.ndarray, floor: np.ndarray) -> float:
    """The most one side is worse than the other, in any slice along any axis.

    Above 1: A is worse, by that factor; below 1: B is. Slices keep one bad head, position or channel from hiding
    among good ones; the floor keeps a lucky zero from making an enemy of an ordinary rounding.
    """
    log_ratio = 0.0
    for axis in range(error_a.ndim):
        others = tuple(k for k in range(error_a.ndim) if k != axis)
        least = floor.max(others)
        a, b = (np.maximum(error.max(others), least) for error in (error_a, error_b))
        log_ratio = max(log_ratio, *np.log(a / b), key=abs)
    return float(np.exp(log_ratio))
