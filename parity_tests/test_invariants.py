"""Every invariant holds for what is right here, and names what is wrong elsewhere: faults known from the field."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import posenc_jax
import posenc_jax.linen
import posenc_jax.nnx
import posenc_torch
from posenc_torch.modules import LearnedPositionalEncoding

from .instrument.invariants import DEFAULT, INVARIANTS, check_invariants

pytestmark = pytest.mark.usefixtures("compiled_quickly")

RNG = np.random.default_rng(0)
# Batch 2, heads 4, tokens 7, channels 8: all different, as they have to be.
X = RNG.normal(size=(2, 4, 7, 8))
DENSE = np.arange(7, dtype=np.int32)
HEADS = {"x": X, "positions": DENSE}
ROWS = {"x": X, "positions": np.stack([DENSE, DENSE + 40])}
KEYS = {
    "query": RNG.normal(size=(2, 3, 7, 8)),
    "key": RNG.normal(size=(2, 3, 11, 8)),
    "query_positions": DENSE,
    "key_positions": np.arange(11, dtype=np.int32),
}
BIAS = {
    "slopes": np.asarray(posenc_torch.alibi_slopes(6)),
    "query_positions": DENSE,
    "key_positions": np.arange(11, dtype=np.int32),
}
ROPE = posenc_torch.RopeConfig(8)
INV_FREQ = torch.tensor(ROPE.inv_freq())


# ------------------------------------------------------------------------ what is right


def rope_torch(x, positions):
    return ROPE.apply(x, *ROPE.cos_sin(positions))


def rope_jax(x, positions):
    config = posenc_jax.RopeConfig(8)
    x = x.swapaxes(1, 2)
    return config.apply(x, *config.cos_sin(positions)).swapaxes(1, 2)


def alibi_torch(slopes, query_positions, key_positions):
    return posenc_torch.alibi_bias(query_positions, key_positions, slopes)


def alibi_jax(slopes, query_positions, key_positions):
    return posenc_jax.alibi_bias(query_positions, key_positions, slopes)


def scores(query, key, query_positions, key_positions):
    return rope_torch(query, query_positions) @ rope_torch(key, key_positions).mT


def attention(x, positions, segment_ids):
    out = posenc_torch.dot_product_attention(
        rope_torch(x, positions),
        rope_torch(x, positions),
        x,
        is_causal=True,
        query_positions=positions,
        key_positions=positions,
        query_segment_ids=segment_ids,
        key_segment_ids=segment_ids,
    )
    return {"out": out}


def attention_by_mask(x, mask, positions):
    x = rope_torch(x, positions)
    mask = mask[:, None, None]
    scores = x @ x.mT
    scores = (
        scores + mask if mask.is_floating_point() else scores.masked_fill(~mask, -1e9)
    )
    return torch.softmax(scores, -1) @ x


def embedding(tokens):
    return torch.arange(40.0).reshape(10, 4)[tokens]


def queries_and_keys(query, key, positions):
    cos, sin = ROPE.cos_sin(positions)
    return posenc_torch.apply_rotary_pos_emb(query, key, cos, sin)


def sinusoidal(positions):
    return posenc_torch.sinusoidal_position_encoding(positions, 16)


NUMBERS = [name for name in INVARIANTS if name != "jit"]
RIGHT = {
    "rope": (rope_torch, HEADS, NUMBERS),
    "rope-rows": (rope_torch, ROWS, NUMBERS),
    "rope-pair": (
        queries_and_keys,
        {"query": X, "key": X[:, ::-1, ::-1], "positions": DENSE},
        NUMBERS,
    ),
    "rope-jax": (rope_jax, HEADS, [*INVARIANTS]),
    "alibi": (alibi_torch, BIAS, ["step", "packed", "padded", "shards", "shift"]),
    "alibi-jax": (alibi_jax, BIAS, ["step", "shards", "shift", "jit"]),
    "scores": (scores, KEYS, ["step", "packed", "padded", "shards", "order", "shift"]),
    "attention": (
        attention,
        {"x": X, "positions": DENSE, "segment_ids": np.zeros((2, 7), np.int32)},
        ["packed", "padded", "shards", "order", "dtype", "shift"],
    ),
    "mask": (attention_by_mask, HEADS | {"mask": np.ones((2, 7), bool)}, ["padded"]),
    "added-mask": (attention_by_mask, HEADS | {"mask": np.zeros((2, 7))}, ["padded"]),
    "tokens": (
        embedding,
        {"tokens": RNG.integers(0, 10, (2, 7))},
        ["shards", "order"],
    ),
    "sinusoidal": (sinusoidal, {"positions": DENSE}, ["step", "packed", "order"]),
}


@pytest.mark.parametrize("program", RIGHT)
def test_right_programs_keep_to_them(program):
    function, inputs, names = RIGHT[program]
    report = check_invariants(function, inputs, names)
    assert {row.name: row.verdict for row in report.rows} == dict.fromkeys(
        names, "AGREE"
    ), str(report)


def test_default_is_what_applies():
    """And the notes say why the rest does not."""
    module = LearnedPositionalEncoding(2000, 8)
    report = check_invariants(module, {"x": X[:, 0], "positions": DENSE})
    report.check()
    assert [row.name for row in report.rows] == [n for n in DEFAULT if n != "jit"]
    assert report.notes == ("not checked: jit (the program is PyTorch's)",)
    report = check_invariants(lambda x: jnp.cumsum(x, -2), {"x": X})
    assert [row.name for row in report.rows] == ["shards", "order", "dtype", "jit"]
    assert "not checked: step (no input holds positions)" in report.notes


@pytest.mark.parametrize("flax", [posenc_jax.nnx, posenc_jax.linen])
def test_modules_of_flax_keep_to_them(flax):
    rngs = {"rngs": nnx.Rngs(0)} if flax is posenc_jax.nnx else {}
    module = flax.LearnedPositionalEncoding(64, 8, out_of_range="nan", **rngs)
    inputs = {"x": X[:, 0], "positions": DENSE}
    report = check_invariants(module, inputs, ["packed", "order", "jit"])
    report.check()


# ------------------------------------------------------------------------ what is wrong


def offset_is_ignored(x, positions):
    return rope_torch(x, torch.arange(x.shape[-2]))


def consecutive_from_the_first(x, positions):
    return rope_torch(x, positions[..., :1] + torch.arange(x.shape[-2]))


def rows_share_positions(x, positions):
    return rope_torch(x, positions[:1])


def mask_is_forgotten(x, mask, positions):
    x = rope_torch(x, positions)
    return torch.softmax(x @ x.mT, -1) @ x


def slopes_of_the_local_heads(query, query_positions, key_positions):
    slopes = posenc_torch.alibi_slopes(query.shape[1])
    bias = posenc_torch.alibi_bias(query_positions, key_positions, slopes)
    return query.sum(-1, keepdim=True) + bias


class FirstTable(torch.nn.Module):
    """Keeps a table for each length, in the dtype of the first input of that length."""

    def __init__(self):
        super().__init__()
        self.tables = {}

    def forward(self, x, positions):
        if x.shape[-2] not in self.tables:
            angle = positions[:, None].to(x.dtype) * INV_FREQ.to(x.dtype)
            self.tables[x.shape[-2]] = angle.cos(), angle.sin()
        return ROPE.apply(x, *self.tables[x.shape[-2]])


TABLES = []


def table_of_all(x, positions):
    """The longest table so far, one for whoever calls."""
    if not TABLES or len(TABLES[0]) < x.shape[-2]:
        angle = torch.arange(x.shape[-2]).to(x.dtype)[:, None] * INV_FREQ.to(x.dtype)
        TABLES[:] = [angle]
    angle = TABLES[0][: x.shape[-2]]
    return ROPE.apply(x, angle.float().cos(), angle.float().sin())


class GrownBase(torch.nn.Module):
    """Dynamic scaling that does not go back for a short sequence after a long one."""

    def __init__(self):
        super().__init__()
        self.longest = 0

    def forward(self, x, positions):
        if x.dtype == torch.bfloat16:
            raise TypeError("no bfloat16")
        self.longest = max(self.longest, x.shape[-2])
        config = posenc_torch.RopeConfig(8, base=1e4 * max(1, self.longest / 100))
        return config.apply(x, *config.cos_sin(positions))


class KeptTracer:
    """The same in JAX, where a table made in a compiled program is gone after it."""

    table = None

    def __call__(self, x, positions):
        if self.table is None:
            self.table = jnp.cos(positions[:, None] * jnp.asarray(INV_FREQ.numpy()))
        return x[..., :4] * self.table[: x.shape[-2]]


def tables_widen(x, positions):
    cos, sin = ROPE.cos_sin(positions)
    return torch.cat([x[..., :4] * cos - x[..., 4:] * sin, x[..., 4:] * cos], -1)


def known_positions(x, positions):
    return rope_jax(x, np.asarray(positions))


def drawn_once(x, positions):
    return x * np.random.default_rng().normal() + jnp.cos(positions)[:, None]


def positions_in_bfloat16(x, positions):
    angle = positions.bfloat16()[:, None] * INV_FREQ
    return ROPE.apply(x, angle.cos(), angle.sin())


def key_only(slopes, query_positions, key_positions):
    return posenc_torch.alibi_bias(query_positions, key_positions, slopes, kind="key")


def base_by_the_length(x, positions):
    config = posenc_torch.RopeConfig(8, scaling=posenc_torch.DynamicNtkScaling(2.0, 8))
    return config.apply(x, *config.cos_sin(positions, int(positions.max()) + 1))


def minus_is_missing(x, positions):
    cos, sin = ROPE.cos_sin(positions)
    a, b = x[..., :4], x[..., 4:]
    return torch.cat([a * cos + b * sin, b * cos + a * sin], -1)


def positions_are_unused(x, positions):
    return x * 2


WRONG = {
    "step": (offset_is_ignored, HEADS, " alone: out["),
    "packed": (consecutive_from_the_first, ROWS, "second document packed: out["),
    "padded": (
        mask_is_forgotten,
        HEADS | {"mask": np.ones((2, 7), bool)},
        "pads: out[",
    ),
    "shards rows": (
        rows_share_positions,
        {"x": X, "positions": np.stack([DENSE, DENSE])},
        "in halves of the 2: out[",
    ),
    "shards heads": (
        slopes_of_the_local_heads,
        {name: KEYS[name] for name in ("query", "query_positions", "key_positions")},
        "in halves of the 3: out[",
    ),
    "order": (FirstTable(), HEADS, "after a call in bfloat16: out["),
    "order of all": (table_of_all, HEADS, "after a call"),
    "order grown": (GrownBase(), HEADS, "after a call of many tokens"),
    "order kept": (KeptTracer(), HEADS, "after other calls it raises Unexpected"),
    "dtype": (
        tables_widen,
        HEADS,
        "out is float32 where inputs and weights are bfloat16",
    ),
    "jit": (known_positions, HEADS, "it cannot be compiled: TracerArrayConversion"),
    "jit numbers": (drawn_once, HEADS, "compiled: out["),
    "shift": (positions_in_bfloat16, HEADS, "moved by 1003: scores["),
    "shift bias": (key_only, BIAS, "moved by 1003: out["),
    "shift unused": (positions_are_unused, HEADS, "positions have no effect"),
    "composition": (base_by_the_length, HEADS, "rotated twice: out["),
    "norm": (minus_is_missing, HEADS, "length of out["),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_programs_are_named(fault):
    program, inputs, reason = WRONG[fault]
    (row,) = check_invariants(program, inputs, [fault.partition(" ")[0]]).rows
    assert row.verdict == "DIVERGE"
    assert reason in row.reason


@pytest.mark.filterwarnings("default")
def test_rotary_embedding_torch_keeps_angles_of_bfloat16():
    """Its table of a call in bfloat16, whose positions are rounded from 257 on, serves the next in float32."""
    from rotary_embedding_torch import RotaryEmbedding

    theirs = RotaryEmbedding(8)
    for tokens, verdict in ((250, "AGREE"), (300, "DIVERGE")):
        x = RNG.normal(size=(2, 4, tokens, 8))
        report = check_invariants(theirs.rotate_queries_or_keys, {"t": x}, ["order"])
        assert report.verdict == verdict, str(report)
    assert "after a call in bfloat16" in report.rows[0].reason
    assert theirs.cached_freqs_seq_len == 0  # Only copies were called.


# -------------------------------------------------------------------- what does not apply


def no_float64(x):
    if x.dtype.itemsize == 8:
        raise TypeError("no float64")
    return x


@pytest.mark.parametrize(
    ("name", "program", "inputs", "reason"),
    [
        ("norm", lambda x: x[..., :4], {"x": X}, "not one or two of the inputs"),
        ("shift", lambda x: x, {"x": X}, "no input holds positions"),
        ("step", mask_is_forgotten, WRONG["padded"][1], "tokens see each other"),
        ("packed", mask_is_forgotten, WRONG["padded"][1], "no input holds segments"),
        (
            "step",
            scores,
            KEYS | {"key": X[:, :3]} | {"key_positions": DENSE},
            "told apart",
        ),
        ("shards", sinusoidal, {"positions": DENSE}, "no axis of a batch"),
        ("dtype", sinusoidal, {"positions": DENSE}, "no input is floating"),
        ("jit", rope_torch, HEADS, "the program is PyTorch's"),
        ("step", lambda x, positions: x * 0, HEADS, "no output has two different"),
        ("shards", no_float64, {"x": X}, "a call raised"),
    ],
)
def test_what_cannot_be_applied_is_invalid(name, program, inputs, reason):
    report = check_invariants(program, inputs, [name])
    assert report.verdict == "INVALID"
    assert reason in report.rows[0].reason


def test_a_part_that_raises_is_a_fault():
    def two_or_more(x, positions):
        if x.shape[-2] < 2:
            raise ValueError("too short")
        return rope_torch(x, positions)

    (row,) = check_invariants(two_or_more, HEADS, ["step"]).rows
    assert row.verdict == "DIVERGE"
    assert "ValueError: too short" in row.reason


def test_what_computes_in_float32_is_allowed_its_rounding():
    """Our tables are in float32 unless they are asked for in float64; PyTorch's side is made to."""
    for program, reason in (
        (rope_jax, "in float32, whatever it is given"),
        (rope_torch, ""),
    ):
        (row,) = check_invariants(program, HEADS, ["norm"]).rows
        assert (row.verdict, row.reason) == ("AGREE", reason)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (HEADS, {"invariants": ["phase"]}, "`invariants` must be of .*, got phase"),
        (HEADS, {"positions": ["where"]}, "`where` must be .*, got none"),
        (HEADS, {"positions": ["x"]}, "`x` must be .* integer positions.*float64"),
        ({"x": X[..., :7], "positions": DENSE}, {}, "`x` must have tokens on one axis"),
    ],
)
def test_bad_arguments_are_refused(inputs, options, message):
    with pytest.raises(ValueError, match=message):
        check_invariants(rope_torch, inputs, **options)


def test_a_function_of_neither_says_both_errors():
    with pytest.raises(TypeError, match="neither") as caught:
        check_invariants(neither, {"x": X})
    assert "As a program of PyTorch: TypeError: neither" in caught.value.__notes__[0]


def neither(x):
    raise TypeError("neither")


def test_jax_alone_needs_no_torch():
    code = """
        import sys
        sys.modules["torch"] = None
        import jax.numpy as jnp, numpy as np
        from parity_tests.instrument.invariants import check_invariants
        def add(x, positions):
            return x + jnp.sin(positions)[:, None]
        inputs = {"x": np.ones((2, 7, 8)), "positions": np.arange(7)}
        report = check_invariants(add, inputs, ["shards", "jit"])
        report.check()
        print(report)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert done.stdout.startswith("CHECK AGREE"), done.stderr


def test_inputs_are_handed_over_in_their_order():
    """Whatever their alphabet, where names say nothing."""
    rng = np.random.default_rng(0)
    inputs = {"z": rng.normal(size=(2, 7, 6)), "w": rng.normal(size=(6, 3))}
    check_invariants(jnp.matmul, inputs, ("order", "dtype")).check()
    check_invariants(torch.matmul, inputs, ("order", "dtype")).check()
