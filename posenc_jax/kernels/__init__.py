"""Attention in memory that grows with the number of tokens, one file for each implementation, and the choice of one."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .. import _scores
from .._scores import Operands, Rules, Terms, Tokens
from . import blockwise

__all__ = ["IMPLEMENTATIONS", "attend"]

IMPLEMENTATIONS = ("reference", "blockwise")


def attend(implementation: Any, rules: Rules, operands: Operands) -> Array:
    """[*batch, heads, q, value_dim] in the dtype of `query`; operands may have any batch axes."""
    query, key, value = operands.query, operands.key, operands.value
    if implementation is None:
        implementation = _best(operands)
    empty = 0 in query.shape + key.shape + value.shape
    if implementation == "reference" or empty:
        return _scores.attend(rules, operands)
    kernel = Kernel(blockwise.forward, blockwise.backward)
    out = recomputed(kernel, rules, _flat(operands))
    return out.reshape(*query.shape[:-1], value.shape[-1])


class Kernel(NamedTuple):
    """An implementation.

    Args:
        forward: (rules, operands) -> outputs [batch, heads, q, value_dim] and lse [batch, heads, q].
        backward: (rules, operands, outputs, lse, d_outputs) -> gradients of query, key, value and terms.
    """

    forward: Callable[..., tuple[Array, Array]]
    backward: Callable[..., tuple[Array, Array, Array, Terms]]


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
    learnt = jax.tree.map(
        lambda d, x: d.astype(x.dtype), (*gradients, d_terms), operands[:4]
    )
    nothing = jax.tree.map(lambda _: None, operands[4:])
    return (Operands(*learnt, *nothing),)


recomputed.defvjp(_forward, _backward)


def _best(operands: Operands) -> str:
    """Where the scores are no more than a block or than the keys there is nothing to save."""
    query, key = operands.query, operands.key
    if not all(isinstance(size, int) for size in query.shape + key.shape):
        return "reference"  # A dynamic axis of a program for export has no blocks.
    scores = query.shape[-3] * query.shape[-2] * key.shape[-2]
    block = query.shape[-3] * blockwise.BLOCK**2
    small = scores <= max(block, math.prod(key.shape[-3:]))
    return "reference" if small else "blockwise"


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
