"""The faults that are common in ports, each named in the words of a porter where a port has it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from .instrument import compare
from .instrument.in_jax import record_jax
from .instrument.stages import diverging, same_numbers

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 5, 6))
# Queries of 2 sequences, 3 heads, 5 tokens, 8 channels.
Q = RNG.normal(size=(2, 3, 5, 8))
pytestmark = pytest.mark.usefixtures("first_cause_suffices")


def causes(port, original, **inputs):
    report = compare(port, original, inputs)
    assert report.verdict == "DIVERGE", str(report)
    return report.causes


def named(words, port, original, **inputs):
    found = causes(port, original, **inputs)
    found = [cause for cause in found if not cause.startswith("the first that")]
    assert found, "no cause"
    assert words in found[0], "\n".join(found)


# ------------------------------------------------------------------------------- norms


def rms_torch(x, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


@pytest.mark.parametrize(("ours", "theirs"), [(1e-6, 1e-5), (1e-12, 1e-3)])
def test_eps_of_a_layer_norm(ours, theirs):
    """That of PyTorch is one operation, and in some ports differs by less than two right stages may."""
    port = nnx.LayerNorm(6, epsilon=ours, rngs=nnx.Rngs(0))
    words = f"eps {ours:.2g} in place of {theirs:.2g}"
    named(words, port, torch.nn.LayerNorm(6, eps=theirs), x=X)


def test_eps_of_two_norms():
    def port(x):
        for _ in range(2):
            x = jnp.tanh(x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5))
        return x

    def original(x):
        x = torch.tanh(rms_torch(x, 1e-6))
        return torch.tanh(torch.nn.functional.rms_norm(x, (6,), eps=1e-6))

    named("eps 1e-05 in place of 1e-06", port, original, x=X)


def test_eps_outside_of_the_root():
    def port(x):
        return x / (jnp.sqrt((x**2).mean(-1, keepdims=True)) + 1e-5)

    words = "eps 1e-05 added to the root in place of 1e-05 under it"
    named(words, port, lambda x: rms_torch(x, 1e-5), x=X)


def test_eps_that_gradients_alone_tell():
    """Outputs are a thousand and a little, and float32 may cost more of that than the fault."""

    def port(x):
        return 1000 + x / (jnp.sqrt((x**2).mean(-1, keepdims=True)) + 1e-5)

    report = compare(port, lambda x: 1000 + rms_torch(x, 1e-5), {"x": X})
    outputs = [row for row in report.rows if not row.name.startswith("d_")]
    assert all(row.verdict == "AGREE" for row in outputs), str(report)
    assert report.verdict == "DIVERGE"
    assert "eps 1e-05 added to the root" in report.causes[0]


# --------------------------------------------------------------------------- rotations


def tables(np_, tokens, width, base=1e4, of=None):
    angles = np_.arange(tokens)[:, None] / (
        base ** (np_.arange(0, width, 2) / (of or width))
    )
    return np_.cos(angles), np_.sin(angles)


def rotated(np_, x, cos, sin):
    cat = np_.concatenate if np_ is jnp else torch.cat
    n = x.shape[-1] // 2
    a, b = x[..., :n], x[..., n:]
    return cat([a * cos - b * sin, b * cos + a * sin], -1)


def part_rotated(np_, x, width, base=1e4, of=None):
    cat = np_.concatenate if np_ is jnp else torch.cat
    turned = rotated(np_, x[..., :width], *tables(np_, x.shape[-2], width, base, of))
    return cat([turned, x[..., width:]], -1)


def last_rotated(x, width):
    turned = rotated(jnp, x[..., -width:], *tables(jnp, x.shape[-2], width))
    return jnp.concatenate([x[..., :-width], turned], -1)


def scores(rotate):
    """Of queries and keys, so that the fault is in two places."""

    def both(q, k):
        a, b = rotate(q), rotate(k)
        return a @ b.swapaxes(-1, -2)

    return both


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (
            lambda x: part_rotated(jnp, x, 8),
            lambda x: part_rotated(torch, x, 4),
            "a rotation of all 8 numbers in place of one of the first 4",
        ),
        (
            lambda x: part_rotated(jnp, x, 4),
            lambda x: part_rotated(torch, x, 8),
            "a rotation of the first 4 numbers in place of one of all 8",
        ),
        (
            lambda x: last_rotated(x, 4),
            lambda x: part_rotated(torch, x, 4),
            "a rotation of the last 4 numbers in place of one of the first 4",
        ),
        (
            lambda x: part_rotated(jnp, x, 6, of=8),
            lambda x: part_rotated(torch, x, 6),
            "a width of 8 in place of 6 in the exponent",
        ),
    ],
)
def test_rotation_of_a_part(ours, theirs, words):
    named(words, scores(ours), scores(theirs), q=Q, k=Q[::-1])


def llama_torch(x):
    """In complex numbers, of neighbouring pairs."""
    cos, sin = tables(torch, x.shape[-2], x.shape[-1])
    turns = torch.polar(torch.ones_like(cos), torch.atan2(sin, cos))
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(-2)


def llama_jax(x, sign=1, narrow=None):
    cos, sin = tables(jnp, x.shape[-2], x.shape[-1])
    if narrow:
        cos, sin = (
            cos.astype(narrow).astype(x.dtype),
            sin.astype(narrow).astype(x.dtype),
        )
    pairs = jax.lax.complex(x[..., ::2], x[..., 1::2])
    turned = pairs * jax.lax.complex(cos, sign * sin)
    return jnp.stack([turned.real, turned.imag], -1).reshape(x.shape)


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        (
            lambda x: rotated(jnp, x, *tables(jnp, x.shape[-2], 8)),
            "a rotation in the layout 'half' in place of one in the layout 'interleaved'",
        ),
        (lambda x: llama_jax(x, sign=-1), "interleaved', backwards"),
        (lambda x: llama_jax(x, narrow=jnp.bfloat16), "rounded to bfloat16"),
    ],
)
def test_complex_numbers(ours, words):
    named(words, scores(ours), scores(llama_torch), q=Q, k=Q[::-1])


def test_scale_beside_a_query_that_sees_no_key():
    """Of such a query PyTorch gives zeros; it is recorded so too."""
    allowed = np.tri(5, dtype=bool)
    allowed[2] = False

    def port(x):
        scores = jnp.where(allowed, x @ x.mT, -1e30)
        return jax.nn.softmax(scores) @ x * allowed.any(-1)[:, None]

    def original(x):
        mask = torch.from_numpy(allowed)
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, mask)

    named("the step 'mul' is left out", port, original, x=Q)


def test_mask_the_other_way_round():
    hidden = np.add.outer(np.arange(5), np.arange(5)) % 2 == 1

    def port(x):
        return jax.nn.softmax(jnp.where(~hidden, -1e9, x @ x.mT)) @ x

    def original(x):
        scores = (x @ x.mT).masked_fill(torch.from_numpy(hidden), -1e9)
        return scores.softmax(-1) @ x

    named("mask the other way round", port, original, x=X)


class Tabulated(torch.nn.Module):
    """Rotations that are made before the call, as Llama's first code has them, or as two tables, each pair twice."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        angles = torch.arange(40)[:, None] / 10_000 ** (torch.arange(0, 8, 2) / 8)
        twice = torch.cat([angles, angles], -1)
        if kind == "complex":
            turns = torch.polar(torch.ones_like(angles), angles)
            self.register_buffer("freqs_cis", turns)
        else:
            self.register_buffer("cos", twice.cos())
            self.register_buffer("sin", twice.sin())

    def forward(self, x):
        if self.kind == "complex":
            pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * self.freqs_cis).flatten(-2)
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat([-second, first], -1) * self.sin


