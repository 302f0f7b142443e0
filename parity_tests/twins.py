"""The two packages under one calling convention, for tests of a property that must hold in both.

Arrays go in and come out as NumPy, in JAX's order: [batch, seq, heads, head_dim].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import posenc_jax
import posenc_torch

__all__ = ["TWINS", "Twin"]


@dataclass(frozen=True)
class Twin:
    """One package, its array constructor, and its float64."""

    name: str
    package: ModuleType
    array: Callable[[np.ndarray], Any]
    float64: Any
    heads_last: bool

    def __str__(self) -> str:
        return self.name

    def heads(self, x: Any) -> Any:
        """Between [batch, seq, heads, head_dim] and the package's own order; its own inverse."""
        return x if self.heads_last else x.swapaxes(-3, -2)

    def call(self, function: str, *arrays: Any, **options: Any) -> Any:
        """Call a public function on NumPy arrays without a heads axis."""
        with jax.enable_x64(True):
            given = [self._given(array) for array in arrays]
            named = {name: self._given(option) for name, option in options.items()}
            return _taken(getattr(self.package, function)(*given, **named))

    def call_heads(
        self, function: str, *arrays: Any, count: int, **options: Any
    ) -> Any:
        """Likewise where the first `count` arrays and the results have a heads axis."""
        moved = [self.heads(array) for array in arrays[:count]]
        results = self.call(function, *moved, *arrays[count:], **options)
        if isinstance(results, tuple):
            return tuple(self.heads(result) for result in results)
        return self.heads(results)

    def _given(self, value: Any) -> Any:
        return self.array(value) if isinstance(value, np.ndarray) else value


def _taken(result: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(_taken(part) for part in result)
    return np.asarray(result)


TWINS = (
    Twin("jax", posenc_jax, jnp.asarray, jnp.float64, True),
    Twin(
        "torch",
        posenc_torch,
        lambda a: torch.from_numpy(np.ascontiguousarray(a)),
        torch.float64,
        False,
    ),
)
