"""Exact angles: frequencies held as turns per token in 64-bit fixed point.

    turns[i] = inv_freq[i] / (2 pi) mod 1, in units of 2 ** -64
    phase    = position * turns mod 1

In integers the product wraps at a whole turn by itself, so the position may be as large as it likes. What is left of
it is folded, still in integers, to at most a quarter turn, whose sine is a polynomial in float32:

    -cos(2 pi phase) = sin(pi / 2 t),    t = 4 |phase| - 1,    -1 / 2 <= phase < 1 / 2
    sin(2 pi phase) = -cos(2 pi (phase + 1 / 4))

No library's sine comes into it: the error is the same at every position and on every machine.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ._checks import as_exact_frequencies, is_traced

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Int64

__all__ = ["cos_sin", "geometric_turns", "turns"]

# Of pi: enough for the turns of the largest float64.
BITS = 1216

# In units of 2 ** -32 turns.
QUARTER = 2**30

# sin(pi / 2 t) = t + t y (C0 + y (C1 + y (C2 + y C3))), y = 1 - t ** 2: the minimax fit, nudged so that float32 is off
# by at most 1.74 units of 2 ** -24 for all 2 ** 31 + 1 values that t can have. At t = 0, 1 and -1 it is exact.
C0, C1, C2, C3 = 0.5, 0.06657558, 0.00407093, 0.00014975


# Breaks the graph of a compiled program: as a constant of it, a frequency that changes would stay the first one.
@torch.compiler.disable()
def turns(inv_freq: Float[np.ndarray | Tensor, " n"]) -> Int64[np.ndarray, " n"]:
    """Turns per token, modulo one, in units of 2 ** -64, rounded to nearest.

    Args:
        inv_freq: Radians per token, taken as exactly what their bits say.
    Returns:
        NumPy array [n], from -2 ** 63 to 2 ** 63 - 1.
    Raises:
        TypeError: if `inv_freq` is traced, or neither float32 nor float64.
        ValueError: if `inv_freq` is not finite.
    """
    host = as_exact_frequencies("inv_freq", inv_freq)
    mantissas, exponents = np.frexp(host.astype(np.float64))
    integers = np.ldexp(mantissas, 53).astype(np.int64)
    return _wrapped(zip(integers.tolist(), (53 - exponents).tolist(), strict=True))


# Its arguments are constants of a compiled program, which is compiled again where they change.
@torch.compiler.assume_constant_result
def geometric_turns(
    base: float, numerator: int, denominator: int, count: int, scale: float = 1.0
) -> Int64[np.ndarray, " count"]:
    """Likewise for scale * base ** (-i * numerator / denominator), i = 0..count-1, as the formula has them.

    (Powers in float64 are off by some 5e-16 of their value, which is 1e-6 radians at position 2 ** 31.)
    """
    bits, digits = 192, 60
    with decimal.localcontext(decimal.Context(prec=digits)):
        exponent = decimal.Decimal(-numerator) / denominator
        ratio = int(decimal.Decimal(base) ** exponent * 2**bits)
        powers = [int(decimal.Decimal(scale) * 2**bits)]
    while len(powers) < count:
        powers.append(powers[-1] * ratio >> bits)
    return _wrapped((power, bits) for power in powers[:count])


def _wrapped(radians: Iterable[tuple[int, int]]) -> Int64[np.ndarray, " n"]:
    """The turns of numerator / 2 ** bits radians, modulo one."""
    twice = [n * PER_RADIAN >> BITS + bits - 65 for n, bits in radians]
    units = [(units + 1 >> 1) % 2**64 for units in twice]
    return np.array(units, np.uint64).astype(np.int64)


def _pi() -> int:
    """Pi in units of 2 ** -BITS, by Machin: pi / 4 = 4 arctan(1/5) - arctan(1/239)."""
    guard = 32
    return 4 * (4 * _arctan(5, BITS + guard) - _arctan(239, BITS + guard)) >> guard


def _arctan(inverse: int, bits: int) -> int:
    """Arctan(1 / inverse) in units of 2 ** -bits, by its alternating series."""
    power = (1 << bits) // inverse
    total, n = power, 1
    while power:
        power //= -inverse * inverse
        n += 2
        total += power // n
    return total


# One turn, in units of 2 ** -BITS, over two pi.
PER_RADIAN = (1 << 2 * BITS) // (2 * _pi())


def _words(turns: Int64[np.ndarray, " n"]) -> Int[np.ndarray, "4 n"]:
    """The turns of one token and of 2 ** 16 tokens, each to 46 bits: its upper 32 and the next 14."""
    words = []
    for constant in (turns, turns << 16):
        rounded = constant + 2**17 >> 18
        words += [rounded >> 14, rounded & 2**14 - 1]
    return np.array(words, np.int32)


def phase(
    positions: Int[Tensor, "*positions n"], turns: Int64[np.ndarray, " n"]
) -> Int[Tensor, "*positions n"]:
    """Where in its turn each pair is, in units of 2 ** -32 turns, off by at most 1.1 * 2 ** -30 turns.

    position = 2 ** 16 far + near, so that the products with the lower words fit int32; the others may wrap.
    """
    words = torch.from_numpy(_words(turns)).to(positions.device)
    upper, lower, far_upper, far_lower = words.unbind()
    positions = positions.to(torch.int32)
    far, near = positions >> 16, positions & 0xFFFF
    phases = near * lower
    phases.addcmul_(far, far_lower)
    phases >>= 14
    return phases.addcmul_(near, upper).addcmul_(far, far_upper)


def cos_sin(
    positions: Int[Tensor, "*positions n"],
    turns: Int64[np.ndarray, " n"],
    scale: float = 1.0,
) -> tuple[Float[Tensor, "*positions n"], Float[Tensor, "*positions n"]]:
    """Cosine and sine of position * turns, times `scale`, float32, for positions that fit int32.

    The last axis of the positions may be 1. A position that cannot be seen and does not fit gives NaN.
    """
    phases = phase(positions, turns)
    # On a CPU most of the time goes to fresh memory: two arrays serve both tables, and the rest is done in place.
    scratch = [torch.empty_like(phases, dtype=torch.float32) for _ in range(2)]
    sin = _minus_cosine(phases + QUARTER, scale, *scratch)
    cos = _minus_cosine(phases, -scale, *scratch)
    if is_traced(positions):
        outside = positions != positions.to(torch.int32)
        cos, sin = (table.masked_fill(outside, torch.nan) for table in (cos, sin))
    return cos, sin


def _minus_cosine(phases: Tensor, scale: float, square: Tensor, tail: Tensor) -> Tensor:
    """Minus the cosine of phases, times `scale`; overwrites the other arguments."""
    # In units of 2 ** -30, until the end; `square` is -y.
    t = phases.abs_().sub_(QUARTER).to(torch.float32)
    square.fill_(-1).addcmul_(t, t, value=2.0**-60)
    tail.fill_(C1).add_(square, alpha=-C2).addcmul_(square, square, value=C3)
    tail.mul_(square).sub_(C0).mul_(square)
    return t.addcmul_(t, tail).mul_(2.0**-30 * scale)
