"""ALiBi: parity of biases, slopes, gradients and attention; slopes of the models; the kinds; whole attention layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import posenc_jax
import posenc_torch

from .instrument import oracles
from .twins import TWINS, Twin
from .variants import U

PARITY = ("alibi.", "path.alibi")

both = pytest.mark.parametrize("twin", TWINS, ids=str)

KINDS = ("symmetric", "signed", "key", "past", "future")
GRID_KINDS = ("manhattan", "euclidean")
# Those that differ by a constant of each row where keys are not after their query.
CAUSAL_KINDS = KINDS[:4]

# Float64 scores of order 1 under biases of order 10.
ROUNDING = 1e-13


def test_alibi_parity(parity_case):
    parity_case.run().check()


def attend(twin, q, k, v, **options):
    return twin.call_heads("dot_product_attention", q, k, v, count=3, **options)


def pulled_back(
    twin: Twin,
    function: Callable[..., Any],
    arrays: Sequence[np.ndarray],
    cotangent: np.ndarray,
) -> list[np.ndarray]:
    """The gradients of sum(cotangent * function(*arrays))."""
    if twin.name == "jax":
        with jax.enable_x64(True):
            _, vjp = jax.vjp(function, *map(jnp.asarray, arrays))
            return [np.asarray(gradient) for gradient in vjp(jnp.asarray(cotangent))]
    leaves = [torch.tensor(array, requires_grad=True) for array in arrays]
    found = torch.autograd.grad(function(*leaves), leaves, torch.tensor(cotangent))
    return [gradient.numpy() for gradient in found]


def distance(kind: str, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """What a slope multiplies, of positions [..., q] and [..., k], or of points in one more axis."""
    if kind in GRID_KINDS:
        apart = np.abs(queries[..., :, None, :] - keys[..., None, :, :])
        if kind == "manhattan":
            return -apart.sum(-1)
        return -np.sqrt((apart**2).sum(-1))
    i, j = queries[..., :, None], keys[..., None, :]
    return {
        "symmetric": -np.abs(i - j),
        "signed": j - i,
        "key": j + 0 * i,
        "past": np.minimum(j - i, 0),
        "future": np.minimum(i - j, 0),
    }[kind]


# ------------------------------------------------------------------------------ slopes


@both
def test_alibi_slopes_follow_the_authors(twin):
    for num_heads in range(1, 257):
        slopes = twin.call("alibi_slopes", num_heads)
        # Powers of two are exact, and the others one rounding of a float64 power.
        expected = oracles.alibi_slopes(num_heads).astype(np.float32)
        np.testing.assert_array_equal(slopes, expected, strict=True)


@both
def test_alibi_slopes_are_the_models_own(twin):
    """Of BLOOM and Falcon, raised from a float32 base; of MPT, for any largest exponent, powers of 2."""
    from transformers.models.bloom import modeling_bloom
    from transformers.models.falcon import modeling_falcon
    from transformers.models.mpt import modeling_mpt

    for num_heads in range(1, 129):
        own = twin.call("alibi_slopes", num_heads)
        bloom = modeling_bloom._get_alibi_slopes(num_heads, torch.device("cpu")).numpy()
        # The base is off by a unit, and its n-th power by n; the power is rounded by two at most, and our own slope by
        # one.
        largest = np.log2(bloom.min()) / np.log2(bloom.max())
        np.testing.assert_allclose(own, bloom, rtol=(largest + 3) * U)
        row = modeling_falcon.build_alibi_tensor(
            torch.ones(1, 2, dtype=torch.int64), num_heads, torch.float32
        )
        np.testing.assert_allclose(own, row[:, 0, 1].numpy(), rtol=2**-8 + 2**-20)
        for bias_max in (8, 16):
            mpt = modeling_mpt.build_mpt_alibi_tensor(num_heads, 2, bias_max)
            found = twin.call("alibi_slopes", num_heads, bias_max=float(bias_max))
            # The exponents are exact: bias_max divides by a power of two.
            np.testing.assert_allclose(found, -mpt[:, 0, 0].numpy(), rtol=3 * U)


@both
@pytest.mark.parametrize("rule", ["authors", "uniform"])
def test_alibi_slopes_options(twin, rule):
    def slopes(*arguments, **options):
        return twin.call(
            "alibi_slopes", *arguments, rule=rule, dtype=twin.float64, **options
        )

    assert slopes(12).dtype == np.float64
    # A larger exponent raises every slope to a power, and only that.
    np.testing.assert_allclose(slopes(12, bias_max=20.0), slopes(12) ** 2.5, rtol=1e-14)
    for biased in (0, 1, 5, 8, 12):
        some = slopes(12, num_biased=biased)
        np.testing.assert_array_equal(some[biased:], 0)
        if biased:
            np.testing.assert_array_equal(some[:biased], slopes(biased))
    np.testing.assert_array_equal(slopes(8), 2.0 ** -np.arange(1, 9))
    rules_agree = (
        slopes(12) == twin.call("alibi_slopes", 12, dtype=twin.float64)
    ).all()
    assert rules_agree == (rule == "authors")


# ------------------------------------------------------------------------------ biases


@both
def test_alibi_bias_of_the_paper(twin):
    """Figure 3 of the paper, with the distances it draws; and flash-attention's symmetric matrix."""
    half = np.array([0.5])
    signed = twin.call("alibi_bias", 3, 3, half, kind="signed")
    np.testing.assert_array_equal(
        np.tril(signed[0]), [[0, 0, 0], [-0.5, 0, 0], [-1, -0.5, 0]]
    )
    symmetric = twin.call("alibi_bias", 3, 3, half)
    np.testing.assert_array_equal(
        symmetric[0], [[0, -0.5, -1], [-0.5, 0, -0.5], [-1, -0.5, 0]]
    )
    key = twin.call("alibi_bias", 3, 3, half, kind="key")
    np.testing.assert_array_equal(key[0], [[0, 0.5, 1]] * 3)


