"""Is this machine set up to compare at all? What is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import torch

__all__ = ["faults"]


def faults() -> Iterator[str]:
    """What would make a right port look wrong, or a wrong one right."""
    with jax.enable_x64(True):
        third = jnp.asarray(1.0) / 3
        if third.dtype != jnp.float64 or abs(float(third) - 1 / 3) > 1e-16:
            yield "JAX has no float64 here: nothing can be told from rounding"
    x = np.float32(1) + np.float32(2) ** -12
    square = np.full((8, 8), x, np.float32)
    exact = 8 * float(x) ** 2
    with jax.default_matmul_precision("highest"):
        product = float((jnp.asarray(square) @ jnp.asarray(square))[0, 0])
    if abs(product - exact) > 1e-6 * exact:
        yield "JAX multiplies float32 matrices in fewer bits, even at the highest precision"
    tensor = torch.from_numpy(square)
    if abs(float((tensor @ tensor)[0, 0]) - exact) > 1e-6 * exact:
        yield "PyTorch multiplies float32 matrices in fewer bits"
    if abs(float(jnp.sin(jnp.float32(1e5))) - np.sin(1e5)) > 1e-6:
        yield "JAX's sine of a large angle is wrong"
