"""What each model and library does with sinusoidal, learned and ALiBi encodings, as a call of this library.

A variant is an expression that both packages evaluate, and the same thing computed by the source: what
`python -m parity_tests.families` prints is what test_variants.py runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .twins import Twin

__all__ = ["Reference", "U", "Variant", "evaluate"]

U = 2.0**-24  # unit roundoff of float32


@dataclass(frozen=True)
class Reference:
    """What a source computed, and the values that the expression's names had."""

    value: np.ndarray
    given: dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """One way to encode positions.

    Attributes:
        scheme: Of this library, "sinusoidal", "learned", "alibi" or "positions".
        who: The models and libraries that do it.
        call: An expression of this library's functions, and of the names in `Reference.given`.
        source: What the reference is computed with: a package, "stored" for numbers that its code printed elsewhere
            (their place in the comment), or a paper.
        reference: Runs the source.
        units: How far float32 results may be apart, in units of 2 ** -24 of the largest value, 0 for the same bits.
    """

    scheme: str
    who: str
    call: str
    source: str
    reference: Callable[[], Reference]
    units: float


def evaluate(twin: Twin, call: str, given: dict[str, Any]) -> np.ndarray:
    """The value of the expression in one package; arrays are given and come back as NumPy."""
    arrays = {
        name: twin.array(value) if isinstance(value, np.ndarray) else value
        for name, value in given.items()
    }
    names = {name: getattr(twin.package, name) for name in twin.package.__all__}
    return np.asarray(eval(call, {"__builtins__": {}}, {**names, **arrays}))
