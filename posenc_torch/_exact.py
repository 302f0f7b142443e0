"""Exact angles: frequencies held as turns per token in 64-bit fixed point.

    turns[i] = inv_freq[i] / (2 pi) mod 1, in units of 2 ** -64
    phase    = position * turns mod 1

In integers the product wraps at a whole turn by itself, so the position may be as large as it likes. The nearest
quarter turn is then taken out, still in integers, and cosine and sine are only asked for the small rest, at most
pi / 4. Their errors are those of float32 there, at every position.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float, Int, UInt64

__all__ = ["cos_sin", "turns"]

# Of pi: enough for the turns of the largest float64.
BITS = 1216


def turns(inv_freq: Float[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """Turns per token, modulo one, in units of 2 ** -64, rounded to nearest.

    Args:
        inv_freq: Finite frequencies, radians per token, taken as exactly what their bits say.
    Returns:
        NumPy array [n], uint64.
    """
    two_pi = 2 * _pi()
    units = []
    for frequency in inv_freq.tolist():
        numerator, denominator = frequency.as_integer_ratio()
        divisor = denominator * two_pi
        twice = (numerator << (64 + BITS + 1)) // divisor
        units.append((twice + 1 >> 1) % 2**64)
    return np.array(units, np.uint64)


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


def phase(
    positions: Int[Tensor, "*positions"], turns: UInt64[np.ndarray, " n"]
) -> Int[Tensor, "*positions n"]:
    """Where in its turn each pair is, in units of 2 ** -32 turns: the high half of the wrapped product."""
    high, low = (
        torch.tensor(half.astype(np.int64), device=positions.device)
        for half in (turns >> np.uint64(32), turns & np.uint64(0xFFFFFFFF))
    )
    positions = positions[..., None]
    return (positions * high + (positions * low >> 32)) & 0xFFFFFFFF


def cos_sin(
    positions: Int[Tensor, "*positions"], turns: UInt64[np.ndarray, " n"]
) -> tuple[Float[Tensor, "*positions n"], Float[Tensor, "*positions n"]]:
    """Cosine and sine of position * turns, float32, for positions that fit int32."""
    phases = phase(positions, turns)
    quarter = phases + 2**29 >> 30
    rest = phases - (quarter << 30)
    angle = rest.to(torch.float32) * (2 * math.pi / 2**32)
    cos, sin = torch.cos(angle), torch.sin(angle)
    odd = quarter & 1 == 1
    cos, sin = torch.where(odd, sin, cos), torch.where(odd, cos, sin)
    # The second and third quarters have negative cosines, the third and fourth negative sines.
    return _negated(cos, quarter + 1), _negated(sin, quarter)


def _negated(x: Tensor, quarter: Tensor) -> Tensor:
    """Minus x in the third and fourth quarters."""
    return torch.where(quarter & 2 == 2, -x, x)
