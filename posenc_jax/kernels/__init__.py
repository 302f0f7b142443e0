"""Attention in memory that grows with the number of tokens, one file for each implementation, and the choice of one."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .. import _scores
from .._scores import Operands, Rules, Terms, Tokens
from . import blockwise

__all__ = ["IMPLEMENTATIONS", "KERNELS", "Kernel", "attend", "run", "varies_over"]


def attend(implementation: Any, rules: Rules, operands: Operands) -> Array:
    """[*batch, heads, q, value_dim] in the dtype of `query`; operands may have any batch axes."""
    if implementation is None:
        implementation = _best(rules, operands)
    if implementation == "reference":
        return automatic(partial(_scores.attend, rules), operands)
    if implementation in KERNELS:
        computed = partial(recomputed, kernel_for(implementation, rules, operands))
    else:
        fused = FUSED[implementation]
        _check_taken(implementation, fused.refusal(rules, operands))
        computed = partial(_with_terms, fused.attend, operands.terms)
    return run(computed, rules, operands)


def _with_terms(
    attend: Callable[..., Array], terms: Terms, rules: Rules, operands: Operands
) -> Array:
    """By a kernel that has to know the terms' values, which are traced once they vary or are sharded."""
    return attend(rules, operands._replace(terms=terms))


def kernel_for(implementation: str, rules: Rules, operands: Operands) -> Kernel:
    """The kernel of this name, if it takes the call."""
    kernel = KERNELS[implementation]
    _check_taken(implementation, kernel.refusal(rules, operands))
    return kernel


def run(attend: Callable[..., Any], rules: Rules, operands: Operands) -> Array:
    """By a function (rules, operands) that knows one batch axis and nothing of empty arrays."""

    def computed(operands: Operands) -> Array:
        query, key, value = operands[:3]
        if 0 in query.shape + key.shape + value.shape:
            return _scores.attend(rules, operands)
        out = attend(rules, varying_alike(_flat(operands)))
        return out.reshape(*query.shape[:-1], value.shape[-1])

    return automatic(computed, operands)


def automatic(function: Callable[[Operands], Array], operands: Operands) -> Array:
    """Shardings inside are the compiler's choice, also on a mesh whose axes are explicit; the output's are the query's.

    Heads are grouped by reshaping, of which JAX would want to be told every sharding.
    """
    sharding = jax.typeof(operands.query).sharding
    if not sharding.mesh.explicit_axes:
        return function(operands)
    free: Any = jax.sharding.auto_axes(function, out_sharding=sharding)
    return free(operands)


def varying_alike(operands: Operands) -> Operands:
    """Every array varying over all axes of `jax.shard_map` over which any does, as the state of a loop must.

    What was the same on every device then gets the sum of its gradients.
    """
    arrays = jax.tree.leaves(operands)
    axes = frozenset().union(*map(varies_over, arrays))
    lax: Any = jax.lax

    def varying(x: Any) -> Any:
        missing = tuple(axes - varies_over(x))
        if not missing:
            return x
        if hasattr(lax, "pcast"):
            return lax.pcast(x, missing, to="varying")
        return lax.pvary(x, missing)  # JAX before 0.8.2.

    return jax.tree.map(varying, operands)


def varies_over(x: Any) -> frozenset[str]:
    """Axes of `jax.shard_map`."""
    kind: Any = jax.typeof(x)
    return kind.mat.varying if hasattr(kind, "mat") else kind.vma  # JAX before 0.10.


class Kernel(NamedTuple):
    """An implementation.

    Args:
        forward: (rules, operands) -> outputs [batch, heads, q, value_dim] and lse [batch, heads, q].
        backward: (rules, operands, outputs, lse, d_outputs) -> gradients of query, key, value and, but for the scale,
            terms.
        refusal: (rules, operands) -> what of the call it does not take, or None.
    """

    forward: Callable[..., tuple[Array, Array]]
    backward: Callable[..., tuple[Array, Array, Array, Terms]]
    refusal: Callable[..., str | None] = lambda rules, operands: None  # noqa: ARG005


def _imported_when_called(module: str, function: str) -> Callable[..., Any]:
    """Pallas costs half a second to import, which only those pay who use it."""

    def call(*args: Any) -> Any:
        return getattr(import_module(f".{module}", __package__), function)(*args)

    return call


