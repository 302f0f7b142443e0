"""What the instrument is used by: commands, files, options of pytest, and a decorator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen

import posenc_jax
import posenc_torch

from .__main__ import main
from .instrument import compare, explain, known, normal, pair, positions, record, replay
from .instrument.dtypes import DTYPES
from .instrument.session import Baseline, Session
from .instrument.verdicts import Report, Row

FOLDER = Path(__file__).parents[1] / "examples" / "port"
X = np.random.default_rng(0).normal(size=(2, 5, 6))
TANH = ["jax.numpy:tanh", "torch:tanh", "--input", "x=float:3,4"]
TAN = ["jax.numpy:tan", *TANH[1:]]


def run_python(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


# ----------------------------------------------------------------------------- compare

if FOLDER.is_dir():  # the examples are not installed

    def test_command_names_the_cause(tmp_path, capsys):
        """What the port of the example says is the line of its frequencies."""
        file = tmp_path / "report.json"
        port, model = (FOLDER / name for name in ("flax_port.py", "model.py"))
        command = ["compare", f"{port}:Attention", f"{model}:Attention"]
        command += ["--input", "x=float:2,16,48", "--report", str(file)]
        assert main(command) == 1
        printed = capsys.readouterr().out
        assert "base 10000 in place of 500000" in printed
        line = port.read_text().split("inv_freq = ")[0].count("\n") + 1
        assert f"flax_port.py:{line}" in printed
        line = model.read_text().split("angles = ")[0].count("\n") + 1
        (original,) = (x for x in printed.splitlines() if x.startswith("B is the same"))
        assert original.endswith(f"not from mul at model.py:{line}")
        assert json.loads(file.read_text())["verdict"] == "DIVERGE"
        assert main([*command, "--option", "base=10_000.0"]) == 0

    def test_command_gives_the_same_report_twice(capsys):
        """Modules draw weights of their own when they are made."""
        port, model = (FOLDER / name for name in ("flax_port.py", "model.py"))
        command = ["compare", f"{port}:Attention", f"{model}:Attention"]
        command += ["--input", "x=float:2,16,48", "--option", "base=10_000.0"]
        for seed in (1, 2):
            torch.manual_seed(seed)
            assert main(command) == 0
        printed = capsys.readouterr().out.splitlines()
        half = len(printed) // 2
        assert printed[:half] == printed[half:]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["math:tanh", "torch:tanh", "--input", "x=real:2,3"],
            "of a kind float, positions,",
        ),
        (["math:tanh", "torch:tanh", "--input", "x=float:2,a"], "NAME=KIND:SIZES"),
        (["math:tanh", "torch:tanh", "--input", "float:2"], "NAME=KIND:SIZES"),
        (
            ["math:tanh", "torch:tanh", "--input", "x=positions/far:2"],
            "`profile` must be one of dense",
        ),
        (["math", "torch:tanh", "--input", "x=float:2"], "FILE.py:NAME or MODULE:NAME"),
        (["nowhere.py:f", "torch:tanh", "--input", "x=float:2"], "no file nowhere.py"),
        (["math:no", "torch:tanh", "--input", "x=float:2"], "there is no no in math"),
        ([*TANH, "--option", "width=3"], "width is of none"),
        ([*TANH, "--option", "width"], "NAME=VALUE"),
        (["math:tanh", "torch:tanh", "--input", "x=tokens:2"], "of a kind float"),
        (["torch:tanh", "torch:tanh", "--input", "x=float:2"], "in JAX's side"),
    ],
)
def test_command_says_why_it_could_not(arguments, sentence, capsys):
    assert main(["compare", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_command_of_two_functions(capsys):
    assert main(["compare", *TANH]) == 0
    printed = capsys.readouterr().out
    assert "PARITY AGREE" in printed
    assert f"JAX {jax.__version__} on cpu" in printed
    assert f"PyTorch {torch.__version__} on cpu, matrix products highest" in printed


class Doubled(linen.Module):
    factor: float = 1.0

    @linen.compact
    def __call__(self, x):
        hidden = self.factor * linen.Dense(6)(x)
        self.sow("intermediates", "hidden", hidden)
        return jnp.tanh(hidden)


class Hidden(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 6)

    def forward(self, x):
        return torch.tanh(self.first(x))


def test_command_taps(tmp_path, capsys):
    file = str(tmp_path / "golden.npz")
    inputs = ["--input", "x=float:2,6", "--tap", "hidden=first"]
    port, original = (f"{__name__}:{name}" for name in ("Doubled", "Hidden"))
    first = "the first that differs: tap hidden"
    assert main(["compare", port, original, *inputs, "--option", "factor=2.0"]) == 1
    assert first in capsys.readouterr().out
    assert main(["record", original, file, *inputs]) == 0
    assert main(["replay", port, file]) == 0
    assert main(["replay", port, file, "--option", "factor=2.0"]) == 1
    assert first in capsys.readouterr().out
    assert main(["compare", port, original, *inputs, "--tap", "hidden"]) == 2
    assert "`--tap` must be NAME=MODULE" in capsys.readouterr().err
    assert main(["compare", port, original, *inputs, "--tap", "hidden=first"]) == 2
    assert "`--tap` must name hidden once, got it twice" in capsys.readouterr().err


def rope_jax(x, positions, base=10_000.0):
    cos, sin = posenc_jax.rope_cos_sin(
        positions, posenc_jax.RopeConfig(x.shape[-1], base=base).inv_freq()
    )
    return posenc_jax.apply_rope(x, cos, sin)


def rope_torch(x, positions, base=10_000.0):
    cos, sin = posenc_torch.rope_cos_sin(
        positions, posenc_torch.RopeConfig(x.shape[-1], base=base).inv_freq()
    )
    return posenc_torch.apply_rope(x.transpose(1, 2), cos, sin).transpose(1, 2)


def rope_without_base(x, positions, base=10_000.0):
    return rope_torch(x, positions)


ROPE = ["--input", "x=float:2,5,3,8", "--input", "positions=positions:5"]


def test_known_scheme_says_which_side_is_wrong(capsys):
    """By itself the original is the truth."""
    here = f"{__name__}:rope_jax", f"{__name__}:rope_without_base"
    command = ["compare", *here, *ROPE, "--option", "base=500.0"]
    assert main([*command, "--scheme", "rope"]) == 1
    printed = capsys.readouterr().out
    (row,) = (x.split() for x in printed.splitlines() if x.startswith("out float32"))
    assert row[-1] == "B_WORSE"
    assert "the original is not what the oracle says" in printed
    assert main(command) == 1
    assert "B_WORSE" not in capsys.readouterr().out


def test_fault_of_both_sides_is_seen_by_an_oracle():
    def compared(oracle):
        return compare(jnp.tanh, torch.tanh, {"x": X}, oracle=oracle)

    assert compared(lambda x: np.tanh(x) * 1.001).rows[0].verdict == "BOTH_POOR"
    compared(np.tanh).check()
    with pytest.raises(ValueError, match=r"`oracle` .* it gives out \(6,\)"):
        compared(lambda x: x[0, 0])


def test_known_schemes_are_ours():
    """What `--scheme` takes as right is what the packages compute, to the rounding of float32 angles below 100."""
    near = partial(np.testing.assert_allclose, atol=100 * 2.0**-24 * 4, rtol=0)
    at = np.random.default_rng(0).integers(0, 100, (2, 5))
    x = np.random.default_rng(1).normal(size=(2, 5, 3, 8))
    near(rope_jax(jnp.asarray(x), jnp.asarray(at)), known.rope(x, at))
    heads_first = known.rope(x.swapaxes(1, 2), at).swapaxes(1, 2)
    near(heads_first, known.rope(x, at))
    encoding = posenc_jax.sinusoidal_position_encoding(jnp.asarray(at), 8)
    near(encoding, known.sinusoidal(at, dim=8))
    bias = posenc_jax.alibi_bias(4, 5, posenc_jax.alibi_slopes(6))
    near(bias, known.alibi(np.arange(4), np.arange(5), num_heads=6))


def test_rope_of_an_ambiguous_axis_is_refused():
    with pytest.raises(ValueError, match="one axis of tokens"):
        known.rope(np.zeros((2, 5, 5, 8)), np.arange(5))


# ----------------------------------------------------------------------------- reports


def test_report_as_files(tmp_path, capsys):
    suffixes = ("html", "json", "xml", "txt", "py")
    files = {suffix: tmp_path / "new" / f"report.{suffix}" for suffix in suffixes}
    options = [part for file in files.values() for part in ("--report", str(file))]
    assert main(["compare", *TAN, *options]) == 1
    printed = capsys.readouterr().out
    text = {suffix: file.read_text() for suffix, file in files.items()}
    assert text["txt"] == printed
    found = json.loads(text["json"])
    assert found["verdict"] == "DIVERGE"
    assert found["rows"][0]["name"] == "out float64"
    assert found["environment"]["NumPy"] == np.__version__
    assert found["again"] == ["compare", *TAN]
    suite = ElementTree.fromstring(text["xml"])
    failed = [x.get("name") for x in suite if x.find("failure") is not None]
    assert "out float64" in failed
    assert int(suite.get("failures")) == len(failed)
    assert int(suite.get("tests")) == len(found["rows"])
    assert "src='data:image/png;base64," in text["html"]
    assert "http" not in text["html"]
    again = run_python(tmp_path, "new/report.py")
    assert found["rows"][0]["where"] in again


def test_page_escapes_what_others_wrote(tmp_path):
    row = Row("<b>", "CONTRACT", reason="<script>")
    Report("<a>", (row,), ("<i>",)).save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert not {"<b>", "<script>", "<a>", "<i>"} & {*page.replace(">", "> ").split()}
    assert "&lt;script&gt;" in page


def test_report_that_cannot_be_is_refused_first(capsys):
    assert main(["compare", *TANH, "--report", "report.pdf"]) == 2
    printed = capsys.readouterr()
    assert "ends with one of .html" in printed.err
    assert not printed.out


def test_script_runs_from_anywhere(tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "port.py").write_text("from jax.numpy import tanh\n")
    monkeypatch.chdir(tmp_path / "here")
    command = ["compare", "port.py:tanh", *TANH[1:], "--report", "again.py"]
    assert main(command) == 0
    assert "PARITY AGREE" in run_python(tmp_path, "here/again.py")


def test_page_without_matplotlib(tmp_path, monkeypatch):
    report = compare(jnp.tan, torch.tanh, {"x": X})
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "pip install matplotlib" in page
    assert "out float64" in page


@pytest.mark.parametrize(
    ("name", "words"), [("r.pdf", "one of .html"), ("r.py", "command")]
)
def test_report_of_an_unknown_kind(name, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        Report("t", (Row("out", "AGREE"),)).save(tmp_path / name)
    assert not [*tmp_path.iterdir()]


def test_numbers_that_json_has_not(tmp_path):
    Report("t", (Row("out", "DIVERGE", ratio_a=np.inf),)).save(tmp_path / "r.json")
    text = (tmp_path / "r.json").read_text()
    assert json.loads(text)["rows"][0]["ratio_a"] == "inf"


def test_report_says_where():
    def wrong(x):
        return jnp.tanh(x).at[1, 2:4, 3].add(0.5)

    report = compare(wrong, torch.tanh, {"x": X})
    (where,) = {row.where for row in report.rows if row.name == "out float64"}
    assert "axis 0 at 1 of 2; axis 1 at 2-3 of 5; axis 2 at 3 of 6" in where
    assert "worst [1, " in where
    assert where in str(report)


def test_bad_head_does_not_hide_among_larger_ones():
    """Head 1 is a thousand times smaller; it is rounded to what is no error of the others."""
    scale = np.array([1.0, 1e-3])[:, None]

    def wrong(x):
        y = x * scale
        rounded = y.astype(jnp.bfloat16).astype(y.dtype)
        return y.at[..., 1, :].set(rounded[..., 1, :] * 0.1 + y[..., 1, :] * 0.9)

    def right(x):
        return x * torch.tensor(scale, dtype=x.dtype)

    x = np.random.default_rng(1).normal(size=(3, 7, 2, 5))
    rows = {row.name: row for row in compare(wrong, right, {"x": x}).rows}
    assert rows["out float32"].verdict == "A_WORSE"
    assert "axis 2 at 1 of 2" in rows["out float32"].where


# ---------------------------------------------------------------------- record, replay


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_replay_is_the_comparison(dtype, tmp_path):
    """Every number of the report, without its original."""
    options = {"dtypes": ("float32", dtype), "seed": 3}
    file = tmp_path / "golden.npz"
    record(torch.tanh, {"x": X}, file, **options)
    for port in (jnp.tanh, jnp.tan):
        direct = compare(port, torch.tanh, {"x": X}, **options)
        assert replay(port, file).rows == direct.rows


def test_replay_with_weights(tmp_path):
    file = tmp_path / "golden.npz"
    record(torch.nn.Linear(6, 4), {"x": X}, file)
    assert replay(linen.Dense(4), file).passed
    with pytest.raises(ValueError, match="the weights do not fit"):
        replay(linen.Dense(4, use_bias=False), file)


def test_replay_needs_no_torch(tmp_path):
    file = tmp_path / "golden.npz"
    assert main(["record", "torch:tanh", str(file), "--input", "x=float:3,4"]) == 0
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from parity_tests.__main__ import main\n"
        f"sys.exit(main(['replay', 'jax.numpy:{{}}', '{file}']))"
    )
    printed = run_python(tmp_path, "-c", program.format("tanh"))
    assert "PARITY AGREE" in printed
    assert "PyTorch not installed" in printed
    assert "PARITY DIVERGE" in run_python(tmp_path, "-c", program.format("tan"))


@pytest.mark.parametrize("kind", ["another", "text", "cut", "changed", "numbers"])
def test_replay_of_another_file(kind, tmp_path):
    """What was recorded is what is read, to the bit."""
    file, good = tmp_path / "other.npz", tmp_path / "good.npz"
    record(torch.tanh, {"x": X}, good)
    with np.load(good) as arrays:
        changed = {n: 1.5 * x if "cost" in n else x for n, x in arrays.items()}
    if kind == "another":
        np.savez(file, x=X)
    elif kind == "changed":
        np.savez(file, **changed)
    elif kind == "numbers":
        with file.open("wb") as written:
            np.save(written, X)
    else:
        file.write_bytes(b"text" if kind == "text" else good.read_bytes()[:900])
    with pytest.raises(ValueError, match=r"other.npz must be a file of `record`"):
        replay(jnp.tanh, file)
    assert replay(jnp.tanh, good).passed


def test_names_of_files_are_those_of_tests():
    """No two of one."""
    session = Session()
    names = set()
    for case in ("t.py::f[+]", "t.py::f[*]", "t.py::f[/]", "t.py::f_"):
        session.begin(case)
        names |= {session.name(), session.name()}
    assert len(names) == 8
    assert not any("/" in name for name in names)


# ----------------------------------------------------------------------------- explain

B = np.random.default_rng(0).normal(size=(4, 6, 8)).astype(np.float32)
STEP = np.arange(12, dtype=np.float32)[:, None] * np.array([1.0, 0.1, 0.01], np.float32)


@pytest.mark.parametrize(
    ("expected", "actual", "words"),
    [
        (B, -B, "the sign is changed"),
        (B, B[:, ::-1], "axis 1 reversed"),
        (B, 2.5 * B, "multiplied by 2.5"),
        (B, B.astype(DTYPES["bfloat16"]).astype(np.float32), "rounded to bfloat16"),
        (STEP, STEP + STEP[1], "positions after their own by 1"),
    ],
)
def test_explained(expected, actual, words):
    report = explain({"y": actual}, {"y": expected})
    assert report.verdict == "DIVERGE"
    assert any(words in cause for cause in report.causes)


def test_rounding_needs_no_explanation():
    wide = B.astype(np.float64)
    report = explain({"y": B * np.float32(1 + 2**-23)}, {"y": B}, truth={"y": wide})
    assert report.passed
    assert not report.causes


@pytest.mark.parametrize(
    ("actual", "verdict", "reason"),
    [
        ({"y": B.swapaxes(0, 1)}, "CONTRACT", "the same numbers in another order"),
        ({"y": B.astype(np.float64)}, "CONTRACT", "A is float64, B float32"),
        ({"y": B, "z": B}, "CONTRACT", "B has none"),
        ({"y": np.where(B > 2, np.nan, B)}, "CONTRACT", "NaN at other places"),
        ({"y": np.arange(192).reshape(B.shape)}, "CONTRACT", "A is int64"),
    ],
)
def test_what_cannot_be_the_same(actual, verdict, reason):
    report = explain(actual, {"y": B})
    assert report.verdict == verdict
    assert any(reason in row.reason for row in report.rows)


def test_explained_as_what_it_is():
    z = B[0] + 1j * B[1]
    flags = B > 0
    assert explain({"y": z.conj()}, {"y": z}).verdict == "DIVERGE"
    assert explain({"y": z}, {"y": z}).verdict == "EQUAL"
    assert explain({"y": ~flags}, {"y": flags}).verdict == "DIVERGE"
    assert explain({"y": flags * 0}, {"y": flags * 0}).verdict == "EQUAL"
    infinite = np.where(flags, np.inf, B)
    assert explain({"y": infinite}, {"y": infinite}).passed
    assert explain({"y": -infinite}, {"y": infinite}).verdict == "CONTRACT"
    with pytest.raises(TypeError, match="y must be an array of numbers, got <U4"):
        explain({"y": np.array(["text"])}, {"y": B})
    with pytest.raises(ValueError, match=r"`truth` .* lacks y"):
        explain({"y": B}, {"y": B}, truth={"z": B})


def test_whole_numbers_must_be_equal():
    ids = np.arange(12)
    assert explain({"y": ids}, {"y": ids}).verdict == "EQUAL"
    assert explain({"y": ids + (ids == 3)}, {"y": ids}).verdict == "DIVERGE"


def test_nothing_in_common():
    with pytest.raises(ValueError, match="a name in common, got x and y"):
        explain({"x": B}, {"y": B})


def test_command_explains_files(tmp_path, capsys):
    a, b = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez(a, y=-B)
    np.savez(b, y=B)
    assert main(["explain", str(a), str(b)]) == 1
    assert "consistent with: the sign is changed (y;" in capsys.readouterr().out
    assert main(["explain", str(b), str(b), "--truth", str(b)]) == 0


# ---------------------------------------------------------------------------- baseline


def test_baseline_holds_an_error(tmp_path, capsys):
    """A row that is within its bound, and four times what it was."""
    file = tmp_path / "errors.json"
    command = ["compare", *TANH, "--baseline", str(file)]
    assert main(command) == 0
    (case,) = (known := json.loads(file.read_text()))
    assert main(command) == 0
    # Half of it: other sums may double an error.
    half = {case: {name: ratio / 2 for name, ratio in known[case].items()}}
    file.write_text(json.dumps(half))
    assert main(command) == 0
    assert json.loads(file.read_text()) == half
    file.write_text(json.dumps({case: {"out float32": 0.3}}))
    row = Row("out float32", "AGREE", ratio_a=0.9)
    held = partial(Baseline(file).held, Report("t", (row,)))
    assert held("another").passed
    assert held(case).rows[0].verdict == "A_WORSE"
    assert held(case).rows[0].reason == "grew from 0.3 of its bound to 0.9"


def test_baseline_that_is_none(tmp_path):
    (tmp_path / "errors.json").write_text("{")
    with pytest.raises(ValueError, match=r"errors.json is no baseline"):
        Baseline(tmp_path / "errors.json")


# ----------------------------------------------------------------------------- the pair


@pair(
    jax=rope_jax,
    torch=rope_torch,
    inputs={"x": normal("B S 3 D"), "positions": positions("B S", "sparse")},
    axes={"B": 2, "S": [5, 7], "D": 8},
    static={"base": [10_000.0, 500.0]},
)
def test_pair(case):
    case.check()


def a_test(case):
    """What `pair` decorates."""


def test_pair_has_every_case():
    marks = pair(
        jax=jnp.tan,
        torch=torch.tanh,
        inputs={"x": normal("S 3")},
        axes={"S": [2, 4]},
        seeds=(0, 1),
    )(a_test).pytestmark
    cases = marks[0].args[1]
    assert [*map(str, cases)] == [f"S={s},seed={n}" for s in (2, 4) for n in (0, 1)]
    with pytest.raises(AssertionError, match="PARITY DIVERGE"):
        cases[0].check()
    # Another seed is of other inputs.
    first, second = (case.report().rows[0].error_a for case in cases[:2])
    assert first != second


def test_options_reach_both_sides_and_the_oracle():
    def a_test(case):
        """Another than that of the test before."""

    def scaled(x, by):
        return x * by

    marks = pair(
        jax=scaled,
        torch=scaled,
        inputs={"x": normal("2 3")},
        static={"by": [3.0]},
        oracle=scaled,
    )(a_test).pytestmark
    (case,) = marks[0].args[1]
    report = case.report()
    report.check()
    assert report.title.startswith("scaled (test_commands.py:")


def test_pair_of_nothing_is_refused():
    with pytest.raises(ValueError, match="must leave a case"):
        pair(jax=jnp.tanh, torch=torch.tanh, inputs={}, axes={"S": []})
    with pytest.raises(ValueError, match="axis 'S' of 'S 3' must be"):
        normal("S 3").array(np.random.default_rng(0))


# ----------------------------------------------------------------------------- plugin


def test_plugin_loads_nothing(tmp_path):
    program = (
        "import parity_tests.plugin, sys; print({'jax', 'torch'} & {*sys.modules})"
    )
    assert run_python(tmp_path, "-c", program) == "set()\n"


PORT = """\
import jax.numpy as jnp, numpy as np
x = {'x': np.arange(6.0).reshape(2, 3)}
def test_right(parity):
    parity.compare(jnp.tanh, "torch:tanh", x).check()
    parity.compare(jnp.sin, "torch:sin", x).check()
