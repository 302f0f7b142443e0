"""Decoding with a cache of keys and values, with each position encoding: is it the full forward pass?

    python examples/decoding.py

A prompt goes through one causal attention layer at once, then token after token, each attending to what the cache
holds. The encoding is spent where a token comes in: absolute ones are added to it, and its key is rotated once, where
it is written. Of a key in the cache, attention needs its position and whether it is a token at all. Causality, the
window and ALiBi go by positions, so slots may be in any order, and these are special in nothing:

    ring            a sliding window needs as many slots as it is wide; column t of the batch goes to slot t % slots
    left padding    columns of padding are no tokens, and a row's next position is the number of its tokens so far

A full cache must have a slot for every column: one more takes the place of the oldest.

Compared is every token's output with that of its row in one pass without cache and padding, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posenc_jax import (
    RopeConfig,
    alibi_slopes,
    dot_product_attention,
    learned_position_encoding,
    position_range,
    positions_from_mask,
    sinusoidal_position_encoding,
)

BATCH, PROMPT, LENGTH = 2, 24, 64
DIM, HEADS, KV_HEADS, HEAD_DIM = 64, 8, 2, 16
ROPE = RopeConfig(HEAD_DIM)

SCHEMES = ("sinusoidal", "learned", "rope", "alibi")
CACHES = [("full", LENGTH, None), ("ring", 16, 16)]  # with slots and window
PADDING = {"none": (0, 0), "left": (0, 9)}  # columns in front of each row

LINE = "{:11} {:6} {:8} {:>10} {:>14} {:>8}"
TITLES = "scheme", "cache", "padding", "difference", "of all steps", "bytes"

Weights = dict[str, jax.Array]


class Layer(NamedTuple):
    """What is known when a program is compiled."""

    scheme: str
    slots: int  # of its cache
    window: int | None  # tokens; None means all


class Keys(NamedTuple):
    """What queries attend to, in any order."""

    keys: jax.Array  # [batch, n, kv_heads, head_dim], rotated if the scheme rotates
    values: jax.Array  # the same shape
    positions: jax.Array  # [batch, n]
    is_token: jax.Array  # [batch, n], False for padding and for what is not there yet


class Cache(NamedTuple):
    """The keys so far."""

    # Of one number from the beginning, so that one compiled step serves all.
    slots: Keys
    # Of the batch so far, padding too; column t is in slot t % slots.
    columns: jax.Array
    # [batch], of each row so far: the position of its next one.
    tokens: jax.Array


def start_cache(slots: int, new: Keys) -> Cache:
    """A cache of these columns, or of the last of them if they are more than the slots."""
    n = new.keys.shape[1]

    def put(x: jax.Array) -> jax.Array:
        if n > slots:
            return jnp.roll(x[:, -slots:], n, axis=1)
        return jnp.pad(x, [(0, 0), (0, slots - n), *[(0, 0)] * (x.ndim - 2)])

    return Cache(jax.tree.map(put, new), jnp.array(n), new.is_token.sum(-1))


def extend_cache(cache: Cache, new: Keys) -> Cache:
    """The cache with a column of tokens more, in the slot of the oldest one if all are taken."""
    slot = cache.columns % cache.slots.keys.shape[1]
    put = partial(jax.lax.dynamic_update_slice_in_dim, start_index=slot, axis=1)
    slots = jax.tree.map(put, cache.slots, new)
    return Cache(slots, cache.columns + 1, cache.tokens + 1)


def project(
    layer: Layer,
    weights: Weights,
    x: jax.Array,
    positions: jax.Array,
    is_token: jax.Array,
) -> tuple[jax.Array, Keys]:
    """Queries and keys of x [batch, n, dim], with the encoding of their positions [batch, n] in them."""
    if layer.scheme == "sinusoidal":
        x = x + sinusoidal_position_encoding(positions, DIM)
    if layer.scheme == "learned":
        x = x + learned_position_encoding(weights["table"], positions)
    query, key, value = (
        jnp.einsum("btc,chd->bthd", x, weights[name]) for name in ("q", "k", "v")
    )
    if layer.scheme == "rope":
        cos, sin = ROPE.cos_sin(positions)
        query, key = ROPE.apply(query, cos, sin), ROPE.apply(key, cos, sin)
    return query, Keys(key, value, positions, is_token)


def attend(layer: Layer, query: jax.Array, positions: jax.Array, to: Keys) -> jax.Array:
    """Outputs of queries at `positions`, [batch, n, heads, head_dim]."""
    return dot_product_attention(
        query,
        to.keys,
        to.values,
        mask=to.is_token[:, None, None, :],
        is_causal=True,
        sliding_window=layer.window,
        alibi_slopes=alibi_slopes(HEADS) if layer.scheme == "alibi" else None,
        query_positions=positions,
        key_positions=to.positions,
    )


def prefill(
    layer: Layer, weights: Weights, x: jax.Array, is_token: jax.Array
) -> tuple[jax.Array, Cache]:
    """Outputs of a prompt, which attends to all of itself, and the cache of what later tokens may attend to."""
    positions = positions_from_mask(is_token)
    query, keys = project(layer, weights, x, positions, is_token)
    return attend(layer, query, positions, keys), start_cache(layer.slots, keys)


def step(
    layer: Layer, weights: Weights, cache: Cache, x: jax.Array
) -> tuple[jax.Array, Cache]:
    """Outputs of the next token of each row, x [batch, 1, dim], and the cache with it."""
    positions = position_range(1, offset=cache.tokens)
    is_token = jnp.ones_like(positions, bool)
    query, key = project(layer, weights, x, positions, is_token)
    cache = extend_cache(cache, key)
    return attend(layer, query, positions, cache.slots), cache


def full_pass(layer: Layer, weights: Weights, x: jax.Array) -> jax.Array:
    """Outputs of whole sequences at once, without cache and padding."""
    is_token = jnp.ones(x.shape[:2], bool)
    positions = jnp.broadcast_to(position_range(x.shape[1]), x.shape[:2])
    query, keys = project(layer, weights, x, positions, is_token)
    return attend(layer, query, positions, keys)


def decode(
    prefill: Callable,
    step: Callable,
    weights: Weights,
    x: np.ndarray,
    is_token: np.ndarray,
) -> tuple[np.ndarray, Cache]:
    """Outputs of all columns, first a prompt's and then step by step, and the cache at the end."""
    out, cache = prefill(weights, x[:, :PROMPT], is_token[:, :PROMPT])
    outs = [out]
    for t in range(PROMPT, LENGTH):
        out, cache = step(weights, cache, x[:, t : t + 1])
        outs.append(out)
    return np.concatenate(outs, 1), cache


