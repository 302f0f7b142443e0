"""The comparison of other people's ports: a right one agrees, and a fault is named where it is."""

from __future__ import annotations

import types
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from flax import linen, nnx

import posenc_jax

from .instrument import compare, positions, record, replay
from .instrument.cases import PairCase
from .instrument.weights import back, carried, checked, doubts, guessed
from .library_pairs import SIZES, library_pairs

X = np.random.default_rng(0).normal(size=(2, 5, 6))
pytestmark = pytest.mark.usefixtures("first_cause_suffices")


# --------------------------------------------------------------------------- two files

FOLDER = Path(__file__).parents[1] / "examples" / "port"
BASE = ("10_000.0", "500_000.0")
# What is changed in the right port, and what the report must say.
FAULTS = {
    "base": (BASE[1], BASE[0], "base 10000 in place of 500000"),
    "layout": (
        """first, second = jnp.split(x, 2, axis=-1)
        return jnp.concatenate(
            [first * cos - second * sin, second * cos + first * sin], axis=-1
        )""",
        """first, second = x[..., ::2], x[..., 1::2]
        return jnp.stack(
            [first * cos - second * sin, second * cos + first * sin], axis=-1
        ).reshape(x.shape)""",
        "a rotation in the layout 'interleaved' in place of one in the layout 'half'",
    ),
    "sine": ("jnp.sin(angles)", "-jnp.sin(angles)", "the sign is changed"),
    "later": (
        "self.rotate(k, positions)",
        "self.rotate(k, positions + 1)",
        "positions after their own by 1",
    ),
    "rounded": (
        "positions = jnp.arange(tokens)",
        "positions = jnp.arange(tokens).astype(jnp.bfloat16).astype(x.dtype)",
        "rounded to bfloat16",
    ),
    "no scale": (
        "is_causal=True",
        "is_causal=True, scale=1.0",
        "the step 'div' is left out",
    ),
    "scale": (
        "is_causal=True",
        "is_causal=True, scale=1 / 8",
        "multiplied by 1/sqrt(8)",
    ),
    "mask": (
        "is_causal=True",
        "is_causal=False",
        "the step 'masked_fill' is left out",
    ),
    "heads": (
        "        out = jax.nn",
        """        k, v = (jnp.tile(y, (1, 1, 2, 1)) for y in (k, v))
        out = jax.nn""",
        "axis 1 in halves in place of neighbouring pairs",
    ),
    "transposed": (
        "self.out(out.reshape(batch, tokens, -1))",
        "out.reshape(batch, tokens, -1) @ self.out.kernel[...].T + self.out.bias[...]",
        "the last two axes exchanged",
    ),
}


def made(text: str, name: str, folder: Path) -> types.ModuleType:
    """Of a file, so that its lines can be named."""
    path = folder / f"{name}.py"
    path.write_text(text)
    module = types.ModuleType(name)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def report_of(old: str, new: str, folder: Path):
    model, port = ((FOLDER / name).read_text() for name in ("model.py", "flax_port.py"))
    right = port.replace(*BASE)
    assert right.count(old) == 1
    ours = made(right.replace(old, new), "port", folder).Attention(rngs=nnx.Rngs(0))
    theirs = made(model, "model", folder).Attention()
    # Up to 256 bfloat16 has every position.
    tokens = 300 if "bfloat16" in new else 16
    x = np.random.default_rng(0).normal(size=(2, tokens, 48))
    return compare(ours, theirs, {"x": x})


if FOLDER.is_dir():  # the examples are not installed

    def test_right_port_agrees(tmp_path):
        report = report_of(BASE[1], BASE[1], tmp_path)
        report.check()
        assert not report.causes
        names = {row.name.split()[0] for row in report.rows}
        assert {"out", "d_x", "d_q_proj.weight", "d_o_proj.bias"} <= names

    @pytest.mark.parametrize("fault", FAULTS)
    def test_fault_is_named(fault, tmp_path):
        old, new, words = FAULTS[fault]
        report = report_of(old, new, tmp_path)
        assert report.verdict == "DIVERGE"
        assert report.causes[0].startswith("consistent with")
        assert any(words in cause for cause in report.causes), str(report)


# ------------------------------------------------------------------------------ sides


def mlp_torch():
    return torch.nn.Sequential(
        torch.nn.Linear(6, 7),
        torch.nn.LayerNorm(7),
        torch.nn.GELU(),
        torch.nn.Linear(7, 6),
    )


