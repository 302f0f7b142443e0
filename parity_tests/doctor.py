"""Is this machine set up to compare at all? What decides it, and what is wrong."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import torch

__all__ = ["environment", "faults"]


def environment() -> dict[str, str]:
    """What a report must say of where it was made."""
    device = jax.devices()[0]
    return {
        "Python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "NumPy": np.__version__,
        "JAX": f"{jax.__version__} on {device.platform} ({device.device_kind})",
        "JAX, matrix products": str(
            jax.config.jax_default_matmul_precision or "default"
        ),
        "JAX, x64": "on" if jax.config.jax_enable_x64 else "off (on in float64 runs)",
        "JAX, subnormal numbers": "flushed to zero" if _jax_flushes() else "kept",
        "PyTorch": f"{torch.__version__} on {'cuda' if torch.cuda.is_available() else 'cpu'}",
        "PyTorch, matrix products": torch.get_float32_matmul_precision(),
        "PyTorch, TF32 of cuDNN": "allowed"
        if torch.backends.cudnn.allow_tf32
        else "off",
        "PyTorch, subnormal numbers": "kept" if _torch_keeps() else "flushed to zero",
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", "none"),
    }


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


def _jax_flushes() -> bool:
    return float(jnp.float32(1e-40) * 1) == 0


def _torch_keeps() -> bool:
    return float(torch.tensor(1e-40) * 1) != 0