@both
def test_alibi_past_and_future_are_the_two_sides(twin):
    slopes = oracles.alibi_slopes(6)
    past, future, symmetric = (
        twin.call("alibi_bias", 5, 7, slopes, kind=kind)
        for kind in ("past", "future", "symmetric")
    )
    np.testing.assert_array_equal(past + future, symmetric)
    np.testing.assert_array_equal(past, np.tril(symmetric))
    np.testing.assert_array_equal(future, np.triu(symmetric))


@both
def test_alibi_euclidean_is_the_shorter_way(twin):
    grid = np.stack(np.indices((3, 4, 2)), -1).reshape(-1, 3).astype(np.int32)
    one = np.array([1.0])
    manhattan, euclidean = (
        -twin.call("alibi_bias", grid, grid, one, kind=kind)[0] for kind in GRID_KINDS
    )
    axes_crossed = (grid[:, None] != grid).sum(-1)
    along = axes_crossed <= 1
    np.testing.assert_array_equal(euclidean[along], manhattan[along])
    assert (euclidean[~along] < manhattan[~along]).all()
    # The root of the mean of n squares is at least the mean of the n: 1e-15 for the rounding of a root.
    bound = euclidean * np.sqrt(np.maximum(axes_crossed, 1)) * (1 + 1e-15)
    assert (manhattan <= bound).all()


@both
@pytest.mark.parametrize("kind", GRID_KINDS)
def test_alibi_on_a_grid_of_one_axis_is_symmetric(twin, kind):
    i, j = np.array([3, 7, 0]), np.array([5, 0, 2, 9])
    slopes = oracles.alibi_slopes(6)
    found = twin.call("alibi_bias", i[:, None], j[:, None], slopes, kind=kind)
    symmetric = twin.call("alibi_bias", i, j, slopes)
    np.testing.assert_array_equal(found, symmetric)


