"""Is this port the original, up to rounding, and if not, where and why?

Both sides run on the same weights and inputs, in float64 first: they are one function or they are not. Then in float32,
values and gradients for one random cotangent: what is the port worse by? Without an oracle the truth is the original's
float64 run, and what float32 may cost is what it costs the original.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from .bounded import Bounded
from .causes import Change, explained
from .frameworks import DTYPES, run_jax, run_torch, to_torch, unit_roundoff
from .sides import Side, in_dtype, jax_side, named, torch_side
from .stages import (
    Recording,
    Region,
    diverging,
    record_jax,
    record_torch,
    replayed_torch,
)
from .tolerances import COST_RUNS, FEW, HALF_UNITS, HUGE, PEER_FLOOR_UNITS, PORT_FACTOR
from .verdicts import PASSING, Report, Row, judge
from .weights import WeightMap, back, carried, checked, guessed

__all__ = ["compare"]

Arrays = dict[str, np.ndarray]
# What an array of a call is, before its name.
INPUT, WEIGHT = "input ", "weight "


def compare(
    jax_program: Any,
    torch_program: Any,
    inputs: Mapping[str, Any],
    *,
    weights: WeightMap | None = None,
    dtypes: Sequence[str] = ("float32",),
    seed: int = 0,
) -> Report:
    """Compare a port in JAX with its original in PyTorch.

    Args:
        jax_program: A function, a `flax.nnx.Module` or a `flax.linen.Module`.
        torch_program: A function or a `torch.nn.Module`. Outputs of both are arrays or trees of arrays, in one order of
            axes.
        inputs: Arrays by name; floating ones are differentiated. They are passed by these names where a side has such
            parameters, else in this order.
        weights: {JAX's name: (PyTorch's name, "same" or "transpose")}; None guesses it by names and shapes. The report
            says it.
        dtypes: In which the sides are judged once they are one function: "float32", "bfloat16", "float16".
        seed: Of the weights, which are drawn anew around those that PyTorch's side has, and of the cotangents.
    Returns:
        A report whose rows are outputs and gradients ("d_" and the name), A the port and B the original, in float64 and
        in float32. Its causes say what explains a difference and where the sides part, its notes which weight is which.
    Raises:
        TypeError: if a side is none of these.
        ValueError: if the weights do not fit each other.
    """
    unknown = {*dtypes} - {"float32", "bfloat16", "float16"}
    if unknown or "float32" not in dtypes:
        raise ValueError(
            f"`dtypes` must be float32 and perhaps bfloat16 and float16, got {dtypes}."
        )
    inputs = {name: np.asarray(array) for name, array in inputs.items()}
    port, original = jax_side(jax_program, inputs), torch_side(torch_program)
    if weights is None:
        weights = guessed(port.weights, original.weights)
    else:
        checked(weights, port.weights, original.weights)
    with _precisely():
        return _report(_Case(port, original, weights, inputs, dtypes, seed))


def _report(case: _Case) -> Report:
    rows, causes = case.contract(), []
    if not rows:
        rows = case.rows()
        wrong = {
            row.name.rpartition(" ")[0]
            for row in rows
            if row.verdict in ("DIVERGE", "CONTRACT")
        }
        outputs = [name for name in case.outputs if name in wrong]
        if outputs:
            causes = case.diagnosis(outputs)
        elif wrong:
            causes = ["outputs agree: look for what stops or changes a gradient"]
    title = f"{case.port.source} | {case.original.source}"
    notes = (f"weight {a} is {b}, {how}" for a, (b, how) in case.weights.items())
    return Report(title, tuple(rows), tuple(causes), tuple(notes))


@contextmanager
def _precisely() -> Iterator[None]:
    """Matrices are multiplied in all their bits: what a GPU or a TPU leaves out by default is no fault of a port."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        with jax.default_matmul_precision("highest"):
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


