"""Positions: of ranges, padded, packed, sharded and decoded tokens, and of pixels; and every scheme at them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import posenc_jax
import posenc_torch

from .twins import TWINS, Twin
from .variants import U

pytestmark = pytest.mark.usefixtures("compiled_quickly")

both = pytest.mark.parametrize("twin", TWINS, ids=str)
orders = pytest.mark.parametrize("order", ["contiguous", "zigzag"])

# Float64 sums of a dozen terms of order 1.
ROUNDING = 1e-13

TOKENS, HEADS, HEAD_DIM = 12, 6, 4
RNG = np.random.default_rng(21)
TABLE = RNG.normal(size=(TOKENS, 5))
INV_FREQ = 100.0 ** -np.arange(0, 1, 0.5)
SLOPES = np.linspace(0.1, 1, HEADS)

# Every scheme at positions [..., tokens]: results have the tokens in the last axis but one.
SCHEMES: dict[str, Callable[[Twin, np.ndarray], np.ndarray]] = {
    "sinusoidal": lambda twin, at: twin.call(
        "sinusoidal_position_encoding", at, 7, dtype=twin.float64
    ),
    "learned": lambda twin, at: twin.call("learned_position_encoding", TABLE, at),
    "rope": lambda twin, at: np.concatenate(
        twin.call("rope_cos_sin", at, INV_FREQ, dtype=twin.float64), -1
    ),
    "alibi": lambda twin, at: twin.call("alibi_bias", at, TOKENS, SLOPES),
}
each_scheme = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)


def attended(
    twin: Twin,
    arrays: tuple[np.ndarray, ...],
    query_positions: np.ndarray,
    key_positions: np.ndarray,
    **options: Any,
) -> np.ndarray:
    """Causal attention with rotated queries and keys and a linear bias, so that a wrong position shows twice."""

    def rotated(x, positions):
        tables = twin.call("rope_cos_sin", positions, INV_FREQ, dtype=twin.float64)
        return twin.call_heads("apply_rope", x, *tables, count=1)

    query, key, value = arrays
    return twin.call_heads(
        "dot_product_attention",
        rotated(query, query_positions),
        rotated(key, key_positions),
        value,
        count=3,
        is_causal=True,
        alibi_slopes=SLOPES,
        query_positions=query_positions,
        key_positions=key_positions,
        **options,
    )


def drawn(batch: int, tokens: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(22)
    return tuple(rng.normal(size=(3, batch, tokens, HEADS, HEAD_DIM)))


# ------------------------------------------------------------------------------ ranges


@both
def test_position_range_begins_at_each_offset(twin):
    np.testing.assert_array_equal(twin.call("position_range", 4), [0, 1, 2, 3])
    np.testing.assert_array_equal(twin.call("position_range", 3, offset=5), [5, 6, 7])
    np.testing.assert_array_equal(twin.call("position_range", 2, offset=-1), [-1, 0])
    offsets = np.array([[0, 7, -2], [131_071, 1, 0]], np.int32)
    found = twin.call("position_range", 4, offset=offsets)
    np.testing.assert_array_equal(found, offsets[..., None] + np.arange(4))
    scalar = twin.array(np.array([9]))[0]
    np.testing.assert_array_equal(
        twin.call("position_range", 2, offset=scalar), [9, 10]
    )


@both
def test_last_positions_end_where_the_keys_do(twin):
    np.testing.assert_array_equal(twin.call("last_positions", 2, 5), [3, 4])
    np.testing.assert_array_equal(twin.call("last_positions", 1, 1), [0])
    np.testing.assert_array_equal(twin.call("last_positions", 3, 3), [0, 1, 2])


# ----------------------------------------------------------------------------- padding

MASKS = {
    "none": [1, 1, 1, 1, 1],
    "left": [0, 0, 1, 1, 1],
    "right": [1, 1, 1, 0, 0],
    "both_sides": [0, 1, 1, 1, 0],
    "holes": [1, 0, 1, 0, 1],
    "one_token": [0, 0, 0, 0, 1],
    "all_padding": [0, 0, 0, 0, 0],
}
# Of BLOOM, OPT, RoBERTa, and what `out_of_range="zero"` makes zero.
STARTS = {"bloom": (0, 0), "opt": (2, 1), "roberta": (8, 7), "outside": (0, -1)}


def counted(mask: list[int], start: int, padding: int) -> list[int]:
    positions, following = [], start
    for token in mask:
        positions.append(following if token else padding)
        following += token
    return positions


@both
@pytest.mark.parametrize(("start", "padding"), STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_positions_from_mask_counts_the_tokens(twin, mask, start, padding):
    found = twin.call(
        "positions_from_mask", np.array(mask, bool), start=start, padding=padding
    )
    np.testing.assert_array_equal(found, counted(mask, start, padding))


@both
def test_positions_from_mask_takes_batch_axes(twin):
    masks = np.array(list(MASKS.values())[:6], bool).reshape(2, 3, 5)
    found = twin.call("positions_from_mask", masks)
    alone = [counted(mask, 0, 0) for mask in list(MASKS.values())[:6]]
    np.testing.assert_array_equal(found.reshape(6, 5), alone)


# Token ids with padding in front, behind and in between; 1 is the padding of most models.
IDS = np.array([[1, 1, 5, 6, 1, 7], [5, 6, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1]])


@both
@pytest.mark.parametrize("pad", [0, 1, 5])
@pytest.mark.parametrize(
    ("model", "owner"),
    [
        ("roberta", "RobertaEmbeddings"),
        ("camembert", "CamembertEmbeddings"),
        ("xmod", "XmodEmbeddings"),
        ("m2m_100", "M2M100SinusoidalPositionalEmbedding"),
        ("kosmos2", "Kosmos2TextSinusoidalPositionalEmbedding"),
        ("mpnet", None),
        ("esm", None),
        ("luke", None),
    ],
)
def test_positions_from_mask_are_the_models_own(twin, model, owner, pad):
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    home = getattr(module, owner) if owner else module
    own = home.create_position_ids_from_input_ids(torch.from_numpy(IDS), pad)
    found = twin.call(
        "positions_from_mask", np.not_equal(IDS, pad), start=pad + 1, padding=pad
    )
    np.testing.assert_array_equal(found, own.numpy())


@both
def test_positions_from_mask_of_published_faults(twin):
    # sentence-transformers#3879 (D5): RoBERTa's positions begin at padding_idx + 1
    ids = np.array([5, 6, 1])
    found = twin.call("positions_from_mask", ids != 1, start=2, padding=1)
    np.testing.assert_array_equal(found, [2, 3, 1])
    # unsloth#3699 (D1): one row of positions for a batch that is not padded alike
    mask = np.array([[0, 0, 1, 1], [1, 1, 1, 1]], bool)
    found = twin.call("positions_from_mask", mask)
    np.testing.assert_array_equal(found[0, 2:], [0, 1])
    np.testing.assert_array_equal(found[1], [0, 1, 2, 3])
    # transformers#7372 (D10): OPT's rows of three tokens, and of two new ones after a cached one
    found = twin.call("positions_from_mask", np.ones(3, bool), start=2, padding=1)
    np.testing.assert_array_equal(found, [2, 3, 4])
    np.testing.assert_array_equal(found[-2:], [3, 4])


@both
@pytest.mark.parametrize("cached", [0, 1, 3])
def test_positions_from_mask_are_those_that_opt_reads(twin, cached):
    from transformers.models.opt import modeling_opt

    rows = modeling_opt.OPTLearnedPositionalEmbedding(5, 1)
    rows.weight.data[:] = torch.arange(7.0)[:, None]
    mask = np.array(list(MASKS.values()), bool)
    read = rows(torch.from_numpy(mask).to(torch.int64), cache_length=cached)
    found = twin.call("positions_from_mask", mask, start=2, padding=1)
    np.testing.assert_array_equal(found[:, cached:], read[..., 0].detach().numpy())


@both
def test_positions_from_mask_are_those_that_bloom_biases(twin):
    from transformers.models.bloom import modeling_bloom

    mask = np.array(list(MASKS.values()), bool)
    counted = torch.from_numpy(mask).to(torch.int64)
    # The only head has the slope 2 ** -8.
    bias = modeling_bloom.build_alibi_tensor(counted, 1, torch.float32)
    found = twin.call("positions_from_mask", mask)
    np.testing.assert_array_equal(found, 256 * bias[:, 0].numpy())


LEFT_PADDED = np.array([[0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]], bool)


@both
@each_scheme
def test_left_padded_row_has_the_encoding_of_an_unpadded_one(twin, scheme):
    """TransformerLens#1609 (D2): a learned table read without the mask."""
    padded = scheme(twin, twin.call("positions_from_mask", LEFT_PADDED))
    for row, mask in zip(padded, LEFT_PADDED, strict=True):
        alone = scheme(twin, np.arange(mask.sum()))
        np.testing.assert_allclose(row[..., mask, :], alone, rtol=0, atol=ROUNDING)


