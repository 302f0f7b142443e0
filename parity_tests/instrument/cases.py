"""One decorator from two programs to a parametrised test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .draws import Draw
from .ports import compare
from .sides import NO_TAPS
from .verdicts import Report
from .weights import WeightMap

__all__ = ["PairCase", "pair"]


@dataclass(frozen=True)
class PairCase:
    """One comparison: `report()` says what it found, `check()` fails unless the sides agree.

    Args:
        sides: The port and the original.
        inputs: What to draw each input from.
        sizes, options, seed: Of this case.
        how: Other arguments of `compare`.
    """

    sides: tuple[Any, Any]
    inputs: Mapping[str, Draw]
    sizes: dict[str, int]
    options: dict[str, Any]
    seed: int
    how: dict[str, Any]

    def report(self) -> Report:
        rng = np.random.default_rng(self.seed)
        drawn = {
            name: draw.array(rng, self.sizes) for name, draw in self.inputs.items()
        }
        how = dict(self.how)
        port, original = self.sides
        if self.options:
            port, original = (partial(x, **self.options) for x in self.sides)
            if how["oracle"]:
                how["oracle"] = partial(how["oracle"], **self.options)
        return compare(port, original, drawn, seed=self.seed, **how)

    def check(self) -> None:
        self.report().check()

    def __str__(self) -> str:
        chosen = {**self.sizes, **self.options, "seed": self.seed}
        return ",".join(f"{name}={value}" for name, value in chosen.items())


def pair(
    *,
    jax: Any,
    torch: Any,
    inputs: Mapping[str, Draw],
    axes: Mapping[str, int | Sequence[int]] | None = None,
    static: Mapping[str, Sequence[Any]] | None = None,
    weights: WeightMap | None = None,
    oracle: Callable[..., Any] | None = None,
    taps: Mapping[str, str] = NO_TAPS,
    dtypes: Sequence[str] = ("float32",),
    seeds: Sequence[int] = (0,),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a test that takes `case` run on a port and its original, for every choice of sizes, options and seeds.

        @pair(
            jax=rope_jax, torch=rope_torch,
            inputs={"x": normal("B S H D"), "positions": positions("B S", "sparse")},
            axes={"B": 2, "S": [5, 33], "H": 3, "D": 8},
            static={"layout": ["half", "interleaved"]},
        )
        def test_rope(case):
            case.check()

    Args:
        jax, torch: The two programs, as `compare` takes them.
        inputs: What to draw each input from.
        axes: The size of every named axis, or several.
        static: Options of both functions, and of the oracle, each with the values to try.
        weights, oracle, taps, dtypes: As `compare` takes them.
        seeds: Of inputs, weights and cotangents.
    Raises:
        ValueError: if nothing would be run.
    """
    import pytest

    sizes = {
        axis: [size] if isinstance(size, int) else list(size)
        for axis, size in (axes or {}).items()
    }
    how = {"weights": weights, "oracle": oracle, "taps": taps, "dtypes": dtypes}
    choices = itertools.product(_choices(sizes), _choices(static or {}), seeds)
    cases = [PairCase((jax, torch), inputs, *choice, how) for choice in choices]
    if not cases:
        raise ValueError("`axes`, `static` and `seeds` must leave a case, got none.")
    return pytest.mark.parametrize("case", cases, ids=str)


def _choices(values: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for chosen in itertools.product(*values.values()):
        yield dict(zip(values, chosen, strict=True))
