"""Attention: parity over masks, windows, segments, caps, biases and grouped heads; what it must equal."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch

import posenc_jax

from .instrument import DTYPES
from .twins import TWINS

PARITY = ("attention.",)

both = pytest.mark.parametrize("twin", TWINS, ids=str)

# Float64 sums of a dozen terms of order 1.
ROUNDING = 1e-13
# The frameworks' own attention in float32: sums of a dozen terms, a few of float32's 6e-8 each.
FLOAT32 = 2e-6

RNG = np.random.default_rng(8)
Q = RNG.normal(size=(2, 7, 6, 4))
K = RNG.normal(size=(2, 7, 3, 4))
V = RNG.normal(size=(2, 7, 3, 5))


def test_attention_parity(parity_case):
    parity_case.run().check()


def attend(twin, q=Q, k=K, v=V, **options):
    return twin.call_heads("dot_product_attention", q, k, v, count=3, **options)


@both
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_attention_equals_the_framework_own(twin, is_causal):
    """Where the frameworks' own attention can do the case at all."""
    q, k, v = (x[..., :4].astype(DTYPES["float32"]) for x in (Q, K, V))
    jax_own = jax.nn.dot_product_attention(q, k, v, is_causal=is_causal)
    torch_own = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(x).transpose(1, 2) for x in (q, k, v)),
        is_causal=is_causal,
        enable_gqa=True,
    ).transpose(1, 2)
    ours = attend(twin, q, k, v, is_causal=is_causal)
    np.testing.assert_allclose(ours, jax_own, atol=FLOAT32)
    np.testing.assert_allclose(ours, torch_own.numpy(), atol=FLOAT32)


@both
def test_attention_packed_equals_alone(twin):
    segments = np.array([[0, 0, 0, 1, 1, 1, 1]] * 2)
    positions = np.array([[0, 1, 2, 0, 1, 2, 3]] * 2)
    slopes = np.linspace(0.1, 1, 6)
    packed = attend(
        twin,
        is_causal=True,
        query_positions=positions,
        key_positions=positions,
        query_segment_ids=segments,
        key_segment_ids=segments,
        alibi_slopes=slopes,
    )
    for part in (slice(0, 3), slice(3, 7)):
        alone = attend(
            twin,
            *(x[:, part] for x in (Q, K, V)),
            is_causal=True,
            alibi_slopes=slopes,
        )
        np.testing.assert_allclose(packed[:, part], alone, atol=ROUNDING)


@both
@pytest.mark.parametrize("window", [None, 3], ids=["all", "window"])
def test_attention_step_equals_row_of_the_whole(twin, window):
    options = {
        "is_causal": True,
        "sliding_window": window,
        "alibi_slopes": np.linspace(0.1, 1, 6),
    }
    whole = attend(twin, **options)
    step = attend(
        twin, Q[:, 4:5], query_positions=np.array([4]), key_positions=7, **options
    )
    np.testing.assert_allclose(step, whole[:, 4:5], atol=ROUNDING)


@both
def test_attention_left_padding_equals_none(twin):
    """Two pads in front, excluded by the mask and not counted in the positions."""
    pads = 2
    mask = (np.arange(7) >= pads)[None, None, None, :]
    positions = np.maximum(np.arange(7) - pads, 0)
    options = {"is_causal": True, "alibi_slopes": np.linspace(0.1, 1, 6)}
    padded = attend(
        twin,
        mask=mask,
        query_positions=positions,
        key_positions=positions,
        **options,
    )
    alone = attend(twin, *(x[:, pads:] for x in (Q, K, V)), **options)
    np.testing.assert_allclose(padded[:, pads:], alone, atol=ROUNDING)


@both
def test_attention_sliding_window_keeps_that_many_keys(twin):
    """The query's own key and the window - 1 before it; values that name their position show which."""
    value = np.broadcast_to(np.eye(7)[None, :, None], (2, 7, 3, 7))
    seen = attend(twin, Q, K, value, is_causal=True, sliding_window=3) > 0
    expected = np.tril(np.ones((7, 7), bool)) & ~np.tril(np.ones((7, 7), bool), -3)
    np.testing.assert_array_equal(seen, np.broadcast_to(expected[:, None], seen.shape))


