"""Every implementation of attention: what the table says, and what a call cut into blocks must not change."""

from __future__ import annotations

import functools
import importlib
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import posenc_jax
import posenc_torch
from posenc_jax import kernels
from posenc_jax.kernels import FUSED, IMPLEMENTATIONS, blockwise

from .implementations import FEATURES, REFUSED, cut_into, outcome
from .instrument import run
from .schemes import IMPLEMENTED, pairs

# What computes by blocks itself, and all that computes by this package's own code.
BY_BLOCKS = tuple(name for name in IMPLEMENTED if name in IMPLEMENTATIONS)
OWN = ("reference", *BY_BLOCKS)
PAIRS = {
    name: pair
    for name, pair in pairs(posenc_jax, posenc_torch).items()
    if name.partition(".")[0] in BY_BLOCKS
}

by_blocks = pytest.mark.parametrize("implementation", BY_BLOCKS)
own = pytest.mark.parametrize("implementation", OWN)
# Of tests that hold however a program is rounded.
quickly = pytest.mark.usefixtures("compiled_quickly")

# Tokens of a block here; a TPU's are of 128 at least.
BLOCK = {"reference": 4, "blockwise": 4, "pallas_tpu": 128}

# Sums of a few hundred terms of order 1 in float64, each rounded to 1.1e-16 of its size.
ROUNDING = 1e-13
# The same in float32, of a dozen terms: a few of its 6e-8 each.
FLOAT32 = 2e-6

HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM = 4, 2, 8, 5
SLOPES = np.array([0.5, 0.25, 0.125, 0.0625])


@pytest.fixture(autouse=True)
def small_blocks_in_float64():
    with cut_into(4), jax.enable_x64(True):
        yield


@functools.cache
def drawn(q_len, k_len, batch=(2,)):
    rng = np.random.default_rng(8)
    return {
        "query": rng.normal(size=(*batch, q_len, HEADS, HEAD_DIM)),
        "key": rng.normal(size=(*batch, k_len, KV_HEADS, HEAD_DIM)),
        "value": rng.normal(size=(*batch, k_len, KV_HEADS, VALUE_DIM)),
    }


def attend(implementation, learnt, options):
    return posenc_jax.dot_product_attention(
        **learnt, **options, implementation=implementation
    )


def results(implementation, learnt, options, cotangent=None):
    """Outputs, and the gradients of everything in `learnt` for a cotangent that depends on the shape alone."""
    if cotangent is None:
        shape = (*learnt["query"].shape[:-1], learnt["value"].shape[-1])
        cotangent = np.random.default_rng(9).normal(size=shape)

    @jax.jit
    def run(learnt, cotangent):
        out, vjp = jax.vjp(lambda x: attend(implementation, x, options), learnt)
        return {"out": out, **vjp(cotangent)[0]}

    return run(learnt, cotangent)


def assert_close(found, expected, atol=ROUNDING):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_allclose(found[name], value, rtol=0, atol=atol, err_msg=name)


def parts(call, queries=slice(None), keys=slice(None), rows=slice(None)):
    """Some of the queries, of the keys, and of the rows of a batch."""
    return {
        name: x[rows, queries] if name in ("query", "out") else x[rows, keys]
        for name, x in call.items()
    }


# The table ---------------------------------------------------------------------------------------------------------


@quickly
@pytest.mark.parametrize(
    "implementation",
    # test_attention.py tests the reference at every level, and test_fused.py what the kernels of others take.
    [
        *BY_BLOCKS,
        *(pytest.param(name, marks=pytest.mark.full) for name in ("reference", *FUSED)),
    ],
)
@pytest.mark.parametrize("feature", FEATURES, ids=str)
def test_feature(feature, implementation):
    """Right in values and all gradients, or refused by name: the error says what can."""
    found = outcome(feature, implementation)
    if feature.name not in REFUSED.get(implementation, ()):
        assert found == "yes"
        return
    assert found.startswith('`implementation` must be "blockwise" or None for ')
    assert found.endswith(f', got "{implementation}".')


def test_what_is_refused_is_a_feature():
    names = [feature.name for feature in FEATURES]
    assert len(set(names)) == len(names)
    assert all(refused < set(names) for refused in REFUSED.values())
    assert REFUSED.keys() < set(IMPLEMENTATIONS)
    assert not {"reference", "blockwise"} & REFUSED.keys()


