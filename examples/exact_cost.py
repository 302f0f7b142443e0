"""What do exact angles cost, beside float32 ones?

    python examples/exact_cost.py

Tables of 64 pairs for 1, 2048 and 131072 positions; the time of `angles="exact"` as a multiple of that of
`angles="float32"`, each the least of many turns taken one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

import posenc_jax
import posenc_torch

LENGTHS = (1, 2048, 131_072)
ANGLES = ("float32", "exact")
TURNS = 60


def jitted(angles: Any) -> Callable[[Any], Any]:
    """JAX, compiled."""
    return jax.jit(lambda at: posenc_jax.RopeConfig(128).cos_sin(at, angles=angles))


def eager(angles: Any) -> Callable[[Any], Any]:
    """PyTorch, operation by operation."""
    config = posenc_torch.RopeConfig(128)
    inv_freq = config.inv_freq(dtype="float64" if angles == "exact" else "float32")
    return lambda at: posenc_torch.rope_cos_sin(at, inv_freq, angles=angles)


def ratio(make: Callable[[Any], Callable[[Any], Any]], at: Any) -> float:
    """The least time of exact tables over the least of float32 ones, by turns."""
    calls = {angles: make(angles) for angles in ANGLES}
    least = dict.fromkeys(ANGLES, float("inf"))
    for turn in range(TURNS):
        for angles, call in calls.items():
            began = time.perf_counter()
            jax.block_until_ready(call(at))
            if turn > 2:  # the first ones compile
                least[angles] = min(least[angles], time.perf_counter() - began)
    return least["exact"] / least["float32"]


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("| exact over float32, on a CPU | " + " | ".join(map(str, LENGTHS)) + " |")
    print("|---" * (1 + len(LENGTHS)) + "|")
    jax_ratios = (ratio(jitted, jnp.arange(n)) for n in LENGTHS)
    print("| JAX, jitted | " + " | ".join(f"{r:.2f}" for r in jax_ratios) + " |")
    torch_ratios = (ratio(eager, torch.arange(n)) for n in LENGTHS)
    print("| PyTorch, eager | " + " | ".join(f"{r:.2f}" for r in torch_ratios) + " |")


if __name__ == "__main__":
    main()
