"""The comparison itself: inputs drawn once, two runners, a float64 oracle, a verdict in words."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .cases import pair
from .draws import booleans, normal, positions, tokens
from .dtypes import DTYPES
from .inputs import PROFILES
from .invariants import check_invariants
from .lints import lint
from .ports import compare, record, replay
from .results import explain
from .verdicts import PASSING, VERDICTS, Report, Row, judge

if TYPE_CHECKING:
    from .pairs import Pair, run

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
    """What needs PyTorch, which a replay does without."""
    if name not in ("Pair", "run"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(".pairs", __name__), name)