@pytest.mark.parametrize(
    ("profile", "dtype"),
    [
        ("packed", "float64"),
        ("packed", "float32"),
        ("left_pad", "bfloat16"),
        pytest.param("packed", "float16", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("name", PAIRS)
def test_parity(name, profile, dtype):
    """Blocks of 4, the last one padded, by the instrument."""
    run(PAIRS[name], dtype=dtype, profile=profile, seed=0, jit=True).check()


# Other people's attention ------------------------------------------------------------------------------------------


@quickly
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@by_blocks
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_are_those_of_torch(implementation, dtype):
    """Of scaled_dot_product_attention with the bias as a mask, and of flex_attention with it as a score_mod."""
    learnt = {name: x.astype(dtype) for name, x in drawn(13, 13).items()}
    slopes = SLOPES.astype(dtype)
    options = {"alibi_slopes": slopes, "is_causal": True}
    ours = jax.jit(lambda x: attend(implementation, x, options))(learnt)
    q, k, v = (torch.from_numpy(x).transpose(1, 2) for x in learnt.values())
    tensor = torch.from_numpy(slopes)

    def score_mod(score, batch, head, i, j):
        return torch.where(j <= i, score - tensor[head] * (i - j), -torch.inf)

    at = torch.arange(13)
    heads = torch.arange(HEADS)[:, None, None]
    bias = score_mod(torch.zeros(()), 0, heads, at[:, None], at)
    sdpa = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=bias.to(q.dtype), enable_gqa=True
    )
    flex = flex_attention(q, k, v, score_mod=score_mod, enable_gqa=True)
    atol = ROUNDING if dtype == "float64" else FLOAT32
    for theirs in (sdpa, flex):
        np.testing.assert_allclose(
            ours, theirs.transpose(1, 2), rtol=0, atol=atol, strict=True
        )


# Nothing to attend -------------------------------------------------------------------------------------------------


@quickly
@own
def test_rows_with_nothing_to_attend_do_nothing(implementation):
    """Query 2 stands before all keys, query 5 has no document, and all keys of the second row are padding."""
    learnt, at, ids = drawn(13, 13), np.arange(1, 14), np.zeros(13, np.int32)
    dead, live = [2, 5], np.delete(np.arange(13), [2, 5])
    options = {
        "is_causal": True,
        "query_positions": np.where(np.arange(13) == 2, 0, at),
        "key_positions": at,
        "query_segment_ids": np.where(np.arange(13) == 5, 9, ids),
        "key_segment_ids": ids,
        "mask": np.stack([ids == 0, ids != 0])[:, None, None],
    }
    cotangent = np.random.default_rng(9).normal(size=(2, 13, HEADS, VALUE_DIM))
    found = results(implementation, learnt, options, cotangent)
    assert not any(found[name][:, dead].any() for name in ("out", "query"))
    assert not any(x[1].any() for x in found.values())
    alone = results(
        "reference",
        parts(learnt, queries=live, rows=slice(1)),
        {"is_causal": True, "query_positions": at[live], "key_positions": at},
        cotangent[:1, live],
    )
    assert_close(parts(found, queries=live, rows=slice(1)), alone)


@quickly
@by_blocks
def test_call_with_nothing_to_attend_visits_no_block(implementation):
    """Not even NaN in all keys and values reaches anybody."""
    learnt = {**drawn(5, 13), "alibi_slopes": SLOPES, "scale": np.array(0.3)}
    for name in ("key", "value"):
        learnt[name] = np.full_like(learnt[name], np.nan)
    options = {
        "is_causal": True,
        "query_positions": np.arange(5),
        "key_positions": np.arange(5, 18),
    }
    found = results(implementation, learnt, options)
    assert not any(x.any() for x in found.values())


@quickly
@by_blocks
@pytest.mark.parametrize(
    "shape", [(0, 5, 5), (2, 0, 5), (2, 5, 0)], ids=["batch", "queries", "keys"]
)
def test_nothing_gives_nothing(implementation, shape):
    batch, q_len, k_len = shape
    found = results(implementation, drawn(q_len, k_len, (batch,)), {})
    assert found["out"].shape == (batch, q_len, HEADS, VALUE_DIM)
    assert not any(x.any() for x in found.values())


# Blocks ------------------------------------------------------------------------------------------------------------


@quickly
@by_blocks
@pytest.mark.parametrize("lengths", [(-1, 1), (1, -1)], ids=str)
def test_lengths_around_a_block(implementation, lengths):
    q_len, k_len = (BLOCK[implementation] + n for n in lengths)
    learnt = {**drawn(q_len, k_len), "alibi_slopes": SLOPES}
    options = {
        "is_causal": True,
        "alibi_kind": "signed",
        "query_positions": np.arange(q_len) + 2,
        "key_positions": np.arange(k_len),
    }
    found = results(implementation, learnt, options)
    assert_close(found, results("reference", learnt, options))


@quickly
@by_blocks
def test_one_query_against_many_keys(implementation):
    """And no batch axis."""
    learnt = {**drawn(1, 700, ()), "alibi_slopes": SLOPES}
    options = {
        "is_causal": True,
        "query_positions": np.array([650]),
        "key_positions": np.arange(700),
    }
    found = results(implementation, learnt, options)
    assert_close(found, results("reference", learnt, options))


@quickly
@by_blocks
@pytest.mark.parametrize("rule", ["causal", "window", "segments"])
def test_blocks_that_a_rule_empties_are_not_computed(implementation, rule):
    """NaN in keys that queries of the middle block may not attend to reaches nobody, though 0 * NaN is NaN."""
    block = BLOCK[implementation]
    at = np.arange(3 * block)
    middle = slice(block, 2 * block)
    seen = slice(2 * block) if rule == "causal" else middle
    by_position = {"query_positions": at[middle], "key_positions": at}
    options = {
        "causal": {"is_causal": True, **by_position},
        "window": {"sliding_window": 1, **by_position},
        "segments": {
            "query_segment_ids": at[middle] // block,
            "key_segment_ids": at // block,
        },
    }[rule]
    learnt = drawn(block, 3 * block)
    expected = results(
        "reference",
        parts(learnt, keys=seen),
        {k: x[seen] if k[:3] == "key" else x for k, x in options.items()},
    )
    unseen = np.delete(at, seen)
    for name in ("key", "value"):
        learnt = {**learnt, name: learnt[name].copy()}
        learnt[name][:, unseen] = np.nan
    found = results(implementation, learnt, options)
    assert_close(parts(found, keys=seen), expected)
    assert not any(found[name][:, unseen].any() for name in ("key", "value"))


def program(implementation, q_len, k_len):
    """The program of a gradient, as text; an array of all scores shows as "[...,q,k]"."""
    learnt = drawn(q_len, k_len)

    def total(learnt):
        return attend(implementation, learnt, {}).sum()

    return str(jax.make_jaxpr(jax.grad(total))(learnt))


@by_blocks
def test_scores_are_never_held_at_once(implementation):
    """Of several whole blocks, so that nothing is padded, and a whole block is not the whole."""
    q_len, k_len = 3 * BLOCK[implementation], 4 * BLOCK[implementation]
    for scores in (f"{q_len},{k_len}]", f"{k_len},{q_len}]"):
        assert scores not in program(implementation, q_len, k_len)
    assert f"{q_len},{k_len}]" in program("reference", q_len, k_len)


def test_blocks_of_many_heads_are_smaller():
    """512 heads in all: blocks of 128 tokens, whose scores are no more than those of 64 heads in blocks of 512."""
    x = jax.ShapeDtypeStruct((32, 1024, 16, 8), jnp.float32)

    def total(x):
        return posenc_jax.dot_product_attention(
            x, x, x, implementation="blockwise"
        ).sum()

    with cut_into(512):
        text = str(jax.make_jaxpr(jax.grad(total))(x))
    sizes = [
        math.prod(map(int, s.split(","))) for s in re.findall(r"\[([\d,]+)\]", text)
    ]
    assert max(sizes) == 512 * 128**2


@pytest.mark.parametrize(
    ("devices", "mapped", "options", "expected"),
    [
        (1, None, {}, "pallas_tpu"),
        (1, None, {"bias": np.zeros((40, 40), np.float32)}, "blockwise"),
        (4, None, {}, "blockwise"),
        (4, {"data", "heads"}, {}, "pallas_tpu"),
        (4, {"data"}, {}, "blockwise"),
    ],
)
def test_none_on_a_tpu(monkeypatch, devices, mapped, options, expected):
    """The kernel where one device has the whole program, which inside `jax.shard_map` is all axes of the mesh."""
    x = jax.ShapeDtypeStruct((1, 40, 2, 8), jnp.float32)
    mesh = jax.sharding.AbstractMesh((1, 1), ("data", "heads"))
    taken = []
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    monkeypatch.setattr(jax, "device_count", lambda: devices)

    def take(name, *_):
        taken.append(name)
        return blockwise

    monkeypatch.setattr(kernels, "taking", take)

    def attend(x):
        return posenc_jax.dot_product_attention(x, x, x, **options)

    if mapped:
        everywhere = jax.sharding.PartitionSpec()
        attend = jax.shard_map(
            attend,
            mesh=mesh,
            in_specs=everywhere,
            out_specs=everywhere,
            axis_names=mapped,
        )
    with cut_into(4):
        jax.eval_shape(attend, x)
    assert taken == [expected]


def test_none_holds_the_scores_only_where_they_are_few():
    """No more than a block's, or than there are numbers in the keys."""
    assert "3,4]" in program(None, 3, 4)
    assert "1,17]" in program(None, 1, 17)
    assert "13,17]" not in program(None, 13, 17)


# JAX's transformations ---------------------------------------------------------------------------------------------


OPTIONS = {"alibi_slopes": SLOPES, "is_causal": True}


def total(implementation, query, rest):
    out = attend(implementation, {"query": query, **rest}, OPTIONS)
    return jnp.sin(out).sum()


def query_and_rest():
    learnt = dict(drawn(9, 9))
    return learnt.pop("query"), learnt


@quickly
@by_blocks
def test_transformations_compose(implementation):
    """A jitted call, remade in the backward pass, differentiated, one row of the batch at a time."""

    def gradient(implementation, transform=lambda call: call):
        return jax.grad(transform(functools.partial(total, implementation)))

    def transformed(query, rest):
        remade = gradient(implementation, lambda call: jax.checkpoint(jax.jit(call)))
        return jax.vmap(remade)(query, rest)

    given = query_and_rest()
    found = jax.jit(transformed)(*given)
    expected = jax.jit(gradient("reference"))(*given)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)


@quickly
def test_second_derivatives():
    """Forward over reverse, as in `jax.hessian`, by blocks and not; of the reference reverse over reverse, too."""
    query, rest = query_and_rest()

    @functools.partial(jax.jit, static_argnums=0)
    def forward_over_reverse(implementation, query):
        gradient = jax.grad(functools.partial(total, implementation))
        return jax.jvp(lambda q: gradient(q, rest), (query,), (query,))[1]

    @jax.jit
    def reverse_over_reverse(query):
        gradient = jax.grad(functools.partial(total, "reference"))
        return jax.grad(lambda q: (gradient(q, rest) * query).sum())(query)

    expected = reverse_over_reverse(query)
    for implementation in ("reference", "blockwise"):
        found = forward_over_reverse(implementation, query)
        np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)


