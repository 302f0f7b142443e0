"""Is this port the original, up to rounding, and if not, where and why?

Both sides run on the same weights and inputs, in float64 first: they are one function or they are not. Then in float32,
values and gradients for one random cotangent: what is the port worse by? Without an oracle the truth is the original's
float64 run, and what float32 may cost is what it costs the original.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from .answers import Answer, Answers, asked, finite, kinds, least_of_slices
from .bounded import Bounded
from .dtypes import DTYPES, unit_roundoff
from .environment import environment
from .in_jax import anew, jax_side, unstacked
from .programs import loaded
from .session import SESSION
from .sides import INPUT, NO_TAPS, WEIGHT, Side, cast
from .tolerances import ORACLE_SHARE, PORT_FACTOR, SAME_FUNCTION
from .verdicts import PASSING, Report, Row, judge
from .weights import WeightMap, back, checked, doubts, guessed

__all__ = ["compare", "record", "replay"]

Arrays = dict[str, np.ndarray]
LOCK = threading.RLock()


def compare(
    jax_program: Any,
    torch_program: Any,
    inputs: Mapping[str, Any],
    *,
    weights: WeightMap | None = None,
    oracle: Callable[..., Any] | None = None,
    taps: Mapping[str, str] = NO_TAPS,
    dtypes: Sequence[str] = ("float32",),
    seed: int = 0,
) -> Report:
    """Compare a port in JAX with its original in PyTorch.

    Args:
        jax_program: A function, a `flax.nnx.Module` or a `flax.linen.Module`, or where it is, as "port.py:Attention".
        torch_program: A function or a `torch.nn.Module`, or where it is. Outputs of both are arrays or trees of arrays,
            in one order of axes.
        inputs: Arrays by name; floating ones are differentiated. They are passed by these names where a side has such
            parameters, else in this order.
        weights: {JAX's name: (PyTorch's name, "same" or "transpose")}; None guesses it by names and shapes. The report
            says it.
        oracle: Takes the inputs by name, as float64 NumPy arrays, and gives the right outputs; both sides are judged by
            it. Without it the original's float64 run is the truth.
        taps: {name of what a Flax module sows: name of a PyTorch module}, in the order of the program: compared too, so
            that the first that differs is known.
        dtypes: In which the sides are judged once they are one function: "float32", "bfloat16", "float16".
        seed: Of the weights, which are drawn anew around those that PyTorch's side has, and of the cotangents.
    Returns:
        A report whose rows are outputs and gradients ("d_" and the name), A the port and B the original, in float64 and
        in float32. Its causes say what explains a difference and where the sides part, its notes which weight is which.
    Raises:
        TypeError: if a side is none of these.
        ValueError: if the weights do not fit each other, or the oracle's outputs those of the original.
    """
    _check_dtypes(dtypes)
    inputs = {name: _array(name, given) for name, given in inputs.items()}
    name, original = SESSION.name(), None
    with _precisely():
        if SESSION.replay:
            answers = Answers.load(SESSION.replay / f"{name}.npz")
            answers.check_inputs(inputs)
        else:
            original = _original(torch_program, taps)
            with _blamed("PyTorch's side"):
                answers = asked(original, inputs, dtypes, seed, oracle)
        if SESSION.record:
            answers.save(SESSION.record / f"{name}.npz")
        with _blamed("JAX's side"):
            side = jax_side(_program(jax_program), inputs, {a: a for a in taps})
            report = _report(_Port(side, weights, answers), original)
        return SESSION.kept(report, name)


def record(
    torch_program: Any,
    inputs: Mapping[str, Any],
    path: Path,
    *,
    oracle: Callable[..., Any] | None = None,
    taps: Mapping[str, str] = NO_TAPS,
    dtypes: Sequence[str] = ("float32",),
    seed: int = 0,
) -> None:
    """Write to an npz file what a port is judged by, so that `replay` needs no PyTorch. Arguments are `compare`'s."""
    _check_dtypes(dtypes)
    inputs = {name: _array(name, given) for name, given in inputs.items()}
    with _precisely():
        original = _original(torch_program, taps)
        asked(original, inputs, dtypes, seed, oracle).save(Path(path))