class MlpLinen(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.LayerNorm(epsilon=1e-5)(linen.Dense(7)(x))
        return linen.Dense(6)(jax.nn.gelu(x, approximate=False))


LINEN_WEIGHTS = {
    "Dense_0/kernel": ("0.weight", "transpose"),
    "Dense_0/bias": ("0.bias", "same"),
    "LayerNorm_0/scale": ("1.weight", "same"),
    "LayerNorm_0/bias": ("1.bias", "same"),
    "Dense_1/kernel": ("3.weight", "transpose"),
    "Dense_1/bias": ("3.bias", "same"),
}


def test_linen_module_agrees():
    report = compare(MlpLinen(), mlp_torch(), {"x": X}, weights=LINEN_WEIGHTS)
    report.check()
    assert "weight Dense_0/kernel is 0.weight, transpose" in report.notes


def test_weights_are_not_as_they_were_made():
    """Biases of zero and scales of one would hide what is done with them."""

    class Scaled(linen.Module):
        @linen.compact
        def __call__(self, x):
            return MlpLinen(name="mlp")(x)

    model = mlp_torch()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_("bias" not in name)
    weights = {f"mlp/{name}": how for name, how in LINEN_WEIGHTS.items()}
    weights["mlp/LayerNorm_0/bias"], weights["mlp/Dense_0/bias"] = (
        weights["mlp/Dense_0/bias"],
        weights["mlp/LayerNorm_0/bias"],
    )
    report = compare(Scaled(), model, {"x": X}, weights=weights)
    rows = {row.name: row.verdict for row in report.rows}
    assert rows["out float64"] == "DIVERGE"  # not the gradients alone


def test_functions_with_integers_and_several_outputs():
    def in_jax(ids, table):
        rows = table[ids]
        return {"rows": rows, "sums": (rows.sum(-1), rows.max())}

    def in_torch(ids, table):
        rows = table[ids]
        return {"rows": rows, "sums": (rows.sum(-1), rows.max())}

    ids = np.random.default_rng(1).integers(0, 6, (3, 4)).astype(np.int32)
    report = compare(in_jax, in_torch, {"ids": ids, "table": X[0].T})
    report.check()
    names = {row.name.split()[0] for row in report.rows}
    assert names == {"rows", "sums/0", "sums/1", "d_table"}


def test_gradient_that_is_stopped():
    report = compare(
        lambda x: jnp.tanh(x) * jax.lax.stop_gradient(x),
        lambda x: torch.tanh(x) * x,
        {"x": X},
    )
    assert report.verdict == "DIVERGE"
    assert report.causes == (
        "outputs agree: look for what stops or changes a gradient",
    )


def test_float32_inside_is_no_fault():
    """Of which float64 cannot tell more; float32 can."""

    def narrow(x):
        return jax.nn.softmax(x.astype(jnp.float32)).astype(x.dtype)

    report = compare(narrow, lambda x: torch.softmax(x, -1), {"x": X})
    report.check()
    assert "by less than float32 may cost" in report.rows[0].reason


@pytest.mark.parametrize("wrong", [jnp.bfloat16, jnp.float16])
def test_less_than_float32_inside_is_a_fault(wrong):
    report = compare(
        lambda x: jax.nn.softmax(x.astype(wrong)).astype(x.dtype),
        lambda x: torch.softmax(x, -1),
        {"x": X},
    )
    assert report.verdict == "DIVERGE"


def test_large_numbers_hide_nothing():
    """Minus infinity as some write it, and a channel that is far larger than the others."""
    mask = X > 0

    def masked(where, factor):
        return lambda x: where(mask, factor * x, -1e9)

    def torch_where(mask, x, y):
        return torch.where(torch.from_numpy(mask), x, torch.tensor(y, dtype=x.dtype))

    for factor, verdict in ((1.0, "AGREE"), (2.0, "DIVERGE")):
        report = compare(masked(jnp.where, factor), masked(torch_where, 1.0), {"x": X})
        rows = {row.name: row.verdict for row in report.rows}
        assert (rows["out float64"] in ("EQUAL", "AGREE")) == (verdict == "AGREE")
    sizes = np.array([1e5, 1, 1, 1, 1, 1])
    x = np.random.default_rng(6).normal(size=(40, 6)) * sizes
    report = compare(
        lambda x: x * jnp.array([1, 1.001, 1, 1, 1, 1]), lambda x: 1.0 * x, {"x": x}
    )
    rows = {row.name: row.verdict for row in report.rows}
    assert rows["out float64"] == "DIVERGE"


def test_gradient_of_zero_that_is_not_zero_is_another_function():
    report = compare(lambda x: x, lambda x: x.detach() + 0 * x, {"x": X})
    assert report.verdict == "DIVERGE"
    report = compare(lambda x: x + 0.0, lambda x: x.detach(), {"x": X})
    assert report.verdict == "DIVERGE"
    assert compare(lambda x: jnp.sign(x), lambda x: torch.sign(x), {"x": X}).passed


def test_original_that_multiplies_a_table_in_float32():
    """One that is no buffer, and not in float64 when all else is; its lines are known all the same."""
    table = np.random.default_rng(1).normal(size=(6, 6)).astype(np.float32)

    class Original(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.from_numpy(table)

        def forward(self, x):
            y = x @ self.table + torch.einsum("bsi,ij->bsj", x, self.table)
            return torch.tanh(torch.nn.functional.linear(y, self.table))

    def port(x, sign=1):
        y = x @ table + x @ table
        return jnp.tanh(sign * (y @ table.T))

    compare(port, Original(), {"x": X}).check()
    report = compare(partial(port, sign=-1), Original(), {"x": X})
    (line,) = (
        n
        for n, code in enumerate(Path(__file__).read_text().splitlines(), 1)
        if code.endswith("functional.linear(y, self.table))")
    )
    assert any(f"at test_ports.py:{line}" in cause for cause in report.causes)


def test_original_that_makes_its_tables_in_float32():
    """As Hugging Face's models do: in a float64 run they are made in float64, so that they are the truth."""

    def angles(x):
        n = x.shape[-1] // 2
        inv_freq = 1.0 / (10_000 ** (torch.arange(0, 2 * n, 2).float() / (2 * n)))
        return torch.arange(x.shape[0]).float()[:, None] * inv_freq

    def original(x):
        cos, sin = (
            torch.cat([t, t], -1).to(x.dtype)
            for t in (angles(x).cos(), angles(x).sin())
        )
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def port(x):
        n = x.shape[-1] // 2
        turns = jnp.arange(x.shape[0])[:, None] / (
            10_000 ** (jnp.arange(0, 2 * n, 2) / (2 * n))
        )
        first, second = jnp.split(x, 2, -1)
        cos, sin = jnp.cos(turns), jnp.sin(turns)
        return jnp.concatenate(
            [first * cos - second * sin, second * cos + first * sin], -1
        )

    x = np.random.default_rng(7).normal(size=(4096, 32))
    report = compare(port, original, {"x": x})
    assert report.passed, str(report)


def test_port_in_a_dtype_of_its_own():
    """Flax's Embed has one that is fixed when it is made."""
    model = torch.nn.Embedding(7, 5)
    port = nnx.Embed(7, 5, rngs=nnx.Rngs(0))
    ids = {"ids": np.array([[1, 4, 6], [0, 3, 3]], np.int32)}
    report = compare(port, model, ids)
    assert report.passed, str(report)
    assert model.training


def test_fault_of_every_layer_is_named():
    """With the fault in both, the second gets other numbers than it had without."""

    def original(x):
        for _ in range(2):
            x = x + torch.softmax(x @ x.mT / 3, -1) @ x
        return x

    def port(x):
        for _ in range(2):
            x = x + jax.nn.softmax(x @ x.mT, -1) @ x
        return x

    report = compare(port, original, {"x": X})
    assert "the step 'div' is left out" in report.causes[0]


def test_factor_of_every_layer_is_named():
    """That of the second suggests nothing: the port has other numbers there. Each is on a line of its own."""

    def original(x):
        x = x + torch.softmax(x @ x.mT, -1) @ x
        return x + torch.softmax(x @ x.mT, -1) @ x

    def port(x):
        for _ in range(2):
            x = x + jax.nn.softmax(x @ x.mT / 3, -1) @ x
        return x

    report = compare(port, original, {"x": X})
    assert "multiplied by 1/3" in report.causes[0]


def test_what_a_sum_leaves_out_is_said():
    report = compare(
        lambda x, pe: jnp.tanh(x) + 0 * pe,
        lambda x, pe: torch.tanh(x + pe),
        {"x": X, "pe": X[::-1].copy()},
    )
    assert "left out but for its input 1" in report.causes[0]


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (jax.nn.gelu, torch.nn.functional.gelu, "gelu by tanh in place of gelu by erf"),
        (jax.nn.silu, torch.nn.functional.relu, "activation silu in place of relu"),
    ],
)
def test_other_activation_is_named(ours, theirs, words):
    report = compare(lambda x: 2 * ours(3 * x), lambda x: 2 * theirs(3 * x), {"x": X})
    assert words in report.causes[0]


@pytest.mark.parametrize(("by", "way"), [(1, "later"), (-1, "earlier")])
def test_mask_off_by_one_is_named(by, way):
    def original(x):
        future = torch.ones(5, 5, dtype=torch.bool).triu(1)
        scores = (x @ x.mT).masked_fill(future, -torch.inf)
        return torch.softmax(scores, -1) @ x

    def port(x):
        allowed = jnp.tri(5, k=by, dtype=bool)
        scores = jnp.where(allowed, x @ x.mT, -1e30)
        return jax.nn.softmax(scores, -1)[..., 1:, :] @ x

    report = compare(port, lambda x: original(x)[..., 1:, :], {"x": X})
    assert any(f"mask by one key {way}" in cause for cause in report.causes), str(
        report
    )


