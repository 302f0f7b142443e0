"""What a report must say of where it was made. A framework that is not installed is not needed."""

from __future__ import annotations

import os
import platform
from importlib.util import find_spec

import numpy as np

__all__ = ["environment"]


def environment() -> dict[str, str]:
    """Versions, devices and settings that decide how numbers are rounded."""
    found = {
        "Python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "NumPy": np.__version__,
    }
    found |= _jax() if find_spec("jax") else {"JAX": "not installed"}
    found |= _torch() if find_spec("torch") else {"PyTorch": "not installed"}
    return {**found, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "none")}


def _jax() -> dict[str, str]:
    import jax
    import jax.numpy as jnp

    device = jax.devices()[0]
    flushes = float(jnp.float32(1e-40) * 1) == 0
    return {
        "JAX": f"{jax.__version__} on {device.platform} ({device.device_kind})",
        "JAX, matrix products": str(
            jax.config.jax_default_matmul_precision or "default"
        ),
        "JAX, x64": "on" if jax.config.jax_enable_x64 else "off (on in float64 runs)",
        "JAX, subnormal numbers": "flushed to zero" if flushes else "kept",
    }


def _torch() -> dict[str, str]:
    import torch

    keeps = float(torch.tensor(1e-40) * 1) != 0
    allowed = torch.backends.cudnn.allow_tf32
    return {
        "PyTorch": f"{torch.__version__} on {'cuda' if torch.cuda.is_available() else 'cpu'}",
        "PyTorch, matrix products": torch.get_float32_matmul_precision(),
        "PyTorch, TF32 of cuDNN": "allowed" if allowed else "off",
        "PyTorch, subnormal numbers": "kept" if keeps else "flushed to zero",
    }