def replay(jax_program: Any, path: Path, *, weights: WeightMap | None = None) -> Report:
    """Compare a port with what `record` wrote: the report of `compare`, without its causes.

    Raises:
        ValueError: if the file is not one of `record`, or the weights do not fit.
    """
    answers = Answers.load(Path(path))
    with _precisely():
        taps = {name: name for name in answers.taps}
        side = jax_side(_program(jax_program), answers.inputs, taps)
        return SESSION.kept(
            _report(_Port(side, weights, answers), None), SESSION.name()
        )


def _array(name: str, given: Any) -> np.ndarray:
    if hasattr(given, "detach"):  # A tensor; NumPy has no bfloat16.
        given = given.detach().cpu()
        given = given.float() if given.is_floating_point() else given
    x = np.asarray(given)
    if (
        x.dtype.kind not in "biufV"
        or x.dtype.names
        or (x.dtype.kind == "V" and x.dtype not in DTYPES.values())
    ):
        raise TypeError(
            f"`inputs` must be arrays of numbers or truth values, {name} is {type(given).__name__} of {x.dtype}."
        )
    if x.dtype.kind in "iu" and x.size and not -(2**31) <= x.min() <= x.max() < 2**31:
        raise ValueError(
            f"`inputs` must be whole numbers that int32 has, as JAX without x64, {name} has {x.min()} to {x.max()}."
        )
    return x.astype(x.dtype.newbyteorder("="))


def _program(program: Any) -> Any:
    return loaded(program) if isinstance(program, str) else program


def _original(program: Any, taps: Mapping[str, str] = NO_TAPS) -> Side:
    from .in_torch import torch_side

    return torch_side(_program(program), taps)


def _check_dtypes(dtypes: Sequence[str]) -> None:
    unknown = {*dtypes} - {"float32", "bfloat16", "float16"}
    if unknown or "float32" not in dtypes:
        raise ValueError(
            f"`dtypes` must be float32 and perhaps bfloat16 and float16, got {dtypes}."
        )


def _report(port: _Port, original: Side | None) -> Report:
    rows, causes = port.contract(), []
    if not rows:
        rows = port.rows()
        port.notes += tuple(port.other_dtypes())
        wrong = {
            row.name.rpartition(" ")[0]
            for row in rows
            if (
                row.verdict == "CONTRACT"
                and row.name.endswith((" float64", " float32"))
            )
            or (row.verdict == "DIVERGE" and row.ratio_a > 1)
        }
        outputs = [name for name in port.answers.cotangents if name in wrong]
        if outputs and original:
            causes = _diagnosed(port, original, outputs)
        if outputs and len(port.answers.cotangents) > 1:
            causes.insert(0, f"the first that differs: {outputs[0]}")
        if any(row.ratio_b > 1 and row.name.endswith(" float64") for row in rows):
            causes.append("the original is not what the oracle says")
        if wrong and not outputs:
            causes = _of_gradients(port, original, rows)
    title = f"{port.side.source} | {port.answers.source}"
    return Report(title, tuple(rows), tuple(causes), port.notes, environment())


def _of_gradients(port: _Port, original: Side | None, rows: list[Row]) -> list[str]:
    """Gradients may tell what outputs are off by less than float32 may cost for, as another eps."""
    off = {row.name for row in rows if row.ratio_a > 1}
    outputs = [name for name in port.answers.cotangents if f"{name} float64" in off]
    found = _diagnosed(port, original, outputs) if outputs and original else []
    if any(cause.startswith("consistent with") for cause in found):
        return found
    return ["outputs agree: look for what stops or changes a gradient"]


def _diagnosed(port: _Port, original: Side, outputs: list[str]) -> list[str]:
    from .diagnosis import diagnosed

    try:
        return diagnosed(port.side, original, port.names, port.answers, outputs)
    except Exception as error:  # Of anybody's code, operation by operation.
        return [f"no cause was found: {type(error).__name__}: {error}"]