def test_hypothesis_that_breaks_the_original_is_no_crash():
    """Positions before their own have no row at -1."""

    def original(x, table):
        return torch.nn.functional.embedding(torch.arange(x.shape[1]), table) + x

    def port(x, table):
        return table[jnp.arange(x.shape[1]) + 1] + x

    table = np.random.default_rng(8).normal(size=(9, 6))
    report = compare(port, original, {"x": X, "table": table})
    assert report.verdict == "DIVERGE"
    assert "positions after their own by 1" in report.causes[0]


def test_inputs_by_name_and_by_order():
    def original(hidden, mask):
        return hidden - mask

    def port(mask, x):
        return x - mask

    inputs = {"mask": X**2, "x": X}
    compare(port, original, inputs).check()
    with pytest.raises(TypeError, match="be as many as those that are free, none"):
        compare(lambda x: x, original, inputs)
    # By order where names say nothing, whatever their alphabet.
    z_first = {"z": X**2, "a": X}
    for ours in (jnp.subtract, lambda hidden, mask: hidden - mask):
        compare(ours, original, z_first).check()
        assert not compare(lambda p, q, f=ours: f(q, p), original, z_first).passed
    # An option is not given what another input may be meant for.
    compare(lambda x, mask, layout="half": x - mask, original, inputs).check()
    with pytest.raises(TypeError, match="those that are free, layout, other; got"):
        compare(lambda x, layout="half", other=None: x, original, inputs)


def test_outputs_must_be_the_same():
    report = compare(lambda x: x, lambda x: (x, x[0]), {"x": X})
    assert report.verdict == "CONTRACT"
    reasons = {row.name: row.reason for row in report.rows}
    assert reasons == {
        "out": "A has (2, 5, 6), B none",
        "0": "A has none, B (2, 5, 6)",
        "1": "A has none, B (5, 6)",
    }


def test_whole_numbers_are_compared():
    for last, verdict in ((-1, "EQUAL"), (-2, "DIVERGE")):
        report = compare(
            lambda x, last=last: {"at": x.argmax(last), "sum": x.sum(-1)},
            lambda x: {"at": x.argmax(-1), "sum": x.sum(-1)},
            {"x": np.random.default_rng(3).normal(size=(6, 6))},
        )
        rows = {row.name: row.verdict for row in report.rows}
        assert rows["at float64"] == verdict


def test_constants_of_numpy_in_float64():
    """Which JAX has in float32, but in float64 runs; a run must not meet what the one before remembered."""
    scale = np.array([1.0, 1 / 3])[:, None]

    def ours(x):
        return x * scale

    def theirs(x):
        return x * torch.tensor(scale, dtype=x.dtype)

    x = np.random.default_rng(0).normal(size=(3, 2, 5))
    for _ in range(2):
        compare(ours, theirs, {"x": x}).check()


def test_sides_must_be_programs():
    with pytest.raises(
        TypeError, match="the port, which comes first, must be a function of JAX or"
    ):
        compare(3, torch.tanh, {"x": X})
    with pytest.raises(TypeError, match="the PyTorch side must be a function or"):
        compare(jnp.tanh, 3, {"x": X})


# ----------------------------------------------------------------- what must not pass

MASK = np.triu(np.ones((5, 5), bool), 1)
SQUARE = np.random.default_rng(0).normal(size=(2, 5, 5))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e9])
def test_minus_infinity_is_nothing_else(value):
    """A mask by the wrong sign attends to what is hidden."""

    def masked(value):
        return compare(
            lambda x: jnp.where(MASK, value, x),
            lambda x: x.masked_fill(torch.from_numpy(MASK), -torch.inf),
            {"x": SQUARE},
        )

    row = masked(value).rows[0]
    assert row.verdict == "CONTRACT"
    assert (
        "in place of minus infinity at 20 of 50 places, first [0, 0, 1]" in row.reason
    )
    masked(-1e9).check()


def rope_of(pi, x, positions, fault=lambda table: table):
    """In float32, as most have it."""
    inv_freq = 1 / 10_000 ** (pi.arange(0, 8, 2) / 8)
    angles = positions[:, None] * inv_freq
    cos, sin = (fault(f(angles))[:, None] for f in (pi.cos, pi.sin))
    first, second = x[..., :4], x[..., 4:]
    turned = first * cos - second * sin, second * cos + first * sin
    return pi.concatenate(turned, -1)


@pytest.mark.parametrize("profile", ["dense", "sparse", "decode", "boundary"])
def test_far_positions_excuse_nothing_near(profile):
    """Far out an angle in float32 is off by percents, and nearer tokens are not."""
    rng = np.random.default_rng(0)
    at = positions("16", profile).array(rng)
    inputs = {"x": rng.normal(size=(2, 16, 3, 8)), "positions": at}

    def compared(fault):
        port = partial(rope_of, jnp, fault=fault)
        return compare(port, partial(rope_of, torch), inputs)

    compared(lambda table: table).check()
    for fault in (
        lambda table: table.astype(jnp.bfloat16).astype(table.dtype),
        lambda table: 1.003 * table,
    ):
        assert compared(fault).verdict == "DIVERGE"


def test_complex_numbers_are_two():
    def right(x):
        return torch.complex(x, 2 * x)

    compare(lambda x: jax.lax.complex(x, 2 * x), right, {"x": X}).check()
    report = compare(lambda x: jax.lax.complex(x, 3 * x), right, {"x": X})
    verdicts = {row.name: row.verdict for row in report.rows}
    assert verdicts["out.real float64"] == "EQUAL"
    assert verdicts["out.imag float64"] == "DIVERGE"

    def judged(oracle):
        return compare(
            lambda x: jax.lax.complex(x, 2 * x), right, {"x": X}, oracle=oracle
        )

    judged(lambda x: x + 2j * x).check()
    assert not judged(lambda x: x + 3j * x).passed


def test_nothing_is_invalid():
    report = compare(lambda x: None, lambda x: None, {"x": X})
    assert report.verdict == "INVALID"
    assert report.rows[0].reason == "neither side gives an array"


def test_whole_numbers_must_be_the_same():
    """Of 4 000 001 float32 has one more, and its rounding is larger."""

    def whole(n):
        return lambda x: ((x > 0).sum() * 0 + n, x)

    compare(whole(4_000_000), whole(4_000_000), {"x": X}).check()
    assert compare(whole(4_000_001), whole(4_000_000), {"x": X}).verdict == "DIVERGE"
    assert compare(lambda x: jnp.argsort(x), lambda x: x.argsort(), {"x": X}).passed


