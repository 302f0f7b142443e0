"""Proof that `posenc_torch` and `posenc_jax` are one function, and the instrument that gives it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .instrument import (
        DTYPES,
        PASSING,
        PROFILES,
        VERDICTS,
        Pair,
        Report,
        Row,
        booleans,
        check_invariants,
        compare,
        explain,
        lint,
        normal,
        pair,
        positions,
        record,
        replay,
        run,
        tokens,
    )

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
    """From the instrument, when it is asked for: pytest loads this package wherever it is installed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(".instrument", __name__), name)
