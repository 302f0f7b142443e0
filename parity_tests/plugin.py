"""For pytest, in any project: the fixture `parity` is this package.

    def test_port(parity):
        parity.compare(port, original, {"x": x}).check()

Nothing else is loaded until a test asks for it.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def parity() -> ModuleType:
    """The package `parity_tests`, whose `compare` says whether a port is its original."""
    return importlib.import_module(__package__)