class _Case:
    """Two sides, and the numbers that both are given."""

    def __init__(
        self,
        port: Side,
        original: Side,
        weights: WeightMap,
        inputs: Arrays,
        dtypes: Sequence[str],
        seed: int,
    ) -> None:
        self.port, self.original, self.weights = port, original, weights
        self.dtypes = dtypes
        rng = np.random.default_rng(seed)
        drawn = {name: _around(w, rng) for name, w in original.weights.items()}
        inputs = {INPUT + name: x for name, x in _cast(inputs, "float32").items()}
        self.of_torch = inputs | {WEIGHT + name: w for name, w in drawn.items()}
        self.of_jax = inputs | {
            WEIGHT + a: carried(drawn[b], how, port.weights[a].shape)
            for a, (b, how) in weights.items()
        }
        outputs = _program(original, "float32")(**_tensors(self.of_torch, "float32"))
        self.outputs = {name: rng.normal(size=x.shape) for name, x in outputs.items()}

    def contract(self) -> list[Row]:
        """Outputs that are not there on both sides, or not of one shape."""
        arrays = {
            name: jnp.asarray(x) for name, x in _cast(self.of_jax, "float32").items()
        }
        ours = jax.eval_shape(
            lambda given: _program(self.port, "float32")(**given), arrays
        )
        shapes = (
            {name: tuple(x.shape) for name, x in outputs.items()}
            for outputs in (ours, self.outputs)
        )
        a, b = shapes
        return [
            Row(
                name,
                "CONTRACT",
                reason=f"A has {a.get(name, 'none')}, B {b.get(name, 'none')}",
            )
            for name in sorted({*a, *b})
            if a.get(name) != b.get(name)
        ]

    def rows(self) -> list[Row]:
        # All float64 runs first: in some modules a table of one run is left for the next.
        exact = {dtype: self._both("float64", dtype) for dtype in self.dtypes}
        rows = []
        for dtype, (a64, b64) in exact.items():
            a, b = self._both(dtype, dtype)
            costs = self._costs(dtype)
            for name in b:
                truth = _truth(_finite(b64[name]), costs[name], dtype)
                row = _judged(name, a[name], b[name], truth, dtype)
                if dtype == "float32":
                    rows.append(_same(name, a64[name], b64[name], truth, row.verdict))
                rows.append(row)
        return rows

    def _both(self, dtype: str, held: str) -> tuple[Arrays, Arrays]:
        """Outputs and gradients of both sides on numbers that `held` holds, by PyTorch's names and in its shapes."""
        a = self._results(self.port, self.of_jax, dtype, held)
        for ours, (theirs, how) in self.weights.items():
            gradient = a.pop(f"d_{WEIGHT}{ours}")
            shape = self.of_torch[WEIGHT + theirs].shape
            a[f"d_{WEIGHT}{theirs}"] = back(gradient, how, shape)
        b = self._results(self.original, self.of_torch, dtype, held)
        return _without_kinds(a), _without_kinds(b)

    def _costs(self, dtype: str) -> Arrays:
        """What rounding costs the original, at worst of a few runs near by: of a few numbers one run may be lucky."""
        rng = np.random.default_rng(0)
        costs: Arrays = {}
        for _ in range(COST_RUNS):
            near_by = {
                name: np.asarray(x * (1 + 2**-6 * rng.normal(size=x.shape)))
                if x.dtype in DTYPES.values()
                else x
                for name, x in self.of_torch.items()
            }
            exact, rounded = (
                _without_kinds(self._results(self.original, near_by, run, dtype))
                for run in ("float64", dtype)
            )
            for name, x in rounded.items():
                error = _largest(_finite(x) - _finite(exact[name]))
                costs[name] = np.maximum(costs.get(name, 0.0), error)
        return costs

    def _results(self, side: Side, arrays: Arrays, dtype: str, held: str) -> Arrays:
        learnt = tuple(n for n, x in arrays.items() if x.dtype in DTYPES.values())
        given = (_cast(_cast(x, held), dtype) for x in (arrays, self.outputs))
        run = run_torch if side is self.original else _run_jitted
        return run(_program(side, dtype), *given, learnt)

    def diagnosis(self, outputs: list[str]) -> list[str]:
        """What explains that these outputs are another function's, and where the sides part."""
        with jax.enable_x64(True):
            arrays = _cast(self.of_jax, "float64")
            port = record_jax(
                lambda given: _program(self.port, "float64")(**given),
                {name: jnp.asarray(x) for name, x in arrays.items()},
            )

        def run(given: dict[str, Any]) -> dict[str, Any]:
            return _program(self.original, "float64")(**given)

        original = record_torch(run, _tensors(self.of_torch, "float64"))
        ours, theirs = diverging(port, original, outputs)
        found = {name: port.stages[port.outputs[name]].value for name in outputs}

        def error(instead: dict[int, Change]) -> float:
            try:
                again = replayed_torch(run, _tensors(self.of_torch, "float64"), instead)
            except Exception:  # Anybody's code follows, and may not take such numbers.
                return np.inf
            return max(_apart(found[name], again[name]) for name in outputs)

        causes = explained(original, theirs, port, ours, error)
        return [
            *(f"consistent with: {cause}" for cause in causes),
            _said("B", original, theirs),
            _said("A", port, ours),
        ]


def _run_jitted(*call: Any) -> Arrays:
    return run_jax(*call, jit=True)


