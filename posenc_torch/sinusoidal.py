"""Sinusoidal position encoding: a fixed vector of sines and cosines for every position.

    PE[t, 2i]     = sin(t * inv_freq[i])
    PE[t, 2i + 1] = cos(t * inv_freq[i]),    inv_freq[i] = base ** (-2 i / dim)

Libraries ship different tables under one name: the spacing of the frequencies, the order of the columns and the order
of the axes of a grid are arguments here, and a preset has the arguments of each family.

Source: Vaswani et al., "Attention Is All You Need", 2017, arXiv:1706.03762, section 3.5.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from . import _exact
from ._checks import (
    as_axes,
    as_coordinates,
    as_floating,
    as_positions,
    as_table,
    check_choice,
    check_exact,
    check_factor,
    check_fits,
    check_position,
    check_positive,
    check_rank,
    check_size,
    check_table_dtype,
    compute_dtype,
    is_array,
)
from ._presets import NAMES, Options, expand

if TYPE_CHECKING:
    from jaxtyping import Float, Real

__all__ = [
    "add_position_encoding",
    "fourier_position_encoding",
    "sinusoidal_position_encoding",
    "sinusoidal_preset",
]

Layout = Literal["interleaved", "half", "half_cos_first"]
GridLayout = Literal["half_across_axes"]
Spacing = Literal["dim", "half", "endpoint", "next_even"]
Angles = Literal["float32", "exact"]

LAYOUTS = ("interleaved", "half", "half_cos_first")
GRID_LAYOUTS = ("half_across_axes",)
SPACINGS = ("dim", "half", "endpoint", "next_even")
ANGLES = ("float32", "exact")

# base, numerator, denominator, count, scale
Series = tuple[float, int, int, int, float]


def sinusoidal_position_encoding(
    positions: int | Real[Tensor, "*positions"],
    dim: int,
    *,
    preset: str = "paper",
    base: float | Sequence[float] | None = None,
    layout: Layout | GridLayout | None = None,
    spacing: Spacing | None = None,
    axes: Sequence[int] | None = None,
    angle_scale: float | None = None,
    amplitude: float | Float[Tensor, ""] | Literal["rsqrt_dim"] | None = None,
    padding_idx: int | None = None,
    angles: Angles = "float32",
    dtype: Any = torch.float32,
) -> Float[Tensor, "*positions dim"]:
    """Encode positions, or real-valued times, as sines and cosines.

        angle[t, i] = t * inv_freq[i]
        inv_freq[i] = base ** (-2 i / dim)          spacing "dim", the paper's
        inv_freq[i] = base ** (-i / half)           spacing "half", half = dim // 2
        inv_freq[i] = base ** (-i / (half - 1))     spacing "endpoint", tensor2tensor's
        inv_freq[i] = base ** (-2 i / (dim + 1))    spacing "next_even", for an odd dim

    For an even `dim`, "dim", "half" and "next_even" are the same. For an odd one, "dim" and "next_even" have one sine
    more than cosines, "half" and "endpoint" a last column of zeros. An option that is None is the preset's.

    Args:
        positions: An int n for 0..n-1, or an array of any shape: integers in tokens, or float32 or
            float64 times, as diffusion models use. With `axes`, an array [*positions, axes] of coordinates.
        dim: Columns of the encoding.
        preset: Whose table, by the name of a library or a model: `sinusoidal_preset` shows what it stands for. It is a
            table, not positions: fairseq's tokens begin at `padding_idx` + 1 (`positions_from_mask`), DETR's
            coordinates are from 0 to 1 (`grid_positions_from_mask`).
        base: Ratio of the wavelengths at the exponents -1 and 0, of which only "endpoint" has both. With `axes` it may
            be one for each axis of the positions. The paper's is 10000.
        layout: "interleaved" (sin, cos, sin, cos: the paper's), "half" (all sines, then all cosines) or
            "half_cos_first" (all cosines, then all sines), of each block where there are `axes`; "half_across_axes"
            (the sines of all blocks, then the cosines of all).
        spacing: "dim" (the paper's), "half", "endpoint" or "next_even".
        axes: Where positions have several coordinates, which of them each block of dim / len(axes) columns encodes:
            (1, 0) is the column of a grid, then the row. Everything above then holds for each block.
        angle_scale: Factor of the angles. (Wavelengths from 2 pi a to 2 pi b are base b / a, angle_scale 1 / a.)
        amplitude: Factor of the encoding, a number or a scalar array, which may be learnt; "rsqrt_dim" is dim ** -0.5.
        padding_idx: Position whose encoding is zero, as in fairseq; the paper has none. ("whisper" is fairseq's table
            without it.)
        angles: How the angle is formed. "float32": one product in `dtype`, what every float32 model does;
            the angle is then off by up to 7.8e-3 radians at position 131071. "exact": in integers, so that the
            encoding is right to 1.2e-7 at every int32 position; positions must be integers, and `dtype` float32.
        dtype: float32 or float64, of the arithmetic and of the result.
    Returns:
        [*positions, dim] in `dtype`.
    Raises:
        TypeError: if positions are neither integers nor (but for exact angles) float32 or float64, an option is of the
            wrong type, or dtype is neither float.
        ValueError: if a block has no column (fewer than 2 for "half" and "endpoint"), a factor is not positive or a
            frequency not finite, an option is unknown, `axes` do not fit, or exact angles are asked for in float64 or
            of a position that does not fit int32.
    Source:
        arXiv:1706.03762, section 3.5; "endpoint" from get_timing_signal_1d of tensor2tensor, "half" from
        get_timestep_embedding of diffusers, "next_even" from positional-encodings; the rest from each family's code.
    """
    check_choice("preset", preset, NAMES)
    options = expand(
        preset,
        base=base,
        layout=layout,
        spacing=spacing,
        axes=axes,
        angle_scale=angle_scale,
        amplitude=amplitude,
        padding_idx=padding_idx,
    )
    check_table_dtype("dtype", dtype)
    check_choice("angles", angles, ANGLES)
    width, series = _series(dim, options)
    real = angles != "exact"
    if options.axes is None:
        positions = as_positions("positions", positions, real=real)
        coordinates = [positions]
    else:
        positions = as_coordinates("positions", positions, options.axes, real=real)
        coordinates = [positions[..., axis] for axis in options.axes]
    if angles == "exact":
        check_exact(positions, dtype)
    sines, cosines = [], []
    for coordinate, one in zip(coordinates, series, strict=True):
        sin, cos = _sines_and_cosines(coordinate, one, angles, dtype)
        sines.append(sin)
        cosines.append(cos[..., : width // 2])
    if options.layout == "half_across_axes":
        sines, cosines = [torch.cat(sines, -1)], [torch.cat(cosines, -1)]
    columns = [
        _columns(sin, cos, options.layout, dim // len(sines))
        for sin, cos in zip(sines, cosines, strict=True)
    ]
    encoding = columns[0] if len(columns) == 1 else torch.cat(columns, -1)
    if options.padding_idx is not None:
        padding = positions == options.padding_idx
        encoding = encoding.masked_fill(padding[..., None], 0)
    amplitude = options.amplitude
    return _scaled(encoding, dim**-0.5 if isinstance(amplitude, str) else amplitude)


def sinusoidal_preset(name: str) -> dict[str, Any]:
    """Say what a preset of `sinusoidal_position_encoding` stands for: `preset=name` is `**sinusoidal_preset(name)`.

    Args:
        name: Of a library or a model, such as "whisper".
    Returns:
        The options of `sinusoidal_position_encoding` by name.
    Raises:
        ValueError: if the name is unknown; the message has those that are known.
    """
    check_choice("name", name, NAMES)
    return expand(name)._asdict()


def fourier_position_encoding(
    positions: Real[Tensor, "*positions axes"],
    frequencies: Float[Tensor, "axes n"],
    *,
    layout: Layout = "half",
) -> Float[Tensor, "*positions 2*n"]:
    """Encode coordinates with frequencies of one's own, random or learnt (Fourier features).

        angle[t, i] = 2 pi (t[0] frequencies[0, i] + t[1] frequencies[1, i] + ...)

    Args:
        positions: Coordinates, [*positions, axes]: integers, float32 or float64.
        frequencies: Turns per unit of each coordinate, [axes, n], float32 or float64; differentiable.
        layout: "half" (all sines, then all cosines), "half_cos_first" or "interleaved".
    Returns:
        [*positions, 2 n] in the dtype of `frequencies`.
    Raises:
        TypeError: if positions are not integers, float32 or float64, or frequencies not float32 or float64.
        ValueError: if the axes do not fit, or `layout` is unknown.
    Source:
        Tancik et al., "Fourier Features Let Networks Learn High Frequency Functions in Low Dimensional Domains", 2020,
        arXiv:2006.10739, section 5; GaussianFourierProjection of diffusers and the prompt encoder of SAM.
    """
    check_choice("layout", layout, LAYOUTS)
    frequencies = as_table("frequencies", frequencies, torch.device("cpu"))
    if frequencies.ndim != 2 or frequencies.shape[0] == 0:
        raise ValueError(
            f"`frequencies` must be [axes, n], got shape {tuple(frequencies.shape)}."
        )
    axes = tuple(range(frequencies.shape[0]))
    positions = as_coordinates(
        "positions", positions, axes, real=True, of="frequencies"
    )
    frequencies = frequencies.to(positions.device)
    # A sum of broadcast products, never a matmul: TF32 or bfloat16 passes would round the positions.
    coordinates = positions.to(frequencies.dtype)
    turns = coordinates[..., :1] * frequencies[0]
    for axis in axes[1:]:
        turns = turns + coordinates[..., axis, None] * frequencies[axis]
    angle = 2 * math.pi * turns
    return _columns(torch.sin(angle), torch.cos(angle), layout, 2 * angle.shape[-1])


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


def _series(dim: int, options: Options) -> tuple[int, list[Series]]:
    """Columns of each block, and its frequencies."""
    check_choice("layout", options.layout, LAYOUTS + GRID_LAYOUTS)
    check_choice("spacing", options.spacing, SPACINGS)
    check_positive("angle_scale", options.angle_scale)
    if isinstance(options.amplitude, str):
        check_choice("amplitude", options.amplitude, ("rsqrt_dim",))
    else:
        check_factor("amplitude", options.amplitude)
    if options.padding_idx is not None:
        check_position("padding_idx", options.padding_idx)
    smallest = 2 if options.spacing in ("half", "endpoint") else 1
    if options.axes is None:
        check_size("dim", dim, at_least=smallest)
        check_positive("base", options.base)
        width, bases = dim, [options.base]
    else:
        axes = as_axes("axes", options.axes)
        check_size("dim", dim, at_least=smallest * len(axes))
        width, bases = _blocks(dim, axes, options)
    exponents = _exponents(width, options.spacing)
    # A number of NumPy's would be computed with in its own precision.
    scale = float(options.angle_scale)
    series = [(float(base), *exponents, scale) for base in bases]
    for one in series:
        _check_finite(*one)
    return width, series


def _blocks(
    dim: int, axes: tuple[int, ...], options: Options
) -> tuple[int, list[float]]:
    """Columns of each block, and its base."""
    if dim % len(axes):
        raise ValueError(
            f"`dim` must be a multiple of {len(axes)}, the axes, got {dim}."
        )
    if options.padding_idx is not None:
        raise ValueError(
            f"`padding_idx` must be None where there are `axes`, got {options.padding_idx}."
        )
    count, bases = max(axes) + 1, options.base
    if not isinstance(bases, (list, tuple)):
        check_positive("base", bases)
        return dim // len(axes), [bases] * len(axes)
    for i, base in enumerate(bases):
        check_positive(f"base[{i}]", base)
    if len(bases) != count:
        raise ValueError(
            f"`base` must be a number or {count} of them, one for each axis, "
            f"got {len(bases)}."
        )
    return dim // len(axes), [bases[axis] for axis in axes]


def _check_finite(
    base: float, numerator: int, denominator: int, count: int, scale: float
) -> None:
    """Refuse what float32 cannot hold; by logarithms, since a power of Python's raises an error of its own."""
    largest = math.log2(scale)
    if base < 1:
        largest -= math.log2(base) * numerator * (count - 1) / denominator
    if largest >= 127:
        raise ValueError(
            f"`base` and `angle_scale` must give finite frequencies, got {base} and {scale}."
        )


def _exponents(width: int, spacing: Spacing) -> tuple[int, int, int]:
    """Numerator, denominator and number of the exponents -i numerator / denominator of the base."""
    half = width // 2
    if spacing == "half":
        return 1, half, half
    if spacing == "endpoint":
        return 1, max(half - 1, 1), half
    return 2, width + width % 2 if spacing == "next_even" else width, (width + 1) // 2


def _sines_and_cosines(
    positions: Real[Tensor, "*positions"], series: Series, angles: Angles, dtype: Any
) -> tuple[Float[Tensor, "*positions n"], Float[Tensor, "*positions n"]]:
    """Of every position times scale * base ** (-i * numerator / denominator), i = 0..count-1."""
    base, numerator, denominator, count, scale = series
    if angles == "exact":
        # A size that varies in a compiled program becomes a constant: turns are prepared before it runs.
        numerator, denominator = operator.index(numerator), operator.index(denominator)
        count = operator.index(count)
        turns = _exact.geometric_turns(base, numerator, denominator, count, scale)
        cos, sin = _exact.cos_sin(positions[..., None], turns)
        return sin, cos
    inv_freq = [scale * base ** (-numerator * i / denominator) for i in range(count)]
    inv_freq = torch.tensor(inv_freq, dtype=dtype, device=positions.device)
    angle = positions[..., None].to(dtype) * inv_freq
    return torch.sin(angle), torch.cos(angle)


def _columns(sin: Tensor, cos: Tensor, layout: str, width: int) -> Tensor:
    """Put the columns in order; what is missing is zero."""
    if layout == "interleaved":
        pairs = cos.shape[-1]
        mixed = torch.stack((sin[..., :pairs], cos), -1).flatten(-2)
        columns = torch.cat((mixed, sin[..., pairs:]), -1)
    else:
        order = (cos, sin) if layout == "half_cos_first" else (sin, cos)
        columns = torch.cat(order, -1)
    missing = width - columns.shape[-1]
    return torch.nn.functional.pad(columns, (0, missing)) if missing else columns


def _scaled(encoding: Tensor, amplitude: Any) -> Tensor:
    if not is_array(amplitude) and amplitude == 1:
        return encoding
    return encoding * torch.as_tensor(
        amplitude, dtype=encoding.dtype, device=encoding.device
    )