@contextmanager
def _blamed(side: str) -> Iterator[None]:
    """Anybody's code runs here, and its errors do not say which."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in {side}")
        raise


@contextmanager
def _precisely() -> Iterator[None]:
    """Matrices are multiplied in all their bits: what a GPU or a TPU leaves out by default is no fault of a port.

    One comparison at a time: PyTorch's default dtype is of the whole process.
    """
    with LOCK, jax.default_matmul_precision("highest"):
        if not find_spec("torch"):
            yield
            return
        import torch

        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.allow_tf32 = before[1]


class _Port:
    """A port, and the numbers of an original in its layout."""

    def __init__(self, side: Side, names: WeightMap | None, answers: Answers) -> None:
        theirs = answers.weights
        used = {b for b, _ in names.values()} if names else set()
        learning = {
            n: w for n, w in theirs.items() if n in used or n not in answers.frozen
        }
        if names or len(side.weights) <= len(learning):
            theirs = learning
        self.side, self.names, unsure = _mapped(side, names, theirs)
        self.answers = answers
        self.constants = {
            f"d_{WEIGHT}{n}" for n in answers.weights.keys() - theirs.keys()
        }
        self.notes = tuple(
            f"weight {a} is {b}, {how}{unsure.get(a, '')}"
            for a, (b, how) in self.names.items()
        )
        self.numbers = answers.of_port(self.names, self.side.weights)

    def contract(self) -> list[Row]:
        """Outputs that are not there on both sides, or not of one shape."""
        shapes = (
            {name: tuple(x.shape) for name, x in outputs.items()}
            for outputs in (self._outputs("float32"), self.answers.cotangents)
        )
        a, b = shapes
        if not (a or b):
            return [Row("outputs", "INVALID", reason="neither side gives an array")]
        return [
            Row(
                name,
                "CONTRACT",
                reason=f"A has {a.get(name, 'none')}, B {b.get(name, 'none')}",
            )
            for name in sorted({*a, *b})
            if a.get(name) != b.get(name)
        ]

    def _outputs(self, dtype: str) -> Any:
        """Shapes and dtypes."""
        with anew():
            given = {n: jnp.asarray(x) for n, x in cast(self.numbers, dtype).items()}
            return jax.eval_shape(lambda x: self.side.outputs(dtype)(**x), given)

    def other_dtypes(self) -> Iterator[str]:
        """Outputs that are wider or narrower than the original's: their numbers are compared all the same."""
        for dtype, theirs in self.answers.dtypes.items():
            for name, x in self._outputs(dtype).items():
                a, b = str(x.dtype), theirs.get(name)
                # JAX without x64 has no int64.
                if b and a != b and not ("int" in a and "int" in b):
                    yield f"{name} is {a} in A and {b} in B, in a run in {dtype}"

    def rows(self) -> list[Row]:
        # All float64 runs first: in some modules a table of one run is left for the next.
        doubles = self._doubles()
        rows = []
        for dtype, tensors in self.answers.tensors.items():
            ours = self._run(dtype, dtype)
            for name, answer in tensors.items():
                if name in self.constants:
                    continue
                said = self._said(name)
                whole = "int" in self.answers.dtypes[dtype].get(name, "")
                row = _judged(said, ours[name], answer, dtype, whole=whole)
                if doubles and dtype == "float32":
                    double = doubles[dtype][name]
                    rows.append(_same(said, double, answer, row.verdict, whole=whole))
                rows.append(row)
        return _with_constants(rows)

    def _said(self, name: str) -> str:
        """A gradient by the name of what it is of, if an input and a weight have not the same."""
        of = name.removeprefix(f"d_{INPUT}").removeprefix(f"d_{WEIGHT}")
        if of == name or of in {*self.answers.inputs} & {*self.answers.weights}:
            return name
        return f"d_{of}"

    def _doubles(self) -> dict[str, Arrays]:
        """None if the port insists on another dtype, as a carry of a scan that is made in float32 does."""
        try:
            return {
                dtype: self._run("float64", dtype) for dtype in self.answers.tensors
            }
        except TypeError as error:
            line = str(error).partition("\n")[0]
            self.notes += (
                f"A does not run in float64, so it is judged in float32 alone: {line}",
            )
            return {}

    def _run(self, dtype: str, held: str) -> Arrays:
        """Outputs and gradients, by PyTorch's names and in its shapes."""
        found = self.side.results(self.numbers, self.answers.cotangents, dtype, held)
        gradients = {
            f"d_{WEIGHT}{b}": back(
                found.pop(f"d_{WEIGHT}{a}"), how, self.answers.weights[b].shape
            )
            for a, (b, how) in self.names.items()
        }
        return found | gradients


