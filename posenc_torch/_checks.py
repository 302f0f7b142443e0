"""Argument checks; `posenc_jax._checks` raises the same sentences for the same bad input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

# Of the normal numbers that float32 has; smaller ones are flushed to zero on some machines.
SMALLEST, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127


def dtype_name(dtype: Any) -> str:
    if isinstance(dtype, torch.dtype):
        return str(dtype).removeprefix("torch.")
    return dtype.name if isinstance(dtype, np.dtype) else repr(dtype)


def describe(value: Any) -> str:
    """What came: the dtype of an array, the type of anything else."""
    return dtype_name(value.dtype) if is_array(value) else type(value).__name__


def is_array(value: Any) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor)


def is_traced(value: Any) -> bool:
    """Whether values cannot be seen: in a program being compiled, under vmap, on the meta device."""
    if torch.compiler.is_compiling():
        return True
    try:
        value.reshape(-1)[:1].tolist()
    except RuntimeError:
        return True
    return False


def compute_dtype(*arrays: Tensor) -> torch.dtype:
    """Arithmetic is done in float32, or in float64 where any array is."""
    doubles = any(array.dtype == torch.float64 for array in arrays)
    return torch.float64 if doubles else torch.float32


def is_size(value: Any) -> TypeGuard[int]:
    """An int, or the size of a dynamic axis in a program for export."""
    if isinstance(value, bool):
        return False
    return isinstance(value, (int, torch.SymInt))


def check_size(name: str, value: Any, *, at_least: int = 1) -> None:
    if not is_size(value):
        raise TypeError(f"`{name}` must be an int, got {describe(value)}.")
    if value < at_least:
        raise ValueError(f"`{name}` must be at least {at_least}, got {value}.")


def check_length(name: str, value: Any, *, at_least: int = 1) -> None:
    """A number of tokens, whose last position both frameworks can hold."""
    check_size(name, value, at_least=at_least)
    if isinstance(value, int) and value >= 2**31:
        raise ValueError(f"`{name}` must fit int32, got {value}.")


def check_position(name: str, value: Any) -> None:
    check_size(name, value, at_least=-(2**31))
    if isinstance(value, int) and value >= 2**31:
        raise ValueError(f"`{name}` must fit int32, got {value}.")


def check_positive(name: str, value: Any) -> None:
    number = isinstance(value, (int, float, np.integer, np.floating))
    number = number and not isinstance(value, bool)
    if not number:
        raise TypeError(f"`{name}` must be a number, got {describe(value)}.")
    # Python's ints may be larger than every float.
    huge = isinstance(value, int) and value >= 2**1023
    if huge or not 0 < value < math.inf:
        raise ValueError(f"`{name}` must be positive and finite, got {value}.")


def check_factor(name: str, value: Any) -> None:
    """A positive number, or a scalar array, whose value may be traced or learnt and is not looked at."""
    if not (is_array(value) and value.ndim == 0 and value.is_floating_point()):
        check_positive(name, value)


def as_factor(name: str, value: Any) -> float | Tensor:
    """Of float32 numbers, so that it must be one."""
    check_factor(name, value)
    if is_array(value) and value.ndim == 0:
        return value
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(f"`{name}` must be a normal float32 number, got {value}.")
    return float(value)


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be a Python bool, got {describe(value)}.")


def check_choice(name: str, value: Any, choices: tuple[str | None, ...]) -> None:
    if not isinstance(value, str | None) or value not in choices:
        allowed = ", ".join(map(repr, choices))
        raise ValueError(f"`{name}` must be one of {allowed}, got {value!r}.")


def check_table_dtype(name: str, dtype: Any) -> None:
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"`{name}` must be float32 or float64, got {dtype_name(dtype)}."
        )


def host_dtype(name: str, dtype: Any) -> str:
    """The name of a dtype that NumPy computes in, given by name or as a torch or NumPy dtype."""
    for known in ("float32", "float64"):
        if dtype in (known, getattr(torch, known)) or dtype is getattr(np, known):
            return known
    raise TypeError(f"`{name}` must be float32 or float64, got {dtype_name(dtype)}.")


def as_floating(name: str, x: Any) -> Tensor:
    if not (is_array(x) and x.is_floating_point()):
        raise TypeError(f"`{name}` must be a floating-point array, got {describe(x)}.")
    return x


def as_boolean(name: str, x: Any) -> Tensor:
    if not (is_array(x) and x.dtype == torch.bool):
        raise TypeError(f"`{name}` must be a boolean array, got {describe(x)}.")
    return x


def check_rank(name: str, x: Tensor, axes: str, *, at_least: int) -> None:
    if x.ndim < at_least:
        raise ValueError(
            f"`{name}` must be {axes}, at least {at_least} axes, "
            f"got shape {tuple(x.shape)}."
        )


def check_fits(
    name: str, shape: Sequence[int], target: Sequence[int], *, exact: int
) -> None:
    """The last `exact` axes must equal the target's; axes before them may also be 1 or absent."""
    shape, target = tuple(shape), tuple(target)
    aligned = target[len(target) - len(shape) :]
    fits = exact <= len(shape) <= len(target) and all(
        size == wanted or (size == 1 and axis < len(shape) - exact)
        for axis, (size, wanted) in enumerate(zip(shape, aligned, strict=True))
    )
    if not fits:
        loose = len(target) - exact
        rule = f" (the first {loose} axes may be 1 or absent)" if loose else ""
        raise ValueError(f"`{name}` must have shape {target}{rule}, got {shape}.")


