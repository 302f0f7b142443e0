"""What JAX must be told of arrays that are cut across the devices of a mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import jax
from jax import Array

from .._scores import Operands

__all__ = ["automatic", "may_be_partitioned", "varies_over", "varying", "varying_alike"]


def automatic(function: Callable[[Operands], Array], operands: Operands) -> Array:
    """Shardings inside are the compiler's choice, also on a mesh whose axes are explicit.

    The output's are the query's, and in its last axis the value's. Heads are grouped by reshaping, of which JAX would
    want to be told every sharding.
    """
    sharding = jax.typeof(operands.query).sharding
    if not sharding.mesh.explicit_axes:
        return function(operands)
    last = jax.typeof(operands.value).sharding.spec[-1]
    sharding = sharding.update(spec=jax.P(*sharding.spec[:-1], last))
    free: Any = jax.sharding.auto_axes(function, out_sharding=sharding)
    return free(operands)


def varying_alike(operands: Operands) -> Operands:
    """Every array varying over all axes of `jax.shard_map` over which any does, as the state of a loop must.

    What was the same on every device then gets the sum of its gradients.
    """
    arrays = jax.tree.leaves(operands)
    axes = frozenset().union(*map(varies_over, arrays))
    return jax.tree.map(lambda x: varying(x, axes), operands)


def varying(x: Any, axes: frozenset[str]) -> Any:
    missing, lax = tuple(axes - varies_over(x)), cast(Any, jax.lax)
    if not missing:
        return x
    if hasattr(lax, "pcast"):
        return lax.pcast(x, missing, to="varying")
    return lax.pvary(x, missing)  # JAX before 0.8.2.


def varies_over(x: Any) -> frozenset[str]:
    """Axes of `jax.shard_map`."""
    kind: Any = jax.typeof(x)
    return kind.mat.varying if hasattr(kind, "mat") else kind.vma  # JAX before 0.10.


def may_be_partitioned() -> bool:
    """Whether the compiler might have to cut the program for several devices, which it cannot do to a kernel."""
    mesh = jax.sharding.get_abstract_mesh()
    within_shard_map = mesh.axis_names and set(mesh.manual_axes) == set(mesh.axis_names)
    return jax.device_count() > 1 and not within_shard_map