def _mapped(
    side: Side, names: WeightMap | None, theirs: Arrays
) -> tuple[Side, WeightMap, dict[str, str]]:
    """The side, its layers apart if that is what fits, its map of weights, and what is in doubt of that."""
    first: ValueError | None = None
    for apart in (side, *unstacked(side, len(theirs))):
        try:
            if names is not None:
                return apart, checked(names, apart.weights, theirs), {}
            found = guessed(apart.weights, theirs)
            return apart, found, doubts(found, apart.weights, theirs)
        except ValueError as error:
            first = first or error
    assert first
    raise first


def _same(
    name: str, double: np.ndarray, answer: Answer, in_float32: str, *, whole: bool
) -> Row:
    """A row for float64: what differs there and not in float32 is of the port's float32, or is no more than that."""
    exact = answer._replace(rounded=answer.double)
    row = _judged(name, double, exact, "float64", whole=whole)
    if row.verdict == "DIVERGE" and in_float32 in PASSING:
        reason = "by less than float32 may cost: A computes or has tables in it"
        return replace(row, verdict="AGREE", reason=reason, where="", errors=None)
    return row


def _with_constants(rows: list[Row]) -> list[Row]:
    """An output that is one number everywhere is right if the port has it too and another output says something."""
    outputs = [row for row in rows if not row.name.startswith("d_")]
    if all(row.verdict == "INVALID" for row in outputs):
        return rows
    return [
        replace(row, verdict="AGREE") if row.verdict == "INVALID" else row
        for row in rows
    ]


def _judged(
    name: str, a: np.ndarray, answer: Answer, dtype: str, *, whole: bool
) -> Row:
    """Whether what A gives is right; of whole numbers exactly, however large."""

    def kinds_of(x: np.ndarray) -> np.ndarray:
        return kinds(x, whole=whole)

    numbers = finite(answer.truth, whole=whole)
    units = PORT_FACTOR * answer.cost / unit_roundoff(np.float32)
    if dtype == "float64":
        sizes = least_of_slices(np.nan_to_num(np.abs(numbers)))
        least = SAME_FUNCTION / (ORACLE_SHARE * unit_roundoff(np.float64)) * sizes
        units = np.maximum(units, least)
    held = DTYPES[dtype]
    if whole:  # Which are right if they are rounded to what is right.
        numbers = numbers.astype(held).astype(np.float64)
    compute = DTYPES["float64" if dtype == "float64" else "float32"]
    # What the dtype has no number for is as large as infinity on either side.
    over = np.abs(numbers) > float(ml_dtypes.finfo(held).max)
    truth, a, b = (np.where(over, np.inf, x) for x in (answer.truth, a, answer.rounded))
    for side, x in (("A", a), ("B", b)):
        other = x.shape == truth.shape and (kinds_of(x) != kinds_of(truth)).any()
        if other:
            reason = f"{side} {_of_another_kind(kinds_of(x), kinds_of(truth))}"
            return Row(f"{name} {dtype}", "CONTRACT", reason=reason)
    a, b = (np.where(kinds_of(x) != 0, np.nan, x).astype(held) for x in (a, b))
    truth = Bounded(np.where(over, np.nan, numbers), units)
    row = judge(
        f"{name} {dtype}", a, b, truth, dtype=held, compute=compute, peers=False
    )
    if row.verdict != "INVALID":
        return row
    # Zero, or one number: it says nothing if the port has it too.
    if row.ratio_a <= 1:
        return replace(row, verdict="AGREE") if name.startswith("d_") else row
    return replace(row, verdict="DIVERGE" if dtype == "float64" else "A_WORSE")


def _of_another_kind(has: np.ndarray, right: np.ndarray) -> str:
    """Where one has a number, infinity or NaN and the other something else, the first."""
    words = {0: "a number", 1: "infinity", -1: "minus infinity", 2: "NaN"}
    differ = has != right
    at = tuple(int(i) for i in np.unravel_index(differ.argmax(), has.shape))
    return (
        f"has {words[int(has[at])]} in place of {words[int(right[at])]} at {differ.sum()} of {has.size} places, "
        f"first {list(at)}"
    )
