"""Attention over a sequence that is cut across devices: ring attention, inside `jax.shard_map`.

Every device keeps its queries. Keys, values and their positions go round, one device further in each round, until
every query has met every key. What the rounds a and b give is merged by the peak and the total of their rows:

    peak = max(peak[a], peak[b]),    part[a] = exp(peak[a] - peak) total[a],    part[b] likewise
    total = part[a] + part[b],       out = (part[a] out[a] + part[b] out[b]) / total

Backward, they go round once more with the sums and the outputs of all rounds, and the gradients of keys and values
go with them, to arrive home after the last.

Source: Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023,
arXiv:2310.01889.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ._checks import check_choice, describe, is_array
from ._scores import Operands, Rules, Terms, finite, score_dtype
from .alibi import Kind
from .attention import _checked
from .kernels import KERNELS, best_kernel, recomputed, run, taking
from .kernels._blocks import Sums
from .kernels._sharding import varying

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["ring_attention"]


def ring_attention(
    query: Float[Array, "*batch q heads head_dim"],
    key: Float[Array, "*batch k kv_heads head_dim"],
    value: Float[Array, "*batch k kv_heads value_dim"],
    *,
    axis_name: str,
    is_causal: bool = False,
    scale: float | Float[Array, ""] | None = None,
    alibi_slopes: Float[np.ndarray | Array, " heads"] | None = None,
    alibi_kind: Kind = "symmetric",
    query_positions: Int[Array, "*#batch q"] | None = None,
    key_positions: Int[Array, "*#batch k"] | None = None,
    query_segment_ids: Int[Array, "*#batch q"] | None = None,
    key_segment_ids: Int[Array, "*#batch k"] | None = None,
    sliding_window: int | None = None,
    logit_softcap: float | Float[Array, ""] | None = None,
    implementation: Literal["blockwise", "pallas_tpu"] | None = None,
) -> Float[Array, "*batch q heads value_dim"]:
    """Attend from the queries of one device to the keys of every device along a mesh axis, inside `jax.shard_map`.

    Every device calls it with its shard of the tokens, in any order, which their positions tell: with those of
    `shard_positions`, "zigzag" gives every device the same work under a causal mask. Rotary positions are applied
    before, at the same positions. A device holds its own keys and values and those that visit it, and computes nothing
    where none of its queries may attend to them. Batch and heads may be sharded too; each device then gives the slopes
    of its heads. Axes of the mesh that are left out of the `shard_map` must be of the type Auto.

    Args:
        query, key, value: One device's tokens, [*batch, tokens, heads, head_dim]; otherwise as in
            `dot_product_attention`.
        axis_name: The mesh axis along which tokens are sharded.
        is_causal, scale, alibi_slopes, alibi_kind, sliding_window, logit_softcap: As in `dot_product_attention`.
        query_positions, key_positions: Of the tokens that are here, in the whole sequence. They must be given for
            `is_causal`, `alibi_slopes` and `sliding_window`: an index here says nothing.
        query_segment_ids, key_segment_ids: Of the tokens that are here. Padding is a segment that no query has: keys
            of -1, say. There is no mask or bias, which would be as large as the scores.
        implementation: Of one round, as in `dot_product_attention`: "blockwise", "pallas_tpu", or None, which is
            "pallas_tpu" on a TPU if it takes the call and no axis of the mesh is left out, else "blockwise".
    Returns:
        [*batch, q, heads, value_dim] in the dtype of `query`, one device's rows of what `dot_product_attention` of
        the whole gives. Rounds are merged in float32 (float64 if any input is).
    Raises:
        TypeError, ValueError: as `dot_product_attention`, if a rule needs positions and they are not arrays, or if
            the call is not inside a `jax.shard_map` with that axis.
    Source:
        arXiv:2310.01889.
    """
    check_choice("implementation", implementation, (None, *KERNELS))
    _check_axis(axis_name)
    if is_causal or alibi_slopes is not None or sliding_window is not None:
        _check_positions("query_positions", query_positions)
        _check_positions("key_positions", key_positions)
    rules, operands = _checked(
        query,
        key,
        value,
        is_causal=is_causal,
        scale=scale,
        alibi_slopes=alibi_slopes,
        alibi_kind=alibi_kind,
        query_positions=query_positions,
        key_positions=key_positions,
        query_segment_ids=query_segment_ids,
        key_segment_ids=key_segment_ids,
        sliding_window=sliding_window,
        logit_softcap=logit_softcap,
    )
    chosen = best_kernel(rules, operands) if implementation is None else implementation
    kernel = taking(chosen, rules, operands)
    ring = _Ring(
        partial(_forward, kernel.forward, axis_name),
        partial(_backward, kernel.backward, axis_name),
    )
    # Where every device has the same keys, those that go round are still its neighbour's.
    query = varying(operands.query, frozenset({axis_name}))
    operands = operands._replace(query=query)
    return run(partial(recomputed, ring, rules), operands).swapaxes(-2, -3)


class _Ring(NamedTuple):
    """A kernel whose keys are those of every device."""

    forward: Callable[..., tuple[Array, Sums]]
    backward: Callable[..., tuple[Array, Array, Array, Terms]]


def _forward(
    forward: Callable[..., tuple[Array, Sums]],
    axis_name: str,
    rules: Rules,
    operands: Operands,
) -> tuple[Array, Sums]:
    def meet(visitors: Any, merged: tuple[Array, Sums]) -> tuple[Array, Sums]:
        return _merge(merged, forward(rules, _with(operands, visitors)))

    dtype, query = score_dtype(operands), operands.query
    shape = (*query.shape[:-1], operands.value.shape[-1])
    nothing = (
        jnp.zeros_like(query, dtype, shape),
        Sums(
            jnp.full_like(query, -jnp.inf, dtype, shape[:-1]),
            jnp.zeros_like(query, dtype, shape[:-1]),
        ),
    )
    return _go_round(axis_name, _visitors(operands), meet, nothing)


def _backward(
    backward: Callable[..., tuple[Array, Array, Array, Terms]],
    axis_name: str,
    rules: Rules,
    operands: Operands,
    out: Array,
    sums: Sums,
    d_out: Array,
) -> Any:
    def meet(visitors: Any, totals: Any) -> Any:
        here = backward(rules, _with(operands, visitors), out, sums, d_out)
        d_query, d_key, d_value, d_terms = totals
        # They left their last host when the visitors did (zeros, at first), and arrive while this host computes.
        d_key, d_value = _next((d_key, d_value), axis_name)
        return jax.tree.map(jnp.add, (d_query, d_key, d_value, d_terms), here)

    dtype = score_dtype(operands)
    learnt = (*operands[:3], operands.terms._replace(scale=None))
    totals = jax.tree.map(lambda x: jnp.zeros_like(x, dtype), learnt)
    totals = _go_round(axis_name, _visitors(operands), meet, totals)
    d_query, d_key, d_value, d_terms = totals
    return d_query, *_next((d_key, d_value), axis_name), d_terms


def _go_round(
    axis_name: str, visitors: Any, meet: Callable[[Any, Any], Any], state: Any
) -> Any:
    """The state after meeting the visitors of every device, one's own first.

    A loop, so that the program is as long for 2 devices as for 256. To leave and to be met need nothing of each
    other: a compiler may do both at once.
    """

    def one_round(_: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        visitors, state = carry
        return _next(visitors, axis_name), meet(visitors, state)

    rounds = lax.axis_size(axis_name)
    visitors, state = lax.fori_loop(0, rounds - 1, one_round, (visitors, state))
    return meet(visitors, state)


def _next(arrays: Any, axis_name: str) -> Any:
    """To the next device, from the one before."""
    size = lax.axis_size(axis_name)
    return lax.ppermute(arrays, axis_name, [(i, (i + 1) % size) for i in range(size)])


def _merge(some: tuple[Array, Sums], others: tuple[Array, Sums]) -> tuple[Array, Sums]:
    """Outputs and sums of two sets of keys together."""
    peak = jnp.maximum(some[1].peak, others[1].peak)
    a, b = (
        jnp.exp(sums.peak - finite(peak)) * sums.total for _, sums in (some, others)
    )
    sums = Sums(peak, a + b)
    out = a[..., None] * some[0] + b[..., None] * others[0]
    return out / sums.divisor()[..., None], sums


def _visitors(operands: Operands) -> Any:
    return operands.key, operands.value, operands.key_tokens


def _with(operands: Operands, visitors: Any) -> Operands:
    key, value, key_tokens = visitors
    return operands._replace(key=key, value=value, key_tokens=key_tokens)


def _check_axis(axis_name: Any) -> None:
    if not isinstance(axis_name, str):
        raise TypeError(f"`axis_name` must be a str, got {describe(axis_name)}.")
    if axis_name not in jax.sharding.get_abstract_mesh().manual_axes:
        raise ValueError(
            f"`axis_name` must be an axis of the `jax.shard_map` that the call is in, "
            f"got {axis_name!r}."
        )


def _check_positions(name: str, positions: Any) -> None:
    if not is_array(positions):
        raise TypeError(
            f"`{name}` must be an array of where the tokens of this shard stand, as "
            f"`shard_positions` gives them, got {describe(positions)}."
        )
