"""Proof that `posenc_torch` and `posenc_jax` are one function, and the instrument that gives it."""

from .instrument import (
    DTYPES,
    PASSING,
    PROFILES,
    VERDICTS,
    Pair,
    Report,
    Row,
    compare,
    run,
)

__all__ = [
    "DTYPES",
    "PASSING",
    "PROFILES",
    "VERDICTS",
    "Pair",
    "Report",
    "Row",
    "compare",
    "run",
]