@pytest.mark.parametrize("kind", ["complex", "twice"])
@pytest.mark.parametrize("base", [5e5, 1234.0])
def test_base_of_ready_made_tables(kind, base):
    def port(x):
        angles = jnp.arange(40)[:, None] / base ** (jnp.arange(0, 8, 2) / 8)
        cos, sin = (f(angles).astype(x.dtype) for f in (jnp.cos, jnp.sin))
        if kind == "twice":
            first, second = jnp.split(x, 2, -1)
            turned = first * cos - second * sin, second * cos + first * sin
            return jnp.concatenate(turned, -1)
        first, second = x[..., ::2], x[..., 1::2]
        turned = first * cos - second * sin, second * cos + first * sin
        return jnp.stack(turned, -1).reshape(x.shape)

    x = np.random.default_rng(0).normal(size=(3, 40, 8))
    named(f"base {base:.6g} in place of 10000", port, Tabulated(kind), x=x)


def test_positions_that_do_not_follow_each_other():
    at = np.array([3, 77, 20, 5, 1000], np.int32)

    def port(x, positions):
        return x * jnp.cos(0.1 * (positions + 1)[:, None])

    def original(x, positions):
        return x * torch.cos(0.1 * positions[:, None])

    x = np.random.default_rng(0).normal(size=(5, 6))
    named("positions after their own by 1", port, original, x=x, positions=at)


