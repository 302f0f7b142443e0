"""The comparison itself: inputs drawn once, two runners, a float64 oracle, a verdict in words."""

from .frameworks import DTYPES
from .inputs import PROFILES
from .pairs import Pair, run
from .verdicts import PASSING, VERDICTS, Report, Row, compare

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
