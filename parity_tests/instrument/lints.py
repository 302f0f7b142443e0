"""What can be seen of a JAX function without running it: rules of its traced program.

    angle-products    no matrix product makes an angle: a TPU multiplies in bfloat16 and a GPU in TF32 by default
    angle-precision   nothing on the way into a sine or cosine is in bfloat16 or float16
    table-reads       no index that an input decides can be past the end of what it reads, unless the call says `mode=`
    one-program       whole numbers are data: one compiled program serves every offset and every position
    lowers-for-tpu    it can be compiled for a TPU, and
    lowers-for-cuda   for an NVIDIA GPU, which needs neither

A row says AGREE, or CONTRACT with the line of the user's code and what to do about it. Tables that were made before the
call, such as those of a module, are constants of the program and not looked into; nor is what a loop reads, which
mostly goes by the loop's own counter.

An angle is what goes into a sine, a cosine or a complex exponential and was made of positions: of integers, or of whole
numbers in a floating array. Indices and conditions do not make an angle of what they choose.
"""

from __future__ import annotations

import ast
import linecache
import operator
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from .dtypes import DTYPES, Arrays
from .environment import environment
from .in_jax import frames_of, jax_side
from .sides import Side, cast, named
from .stages import line_of
from .verdicts import Findings, Report, Row

__all__ = ["RULES", "lint"]

# Characters of an error of JAX's.
MOST_WORDS = 240
HALVES = (DTYPES["bfloat16"], DTYPES["float16"])


def lint(function: Any, inputs: Mapping[str, Any]) -> Report:
    """Check the traced program of a JAX function by `RULES`.

    Args:
        function: A function, or a module of `flax.nnx` or `flax.linen`.
        inputs: Arrays by name, as for `compare`; positions and offsets are integers. What decides shapes is no input:
            bind it before (`functools.partial`).
    Returns:
        A report with a row for each rule: AGREE, or CONTRACT, where it is broken and the usual remedy.
    Raises:
        TypeError: if the function is none of these.
        Exception: what the function raises, if it cannot be traced even with its integers known.
    """
    inputs = {name: np.asarray(array) for name, array in inputs.items()}
    side = jax_side(function, inputs)
    program = _Program(side, cast(inputs, "float32"))
    rows = []
    for name, rule in RULES.items():
        found = list(dict.fromkeys(rule(program)))
        reason = found[0] if found else ""
        if len(found) > 1:
            reason += f" (and at {len(found) - 1} more)"
        rows.append(Row(name, "CONTRACT" if found else "AGREE", reason=reason))
    return Findings(side.source, tuple(rows), environment=environment())


# ------------------------------------------------------------------------------ tracing