@pytest.mark.parametrize("narrow", [jnp.bfloat16, jnp.float16])
def test_both_tables_rounded(narrow):
    def port(x):
        cos, sin = tables(jnp, 5, 8)
        return rotated(jnp, x, *(t.astype(narrow).astype(x.dtype) for t in (cos, sin)))

    def original(x):
        return rotated(torch, x, *tables(torch, 5, 8))

    words = f"rounded to {jnp.dtype(narrow).name}"
    named(words, scores(port), scores(original), q=Q, k=Q[::-1])


def test_offset_of_the_positions():
    def angles(np_, x, offset):
        return rotated(np_, x, *(t[offset : offset + 5] for t in tables(np_, 9, 8)))

    def original(x):
        positions = 4 + torch.arange(5)
        turns = positions[:, None] / 10_000 ** (torch.arange(0, 8, 2) / 8)
        return rotated(torch, x, turns.cos(), turns.sin())

    words = "positions from 0 on, without their offset"
    named(words, lambda x: angles(jnp, x, 0), original, x=Q)


# ------------------------------------------------------------------------------- ALiBi


def slopes(heads):
    n = 2 ** (heads.bit_length() - 1)
    first = [2 ** (-8 * i / n) for i in range(1, n + 1)]
    return first + [2 ** (-4 * i / n) for i in range(1, 2 * (heads - n), 2)]


def alibi_torch(q):
    m = torch.tensor(slopes(q.shape[1]), dtype=q.dtype)[:, None, None]
    steps = torch.arange(q.shape[2])
    distances = steps[None, :] - steps[:, None]
    return torch.softmax(q @ q.mT + m * distances, -1)


def alibi_jax(m):
    def port(q):
        steps = jnp.arange(q.shape[2])
        distances = steps[None, :] - steps[:, None]
        return jax.nn.softmax(q @ q.mT + jnp.array(m)[:, None, None] * distances, -1)

    return port


@pytest.mark.parametrize(
    ("heads", "m", "words"),
    [
        (4, slopes(4)[::-1], "axis 0 reversed"),
        (4, [2 ** (-2 * i) for i in range(4)], "slopes 2^(-8i/heads) from i = 0"),
        (4, [0.5**i for i in range(1, 5)], "slopes from 0.5 by 0.5 in place of from"),
        (6, [2 ** (-8 * i / 6) for i in range(1, 7)], "slopes 2^(-8i/heads) in place"),
        (6, slopes(8)[:6], "of the power of two above in place of by the rule for"),
    ],
)
def test_slopes(heads, m, words):
    named(words, alibi_jax(m), alibi_torch, q=RNG.normal(size=(2, heads, 5, 8)))


def test_bias_that_is_missing():
    def port(q):
        return jax.nn.softmax(q @ q.mT, -1)

    named("the step 'add' is left out but for its input 1", port, alibi_torch, q=Q)


def test_key_positions_in_place_of_distances_are_no_fault():
    def port(q):
        m = jnp.array(slopes(3))[:, None, None]
        return jax.nn.softmax(q @ q.mT + m * jnp.arange(q.shape[2]), -1)

    assert compare(port, alibi_torch, {"q": Q}).passed


# ------------------------------------------------------------------- factors and orders


def test_factor_that_the_port_adds():
    """The embedding has a counterpart; what follows has none."""

    def port(ids, table):
        return jnp.tanh(table[ids] * 6**0.5)

    def original(ids, table):
        return torch.tanh(torch.nn.functional.embedding(ids, table))

    ids = np.array([[0, 3, 1], [2, 2, 4]], np.int32)
    named("multiplied by sqrt(6)", port, original, ids=ids, table=X[0])


