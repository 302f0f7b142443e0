"""The comparison itself: inputs drawn once, two runners, a float64 oracle, a verdict in words."""

from .dtypes import DTYPES
from .inputs import PROFILES
from .pairs import Pair, run
from .ports import compare
from .verdicts import PASSING, VERDICTS, Report, Row, judge

__all__ = [
    "DTYPES",
    "PASSING",
    "PROFILES",
    "VERDICTS",
    "Pair",
    "Report",
    "Row",
    "compare",
    "judge",
    "run",
]