@both
def test_left_padded_row_has_the_attention_of_an_unpadded_one(twin):
    arrays = drawn(*LEFT_PADDED.shape)
    positions = twin.call("positions_from_mask", LEFT_PADDED)
    visible = LEFT_PADDED[:, None, None]
    padded = attended(twin, arrays, positions, positions, mask=visible)
    for row, mask in enumerate(LEFT_PADDED):
        at = np.arange(mask.sum())
        alone = attended(twin, tuple(x[row][mask] for x in arrays), at, at)
        np.testing.assert_allclose(padded[row][mask], alone, rtol=0, atol=ROUNDING)


# ----------------------------------------------------------------------------- packing


@both
def test_positions_from_segments_begin_again_with_every_document(twin):
    def found(*ids: int, dtype: Any = np.int32) -> list[int]:
        return twin.call("positions_from_segments", np.array(ids, dtype)).tolist()

    # Megatron-LM#453 (D22): documents of 3 and 2 tokens
    assert found(0, 0, 0, 1, 1) == [0, 1, 2, 0, 1]
    # An id that returns later is another document; the numbers themselves say nothing.
    assert found(4, 4, -1, 4, 4, 4) == [0, 1, 0, 0, 1, 2]
    assert found(9, 9, 9, dtype=np.int8) == [0, 1, 2]
    assert found(3, 2, 1, dtype=np.int64) == [0, 0, 0]
    assert found(7) == [0]


