"""A report as a file: JSON, JUnit, a web page that needs no other file, or a script that makes it again."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import json
import math
import os
import shlex
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from .verdicts import PASSING, Findings, Report, Row

__all__ = ["check_path", "saved"]

# Cells of a picture along an axis; of more numbers each shows the worst of a block.
MOST_CELLS = 128
# Tensors whose errors are shown, those that are wrong first.
MOST_PICTURES = 6


def saved(report: Report, path: Path) -> None:
    """Write it as what the name ends with.

    Raises:
        ValueError: if that is none of .html, .json, .py, .txt and .xml, or no command is known that makes it again.
    """
    check_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MADE[path.suffix](report) + "\n", encoding="utf-8")


def check_path(path: Path) -> None:
    """That a report can be written there.

    Raises:
        ValueError: if its name does not say as what.
    """
    if path.suffix not in MADE:
        raise ValueError(
            f"a report must be a file that ends with one of {', '.join(MADE)}, got {path.name!r}."
        )


def _json(report: Report) -> str:
    found = {
        "verdict": report.verdict,
        **dataclasses.asdict(report),
        "rows": [_plain(row) for row in report.rows],
    }
    return json.dumps(found, indent=1, allow_nan=False)


def _plain(row: Row) -> dict[str, Any]:
    """Without its array, and with "inf" and "nan", for which JSON has no numbers, in words."""
    fields = {n: x for n, x in dataclasses.asdict(row).items() if n != "errors"}
    return {
        name: str(x) if isinstance(x, float) and not math.isfinite(x) else x
        for name, x in fields.items()
    }


def _junit(report: Report) -> str:
    wrong = [row for row in report.rows if row.verdict not in PASSING]
    counts = {"tests": str(len(report.rows)), "failures": str(len(wrong))}
    suite = ElementTree.Element("testsuite", name=report.title, **counts)
    for row in report.rows:
        case = ElementTree.SubElement(
            suite, "testcase", classname=report.title, name=row.name
        )
        if row in wrong:
            message = f"{row.verdict} {row.reason or row.where}"
            failure = ElementTree.SubElement(case, "failure", message=message)
            failure.text = "\n".join(report.causes)
    ElementTree.SubElement(suite, "system-out").text = str(report)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _script(report: Report) -> str:
    if not report.again:
        raise ValueError(
            "`path` may end with .py for reports of a command, which a script can give again."
        )
    return f'''"""{report.title}: {report.verdict}."""

import os
import sys

from parity_tests.__main__ import main

os.chdir({os.getcwd()!r})
sys.exit(main({json.dumps(report.again, indent=4)}))'''


# ------------------------------------------------------------------------------ web page

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse } td, th { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child, td:last-child, th:last-child { text-align: left }
.right { color: #17692f } .wrong { color: #b3261e; font-weight: 600 }
pre, code { background: #f4f4f4; padding: .1rem .3rem } pre { padding: .6rem; overflow-x: auto }
img { max-width: 100% }
"""
SIDES = "A is the port in JAX, B the original in PyTorch. A number is right if its error is within its bound."
COLUMNS = {
    "tensor": "name",
    "|A-true|": "error_a",
    "|B-true|": "error_b",
    "bound": "bound",
    "A/bound": "ratio_a",
    "B/bound": "ratio_b",
    "verdict": "verdict",
}


def _html(report: Report) -> str:
    text = html.escape
    parts = [
        f"<h1><span {_class(report.passed)}>{report.verdict}</span> {text(report.title)}</h1>",
        f"<p>{'' if isinstance(report, Findings) else SIDES}</p>",
        _listed("What is known of it", report.causes),
        _listed("Where", [f"{row.name}: {row.where}" for row in report.wrong()]),
        _pictured(report),
        _table(report),
        _listed("Notes", report.notes),
        _listed("Made with", [f"{n}: {x}" for n, x in report.environment.items()]),
    ]
    if report.again:
        command = shlex.join(["python", "-m", "parity_tests", *report.again])
        parts.append(f"<h2>Again</h2><pre>{text(command)}</pre>")
    head = f"<meta charset='utf-8'><title>{report.verdict} {text(report.title)}</title>"
    body = "\n".join(parts)
    return f"<!doctype html><html lang='en'><head>{head}<style>{STYLE}</style></head><body>{body}</body></html>"


