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

import jax.numpy as jnp
import numpy as np
from jax import Array

from ._checks import as_exact_frequencies

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


def turns(inv_freq: Float[np.ndarray | Array, " n"]) -> Int64[np.ndarray, " n"]:
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
    positions: Int[Array, "*positions n"], turns: Int64[np.ndarray, " n"]
) -> Int[Array, "*positions n"]:
    """Where in its turn each pair is, in units of 2 ** -32 turns, off by at most 1.1 * 2 ** -30 turns.

    position = 2 ** 16 far + near, so that the products with the lower words fit int32; the others may wrap.
    """
    upper, lower, far_upper, far_lower = _words(turns)
    positions = positions.astype(jnp.int32)
    far, near = positions >> 16, positions & 0xFFFF
    carry = near * lower + far * far_lower >> 14
    return near * upper + far * far_upper + carry


def cos_sin(
    positions: Int[Array, "*positions n"],
    turns: Int64[np.ndarray, " n"],
    scale: float | Array = 1.0,
) -> tuple[Float[Array, "*positions n"], Float[Array, "*positions n"]]:
    """Cosine and sine of position * turns, times `scale`, float32, for positions that fit int32.

    The last axis of the positions may be 1. A position that cannot be seen and does not fit gives NaN.
    """
    if positions.dtype == jnp.int64:
        scale = jnp.where(positions == positions.astype(jnp.int32), scale, jnp.nan)
        scale = scale.astype(jnp.float32)
    phases = phase(positions, turns)
    return _minus_cosine(phases, -scale), _minus_cosine(phases + QUARTER, scale)


def _minus_cosine(phases: Array, scale: float | Array) -> Array:
    """Minus the cosine of phases, times `scale`."""
    t = (jnp.abs(phases) - QUARTER).astype(jnp.float32) * 2.0**-30
    y = 1 - t * t
    return (t + t * (y * (C0 + y * (C1 + y * (C2 + y * C3))))) * scale