def test_input_and_weight_of_one_name():
    class Port(linen.Module):
        stopped: bool

        @linen.compact
        def __call__(self, x):
            weight = self.param("x", lambda key: jnp.ones(6))
            return weight * jnp.tanh(jax.lax.stop_gradient(x) if self.stopped else x)

    class Original(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.x = torch.nn.Parameter(torch.ones(6))

        def forward(self, x):
            return self.x * torch.tanh(x)

    compare(Port(False), Original(), {"x": X}).check()
    report = compare(Port(True), Original(), {"x": X})
    wrong = {row.name for row in report.rows if row.verdict == "DIVERGE"}
    assert wrong == {"d_input x float64"}


def test_outputs_of_one_name_are_refused():
    def two(x):
        return {"a/b": x, "a": {"b": 2 * x}}

    with pytest.raises(ValueError, match="two outputs have the name a/b"):
        compare(two, two, {"x": X})


# ---------------------------------------------------------------- what must not be wrong


@pytest.mark.parametrize("size", [1, 2, 3])
def test_functions_of_the_libraries(size):
    """The tails of a gradient are off by hundreds of roundings, in float64 too: it is the same function."""
    x = np.random.default_rng(size).normal(size=(16, 64)) * size
    gelu = partial(torch.nn.functional.gelu, approximate="tanh")
    verdicts = {
        row.name: row.verdict for row in compare(jax.nn.gelu, gelu, {"x": x}).rows
    }
    assert verdicts["out float32"] == verdicts["d_x float64"] == "AGREE"
    assert verdicts["d_x float32"] in ("AGREE", "A_WORSE")


def test_gradient_that_is_zero_but_for_rounding():
    """Of a bias of keys: a softmax does not see what is added to all of its inputs."""

    def attend(softmax, x, w, b):
        keys = x @ w + b
        return softmax(x @ keys.mT) @ x

    rng = np.random.default_rng(0)
    x, w, b = (rng.normal(size=s) for s in ((2, 5, 16), (16, 16), (16,)))
    report = compare(
        partial(attend, jax.nn.softmax),
        partial(attend, partial(torch.softmax, dim=-1)),
        {"x": x, "w": w / 4, "b": b},
        dtypes=("float32", "bfloat16"),
    )
    report.check()


def test_state_of_pytorch_is_not_that_of_a_comparison():
    def far(x):
        return jnp.sin(x * jnp.linspace(0, 100, 6, dtype="float32"))

    def theirs(x):
        return torch.sin(x * torch.linspace(0, 100, 6))

    with torch.no_grad():
        compare(far, theirs, {"x": X}).check()
    torch.set_default_dtype(torch.float64)
    try:
        compare(far, theirs, {"x": X}).check()
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_input_that_is_written_into():
    def theirs(x):
        return torch.relu_(x) * 2

    compare(lambda x: jax.nn.relu(x) * 2, theirs, {"x": X}).check()


def test_output_that_is_one_number():
    compare(lambda x: (x**2, 0.0), lambda x: (x**2, 0.0), {"x": X}).check()
    assert not compare(lambda x: (x**2, 1.0), lambda x: (x**2, 0.0), {"x": X}).passed


def test_port_that_insists_on_float32():
    """As a carry of a scan does; then float32 alone is judged, and it is said."""

    def total(carry, row):
        return carry + row, carry + row

    def port(x):
        return jax.lax.scan(total, jnp.zeros(6, jnp.float32), x)[1]

    x = np.random.default_rng(0).normal(size=(9, 6))
    report = compare(port, lambda x: x.cumsum(0), {"x": x})
    report.check()
    assert report.notes[0].startswith("A does not run in float64, so it is judged in")
    assert {row.name for row in report.rows} == {"out float32", "d_x float32"}
    assert not compare(port, lambda x: x.cumsum(0) * 1.001, {"x": x}).passed


def test_original_that_is_more_exact_in_float32_than_in_float64():
    """It sums in float64 what is in float32, and in float64 no better: what float32 costs says little of that."""

    def theirs(x, w):
        return (x.double() @ w.double()).to(x.dtype)

    rng = np.random.default_rng(0)
    inputs = {"x": rng.normal(size=(64, 2048)), "w": rng.normal(size=(2048, 64))}
    verdicts = {r.name: r.verdict for r in compare(jnp.matmul, theirs, inputs).rows}
    assert verdicts["out float64"] == "AGREE"


def test_beyond_half_precision_both_are_infinite():
    report = compare(
        lambda x: jnp.exp(8 * x),
        lambda x: torch.exp(8 * x),
        {"x": X},
        dtypes=("float32", "float16"),
    )
    report.check()
    assert np.exp(8 * X.max()) > np.finfo(np.float16).max


def test_dropout_and_statistics_are_those_of_evaluation():
    class Port(nnx.Module):
        def __init__(self, rngs):
            self.dense = nnx.Linear(6, 6, rngs=rngs)
            self.norm = nnx.BatchNorm(6, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.dropout(self.norm(self.dense(x)))

    class Original(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = torch.nn.Linear(6, 6)
            self.norm, self.dropout = torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.5)

        def forward(self, x):
            return self.dropout(self.norm(self.dense(x)))

    port = Port(nnx.Rngs(0))
    compare(port, Original(), {"x": X[:, 0]}).check()
    assert not port.dropout.deterministic


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("text", TypeError),
        (None, TypeError),
        (np.array([2**31]), ValueError),
        (np.array([2**40]), ValueError),
    ],
)
def test_inputs_that_are_none(value, error):
    with pytest.raises(error, match="`inputs` must be"):
        compare(jnp.tanh, torch.tanh, {"x": value})


def test_inputs_of_other_libraries():
    tensor = torch.from_numpy(X).to(torch.bfloat16).requires_grad_()
    for x in (tensor, jnp.asarray(X), X.tolist(), X.astype(">f4")):
        compare(jnp.tanh, torch.tanh, {"x": x}).check()


def test_error_says_whose_it_is():
    def broken(x):
        raise RuntimeError("no")

    for sides, whose in (
        ((broken, torch.tanh), "JAX"),
        ((jnp.tanh, broken), "PyTorch"),
    ):
        with pytest.raises(RuntimeError) as caught:
            compare(*sides, {"x": X})
        assert caught.value.__notes__ == [f"in {whose}'s side"]
    with pytest.raises(TypeError, match="the port, which comes first"):
        compare(torch.nn.Tanh(), torch.nn.Tanh(), {"x": X})


# --------------------------------------------------------------------------- releases