def test_wrong(parity):
    parity.compare(jnp.tan, "torch:tanh", x).check()
"""


def run_pytest(folder: Path, *options: str, before: str = "") -> str:
    program = f"{before}import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    command = ("-q", "-p", "parity_tests.plugin", "-p", "no:cacheprovider", *options)
    return run_python(folder, "-c", program, *command)


def test_fixture_and_options_of_another_project(tmp_path):
    """Recorded with PyTorch, replayed without; a page and a JUnit file of every comparison."""
    (tmp_path / "test_port.py").write_text(PORT)
    recorded = run_pytest(tmp_path, "--parity-record", "goldens")
    assert "1 failed, 1 passed" in recorded
    assert "PARITY DIVERGE" in recorded
    names = {
        "test_port.py%3A%3Atest_right",
        "test_port.py%3A%3Atest_right~2",
        "test_port.py%3A%3Atest_wrong",
    }
    assert {file.stem for file in (tmp_path / "goldens").iterdir()} == names
    replayed = run_pytest(
        tmp_path,
        *("--parity-replay", "goldens", "--parity-report", "reports"),
        before="import sys; sys.modules['torch'] = None; ",
    )
    assert "1 failed, 1 passed" in replayed
    assert "PARITY DIVERGE" in replayed
    files = {file.name for file in (tmp_path / "reports").iterdir()}
    assert files == {f"{name}.{kind}" for name in names for kind in ("html", "xml")}
    (tmp_path / "test_port.py").write_text(
        PORT.replace("6.0", "6.5").replace("(2, 3)", "(7)")
    )
    other = run_pytest(tmp_path, "--parity-replay", "goldens")
    assert "`inputs` must be those of the recorded answers" in other


def test_baseline_of_a_worker(tmp_path):
    (tmp_path / "test_port.py").write_text(PORT)
    options = ("--parity-baseline", "errors.json", "-n", "1")
    assert "1 failed, 1 passed" in run_pytest(tmp_path, *options, "-p", "xdist")
    known = json.loads((tmp_path / "errors.json").read_text())
    assert [*known] == [
        "test_port.py%3A%3Atest_right",
        "test_port.py%3A%3Atest_right~2",
        "test_port.py%3A%3Atest_wrong",
    ]


# ------------------------------------------------------------------------ check, lint

BY_HALVES = f"{__name__}:rope_by_halves"


def rope_by_halves(x, positions):
    """As many have it: angles of positions in bfloat16, by a product of matrices."""
    frequencies = 10_000.0 ** -jnp.linspace(0, 1, 4, endpoint=False)
    angles = positions.astype(jnp.bfloat16)[:, None] @ frequencies[None].astype(
        "bfloat16"
    )
    cos, sin = (f(angles).astype(x.dtype)[:, None] for f in (jnp.cos, jnp.sin))
    return posenc_jax.apply_rope(x, cos[:, 0], sin[:, 0])


def test_command_lints(tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["lint", f"{__name__}:rope_jax", *ROPE]) == 0
    assert main(["lint", BY_HALVES, *ROPE, "--report", str(page)]) == 1
    printed = capsys.readouterr().out
    assert "angle-products   CONTRACT  test_commands.py:" in printed
    assert "angle-precision  CONTRACT  test_commands.py:" in printed
    assert "angle-products" in page.read_text()
    assert "the port in JAX" not in page.read_text()


@pytest.mark.parametrize("law", ["shift", "norm"])
def test_command_checks(law, capsys):
    assert main(["check", f"{__name__}:rope_jax", *ROPE, "--that", law]) == 0
    assert main(["check", f"{__name__}:rope_torch", *ROPE, "--that", law]) == 0
    assert f"{law}  AGREE" in capsys.readouterr().out
    assert main(["check", BY_HALVES, *ROPE, "--that", law]) == 1


def test_command_checks_what_is_promised(capsys):
    assert main(["check", f"{__name__}:rope_jax", *ROPE]) == 0
    printed = capsys.readouterr().out
    assert "CHECK AGREE  rope_jax (test_commands.py:" in printed
    assert "packed  AGREE" in printed
    assert "norm" not in printed
    assert main(["check", BY_HALVES, *ROPE, "--that", "weight"]) == 2


# ----------------------------------------------------------------------------- doctor


def test_doctor_finds_this_machine_fit(capsys):
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert jax.__version__ in printed
    assert "nothing is wrong" in printed


def test_doctor_finds_fewer_bits(monkeypatch, capsys):
    """As of a GPU that multiplies in TF32."""
    monkeypatch.setattr(
        torch.Tensor, "__matmul__", lambda a, b: (a * 0 + 1).mul(b * 0 + 8)
    )
    assert main(["doctor"]) == 1
    assert "PyTorch multiplies float32 matrices in fewer" in capsys.readouterr().out