@both
def test_positions_from_segments_takes_batch_axes(twin):
    lengths = np.array([[[3, 2, 4], [1, 7, 1]], [[9, 0, 0], [4, 4, 1]]])
    ids = [np.repeat([5, 6, 7], row) for row in lengths.reshape(-1, 3)]
    ids = np.array(ids, np.int32).reshape(2, 2, 9)
    found = twin.call("positions_from_segments", ids)
    expected = [
        np.concatenate([np.arange(n) for n in row]) for row in lengths.reshape(-1, 3)
    ]
    np.testing.assert_array_equal(found.reshape(-1, 9), expected)


@both
@each_scheme
def test_packed_document_has_the_encoding_that_it_has_alone(twin, scheme):
    segments = np.array([3, 3, 3, 3, 1, 1, 3, 3, 3, 0], np.int32)
    packed = scheme(twin, twin.call("positions_from_segments", segments))
    for start, stop in ((0, 4), (4, 6), (6, 9), (9, 10)):
        alone = scheme(twin, np.arange(stop - start))
        found = packed[..., start:stop, :]
        np.testing.assert_allclose(found, alone, rtol=0, atol=ROUNDING)


# ------------------------------------------------------------------------------ shards


def shards_of(twin: Twin, length: int, count: int, order: str) -> np.ndarray:
    """[count, length / count]"""
    ranks = np.arange(count, dtype=np.int32)
    return twin.call("shard_positions", length, ranks, count, order=order)


@both
def test_shard_positions_of_two(twin):
    # TransformerEngine#3057 (D24), which tested the first shard alone
    zigzag = shards_of(twin, 8, 2, "zigzag")
    np.testing.assert_array_equal(zigzag, [[0, 1, 6, 7], [2, 3, 4, 5]])
    contiguous = shards_of(twin, 8, 2, "contiguous")
    np.testing.assert_array_equal(contiguous, [[0, 1, 2, 3], [4, 5, 6, 7]])


@both
@orders
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shard_positions_are_each_token_once(twin, order, count):
    length = 2 * 3 * count
    shards = shards_of(twin, length, count, order)
    assert shards.shape == (count, 6)
    np.testing.assert_array_equal(np.sort(shards, axis=None), np.arange(length))
    for rank in range(count):
        alone = twin.call("shard_positions", length, rank, count, order=order)
        np.testing.assert_array_equal(alone, shards[rank])
    # How many keys the queries of a shard see under a causal mask.
    work = (shards + 1).sum(-1)
    assert (work == work[0]).all() == (order == "zigzag" or count == 1)


