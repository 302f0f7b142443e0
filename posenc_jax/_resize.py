"""Which rows of a table each row of a resized one is made of, and with what weights, in float64 on the host.

Row i of the new table stands at source(i) of the old one and sums the rows j around it:

    source(i) = (i + 1/2) old / new - 1/2        centres of rows agree
    source(i) = i (old - 1) / (new - 1)          `align_corners`: first and last rows agree
    new[i]    = sum_j w((source(i) - j) / s) old[j]

    w(x) = 1 - |x|                                                       |x| < 1    linear
    w(x) = (a + 2)|x|^3 - (a + 3)|x|^2 + 1                               |x| < 1    cubic
    w(x) = a|x|^3 - 5a|x|^2 + 8a|x| - 4a                             1 < |x| < 2

s is 1, or old / new where a smaller table is antialiased. The cubic is Keys' ("Cubic Convolution Interpolation for
Digital Image Processing", 1981, eq. 15), whose a is -1/2; torch has -3/4 unless it antialiases. The same file is in
both packages.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["taps"]


def taps(
    old: int,
    new: int,
    *,
    method: str,
    antialias: bool,
    align_corners: bool,
    scale_factor: float | None,
) -> tuple[Int[np.ndarray, "new n"], Float[np.ndarray, "new n"]]:
    """Rows of the old table and their weights, for each row of the new one.

    Args:
        old, new: Rows.
        method: "linear", "cubic" or "keys_cubic".
        antialias, align_corners: As in `resize_position_table`.
        scale_factor: What stands for new / old, or None.
    """
    if align_corners:
        step = (old - 1) / max(new - 1, 1)
        source = np.arange(new) * step
    else:
        step = old / new if scale_factor is None else 1 / scale_factor
        source = (np.arange(new) + 0.5) * step - 0.5
    stretch = max(step, 1.0) if antialias else 1.0
    radius = (1 if method == "linear" else 2) * stretch
    count = 2 * math.ceil(radius)
    rows = np.floor(source)[:, None] + np.arange(1 - count // 2, count // 2 + 1)
    away = np.abs(source[:, None] - rows) / stretch
    if method == "linear":
        weights = np.maximum(1 - away, 0)
    else:
        weights = _cubic(away, -0.5 if antialias or method == "keys_cubic" else -0.75)
    if antialias or method == "keys_cubic":
        # A row beyond the table counts for nothing; elsewhere it counts as the last row.
        weights = np.where((rows >= 0) & (rows < old), weights, 0)
        weights /= weights.sum(-1, keepdims=True)
    return rows.clip(0, old - 1).astype(np.int32), weights


def _cubic(x: Float[np.ndarray, "new n"], a: float) -> Float[np.ndarray, "new n"]:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))