def _class(right: bool) -> str:
    return f"class='{'right' if right else 'wrong'}'"


def _listed(title: str, lines: Sequence[str]) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<h2>{title}</h2><ul>{items}</ul>" if lines else ""


def _table(report: Report) -> str:
    columns = COLUMNS
    if isinstance(report, Findings):
        columns = {"check": "name", "verdict": "verdict"}
    head = "".join(f"<th>{title}</th>" for title in columns)
    rows = []
    for row in report.rows:
        values = (getattr(row, field) for field in columns.values())
        cells = [f"{x:.2g}" if isinstance(x, float) else html.escape(x) for x in values]
        cells[-1] = (
            f"<span {_class(row.verdict in PASSING)}>{cells[-1]}</span> {html.escape(row.reason)}"
        )
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<h2>All of them</h2><table><tr>{head}</tr>{''.join(rows)}</table>"


def _pictured(report: Report) -> str:
    """Errors by channel and each other axis: a bad head, position or channel is a line."""
    rows = sorted(report.wrong(), key=lambda row: row.name.startswith("d_"))
    if rows and not find_spec("matplotlib"):
        return "<p>Pictures of the errors need matplotlib: <code>pip install matplotlib</code>.</p>"
    pictures = [
        f"<p>{html.escape(row.name)}<br>{_picture(row.name, row.errors)}</p>"
        for row in rows[:MOST_PICTURES]
        if row.errors is not None and row.errors.any()
    ]
    title = "<h2>Errors beyond their bound, as multiples of the largest</h2>"
    return title + "".join(pictures) if pictures else ""


def _picture(name: str, errors: np.ndarray) -> str:
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    errors = np.atleast_2d(errors / errors.max())
    last = errors.ndim - 1
    axes = [axis for axis in range(last) if errors.shape[axis] > 1] or [last - 1]
    figure = Figure(figsize=(3.6 * len(axes) + 0.8, 3), layout="constrained")
    for at, axis in enumerate(axes):
        others = tuple(k for k in range(last) if k != axis)
        plot = figure.add_subplot(1, len(axes), at + 1, facecolor="#e8e8e8")
        image = plot.imshow(
            np.ma.masked_equal(_in_blocks(errors.max(others)), 0),
            norm=LogNorm(1e-4, 1, clip=True),
            cmap="inferno_r",
            aspect="auto",
            extent=(-0.5, errors.shape[last] - 0.5, errors.shape[axis] - 0.5, -0.5),
            interpolation="nearest",
        )
        plot.set(xlabel=f"channel (axis {last})", ylabel=f"axis {axis}")
        for side in (plot.xaxis, plot.yaxis):
            side.set_major_locator(MaxNLocator(integer=True))
        if errors.shape[axis] == 1:
            plot.set_yticks([])
    figure.colorbar(image, ax=figure.axes)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    data = base64.b64encode(file.getvalue()).decode()
    return (
        f"<img alt='errors of {html.escape(name)}' src='data:image/png;base64,{data}'>"
    )


def _in_blocks(x: np.ndarray) -> np.ndarray:
    """The largest of blocks, at most MOST_CELLS of them along an axis."""
    for axis, size in enumerate(x.shape):
        if size > MOST_CELLS:
            starts = np.linspace(0, size, MOST_CELLS, endpoint=False).astype(int)
            x = np.maximum.reduceat(x, starts, axis)
    return x


MADE: dict[str, Callable[[Report], str]] = {
    ".html": _html,
    ".json": _json,
    ".py": _script,
    ".txt": str,
    ".xml": _junit,
}