class _Program:
    """A function traced: with all inputs unknown if it can be, else with its integers known."""

    def __init__(self, side: Side, inputs: Arrays) -> None:
        self.side = side
        self.known: dict[str, Any] = {}
        self.refused: Exception | None = None
        try:
            self.graph = self._traced(inputs)
            # What the first trace has left behind would be found now.
            self._traced(inputs)
        except (_Kept, jax.errors.UnexpectedTracerError) as error:
            self.refused = error
        except Exception as error:  # Anybody's code runs here.
            self.refused = error
            self.known = {
                name: x if x.ndim else x.item()
                for name, x in inputs.items()
                if x.dtype.kind in "iub"
            }
            self.graph = self._traced(inputs)
        self.given = {name: x for name, x in inputs.items() if name not in self.known}

    @cached_property
    def halved(self) -> _Graph:
        """With activations in bfloat16: all that is floating, but for what the angles are made of."""
        angular = {x.operation for angle in self.graph.angles for x in _before(angle)}
        half = {
            name: x if f"input {name}" in angular else cast({name: x}, "bfloat16")[name]
            for name, x in self.given.items()
        }
        try:
            return self._traced(half)
        except Exception:  # It may take no bfloat16.
            return self.graph

    def _traced(self, inputs: Arrays) -> _Graph:
        arguments = self._arguments(
            {name: x for name, x in inputs.items() if name not in self.known}
        )
        # As a user has it who sets nothing.
        with jax.default_matmul_precision("default"):
            # A new function each time, or JAX would not run the program again.
            closed = jax.make_jaxpr(lambda *given: self._call(*given))(*arguments)
        _check_kept(closed)
        leaves, _ = jax.tree_util.tree_flatten_with_path(arguments)
        names = [(path[0].idx, path[1].key) for path, _ in leaves]
        values = [
            _input(name, inputs[name])
            if not weight
            else _Value(f"weight {name}", self.side.weights[name].dtype)
            for weight, name in names
        ]
        graph = _Graph(closed)
        graph.walk(closed, values, _NOWHERE)
        return graph

    def _call(self, given: dict[str, Any], weights: dict[str, Any]) -> dict[str, Any]:
        outputs, _ = self.side.call(weights, {**given, **self.known}, "float32")
        return named(outputs)

    def _arguments(self, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        given, weights = (
            {name: jnp.asarray(x) for name, x in arrays.items()}
            for arrays in (inputs, self.side.weights)
        )
        return given, weights


class _Kept(Exception):  # noqa: N818 - it is no error
    """On which line a trace uses what belongs to another."""


def _check_kept(closed: Any) -> None:
    for var, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        if isinstance(value, jax.core.Tracer):
            users = (eqn for eqn in closed.jaxpr.eqns if var in eqn.invars)
            raise _Kept(next((_place(eqn, _NOWHERE).line for eqn in users), ""))


class _Place(NamedTuple):
    """A line of the user's code, and whether its statement says `mode=`."""

    line: str
    says_mode: bool


_NOWHERE = _Place("", says_mode=False)
Range = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class _Value:
    """A value of the traced program.

    Args:
        operation: What made it.
        made_of: Whose numbers are in it: not those of indices and conditions.
        positions: Whether these are whole numbers that count something.
        given: Whether it depends on an input at all.
        range: Its least and its greatest numbers, if they are known.
        precise: Of a product: whether it is asked for in all bits.
    """

    operation: str
    dtype: Any
    line: str = ""
    made_of: tuple[_Value, ...] = ()
    positions: bool = False
    given: bool = False
    range: Range | None = None
    precise: bool = True


def _input(name: str, x: np.ndarray) -> _Value:
    return _Value(
        f"input {name}",
        x.dtype,
        positions=_counts(x),
        given=True,
        range=_any(x.dtype, x.shape),
    )


def _any(dtype: Any, shape: tuple[int, ...]) -> Range | None:
    """Truth values are 0 or 1, if nothing else is known of them."""
    return (np.zeros(shape), np.ones(shape)) if _kind(dtype) == "b" else None


def _kind(dtype: Any) -> str:
    """NumPy's letter; none of what it does not know, such as random keys."""
    extended = jnp.issubdtype(dtype, jax.dtypes.extended)
    return "" if extended else np.dtype(dtype).kind


def _constant(x: Any) -> _Value:
    if not hasattr(x, "dtype"):
        x = np.asarray(x)
    if not _kind(x.dtype):
        return _Value("constant", x.dtype)
    x = np.asarray(x)
    whole = x.dtype.kind in "iub"
    ends = (x.astype(np.float64),) * 2 if whole else None
    return _Value("constant", x.dtype, positions=x.ndim > 0 and _counts(x), range=ends)


def _counts(x: np.ndarray) -> bool:
    """Whether these are positions: integers, or floating numbers that are whole and not only 0 and 1."""
    if x.dtype.kind in "iu":
        return True
    if x.dtype.kind in "bc" or x.size == 0:
        return False
    x = x.astype(np.float64)
    return bool(np.isfinite(x).all() and (x == np.round(x)).all() and (x > 1).any())


def _before(value: _Value) -> list[_Value]:
    """It and all that its numbers are made of, nearest first."""
    found = {id(value): value}
    for x in (queue := [value]):
        for parent in x.made_of:
            if id(parent) not in found:
                found[id(parent)] = parent
                queue.append(parent)
    return list(found.values())


class _Graph:
    """The values of a traced program: what its sines and cosines are of, and which reads may miss."""

    def __init__(self, program: Any) -> None:
        self.program = program
        self.angles: list[_Value] = []
        self.reads: list[str] = []
        # The first of each operation.
        self.lines: dict[str, str] = {}

    def walk(
        self,
        program: Any,
        given: Sequence[_Value],
        outer: _Place,
        *,
        looped: bool = False,
    ) -> list[_Value]:
        """Of a program within a program the outer line counts where the inner one is a library's."""
        closed = isinstance(program, core.ClosedJaxpr)
        jaxpr, constants = (program.jaxpr, program.consts) if closed else (program, ())
        known = dict(zip(jaxpr.invars, given, strict=True))
        known |= zip(jaxpr.constvars, map(_constant, constants), strict=False)

        def read(atom: Any) -> _Value:
            if isinstance(atom, core.Literal):
                return _constant(atom.val)
            return known.get(atom) or _Value("constant", atom.aval.dtype)

        for eqn in jaxpr.eqns:
            results = self._results(eqn, [read(x) for x in eqn.invars], outer, looped)
            known.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _results(
        self, eqn: Any, given: list[_Value], outer: _Place, looped: bool
    ) -> list[_Value]:
        name, place = eqn.primitive.name, _place(eqn, outer)
        self.lines.setdefault(name, place.line)
        if name in ("sin", "cos", "tan") or (name == "exp" and _complex(given[0])):
            self.angles.append(given[0])
        if name in ("gather", "dynamic_slice") and not looped:
            self.reads += _missing(eqn, given, place)
        results, looped = [], looped or name in LOOPS
        for program, count in _programs(eqn):
            last = given[len(given) - count :]
            if name in LOOPS:
                last = [replace(x, range=None) for x in last]
            results.append(self.walk(program, last, place, looped=looped))
        if len(results) == 1 and name not in LOOPS:
            values = results[0]
            ends = _of_function(eqn, given)
            return [replace(values[0], range=ends)] if ends else values
        made_of = () if name in BOUNDED else _carried(name, given)
        made_of += tuple(x for values in results for x in values)
        return [
            _Value(
                name,
                var.aval.dtype,
                place.line,
                made_of,
                positions=_has_positions(name, var.aval.dtype, made_of),
                given=any(x.given for x in given),
                range=ends,
                precise="HIGHEST" in str(eqn.params.get("precision")),
            )
            for var, ends in zip(eqn.outvars, _ranges(eqn, given), strict=True)
        ]


# What runs on other shapes than it is given, part by part.
LOOPS = ("scan", "while", "shard_map")
# What comes out of these is no position any more, whatever goes in.
BOUNDED = ("sin", "cos", "tan", "tanh", "logistic", "erf")


def _carried(name: str, given: list[_Value]) -> tuple[_Value, ...]:
    if name in ("gather", "dynamic_slice"):
        return tuple(given[:1])
    if name == "select_n":
        return tuple(given[1:])
    return tuple(given)


def _has_positions(name: str, dtype: Any, made_of: tuple[_Value, ...]) -> bool:
    """What is made of truth values is counted, as the positions of a mask are."""
    kind = _kind(dtype)
    counted = name == "convert_element_type" and kind in "iu"
    return name == "iota" or (
        kind != "b" and (counted or any(x.positions for x in made_of))
    )


def _programs(eqn: Any) -> Iterator[tuple[Any, int]]:
    """Those that an equation calls, on so many of its last inputs: of `jit`, custom derivatives, loops, branches.

    Not what it does with single numbers, as a reduction does.
    """
    for param in eqn.params.values():
        for x in param if isinstance(param, (tuple, list)) else [param]:
            if not isinstance(x, (core.ClosedJaxpr, core.Jaxpr)):
                continue
            takes = (x.jaxpr if isinstance(x, core.ClosedJaxpr) else x).invars
            count = len(takes)
            given = eqn.invars[len(eqn.invars) - count :]
            shapes = (
                [getattr(v.aval, "shape", None) for v in vs] for vs in (takes, given)
            )
            looped = eqn.primitive.name in LOOPS and count <= len(eqn.invars)
            if looped or operator.eq(*shapes):
                yield x, count


def _complex(value: _Value) -> bool:
    return _kind(value.dtype) == "c"


def _place(eqn: Any, outer: _Place) -> _Place:
    frames = list(frames_of(eqn))
    line = line_of(frames)
    if not line:
        return outer
    file, number = next(frame for frame in frames if line_of([frame]) == line)
    return _Place(line, _says_mode(file, number))


@cache
def _says_mode(file: str, line: int) -> bool:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return False
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.stmt, ast.Lambda))
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    if not around:
        return False
    inmost = min(around, key=lambda node: (node.end_lineno or 0) - node.lineno)
    return any(isinstance(x, ast.keyword) and x.arg == "mode" for x in ast.walk(inmost))