def as_table(name: str, table: Any, device: torch.device) -> Tensor:
    """Host constants arrive as NumPy arrays, a caller's own values as tensors."""
    if isinstance(table, np.ndarray):
        # A copy, since torch cannot share read-only or reversed memory.
        table = torch.from_numpy(table.copy()).to(device)
    if not (is_array(table) and table.dtype in (torch.float32, torch.float64)):
        raise TypeError(
            f"`{name}` must be a float32 or float64 array, got {describe(table)}."
        )
    return table


def as_integers(name: str, x: Any) -> Tensor:
    """Signed integers, widened so that differences are exact."""
    signed = (torch.int8, torch.int16, torch.int32, torch.int64)
    if not (is_array(x) and x.dtype in signed):
        raise TypeError(
            f"`{name}` must be an array of signed integers, got {describe(x)}."
        )
    return x.to(torch.int64)


def as_positions(
    name: str,
    positions: Any,
    *,
    real: bool = False,
    device: torch.device | None = None,
) -> Tensor:
    """An int n becomes 0..n-1, anything else must be an array of signed integers.

    `real` also admits float32 and float64 positions; half precision cannot tell 256 from 257 and is never admitted.
    """
    if is_size(positions):
        check_size(name, positions, at_least=0)
        return torch.arange(positions, device=device)
    if is_array(positions) and positions.is_floating_point() and real:
        return as_table(name, positions, positions.device)
    if not is_array(positions) or positions.is_floating_point():
        raise TypeError(
            f"`{name}` must be an int or an array of signed integers, "
            f"got {describe(positions)}."
        )
    return as_integers(name, positions)


def as_length(name: str, length: Any) -> Any:
    """None, an int, or a scalar array of integers, whose value may be traced."""
    if length is None:
        return None
    if is_array(length):
        if length.ndim:
            raise ValueError(
                f"`{name}` must be a scalar, got shape {tuple(length.shape)}."
            )
        return as_integers(name, length)
    check_length(name, length, at_least=0)
    # What torch.compile shows as an int may be a size that varies.
    known = isinstance(length, int) and not torch.compiler.is_compiling()
    return length if known else torch.scalar_tensor(length, dtype=torch.int64)


def as_sizes(name: str, sizes: Any) -> tuple[int, ...]:
    """An int, or one for each axis of a grid."""
    if not isinstance(sizes, (list, tuple)):
        check_size(name, sizes)
        return (sizes,)
    for i, size in enumerate(sizes):
        check_size(f"{name}[{i}]", size)
    if not sizes:
        raise ValueError(f"`{name}` must have an int for each axis, got {sizes}.")
    return tuple(sizes)


def as_axes(name: str, axes: Any) -> tuple[int, ...]:
    if not isinstance(axes, (list, tuple)):
        raise TypeError(f"`{name}` must be a tuple of ints, got {describe(axes)}.")
    for i, axis in enumerate(axes):
        check_size(f"{name}[{i}]", axis, at_least=0)
    if not axes or sorted(set(axes)) != list(range(len(set(axes)))):
        raise ValueError(f"`{name}` must name every axis from 0 on, got {axes}.")
    return tuple(axes)


def as_coordinates(
    name: str, positions: Any, axes: tuple[int, ...], *, real: bool, of: str = "axes"
) -> Tensor:
    """An array [..., axes] of coordinates, one for each of the axes, which come from the argument `of`."""
    if is_size(positions):
        raise TypeError(
            f"`{name}` must be an array of coordinates where there are `{of}`, got int."
        )
    positions = as_positions(name, positions, real=real)
    count = max(axes) + 1
    if positions.ndim < 1 or positions.shape[-1] != count:
        raise ValueError(
            f"`{name}` must be [..., {count}], one coordinate for each of `{of}`, "
            f"got shape {tuple(positions.shape)}."
        )
    return positions


def check_sections(name: str, sections: Any, order: str) -> None:
    """How many pairs each axis of M-RoPE has."""
    if not isinstance(sections, (list, tuple)):
        raise TypeError(f"`{name}` must be a tuple of ints, got {describe(sections)}.")
    for i, section in enumerate(sections):
        check_size(f"{name}[{i}]", section)
    if not sections:
        raise ValueError(f"`{name}` must have an int for each axis, got {sections}.")
    if order != "chunked" and len(sections) != 3:
        raise ValueError(
            f"`{name}` must be 3 ints for the order {order!r}, got {len(sections)}."
        )
    if order == "ernie" and sections[0] != sections[1]:
        raise ValueError(
            f"`{name}` must be as many of height as of width for the order 'ernie', "
            f"got {sections[0]} and {sections[1]}."
        )


def as_exact_frequencies(name: str, table: Any) -> np.ndarray:
    """Finite host values: exact angles are prepared in integers, before any program runs."""
    as_table(name, table, torch.device("cpu"))
    if is_array(table) and table.requires_grad:
        raise TypeError(
            f"`{name}` must be a constant for exact angles, got one that requires a "
            f"gradient."
        )
    host = np.asarray(table.detach().cpu() if is_array(table) else table)
    if not np.isfinite(host).all():
        raise ValueError(f"`{name}` must be finite for exact angles, got {host}.")
    return host


def check_exact(positions: Tensor, dtype: Any) -> None:
    check_int32("positions", positions)
    if dtype_name(dtype) != "float32":
        raise ValueError(
            f"`dtype` must be float32 for exact angles, got {dtype_name(dtype)}."
        )


def check_int32(name: str, positions: Tensor) -> None:
    if is_traced(positions) or positions.numel() == 0:
        return
    low, high = map(int, torch.aminmax(positions))
    if low < -(2**31) or high >= 2**31:
        raise ValueError(
            f"`{name}` must fit int32 for exact angles, got {low} to {high}."
        )