def half_rope_torch(base):
    def rotate(x):
        n = x.shape[-1] // 2
        inv_freq = 1.0 / base ** (torch.arange(n, dtype=x.dtype) / n)
        angles = torch.arange(x.shape[0])[:, None] * inv_freq
        cos, sin = angles.cos(), angles.sin()
        a, b = x[:, :n], x[:, n:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    return rotate


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("first", [10_000.0, 500_000.0])
def test_equinox_ignores_a_second_base(first):
    """Its rotary module keeps the tables of the first one of a width, whatever the base of the next."""
    from equinox.nn import RotaryPositionalEmbedding

    # No other test has this width.
    width = 18 if first == 10_000.0 else 22
    RotaryPositionalEmbedding(width, theta=first)(jnp.ones((64, width)))
    second = RotaryPositionalEmbedding(width, theta=500_000.0)
    x = np.random.default_rng(4).normal(size=(16, width))
    report = compare(lambda x: second(x), half_rope_torch(500_000.0), {"x": x})
    if first == 500_000.0:
        report.check()
    else:
        assert report.verdict == "DIVERGE"
        assert "base 10000 in place of 500000" in report.causes[0]


@pytest.mark.filterwarnings("default")
def test_rotary_embedding_torch_computes_angles_in_bfloat16():
    """Its positions are of the dtype of the queries, where bfloat16 has no 257."""
    from rotary_embedding_torch import RotaryEmbedding

    theirs = RotaryEmbedding(dim=8, cache_if_possible=False)

    def ours(x):
        inv_freq = posenc_jax.RopeConfig(8).inv_freq()
        tables = posenc_jax.rope_cos_sin(x.shape[1], inv_freq)
        x = x.swapaxes(0, 1)
        out = posenc_jax.apply_rope(x, *tables, layout="interleaved")
        return out.swapaxes(0, 1)

    for tokens, verdict in ((250, "AGREE"), (600, "B_WORSE")):
        x = np.random.default_rng(5).normal(size=(3, tokens, 8))
        dtypes = ("float32", "bfloat16")
        report = compare(
            ours, lambda x: theirs.rotate_queries_or_keys(x), {"x": x}, dtypes=dtypes
        )
        assert report.verdict == verdict, str(report)


# ------------------------------------------------------------------------------- taps


class Nnx(nnx.Module):
    def __init__(self, rngs, slope=1.0):
        self.first, self.second = (nnx.Linear(6, 6, rngs=rngs) for _ in range(2))
        self.slope = slope

    def __call__(self, x):
        hidden = self.slope * jnp.tanh(self.first(x))
        self.sow(nnx.Intermediate, "hidden", hidden)
        return self.second(hidden)


class Linen(linen.Module):
    slope: float = 1.0

    @linen.compact
    def __call__(self, x):
        hidden = self.slope * jnp.tanh(linen.Dense(6, name="first")(x))
        self.sow("intermediates", "hidden", hidden)
        return linen.Dense(6, name="second")(hidden)


def torch_of_taps():
    torch.manual_seed(0)
    model = torch.nn.Sequential()
    model.first, model.activation = torch.nn.Linear(6, 6), torch.nn.Tanh()
    model.second = torch.nn.Linear(6, 6)
    return model


@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_first_tap_that_differs(kind, tmp_path):
    def port(slope):
        return Nnx(nnx.Rngs(0), slope) if kind == "nnx" else Linen(slope)

    def compared(slope, taps):
        return compare(port(slope), torch_of_taps(), {"x": X}, taps=taps)

    taps = {"hidden": "activation"}
    if kind == "linen":
        taps = {"first/__call__": "first", **taps}
    right = compared(1.0, taps)
    right.check()
    names = [row.name for row in right.rows if row.name.startswith("tap")]
    assert names == [f"tap {t} {d}" for t in taps for d in ("float64", "float32")]
    assert compared(1.5, taps).causes[0] == "the first that differs: tap hidden"
    golden = tmp_path / "golden.npz"
    record(torch_of_taps(), {"x": X}, golden, taps=taps)
    assert replay(port(1.0), golden).rows == right.rows
    assert replay(port(1.5), golden).causes == ("the first that differs: tap hidden",)
    with pytest.raises(ValueError, match=r"`taps` must name what .* has, .*'no'"):
        compared(1.0, {"no": "first"})
    with pytest.raises(ValueError, match=r"`taps` must name what Sequential .*'no'"):
        compared(1.0, {"hidden": "no"})


def test_gradients_are_of_outputs_alone():
    """What leads to a tap and to no output has none."""

    class Dead(Linen):
        @linen.compact
        def __call__(self, x):
            self.sow("intermediates", "hidden", linen.Dense(6, name="first")(x))
            return linen.Dense(6, name="second")(x)

    class Original(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (torch.nn.Linear(6, 6) for _ in range(2))

        def forward(self, x):
            self.first(x)
            return self.second(x)

    report = compare(Dead(), Original(), {"x": X}, taps={"hidden": "first"})
    report.check()
    bounds = {row.name: row.bound for row in report.rows}
    assert bounds["d_first.weight float64"] == 0 < bounds["d_second.weight float64"]


# ---------------------------------------------------------------------------- weights


def zeros(**shapes):
    return {name.replace("__", "/"): np.zeros(shape) for name, shape in shapes.items()}


def test_map_is_guessed_by_names_and_shapes():
    """Square kernels, which fit each other, by their names and by the numbers of their layers."""
    ours = zeros(
        **{
            f"layers__{i}__attention__{n}__kernel": (8, 2, 4)
            for i in range(11)
            for n in ("query", "key", "value")
        }
    )
    theirs = {
        f"layers.{i}.attn.{n}_proj.weight": np.zeros((8, 8))
        for i in (*range(1, 11), 0)
        for n in "vqk"
    }
    assert guessed(ours, theirs) == {
        f"layers/{i}/attention/{n}/kernel": (
            f"layers.{i}.attn.{n[0]}_proj.weight",
            "transpose",
        )
        for i in range(11)
        for n in ("query", "key", "value")
    }


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (["Dense_0", "Dense_1"], ["fc1", "fc2"]),
        (["layers/0", "layers/1", "layers/2"], ["net.0", "net.2", "net.4"]),
        (["wq", "wk", "wv", "wo"], ["q_proj", "k_proj", "v_proj", "o_proj"]),
        (["query", "key", "value", "out"], ["q_lin", "k_lin", "v_lin", "out_lin"]),
    ],
)
def test_other_names_are_guessed(ours, theirs):
    """Squares all, so that no shape helps."""
    for order in (1, -1):
        names = guessed(
            {f"{name}/kernel": np.zeros((4, 4)) for name in ours},
            {f"{name}.weight": np.zeros((4, 4)) for name in theirs[::order]},
        )
        found = {a: b for a, (b, _) in names.items()}
        assert found == {
            f"{a}/kernel": f"{b}.weight" for a, b in zip(ours, theirs, strict=True)
        }


def test_convolutions_are_turned():
    weight = np.random.default_rng(2).normal(size=(5, 3, 2, 4))
    ours = carried(weight, "transpose", (2, 4, 3, 5))
    assert ours[1, 3, 2, 4] == weight[4, 2, 1, 3]
    np.testing.assert_array_equal(back(ours, "transpose", weight.shape), weight)


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        ({"a": ("x", "same")}, "b of JAX's is not mapped"),
        ({"a": ("x", "same"), "b": ("x", "same")}, "x of PyTorch's is used 2 times"),
        ({"a": ("x", "same"), "b": ("z", "same")}, "no weight of PyTorch's is z"),
        ({"a": ("x", "turned"), "b": ("y", "same")}, "'turned', which is not one of"),
        (
            {"a": ("y", "same"), "b": ("x", "same")},
            r"a is \(2, 3\), and y by 'same' is",
        ),
    ],
)
def test_map_is_checked(names, fault):
    ours, theirs = zeros(a=(2, 3), b=(4,)), zeros(x=(2, 3), y=(4,))
    assert checked({"a": ("x", "same"), "b": ("y", "same")}, ours, theirs)
    with pytest.raises(ValueError, match=fault):
        checked(names, ours, theirs)


