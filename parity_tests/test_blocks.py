"""What is easily got wrong when a call is cut into blocks, or computed in a TPU's 32 bits."""

from __future__ import annotations

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from .implementations import cut_into
from .test_implementations import (
    BLOCK,
    HEADS,
    SLOPES,
    VALUE_DIM,
    assert_close,
    attend,
    by_blocks,
    drawn,
    results,
)


@pytest.fixture(autouse=True)
def small_blocks_in_float64():
    with cut_into(4), jax.enable_x64(True):
        yield


@by_blocks
def test_empty_slots_do_not_hide_a_block(implementation):
    """A key at -2 ** 31 that is masked, among keys within the window: its block has others to look at."""
    block = BLOCK[implementation]
    at = np.arange(2 * block, dtype=np.int32)
    slots = np.where(at == 1, -(2**31), at)
    options = {
        "sliding_window": 3 * block,
        "query_positions": at,
        "key_positions": slots.astype(np.int32),
        "mask": (at != 1)[None, None, None],
    }
    learnt = drawn(2 * block, 2 * block)
    expected = results("reference", learnt, options)
    assert_close(results(implementation, learnt, options), expected)


@by_blocks
def test_positions_beyond_int32(implementation):
    """Of 64 bits, where x64 is on: only their differences matter."""
    at = np.arange(13) + 2**31 - 5
    options = {
        "is_causal": True,
        "sliding_window": 6,
        "query_positions": at,
        "key_positions": at,
    }
    learnt = {**drawn(13, 13), "alibi_slopes": SLOPES}
    near = {**options, "query_positions": at - at[0], "key_positions": at - at[0]}
    expected = results("reference", learnt, near)
    assert_close(results(implementation, learnt, options), expected)


def test_segment_ids_beyond_int32():
    """No two documents of a TPU's 32 bits are one of 64."""
    ids = np.arange(13) // 7 * 2**32
    options = {"query_segment_ids": ids, "key_segment_ids": ids}
    small = {name: ids // 2**32 for name in options}
    learnt = drawn(13, 13)
    expected = results("reference", learnt, small)
    assert_close(results("blockwise", learnt, options), expected)
    with pytest.raises(ValueError, match="takes segment ids beyond int32"):
        attend("pallas_tpu", learnt, options)


def test_mask_of_queries_is_not_multiplied_by_keys():
    """Keys that pad the last block are no reason for an array of all pairs."""
    mask = np.arange(13)[:, None] % 2 == 0
    call = functools.partial(attend, "blockwise", options={"mask": mask})
    assert "13,16]" not in str(jax.make_jaxpr(call)(drawn(13, 13)))
    learnt = drawn(13, 13)
    assert_close(
        results("blockwise", learnt, {"mask": mask}),
        results("reference", learnt, {"mask": mask}),
    )


@by_blocks
def test_strict_promotion_of_bfloat16(implementation):
    learnt = {name: jnp.asarray(x, jnp.bfloat16) for name, x in drawn(13, 13).items()}
    learnt["scale"] = jnp.asarray(0.25, jnp.bfloat16)
    cotangent = jnp.ones((2, 13, HEADS, VALUE_DIM), jnp.bfloat16)
    with jax.numpy_dtype_promotion("strict"):
        found = results(implementation, learnt, {}, cotangent)
    expected = results(implementation, learnt, {}, cotangent)
    for name, x in expected.items():
        np.testing.assert_array_equal(found[name], x)


@by_blocks
def test_calls_outside_jit_compile_once(implementation):
    learnt = drawn(13, 13)
    options = {"is_causal": True, "alibi_slopes": SLOPES}

    def gradient():
        def loss(query):
            return attend(implementation, {**learnt, "query": query}, options).sum()

        return jax.grad(loss)(learnt["query"])

    module = importlib.import_module(f"posenc_jax.kernels.{implementation}")
    gradient()
    compiled = module._forward._cache_size(), module._backward._cache_size()
    gradient()
    assert compiled == (module._forward._cache_size(), module._backward._cache_size())
    assert min(compiled) > 0


@by_blocks
def test_large_logits_leave_the_weights_as_they_are(implementation):
    """peak + log(total) in one float32 would lose the total: slopes times positions of 1e7, all keys at one place."""
    learnt = {name: x.astype(np.float32) for name, x in drawn(13, 13).items()}
    options = {
        "alibi_slopes": SLOPES.astype(np.float32),
        "alibi_kind": "key",
        "query_positions": np.arange(13, dtype=np.int32),
        "key_positions": np.full(13, 10**7, np.int32),
    }
    cotangent = np.random.default_rng(9).normal(size=(2, 13, HEADS, VALUE_DIM))
    cotangent = cotangent.astype(np.float32)
    expected = results("reference", learnt, options, cotangent)
    found = results(implementation, learnt, options, cotangent)
    # The logits are rounded alike; a dozen terms are summed in another order.
    assert_close(found, expected, 2e-5)


def test_derivative_of_the_gradient_in_float32():
    """A compiler may round logits one way for their maximum and another way where that is looked for among them."""
    rng = np.random.default_rng(0)
    query = rng.normal(size=(2, 20, 2, 4)).astype(np.float32)
    key, value = rng.normal(size=(2, 2, 20, 1, 4)).astype(np.float32)
    slopes = np.array([0.3, 0.1], np.float32)

    @functools.partial(jax.jit, static_argnums=0)
    def along(implementation, query):
        def loss(query):
            learnt = {"query": query, "key": key, "value": value}
            options = {"is_causal": True, "alibi_slopes": slopes}
            return jnp.sin(attend(implementation, learnt, options)).sum()

        return jax.jvp(jax.grad(loss), (query,), (query,))[1]

    with cut_into(8), jax.enable_x64(False):
        found, expected = (along(name, query) for name in ("blockwise", "reference"))
    # Two dozen terms of order 1, each off by a few of float32's 6e-8.
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
