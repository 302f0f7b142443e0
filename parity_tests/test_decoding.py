"""Decoding with a cache of keys and values: a prompt and then token by token, it is one pass over the whole.

The cache here is one for both packages: arrays of fixed size, full or a ring. What keys and values it holds goes
into attention with their positions and with a mask of the slots that hold tokens; nothing else knows of slots.
"""

from __future__ import annotations

import contextlib
import functools
import io
import runpy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from posenc_jax.alibi import KINDS

from .implementations import cut_into
from .twins import TWINS, Twin

pytestmark = pytest.mark.usefixtures("compiled_quickly")

CHECKOUT = Path(__file__).parents[1]

# Float64 sums of a dozen terms of order 1, twice: logits and outputs.
ROUNDING = 1e-13

BATCH, PROMPT, LENGTH = 3, 7, 16
DIM, HEADS, KV_HEADS, HEAD_DIM = 12, 6, 3, 4

RNG = np.random.default_rng(31)
TOKENS = RNG.normal(size=(BATCH, LENGTH, DIM))
JUNK = 9 * RNG.normal(size=(BATCH, PROMPT, DIM))  # what padding may hold
TABLE = RNG.normal(size=(LENGTH, DIM))
QUERY = RNG.normal(size=(DIM, HEADS, HEAD_DIM)) / DIM**0.5
KEY, VALUE = RNG.normal(size=(2, DIM, KV_HEADS, HEAD_DIM)) / DIM**0.5

SCHEMES = ("sinusoidal", "learned", "rope", "alibi")
# Slots and window: one with a slot that stays empty, and a ring shorter than the prompt and longer than its window.
CACHES = {"full": (LENGTH + 1, None), "ring": (6, 4)}
# Columns in front of each row: a prompt with fewer tokens than the ring has slots, and one that is all padding.
PADDING = {"unpadded": (0, 0, 0), "left_padded": (0, 2, PROMPT)}

JAX, TORCH = TWINS
SIDES = [(JAX, "reference"), (JAX, "blockwise"), (TORCH, "reference")]

both = pytest.mark.parametrize("twin", TWINS, ids=str)
each_side = pytest.mark.parametrize(
    ("twin", "implementation"), SIDES, ids=[f"{twin}-{how}" for twin, how in SIDES]
)
each_scheme = pytest.mark.parametrize("scheme", SCHEMES)
each_cache = pytest.mark.parametrize("cache", CACHES)
each_padding = pytest.mark.parametrize("padding", PADDING)
in_small_blocks = pytest.mark.usefixtures("float64_in_small_blocks")


@pytest.fixture
def float64_in_small_blocks() -> Iterator[None]:
    """Several blocks of keys in every cache, and of queries in the prompt."""
    with cut_into(4), jax.enable_x64(True):
        yield


class Cache(NamedTuple):
    """Everything that a step needs of the tokens before it."""

    keys: Any  # [batch, slots, kv_heads, head_dim], as attention takes them
    values: Any
    positions: Any  # [batch, slots]
    is_token: Any  # [batch, slots]
    columns: Any  # written so far, padding among them
    tokens: Any  # [batch], so far


