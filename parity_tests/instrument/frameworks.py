"""Run one function in JAX or in PyTorch: NumPy in, NumPy out, with gradients for given cotangents.

Both runners take the same arguments and return the same thing, a dict of NumPy arrays: the outputs under their
names and the gradient with respect to input x under "d_x".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

__all__ = [
    "DTYPES",
    "from_torch",
    "run_jax",
    "run_torch",
    "to_torch",
    "unit_roundoff",
]

Arrays = Mapping[str, np.ndarray]
Function = Callable[..., dict[str, Any]]

DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}


def unit_roundoff(dtype: Any) -> float:
    """Largest relative error of one rounding to nearest."""
    return float(ml_dtypes.finfo(dtype).eps) / 2


def run_jax(
    function: Function,
    inputs: Arrays,
    cotangents: Arrays,
    wrt: tuple[str, ...],
    *,
    jit: bool,
) -> dict[str, np.ndarray]:
    """With `jit` false, operation by operation."""
    double = any(array.dtype == np.float64 for array in inputs.values())
    with jax.enable_x64(double):
        arrays = {name: jnp.asarray(array) for name, array in inputs.items()}
        cots = {name: jnp.asarray(array) for name, array in cotangents.items()}
        run = _compiled if jit else _outputs_and_gradients
        results = run(function, wrt, arrays, cots)
        return {name: np.asarray(array) for name, array in results.items()}


def _outputs_and_gradients(
    function: Function, wrt: tuple[str, ...], inputs: Any, cotangents: Any
) -> dict[str, Any]:
    def forward(differentiated: Any) -> Any:
        return function(**{**inputs, **differentiated})

    outputs, vjp = jax.vjp(forward, {name: inputs[name] for name in wrt})
    (gradients,) = vjp({name: cotangents[name] for name in outputs})
    return {**outputs, **{f"d_{name}": grad for name, grad in gradients.items()}}


_compiled = jax.jit(_outputs_and_gradients, static_argnums=(0, 1))


def run_torch(
    function: Function, inputs: Arrays, cotangents: Arrays, wrt: tuple[str, ...]
) -> dict[str, np.ndarray]:
    tensors = {name: to_torch(array) for name, array in inputs.items()}
    for name in wrt:
        tensors[name].requires_grad_()
    outputs = function(**tensors)
    reached = [name for name, tensor in outputs.items() if tensor.requires_grad]
    gradients = ()
    if wrt:
        gradients = torch.autograd.grad(
            [outputs[name] for name in reached],
            [tensors[name] for name in wrt],
            [to_torch(cotangents[name]) for name in reached],
            allow_unused=True,
            materialize_grads=True,
        )
    results = {name: from_torch(tensor.detach()) for name, tensor in outputs.items()}
    named = zip(wrt, gradients, strict=True)
    return {**results, **{f"d_{name}": from_torch(grad) for name, grad in named}}


def to_torch(array: np.ndarray) -> torch.Tensor:
    """bfloat16 travels as bits: NumPy's extension type is unknown to torch, and no value may change on the way."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def from_torch(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        bits = tensor.contiguous().view(torch.int16)
        return bits.numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
