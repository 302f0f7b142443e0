"""Sinusoidal position encoding: a fixed vector of sines and cosines for every position.

    PE[t, 2i]     = sin(t * inv_freq[i])
    PE[t, 2i + 1] = cos(t * inv_freq[i]),    inv_freq[i] = base ** (-2 i / dim)

Two spacings of the frequencies and three orders of the columns are in use, and libraries ship different
tables under one name; here they are arguments.

Source: Vaswani et al., "Attention Is All You Need", 2017, arXiv:1706.03762, section 3.5.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from . import _exact
from ._checks import (
    as_floating,
    as_positions,
    check_choice,
    check_exact,
    check_fits,
    check_positive,
    check_rank,
    check_size,
    check_table_dtype,
    compute_dtype,
)
from ._progression import geometric

if TYPE_CHECKING:
    from jaxtyping import Float, Int64, Real

__all__ = ["add_position_encoding", "sinusoidal_position_encoding"]

Layout = Literal["interleaved", "half", "half_cos_first"]
Spacing = Literal["dim", "endpoint"]
Angles = Literal["float32", "exact"]

LAYOUTS = ("interleaved", "half", "half_cos_first")
SPACINGS = ("dim", "endpoint")
ANGLES = ("float32", "exact")


def sinusoidal_position_encoding(
    positions: int | Real[Tensor, "*positions"],
    dim: int,
    *,
    base: float = 10_000.0,
    layout: Layout = "interleaved",
    spacing: Spacing = "dim",
    angles: Angles = "float32",
    dtype: Any = torch.float32,
) -> Float[Tensor, "*positions dim"]:
    """Encode positions, or real-valued times, as sines and cosines.

        angle[t, i] = t * inv_freq[i]
        inv_freq[i] = base ** (-2 i / dim)          spacing "dim", the paper's
        inv_freq[i] = base ** (-i / (half - 1))     spacing "endpoint", tensor2tensor's, half = dim // 2

    An odd `dim` with spacing "dim" has one sine more than cosines, so every frequency of the formula
    appears (Hugging Face's rule for Marian); with spacing "endpoint" the last column is zero (tensor2tensor's rule).

    Args:
        positions: An int n for 0..n-1, or an array of any shape: integers in tokens, or float32 or
            float64 times, as diffusion models use.
        dim: Columns of the encoding.
        base: Ratio of the longest wavelength to the shortest (approached, not reached, by "dim").
        layout: "interleaved" (sin, cos, sin, cos: the paper's), "half" (all sines, then all cosines)
            or "half_cos_first" (all cosines, then all sines).
        spacing: "dim" or "endpoint".
        angles: How the angle is formed. "float32": one product in `dtype`, what every float32 model does;
            the angle is then off by up to 7.8e-3 radians at position 131071. "exact": in integers, so that the
            encoding is right to 1.2e-7 at every int32 position; positions must be integers, and `dtype` float32.
        dtype: float32 or float64, of the arithmetic and of the result.
    Returns:
        [*positions, dim] in `dtype`.
    Raises:
        TypeError: if positions are neither integers nor (but for exact angles) float32 or float64, or dtype is neither
            float.
        ValueError: if `dim` is below 1 (2 for "endpoint"), `base` not positive, an option unknown, or exact angles are
            asked for in float64 or of a position that does not fit int32.
    Source:
        arXiv:1706.03762, section 3.5; spacing "endpoint" from tensor2tensor's get_timing_signal_1d.
    """
    check_table_dtype("dtype", dtype)
    check_positive("base", base)
    check_choice("layout", layout, LAYOUTS)
    check_choice("spacing", spacing, SPACINGS)
    check_choice("angles", angles, ANGLES)
    check_size("dim", dim, at_least=2 if spacing == "endpoint" else 1)
    positions = as_positions("positions", positions, real=angles != "exact")
    if angles == "exact":
        check_exact(positions, dtype)
        # A size that varies in a compiled program becomes a constant: turns are prepared before it runs.
        turns = _turns(operator.index(dim), float(base), spacing)
        cos, sin = _exact.cos_sin(positions[..., None], turns)
        cos = cos[..., : dim // 2]
    else:
        inv_freq = _inv_freq(dim, float(base), spacing)
        inv_freq = torch.tensor(inv_freq, dtype=dtype, device=positions.device)
        angle = positions[..., None].to(dtype) * inv_freq
        sin, cos = torch.sin(angle), torch.cos(angle[..., : dim // 2])
    if layout == "half":
        columns = torch.cat((sin, cos), -1)
    elif layout == "half_cos_first":
        columns = torch.cat((cos, sin), -1)
    else:
        pairs = torch.stack((sin[..., : dim // 2], cos), -1).flatten(-2)
        columns = torch.cat((pairs, sin[..., dim // 2 :]), -1)
    missing = dim - columns.shape[-1]
    return torch.nn.functional.pad(columns, (0, missing)) if missing else columns


def add_position_encoding(
    x: Float[Tensor, "*batch seq dim"], encoding: Float[Tensor, "*positions dim"]
) -> Float[Tensor, "*batch seq dim"]:
    """Add an encoding to what it encodes: a table to token embeddings, an ALiBi bias to attention scores.

    Args:
        x: Embeddings [*batch, seq, dim] or scores [*batch, heads, q, k], any float dtype.
        encoding: The last two axes are those of x; axes before them may be 1 or absent.
    Returns:
        x + encoding, in the shape and dtype of x. Added in float32 (float64 if either is), rounded once.
    Raises:
        TypeError: if either is not floating-point.
        ValueError: if the shapes do not fit.
    Source:
        arXiv:1706.03762, section 3.5.
    """
    x, encoding = as_floating("x", x), as_floating("encoding", encoding)
    check_rank("x", x, "[..., seq, dim]", at_least=2)
    check_fits("encoding", encoding.shape, x.shape, exact=2)
    dtype = compute_dtype(x, encoding)
    return (x.to(dtype) + encoding.to(dtype)).to(x.dtype)


def _inv_freq(dim: int, base: float, spacing: Spacing) -> list[float]:
    """Angles per unit of position."""
    if spacing == "endpoint":
        half = dim // 2
        return [base ** (-i / max(half - 1, 1)) for i in range(half)]
    return geometric(base, dim)


def _turns(dim: int, base: float, spacing: Spacing) -> Int64[np.ndarray, " n"]:
    """The same for exact angles."""
    if spacing == "endpoint":
        half = dim // 2
        return _exact.geometric_turns(base, 1, max(half - 1, 1), half)
    return _exact.geometric_turns(base, 2, dim, (dim + 1) // 2)
