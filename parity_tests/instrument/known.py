"""The right answers of known schemes, for whoever has no oracle of their own; made of `oracles.py`."""

from __future__ import annotations

import numpy as np

from .bounded import exact
from .oracles import alibi_bias, alibi_slopes, rope_cos_sin, rotate, sinusoid

__all__ = ["alibi", "rope", "sinusoidal"]


def rope(
    x: np.ndarray,
    positions: np.ndarray,
    *,
    base: float = 10_000.0,
    layout: str = "half",
    rotary_dim: int | None = None,
    placement: str = "leading",
) -> np.ndarray:
    """Queries or keys, rotated (Su et al., 2021, eq. 34).

    Args:
        x: One axis before the last has tokens: that which has as many as `positions` and no other has.
        positions: [tokens] or [batch, tokens].
        base: Of the frequencies base^(-2i / rotary_dim).
        layout: "half" or "interleaved".
        rotary_dim: How many channels turn; None is all.
        placement: Of these, "leading" or "trailing".
    """
    batch = positions.ndim - 1
    axes = [
        axis
        for axis in range(batch, x.ndim - 1)
        if x.shape[axis] == positions.shape[-1]
    ]
    if batch not in (0, 1) or len(axes) != 1:
        raise ValueError(
            f"`x` must have one axis of tokens, and no other of that size, for positions {positions.shape}; "
            f"got {x.shape}."
        )
    tokens_first = np.moveaxis(x, axes[0], batch)
    heads = tokens_first.reshape(*tokens_first.shape[: batch + 1], -1, x.shape[-1])
    cos, sin = rope_cos_sin(positions, rotary_dim or x.shape[-1], base)
    rotated, _ = rotate(exact(heads), cos, sin, layout, placement)
    return np.moveaxis(rotated.value.reshape(tokens_first.shape), batch, axes[0])


def sinusoidal(
    positions: np.ndarray,
    *,
    dim: int,
    base: float = 10_000.0,
    layout: str = "interleaved",
    spacing: str = "dim",
) -> np.ndarray:
    """The encoding of positions, [*positions, dim] (Vaswani et al., 2017, section 3.5)."""
    return sinusoid(positions, dim, base, layout, spacing).value


def alibi(
    query_positions: np.ndarray,
    key_positions: np.ndarray,
    *,
    num_heads: int,
    kind: str = "symmetric",
) -> np.ndarray:
    """The bias, [*batch, heads, queries, keys] (Press et al., 2022, section 3)."""
    slopes = exact(alibi_slopes(num_heads))
    return alibi_bias(query_positions, key_positions, slopes, kind)[0].value
