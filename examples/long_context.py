"""Attention over 131,072 tokens, forward and backward, on a CPU: how much memory does it take?

    python examples/long_context.py [--length 131072] [--heads 1]

One causal layer with ALiBi, whose slopes are learnt, and one with RoPE. No array has a score for every query and key:
`implementation="blockwise"` makes the scores of a block of queries and keys at a time, and once more for the gradients.
The queries come in chunks, since a program says nothing of how far it is while it runs. `query_positions` say where a
chunk stands, so that one program serves all; keys in its future are never looked at.

Compared with float64, row by row in NumPy, are the last tokens: their queries attend to all keys, and the gradients of
their own keys and values come from so few queries that they can be checked as well.
"""

from __future__ import annotations

import argparse
import math
import resource
import sys
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import Progress

from posenc_jax import RopeConfig, alibi_slopes, dot_product_attention, position_range

CHUNK = 4096  # queries
CHECKED = 16  # of the last tokens
HEAD_DIM, BASE = 32, 500_000.0
ROPE = RopeConfig(HEAD_DIM, base=BASE, layout="half")

LINE = "{:7} {:>8} {:>11} {:>11}   {:>8} {:>8} {:>8} {:>8}"
TITLES = "seconds", "temporary", "S x S", "out", "d_query", "d_key", "d_value"


class Learnt(NamedTuple):
    """Of one sequence, from weights, or gradients of these."""

    query: Any  # [queries, heads, head_dim]
    key: Any  # [length, heads, head_dim]
    value: Any  # the same shape
    slopes: Any  # [heads] for ALiBi; None for RoPE


def attend(learnt: Learnt, start: Any) -> jax.Array:
    """Outputs [queries, heads, head_dim] of queries at positions from `start` on."""
    query, key, value, slopes = learnt
    query_at = position_range(query.shape[0], offset=start)
    key_at = position_range(key.shape[0])
    if slopes is None:
        query = ROPE.apply(query, *ROPE.cos_sin(query_at, angles="exact"))
        key = ROPE.apply(key, *ROPE.cos_sin(key_at, angles="exact"))
    return dot_product_attention(
        query,
        key,
        value,
        is_causal=True,
        alibi_slopes=slopes,
        query_positions=query_at,
        key_positions=key_at,
        implementation="blockwise",
    )


def step(totals: Learnt, learnt: Learnt, d_out: Any, start: Any) -> Any:
    """Outputs of a chunk, the gradients of its queries, and what it adds to those that all chunks share."""
    out, pull = jax.vjp(partial(attend, start=start), learnt)
    (gradients,) = pull(d_out)
    shared = gradients._replace(query=None)
    return out, gradients.query, jax.tree.map(jnp.add, totals, shared)


def run(name: str, learnt: Learnt, d_out: np.ndarray) -> Any:
    """Outputs, gradients, and the bytes of temporary memory that the program of a chunk was given."""
    length, chunk = len(d_out), min(CHUNK, len(d_out))
    totals = jax.tree.map(jnp.zeros_like, learnt._replace(query=None))
    first = learnt._replace(query=learnt.query[:chunk])
    # The totals are donated, so that a chunk adds to them in place.
    jitted = jax.jit(step, donate_argnames="totals")
    program = jitted.lower(totals, first, d_out[:chunk], 0).compile()
    outs, d_queries = [], []
    with Progress(console=Console(stderr=True)) as progress:
        # In pairs of a query and a key: a later chunk has more of them.
        bar = progress.add_task(name, total=length * (length + chunk))
        for start in range(0, length, chunk):
            here = slice(start, start + chunk)
            queries = learnt._replace(query=learnt.query[here])
            out, d_query, totals = program(totals, queries, d_out[here], start)
            outs.append(np.asarray(out))
            d_queries.append(np.asarray(d_query))
            progress.advance(bar, 2 * chunk * (start + chunk))
    gradients = totals._replace(query=np.concatenate(d_queries))
    temporary = program.memory_analysis().temp_size_in_bytes
    return np.concatenate(outs), gradients, temporary