def draw() -> tuple[Weights, np.ndarray]:
    """Weights and the tokens of every row."""
    rng = np.random.default_rng(0)
    widths = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
    weights = {
        name: rng.standard_normal((DIM, heads, HEAD_DIM), np.float32) / np.sqrt(DIM)
        for name, heads in widths.items()
    }
    weights["table"] = rng.standard_normal((LENGTH, DIM), np.float32)
    tokens = rng.standard_normal((BATCH, LENGTH, DIM), np.float32)
    return jax.tree.map(jnp.float32, weights), tokens


def main() -> None:
    """Print the table."""
    weights, tokens = draw()
    print(f"{'':27} {'largest':>10} {'compiled':>14} {'cache,':>8}")
    print(LINE.format(*TITLES))
    for scheme, (kind, slots, window) in product(SCHEMES, CACHES):
        layer = Layer(scheme, slots, window)
        full = np.asarray(jax.jit(partial(full_pass, layer))(weights, tokens))
        # The cache is donated, so that a step writes in place.
        jitted_prefill = jax.jit(partial(prefill, layer))
        jitted_step = jax.jit(partial(step, layer), donate_argnames="cache")
        for padding, pads in PADDING.items():
            token = np.arange(LENGTH) - np.array(pads)[:, None]  # of row and column
            is_token, at = token >= 0, (np.arange(BATCH)[:, None], token.clip(0))
            out, cache = decode(
                jitted_prefill, jitted_step, weights, tokens[at], is_token
            )
            apart = np.abs(out - full[at])[is_token].max()
            programs = jitted_step._cache_size()
            size = sum(array.nbytes for array in jax.tree.leaves(cache))
            print(LINE.format(scheme, kind, padding, f"{apart:.1e}", programs, size))
    print(
        "\nlargest difference: of a token's output, from that of one pass over its whole row without a cache.\n"
        "compiled of all steps: programs for them; the same one serves every step and every prompt."
    )


if __name__ == "__main__":
    main()