@orders
@pytest.mark.parametrize("count", [2, 3])
def test_shard_positions_of_a_traced_shard(order, count):
    """In the program that every device runs, where the shard's number is known only as it runs."""

    def program(shift: jax.Array) -> jax.Array:
        shard = jax.lax.axis_index("shards")
        return shift + posenc_jax.shard_positions(TOKENS, shard, count, order=order)

    mapped = jax.vmap(program, axis_name="shards", axis_size=count, in_axes=None)
    found = jax.jit(mapped)(jnp.int32(100))
    assert found.dtype == jnp.int32
    expected = 100 + shards_of(TWINS[0], TOKENS, count, order)
    np.testing.assert_array_equal(found, expected)


@both
@orders
@each_scheme
def test_encoding_by_shard_is_that_of_the_whole(twin, order, scheme):
    """Sharded tokens are taken in the order of all shards' positions, and put back by its inverse."""
    shards = shards_of(twin, TOKENS, 3, order)
    by_shard = [scheme(twin, positions) for positions in shards]
    back = np.argsort(shards.ravel())
    found = np.concatenate(by_shard, -2)[..., back, :]
    np.testing.assert_allclose(
        found, scheme(twin, np.arange(TOKENS)), rtol=0, atol=ROUNDING
    )


@both
@orders
def test_attention_by_shard_is_that_of_the_whole(twin, order):
    """TransformerEngine#1046 (D25): queries of one shard, and the keys of all in the order they are gathered."""
    q, k, v = drawn(2, TOKENS)
    at = np.arange(TOKENS)
    whole = attended(twin, (q, k, v), at, at)
    shards = shards_of(twin, TOKENS, 3, order)
    gathered = shards.ravel()
    for positions in shards:
        arrays = (q[:, positions], k[:, gathered], v[:, gathered])
        found = attended(twin, arrays, positions, gathered)
        np.testing.assert_allclose(found, whole[:, positions], rtol=0, atol=ROUNDING)


# ---------------------------------------------------------------------------- decoding


@both
@each_scheme
def test_encoding_by_step_is_that_of_the_whole(twin, scheme):
    steps = [
        scheme(twin, twin.call("position_range", 1, offset=cached))
        for cached in range(TOKENS)
    ]
    whole = scheme(twin, np.arange(TOKENS))
    np.testing.assert_allclose(np.concatenate(steps, -2), whole, rtol=0, atol=ROUNDING)


@both
def test_position_of_the_next_token_of_each_row(twin):
    """Of the mask with the new tokens in it, the last; or of a range that begins after each row's tokens."""
    mask = LEFT_PADDED
    tokens = mask.sum(-1).astype(np.int32)
    for _ in range(3):
        mask = np.append(mask, np.ones((len(mask), 1), bool), -1)
        following = twin.call("positions_from_mask", mask)[..., -1:]
        np.testing.assert_array_equal(following, tokens[:, None])
        ranged = twin.call("position_range", 1, offset=tokens)
        np.testing.assert_array_equal(ranged, following)
        tokens += 1


@both
def test_attention_by_step_is_that_of_the_whole(twin):
    """Left-padded rows with a cache of fixed size: what it does not have yet stands after the query."""
    query, key, value = drawn(*LEFT_PADDED.shape)
    positions = twin.call("positions_from_mask", LEFT_PADDED)
    visible = LEFT_PADDED[:, None, None]
    whole = attended(twin, (query, key, value), positions, positions, mask=visible)
    for now in range(LEFT_PADDED.shape[1]):
        rows = LEFT_PADDED[:, now]
        following = twin.call("positions_from_mask", LEFT_PADDED[:, : now + 1])[:, -1:]
        arrays = (query[:, now : now + 1], key, value)
        step = attended(twin, arrays, following, positions, mask=visible)
        np.testing.assert_allclose(
            step[rows, 0], whole[rows, now], rtol=0, atol=ROUNDING
        )


# ------------------------------------------------------------------------------- grids


