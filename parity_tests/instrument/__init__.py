"""The comparison itself: inputs drawn once, two runners, a float64 oracle, a verdict in words.

Names are loaded when they are asked for, so that what needs no PyTorch runs without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cases import pair
    from .draws import booleans, normal, positions, tokens
    from .dtypes import DTYPES
    from .inputs import PROFILES
    from .invariants import check_invariants
    from .lints import lint
    from .pairs import Pair, run
    from .ports import compare, record, replay
    from .results import explain
    from .verdicts import PASSING, VERDICTS, Report, Row, judge

# Where each is.
NAMES = {
    "cases": ("pair",),
    "draws": ("booleans", "normal", "positions", "tokens"),
    "dtypes": ("DTYPES",),
    "results": ("explain",),
    "inputs": ("PROFILES",),
    "invariants": ("check_invariants",),
    "lints": ("lint",),
    "pairs": ("Pair", "run"),
    "ports": ("compare", "record", "replay"),
    "verdicts": ("PASSING", "VERDICTS", "Report", "Row", "judge"),
}

__all__ = [
    "DTYPES",
    "PASSING",
    "PROFILES",
    "VERDICTS",
    "Pair",
    "Report",
    "Row",
    "booleans",
    "check_invariants",
    "compare",
    "explain",
    "judge",
    "lint",
    "normal",
    "pair",
    "positions",
    "record",
    "replay",
    "run",
    "tokens",
]


def __getattr__(name: str) -> Any:
    for module, names in NAMES.items():
        if name in names:
            return getattr(importlib.import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
