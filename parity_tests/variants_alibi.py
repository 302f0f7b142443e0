"""ALiBi's slopes and biases as every published model and library has them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import torch

from .variants import Reference, Variant

__all__ = ["VARIANTS"]

# Heads, not a power of two, and tokens.
HEADS, N = 12, 5
# Two sentences padded on the left. The longer one has 3 tokens, so that products with its positions 0, 1 and 2 are
# exact even in Falcon's bfloat16.
MASK = np.array([[0, 0, 1, 1, 1], [0, 0, 0, 1, 1]], bool)

# "alibi.slopes.authors.n12"
AUTHORS = np.array(
    [
        *(0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625),
        *(0.7071067811865476, 0.35355339059327384),
        *(0.17677669529663692, 0.08838834764831849),
    ]
)
# The authors' of two heads, with which most of the stored biases were made.
TWO = np.array([0.0625, 0.00390625])


def _times(slopes: np.ndarray, distance: Any) -> np.ndarray:
    """[heads, q, k], slopes by distances."""
    return slopes[:, None, None] * np.asarray(distance, np.float64)


def _ahead(queries: int, keys: int) -> np.ndarray:
    """j - i of queries that end where the keys do."""
    return np.arange(keys) - np.arange(keys - queries, keys)[:, None]


# ----------------------------------------------------------------------------- slopes


def _authors() -> Reference:
    return Reference(AUTHORS, {"heads": HEADS})


def _mpt_slopes() -> Reference:
    from transformers.models.mpt import modeling_mpt

    # "alibi.slopes.mpt.n12.max16", of llm-foundry
    stored = [
        *(0.25, 0.0625, 0.015625, 0.00390625, 0.0009765625, 0.000244140625),
        *(6.103515625e-05, 1.52587890625e-05, 0.5, 0.125, 0.03125, 0.0078125),
    ]
    # [heads, 1, 2], of the keys 1 and 0 tokens before the last.
    bias = modeling_mpt.build_mpt_alibi_tensor(HEADS, 2, alibi_bias_max=16)
    slopes = -bias[:, 0, 0].numpy()
    np.testing.assert_array_equal(slopes, stored)
    return Reference(slopes, {"heads": HEADS})


# "alibi.slopes.attention_gym.n12"
UNIFORM = np.array(
    [
        *(0.6299605369567871, 0.39685025811195374, 0.25, 0.15749011933803558),
        *(0.09921257197856903, 0.0625, 0.03937253728508949, 0.02480313926935196),
        *(0.015625, 0.009843134321272373, 0.00620078481733799, 0.00390625),
    ]
)


def _uniform() -> Reference:
    return Reference(UNIFORM, {"heads": HEADS})


def _shard() -> Reference:
    shards, rank = 4, 2
    given = {"heads": HEADS, "here": HEADS // shards, "rank": rank}
    return Reference(np.split(AUTHORS, shards)[rank], given)


def _some_heads() -> Reference:
    # The eight heads with a bias have "alibi.slopes.authors.n8", which begins the list of twelve.
    value = np.concatenate((AUTHORS[:8], np.zeros(HEADS - 8)))
    return Reference(value, {"heads": HEADS, "biased": 8})


# ----------------------------------------------------------------------------- biases


def _neox() -> Reference:
    # "alibi.bias.neox.n2.L4"
    rows = [[0, 0, 0, 0], [-1, 0, 0, 0], [-2, -1, 0, 0], [-3, -2, -1, 0]]
    return Reference(_times(TWO, rows), {"n": 4, "heads": 2})


def _mpt_full() -> Reference:
    # "alibi.bias.mpt_full.n2.L4", without its axis for the batch
    rows = [[0, -1, -2, -3], [-1, 0, -1, -2], [-2, -1, 0, -1], [-3, -2, -1, 0]]
    return Reference(_times(TWO, rows), {"n": 4, "heads": 2})


def _flash() -> Reference:
    # "alibi.bias.flash.n2.2x4", not causal
    rows = [[-2, -1, 0, -1], [-3, -2, -1, 0]]
    return Reference(_times(TWO, rows), {"queries": 2, "keys": 4, "heads": 2})


def _bloom_without_mask() -> Reference:
    return _bloom(np.ones((1, N), np.int64), {"n": N})


def _bloom_padded() -> Reference:
    return _bloom(MASK, {"mask": MASK})


def _bloom(mask: np.ndarray, given: dict[str, Any]) -> Reference:
    from transformers.models.bloom import modeling_bloom

    counted = torch.from_numpy(mask).to(torch.int64)
    bias = modeling_bloom.build_alibi_tensor(counted, HEADS, torch.float32)
    # [batch * heads, 1, keys] there; the batch of one stays out where no mask is given.
    shape = (HEADS, 1, N) if "n" in given else (len(mask), HEADS, 1, N)
    return Reference(bias.reshape(shape).numpy(), {**given, "heads": HEADS})


def _mpt() -> Reference:
    from transformers.models.mpt import modeling_mpt

    bias = modeling_mpt.build_mpt_alibi_tensor(HEADS, N)
    return Reference(bias.numpy(), {"n": N, "heads": HEADS})


def _flash_causal() -> Reference:
    # "alibi.bias.flash.n2.2x4", causal: one row for both queries
    value = _times(TWO, [[-3, -2, -1, 0]])
    return Reference(value, {"keys": 4, "heads": 2})


def _attention_gym() -> Reference:
    # Of its stored biases of query 0 and key 1, and in proportion.
    return Reference(_times(UNIFORM, _ahead(N, N)), {"n": N, "heads": HEADS})


def _data2vec(metric: str, exponent: float) -> Reference:
    def bias(height: int, width: int, slopes: np.ndarray) -> np.ndarray:
        points = list(product(range(height), range(width)))
        apart = np.abs(np.array(points)[:, None] - np.array(points)) ** exponent
        return -_times(slopes, apart.sum(-1) ** (1 / exponent))

    # "alibi.bias.data2vec2d.n1.4pos": its function is for squares only, with rows and columns of the same meaning.
    straight = {"manhattan": 0.0078125, "euclidean": 0.005524271633476019}[metric]
    near, one = 0.00390625, AUTHORS[7:8]
    rows = [
        [0, near, near, straight],
        [near, 0, straight, near],
        [near, straight, 0, near],
        [straight, near, near, 0],
    ]
    np.testing.assert_allclose(bias(2, 2, one), [-np.array(rows)], rtol=2**-24)
    given = {"height": 2, "width": 3, "heads": HEADS}
    return Reference(bias(2, 3, AUTHORS), given)


def _falcon() -> Reference:
    from transformers.models.falcon import modeling_falcon

    mask = torch.from_numpy(MASK).to(torch.int64)
    bias = modeling_falcon.build_alibi_tensor(mask, HEADS, torch.float32)
    head_dim = 8
    value = bias.reshape(len(MASK), HEADS, 1, N) / head_dim**0.5
    slopes = torch.from_numpy(AUTHORS).to(torch.bfloat16).float().numpy()
    given = {"mask": MASK, "slopes": slopes, "head_dim": head_dim}
    return Reference(value.numpy(), given)


def _learned_scale() -> Reference:
    scale = np.random.default_rng(9).uniform(0.5, 2, HEADS).astype(np.float32)
    value = _times(scale * AUTHORS, -np.abs(_ahead(N, N)))
    return Reference(value, {"n": N, "heads": HEADS, "scale": scale})


def _left_and_right() -> Reference:
    left, right = np.random.default_rng(5).uniform(0.1, 1, (2, HEADS))
    ahead = _ahead(N, N)
    value = _times(left, np.minimum(ahead, 0)) - _times(right, np.maximum(ahead, 0))
    given = {"left": left.astype(np.float32), "right": right.astype(np.float32)}
    return Reference(value, {"n": N, **given})


# Products of integers and slopes that are powers of two.
EXACT = 0.0
# A slope is rounded once, and its product with a distance.
ROUNDED = 2.0
# The largest slope has the sources' base, 2 ** -1/2, rounded, and the others its odd powers in float32: one unit of the
# base (an error that grows more slowly than the power shrinks), two of the power, one of the product; and our own.
POWER = ROUNDED + 4

SLOPES = (
    (
        "the authors, BLOOM, Falcon, GPT-NeoX, data2vec, flash-attention, x-transformers, vLLM; axlearn, haliax",
        "alibi_slopes(heads)",
        "stored",
        _authors,
        1,
    ),
    (
        "MPT's alibi_bias_max, haliax's bias_max",
        "alibi_slopes(heads, bias_max=16)",
        "stored, transformers",
        _mpt_slopes,
        EXACT,
    ),
    (
        "attention-gym, FlexAttention's examples; EasyDeL",
        'alibi_slopes(heads, rule="uniform")',
        "stored",
        _uniform,
        2,  # a float32 power there
    ),
    (
        "GPT-NeoX, vLLM: one tensor-parallel shard",
        "alibi_slopes(heads)[rank * here:(rank + 1) * here]",
        "stored",
        _shard,
        1,
    ),
    (
        "x-transformers' alibi_num_heads",
        "alibi_slopes(heads, num_biased=biased)",
        "stored",
        _some_heads,
        EXACT,
    ),
)

BIASES = (
    (
        "GPT-NeoX",
        'alibi_bias(n, n, alibi_slopes(heads), kind="past")',
        "stored",
        _neox,
        EXACT,
    ),
    (
        "MPT with sequence_id; x-transformers, data2vec 1-D; axlearn symmetric, JinaBert",
        "alibi_bias(n, n, alibi_slopes(heads))",
        "stored",
        _mpt_full,
        EXACT,
    ),
    (
        "flash-attention, not causal, as many queries as there are new tokens",
        "alibi_bias(last_positions(queries, keys), keys, alibi_slopes(heads))",
        "stored",
        _flash,
        EXACT,
    ),
    (
        "the authors, BLOOM, flash-attention's causal kernel; haliax, keras-hub",
        'alibi_bias(1, n, alibi_slopes(heads), kind="key")',
        "transformers",
        _bloom_without_mask,
        POWER,
    ),
    (
        "BLOOM with padding",
        'alibi_bias(1, positions_from_mask(mask), alibi_slopes(heads), kind="key")',
        "transformers",
        _bloom_padded,
        POWER,
    ),
    (
        "MPT",
        'alibi_bias(last_positions(1, n), n, alibi_slopes(heads), kind="signed")',
        "transformers",
        _mpt,
        POWER,
    ),
    (
        "flash-attention's causal reference",
        'alibi_bias(last_positions(1, keys), keys, alibi_slopes(heads), kind="signed")',
        "stored",
        _flash_causal,
        EXACT,
    ),
    (
        "attention-gym",
        'alibi_bias(n, n, alibi_slopes(heads, rule="uniform"), kind="signed")',
        "stored",
        _attention_gym,
        ROUNDED + 2,  # a float32 power there
    ),
    (
        "data2vec 2.0 vision, manhattan",
        "alibi_bias(grid_positions(height, width), grid_positions(height, width), alibi_slopes(heads), "
        'kind="manhattan")',
        "stored",
        lambda: _data2vec("manhattan", 1),
        ROUNDED,
    ),
    (
        "data2vec 2.0 vision, euclidean",
        "alibi_bias(grid_positions(height, width), grid_positions(height, width), alibi_slopes(heads), "
        'kind="euclidean")',
        "stored",
        lambda: _data2vec("euclidean", 2),
        ROUNDED + 1,  # and the root
    ),
    (
        "Falcon: slopes in bfloat16, the bias added before the scale of the scores",
        'alibi_bias(1, positions_from_mask(mask), slopes / head_dim ** 0.5, kind="key")',
        "transformers",
        _falcon,
        # The root and the quotient on either side; the products with 0, 1 and 2 are exact. Of longer sequences Falcon
        # rounds positions and products to bfloat16, 2 ** -8 of themselves.
        4,
    ),
    (
        "data2vec's learned scale",
        "alibi_bias(n, n, scale * alibi_slopes(heads))",
        "formula",
        _learned_scale,
        ROUNDED + 1,  # and the scaled slope
    ),
    (
        "the authors for encoders, not symmetric, slopes learned",
        'alibi_bias(n, n, left, kind="past") + alibi_bias(n, n, right, kind="future")',
        "formula",
        _left_and_right,
        ROUNDED,  # one of the two terms is zero
    ),
)

VARIANTS = tuple(Variant("alibi", *row) for row in SLOPES + BIASES)
