"""Fused kernels of others: ALiBi folded into heads, what the kernels are handed, and what they are not given.

Splash attention runs here, interpreted, and is compiled for TPUs. cuDNN runs on no machine of these tests: what it is
handed goes through JAX's own attention in its place, and into the program for a GPU, whose calls are read.
"""

from __future__ import annotations

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posenc_jax import alibi_slopes, dot_product_attention
from posenc_jax._scores import Operands, Rules, Terms, Tokens
from posenc_jax._scores import attend as reference
from posenc_jax.kernels import FUSED, KERNELS, _folded, cudnn, splash

from . import tpu

BATCH, HEADS, KV_HEADS, TOKENS, HEAD_DIM, VALUE_DIM = 2, 4, 2, 200, 16, 20

CAUSAL = Rules(True, None, "symmetric")
FULL = Rules(False, None, "symmetric")

# One part of 8 bits, two, three, and none.
SLOPES = np.array([0.5, 0.25 + 2**-10, 1 / 3, 0.0], np.float32)

# Rounding to a dtype, relative.
UNIT = {"float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}

HALF = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])


def call(dtype="bfloat16", *, tokens=TOKENS, keys=None, head_dim=HEAD_DIM, **changes):
    """A plain call, and what is different about it."""
    keys = tokens if keys is None else keys
    rng = np.random.default_rng(8)
    shapes = (
        (BATCH, HEADS, tokens, head_dim),
        (BATCH, KV_HEADS, keys, head_dim),
        (BATCH, KV_HEADS, keys, VALUE_DIM),
    )
    query, key, value = (jnp.asarray(rng.normal(size=s), dtype) for s in shapes)
    positions = changes.pop("positions", (np.arange(tokens), np.arange(keys)))
    segment_ids = changes.pop("segment_ids", (None, None))
    mask = changes.pop("mask", None)
    terms = Terms(**{"scale": head_dim**-0.5, **changes})
    sides = map(Tokens, positions, segment_ids)
    return Operands(query, key, value, terms, mask, *sides)


def with_gradients(attend, rules, operands):
    """Outputs, and the gradients of query, key and value."""

    @jax.jit
    def both(*learnt):
        def run(query, key, value):
            changed = operands._replace(query=query, key=key, value=value)
            return attend(rules, changed)

        out, pull = jax.vjp(run, *learnt)
        return out, *pull(jnp.cos(out))

    return [np.asarray(x, np.float64) for x in both(*operands[:3])]


def assert_near(found, expected, bound):
    """Relative to the largest element of each."""
    for name, x, y in zip(
        ("out", "query", "key", "value"), found, expected, strict=True
    ):
        assert np.abs(x - y).max() <= bound * np.abs(y).max(), name


# Folding


@pytest.mark.parametrize(
    ("kind", "is_causal"),
    [
        ("symmetric", True),
        ("signed", True),
        ("key", True),
        ("past", True),
        ("future", True),
        ("signed", False),
        ("key", False),
    ],
)
def test_folding_equals_the_bias(kind, is_causal):
    """In float64; the reference without ALiBi stands for a kernel that knows none."""
    rules, slopes = Rules(is_causal, None, kind), SLOPES.astype(np.float64)

    def folded(rules, operands):
        query, key = _folded.fold(rules, operands, operands.terms.scale)
        terms = operands.terms._replace(slopes=None)
        return reference(rules, operands._replace(query=query, key=key, terms=terms))

    with jax.enable_x64(True):
        operands = call("float64", tokens=600, slopes=slopes, scale=0.3)
        found = with_gradients(folded, rules, operands)
        expected = with_gradients(reference, rules, operands)
    # Logits of 150 have a unit of 2e-14, which is the relative error of a weight; sums of 600 of these.
    assert_near(found, expected, 1e-12)


@HALF
@pytest.mark.parametrize("heads", [8, 12])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_folded_channels_are_exact(dtype, heads, head_dim):
    """What the kernel multiplies adds up to the bias within float32's rounding of the slope, at every key."""
    slopes, scale, tokens = alibi_slopes(heads), head_dim**-0.5, 3000
    ones = jnp.zeros((1, heads, tokens, 1), dtype)
    operands = Operands(
        ones, ones, ones, Terms(scale, slopes=slopes), None, Tokens(), Tokens()
    )
    query, key = (
        np.asarray(x, np.float64)[0, :, :, 1:]
        for x in _folded.fold(CAUSAL, operands, scale)
    )
    bias = scale * (query[:, 0, None] @ key.swapaxes(-1, -2))[:, 0]
    wanted = slopes[:, None].astype(np.float64) * np.arange(tokens)
    # float16 has no more bits below 2 ** -24, which `alibi_refusal` counts.
    smallest = scale * 2**-25 * tokens if dtype == "float16" else 0
    error = np.abs((bias - bias[:, :1]) - (wanted - wanted[:, :1])).max(1)
    assert (error <= 2**-24 * wanted.max(1) + smallest).all()
    if heads == 8 and head_dim == 64:
        assert not error.any()
        assert query.shape[-1] == 2