def truth(learnt: Learnt, d_out: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of the last tokens, in float64: outputs, and gradients of queries, keys and values."""
    query, key, value, slopes = learnt
    at = np.arange(len(key))
    last = slice(-min(CHECKED, len(key)), None)
    query, key, value, d_out = (
        np.moveaxis(np.float64(x), 1, 0) for x in (query[last], key, value, d_out[last])
    )
    if slopes is None:
        query, key = turn(query, at[last]), turn(key, at)
    logits = query @ key.mT / math.sqrt(HEAD_DIM)
    distance = at[last, None] - at
    if slopes is not None:
        logits -= np.float64(slopes)[:, None, None] * distance
    logits[:, distance < 0] = -np.inf
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = weights @ value
    d_weights = d_out @ value.mT - (d_out * out).sum(-1, keepdims=True)
    d_logits = weights * d_weights / math.sqrt(HEAD_DIM)
    d_query, d_key = d_logits @ key, d_logits[..., last].mT @ query
    if slopes is None:
        d_query, d_key = turn(d_query, -at[last]), turn(d_key, -at[last])
    d_value = weights[..., last].mT @ d_out
    return tuple(np.moveaxis(x, 0, 1) for x in (out, d_query, d_key, d_value))


def turn(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """RoPE: channels i and head_dim / 2 + i are a complex number, turned by position base^(-2i/head_dim)."""
    real, imaginary = np.split(x, 2, -1)
    frequencies = BASE ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
    turned = (real + 1j * imaginary) * np.exp(1j * positions[:, None] * frequencies)
    return np.concatenate([turned.real, turned.imag], -1)


def peak() -> float:
    """The most memory that this process has had so far, in megabytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int, default=131_072, help="tokens")
    parser.add_argument("--heads", type=int, default=1)
    options = parser.parse_args()
    length, heads = options.length, options.heads
    if length < 1 or heads < 1 or (length > CHUNK and length % CHUNK):
        parser.error(f"--length must be up to {CHUNK} or a multiple, --heads positive")
    before = peak()
    rng = np.random.default_rng(0)
    shape = (4, length, heads, HEAD_DIM)
    *qkv, d_out = rng.standard_normal(shape, np.float32)
    slopes = jnp.asarray(alibi_slopes(heads))
    ran = {}
    for name, learnt in (
        ("alibi", Learnt(*qkv, slopes)),
        ("rope", Learnt(*qkv, None)),
    ):
        began = time.perf_counter()
        results = run(name, learnt, d_out)
        ran[name] = learnt, time.perf_counter() - began, results
    after = peak()

    print(
        f"{length} tokens, heads: {heads} of {HEAD_DIM} channels, float32, causal, "
        f"forward and backward\n"
    )
    print(f"{'':16} {'megabytes':>23}   {'error of the last tokens':>35}")
    print(LINE.format("scheme", *TITLES))
    for name, (learnt, seconds, (out, gradients, temporary)) in ran.items():
        found = out, *gradients[:3]
        errors = [
            np.abs(x[-len(true) :] - true).max() / np.abs(true).max()
            for x, true in zip(found, truth(learnt, d_out), strict=True)
        ]
        sizes = temporary / 1e6, heads * length**2 * 4 / 1e6
        print(
            LINE.format(
                name,
                f"{seconds:.0f}",
                *(f"{size:.0f}" for size in sizes),
                *(f"{error:.0e}" for error in errors),
            )
        )
    print(
        f"\ntemporary: of the program, beside its inputs and outputs. S x S: of one array "
        f"of all scores.\nErrors: the largest one, as a share of the largest number.\n"
        f"The whole process had {after:.0f} megabytes at most, {before:.0f} of them "
        f"before it began."
    )


if __name__ == "__main__":
    main()
