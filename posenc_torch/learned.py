"""Learned position encoding: one trainable row for every position.

Source: Gehring et al., "Convolutional Sequence to Sequence Learning", 2017, arXiv:1705.03122, section 3.1;
as used by BERT, GPT-2 and ViT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ._checks import (
    as_floating,
    as_positions,
    check_choice,
    check_positive,
    check_size,
    check_table_dtype,
)
from .sinusoidal import sinusoidal_position_encoding

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["init_position_table", "learned_position_encoding"]

OutOfRange = Literal["error", "nan", "clip"]
Init = Literal["normal", "sinusoidal"]

OUT_OF_RANGE = ("error", "nan", "clip")
INITS = ("normal", "sinusoidal")


def learned_position_encoding(
    table: Float[Tensor, "max_len dim"],
    positions: int | Int[Tensor, "*positions"],
    *,
    out_of_range: OutOfRange = "error",
) -> Float[Tensor, "*positions dim"]:
    """Look up the row of each position: encoding[t] = table[t].

    Args:
        table: Trainable rows, [max_len, dim], any float dtype.
        positions: An int n for 0..n-1, or an array of integers of any shape. Negative ones are out
            of range, never counted from the end.
        out_of_range: What a position outside 0..max_len-1 does. "error" raises (where values cannot be seen, as
            inside `torch.compile`, under vmap or on the meta device, it acts as "nan"); "nan" gives a row
            of NaN that passes no gradient; "clip" gives the nearest row, with its gradient.
    Returns:
        [*positions, dim] in the dtype of `table`.
    Raises:
        TypeError: if `table` is not floating-point or positions are not integers.
        ValueError: if `table` has not two axes or no rows, or a position is out of range under "error".
    Source:
        arXiv:1705.03122, section 3.1.
    """
    table = as_floating("table", table)
    check_choice("out_of_range", out_of_range, OUT_OF_RANGE)
    if table.ndim != 2 or table.shape[0] == 0:
        raise ValueError(
            f"`table` must be [max_len, dim] with at least one row, "
            f"got shape {tuple(table.shape)}."
        )
    tokens = as_positions("positions", positions, device=table.device)
    if out_of_range == "error":
        _check_range(positions, table.shape[0])
    nearest = tokens.clamp(0, table.shape[0] - 1)
    rows = table[nearest]
    if out_of_range == "clip":
        return rows
    return rows.masked_fill((tokens != nearest)[..., None], torch.nan)


def init_position_table(
    max_len: int,
    dim: int,
    *,
    init: Init = "normal",
    stddev: float = 0.02,
    generator: torch.Generator | None = None,
    dtype: Any = torch.float32,
) -> Float[Tensor, "max_len dim"]:
    """Make the first value of a learned table.

    Args:
        max_len: Rows, tokens.
        dim: Columns.
        init: "normal" draws N(0, stddev ** 2), as BERT and GPT-2 do; "sinusoidal" starts from
            `sinusoidal_position_encoding(max_len, dim)`.
        stddev: Standard deviation of "normal".
        generator: Source of randomness of "normal"; None means torch's default one.
        dtype: float32 or float64.
    Returns:
        [max_len, dim] in `dtype`.
    Raises:
        TypeError, ValueError: if a size is below 1, `stddev` not positive, or an option unknown.
    """
    check_size("max_len", max_len)
    check_size("dim", dim)
    check_choice("init", init, INITS)
    check_positive("stddev", stddev)
    check_table_dtype("dtype", dtype)
    if init == "sinusoidal":
        return sinusoidal_position_encoding(max_len, dim, dtype=dtype)
    return stddev * torch.randn((max_len, dim), generator=generator, dtype=dtype)


def _check_range(positions: int | Tensor, max_len: int) -> None:
    """Look at positions as they were given, since an int or a constant is known even to a compiler."""
    if isinstance(positions, int):
        low, high = 0, positions - 1
    elif positions.numel() == 0 or torch.compiler.is_compiling():
        return
    else:
        try:
            low, high = int(positions.min()), int(positions.max())
        except (
            RuntimeError
        ):  # On the meta device and under vmap there is nothing to see.
            return
    if low < 0 or high >= max_len:
        raise ValueError(
            f"`positions` must be in 0..{max_len - 1}, the rows of `table`, "
            f"got {low} to {high}."
        )
