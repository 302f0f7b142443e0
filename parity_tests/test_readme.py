"""The README keeps its word: its code runs, and its commands name what exists.

An installed copy has no README file beside it; the same text is then the description in the package's metadata.
"""

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import posenc_jax
import posenc_torch

CHECKOUT = Path(__file__).parents[1]
PYPROJECT = CHECKOUT / "pyproject.toml"


def readme() -> str:
    if PYPROJECT.is_file():
        return (CHECKOUT / "README.md").read_text(encoding="utf-8")
    return metadata("posenc")["Description"]


def extras() -> set[str]:
    if PYPROJECT.is_file():
        project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
        return set(project["optional-dependencies"])
    return set(metadata("posenc").get_all("Provides-Extra", []))


def section(title: str) -> str:
    """What stands under one `##` heading."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", readme(), re.DOTALL | re.M)
    assert found, f"the README has no section {title!r}"
    return found[1]


def blocks(text: str, language: str) -> list[tuple[int, str]]:
    """The line in `text` above each block of a language, and the block."""
    fence = re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, m.start(1)), m[1]) for m in fence.finditer(text)]


def test_python_blocks_run_in_order_and_agree():
    python = blocks(readme(), "python")
    assert python, "the README has no Python blocks"
    namespace = {}
    for line, source in python:
        padded = "\n" * line + source  # so that a traceback names the README's line
        exec(compile(padded, "README.md", "exec"), namespace)
    # Angles of 1e5 radians have the same bits on both sides. What is left is the last bit of sin and cos, and
    # of float32 sums: some 1e-7 each, through logits of size 10 and a softmax.
    assert 0 <= namespace["difference"] < 1e-5


def test_there_are_two_commands():
    commands = [block for _, block in blocks(section("Two commands"), "sh")]
    assert [command.count("\n") for command in commands] == [1, 1], commands
    assert "python examples/quickstart.py" in commands[0]
    assert "pytest parity_tests" in commands[1]


def test_commands_name_extras_that_exist():
    named = re.findall(r'pip install -e "\.\[([\w,]+)\]"', readme())
    assert len(named) >= 2
    assert {extra for group in named for extra in group.split(",")} <= extras()


def test_scheme_table_names_every_function():
    rows = [line for line in section("The schemes").splitlines() if line[:1] == "|"]
    named = {name for row in rows[2:] for name in re.findall(r"`(\w+)`", row)}
    assert set(posenc_jax.__all__) <= named
    assert named <= {*posenc_torch.__all__, "make_attention_fn", "ring_attention"}


def test_outputs_and_tables_are_filled():
    """What a marker stands for follows it: a block with lines, or a table with rows."""
    parts = re.split(r"^<!-- (?:output|table): \w+ -->\n", readme(), flags=re.M)[1:]
    assert len(parts) == 14
    for part in parts:
        filled = part.partition("\n\n#")[0]
        assert len(re.findall(r"^[^`\n<].*", filled, re.M)) >= 1
        assert not part.startswith("```text\n```")