def logit_error(dtype, slope, tokens, head_dim=64):
    """The largest error of float32 sums that begin with the bias, which is the worst order, in units of a weight."""
    rng = np.random.default_rng(8)
    query = jnp.asarray(rng.normal(size=(1, 1, 8, head_dim)) * head_dim**-0.5, dtype)
    key = jnp.asarray(rng.normal(size=(1, 1, tokens, head_dim)), dtype)
    terms = Terms(1.0, slopes=np.array([slope], np.float32))
    operands = Operands(query, key, key, terms, None, Tokens(), Tokens())
    query, key = (
        np.asarray(x, np.float64)[0, 0] for x in _folded.fold(CAUSAL, operands, 1.0)
    )
    terms = query[:, None] * key
    np.testing.assert_array_equal(terms, terms.astype(np.float32))
    sums = np.add.accumulate(terms[..., ::-1].astype(np.float32), -1)[..., -1]
    return np.abs(sums - terms.sum(-1)).max() / UNIT[dtype]


@pytest.mark.parametrize(
    ("dtype", "slope", "longest"),
    [
        ("bfloat16", 0.5, 15_616),
        ("bfloat16", 1 / 3, 22_784),
        ("float16", 0.5, 1280),
    ],
)
def test_folding_is_refused_where_its_sums_would_show(dtype, slope, longest):
    """Against float64: up to the limit sums are off by less than weights are rounded, far beyond it by more."""

    def refusal(tokens):
        one = jnp.zeros((1, 1, tokens, 64), dtype)
        terms = Terms(1.0, slopes=np.array([slope], np.float32))
        operands = Operands(one, one, one, terms, None, Tokens(), Tokens())
        return _folded.alibi_refusal(CAUSAL, operands, 1.0)

    assert refusal(longest) is None
    assert "a logit may be off" in refusal(longest + 256)
    assert logit_error(dtype, slope, longest) < 1
    assert logit_error(dtype, 4 * slope, longest) > 1


# Splash attention


# Two documents, and queries of a third that has no keys.
PACKED = np.repeat([0, 1, 9], [60, 100, 40])[None]
PACKED_KEYS = np.repeat([0, 1], [60, 140])[None]
# Padding at the end of one sequence, and nothing but padding in the other.
PADDING = (np.arange(TOKENS) < np.array([[150], [0]]))[:, None, None]

SPLASH = {
    "fewer keys, soft cap": (
        FULL,
        {"keys": 100, "positions": (None, None), "softcap": 1.5},
    ),
    "window, padding": (Rules(False, 70, "symmetric"), {"mask": PADDING}),
    "causal window, packed": (
        Rules(True, 70, "symmetric"),
        {"segment_ids": (jnp.asarray(PACKED), jnp.asarray(PACKED_KEYS))},
    ),
}


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(splash, "BLOCK", 128)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("case", SPLASH)
def test_splash_equals_the_reference(case):
    rules, changes = SPLASH[case]
    operands = call("float32", **changes)
    assert splash.refusal(rules, operands) is None
    found = with_gradients(splash.attend, rules, operands)
    expected = with_gradients(reference, rules, operands)
    # Sums of up to 200 terms in another order, and weights from another way to sum them.
    assert_near(found, expected, 32 * UNIT["float32"])


@pytest.mark.usefixtures("small_blocks")
def test_splash_with_alibi_equals_the_reference():
    operands = call(slopes=SLOPES)
    assert splash.refusal(CAUSAL, operands) is None
    found = with_gradients(splash.attend, CAUSAL, operands)
    expected = with_gradients(reference, CAUSAL, operands)
    # The kernel rounds weights, their gradients, and what it returns.
    assert_near(found, expected, 3 * UNIT["bfloat16"])