@by_blocks
def test_other_derivatives_are_an_error(implementation):
    """JAX's own: of the values forward, and twice backward."""
    query, rest = query_and_rest()
    call = functools.partial(total, implementation)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jit(lambda q: jax.jvp(call, (q, rest), (q, rest))).lower(query)
    twice = jax.grad(lambda q: jax.grad(call)(q, rest).sum())
    with pytest.raises((ValueError, NotImplementedError)):
        jax.jit(twice).lower(query)


@quickly
@by_blocks
def test_traced_positions_compile_once(implementation):
    traces = 0
    learnt = drawn(3, 13)

    @functools.partial(jax.jit, static_argnums=1)
    def at(offset, implementation):
        nonlocal traces
        traces += 1
        options = {"query_positions": jnp.arange(3) + offset, "key_positions": 13}
        return attend(implementation, learnt, {**OPTIONS, **options})

    for offset in (0, 4, 10):
        np.testing.assert_allclose(
            at(offset, implementation), at(offset, "reference"), rtol=0, atol=ROUNDING
        )
    assert traces == 2


@quickly
@by_blocks
def test_batch_axes(implementation):
    """What differs along the first of two, along the second, along both, or along none."""
    learnt, rng = drawn(5, 9, (2, 3)), np.random.default_rng(10)
    options = {
        "is_causal": True,
        "query_positions": rng.integers(0, 9, (3, 5)),
        "key_positions": np.arange(9),
        "query_segment_ids": rng.integers(0, 2, (2, 3, 5)),
        "key_segment_ids": rng.integers(0, 2, (2, 3, 9)),
        "mask": rng.random((2, 1, 1, 1, 9)) < 0.8,
    }
    if "learnable bias" not in REFUSED.get(implementation, ()):
        learnt = {**learnt, "bias": rng.normal(size=(3, 1, 5, 9))}
    found = results(implementation, learnt, options)
    assert_close(found, results("reference", learnt, options))