class Single(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(4)(x)


def test_map_of_nothing_is_no_guess():
    with pytest.raises(ValueError, match="Dense_0/kernel of JAX's is not mapped"):
        compare(Single(), torch.nn.Linear(6, 4), {"x": X}, weights={})


def test_map_that_cannot_be_guessed():
    with pytest.raises(ValueError, match=r"JAX's side has 1 .*PyTorch's 2"):
        guessed(zeros(a=(2, 3)), zeros(x=(2, 3), y=(4,)))
    with pytest.raises(ValueError, match=r"a \(2, 3\) is none of"):
        guessed(zeros(a=(2, 3)), zeros(x=(7,)))


def test_doubt_of_a_guess_is_said():
    """Names that say nothing are taken in order; those that say enough are not doubted."""

    class Port(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = jnp.tanh(linen.Dense(6)(x))
            return linen.Dense(6)(x)

    class Original(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = (torch.nn.Linear(6, 6) for _ in range(2))

        def forward(self, x):
            return self.outer(torch.tanh(self.inner(x)))

    report = compare(Port(), Original(), {"x": X})
    report.check()
    (note,) = (x for x in report.notes if x.startswith("weight Dense_0/kernel "))
    assert "is inner.weight, transpose, by order alone: outer.weight would" in note
    ours, theirs = (
        zeros(**{"a/kernel": (3, 3), "b/kernel": (3, 3)}),
        zeros(**{"a.weight": (3, 3), "b.weight": (3, 3)}),
    )
    assert not doubts(guessed(ours, theirs), ours, theirs)


# Modules of a layer by their names in Flax and in PyTorch, of which norms alone have no matrix.
STRUCTURES = {
    "GPT in linen's own names": {
        "Block_{n}/LayerNorm_0": "h.{n}.ln_1",
        "Block_{n}/Attention_0/Dense_0": "h.{n}.attn.q",
        "Block_{n}/Attention_0/Dense_1": "h.{n}.attn.k",
        "Block_{n}/Attention_0/Dense_2": "h.{n}.attn.v",
        "Block_{n}/LayerNorm_1": "h.{n}.ln_2",
        "Block_{n}/MLP_0/Dense_0": "h.{n}.mlp.c_fc",
        "Block_{n}/MLP_0/Dense_1": "h.{n}.mlp.c_proj",
    },
    "Llama as published": {
        "layers/{n}/mlp/down_proj": "layers.{n}.feed_forward.w2",
        "layers/{n}/mlp/gate_proj": "layers.{n}.feed_forward.w1",
        "layers/{n}/mlp/up_proj": "layers.{n}.feed_forward.w3",
        "layers/{n}/self_attn/k_proj": "layers.{n}.attention.wk",
        "layers/{n}/self_attn/q_proj": "layers.{n}.attention.wq",
    },
    "PyTorch's decoder": {
        "layers/{n}/cross_attn/query": "layers.{n}.multihead_attn.q_proj",
        "layers/{n}/linear1": "layers.{n}.linear1",
        "layers/{n}/linear2": "layers.{n}.linear2",
        "layers/{n}/norm1": "layers.{n}.norm1",
        "layers/{n}/norm2": "layers.{n}.norm2",
        "layers/{n}/self_attn/query": "layers.{n}.self_attn.q_proj",
    },
    "numbers for names": {
        "layer_{n}/fc1": "encoder.{n}.ff.0",
        "layer_{n}/fc2": "encoder.{n}.ff.3",
        "layer_{n}/ln1": "encoder.{n}.norms.0",
        "layer_{n}/ln2": "encoder.{n}.norms.1",
    },
    "names for numbers": {
        "blocks/{n}/attn_out": "blocks.{n}.0.out",
        "blocks/{n}/gate": "blocks.{n}.1.0",
        "blocks/{n}/up": "blocks.{n}.1.1",
    },
    "stages of blocks": {
        "ResBlock_{n}/Conv_0": "stage{stage}.{block}.conv1",
        "ResBlock_{n}/BatchNorm_0": "stage{stage}.{block}.bn1",
        "ResBlock_{n}/Conv_1": "stage{stage}.{block}.conv2",
        "ResBlock_{n}/BatchNorm_1": "stage{stage}.{block}.bn2",
    },
    "modules numbered by kind": {
        "LayerNorm_{n}": "first.{n}.norm",
        "Dense_{n}": "first.{n}.w",
    },
}


@pytest.mark.parametrize("structure", STRUCTURES)
def test_usual_structures_are_guessed(structure):
    """What a module has goes together, and no shape tells one matrix from another."""
    ours, theirs, right = {}, {}, {}
    for n in range(12):
        places = {"n": n, "stage": 1 + n // 3, "block": n % 3}
        for one, other in STRUCTURES[structure].items():
            a, b = one.format(**places), other.format(**places)
            norm = any(word in b for word in ("ln", "norm", "bn"))
            matrix = ("scale", (6,)) if norm else ("kernel", (6, 6))
            for part, its, shape in (
                (matrix[0], "weight", matrix[1]),
                ("bias", "bias", (6,)),
            ):
                ours[f"{a}/{part}"] = theirs[f"{b}.{its}"] = np.zeros(shape)
                right[f"{a}/{part}"] = f"{b}.{its}"
    assert {a: b for a, (b, _) in guessed(ours, theirs).items()} == right
    if structure in ("Llama as published", "PyTorch's decoder"):
        theirs = dict([*theirs.items()][::-1])  # Names suffice.
        assert {a: b for a, (b, _) in guessed(ours, theirs).items()} == right


def test_biases_go_with_their_matrices():
    ours = zeros(**{"Dense_0/kernel": (6, 6), "Dense_0/bias": (6,)})
    ours |= zeros(**{"LayerNorm_0/scale": (6,), "LayerNorm_0/bias": (6,)})
    theirs = zeros(**{"a.weight": (6,), "a.bias": (6,)})
    theirs |= zeros(**{"b.weight": (6, 6), "b.bias": (6,)})
    found = {a: b for a, (b, _) in guessed(ours, theirs).items()}
    assert found["Dense_0/bias"] == "b.bias"
    assert found["LayerNorm_0/bias"] == "a.bias"


def test_modules_that_have_other_weights_are_guessed_one_by_one():
    """A bias that is a weight of its own there."""
    ours = zeros(**{"q/kernel": (4, 6), "q/bias": (6,), "scale": (3,)})
    theirs = zeros(**{"q.weight": (6, 4), "q_bias": (6,), "scale": (3,)})
    assert guessed(ours, theirs) == {
        "q/kernel": ("q.weight", "transpose"),
        "q/bias": ("q_bias", "same"),
        "scale": ("scale", "same"),
    }


def test_names_that_say_nothing_are_taken_in_order():
    """Flax numbers modules by their kind."""
    made = {
        "LayerNorm_0": "emb_ln",
        "Dense_0": "w",
        "Dense_1": "fc",
        "LayerNorm_1": "head",
        "Dense_2": "proj_in",
    }
    ours, theirs, right = {}, {}, {}
    for one, other in made.items():
        is_dense = one.startswith("Dense")
        for a, b, shape in (
            ("kernel" if is_dense else "scale", "weight", (6, 6) if is_dense else (6,)),
            ("bias", "bias", (6,)),
        ):
            ours[f"{one}/{a}"] = theirs[f"{other}.{b}"] = np.zeros(shape)
            right[f"{one}/{a}"] = f"{other}.{b}"
    assert {a: b for a, (b, _) in guessed(ours, theirs).items()} == right


def test_weights_exchanged_anywhere_are_named():
    class Original(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh())
            self.head = torch.nn.Linear(6, 6)

        def forward(self, x):
            return self.head(self.body(x))

    class Port(linen.Module):
        @linen.compact
        def __call__(self, x):
            body, head = linen.Dense(6, name="body_0"), linen.Dense(6, name="head")
            return body(jnp.tanh(head(x)))

    report = compare(Port(), Original(), {"x": X})
    words = "weights body.0 and head are exchanged"
    assert any(words in cause for cause in report.causes), str(report)


def attention(names):
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name in names:
                setattr(self, name, torch.nn.Linear(6, 6))

        def forward(self, x):
            q, k, v = (getattr(self, name)(x) for name in "qkv")
            return (q @ k.mT).softmax(-1) @ v

    return Attention()


class Exchanged(nnx.Module):
    def __init__(self, rngs):
        self.q, self.k, self.v = (nnx.Linear(6, 6, rngs=rngs) for _ in range(3))

    def __call__(self, x):
        q, k, v = self.v(x), self.k(x), self.q(x)
        return jax.nn.softmax(q @ k.mT) @ v


def test_weights_exchanged_in_every_layer_are_named():
    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([attention("qkv") for _ in range(2)])

        def forward(self, x):
            for layer in self.layers:
                x = x + layer(x)
            return x

    class Port(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List([Exchanged(rngs) for _ in range(2)])

        def __call__(self, x):
            for layer in self.layers:
                x = x + layer(x)
            return x

    report = compare(Port(nnx.Rngs(0)), Layers(), {"x": X})
    words = "weights layers.*.q and layers.*.v are exchanged in every layer"
    assert any(words in cause for cause in report.causes), str(report)


def test_weights_in_each_others_place_are_named():
    report = compare(Exchanged(nnx.Rngs(0)), attention("qkv"), {"x": X})
    assert report.causes[0].startswith("consistent with: weights q and v are exchanged")


def test_square_matrix_that_a_map_does_not_turn():
    names = {f"{n}/kernel": (f"{n}.weight", "transpose") for n in "qkv"}
    names |= {f"{n}/bias": (f"{n}.bias", "same") for n in "qkv"}

    class Right(Exchanged):
        def __call__(self, x):
            return jax.nn.softmax(self.q(x) @ self.k(x).mT) @ self.v(x)

    def compared(how):
        weights = {**names, "k/kernel": ("k.weight", how)}
        port = Right(nnx.Rngs(0))
        return compare(port, attention("qkv"), {"x": X}, weights=weights)

    compared("transpose").check()
    words = "weight k/kernel is k.weight by 'transpose', not 'same'"
    assert any(words in cause for cause in compared("same").causes)


def test_frozen_weight_may_be_a_constant():
    """Or a weight there too; it is not drawn anew, as a constant could not be."""
    table = np.sin(np.arange(30.0)).reshape(5, 6).astype(np.float32)

    class Original(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = torch.nn.Linear(6, 6)
            self.table = torch.nn.Parameter(torch.from_numpy(table), False)

        def forward(self, x):
            return self.dense(x) + self.table

    class Port(linen.Module):
        learnt: bool

        @linen.compact
        def __call__(self, x):
            rows = jnp.asarray(table, x.dtype)
            if self.learnt:
                rows = self.param("table", lambda key: rows)
            return linen.Dense(6, name="dense")(x) + rows

    for learnt in (True, False):
        compare(Port(learnt), Original(), {"x": X}).check()


def test_gradient_of_one_number_is_no_matter_of_luck():
    """Terms that cancel for one cotangent and not for another, summed in another order."""

    class Original(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return self.scale * torch.sin(x)

    class Port(linen.Module):
        @linen.compact
        def __call__(self, x):
            return self.param("scale", lambda key: jnp.ones(1)) * jnp.sin(x)

    x = np.random.default_rng(0).normal(size=(200, 14)) * 100
    for seed in range(10):
        compare(Port(), Original(), {"x": x}, seed=seed).check()


def test_table_of_float32_that_is_rounded_otherwise():
    """Frequencies made in float32 there and rounded from float64 here: far out their angles differ."""
    exact = 1e4 ** -(np.arange(0, 12, 2) / 12)

    class Original(torch.nn.Module):
        def __init__(self):
            super().__init__()
            made = 1.0 / 10_000.0 ** (torch.arange(0, 12, 2) / 12)
            self.register_buffer("inv_freq", made)

        def forward(self, x, positions):
            return x * torch.cos(positions[:, None] * self.inv_freq)

    def port(x, positions):
        frequencies = jnp.asarray(exact, x.dtype)
        return x * jnp.cos(positions[:, None].astype(x.dtype) * frequencies)

    x = np.random.default_rng(0).normal(size=(40, 6))
    far = np.arange(100_000, 100_040, dtype=np.int32)
    compare(port, Original(), {"x": x, "positions": far}).check()


def test_whole_numbers_alone_run_in_float64_too():
    def port(tokens):
        return jnp.sin(tokens[:, None] * jnp.asarray([0.1, 0.01]))

    def original(tokens):
        return torch.sin(tokens[:, None] * torch.tensor([0.1, 0.01]))

    report = compare(port, original, {"tokens": np.arange(40, dtype=np.int32)})
    report.check()
    assert "float32, whatever" not in str(report)


# ---------------------------------------------------------------------- dtypes of outputs


def test_outputs_of_another_dtype_are_said(tmp_path):
    """Their numbers are compared all the same; whole numbers have other widths in JAX."""

    def port(x):
        wide = x.astype(jnp.float32)
        return jax.nn.softmax(wide), wide.argmax(-1), x.sum()

    def original(x):
        return x.softmax(-1), x.argmax(-1), x.sum()

    options = {"dtypes": ("float32", "bfloat16")}
    report = compare(port, original, {"x": X}, **options)
    assert report.passed, str(report)
    said = ("0 is float32 in A and bfloat16 in B, in a run in bfloat16",)
    assert report.notes == said
    golden = tmp_path / "golden.npz"
    record(original, {"x": X}, golden, **options)
    assert replay(port, golden).notes == said
    assert compare(jax.nn.softmax, lambda x: x.softmax(-1), {"x": X}).notes == ()


def test_functions_of_both_libraries_agree():
    """Whose numbers nobody here chose: a bound that they pass is no accident of this project's own pairs."""
    for name, (sides, draws) in library_pairs().items():
        report = PairCase(sides, draws, SIZES, {}, 0, {}).report()
        assert report.passed, f"{name}: {report}"


# ------------------------------------------------------------------------- large numbers


@pytest.mark.parametrize(
    ("port", "original", "right"),
    [
        (lambda i: i * 1_000_003, lambda i: i * 1_000_003, True),
        (lambda i: i * 1_000_003, lambda i: i * 1_000_033, False),
        (lambda i: -i * 1_000_003, lambda i: -i * 1_000_033, False),
    ],
)
def test_large_whole_numbers_are_compared(port, original, right):
    """float32 has not all of them, float64 has."""
    i = np.arange(1000, 2000, dtype=np.int32)
    report = compare(
        lambda x, i: (port(i), x), lambda x, i: (original(i), x), {"x": X, "i": i}
    )
    assert report.passed == right, str(report)


def test_large_numbers_are_compared():
    """They do not stand for infinity as one number does, by which something is masked."""

    def port(x, factor):
        y = 10 ** (4 + 2 * x)
        return jnp.where(y > 1e8, factor * y, y)

    x = 2 * np.random.default_rng(3).normal(size=(4, 9))
    for factor, right in ((1.0, True), (1.05, False)):
        ours = partial(port, factor=factor)
        report = compare(ours, lambda x: 10 ** (4 + 2 * x), {"x": x})
        assert report.passed == right, str(report)

    def masked(np_, x, by):
        return np_.where(x > 0, x, by)

    for ours, theirs in ((1e9, np.inf), (-np.inf, -1e9)):
        a, b = partial(masked, jnp, by=ours), partial(masked, torch, by=theirs)
        compare(a, b, {"x": X}).check()


# ------------------------------------------------------- modes of the original's float64 run


def test_original_that_writes_into_float32_is_refused():
    """What it wrote into a copy in float64 would be lost."""

    class Cached(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = torch.zeros(2, 5, 6)

        def forward(self, x):
            cache = self.cache.clone()
            cache.index_copy_(1, torch.arange(5), x)
            return torch.tanh(cache.cumsum(1))

    with pytest.raises(RuntimeError, match="index_copy_"):
        compare(lambda x: jnp.tanh(jnp.cumsum(x, 1)), Cached(), {"x": X})


def test_gradients_that_compute_anew():
    """Of a checkpoint, with constants that are made in float32."""

    def body(x):
        return torch.sin(x * torch.arange(6, dtype=torch.float32))

    def original(x):
        return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)

    compare(lambda x: jnp.sin(x * jnp.arange(6.0)), original, {"x": X}).check()


# ----------------------------------------------------------------------- taps of any kind


class Two(torch.nn.Module):
    def forward(self, x):
        return {"first": x * 2, "second": x}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.two, self.dense = Two(), torch.nn.Linear(6, 6)
        self.act = torch.nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.dense(self.two(x)["first"]))


def test_taps_of_trees_and_of_what_is_written_into():
    class Port(linen.Module):
        @linen.compact
        def __call__(self, x):
            self.sow("intermediates", "two", {"first": 2 * x})
            y = linen.Dense(6)(2 * x)
            last = {"init_fn": lambda: 0.0, "reduce_fn": lambda _, new: new}
            self.sow("intermediates", "dense", y, **last)
            return jax.nn.relu(y)

    taps = {"two": "two", "dense": "dense"}
    compare(Port(), Model(), {"x": X}, taps=taps).check()
    with pytest.raises(
        ValueError, match=r"must name what Model .*has, two, dense, act"
    ):
        compare(Port(), Model(), {"x": X}, taps={"two": "tow"})


def test_complex_taps_are_recorded(tmp_path):
    class Port(linen.Module):
        @linen.compact
        def __call__(self, x):
            turned = x * jnp.exp(1j * jnp.arange(6))
            self.sow("intermediates", "turned", turned)
            return turned.real

    class Turn(torch.nn.Module):
        def forward(self, x):
            return x * torch.exp(1j * torch.arange(6))

    class Original(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.turn = Turn()

        def forward(self, x):
            return self.turn(x).real

    golden = tmp_path / "golden.npz"
    record(Original(), {"x": X}, golden, taps={"turned": "turn"})
    replay(Port(), golden).check()


def test_first_output_that_differs_is_said():
    """Of a dict of what is on the way, in the program's order."""

    def port(x):
        y = jnp.sin(x)
        z = jnp.exp(2 * y)
        return {"y": y, "out": z.sum(-1), "exp": z}

    def original(x):
        y = torch.sin(x)
        z = torch.exp(y)
        return {"y": y, "exp": z, "out": z.sum(-1)}

    causes = compare(port, original, {"x": X}).causes
    assert causes[0] == "the first that differs: exp"


# --------------------------------------------------------------------- layers in one array


class Layer(linen.Module):
    factor: float = 1.0

    @linen.compact
    def __call__(self, x, _):
        y = linen.Dense(8, name="up")(linen.LayerNorm(epsilon=1e-5, name="norm")(x))
        y = self.factor * jnp.tanh(y)
        return x + linen.Dense(6, use_bias=False, name="down")(y), None


class Scanned(linen.Module):
    """As MaxText's, which stacks along the second axis."""

    axis: int
    factor: float = 1.0

    @linen.compact
    def __call__(self, x):
        x = linen.Dense(6, name="first")(x)
        layers = linen.scan(
            Layer,
            variable_axes={"params": self.axis},
            split_rngs={"params": True},
            length=3,
        )
        x, _ = layers(self.factor, name="layers")(x, None)
        return linen.Dense(2, name="last")(x)


class Listed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 6), torch.nn.Linear(6, 2)
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleDict(
                {
                    "norm": torch.nn.LayerNorm(6),
                    "up": torch.nn.Linear(6, 8),
                    "down": torch.nn.Linear(8, 6, bias=False),
                }
            )
            for _ in range(3)
        )

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + layer["down"](torch.tanh(layer["up"](layer["norm"](x))))
        return self.last(x)


@pytest.mark.parametrize("axis", [0, 1])
def test_layers_that_are_stacked(axis):
    """Each is compared with the layer of PyTorch's that it is, gradients too."""
    report = compare(Scanned(axis), Listed(), {"x": X})
    report.check()
    said = {note.partition(",")[0] for note in report.notes}
    for i in range(3):
        assert f"weight layers/{i}/up/kernel is layers.{i}.up.weight" in said
        assert f"d_layers.{i}.up.weight float64" in {row.name for row in report.rows}


def test_stacked_layers_by_a_map():
    """One says which is which; this one has two layers in each other's place."""
    names = {
        f"layers/{i}/{a}": (f"layers.{(1, 0, 2)[i]}.{b}", how)
        for i in range(3)
        for a, b, how in (
            ("norm/scale", "norm.weight", "same"),
            ("norm/bias", "norm.bias", "same"),
            ("up/kernel", "up.weight", "transpose"),
            ("up/bias", "up.bias", "same"),
            ("down/kernel", "down.weight", "transpose"),
        )
    } | {
        f"{n}/{a}": (f"{n}.{b}", how)
        for n in ("first", "last")
        for a, b, how in (("kernel", "weight", "transpose"), ("bias", "bias", "same"))
    }
    causes = compare(Scanned(1), Listed(), {"x": X}, weights=names).causes
    assert "weights layers.0 and layers.1 are exchanged" in causes[0]
