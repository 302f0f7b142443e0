"""What to draw an input from, by the names or sizes of its axes: `normal("B S 4 D")`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from .inputs import PROFILES

__all__ = ["Draw", "booleans", "normal", "positions", "tokens"]


@dataclass(frozen=True)
class Draw:
    """Axes, and a function of a generator and a shape."""

    axes: str
    make: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

    def array(
        self, rng: np.random.Generator, sizes: Mapping[str, int] | None = None
    ) -> np.ndarray:
        """Of these sizes; an axis that is a number is of that size.

        Raises:
            ValueError: if an axis has no size.
        """
        known = sizes or {}
        for axis in self.axes.split():
            if not axis.isdigit() and axis not in known:
                raise ValueError(
                    f"axis {axis!r} of {self.axes!r} must be a number or one of {', '.join(known) or 'no names'}."
                )
        shape = tuple(int(known.get(axis, axis)) for axis in self.axes.split())
        return self.make(rng, shape)


def normal(axes: str) -> Draw:
    """Normal numbers."""
    return Draw(axes, lambda rng, shape: rng.normal(size=shape))


def tokens(axes: str, below: int) -> Draw:
    """Whole numbers from 0, less than `below`."""
    return Draw(axes, lambda rng, shape: rng.integers(0, below, shape, np.int32))


def booleans(axes: str) -> Draw:
    """True or false, of which the first along the last axis is true, so that a mask leaves something."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        drawn = rng.random(shape) < 0.5
        drawn[..., :1] = True
        return drawn

    return Draw(axes, make)


def positions(axes: str, profile: str = "dense") -> Draw:
    """Positions along the last axis.

    Args:
        axes: The last one is of tokens.
        profile: "dense" is 0, 1, 2, ...; "sparse" up to 131 071, "packed" two documents, "left_pad", "decode" a later
            part of a sequence, "boundary" across a power of two.
    """
    if profile not in PROFILES:
        raise ValueError(
            f"`profile` must be one of {', '.join(PROFILES)}, got {profile!r}."
        )

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        if not shape:
            raise ValueError("`axes` of positions must have one of tokens, got none.")
        rows = (math.prod(shape[:-1]), shape[-1])
        drawn, _ = PROFILES[profile](rng, *rows)
        return np.broadcast_to(drawn, rows).astype(np.int32).reshape(shape)

    return Draw(axes, make)