def padded_images() -> np.ndarray:
    """[3, 4, 5]: two images that are padded on the right and at the bottom, and one that fills the frame."""
    mask = np.zeros((3, 4, 5), bool)
    for image, (height, width) in zip(mask, ((3, 2), (1, 5), (4, 5)), strict=True):
        image[:height, :width] = True
    return mask


@both
def test_grid_positions_from_mask_count_from_one(twin):
    mask = padded_images()
    found = twin.call("grid_positions_from_mask", mask)
    assert found.shape == (3, 4, 5, 2)
    assert np.issubdtype(found.dtype, np.integer)
    for image, height, width in ((0, 3, 2), (1, 1, 5), (2, 4, 5)):
        grid = np.asarray(twin.package.grid_positions(height, width)) + 1
        own = found[image, :height, :width].reshape(-1, 2)
        np.testing.assert_array_equal(own, grid)
    # One image without an axis for the batch, with holes: pixels above and to the left, this one among them.
    holes = np.random.default_rng(23).uniform(size=(4, 5)) < 0.6
    found = twin.call("grid_positions_from_mask", holes)
    for y, x in np.ndindex(4, 5):
        above, before = holes[: y + 1, x].sum(), holes[y, : x + 1].sum()
        np.testing.assert_array_equal(found[y, x], [above, before])


@both
def test_grid_positions_from_mask_normalized(twin):
    """Each image, however padded, has the positions of one that is not."""
    mask = padded_images()
    for normalize, shift in (("end", 0.0), ("centre", 0.5)):
        found = twin.call(
            "grid_positions_from_mask", mask, normalize=normalize, dtype=twin.float64
        )
        assert found.dtype == np.float64
        for image, height, width in ((0, 3, 2), (1, 1, 5), (2, 4, 5)):
            y = (np.arange(1, height + 1) - shift) / (height + 1e-6)
            x = (np.arange(1, width + 1) - shift) / (width + 1e-6)
            own = found[image, :height, :width]
            # A quotient and a sum.
            np.testing.assert_allclose(own[..., 0].T, [y] * width, rtol=4e-16)
            np.testing.assert_allclose(own[..., 1], [x] * height, rtol=4e-16)


@both
@pytest.mark.parametrize(
    ("model", "owner", "normalize"),
    [
        ("detr", "DetrSinePositionEmbedding", None),
        ("detr", "DetrSinePositionEmbedding", "end"),
        ("conditional_detr", "ConditionalDetrSinePositionEmbedding", "end"),
        ("maskformer", "MaskFormerSinePositionEmbedding", "end"),
        ("deformable_detr", "DeformableDetrSinePositionEmbedding", "centre"),
    ],
)
def test_grid_positions_from_mask_are_the_models_own(twin, model, owner, normalize):
    """Read back from the models' sine and cosine of one angle each, of less than half a turn."""
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    mask = padded_images()[:, :3, :3] if normalize is None else padded_images()
    options = {} if normalize is None else {"normalize": True, "scale": 1.0}
    embedding = getattr(module, owner)(2, temperature=1, **options)
    # [batch, (sin y, cos y, sin x, cos x), height, width]
    shape = torch.Size((len(mask), 2, *mask.shape[1:]))
    own = embedding(shape, "cpu", torch.float32, torch.from_numpy(mask)).numpy()
    own = np.arctan2(own[:, 0::2], own[:, 1::2]).transpose(0, 2, 3, 1)
    found = twin.call("grid_positions_from_mask", mask, normalize=normalize)
    # Quotients of up to 1, or integers of up to 3; on either side, half a dozen roundings of half a unit at most.
    largest = 3 if normalize is None else 1
    np.testing.assert_allclose(found[mask], own[mask], rtol=0, atol=3 * 2 * largest * U)


# -------------------------------------------------------------------------- transforms