# What is easily got wrong in blocks, or in a TPU's 32 bits ----------------------------------------------------------


@quickly
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
    learnt = {
        name: x.astype(np.float32) for name, x in drawn(2 * block, 2 * block).items()
    }
    cotangent = np.ones((2, 2 * block, HEADS, VALUE_DIM), np.float32)
    with jax.enable_x64(False):  # in 64 bits no distance wraps
        expected = results("reference", learnt, options, cotangent)
        found = results(implementation, learnt, options, cotangent)
    # A hundred terms of order 1 in another order, a few of float32's 6e-8 each.
    assert_close(found, expected, 2e-5)


# Of 64 bits, where x64 is on: a position with the others far behind it, and documents that are one in 32 bits.
FAR = np.where(np.arange(13) == 3, 2**40, np.arange(13) + 2**31 - 5)
DOCUMENTS = np.arange(13) // 7 * 2**32
BEYOND_INT32 = {
    "positions": {"query_positions": FAR, "key_positions": FAR, "is_causal": True},
    "segments": {"query_segment_ids": DOCUMENTS, "key_segment_ids": DOCUMENTS},
}


@quickly
@pytest.mark.parametrize("case", BEYOND_INT32)
def test_tokens_beyond_int32(case):
    """A TPU has 32 bits: what a program cannot refuse, since it is traced, is NaN."""
    options, learnt = BEYOND_INT32[case], {**drawn(13, 13), "alibi_slopes": SLOPES}
    if case == "segments":
        del learnt["alibi_slopes"]
    small = {  # The same order and the same documents.
        name: np.unique(x, return_inverse=True)[1] if name[-3:] == "ids" else x
        for name, x in options.items()
    }
    expected = results("reference", learnt, small)
    assert_close(results("blockwise", learnt, options), expected)
    with pytest.raises(ValueError, match="for positions or segment ids beyond int32"):
        attend("pallas_tpu", learnt, options)
    rules = {"is_causal": options.get("is_causal", False)}
    traced = {name: x for name, x in options.items() if name != "is_causal"}

    @jax.jit
    def out(traced):
        return attend("pallas_tpu", learnt, traced | rules)

    assert np.isnan(out(traced)).all()
    near = {name: x % 7 for name, x in traced.items()}
    expected = attend("reference", learnt, near | rules)
    assert_close({"out": out(near)}, {"out": expected})