@dataclass(frozen=True)
class Layer:
    """Causal attention with one encoding in one package."""

    twin: Twin
    scheme: str
    slots: int
    window: int | None
    implementation: str

    @property
    def xp(self) -> Any:
        return {"jax": jnp, "torch": torch}[self.twin.name]

    def project(self, x: Any, positions: Any) -> tuple[Any, Any, Any]:
        """Queries, keys and values with their positions in them, [batch, n, heads, head_dim]."""
        package, dtype = self.twin.package, self.twin.float64
        if self.scheme == "sinusoidal":
            x = x + package.sinusoidal_position_encoding(positions, DIM, dtype=dtype)
        if self.scheme == "learned":
            table = self.twin.array(TABLE)
            x = x + package.learned_position_encoding(table, positions)
        query, key, value = (
            self.xp.einsum("btc,chd->bthd", x, self.twin.array(weight))
            for weight in (QUERY, KEY, VALUE)
        )
        if self.scheme == "rope":
            rope = package.RopeConfig(HEAD_DIM, base=100.0)
            tables = rope.cos_sin(positions, dtype=dtype)
            query, key = (
                self.twin.heads(rope.apply(self.twin.heads(part), *tables))
                for part in (query, key)
            )
        return query, key, value

    def attend(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        package = self.twin.package
        slopes = package.alibi_slopes(HEADS, dtype=self.twin.float64)
        out = package.dot_product_attention(
            *map(self.twin.heads, (query, key, value)),
            is_causal=True,
            sliding_window=self.window,
            alibi_slopes=slopes if self.scheme == "alibi" else None,
            implementation=self.implementation,
            **options,
        )
        return self.twin.heads(out)

    def empty(self) -> Cache:
        """With what an allocated array may hold, and at position 0, which every query may look back to."""
        old = np.full((BATCH, self.slots, KV_HEADS, HEAD_DIM), 7.0)
        nowhere, none = np.zeros((BATCH, self.slots), int), np.zeros(BATCH, int)
        arrays = old, old, nowhere, nowhere.astype(bool), np.array(0), none
        return Cache(*map(self.twin.array, arrays))

    def write(self, cache: Cache, *new: Any) -> Cache:
        """After n more columns, of keys, values, positions and is_token: every slot has its newest column."""
        count = new[0].shape[1]
        last = cache.columns + count - 1
        newest = last - (last - self.xp.arange(self.slots)) % self.slots
        which = newest - cache.columns  # of the n; a slot without one keeps what it has

        def put(old: Any, given: Any) -> Any:
            is_new = (which >= 0).reshape(-1, *[1] * (old.ndim - 2))
            return self.xp.where(is_new, given[:, which.clip(0)], old)

        arrays = [put(old, given) for old, given in zip(cache[:4], new, strict=True)]
        return Cache(*arrays, cache.columns + count, cache.tokens + new[3].sum(-1))

    def prefill(self, cache: Cache, x: Any, is_token: Any) -> tuple[Any, Cache]:
        """A prompt attends to itself, since its first queries may need keys that a ring drops."""
        positions = self.twin.package.positions_from_mask(is_token)
        query, key, value = self.project(x, positions)
        out = self.attend(
            query,
            key,
            value,
            mask=is_token[:, None, None, :],
            query_positions=positions,
            key_positions=positions,
        )
        return out, self.write(cache, key, value, positions, is_token)

    def step(self, cache: Cache, x: Any) -> tuple[Any, Cache]:
        """The next token of every row stands at the number of its tokens so far."""
        positions = self.twin.package.position_range(1, offset=cache.tokens)
        query, key, value = self.project(x, positions)
        is_token = self.xp.ones_like(positions, dtype=bool)
        cache = self.write(cache, key, value, positions, is_token)
        out = self.attend(
            query,
            cache.keys,
            cache.values,
            mask=cache.is_token[:, None, None, :],
            query_positions=positions,
            key_positions=cache.positions,
        )
        return out, cache


@functools.cache
def programs(layer: Layer) -> tuple[Callable, Callable]:
    """The prefill and the step, each of them jitted once in a session."""
    if layer.twin is JAX:
        return jax.jit(layer.prefill), jax.jit(layer.step)
    return layer.prefill, layer.step


@functools.cache
def whole(twin: Twin, scheme: str, window: int | None) -> dict[str, np.ndarray]:
    """One pass over all tokens, that knows no cache and no padding: what it attended to, and its outputs."""
    layer = Layer(twin, scheme, 0, window, "reference")

    def everything(x: Any) -> Any:
        # For the positions of one range, the same in every row.
        query, key, value = layer.project(x, layer.twin.package.position_range(LENGTH))
        return key, value, layer.attend(query, key, value)

    found = map(np.asarray, everything(twin.array(TOKENS)))
    return dict(zip(("key", "value", "out"), found, strict=True))


def decoded(layer: Layer, padding: str) -> Iterator[tuple[Any, np.ndarray, Cache]]:
    """After the prompt and after every step: outputs, the tokens that they are of (-1 is padding), and the cache."""
    prefill, step = programs(layer)
    pads = np.array(PADDING[padding])[:, None]
    token = np.arange(LENGTH) - pads  # of each row and column
    columns = np.take_along_axis(TOKENS, token.clip(0)[..., None], 1)
    prompt = np.where(token[:, :PROMPT, None] < 0, JUNK, columns[:, :PROMPT])
    is_token = layer.twin.array(token[:, :PROMPT] >= 0)
    out, cache = prefill(layer.empty(), layer.twin.array(prompt), is_token)
    yield np.asarray(out), token[:, :PROMPT].clip(-1), cache
    for now in range(PROMPT, LENGTH):
        out, cache = step(cache, layer.twin.array(columns[:, now : now + 1]))
        yield np.asarray(out), token[:, now : now + 1], cache


def tokens_of(array: np.ndarray, token: np.ndarray) -> np.ndarray:
    """Rows of [batch, tokens, ...] by token; those of padding mean nothing."""
    return array[np.arange(BATCH)[:, None], token]


@in_small_blocks
@each_padding
@each_cache
@each_scheme
@each_side
def test_decoding_is_the_pass_over_the_whole(
    twin, implementation, scheme, cache, padding
):
    slots, window = CACHES[cache]
    layer = Layer(twin, scheme, slots, window, implementation)
    want = whole(twin, scheme, window)["out"]
    seen = 0
    for out, token, _ in decoded(layer, padding):
        real = token >= 0
        np.testing.assert_allclose(
            out[real], tokens_of(want, token)[real], rtol=0, atol=ROUNDING
        )
        seen += real.sum()
    assert seen == BATCH * LENGTH - sum(PADDING[padding])


@in_small_blocks
@each_cache
@each_scheme
@pytest.mark.parametrize("implementation", [how for twin, how in SIDES if twin is JAX])
def test_one_compiled_step_serves_every_step_and_prompt(implementation, scheme, cache):
    layer = Layer(JAX, scheme, *CACHES[cache], implementation)
    for padding in PADDING:
        for _ in decoded(layer, padding):
            pass
    assert [program._cache_size() for program in programs(layer)] == [1, 1]


@in_small_blocks
@each_padding
@each_cache
@each_scheme
@both
def test_keys_are_encoded_once_where_they_are_written(twin, scheme, cache, padding):
    """A step changes the slot of its own column alone; all keys are those that the whole pass attends to."""
    slots, window = CACHES[cache]
    layer = Layer(twin, scheme, slots, window, "reference")
    full = whole(twin, scheme, window)
    before = None
    for _, _, after in decoded(layer, padding):
        after = Cache(*map(np.asarray, after))
        real, at = after.is_token, after.positions
        for name, held in (("key", after.keys), ("value", after.values)):
            np.testing.assert_allclose(
                held[real], tokens_of(full[name], at)[real], rtol=0, atol=ROUNDING
            )
        if before is not None:
            others = np.arange(slots) != before.columns % slots
            for old, new in zip(before[:4], after[:4], strict=True):
                np.testing.assert_array_equal(new[:, others], old[:, others])
        before = after


@in_small_blocks
@each_padding
@each_cache
@both
def test_a_cache_holds_the_last_tokens_of_each_row(twin, cache, padding):
    layer = Layer(twin, "alibi", *CACHES[cache], "reference")
    for _, token, held in decoded(layer, padding):
        held = Cache(*map(np.asarray, held))
        np.testing.assert_array_equal(held.tokens, token[:, -1] + 1)
        for row, count in enumerate(held.tokens):
            tokens = np.sort(held.positions[row, held.is_token[row]])
            last = np.arange(max(count - layer.slots, 0), count)
            np.testing.assert_array_equal(tokens, last)


@in_small_blocks
@pytest.mark.parametrize("kind", KINDS)
@each_padding
@each_cache
@both
def test_alibi_biases_of_a_step_are_rows_of_the_whole(twin, cache, padding, kind):
    """Bit for bit: distances are integers before they meet the slopes. Attention adds the same, to rounding."""
    layer = Layer(twin, "alibi", *CACHES[cache], "reference")
    slopes = np.asarray(twin.package.alibi_slopes(HEADS, dtype=twin.float64))
    full = twin.call("alibi_bias", LENGTH, LENGTH, slopes, kind=kind)
    for _, token, held in list(decoded(layer, padding))[1:]:
        held = Cache(*map(np.asarray, held))
        bias = twin.call("alibi_bias", token, held.positions, slopes, kind=kind)
        # Without logits of its own, attention is the softmax of what is added to them.
        weights = twin.call_heads(
            "dot_product_attention",
            np.zeros((BATCH, 1, HEADS, HEAD_DIM)),
            np.zeros_like(held.keys),
            np.broadcast_to(
                np.eye(layer.slots)[:, None],
                (BATCH, layer.slots, KV_HEADS, layer.slots),
            ),
            count=3,
            mask=held.is_token[:, None, None],
            alibi_slopes=slopes,
            alibi_kind=kind,
            query_positions=token,
            key_positions=held.positions,
        )
        for row, query in enumerate(token[:, 0]):
            real = held.is_token[row]
            want = full[:, query, held.positions[row, real]]
            np.testing.assert_array_equal(bias[row, :, 0, real].T, want)
            want = np.exp(want) / np.exp(want).sum(-1, keepdims=True)
            np.testing.assert_allclose(
                weights[row, 0][:, real], want, rtol=0, atol=ROUNDING
            )


if (CHECKOUT / "pyproject.toml").is_file():  # the examples are not installed

    def test_the_example_is_one_function():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            example = runpy.run_path(str(CHECKOUT / "examples" / "decoding.py"))
            example["main"]()
        table, _ = printed.getvalue().split("\n\n")  # and a legend
        rows = [line.split() for line in table.splitlines()[2:]]
        assert len(rows) == len(SCHEMES) * 2 * 2
        largest = max(int(size) for *_, size in rows)
        for scheme, cache, padding, difference, compiled, size in rows:
            # Logits and outputs of up to 10 in size, rounded to 6e-8 of it some ten times: sums of 64 terms.
            assert float(difference) < 1e-5, (scheme, cache, padding)
            assert compiled == "1"
            # A quarter of the slots, and the same few counters.
            assert (int(size) < largest / 3) == (cache == "ring")