def test_factor_that_the_port_leaves_out():
    def original(ids, table):
        return torch.tanh(torch.nn.functional.embedding(ids, table) * 6**0.5)

    ids = np.array([[0, 3, 1], [2, 2, 4]], np.int32)
    words = "the step 'mul' is left out"
    named(words, lambda ids, table: jnp.tanh(table[ids]), original, ids=ids, table=X[0])


def test_factor_of_a_residual():
    def port(x):
        return jnp.tanh(0.5 * x + jnp.sin(x))

    def original(x):
        return torch.tanh(x + torch.sin(x))

    named("input 1 of the step 'add' multiplied by 1/2", port, original, x=X)


def heads_of(x, how):
    """[batch, tokens, 6] as [batch, heads, tokens, width]."""
    if how == "right":
        return x.reshape(2, 5, 2, 3).transpose(0, 2, 1, 3)
    if how == "exchanged":
        return x.reshape(2, 5, 3, 2).transpose(0, 3, 1, 2)
    return x.reshape(2, 2, 5, 3)


@pytest.mark.parametrize(
    ("split", "merge", "words"),
    [
        ("exchanged", "right", "heads and their width exchanged in a reshape"),
        ("right", "exchanged", "heads and their width exchanged in a reshape"),
        ("reshaped", "right", "reshaped in place of its axes exchanged"),
        ("right", "reshaped", "reshaped in place of its axes exchanged"),
    ],
)
def test_heads(split, merge, words):
    def port(x):
        y = heads_of(x, split)
        y = jax.nn.softmax(y @ y.mT, -1) @ y
        if merge == "right":
            y = y.transpose(0, 2, 1, 3)
        elif merge == "exchanged":
            y = y.transpose(0, 2, 3, 1)
        return jnp.tanh(y.reshape(2, 5, 6))

    def original(x):
        y = x.view(2, 5, 2, 3).transpose(1, 2)
        y = torch.softmax(y @ y.mT, -1) @ y
        return torch.tanh(y.transpose(1, 2).reshape(2, 5, 6))

    named(words, port, original, x=X)


# --------------------------------------------------------------------------- attention


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ({"scale": 1.0}, "the step 'mul' is left out"),
        ({"is_causal": False}, "the step 'masked_fill' is left out"),
    ],
)
def test_attention_that_is_one_operation(ours, words):
    def port(q, k):
        given = {"is_causal": True, **ours}
        q, k = q.swapaxes(1, 2), k.swapaxes(1, 2)
        return jax.nn.dot_product_attention(q, k, k, **given)

    def original(q, k):
        out = torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True)
        return out.transpose(1, 2)

    found = causes(port, original, q=Q, k=Q[::-1])
    assert words in found[0]
    line = original.__code__.co_firstlineno + 1
    assert f" at test_causes.py:{line}" in found[0]


def test_offset_of_the_mask():
    """The last queries of more keys see all before them."""

    def port(q, k):
        allowed = jnp.tri(5, 9, dtype=bool)
        return jax.nn.softmax(jnp.where(allowed, q @ k.mT, -1e30), -1)

    def original(q, k):
        hidden = torch.ones(5, 9, dtype=torch.bool).triu(5)
        return torch.softmax((q @ k.mT).masked_fill(hidden, -torch.inf), -1)

    words = "mask with the first query at position 0 in place of 4"
    named(words, port, original, q=Q, k=RNG.normal(size=(2, 3, 9, 8)))


def test_softmax_in_bfloat16():
    def port(x):
        return jax.nn.softmax(x.astype(jnp.bfloat16), -1).astype(x.dtype) @ x.mT

    words = "softmax computed in bfloat16"
    named(words, port, lambda x: torch.softmax(x, -1) @ x.mT, x=X)


def test_faults_that_are_not_known_have_no_name():
    def port(q, k):
        return jax.nn.softmax(jnp.arctan(q @ k.mT), -1)

    def original(q, k):
        return torch.softmax(torch.sin(q @ k.mT), -1)

    found = causes(port, original, q=Q, k=Q[::-1])
    assert not any(cause.startswith("consistent with") for cause in found)
    assert found[-1].startswith("A is the same up to dot_general at test_causes.py:")