def drawn(kind: str, rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Positions, or those of points of a plane."""
    axes = (2,) if kind in GRID_KINDS else ()
    return rng.integers(0, 50, (*shape, *axes))


@both
@pytest.mark.parametrize("kind", KINDS + GRID_KINDS)
def test_alibi_bias_of_a_part_is_the_part_of_the_whole(twin, kind):
    """Of a decoding step; of a shard's heads and tokens; of one row of a batch."""
    rng = np.random.default_rng(7)
    slopes = oracles.alibi_slopes(6)
    queries, keys = drawn(kind, rng, 2, 5), drawn(kind, rng, 2, 8)
    whole = twin.call("alibi_bias", queries, keys, slopes, kind=kind)
    assert whole.shape == (2, 6, 5, 8)
    step = twin.call("alibi_bias", queries[:, 4:], keys, slopes, kind=kind)
    np.testing.assert_array_equal(step, whole[:, :, 4:])
    heads, rows, columns = slice(2, 4), slice(1, 4), slice(4, 8)
    shard = twin.call(
        "alibi_bias", queries[:, rows], keys[:, columns], slopes[heads], kind=kind
    )
    np.testing.assert_array_equal(shard, whole[:, heads, rows, columns])
    alone = twin.call("alibi_bias", queries[1], keys[1], slopes, kind=kind)
    np.testing.assert_array_equal(alone, whole[1])


@pytest.mark.parametrize("vmap", [jax.vmap, torch.func.vmap], ids=["jax", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_alibi_bias_over_shards_of_heads(vmap, kind):
    """A vmap over what each shard has, as a program for many devices computes it."""
    package, array = (
        (posenc_jax, jnp.asarray) if vmap is jax.vmap else (posenc_torch, torch.tensor)
    )
    slopes = array(oracles.alibi_slopes(6).astype(np.float32))
    shards = vmap(lambda own: package.alibi_bias(5, 7, own, kind=kind))
    found = np.asarray(shards(slopes.reshape(3, 2))).reshape(6, 5, 7)
    whole = package.alibi_bias(5, 7, slopes, kind=kind)
    np.testing.assert_array_equal(found, np.asarray(whole))


@both
@pytest.mark.parametrize("kind", KINDS + GRID_KINDS)
def test_alibi_bias_keeps_the_dtype_of_the_slopes(twin, kind):
    """A third is another number in float32."""
    third = np.array([1 / 3])
    given = (3, 4) if kind in KINDS else (np.array([[1, 5]]), np.array([[0, 2]]))
    wide = twin.call("alibi_bias", *given, third, kind=kind)
    narrow = twin.call("alibi_bias", *given, third.astype(np.float32), kind=kind)
    assert (wide.dtype, narrow.dtype) == (np.float64, np.float32)
    assert (wide != narrow).any()
    np.testing.assert_allclose(narrow, wide, rtol=4 * U)


@both
def test_alibi_bias_is_exact_at_large_positions(twin):
    """Distances are integers: at two billion float32 positions would be 128 apart."""
    positions = 2**31 - 1 - np.arange(4)[::-1]
    bias = twin.call("alibi_bias", positions, positions, np.array([1.0]))
    near = twin.call("alibi_bias", 4, 4, np.array([1.0]))
    np.testing.assert_array_equal(bias, near)


@both
@pytest.mark.parametrize("kind", KINDS + GRID_KINDS)
def test_alibi_bias_is_exact_up_to_float32_integers(twin, kind):
    """All integers up to 2 ** 24 are float32 numbers, so the bias is as exact as its slope."""
    far = np.array([0, 1, 2**23 + 1, 2**24 - 1, 2**24])
    half = np.array([0.5], np.float32)
    queries = keys = far
    if kind in GRID_KINDS:
        # Along one axis, where both distances are that of the coordinates.
        queries, keys = (np.stack((0 * far, far), -1),) * 2
    found = twin.call("alibi_bias", queries, keys, half, kind=kind)
    expected = distance(kind, queries, keys) / 2
    if kind == "euclidean":
        # Squares are rounded in float32, and the root halves that: a unit with its own rounding.
        np.testing.assert_allclose(found[0], expected, rtol=1.5 * U)
        return
    np.testing.assert_array_equal(found[0], expected)


# --------------------------------------------------------------------------- gradients


@both
@pytest.mark.parametrize("kind", KINDS + GRID_KINDS)
def test_alibi_slopes_gradient_is_the_weighted_distance(twin, kind):
    """Learned slopes: the sum of the cotangent times what a slope of one gives, over all but the heads."""
    rng = np.random.default_rng(11)
    queries, keys = drawn(kind, rng, 2, 5), drawn(kind, rng, 2, 7)
    cotangent = rng.normal(size=(2, 6, 5, 7))
    i, j = (twin.array(positions) for positions in (queries, keys))
    (gradient,) = pulled_back(
        twin,
        lambda slopes: twin.package.alibi_bias(i, j, slopes, kind=kind),
        [rng.uniform(0.1, 1, 6)],
        cotangent,
    )
    expected = np.einsum("bhqk,bqk->h", cotangent, distance(kind, queries, keys))
    # 70 terms of order 100 in float64.
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-11)


@both
def test_alibi_learned_scale_has_the_gradient_of_its_bias(twin):
    """data2vec's scale of the slopes, for each head: through the slopes the package's own constants pass none."""
    rng = np.random.default_rng(12)
    scale, cotangent = rng.uniform(0.5, 2, 6), rng.normal(size=(6, 5, 5))
    slopes = twin.array(oracles.alibi_slopes(6))
    (gradient,) = pulled_back(
        twin,
        lambda scale: twin.package.alibi_bias(5, 5, scale * slopes),
        [scale],
        cotangent,
    )
    bias = twin.call("alibi_bias", 5, 5, oracles.alibi_slopes(6))
    expected = (cotangent * bias).sum((1, 2))
    np.testing.assert_allclose(gradient, expected, atol=ROUNDING)


def gradients(twin, kind, is_causal):
    """Of one attention, in query, key, value and slopes, in float64."""
    rng = np.random.default_rng(6)
    q, k, v, cotangent = rng.normal(size=(4, 2, 6, 9, 4))
    slopes = oracles.alibi_slopes(6)

    def attention(q, k, v, slopes):
        arrays = (x if twin.name == "torch" else x.swapaxes(1, 2) for x in (q, k, v))
        out = twin.package.dot_product_attention(
            *arrays, is_causal=is_causal, alibi_slopes=slopes, alibi_kind=kind
        )
        return out if twin.name == "torch" else out.swapaxes(1, 2)

    return pulled_back(twin, attention, [q, k, v, slopes], cotangent)


@both
@pytest.mark.parametrize("kind", CAUSAL_KINDS[1:])
def test_alibi_kinds_give_the_same_causal_attention(twin, kind):
    rng = np.random.default_rng(6)
    q, k, v = rng.normal(size=(3, 2, 9, 6, 4))
    slopes = oracles.alibi_slopes(6)

    def attended(kind, is_causal):
        options = {"alibi_slopes": slopes, "alibi_kind": kind}
        return attend(twin, q, k, v, is_causal=is_causal, **options)

    causal = attended("symmetric", True)
    np.testing.assert_allclose(attended(kind, True), causal, atol=ROUNDING)
    # Without the mask they reward the future instead, or do not see how far it is.
    assert np.abs(attended(kind, False) - attended("symmetric", False)).max() > 0.1


@both
@pytest.mark.parametrize("kind", CAUSAL_KINDS[1:])
def test_alibi_kinds_give_the_same_causal_gradients(twin, kind):
    causal, full = (gradients(twin, "symmetric", causal) for causal in (True, False))
    same, other = (gradients(twin, kind, causal) for causal in (True, False))
    for i, name in enumerate(("query", "key", "value", "slopes")):
        # The slope's gradient sums a hundred terms of order 10.
        np.testing.assert_allclose(
            same[i], causal[i], rtol=0, atol=10 * ROUNDING, err_msg=name
        )
        assert np.abs(other[i] - full[i]).max() > 0.1, name


@both
def test_alibi_future_is_not_the_distance_under_a_causal_mask(twin):
    rng = np.random.default_rng(6)
    q, k, v = rng.normal(size=(3, 2, 9, 6, 4))
    slopes = oracles.alibi_slopes(6)
    future = attend(
        twin, q, k, v, is_causal=True, alibi_slopes=slopes, alibi_kind="future"
    )
    # It biases nothing that is seen.
    np.testing.assert_array_equal(future, attend(twin, q, k, v, is_causal=True))


# --------------------------------------------------------------------------- attention


@both
def test_alibi_of_encoders_that_see_one_side_with_each_half_of_the_heads(twin):
    """The authors' second form for encoders: each half is the attention of a model of half the heads, one reversed."""
    rng = np.random.default_rng(13)
    q, k, v = rng.normal(size=(3, 2, 7, 6, 4))
    half = oracles.alibi_slopes(3)
    ahead = np.arange(7) - np.arange(7)[:, None]
    mask = np.repeat(np.stack((ahead <= 0, ahead >= 0)), 3, axis=0)
    both_halves = attend(
        twin, q, k, v, mask=mask, alibi_slopes=np.concatenate((half, half))
    )
    past = attend(
        twin, *(x[:, :, :3] for x in (q, k, v)), is_causal=True, alibi_slopes=half
    )
    future = attend(
        twin,
        *(x[:, ::-1, 3:] for x in (q, k, v)),
        is_causal=True,
        alibi_slopes=half,
    )[:, ::-1]
    expected = np.concatenate((past, future), 2)
    np.testing.assert_allclose(both_halves, expected, atol=ROUNDING)


@both
def test_alibi_of_packed_documents_is_that_of_each_alone(twin):
    """Without a causal mask, so that the bias decides both ways; the documents' lengths differ in each row."""
    rng = np.random.default_rng(14)
    q, k, v = rng.normal(size=(3, 2, 7, 6, 4))
    slopes = oracles.alibi_slopes(6)
    segments = np.array([[0, 0, 0, 1, 1, 1, 1], [4, 4, 4, 4, 4, 2, 2]], np.int32)
    positions = twin.call("positions_from_segments", segments)
    packed = attend(
        twin,
        q,
        k,
        v,
        alibi_slopes=slopes,
        alibi_kind="signed",
        query_positions=positions,
        key_positions=positions,
        query_segment_ids=segments,
        key_segment_ids=segments,
    )
    for row, ends in enumerate(((0, 3, 7), (0, 5, 7))):
        for start, stop in pairwise(ends):
            document = (x[row : row + 1, start:stop] for x in (q, k, v))
            alone = attend(twin, *document, alibi_slopes=slopes, alibi_kind="signed")
            np.testing.assert_allclose(
                packed[row : row + 1, start:stop], alone, atol=ROUNDING
            )


@both
@pytest.mark.parametrize("kind", KINDS)
def test_alibi_of_cross_attention_goes_by_the_positions(twin, kind):
    """Fewer queries than keys, standing anywhere, against the definition in float64."""
    rng = np.random.default_rng(15)
    q, k, v = (rng.normal(size=(2, n, 6, 4)) for n in (3, 8, 8))
    slopes = oracles.alibi_slopes(6)
    at = np.array([[6, 7, 8], [0, 3, 5]], np.int32)
    out = attend(
        twin,
        q,
        k,
        v,
        alibi_slopes=slopes,
        alibi_kind=kind,
        query_positions=at,
        key_positions=8,
    )
    apart = distance(kind, at, np.arange(8))[:, None]
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / 2
    weights = np.exp(scores + slopes[:, None, None] * apart)
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("bhqk,bkhd->bqhd", weights, v)
    np.testing.assert_allclose(out, expected, atol=ROUNDING)


# Left-padded sentences, as generation has them. Falcon rounds the products of slopes and positions to bfloat16, where
# only those of 0, 1, 2 and 4 are all exact, hence 3 tokens at most.
PADDED = {
    "bloom": np.array([[0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]], bool),
    "mpt": np.array([[0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]], bool),
    "falcon": np.array([[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1]], bool),
}
# Heads, not a power of two, and channels of each.
HEADS, HEAD_DIM = 12, 4


def model_of(name: str) -> tuple[torch.nn.Module, str, str, str]:
    """A model of one layer, and the names of its attention, the projection into it and the one out of it."""
    from transformers import (
        BloomConfig,
        BloomModel,
        FalconConfig,
        FalconModel,
        MptConfig,
        MptModel,
    )

    width = HEADS * HEAD_DIM
    if name == "bloom":
        config = BloomConfig(vocab_size=16, hidden_size=width, n_layer=1, n_head=HEADS)
        return BloomModel(config), "h.0.self_attention", "query_key_value", "dense"
    if name == "mpt":
        config = MptConfig(vocab_size=16, d_model=width, n_layers=1, n_heads=HEADS)
        return MptModel(config), "blocks.0.attn", "Wqkv", "out_proj"
    # As in Falcon-RW. Its "eager" attention of transformers 5.24 adds the bias to the scores and then once more with
    # the mask, so "sdpa", which adds it once.
    config = FalconConfig(
        vocab_size=16,
        hidden_size=width,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        alibi=True,
        multi_query=False,
        attn_implementation="sdpa",
    )
    return FalconModel(config), "h.0.self_attention", "query_key_value", "dense"


@cache
def layer_of(name: str) -> tuple[np.ndarray, ...]:
    """Query, key, value and output of a model's own attention, [batch, seq, heads, head_dim]."""
    model, attention, into, out_of = model_of(name)
    generator = torch.Generator().manual_seed(3)
    for weight in model.parameters():
        weight.data.normal_(0, 0.3, generator=generator)
    seen = {}
    layer = model.eval().get_submodule(attention)
    layer.get_submodule(into).register_forward_hook(
        lambda _, __, out: seen.update(qkv=out)
    )
    layer.get_submodule(out_of).register_forward_pre_hook(
        lambda _, given: seen.update(out=given[0])
    )
    mask = torch.from_numpy(PADDED[name])
    tokens = torch.randint(16, mask.shape, generator=generator)
    with torch.no_grad():
        model(tokens, attention_mask=mask.to(torch.int64))
    # MPT has all queries first, the others the query, key and value of each head together.
    inner = (3, HEADS) if name == "mpt" else (HEADS, 3)
    qkv = (
        seen["qkv"].unflatten(-1, (*inner, HEAD_DIM)).unbind(2 if name == "mpt" else 3)
    )
    return tuple(
        x.numpy() for x in (*qkv, seen["out"].unflatten(-1, (HEADS, HEAD_DIM)))
    )


@both
@pytest.mark.parametrize("kind", CAUSAL_KINDS)
@pytest.mark.parametrize("name", PADDED)
def test_alibi_attention_is_the_models_own(twin, name, kind):
    """BLOOM and Falcon bias by the key's position, MPT by its distance from the last: all are the distance."""
    q, k, v, expected = layer_of(name)
    mask = PADDED[name]
    slopes = oracles.alibi_slopes(HEADS).astype(np.float32)
    if name == "falcon":
        rounded = torch.from_numpy(slopes).to(torch.bfloat16).float().numpy()
        slopes = rounded / HEAD_DIM**0.5
    positions = twin.call("positions_from_mask", mask)
    found = attend(
        twin,
        q,
        k,
        v,
        is_causal=True,
        mask=mask[:, None, None],
        alibi_slopes=slopes,
        alibi_kind=kind,
        query_positions=positions,
        key_positions=positions,
    )
    # Logits of up to 8 in float32 on either side, each off by a few units of that, and values of up to 8.
    scale = np.abs(v).max()
    assert scale < 8
    np.testing.assert_allclose(
        found[mask], expected[mask], rtol=0, atol=2 * 4 * 8 * scale * U
    )
    # What a forgotten bias would change.
    bare = attend(twin, q, k, v, is_causal=True, mask=mask[:, None, None])
    assert np.abs(bare - expected)[mask].max() > 0.05