class Fused(NamedTuple):
    """An implementation with derivatives of its own: (rules, operands) -> outputs, and what it does not take."""

    attend: Callable[..., Array]
    refusal: Callable[..., str | None]


def _imported(kind: Any, module: str) -> Any:
    return kind(*(_imported_when_called(module, name) for name in kind._fields))


KERNELS = {
    "blockwise": Kernel(blockwise.forward, blockwise.backward),
    "pallas_tpu": _imported(Kernel, "pallas_tpu"),
}
FUSED = {name: _imported(Fused, name) for name in ("splash", "cudnn")}
IMPLEMENTATIONS = ("reference", *KERNELS, *FUSED)


def _check_taken(implementation: str, refused: str | None) -> None:
    if refused is not None:
        raise ValueError(
            f'`implementation` must be one that takes {refused}, such as "blockwise", '
            f'got "{implementation}".'
        )


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def recomputed(kernel: Kernel, rules: Rules, operands: Operands) -> Array:
    """Attention whose scores are computed once more for the gradients, not kept."""
    return _forward(kernel, rules, operands)[0]


def _forward(kernel: Kernel, rules: Rules, operands: Operands) -> tuple[Array, Any]:
    out, lse = kernel.forward(rules, operands)
    return out.astype(operands.query.dtype), (operands, out, lse)


def _backward(kernel: Kernel, rules: Rules, kept: Any, d_out: Array) -> tuple[Operands]:
    operands, out, lse = kept
    *gradients, d_terms = kernel.backward(rules, operands, out, lse, d_out)
    # The scale multiplies q . k and nothing else: its gradient is that of q, along q.
    d_scale = (gradients[0] * operands.query).sum() / operands.terms.scale
    gradients = (*gradients, d_terms._replace(scale=d_scale))
    learnt = jax.tree.map(
        lambda d, x: d.astype(jnp.result_type(x)), gradients, operands[:4]
    )
    nothing = jax.tree.map(lambda _: None, operands[4:])
    return (Operands(*learnt, *nothing),)


recomputed.defvjp(_forward, _backward)


def _best(rules: Rules, operands: Operands) -> str:
    """The first that the backend has, that takes the call and of which there is anything to gain."""
    query, key = operands.query, operands.key
    if not all(isinstance(size, int) for size in query.shape + key.shape):
        return "reference"  # A dynamic axis of a program for export has no blocks.
    scores = query.shape[-3] * query.shape[-2] * key.shape[-2]
    block = query.shape[-3] * blockwise.BLOCK**2
    if scores <= max(block, math.prod(key.shape[-3:])):
        return "reference"  # The scores are no more than one block, or than the keys.
    return "blockwise" if _may_be_partitioned() else best_kernel(rules, operands)


def best_kernel(rules: Rules, operands: Operands) -> str:
    """The first that the backend has and that takes the call."""
    if jax.default_backend() == "tpu":
        if KERNELS["pallas_tpu"].refusal(rules, operands) is None:
            return "pallas_tpu"
    return "blockwise"


def _may_be_partitioned() -> bool:
    """Whether the compiler might have to cut the program for several devices, which it cannot do to a kernel."""
    mesh = jax.sharding.get_abstract_mesh()
    within_shard_map = mesh.axis_names and set(mesh.manual_axes) == set(mesh.axis_names)
    return jax.device_count() > 1 and not within_shard_map


def _flat(operands: Operands) -> Operands:
    """One batch axis, of size 1 where nothing differs along it."""
    batch = operands.query.shape[:-3]

    def flat(x: Any, rank: int) -> Any:
        if x is None:
            return None
        x = x.reshape((1,) * (rank - x.ndim) + x.shape)
        lead, rest = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
        if math.prod(lead) == 1:
            return x.reshape(1, *rest)
        return jnp.broadcast_to(x, (*batch, *rest)).reshape(-1, *rest)

    query, key, value, terms, mask, query_tokens, key_tokens = operands
    query, key, value = (x.reshape(-1, *x.shape[-3:]) for x in (query, key, value))
    return Operands(
        query,
        key,
        value,
        terms._replace(bias=flat(terms.bias, 3)),
        flat(mask, 3),
        Tokens(*(flat(x, 1) for x in query_tokens)),
        Tokens(*(flat(x, 1) for x in key_tokens)),
    )