# -------------------------------------------------------------------- ranges of integers


def _missing(eqn: Any, given: list[_Value], place: _Place) -> Iterator[str]:
    """A read whose index an input decides and may be out of range, where that gives a number all the same."""
    table, *indices = given
    shape, sizes = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    last = np.subtract(shape, sizes)
    if eqn.primitive.name == "gather":
        last = last[list(eqn.params["dimension_numbers"].start_index_map)]
        # NaN shows; what integers are filled with does not.
        fills = str(eqn.params["mode"]).endswith("FILL_OR_DROP")
        if fills and jnp.issubdtype(table.dtype, jnp.inexact):
            return
        ranges = [(indices[0].range, last)]
    else:
        fills = False
        ranges = [(x.range, n) for x, n in zip(indices, last, strict=True)]
    inside = all(
        ends is not None and (ends[0] >= 0).all() and (ends[1] <= n).all()
        for ends, n in ranges
    )
    if inside or place.says_mode or not any(x.given for x in indices):
        return
    gives = "the least integer" if fills else "the last rows"
    yield (
        f"{place.line}: past the end of {shape} it gives {gives}; bound the index, or say "
        'what is to be: `table.at[index].get(mode="fill", fill_value=jnp.nan)`'
    )


def _ranges(eqn: Any, given: list[_Value]) -> list[Range | None]:
    """The least and the greatest that the numbers of each result can be, if it has integers or truth values."""
    name = eqn.primitive.name
    if name == "sort":
        return [
            x.range
            and (
                np.full_like(x.range[0], x.range[0].min()),
                np.full_like(x.range[1], x.range[1].max()),
            )
            for x in given
        ]
    if name == "top_k":
        shape = eqn.outvars[1].aval.shape
        most = eqn.invars[0].aval.shape[-1] - 1
        return [None, (np.zeros(shape), np.full(shape, float(most)))]
    if len(eqn.outvars) != 1 or _kind(eqn.outvars[0].aval.dtype) not in [*"iub"]:
        return [None] * len(eqn.outvars)
    return [_range(eqn, given)]