@both
@pytest.mark.parametrize("how", ["mask", "bias", "segments", "positions"])
def test_attention_dead_row_is_zero(twin, how):
    mask = np.ones((1, 1, 7, 7), bool)
    mask[..., 3, :] = False
    bias = np.where(mask, 0.0, -np.inf)
    options = {
        "mask": {"mask": mask},
        "bias": {"bias": bias},
        "segments": {
            "query_segment_ids": np.array([0, 0, 0, 9, 0, 0, 0]),
            "key_segment_ids": np.zeros(7, np.int32),
        },
        "positions": {
            "is_causal": True,
            "query_positions": np.array([9, 9, 9, -1, 9, 9, 9]),
            "key_positions": np.arange(7),
        },
    }[how]
    out = attend(twin, **options)
    assert not out[:, 3].any()
    others = np.delete(np.arange(7), 3)
    np.testing.assert_allclose(out[:, others], attend(twin)[:, others], atol=ROUNDING)


@both
def test_attention_soft_cap_comes_before_the_bias(twin):
    """A bias far above the cap must still decide: it would be flattened to the cap if it came first."""
    bias = np.zeros((1, 1, 7, 7))
    bias[..., 5] = 1_000.0
    out = attend(twin, bias=bias, logit_softcap=1.0)
    expected = np.broadcast_to(np.repeat(V[:, 5:6], 2, axis=2), out.shape)
    np.testing.assert_allclose(out, expected, atol=ROUNDING)


@both
def test_attention_with_an_alibi_module_aligns_ends(twin):
    class Alibi:
        slopes = np.linspace(0.1, 1, 6)
        kind = "symmetric"

    step = twin.call_heads(
        "scaled_dot_product_attention_with_alibi",
        Q[:, -2:],
        K,
        V,
        Alibi(),
        count=3,
        is_causal=True,
    )
    whole = attend(twin, alibi_slopes=np.linspace(0.1, 1, 6), is_causal=True)
    np.testing.assert_allclose(step, whole[:, -2:], atol=ROUNDING)


ENDS = np.array([-(2**31), -1, 0, 2**31 - 1], np.int32)


@pytest.mark.parametrize("window", [2, 2**31])
@both
def test_attention_window_holds_at_the_ends_of_int32(twin, window):
    """Distances that do not fit an integer wrap, and look near or negative: an empty slot of a cache is -2 ** 31."""
    value = np.broadcast_to(np.eye(4)[None, :, None], (2, 4, 3, 4))
    options = {
        "sliding_window": window,
        "query_positions": ENDS,
        "key_positions": ENDS,
    }
    seen = attend(twin, Q[:, :4], K[:, :4], value, **options)
    apart = abs(ENDS[:, None].astype(np.int64) - ENDS)
    np.testing.assert_array_equal(seen[0, :, 0] > 0, apart < window)


def test_attention_window_holds_in_32_bits():
    value = np.broadcast_to(np.eye(4, dtype=np.float32)[:, None], (4, 3, 4))
    seen = posenc_jax.dot_product_attention(
        Q[0, :4].astype(np.float32),
        K[0, :4].astype(np.float32),
        value,
        sliding_window=2**31,
        query_positions=ENDS,
        key_positions=ENDS,
    )
    apart = abs(ENDS[:, None].astype(np.int64) - ENDS)
    np.testing.assert_array_equal(seen[:, 0] > 0, apart < 2**31)


@pytest.mark.parametrize("name", ["query_positions", "key_positions"])
@both
def test_attention_makes_no_range_that_does_not_fit(twin, name):
    """A mistaken length is an error, not 8 terabytes."""
    options = {"query_positions": 7, "key_positions": 7, name: 2**40}
    with pytest.raises(
        ValueError, match=rf"`{name}` must have shape .*, got \({2**40},\)"
    ):
        attend(twin, is_causal=True, **options)
