"""A program to compare, whatever it is made of: named weights, and a function of weights and inputs.

A side is a function, a `torch.nn.Module`, a `flax.nnx.Module` or a `flax.linen.Module`. Arrays go in and come out as
NumPy's. In a float64 run every weight, input and other state that is floating is float64, and PyTorch's side computes
in it whatever its code says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .frameworks import DTYPES, from_torch

__all__ = ["Side", "in_dtype", "jax_side", "named", "torch_side"]

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Side:
    """One of the two programs.

    Args:
        weights: By their names there ("attn/query/kernel", "attn.q_proj.weight"), in the dtype they were made in.
        call: Takes arrays of the framework: weights, inputs, and a dtype for what else is floating; gives any tree.
        source: Where it is defined, for the report.
    """

    weights: Arrays
    call: Callable[[dict[str, Any], dict[str, Any], str], Any]
    source: str


def jax_side(program: Any, inputs: Mapping[str, np.ndarray]) -> Side:
    """Of a function, an nnx module, or a linen module, which is initialised for these inputs."""
    if _is_flax(program, "nnx"):
        return _nnx_side(program)
    if _is_flax(program, "linen"):
        return _linen_side(program, inputs)
    if not callable(program):
        raise TypeError(
            f"the JAX side must be a function or a Flax module, got {type(program).__name__}."
        )
    return Side({}, lambda _, given, __: _called(program, given), _where(program))


def torch_side(program: Any) -> Side:
    """Of a function or a module, whose parameters are its weights and whose buffers are not."""
    if not isinstance(program, torch.nn.Module):
        if not callable(program):
            raise TypeError(
                f"the PyTorch side must be a function or a `torch.nn.Module`, got {type(program).__name__}."
            )

        def plain(_: Any, given: dict[str, Any], dtype: str) -> Any:
            with _wide(dtype):
                return _called(program, given)

        return Side({}, plain, _where(program))
    weights = {
        name: from_torch(weight.detach()) for name, weight in program.named_parameters()
    }
    buffers = dict(program.named_buffers())

    def call(weights: dict[str, Any], given: dict[str, Any], dtype: str) -> Any:
        wide = getattr(torch, dtype)
        state = {
            name: buffer.to(wide, copy=True) if buffer.is_floating_point() else buffer
            for name, buffer in buffers.items()
        }
        arguments = _arguments(program.forward, given)
        training = {module: module.training for module in program.modules()}
        program.eval()
        try:
            with _wide(dtype):
                return torch.func.functional_call(
                    program, {**state, **weights}, arguments.args, arguments.kwargs
                )
        finally:
            for module, was in training.items():
                module.training = was

    return Side(weights, call, _where(type(program)))


@contextmanager
def _wide(dtype: str) -> Iterator[None]:
    """In a float64 run PyTorch's side computes in float64 what it says is to be in float32, so that it is the truth."""
    if dtype != "float64":
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _NoFloat32():
            yield
    finally:
        torch.set_default_dtype(before)


class _NoFloat32(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def named(tree: Any) -> dict[str, Any]:
    """The arrays of any tree of outputs, under the path that leads to each."""
    if isinstance(tree, (np.ndarray, jax.Array, torch.Tensor)):
        return {"out": tree}
    if isinstance(tree, Mapping):
        items = tree.items()
    elif isinstance(tree, (tuple, list)):
        items = enumerate(tree)
    elif tree is None:
        return {}
    elif hasattr(tree, "__dataclass_fields__"):
        items = ((name, getattr(tree, name)) for name in tree.__dataclass_fields__)
    else:
        raise TypeError(
            f"an output must be an array or a tree of arrays, got {type(tree).__name__}."
        )
    flat = {}
    for key, value in items:
        for name, array in named(value).items():
            flat[str(key) if name == "out" else f"{key}/{name}"] = array
    return flat


def in_dtype(x: Any, dtype: str) -> Any:
    """An output in the dtype of the run, whole numbers and truth values too."""
    if isinstance(x, torch.Tensor):
        return x.to(getattr(torch, dtype))
    return x.astype(DTYPES[dtype])


def _is_flax(program: Any, kind: str) -> bool:
    return any(
        base.__name__ == "Module" and base.__module__.startswith(f"flax.{kind}")
        for base in type(program).__mro__
    )


def _nnx_side(module: Any) -> Side:
    from flax import nnx

    graph, params, rest = nnx.split(module, nnx.Param, ...)
    paths = {"/".join(map(str, path)): path for path, _ in nnx.to_flat_state(params)}
    flat = dict(nnx.to_flat_state(params))
    weights = {name: np.asarray(flat[path][...]) for name, path in paths.items()}

    def call(weights: dict[str, Any], given: dict[str, Any], dtype: str) -> Any:
        filled = nnx.from_flat_state(
            [(path, flat[path].replace(weights[name])) for name, path in paths.items()]
        )
        merged = nnx.merge(graph, filled, _widened(rest, dtype))
        return _called(merged, given)

    return Side(weights, call, _where(type(module)))


def _linen_side(module: Any, inputs: Mapping[str, np.ndarray]) -> Side:
    given = {name: jnp.asarray(array) for name, array in inputs.items()}
    arguments = _arguments(type(module).__call__.__get__(module), given)
    variables = module.init(jax.random.key(0), *arguments.args, **arguments.kwargs)
    flat = {
        "/".join(str(getattr(key, "key", key)) for key in path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(
            variables.get("params", {})
        )
    }
    structure = jax.tree.structure(variables.get("params", {}))
    rest = {name: tree for name, tree in variables.items() if name != "params"}

    def call(weights: dict[str, Any], given: dict[str, Any], dtype: str) -> Any:
        params = jax.tree.unflatten(structure, [weights[name] for name in flat])
        arguments = _arguments(type(module).__call__.__get__(module), given)
        state = {"params": params, **_widened(rest, dtype)}
        return module.apply(state, *arguments.args, **arguments.kwargs)

    return Side(flat, call, _where(type(module)))


def _widened(tree: Any, dtype: str) -> Any:
    """Other state, such as tables that were made when the module was."""

    def wide(x: Any) -> Any:
        floating = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
        return jnp.asarray(x, DTYPES[dtype]) if floating else x

    return jax.tree.map(wide, tree)


def _called(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    arguments = _arguments(function, given)
    return function(*arguments.args, **arguments.kwargs)


def _arguments(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """By name where the function has it; the others in the order in which they were given."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # Of a builtin.
        signature = inspect.signature(lambda *arguments: None)
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    if inspect.Parameter.VAR_POSITIONAL in kinds.values():
        return signature.bind(*given.values())
    with suppress(TypeError):
        return signature.bind(**given)
    rest = iter([x for name, x in given.items() if name not in kinds])
    free = [name for name in kinds if name not in given]
    values = {**given, **dict(zip(free, rest, strict=False))}
    if left := len(list(rest)):
        raise TypeError(f"a side takes {left} inputs fewer than {', '.join(given)}.")
    first = [name for name in kinds if kinds[name] is inspect.Parameter.POSITIONAL_ONLY]
    return signature.bind(
        *(values[name] for name in first if name in values),
        **{
            name: values[name] for name in kinds if name in values and name not in first
        },
    )


def _where(thing: Any) -> str:
    """Its name and line."""
    name = getattr(thing, "__name__", type(thing).__name__)
    try:
        file, line = inspect.getsourcefile(thing), inspect.getsourcelines(thing)[1]
    except (OSError, TypeError):
        return name
    return f"{name} ({Path(file or '').name}:{line})"