def test_splash_passes_the_gradient_of_the_scale():
    operands = call("float32", tokens=128)

    def loss(attend, scale):
        terms = operands.terms._replace(scale=scale)
        return jnp.sin(attend(CAUSAL, operands._replace(terms=terms))).sum()

    found, expected = (
        jax.jit(jax.grad(lambda scale, f=f: loss(f, scale)))(jnp.float32(0.3))
        for f in (splash.attend, reference)
    )
    # A sum over 10 000 products of query and gradient, which cancel to about a hundredth.
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("topology", tpu.TOPOLOGIES[:1])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_splash_compiles_for_tpus(topology, dtype, monkeypatch):
    """Forward and backward, at the precision "highest" of these tests, at which the kernel alone would not."""
    monkeypatch.setattr(splash, "_interpreted", lambda: False)
    sharding = jax.sharding.SingleDeviceSharding(tpu.device(topology))
    slopes = SLOPES if dtype == "bfloat16" else None
    plain = call(dtype, tokens=256, head_dim=64, slopes=slopes)
    assert splash.refusal(CAUSAL, plain) is None
    ids = jax.ShapeDtypeStruct((BATCH, 256), jnp.int32, sharding=sharding)
    specs = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x in plain[:3]
    ]

    def both(ids, *learnt):
        tokens = Tokens(np.arange(256), ids)

        def run(*learnt):
            operands = Operands(*learnt, plain.terms, None, tokens, tokens)
            return splash.attend(CAUSAL, operands)

        out, pull = jax.vjp(run, *learnt)
        return pull(out)

    with tpu.uncached():
        program = jax.jit(both).lower(ids, *specs).compile().as_text()
    for phase in ("fwd", "dq", "dkv"):
        assert f"splash_mha_{phase}_segmented" in program


# cuDNN


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of compute capability 9.0."""
    monkeypatch.setattr(cudnn, "_compute_capability", lambda: 9.0)


@pytest.fixture
def handed(gpu, monkeypatch):
    """JAX's own attention in the place of cuDNN, and what it was handed."""
    calls, own = [], jax.nn.dot_product_attention

    def dot_product_attention(*arrays, implementation, **options):
        calls.append((arrays, implementation, options))
        # In float32, in which products of halves are exact and which a CPU has.
        arrays = (x.astype(jnp.float32) for x in arrays)
        out = own(*arrays, implementation="xla", **options)
        return out.astype(calls[-1][0][0].dtype)

    monkeypatch.setattr(jax.nn, "dot_product_attention", dot_product_attention)
    return calls


CUDNN = {
    "fewer keys": (FULL, {"keys": 100, "positions": (None, None)}),
    "causal window": (Rules(True, 70, "symmetric"), {}),
    "wide window": (Rules(True, 2**40, "symmetric"), {}),
    "ALiBi": (CAUSAL, {"slopes": SLOPES}),
    "ALiBi of the key": (Rules(False, None, "key"), {"slopes": SLOPES}),
}


@pytest.mark.parametrize(
    ("case", "dtype"), [*((case, "bfloat16") for case in CUDNN), ("ALiBi", "float16")]
)
def test_cudnn_is_handed_the_same_attention(case, dtype, handed):
    rules, changes = CUDNN[case]
    operands = call(dtype, **changes)
    assert cudnn.refusal(rules, operands) is None
    found = with_gradients(cudnn.attend, rules, operands)
    expected = with_gradients(reference, rules, operands)
    # Outputs and gradients are rounded once on either side.
    assert_near(found, expected, 2 * UNIT[dtype])
    ((arrays, implementation, _),) = handed
    assert implementation == "cudnn"
    channels = {x.shape[-1] for x in arrays}
    assert len(channels) == 1
    assert channels.pop() % 8 == 0
    assert {x.dtype.name for x in arrays} == {dtype}


def test_cudnn_calls_of_a_gpu_program(gpu, monkeypatch):
    """Lowered for a GPU, compiled by none: the calls that cuDNN would get, forward and backward."""
    library = "jax._src.cudnn.fused_attention_stablehlo"
    monkeypatch.setattr(f"{library}.check_cudnn_version", lambda: 91_000)
    monkeypatch.setattr(f"{library}.check_compute_capability", lambda _: True)
    operands = call(tokens=128, slopes=SLOPES)

    def both(*learnt):
        def run(*learnt):
            changed = operands._replace(
                **dict(zip(("query", "key", "value"), learnt, strict=True))
            )
            return cudnn.attend(Rules(True, 70, "symmetric"), changed)

        out, pull = jax.vjp(run, *learnt)
        return pull(out)

    program = jax.jit(both).trace(*operands[:3]).lower(lowering_platforms=("cuda",))
    configs = re.findall(
        r'@(__cudnn\$\w+).*?backend_config = "(.*?)"', program.as_text()
    )
    assert [name for name, _ in configs] == [
        "__cudnn$fmhaSoftmax",
        "__cudnn$fmhaSoftmaxBackward",
    ]
    for _, config in configs:
        fused = json.loads(config.replace("\\22", '"'))["cudnn_fmha_backend_config"]
        assert fused["mask_type"] == "CAUSAL"
        assert fused["sliding_window_length"] == 70
        assert fused["fmha_scale"] == operands.terms.scale
        assert fused["dropout_rate"] == 0


