"""For pytest, in any project: the fixture `parity` is this package, and options say what is kept of its comparisons.

    def test_port(parity):
        parity.compare(port, original, {"x": x}).check()

Nothing else is loaded until a test or an option asks for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

OPTIONS = {
    "report": "a folder for a web page and a JUnit file of every comparison",
    "record": "a folder to write what every original gives to",
    "replay": "such a folder, read in place of the originals: no PyTorch is needed if tests name them, 'model.py:NAME'",
    "baseline": "a file of errors that may not grow; what is not in it is added",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("parity", "comparison of ports")
    for name, text in OPTIONS.items():
        group.addoption(
            f"--parity-{name}", type=Path, default=None, metavar="PATH", help=text
        )


def pytest_configure(config: pytest.Config) -> None:
    report, record, replay, baseline = (
        config.getoption(f"parity_{name}") for name in OPTIONS
    )
    if not any((report, record, replay, baseline)):
        return
    from .instrument.session import SESSION, Baseline

    SESSION.reports, SESSION.record, SESSION.replay = report, record, replay
    SESSION.baseline = Baseline(baseline) if baseline else None
    config.pluginmanager.register(_Kept(config, SESSION))


class _Kept:
    """Where an option asks for something to be kept."""

    def __init__(self, config: pytest.Config, session: Any) -> None:
        self.config, self.session = config, session

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.session.begin(item.nodeid)
        return (yield)

    def pytest_sessionfinish(self) -> None:
        """A worker of pytest-xdist sends what is new to the process that started it, which alone writes it."""
        baseline = self.session.baseline
        if not baseline:
            return
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["parity_baseline"] = baseline.new
        else:
            baseline.write()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        if self.session.baseline:
            output = getattr(node, "workeroutput", {})
            self.session.baseline.new |= output.get("parity_baseline", {})


@pytest.fixture(scope="session")
def parity() -> ModuleType:
    """The package `parity_tests`, whose `compare` says whether a port is its original."""
    return importlib.import_module(__package__)
