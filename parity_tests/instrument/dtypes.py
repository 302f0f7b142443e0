"""The dtypes of a run, and what one rounding in them may cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from .tolerances import HUGE, STAGE_SHARE

__all__ = ["DTYPES", "Arrays", "Function", "infinite", "unit_roundoff"]

Arrays = Mapping[str, np.ndarray]
Function = Callable[..., dict[str, Any]]

DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}


def unit_roundoff(dtype: Any) -> float:
    """Largest relative error of one rounding to nearest."""
    return float(ml_dtypes.finfo(dtype).eps) / 2


def infinite(x: np.ndarray) -> np.ndarray:
    """Where float64 numbers are infinite or stand for it, as masks are written: below -HUGE, or one number above it."""
    large = np.abs(x) >= HUGE
    above = x[large & (x > 0) & np.isfinite(x)]
    if above.size and np.ptp(above) > STAGE_SHARE * above.max():
        large &= (x < 0) | np.isinf(x)  # Numbers of their own.
    return large
