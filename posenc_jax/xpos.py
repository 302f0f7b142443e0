"""xPos: rotary position embedding whose scores also fade with distance, each pair at its own rate.

    scale[m, i] = zeta[i] ** ((m - center) / scale_base),    zeta[i] = (2 i + 0.4 d) / (1.4 d)

Queries are multiplied by the scale and keys divided by it, together with the rotation:

    query = apply_rope(query, cos * scale, sin * scale)
    key = apply_rope(key, cos / scale, sin / scale)

so pair i of a query at m and a key at n meet in a product that carries zeta[i] ** ((m - n) / scale_base), which depends
on the distance alone. Every zeta is below 1: scores fade with distance where keys come before their queries, and grow
where they come after, so xPos is for causal attention.

    d  rotary_dim        n  rotated pairs, d / 2

Source: Sun et al., "A Length-Extrapolatable Transformer", 2022, arXiv:2212.10554.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ._checks import (
    as_integers,
    as_positions,
    check_positive,
    check_size,
    check_table_dtype,
    is_size,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["xpos_scale"]


def xpos_scale(
    positions: int | Int[Array, "*positions"],
    rotary_dim: int,
    *,
    scale_base: float = 512.0,
    center: int | Int[Array, ""] = 0,
    dtype: Any = jnp.float32,
) -> Float[Array, "*positions n"]:
    """Tabulate the factor of every pair, one column per pair: cos and sin times it for queries, divided by it for keys.

        scale[m, i] = exp((m - center) * rate[i]),    rate[i] = ln(zeta[i]) / scale_base

    The first pair has the smallest zeta, 2 / 7 whatever the width, so its scale or the inverse is the largest number,
    3.5 ** (abs(m - center) / scale_base). float32 has room for it, and for its products with small numbers, up to
    2 ** 102, that is 56.4 scale_base: 28,895 tokens from the center with the default. From 2 ** 126 on, 69.7 scale_base
    or 35,694 tokens, a scale or its inverse runs to 0 or inf, and scores to NaN. Queries and keys in float16 have room
    up to 2 ** 14, 3,966 tokens. A center in the middle of the longest sequence doubles the length that fits.

    Args:
        positions: Token positions: an int n for 0..n-1, or an array of integers of any shape, less than 2 ** 31 from
            the center.
        rotary_dim: Channels that rotate, even: `RopeConfig.rotary_dim`.
        scale_base: Distance, in tokens, at which pair i has faded to zeta[i].
        center: The position where the scale is 1, an int or a scalar array of integers, which may be traced. Scores do
            not depend on it if queries and keys share it: keys in a cache keep the one they were rotated with, so it
            must not follow the length. (Others take half the length: flash-attention, rotary-embedding-torch and
            x-transformers rounded down, torchscale up.)
        dtype: float32 or float64, of the arithmetic and of the result.
    Returns:
        [*positions, n] in `dtype`. Distances from the center are exact integers before the product.
    Raises:
        TypeError: if positions or `center` are not integers, `scale_base` not a number, or dtype is neither float.
        ValueError: if `rotary_dim` is odd or below 2, `scale_base` not positive, or `center` not a scalar.
    Source:
        arXiv:2212.10554; the constants 0.4 and 512 as in the authors' torchscale.
    """
    check_table_dtype("dtype", dtype)
    check_positive("scale_base", scale_base)
    check_size("rotary_dim", rotary_dim, at_least=2)
    if rotary_dim % 2:
        raise ValueError(f"`rotary_dim` must be even, got {rotary_dim}.")
    center = _as_center(center)
    positions = as_positions("positions", positions)
    rates = np.array(_rates(rotary_dim, float(scale_base)), dtype)
    distance = (positions - center)[..., None].astype(dtype)
    return jnp.exp(distance * rates)


def _rates(width: int, scale_base: float) -> list[float]:
    """Logarithms of each pair's factor per token, in Python's float64: they are constants of any compiled program."""
    zetas = [(2 * i + 0.4 * width) / (1.4 * width) for i in range(width // 2)]
    return [math.log(zeta) / scale_base for zeta in zetas]


def _as_center(center: Any) -> Any:
    if isinstance(center, int) and is_size(center):
        return as_integers("center", np.array(center))
    if is_size(center):
        return center
    center = as_positions("center", center)
    if center.ndim:
        raise ValueError(f"`center` must be a scalar, got shape {tuple(center.shape)}.")
    return center