# What is refused


def traced(x):
    """An array whose values are not known, as inside a program that is being built."""
    tracers = []
    jax.make_jaxpr(tracers.append)(x)
    return tracers[0]


INDICES = np.arange(TOKENS)
BOTH = [
    ("bias", CAUSAL, {"bias": jnp.zeros((1, 1, 1, TOKENS))}, "`bias`"),
    (
        "other positions",
        CAUSAL,
        {"positions": (INDICES, INDICES + 1)},
        "positions other than 0, 1, 2",
    ),
    (
        "traced positions",
        CAUSAL,
        {"positions": (traced(INDICES), INDICES)},
        "positions that are not known",
    ),
    (
        "unequal lengths",
        CAUSAL,
        {"keys": 100},
        "positions of 200 queries and 100 keys",
    ),
    (
        "learnt slopes",
        CAUSAL,
        {"slopes": traced(SLOPES)},
        "`alibi_slopes` that are not known",
    ),
    ("symmetric", FULL, {"slopes": SLOPES}, "`alibi_kind` 'symmetric' without"),
    (
        "steep slopes",
        CAUSAL,
        {"slopes": 200 * SLOPES},
        "`alibi_slopes` up to 100 with 200 tokens",
    ),
    ("float64", CAUSAL, {"dtype": "float64"}, "float64"),
    (
        "too long",
        CAUSAL,
        {"slopes": SLOPES / 1000, "tokens": 2**16 + 1, "head_dim": 1},
        "more than 65536 tokens",
    ),
]
REFUSED = [
    *((module, *row) for module in (splash, cudnn) for row in BOTH),
    (splash, "float16", CAUSAL, {"dtype": "float16"}, "float16"),
    (
        splash,
        "float32 with ALiBi",
        CAUSAL,
        {"dtype": "float32", "slopes": SLOPES},
        "in float32",
    ),
    (
        splash,
        "mask of queries",
        FULL,
        {"mask": np.ones((1, 1, TOKENS, 1), bool)},
        "`mask` that differs",
    ),
    (
        splash,
        "mask of heads",
        FULL,
        {"mask": np.ones((1, HEADS, 1, TOKENS), bool)},
        "`mask` that differs",
    ),
    (
        splash,
        "mask and segments",
        CAUSAL,
        {"mask": PADDING, "segment_ids": (jnp.asarray(PACKED),) * 2},
        "`mask` and segment ids",
    ),
    (
        splash,
        "padded segments",
        FULL,
        {"segment_ids": (jnp.asarray(PACKED),) * 2},
        "segment ids without `is_causal`",
    ),
    (
        splash,
        "long segment ids",
        CAUSAL,
        {"segment_ids": (PACKED.astype(np.int64),) * 2},
        "segment ids of int64",
    ),
    (
        splash,
        "learnt soft cap",
        CAUSAL,
        {"softcap": traced(np.float32(1))},
        "`logit_softcap` that is not known",
    ),
    (
        splash,
        "soft cap with ALiBi",
        CAUSAL,
        {"softcap": 2.0, "slopes": SLOPES},
        "`alibi_slopes` with a `logit_softcap`",
    ),
    (cudnn, "float32", CAUSAL, {"dtype": "float32"}, "float32"),
    (cudnn, "mask", FULL, {"mask": PADDING}, "`mask`"),
    (
        cudnn,
        "slopes below float16",
        CAUSAL,
        {"dtype": "float16", "slopes": SLOPES / 2**11, "tokens": 2**16, "head_dim": 1},
        "`alibi_slopes` up to 0.000244 with 65536 tokens in float16",
    ),
    (
        cudnn,
        "segments",
        CAUSAL,
        {"segment_ids": (jnp.asarray(PACKED),) * 2},
        "segment ids",
    ),
    (cudnn, "soft cap", CAUSAL, {"softcap": 2.0}, "`logit_softcap`"),
    (cudnn, "learnt scale", CAUSAL, {"scale": traced(np.float32(1))}, "`scale` that"),
    (cudnn, "window", Rules(False, 70, "symmetric"), {}, "`sliding_window` without"),
    (
        cudnn,
        "wide heads",
        CAUSAL,
        {"head_dim": 256, "slopes": SLOPES},
        "more than 256 channels",
    ),
]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("module", "rules", "changes", "words"),
    [
        pytest.param(
            module,
            *row,
            id=f"{module.__name__.rpartition('.')[2]}-{name}".replace(" ", "_"),
        )
        for module, name, *row in REFUSED
    ],
)
def test_refused_by_name(module, rules, changes, words):
    with jax.enable_x64(changes.get("dtype") == "float64"):
        assert words in module.refusal(rules, call(**changes))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("module", [splash, cudnn])
