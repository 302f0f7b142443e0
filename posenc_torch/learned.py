"""Learned position encoding: one trainable row for every position.

Source: Gehring et al., "Convolutional Sequence to Sequence Learning", 2017, arXiv:1705.03122, section 3.1;
as used by BERT, GPT-2 and ViT.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from ._checks import (
    as_coordinates,
    as_floating,
    as_positions,
    as_sizes,
    check_choice,
    check_flag,
    check_positive,
    check_size,
    check_table_dtype,
    compute_dtype,
    describe,
)
from ._presets import LINE_NAMES
from ._resize import taps
from .sinusoidal import sinusoidal_position_encoding

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = [
    "axial_position_encoding",
    "init_position_table",
    "learned_position_encoding",
    "resize_position_table",
]

OutOfRange = Literal["error", "nan", "clip", "zero"]
Init = Literal["normal", "truncated_normal", "uniform", "sinusoidal", "patchtst"]
Combine = Literal["concat", "sum"]
Method = Literal["linear", "cubic", "keys_cubic"]

OUT_OF_RANGE = ("error", "nan", "clip", "zero")
INITS = ("normal", "truncated_normal", "uniform", "sinusoidal", "patchtst")
COMBINES = ("concat", "sum")
METHODS = ("linear", "cubic", "keys_cubic")


def learned_position_encoding(
    table: Float[Tensor, "max_len dim"],
    positions: int | Int[Tensor, "*positions"],
    *,
    padding_idx: int | None = None,
    out_of_range: OutOfRange = "error",
) -> Float[Tensor, "*positions dim"]:
    """Look up the row of each position: encoding[t] = table[t].

    Args:
        table: Trainable rows, [max_len, dim], any float dtype.
        positions: An int n for 0..n-1, or an array of integers of any shape. Negative ones are out
            of range, never counted from the end. BART's are `position_range(n, offset=2)`; OPT's and RoBERTa's come
            from `positions_from_mask`.
        padding_idx: Row that is read as it is but passes no gradient, as in `torch.nn.Embedding`.
        out_of_range: What a position outside 0..max_len-1 does. "error" raises (where values cannot be seen, as
            inside `torch.compile`, under vmap or on the meta device, it acts as "nan"); "nan" gives a row
            of NaN that passes no gradient, "zero" one of zeros; "clip" gives the nearest row, with its gradient.
    Returns:
        [*positions, dim] in the dtype of `table`.
    Raises:
        TypeError: if `table` is not floating-point or positions are not integers.
        ValueError: if `table` has not two axes or no rows, `padding_idx` is none of them, or a position is out of range
            under "error".
    Source:
        arXiv:1705.03122, section 3.1.
    """
    table = as_floating("table", table)
    check_choice("out_of_range", out_of_range, OUT_OF_RANGE)
    _check_table("table", table)
    if padding_idx is not None:
        _check_row("padding_idx", padding_idx, table.shape[0])
    tokens = as_positions("positions", positions, device=table.device)
    if out_of_range == "error":
        _check_range(positions, table.shape[0])
    nearest = tokens.clamp(0, table.shape[0] - 1)
    rows = table[nearest]
    if padding_idx is not None:
        padding = (nearest == padding_idx)[..., None]
        rows = torch.where(padding, rows.detach(), rows)
    if out_of_range == "clip":
        return rows
    outside = 0 if out_of_range == "zero" else torch.nan
    return rows.masked_fill((tokens != nearest)[..., None], outside)


def axial_position_encoding(
    tables: Sequence[Float[Tensor, "max_len dim"]],
    positions: Int[Tensor, "*positions axes"],
    *,
    combine: Combine = "concat",
    out_of_range: OutOfRange = "error",
) -> Float[Tensor, "*positions dim"]:
    """Look up each coordinate in a table of its own: encoding[t] = table_0[t[0]] with table_1[t[1]] with ...

    A long sequence is a grid too (Reformer): token t stands at (t // columns, t % columns).

    Args:
        tables: Trainable rows of each axis, [max_len, dim].
        positions: Coordinates, integers [*positions, axes], such as `grid_positions(height, width)`. (DETR and
            Florence-2 look the column up first.)
        combine: "concat", one after the other (Reformer, DETR), or "sum" (the tables have one `dim`).
        out_of_range: As in `learned_position_encoding`, for each table.
    Returns:
        [*positions, dim], the sum of the tables' `dim` with "concat", in the dtype of the tables.
    Raises:
        TypeError: if tables are not floating-point or positions are not integers.
        ValueError: if a table has not two axes or no rows, they are not one for each coordinate, their dtypes or for
            "sum" their columns differ, or a position is out of range under "error".
    Source:
        Kitaev et al., "Reformer", 2020, arXiv:2001.04451, and `AxialPositionEmbeddings` of transformers;
        `DetrLearnedPositionEmbedding`.
    """
    check_choice("combine", combine, COMBINES)
    check_choice("out_of_range", out_of_range, OUT_OF_RANGE)
    tables = _as_tables(tables)
    axes = tuple(range(len(tables)))
    coordinates = as_coordinates("positions", positions, axes, real=False, of="tables")
    if combine == "sum" and len({table.shape[1] for table in tables}) > 1:
        raise ValueError(
            f"`tables` must have as many columns each for 'sum', "
            f"got {[table.shape[1] for table in tables]}."
        )
    if out_of_range == "error":
        for axis in axes:
            max_len = tables[axis].shape[0]
            _check_range(positions[..., axis], max_len, f"tables[{axis}]")
        # What could not be seen is NaN, as under "nan"; the rest need not be looked at twice.
        out_of_range = "nan"
    rows = [
        learned_position_encoding(
            tables[axis], coordinates[..., axis], out_of_range=out_of_range
        )
        for axis in axes
    ]
    return sum(rows[1:], rows[0]) if combine == "sum" else torch.cat(rows, -1)


def init_position_table(
    max_len: int,
    dim: int,
    *,
    init: Init = "normal",
    stddev: float = 0.02,
    preset: str = "paper",
    padding_idx: int | None = None,
    generator: torch.Generator | None = None,
    dtype: Any = torch.float32,
) -> Float[Tensor, "max_len dim"]:
    """Make the first value of a learned table.

    Args:
        max_len: Rows, tokens.
        dim: Columns.
        init: "normal", N(0, stddev ** 2) (Hugging Face's BERT and GPT-2); "truncated_normal", the same drawn again
            beyond two standard deviations (BERT as published); "uniform", from 0 to 1 (DETR); "sinusoidal",
            `sinusoidal_position_encoding`; "patchtst", that less its mean and over 10 of its standard deviations.
        stddev: Standard deviation of the normal ones, before the cut: 0.02 (BERT, GPT-2, BART, OPT), dim ** -0.5
            (fairseq, big_vision, axlearn).
        preset: Of the sinusoidal ones, as in `sinusoidal_position_encoding`, but for those with axes.
        padding_idx: Row that is zero, or None (fairseq, RoBERTa).
        generator: Source of randomness; None means torch's default one.
        dtype: float32 or float64.
    Returns:
        [max_len, dim] in `dtype`.
    Raises:
        TypeError, ValueError: if a size is below 1 (`dim` below 2 for "patchtst"), `stddev` not positive, an option
            unknown, a preset given to random numbers, or `padding_idx` no row.
    """
    check_size("max_len", max_len)
    check_choice("init", init, INITS)
    # One number alone has no standard deviation.
    check_size("dim", dim, at_least=2 if init == "patchtst" else 1)
    check_positive("stddev", stddev)
    stddev = float(stddev)
    check_table_dtype("dtype", dtype)
    check_choice("preset", preset, LINE_NAMES)
    if preset != "paper" and init not in ("sinusoidal", "patchtst"):
        raise ValueError(
            f"`preset` must be left out where `init` is {init!r}, got {preset!r}."
        )
    if padding_idx is not None:
        _check_row("padding_idx", padding_idx, max_len)
    if init in ("sinusoidal", "patchtst"):
        table = sinusoidal_position_encoding(max_len, dim, preset=preset, dtype=dtype)
    elif init == "uniform":
        table = torch.rand((max_len, dim), generator=generator, dtype=dtype)
    elif init == "truncated_normal":
        table = torch.empty((max_len, dim), dtype=dtype)
        torch.nn.init.trunc_normal_(table, a=-2, b=2, generator=generator)
        table = stddev * table
    else:
        table = stddev * torch.randn((max_len, dim), generator=generator, dtype=dtype)
    if init == "patchtst":
        table = (table - table.mean()) / (10 * table.std())
    if padding_idx is not None:
        table[padding_idx] = 0
    return table


def resize_position_table(
    table: Float[Tensor, "max_len dim"],
    length_or_grid: int | Sequence[int],
    *,
    old_grid: Sequence[int] | None = None,
    method: Method = "cubic",
    antialias: bool = False,
    align_corners: bool = False,
    scale_factor: float | Sequence[float] | None = None,
    num_prefix: int = 0,
) -> Float[Tensor, "new_len dim"]:
    """Interpolate a table to another length, or another grid of patches.

    Hugging Face's ViT, DeiT, BEiT and DINOv2: the defaults; its DINOv2 with registers, and timm: antialias. DINOv2 as
    published: scale_factor = (size + 0.1) / old size, and the table as it is where the size is the same.
    SigLIP 2: linear, antialias. big_vision and Qwen3-VL: linear, align_corners. `jax.image.resize`'s cubic: keys_cubic.

    Args:
        table: Rows, [max_len, dim], any float dtype; differentiable. Those of a grid have its last axis fastest.
        length_or_grid: New length, tokens, or new grid, such as (height, width) in patches.
        old_grid: The grid that the table has, without its prefix; None means one axis for a length, and for
            (height, width) a square.
        method: "linear" (torch's bilinear), "cubic" (torch's bicubic: a = -3/4, and the last row repeated beyond the
            edge; antialiased, a = -1/2, and only rows that are there) or "keys_cubic" (a = -1/2, and only rows that are
            there, either way).
        antialias: Widen the kernel where a table becomes smaller.
        align_corners: Keep the first and the last row where they are, instead of the centres of rows.
        scale_factor: Stands for new / old in the formula, a number or one for each axis; times old it must be less
            than 1 above new, or 1/2 below. None means that very ratio.
        num_prefix: Rows at the start that stand for no place, such as a class token's, and are kept as they are.
    Returns:
        [num_prefix + length or product of the grid, dim] in the dtype of `table`. Summed in float32 (float64 if `table`
        is), rounded once.
    Raises:
        TypeError: if `table` is not floating-point, a size not an int or a flag not a bool.
        ValueError: if the sizes do not fit, there are no rows beside the prefix, or `align_corners` is combined with
            `antialias` or a scale factor.
    Source:
        `torch.nn.functional.interpolate`; Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021,
        arXiv:2010.11929, section 3.2; the formula is in `_resize.py`.
    """
    table = as_floating("table", table)
    _check_table("table", table)
    check_choice("method", method, METHODS)
    check_flag("antialias", antialias)
    check_flag("align_corners", align_corners)
    check_size("num_prefix", num_prefix, at_least=0)
    new = as_sizes("length_or_grid", length_or_grid)
    old = _old_grid(old_grid, table.shape[0] - num_prefix, len(new))
    factors = _scale_factors(scale_factor, old, new)
    for name, given in (("antialias", antialias), ("scale_factor", scale_factor)):
        if align_corners and given:
            raise ValueError(
                f"`align_corners` must be False where there is `{name}`, got True."
            )
    dtype = compute_dtype(table)
    grid = table[num_prefix:].to(dtype).reshape(*old, table.shape[1])
    for axis, sizes in enumerate(zip(old, new, factors, strict=True)):
        rows, weights = taps(
            *sizes[:2],
            method=method,
            antialias=bool(antialias),
            align_corners=bool(align_corners),
            scale_factor=sizes[2],
        )
        grid = _resampled(grid, axis, rows, weights)
    resized = grid.reshape(math.prod(new), table.shape[1]).to(table.dtype)
    return torch.cat((table[:num_prefix], resized), 0)


def _check_range(positions: int | Tensor, max_len: int, table: str = "table") -> None:
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
            f"`positions` must be in 0..{max_len - 1}, the rows of `{table}`, "
            f"got {low} to {high}."
        )


def _resampled(
    grid: Tensor, axis: int, rows: np.ndarray, weights: np.ndarray
) -> Tensor:
    """Weighted sums of rows of one axis: of broadcast products, never a matmul, which may round its operands."""
    grid = grid.movedim(axis, 0)
    spread = torch.from_numpy(weights).to(grid)
    spread = spread.reshape(*spread.shape, *(1,) * (grid.ndim - 1))
    taken = grid[torch.from_numpy(rows).to(grid.device)]
    return (spread * taken).sum(1).movedim(0, axis)


def _as_tables(tables: Any) -> list[Tensor]:
    if not isinstance(tables, (list, tuple)):
        raise TypeError(
            f"`tables` must be a list of arrays, one for each axis, "
            f"got {describe(tables)}."
        )
    if not tables:
        raise ValueError(f"`tables` must have an array for each axis, got {tables}.")
    tables = [as_floating(f"tables[{i}]", table) for i, table in enumerate(tables)]
    for i, table in enumerate(tables):
        _check_table(f"tables[{i}]", table)
        if table.dtype != tables[0].dtype:
            raise ValueError(
                f"`tables` must have one dtype, got {describe(tables[0])} "
                f"and {describe(table)}."
            )
    return tables


def _old_grid(old_grid: Any, rows: int, axes: int) -> tuple[int, ...]:
    """The grid of the rows that are not prefix."""
    if rows < 1:
        raise ValueError(
            f"`num_prefix` must leave at least one row of `table`, got {rows} left."
        )
    if old_grid is None:
        side = round(rows ** (1 / axes))
        if side**axes != rows:
            raise ValueError(
                f"`old_grid` must be given where the rows beside the prefix are no square, "
                f"got {rows} rows."
            )
        return (side,) * axes
    sizes = as_sizes("old_grid", old_grid)
    if len(sizes) != axes or math.prod(sizes) != rows:
        raise ValueError(
            f"`old_grid` must be {axes} sizes whose product is {rows}, the rows beside the "
            f"prefix, got {sizes}."
        )
    return sizes


def _scale_factors(
    factor: Any, old: tuple[int, ...], new: tuple[int, ...]
) -> tuple[float | None, ...]:
    axes = len(new)
    if factor is None:
        return (None,) * axes
    factors = factor if isinstance(factor, (list, tuple)) else (factor,) * axes
    for i, each in enumerate(factors):
        check_positive(
            "scale_factor" if factors is not factor else f"scale_factor[{i}]", each
        )
    if len(factors) != axes:
        raise ValueError(
            f"`scale_factor` must be a number or {axes} of them, got {len(factors)}."
        )
    factors = tuple(map(float, factors))
    for each, rows, wanted in zip(factors, old, new, strict=True):
        # Lower, the last new rows would stand where there are no old ones; higher, there would be more new rows.
        if not -0.5 <= rows * each - wanted < 1:
            raise ValueError(
                f"`scale_factor` must be less than one row above {wanted} / {rows}, or half a row below, "
                f"got {each}."
            )
    return factors


def _check_table(name: str, table: Tensor) -> None:
    if table.ndim != 2 or table.shape[0] == 0:
        raise ValueError(
            f"`{name}` must be [max_len, dim] with at least one row, "
            f"got shape {tuple(table.shape)}."
        )


def _check_row(name: str, row: Any, max_len: int) -> None:
    check_size(name, row, at_least=0)
    if row >= max_len:
        raise ValueError(f"`{name}` must be in 0..{max_len - 1}, the rows, got {row}.")
