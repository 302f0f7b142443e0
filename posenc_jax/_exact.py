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

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

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
    positions: Int[Array, "*positions"], turns: UInt64[np.ndarray, " n"]
) -> Int[Array, "*positions n"]:
    """Where in its turn each pair is, in units of 2 ** -32 turns: the high half of the wrapped product."""
    high, low = (
        jnp.asarray(half.astype(np.uint32))
        for half in (turns >> np.uint64(32), turns & np.uint64(0xFFFFFFFF))
    )
    tokens = positions.astype(jnp.int32)[..., None]
    unsigned = tokens.astype(jnp.uint32)
    # A negative position is 2 ** 32 too large as an unsigned one, which adds `low` to the high half.
    excess = low & (tokens >> 31).astype(jnp.uint32)
    return unsigned * high + _high_half(unsigned, low) - excess


def _high_half(a: Array, b: Array) -> Array:
    """a * b >> 32 of unsigned 32-bit integers, by 16-bit parts, since without x64 there is nothing wider."""
    bottom = jnp.uint32(0xFFFF)
    a_low, a_high, b_low, b_high = a & bottom, a >> 16, b & bottom, b >> 16
    cross = a_low * b_high
    carry = a_high * b_low + (a_low * b_low >> 16) + (cross & bottom)
    return a_high * b_high + (cross >> 16) + (carry >> 16)


def cos_sin(
    positions: Int[Array, "*positions"], turns: UInt64[np.ndarray, " n"]
) -> tuple[Float[Array, "*positions n"], Float[Array, "*positions n"]]:
    """Cosine and sine of position * turns, float32, for positions that fit int32."""
    phases = phase(positions, turns)
    quarter = phases + jnp.uint32(2**29) >> 30
    rest = (phases - (quarter << 30)).astype(jnp.int32)
    angle = rest.astype(jnp.float32) * jnp.float32(2 * math.pi / 2**32)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    odd = quarter & 1 == 1
    cos, sin = jnp.where(odd, sin, cos), jnp.where(odd, cos, sin)
    # The second and third quarters have negative cosines, the third and fourth negative sines.
    return _negated(cos, quarter + 1), _negated(sin, quarter)


def _negated(x: Array, quarter: Array) -> Array:
    """Minus x in the third and fourth quarters, by the sign bit."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) ^ ((quarter & 2) << 30)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