def test_future_alone_is_nothing_under_causality(module):
    """So any slopes will do."""
    rules = Rules(True, None, "future")
    assert module.refusal(rules, call(slopes=traced(SLOPES))) is None


def test_refused_for_another_backend(monkeypatch):
    assert cudnn.refusal(CAUSAL, call()) == "a backend without an NVIDIA GPU (here cpu)"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert splash.refusal(CAUSAL, call()) == "the backend gpu"
    monkeypatch.setattr(cudnn, "_compute_capability", lambda: 8.0)
    operands = call(head_dim=128, slopes=SLOPES)
    assert "more than 128 channels of a head (here 136" in cudnn.refusal(
        CAUSAL, operands
    )
    assert cudnn.refusal(CAUSAL, call(head_dim=128)) is None


def test_refused_for_another_jax(monkeypatch):
    """Whose splash attention has no sinks."""
    monkeypatch.setattr(jax, "__version_info__", (0, 7, 2))
    assert "jax before 0.8" in splash.refusal(CAUSAL, call())


@pytest.mark.parametrize("implementation", [*KERNELS, *FUSED])
def test_refused_for_export_of_any_length(implementation):
    shape = jax.export.symbolic_shape(f"1, n, {HEADS}, {HEAD_DIM}")
    x = jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    def attend(x):
        return dot_product_attention(x, x, x, implementation=implementation)

    sentence = 'be "reference" or None for sizes that are not known when it is built'
    with pytest.raises(ValueError, match=sentence):
        jax.eval_shape(attend, x)


def test_splash_is_refused_where_shard_map_checks():
    """JAX's own kernel does not say over which axes its results vary."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("data")
    refusals = []

    def attend(x):
        refusals.append(splash.refusal(FULL, call()._replace(query=x)))
        return x

    for check in (True, False):
        mapped = jax.shard_map(
            attend, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check
        )
        jax.eval_shape(mapped, call().query)
    assert refusals == ["a `jax.shard_map` with `check_vma`", None]


# The whole way


def attended(x, slopes, implementation, scale=None):
    return dot_product_attention(
        x,
        x,
        x,
        is_causal=True,
        alibi_slopes=slopes,
        query_positions=np.arange(8),
        key_positions=8,
        scale=scale,
        implementation=implementation,
    )


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_what_comes_from_the_host_is_known_inside_jit(kind):
    """Positions of NumPy's or of an int, and slopes of NumPy's, also on a mesh whose axes are explicit."""
    axis_type = getattr(jax.sharding.AxisType, kind)
    mesh = jax.make_mesh((1,), ("data",), axis_types=(axis_type,))
    x = jnp.asarray(np.random.default_rng(8).normal(size=(1, 8, HEADS, HEAD_DIM)))
    spec = jax.sharding.PartitionSpec("data")
    x = jax.device_put(x.astype(jnp.bfloat16), jax.sharding.NamedSharding(mesh, spec))

    @jax.jit
    def splash(x, scale):
        return attended(x, SLOPES, "splash", scale)

    # A power of two, by which queries are multiplied exactly.
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    scale = jax.device_put(jnp.float32(0.25), everywhere)
    with jax.set_mesh(mesh):
        found = splash(x, scale)
    expected = attended(x, SLOPES, "reference", scale)
    bound = UNIT["bfloat16"] * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound)


def test_what_is_refused_names_what_takes_it():
    x = jnp.zeros((1, 8, HEADS, HEAD_DIM), jnp.bfloat16)
    with pytest.raises(ValueError, match=r"blockwise.* for .alibi_slopes.* not known"):
        jax.jit(attended, static_argnums=2)(x, SLOPES, "splash")