def _range(eqn: Any, given: list[_Value]) -> Range | None:
    name, params = eqn.primitive.name, eqn.params
    shape = eqn.outvars[0].aval.shape
    if name == "iota":
        sizes = [n if k == params["dimension"] else 1 for k, n in enumerate(shape)]
        values = np.arange(shape[params["dimension"]], dtype=float).reshape(sizes)
        return (np.broadcast_to(values, shape),) * 2
    if name in ("argmax", "argmin"):
        (axis,) = params["axes"]
        most = eqn.invars[0].aval.shape[axis] - 1
        return np.zeros(shape), np.full(shape, float(most))
    of_bits = name in LOGICAL and eqn.outvars[0].aval.dtype != bool
    if name not in RANGES or of_bits:
        return _any(eqn.outvars[0].aval.dtype, shape)
    ends = [
        x.range or (np.full(atom.aval.shape, -np.inf), np.full(atom.aval.shape, np.inf))
        for x, atom in zip(given, eqn.invars, strict=True)
    ]
    with np.errstate(invalid="ignore"):
        least, most = RANGES[name](params, *ends)
    return np.nan_to_num(
        least, nan=-np.inf, neginf=-np.inf, posinf=np.inf
    ), np.nan_to_num(most, nan=np.inf, neginf=-np.inf, posinf=np.inf)


