"""Positions with several coordinates: which of them each pair of a rotary embedding turns with.

Text has one coordinate, images two, video three. Every model in use gives each pair one coordinate and one frequency,

    angle[m, i] = m[axes[i]] * inv_freq[i]

and they differ in `axes` and in how the frequencies are numbered (`RopeConfig.progression`). A vision tower that gives
the first half of the pairs to the rows has axes (0,) * n + (1,) * n; FLUX has (0,) * 8 + (1,) * 28 + (2,) * 28.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ._checks import check_choice, check_sections

__all__ = ["mrope_axes"]

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