# ------------------------------------------------------------------ what a port is made of


def test_fault_in_a_scan():
    w = RNG.normal(size=(3, 6, 6))

    def port(x, w):
        def layer(x, w):
            x = x + jax.nn.gelu(x @ w, approximate=True)
            return x, x.mean()

        return jax.lax.scan(layer, x, w)

    def original(x, w):
        means = []
        for layer in w:
            x = x + torch.nn.functional.gelu(x @ layer)
            means.append(x.mean())
        return x, torch.stack(means)

    found = causes(port, original, x=X, w=w)
    assert found[0] == "the first that differs: 0"
    assert "activation gelu by tanh in place of gelu by erf" in found[1]
    # The first layer's, which has the numbers of the original with the fault.
    line = port.__code__.co_firstlineno + 2
    assert f"in the port at test_causes.py:{line}" in found[1]


def test_scan_is_recorded_as_its_steps():
    """From the last to the first, in a branch that is taken."""

    def port(x):
        def step(carry, row):
            carry = carry + row
            return carry, 2 * carry

        def scanned(x):
            return jax.lax.scan(step, jnp.zeros(6), x, reverse=True)

        total, ys = jax.lax.cond(x[0, 0] > -9, scanned, lambda x: (x[0], x), x)
        return {"total": total, "ys": ys}

    did = record_jax(lambda given: port(**given), {"x": jnp.asarray(X[0])})
    total, ys = (did.stages[did.outputs[name]].value for name in ("total", "ys"))
    right = np.cumsum(X[0][::-1], 0)[::-1]
    np.testing.assert_allclose(total, right[0], rtol=1e-5)
    np.testing.assert_allclose(ys, 2 * right, rtol=1e-5)
    operations = [stage.operation for stage in did.stages]
    assert operations.count("scan_slice") == 5
    assert "scan" not in operations
    assert "cond" not in operations


def test_what_is_not_used_is_no_counterpart():
    def port(given):
        x = given["x"]
        unused = jnp.tanh(x).reshape(-1)
        return {"out": x[0] * 2 + 0 * unused.size}

    def original(given):
        return {"out": jnp.tanh(given["x"])[0] * 3}

    ours, theirs = (record_jax(f, {"x": jnp.asarray(X)}) for f in (port, original))
    region, _ = diverging(theirs, ours, ["out"])
    assert {theirs.stages[at].operation for at in region.known} == {"x"}


def test_distances_are_not_those_of_the_other_direction():
    steps = np.arange(5.0)
    distances = steps[:, None] - steps
    assert same_numbers(distances, distances)
    assert not same_numbers(distances, distances.T)
    assert not same_numbers(
        distances[None] * [[[1.0]], [[2.0]]], -distances[:, None] * [[1.0], [2.0]]
    )
    other = X[0, :5, :5]
    assert same_numbers(other, other.T)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_over_another_axis(axis):
    def port(q, k):
        return jax.nn.softmax(q @ k.mT, axis) @ k

    def original(q, k):
        return torch.softmax(q @ k.mT, -1) @ k

    named(f"softmax over axis {axis}", port, original, q=Q, k=Q[::-1])


@pytest.mark.parametrize("order", [(1, 0), (2, 0, 1), (0, 2, 1)])
def test_pieces_in_another_order(order):
    """As of a gate and what it lets through, in every layer."""
    number = len(order)

    def layers(np_, split, x):
        for _ in range(2):
            a, b, *c = split(x)
            x = x + np_.tanh(np_.exp(a) * b * (1 + c[0] if c else 1)).sum(
                -1, keepdims=True
            )
        return x

    def port(x):
        def split(x):
            pieces = jnp.split(x, number, -1)
            return [pieces[i] for i in order]

        return layers(jnp, split, x)

    def original(x):
        return layers(torch, lambda x: x.chunk(number, -1), x)

    words = f"what the step 'split' gives in the order {', '.join(map(str, order))}"
    found = causes(port, original, x=X)
    assert any(words in cause for cause in found), "\n".join(found)
