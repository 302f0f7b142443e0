"""A pair: one function in JAX, the same in PyTorch, the truth about both, and inputs to try them on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .bounded import Bounded, exact
from .dtypes import DTYPES, Arrays, Function, unit_roundoff
from .in_jax import run_jax
from .in_torch import run_torch
from .inputs import PROFILES
from .verdicts import Report, judge

__all__ = ["Pair", "run"]

Vjp = Callable[[dict[str, Bounded]], dict[str, Bounded]]


@dataclass(frozen=True)
class Pair:
    """What to compare.

    Args:
        name: For reports and test ids.
        jax, torch: Take the inputs by keyword and return a dict of outputs, in JAX's array order.
        oracle: Takes the inputs as float64 NumPy arrays and returns the outputs and their vector-Jacobian product,
            which takes a cotangent per output and returns a gradient per name in `wrt`.
        draw: Makes inputs from a generator and a position profile; floating ones in float64.
        wrt: Inputs to differentiate.
        float32: Inputs and outputs that stay float32 while the others are half precision (tables, slopes).
        casts: True where a half-precision run rounds intermediate results too. The oracle then also takes `coarse`,
            how many times the unit roundoff of the arithmetic that of the inputs is, and says where they are rounded.
        profiles: The position profiles to try.
    """

    name: str
    jax: Function
    torch: Function
    oracle: Callable[..., tuple[dict[str, Bounded], Vjp]]
    draw: Callable[[np.random.Generator, str], dict[str, np.ndarray]]
    wrt: tuple[str, ...] = ()
    float32: tuple[str, ...] = ()
    casts: bool = False
    profiles: tuple[str, ...] = tuple(PROFILES)

    def dtype(self, name: str, dtype: str) -> np.dtype:
        """In what the input or output `name` is held when the run is in `dtype`."""
        raised = name in self.float32 and dtype in ("bfloat16", "float16")
        return DTYPES["float32" if raised else dtype]


def run(pair: Pair, *, dtype: str, profile: str, seed: int, jit: bool) -> Report:
    """Run both sides on one drawing of inputs and cotangents and judge every output and gradient."""
    rng = np.random.default_rng(seed)
    inputs = _rounded(pair, pair.draw(rng, profile), dtype)
    compute = DTYPES["float64" if dtype == "float64" else "float32"]
    coarse = unit_roundoff(DTYPES[dtype]) / unit_roundoff(compute)
    options = {"coarse": coarse} if pair.casts else {}
    exact_inputs = {name: _exact(array) for name, array in inputs.items()}
    truths, vjp = pair.oracle(**exact_inputs, **options)
    cotangents = _rounded(
        pair,
        {name: rng.normal(size=t.value.shape) for name, t in truths.items()},
        dtype,
    )
    if pair.wrt:
        gradients = vjp({name: exact(c) for name, c in cotangents.items()})
        truths = truths | {f"d_{name}": gradients[name] for name in pair.wrt}
    a = run_jax(pair.jax, inputs, cotangents, pair.wrt, jit=jit)
    b = run_torch(pair.torch, inputs, cotangents, pair.wrt)
    rows = []
    for name, truth in truths.items():
        held = pair.dtype(name.removeprefix("d_"), dtype)
        rows.append(
            judge(
                name,
                a[name],
                b[name],
                truth,
                dtype=held,
                compute=compute,
            )
        )
    mode = "jit" if jit else "eager"
    title = f"{pair.name}[{dtype},{mode},{profile},seed={seed}]"
    return Report(title, tuple(rows))


def _rounded(pair: Pair, arrays: Arrays, dtype: str) -> dict[str, np.ndarray]:
    return {
        name: a.astype(pair.dtype(name, dtype)) if a.dtype == np.float64 else a
        for name, a in arrays.items()
    }


def _exact(array: np.ndarray) -> Any:
    """The oracle sees the rounded inputs: rounding them is nobody's fault."""
    return array if array.dtype.kind in "iub" else exact(array.astype(np.float64))