def _program(side: Side, dtype: str) -> Callable[..., dict[str, Any]]:
    """A function of arrays under the names of a case, whose outputs are in the dtype of the run."""

    def function(**arrays: Any) -> dict[str, Any]:
        weights, inputs = (
            {
                name.removeprefix(kind): x
                for name, x in arrays.items()
                if name.startswith(kind)
            }
            for kind in (WEIGHT, INPUT)
        )
        outputs = named(side.call(weights, inputs, dtype))
        return {name: in_dtype(x, dtype) for name, x in outputs.items()}

    return function


def _without_kinds(arrays: Arrays) -> Arrays:
    return {
        name.replace(f"d_{WEIGHT}", "d_").replace(f"d_{INPUT}", "d_"): x
        for name, x in arrays.items()
    }


def _said(side: str, recording: Recording, region: Region) -> str:
    """The last lines that have the numbers of the other side, and the first that have others."""

    def lines(stages: tuple[int, ...]) -> str:
        seen = dict.fromkeys(recording.stages[at].where for at in stages)
        return ", ".join([*filter(None, seen)][:4])

    return f"{side} is the same up to {lines(region.known[::-1])}; not from {lines(region.parting)}"


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference, as a share of the largest number."""
    there = np.isfinite(a)
    if a.shape != b.shape or (there != np.isfinite(b)).any():
        return np.inf
    size = np.abs(a[there]).max(initial=0) or 1.0
    return float(np.abs(a[there] - b[there]).max(initial=0) / size)


def _truth(exact: np.ndarray, cost: np.ndarray, dtype: str) -> Bounded:
    """The float64 run, and PORT_FACTOR times what rounding was seen to cost in each channel.

    Where rounding cost less in a channel than in others, as a share of its largest number, that may be luck.
    """
    unit, sizes = unit_roundoff(DTYPES[dtype]), _largest(exact)
    share = cost.max(initial=0) / (sizes.max(initial=0) or 1.0)
    share = max(share, PEER_FLOOR_UNITS * unit)
    cost = np.maximum(cost, share * sizes)
    if dtype != "float32":
        cost = np.minimum(cost, HALF_UNITS * unit * sizes)
    units = PORT_FACTOR * cost / unit_roundoff(np.float32)
    return Bounded(exact, np.broadcast_to(units, exact.shape))


def _largest(x: np.ndarray) -> np.ndarray:
    """In every channel, [channels] or, where these hold few numbers, in all."""
    x = np.abs(x)
    few = x.ndim < 2 or x.size < FEW * x.shape[-1]
    return np.nan_to_num(x).max(None if few else tuple(range(x.ndim - 1)), initial=0)


def _finite(x: np.ndarray) -> np.ndarray:
    """In float64; what is as large as infinity, as which masks are written, must be where it is and is no number."""
    x = x.astype(np.float64)
    return np.where(np.abs(x) < HUGE, x, np.nan)


def _same(
    name: str, a: np.ndarray, b: np.ndarray, truth: Bounded, in_float32: str
) -> Row:
    """A row for float64: what differs there and not in float32 is computed in float32 by the port."""
    row = _judged(name, a, b, truth, "float64")
    if row.verdict == "DIVERGE" and in_float32 in PASSING:
        reason = "A computes in float32, whatever it is given"
        return replace(row, verdict="AGREE", reason=reason)
    return row


def _judged(name: str, a: np.ndarray, b: np.ndarray, truth: Bounded, dtype: str) -> Row:
    held = DTYPES[dtype]
    compute = DTYPES["float64" if dtype == "float64" else "float32"]
    a, b = (np.where(np.isnan(_finite(x)), np.nan, x).astype(held) for x in (a, b))
    row = judge(
        f"{name} {dtype}", a, b, truth, dtype=held, compute=compute, peers=False
    )
    if row.verdict != "INVALID":
        return row
    # Zero, or one number: it says nothing if the port has it too.
    off = np.abs(a.astype(np.float64) - truth.value)
    bound = unit_roundoff(np.float32) * truth.units
    if (np.isnan(off) | (off <= bound)).all():
        return replace(row, verdict="AGREE") if name.startswith("d_") else row
    return replace(row, verdict="DIVERGE" if dtype == "float64" else "A_WORSE")


def _around(weight: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Other weights of that size: zeros and ones would hide what they are added to or multiply."""
    size = np.abs(weight).mean() or 0.1
    return (weight + 0.3 * size * rng.normal(size=weight.shape)).astype(np.float32)


def _cast(arrays: Mapping[str, np.ndarray], dtype: str) -> Arrays:
    wanted = DTYPES[dtype]
    return {
        name: x.astype(wanted) if x.dtype in DTYPES.values() else x
        for name, x in arrays.items()
    }


def _tensors(arrays: Arrays, dtype: str) -> dict[str, Any]:
    return {name: to_torch(x) for name, x in _cast(arrays, dtype).items()}