def _of_function(eqn: Any, given: list[_Value]) -> Range | None:
    """Of a function of NumPy's that JAX writes out in a way that hides it."""
    if eqn.params.get("name") not in ("remainder", "floor_divide") or len(given) != 2:
        return None
    number, divisor = (x.range for x in given)
    if (
        divisor is None
        or not (divisor[0] == divisor[1]).all()
        or (divisor[0] <= 0).any()
    ):
        return None
    shape = eqn.outvars[0].aval.shape
    if eqn.params["name"] == "remainder":
        return np.zeros(shape), np.broadcast_to(divisor[0] - 1, shape)
    if number is None:
        return None
    least, most = (np.floor(end / divisor[0]) for end in number)
    return np.broadcast_to(least, shape), np.broadcast_to(most, shape)


def _growing(function: Callable[..., Any]) -> Callable[..., Range]:
    """Of what grows with each of its numbers, so that its ends are those of the ends."""

    def ends(params: Any, *given: Range) -> Range:
        least, most = zip(*given, strict=True)
        return function(params, *least), function(params, *most)

    return ends


def _broadcast(params: Any, x: np.ndarray) -> np.ndarray:
    shape, at = params["shape"], params["broadcast_dimensions"]
    sizes = [x.shape[at.index(k)] if k in at else 1 for k in range(len(shape))]
    return np.broadcast_to(x.reshape(sizes), shape)


def _sliced(params: Any, x: np.ndarray) -> np.ndarray:
    strides = params["strides"] or (1,) * x.ndim
    ends = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*end) for end in ends)]


def _summed(params: Any, x: np.ndarray) -> np.ndarray:
    axis = params["axis"]
    return (
        np.flip(np.cumsum(np.flip(x, axis), axis), axis)
        if params["reverse"]
        else np.cumsum(x, axis)
    )


def _chosen(params: Any, which: Range, *cases: Range) -> Range:
    """By a condition; where it is not known, either."""
    if len(cases) != 2:
        least, most = zip(*cases, strict=True)
        return np.minimum.reduce(least), np.maximum.reduce(most)
    (no, yes), (never, always) = cases, (which[1] < 1, which[0] > 0)
    return (
        np.where(never, no[0], np.where(always, yes[0], np.minimum(no[0], yes[0]))),
        np.where(never, no[1], np.where(always, yes[1], np.maximum(no[1], yes[1]))),
    )


def _product(params: Any, a: Range, b: Range) -> Range:
    corners = [x * y for x in a for y in b]
    return np.minimum.reduce(corners), np.maximum.reduce(corners)


