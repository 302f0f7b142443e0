"""Attention in memory that grows with the number of tokens, one file for each implementation, and the choice of one."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer

from .. import _scores
from .._scores import Operands, Rules, Tokens
from . import blockwise
from ._sharding import automatic, may_be_partitioned, varying_alike

__all__ = [
    "FUSED",
    "IMPLEMENTATIONS",
    "KERNELS",
    "attend",
    "best_kernel",
    "recomputed",
    "run",
    "taking",
]

# Files here. A kernel has `forward`, `backward` and `refusal`; what is fused elsewhere has derivatives of its own, and
# here `attend` and `refusal`.
KERNELS = ("blockwise", "pallas_tpu")
FUSED = ("splash", "cudnn")
IMPLEMENTATIONS = ("reference", *KERNELS, *FUSED)


def attend(implementation: str | None, rules: Rules, operands: Operands) -> Array:
    """[*batch, heads, q, value_dim] in the dtype of `query`; operands may have any batch axes."""
    if implementation is None:
        implementation = _best(rules, operands)
    if implementation == "reference":
        return automatic(partial(_scores.attend, rules), operands)
    module, terms = taking(implementation, rules, operands), operands.terms
    if implementation in KERNELS:
        return run(partial(recomputed, module, rules), operands)

    def known(outside: Any, inside: Any) -> Any:
        return inside if isinstance(outside, Tracer) else outside

    def fused(operands: Operands) -> Array:
        # It has to know the values of terms, which are traced once they vary or are sharded.
        inside = operands.terms
        return module.attend(
            rules, operands._replace(terms=jax.tree.map(known, terms, inside))
        )

    return run(fused, operands)


def taking(implementation: str, rules: Rules, operands: Operands) -> Any:
    """The module of an implementation other than the reference, if it takes the call."""
    # Pallas costs half a second to import, which only those pay who use it.
    module = import_module(f".{implementation}", __package__)
    refused, instead = "sizes that are not known when it is built", "reference"
    if _has_known_sizes(operands):
        refused, instead = module.refusal(rules, operands), "blockwise"
    if refused is not None:
        raise ValueError(
            f'`implementation` must be "{instead}" or None for {refused}, '
            f'got "{implementation}".'
        )
    return module


def run(attend: Callable[[Operands], Any], operands: Operands) -> Array:
    """By a function that knows one batch axis and nothing of empty arrays."""

    def computed(operands: Operands) -> Array:
        query, key, value = operands[:3]
        if 0 in query.shape + key.shape + value.shape:
            return jnp.zeros_like(query, shape=(*query.shape[:-1], value.shape[-1]))
        out = attend(varying_alike(_flat(operands)))
        return out.reshape(*query.shape[:-1], value.shape[-1])

    return automatic(computed, operands)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def recomputed(kernel: Any, rules: Rules, operands: Operands) -> Array:
    """Attention whose scores are computed once more for the gradients, not kept."""
    return _forward(kernel, rules, operands)[0]


def _forward(kernel: Any, rules: Rules, operands: Operands) -> tuple[Array, Any]:
    out, sums = kernel.forward(rules, operands)
    return out.astype(operands.query.dtype), (operands, out, sums)


def _backward(kernel: Any, rules: Rules, kept: Any, d_out: Array) -> tuple[Operands]:
    operands, out, sums = kept
    *gradients, d_terms = kernel.backward(rules, operands, out, sums, d_out)
    # The scale multiplies q . k and nothing else: its gradient is that of q, along q.
    d_query, scale = gradients[0], operands.terms.scale
    along = (d_query * operands.query.astype(d_query.dtype)).sum()
    d_scale = along / jnp.asarray(scale, d_query.dtype)
    gradients = (*gradients, d_terms._replace(scale=d_scale))
    learnt = jax.tree.map(
        lambda d, x: d.astype(jnp.result_type(x)), gradients, operands[:4]
    )
    nothing = jax.tree.map(lambda _: None, operands[4:])
    return (Operands(*learnt, *nothing),)


recomputed.defvjp(_forward, _backward)


def best_kernel(rules: Rules, operands: Operands) -> str:
    """The first that the backend has, and that takes the call."""
    if jax.default_backend() == "tpu" and not may_be_partitioned():
        if import_module(".pallas_tpu", __package__).refusal(rules, operands) is None:
            return "pallas_tpu"
    return "blockwise"


def _best(rules: Rules, operands: Operands) -> str:
    """The reference where the scores are no more than one block, or than the keys."""
    if not _has_known_sizes(operands):
        return "reference"  # A dynamic axis of a program for export has no blocks.
    (heads, q_len, _), keys = operands.query.shape[-3:], operands.key.shape[-3:]
    scores = heads * q_len * keys[-2]
    small = scores <= max(heads * blockwise.BLOCK**2, math.prod(keys))
    return "reference" if small else best_kernel(rules, operands)


def _has_known_sizes(operands: Operands) -> bool:
    shapes = operands.query.shape + operands.key.shape
    return all(isinstance(size, int) for size in shapes)


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