@quickly
def test_mask_of_queries_is_not_multiplied_by_keys():
    """Keys that pad the last block are no reason for an array of all pairs."""
    mask = np.arange(13)[:, None] % 2 == 0
    call = functools.partial(attend, "blockwise", options={"mask": mask})
    program = str(jax.make_jaxpr(call)(drawn(13, 13)))
    assert "13,16]" not in program
    assert "16,16]" not in program
    learnt = drawn(13, 13)
    assert_close(
        results("blockwise", learnt, {"mask": mask}),
        results("reference", learnt, {"mask": mask}),
    )


@quickly
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


@quickly
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


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
def test_huge_logits_are_weights_of_one(implementation):
    """Up to 1e30, compiled: a logit that is rounded another way beside its peak makes a weight of inf."""
    learnt = {name: x.astype(np.float32) for name, x in drawn(13, 13).items()}
    learnt |= {name: learnt[name] * np.float32(1e15) for name in ("query", "key")}
    double = {name: x.astype(np.float64) for name, x in learnt.items()}
    cotangent = np.random.default_rng(9).normal(size=(2, 13, HEADS, VALUE_DIM))
    expected = results("reference", double, {}, cotangent)
    found = results(implementation, learnt, {}, cotangent.astype(np.float32))
    # Rows of one weight each: values are copied, and the others' gradients are its rounding times 1e15.
    for name, unit in {"out": 1, "value": 1, "query": 1e15, "key": 1e15}.items():
        apart = np.abs(found[name] - expected[name]).max()
        assert apart <= FLOAT32 * unit, name


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