MAPPED: dict[str, tuple[Callable[[Any, Any], Any], np.ndarray]] = {
    "position_range": (
        lambda package, x: package.position_range(3, offset=x),
        np.array([0, 7, 131_071], np.int32),
    ),
    "positions_from_mask": (
        lambda package, x: package.positions_from_mask(x, start=2, padding=1),
        LEFT_PADDED,
    ),
    "positions_from_segments": (
        lambda package, x: package.positions_from_segments(x),
        np.array([[0, 0, 1, 1], [5, 3, 3, 3], [2, 2, 2, 2]], np.int32),
    ),
    "shard_positions": (
        lambda package, x: package.shard_positions(12, x, 3, order="zigzag"),
        np.arange(3, dtype=np.int32),
    ),
    "grid_positions_from_mask": (
        lambda package, x: package.grid_positions_from_mask(x),
        padded_images(),
    ),
    "grid_positions_from_mask_centre": (
        lambda package, x: package.grid_positions_from_mask(x, normalize="centre"),
        padded_images(),
    ),
}
each_mapped = pytest.mark.parametrize(
    ("function", "given"), MAPPED.values(), ids=MAPPED
)


@each_mapped
def test_positions_under_the_transforms_of_jax(function, given):
    eager = function(posenc_jax, jnp.asarray(given))
    assert eager.dtype in (jnp.int32, jnp.float32)

    def call(x):
        return function(posenc_jax, x)

    for transformed in (jax.jit(call), jax.vmap(call), jax.jit(jax.vmap(call))):
        found = transformed(given)
        assert found.dtype == eager.dtype
        # A compiled quotient may be a product with the rounded reciprocal.
        np.testing.assert_allclose(found, eager, rtol=3 * U)
    for x64 in (False, True):
        with jax.enable_x64(x64), jax.numpy_dtype_promotion("strict"):
            jax.eval_shape(call, given)


@each_mapped
def test_positions_under_the_transforms_of_torch(function, given):
    given = torch.from_numpy(given)
    eager = function(posenc_torch, given)
    assert eager.dtype in (torch.int64, torch.float32)

    def call(x):
        return function(posenc_torch, x)

    torch.compiler.reset()
    compiled = torch.compile(call, backend="eager", fullgraph=True)
    for transformed in (torch.func.vmap(call), compiled):
        torch.testing.assert_close(transformed(given), eager, rtol=0, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda package: package.last_positions(2, 5),
        lambda package: package.shard_positions(12, 1, 2, order="zigzag"),
        lambda package: package.grid_positions(2, 3),
        lambda package: package.patch_centres(2, 3),
    ],
    ids=["last_positions", "shard_positions", "grid_positions", "patch_centres"],
)
def test_positions_that_a_program_has_as_constants(function):
    eager = function(posenc_torch)
    torch.compiler.reset()
    compiled = torch.compile(
        lambda: function(posenc_torch), backend="eager", fullgraph=True
    )
    torch.testing.assert_close(compiled(), eager, rtol=0, atol=0)
    jitted = jax.jit(lambda: jnp.asarray(function(posenc_jax), jnp.float32))
    np.testing.assert_allclose(jitted(), eager.numpy(), rtol=U)


# ------------------------------------------------------------------------------- empty


@both
def test_positions_of_nothing(twin):
    none = np.zeros((2, 0), bool)
    ranks = np.arange(3, dtype=np.int32)
    for shape, name, arguments, options in (
        ((0,), "position_range", (0,), {"offset": 5}),
        ((3, 0), "position_range", (0,), {"offset": ranks}),
        ((0, 4), "position_range", (4,), {"offset": ranks[:0]}),
        ((0,), "last_positions", (0, 3), {}),
        ((0,), "last_positions", (0, 0), {}),
        ((2, 0), "positions_from_mask", (none,), {}),
        ((0, 2), "positions_from_mask", (none.T,), {}),
        ((2, 0), "positions_from_segments", (none.astype(np.int32),), {}),
        ((0, 2), "positions_from_segments", (none.T.astype(np.int32),), {}),
        ((0,), "positions_from_segments", (none[0].astype(np.int32),), {}),
        ((3, 0), "shard_positions", (0, ranks, 3), {"order": "contiguous"}),
        ((3, 0), "shard_positions", (0, ranks, 3), {"order": "zigzag"}),
        ((0, 4), "shard_positions", (12, ranks[:0], 3), {"order": "zigzag"}),
        ((2, 0, 2), "grid_positions_from_mask", (none,), {}),
        ((0, 2, 2), "grid_positions_from_mask", (none.T,), {"normalize": "end"}),
        ((2, 0, 2), "grid_positions_from_mask", (none,), {"normalize": "centre"}),
    ):
        found = twin.call(name, *arguments, **options)
        assert found.shape == shape, (name, arguments)
