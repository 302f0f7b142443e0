"""Inputs are drawn once, in NumPy, and given to both sides.

Every profile has the same shape, so one compiled program serves all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["FAR", "PROFILES", "positions"]

# The last position of a 128k context.
FAR = 131_071


def positions(
    rng: np.random.Generator, profile: str, batch: int, seq: int
) -> dict[str, np.ndarray]:
    """Draw one position profile.

    Returns:
        `positions` and `segment_ids`, both int32 [batch, seq]. Padding is a segment of its own, -1.
    """
    where, segments = PROFILES[profile](rng, batch, seq)
    shape = (batch, seq)
    return {
        "positions": np.broadcast_to(where, shape).astype(np.int32),
        "segment_ids": np.broadcast_to(segments, shape).astype(np.int32),
    }


Draw = tuple[np.ndarray, np.ndarray]


def _dense(rng: np.random.Generator, batch: int, seq: int) -> Draw:
    return np.arange(seq), np.zeros(seq)


def _sparse(rng: np.random.Generator, batch: int, seq: int) -> Draw:
    """Anywhere up to 131071, out of order; position 0, both sides of 256 and the last one always among them."""
    drawn = rng.integers(0, FAR + 1, (batch, seq))
    drawn[:, :4] = [FAR, 255, 257, 0]
    return rng.permuted(drawn, axis=1), np.zeros(seq)


def _packed(rng: np.random.Generator, batch: int, seq: int) -> Draw:
    """Documents of two lengths in one row, positions starting anew in each."""
    cut = rng.integers(2, seq - 1, (batch, 1))
    index = np.arange(seq)
    second = index >= cut
    return np.where(second, index - cut, index), second


def _left_pad(rng: np.random.Generator, batch: int, seq: int) -> Draw:
    """Another number of pads in front of every row."""
    pads = rng.permutation(np.arange(1, batch + 1))[:, None]
    index = np.arange(seq) - pads
    return np.maximum(index, 0), np.where(index < 0, -1, 0)


def _decode(rng: np.random.Generator, batch: int, seq: int) -> Draw:
    """A later part of a sequence, another one in every row."""
    return rng.integers(4_000, 100_000, (batch, 1)) + np.arange(seq), np.zeros(seq)


def _boundary(rng: np.random.Generator, batch: int, seq: int) -> Draw:
    """Across a power of two, where an original context length ends and low precision changes step."""
    length = rng.choice([2_048, 4_096, 32_768], (batch, 1))
    return length + np.arange(seq) - seq // 2, np.zeros(seq)


PROFILES: dict[str, Callable[[np.random.Generator, int, int], Draw]] = {
    "dense": _dense,
    "sparse": _sparse,
    "packed": _packed,
    "left_pad": _left_pad,
    "decode": _decode,
    "boundary": _boundary,
}