# Of truth values; of integers they are of bits, and nothing is known.
LOGICAL = ("and", "not", "or")
RANGES: dict[str, Callable[..., Range]] = {
    "add": _growing(lambda p, a, b: a + b),
    "max": _growing(lambda p, a, b: np.maximum(a, b)),
    "min": _growing(lambda p, a, b: np.minimum(a, b)),
    "clamp": _growing(lambda p, low, x, high: np.minimum(np.maximum(x, low), high)),
    "and": _growing(lambda p, a, b: np.minimum(a, b)),
    "or": _growing(lambda p, a, b: np.maximum(a, b)),
    "cumsum": _growing(_summed),
    "broadcast_in_dim": _growing(_broadcast),
    "reshape": _growing(lambda p, x: x.reshape(p["new_sizes"])),
    "squeeze": _growing(lambda p, x: np.squeeze(x, p["dimensions"])),
    "transpose": _growing(lambda p, x: x.transpose(p["permutation"])),
    "concatenate": _growing(lambda p, *x: np.concatenate(x, p["dimension"])),
    "slice": _growing(_sliced),
    "rev": _growing(lambda p, x: np.flip(x, p["dimensions"])),
    "convert_element_type": lambda p, x: x,
    "stop_gradient": lambda p, x: x,
    "copy": lambda p, x: x,
    "neg": lambda p, x: (-x[1], -x[0]),
    "abs": lambda p, x: (
        np.maximum(0, np.maximum(x[0], -x[1])),
        np.maximum(np.abs(x[0]), np.abs(x[1])),
    ),
    "sub": lambda p, a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
    "select_n": _chosen,
    "not": lambda p, x: (1 - x[1], 1 - x[0]),
    "lt": lambda p, a, b: (a[1] < b[0], a[0] < b[1]),
    "gt": lambda p, a, b: (a[0] > b[1], a[1] > b[0]),
    "le": lambda p, a, b: (a[1] <= b[0], a[0] <= b[1]),
    "ge": lambda p, a, b: (a[0] >= b[1], a[1] >= b[0]),
    "eq": lambda p, a, b: (
        (a[0] == a[1]) & (b[0] == b[1]) & (a[0] == b[0]),
        (a[0] <= b[1]) & (b[0] <= a[1]),
    ),
}


# -------------------------------------------------------------------------------- rules


def _angles(graph: _Graph) -> Iterator[_Value]:
    for angle in graph.angles:
        if angle.positions:
            yield from _before(angle)


def _products(program: _Program) -> Iterator[str]:
    for x in _angles(program.graph):
        of_positions = any(parent.positions for parent in x.made_of)
        if x.operation == "dot_general" and of_positions and not x.precise:
            yield (
                f"{x.line}: positions go through a matrix product, in bfloat16 or TF32 on an accelerator; "
                "multiply by broadcasting: `positions[..., None] * inv_freq`"
            )


def _precision(program: _Program) -> Iterator[str]:
    for x in _angles(program.halved):
        if _half(x) and not any(_half(parent) for parent in x.made_of):
            yield (
                f"{x.line or x.operation}: in {np.dtype(x.dtype).name} before a sine or cosine, where 257 may "
                "be 256; make angles in float32 and round what comes out"
            )


def _half(x: _Value) -> bool:
    return x.dtype in HALVES


def _reads(program: _Program) -> Iterator[str]:
    yield from program.graph.reads


def _one(program: _Program) -> Iterator[str]:
    error = program.refused
    if error is None:
        return
    where = f"{line}: " if (line := _line(error)) else ""
    if isinstance(error, (_Kept, jax.errors.UnexpectedTracerError)):
        where = f"{error}: " if isinstance(error, _Kept) and str(error) else where
        yield f"{where}what one trace has made is kept for the next; keep no arrays, or NumPy's"
    else:
        yield (
            f"{where}an integer input decides what is compiled, so each value of it is another program; use it "
            "as data: `offset + jnp.arange(seq)`, `jax.lax.dynamic_slice`, `jnp.where`"
        )


def _lowers(platform: str, program: _Program) -> Iterator[str]:
    closed = program.graph.program
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in closed.in_avals]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # They do not keep it from it.
            traced = jax.jit(core.jaxpr_as_fun(closed)).trace(*shapes)
            traced.lower(lowering_platforms=(platform,))
    except Exception as error:  # Of any of JAX's parts.
        told = textwrap.shorten(f"{type(error).__name__}: {error}", MOST_WORDS)
        lines = program.graph.lines.items()
        named = (line for name, line in lines if f"'{name}'" in told)
        line = _line(error) or next(named, "") or program.graph.lines.get("pallas_call")
        yield f"{line}: {told}" if line else told


def _line(error: Exception) -> str:
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    return line_of(reversed(frames))


RULES: dict[str, Callable[[_Program], Iterator[str]]] = {
    "angle-products": _products,
    "angle-precision": _precision,
    "table-reads": _reads,
    "one-program": _one,
    "lowers-for-tpu": partial(_lowers, "tpu"),
    "lowers-for-cuda": partial(_lowers, "cuda"),
}
