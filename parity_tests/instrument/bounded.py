"""Arithmetic that carries its own error bound: a float64 value and how far a rounded computation may be from it.

A `Bounded` holds an exact value x and `units`, an elementwise bound such that a program in which every operation is
rounded to unit roundoff u computes x to within u * units (to first order in u). The rules are those of running error
analysis: Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 3.3. An oracle written with
it yields, from one text, both the right answer and the largest error that an honest implementation may show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .tolerances import FUNCTION_UNITS, TANH_UNITS

__all__ = ["Bounded", "exact", "exp", "stack", "tanh", "where"]


@dataclass(frozen=True, eq=False)
class Bounded:
    value: np.ndarray
    units: np.ndarray

    def __add__(self, other: Any) -> Bounded:
        other = exact(other)
        value = self.value + other.value
        # Adding an exact zero rounds nothing; a zero left by cancellation is not exact.
        rounds = self._is_nonzero() & other._is_nonzero()
        return Bounded(value, self.units + other.units + rounds * np.abs(value))

    def __neg__(self) -> Bounded:
        return Bounded(-self.value, self.units)

    def __sub__(self, other: Any) -> Bounded:
        return self + -exact(other)

    def __mul__(self, other: Any) -> Bounded:
        other = exact(other)
        value = self.value * other.value
        units = np.abs(self.value) * other.units + self.units * np.abs(other.value)
        return Bounded(value, units + np.abs(value))

    def __truediv__(self, other: Any) -> Bounded:
        other = exact(other)
        value = self.value / other.value
        units = (self.units + np.abs(value) * other.units) / np.abs(other.value)
        return Bounded(value, units + np.abs(value))

    def __matmul__(self, other: Any) -> Bounded:
        other = exact(other)
        a, b = np.abs(self.value), np.abs(other.value)
        terms = self.value.shape[-1]
        units = a @ other.units + self.units @ b + terms * (a @ b)
        return Bounded(self.value @ other.value, units)

    def _is_nonzero(self) -> np.ndarray:
        return (self.value != 0) | (self.units != 0)

    def cast(self, coarse: float) -> Bounded:
        """Round once to a dtype whose unit roundoff is `coarse` times the arithmetic's; 1 means it is the same."""
        rounding = coarse * np.abs(self.value) if coarse > 1 else 0.0
        return Bounded(self.value, self.units + rounding)

    def sum(self, axis: Any, *, keepdims: bool = False) -> Bounded:
        value = self.value.sum(axis, keepdims=keepdims)
        terms = self.value.size // max(value.size, 1)
        magnitude = np.abs(self.value).sum(axis, keepdims=keepdims)
        units = self.units.sum(axis, keepdims=keepdims) + (terms - 1) * magnitude
        return Bounded(value, units)

    def move(self, change: Callable[[np.ndarray], np.ndarray]) -> Bounded:
        """Reshape, transpose, index or broadcast: nothing is computed, so nothing is rounded."""
        return Bounded(change(self.value), change(self.units))

    def __getitem__(self, index: Any) -> Bounded:
        return self.move(lambda a: a[index])


def exact(value: Any) -> Bounded:
    if isinstance(value, Bounded):
        return value
    value = np.asarray(value, np.float64)
    return Bounded(value, np.zeros_like(value))


def exp(x: Bounded) -> Bounded:
    value = np.exp(x.value)
    return Bounded(value, value * (x.units + FUNCTION_UNITS))


def tanh(x: Bounded) -> Bounded:
    value = np.tanh(x.value)
    return Bounded(value, (1 - value**2) * x.units + TANH_UNITS * np.abs(value))


def where(condition: np.ndarray, x: Any, y: Any) -> Bounded:
    x, y = exact(x), exact(y)
    return Bounded(
        np.where(condition, x.value, y.value), np.where(condition, x.units, y.units)
    )


def stack(parts: list[Bounded], axis: int) -> Bounded:
    return Bounded(
        np.stack([part.value for part in parts], axis),
        np.stack([part.units for part in parts], axis),
    )
