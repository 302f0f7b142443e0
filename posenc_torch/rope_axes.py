"""Positions with several coordinates: which of them each pair of a rotary embedding turns with.

Text has one coordinate, images two, video three. Every model in use gives each pair one coordinate and one frequency,

    angle[m, i] = m[axes[i]] * inv_freq[i]

and they differ in `axes` and in how the frequencies are numbered (`RopeConfig.progression`). A vision tower that gives
the first half of the pairs to the rows has axes (0,) * n + (1,) * n; FLUX has (0,) * 8 + (1,) * 28 + (2,) * 28.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from ._checks import check_choice, check_sections, check_size

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["grid_positions", "mrope_axes", "patch_centres"]

Order = Literal["chunked", "interleaved", "ernie"]

ORDERS = ("chunked", "interleaved", "ernie")


def mrope_axes(sections: Sequence[int], *, order: Order = "chunked") -> tuple[int, ...]:
    """Share the pairs out among time, height and width (M-RoPE).

    Hugging Face's positions are [3, batch, seq]; here the coordinates come last: `moveaxis(position_ids, 0, -1)`.

    Args:
        sections: Pairs of each axis, `mrope_section` of the configuration.
        order: "chunked", all pairs of time first, then height, then width (Qwen2-VL, GLM-4V); "interleaved", time,
            height, width, time, ... until height and width have theirs, the rest time (Qwen3-VL); "ernie", for sections
            of height, width and time: height, width, height, ..., then time (ERNIE-4.5-VL).
    Returns:
        One axis for each pair: 0 time, 1 height, 2 width (more axes with "chunked").
    Raises:
        TypeError: if sections are not ints.
        ValueError: if one is below 1, they do not fit the order, or the order is unknown.
    Source:
        Wang et al., "Qwen2-VL", 2024, arXiv:2409.12191, section 2.1; the orders from each model's code in transformers.
    """
    check_choice("order", order, ORDERS)
    check_sections("sections", sections, order)
    if order == "chunked":
        return tuple(axis for axis, n in enumerate(sections) for _ in range(n))
    if order == "ernie":
        height, _, time = sections
        return (1, 2) * height + (0,) * time
    pairs = range(sum(sections))
    axes = tuple(i % 3 if i < 3 * sections[i % 3] else 0 for i in pairs)
    if axes.count(1) != sections[1] or axes.count(2) != sections[2]:
        raise ValueError(
            f"`sections` must not have more of height or width than every third pair "
            f"for the order 'interleaved', got {sections}."
        )
    return axes


def grid_positions(*sizes: int) -> Int[np.ndarray, "points axes"]:
    """Coordinates of every point of a grid, the last axis fastest: (0, 0), (0, 1), ..., (1, 0), ...

    Args:
        sizes: Points along each axis, such as height and width in patches.
    Returns:
        NumPy int32 [product of sizes, axes].
    Raises:
        TypeError, ValueError: if a size is not an int of at least 1, or there is none.
    """
    for i, size in enumerate(sizes):
        check_size(f"sizes[{i}]", size)
    if not sizes:
        raise ValueError("`sizes` must have an int for each axis, got none.")
    grid = np.indices(sizes, np.int32)
    return grid.reshape(len(sizes), -1).T


def patch_centres(*sizes: int) -> Float[np.ndarray, "points axes"]:
    """Centres of the patches of an image whose sides go from -1 to 1, whatever its size, the last axis fastest.

    DINOv3 turns by 2 pi times a centre: multiply `inv_freq` by 2 pi.

    Args:
        sizes: Patches along each axis, such as height and width.
    Returns:
        NumPy float64 [product of sizes, axes], (2 i + 1) / size - 1.
    Raises:
        TypeError, ValueError: if a size is not an int of at least 1, or there is none.
    Source:
        Siméoni et al., "DINOv3", 2025, arXiv:2508.10104.
    """
    return (2 * grid_positions(*sizes) + 1) / np.array(sizes) - 1
