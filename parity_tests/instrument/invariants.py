"""What a program must keep to whatever it computes: checks of a lone implementation, which has no twin.

Each invariant compares a program with itself: all tokens at once and one by one, a document in a packed row and alone.
A row says AGREE, DIVERGE and what differs where, or INVALID and why it could not be applied.

What most programs promise, and what is checked unless others are named:

    step         a token alone, with its position, gives what it gives among all (decoding)
    packed       positions that start anew in the middle of a row give each document what it gives alone
    padded       tokens in front, at position 0, change nothing for the others (left padding)
    shards       halves of the batch, or of the heads, give the halves of the whole
    order        other calls before it, longer ones and in bfloat16, do not change a call (caches)
    dtype        floating outputs are in the dtype of the inputs
    jit          compiled by JAX it is what it is operation by operation

What only some do:

    shift        moving all positions changes no score: of a bias, of attention, or of the vectors that a rotation gives
    composition  to rotate by p and then by q is to rotate by p + q
    norm         every vector keeps its length

Comparisons are in float64. Tokens are the last axis of the inputs that hold positions, and in every other input and
output the axes of that size: so it must be a size that no other axis has, nor may batch and heads be of one size. If
tokens see each other, "packed" needs an input of segments, and "padded" one of segments or a mask.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from .dtypes import DTYPES, Arrays, unit_roundoff
from .environment import environment
from .sides import bound, called, cast, is_module, named, source_of
from .verdicts import VERDICTS, Findings, Report, Row

__all__ = ["DEFAULT", "INVARIANTS", "check_invariants"]

# Of the largest number, in roundings to nearest. A sum over a head and a sine cost some dozens. An angle is rounded by
# itself, so by as many as its position has tokens; a score has two angles, and an invariant two sides. At position 2000
# that is 1e-12 in float64 and 5e-4 in float32; known faults are of 1e-2 and more.
ROUNDINGS, ROUNDINGS_PER_TOKEN = 64.0, 4.0
# To where "shift" moves: no multiple of what bfloat16 can tell apart there, and within most tables of a context.
FAR = 1003
# Tokens of a long call: bfloat16 holds the whole numbers up to 256.
MANY = 300
# Steps and vectors that are compared, spread over all there are.
MOST_STEPS, MOST_VECTORS = 8, 512


def check_invariants(
    program: Any,
    inputs: Mapping[str, Any],
    invariants: Sequence[str] | None = None,
    *,
    positions: Sequence[str] | None = None,
) -> Report:
    """Check a program of JAX or of PyTorch against itself.

    Args:
        program: A function, a bound method, or a module of `torch.nn`, `flax.nnx` or `flax.linen`; it is copied where
            it can be. If it takes an offset, wrap it, `lambda x, positions: module(x, offset=positions[0])`, and name
            the invariants: what is packed or padded has no offset.
        inputs: Arrays by name, as for `compare`. Sizes of axes must differ: batch 2, seq 7, heads 4, head_dim 8. If
            none holds positions, "order" sees what bfloat16 does to them from 257 tokens on.
        invariants: Names from `INVARIANTS`, all of which must apply. None means those that most programs promise
            (`DEFAULT`), as far as they apply; the notes of the report say which do not.
        positions: Which inputs hold integer positions, queries before keys. None means those with "position" in their
            name.
    Returns:
        A report with a row for each invariant: the largest difference, what rounding may cost, and where it is.
    Raises:
        ValueError: if an invariant is unknown, or positions are not integers with a token axis of their own size.
        TypeError: if the program is none of these.
        Exception: what the program raises for the inputs, in either framework.
    """
    unknown = {*(invariants or ())} - {*INVARIANTS}
    if unknown:
        raise ValueError(
            f"`invariants` must be of {', '.join(INVARIANTS)}, got {', '.join(sorted(unknown))}."
        )
    inputs = {name: np.asarray(array) for name, array in inputs.items()}
    if positions is None:
        positions = [name for name in inputs if "position" in name]
    _check_positions(inputs, positions)
    case = _Case(_runner(program, inputs), inputs, tuple(positions))
    rows = [_row(name, case) for name in invariants or DEFAULT]
    notes = ()
    if invariants is None:
        notes = tuple(
            f"not checked: {row.name} ({row.reason})"
            for row in rows
            if row.verdict == "INVALID"
        )
        rows = [row for row in rows if row.verdict != "INVALID"]
    return Findings(
        case.run.source, tuple(rows), notes=notes, environment=environment()
    )


def _check_positions(inputs: Arrays, positions: Sequence[str]) -> None:
    for name in positions:
        found = inputs.get(name)
        if found is None or found.dtype.kind not in "iu" or found.ndim == 0:
            what = "none" if found is None else f"{found.dtype} {found.shape}"
            raise ValueError(
                f"`{name}` must be an input of integer positions, [..., seq], got {what}."
            )
    tokens = {inputs[name].shape[-1] for name in positions}
    for name, x in inputs.items():
        twice = [n for n in x.shape if n in tokens and x.shape.count(n) > 1]
        if twice and (name in positions or _floating(x)):
            raise ValueError(
                f"`{name}` must have tokens on one axis, and others of other sizes, got {x.shape}."
            )


def _floating(x: np.ndarray) -> bool:
    return x.dtype in DTYPES.values()


# ------------------------------------------------------------------------------ running


class _Jax:
    """A program of JAX on NumPy's arrays, compiled if it can be."""

    def __init__(self, program: Any, inputs: Arrays) -> None:
        import jax

        from .in_jax import jax_side

        # A copy, since a program may keep what it has computed.
        self.program, self.side = program, jax_side(_copied(program), inputs)
        self.source, self.uncompiled = self.side.source, ""
        self.names = tuple(inputs)
        self._double: bool | None = None
        self._compiled = jax.jit(self._outputs, static_argnums=2)
        try:
            self(inputs, "float32")
        except Exception as error:  # Anybody's code runs here.
            self.uncompiled = _told(error)
            self(inputs, "float32")

    def __call__(
        self, arrays: Arrays, dtype: str = "float64", *, jit: bool = True
    ) -> dict[str, np.ndarray]:
        """With everything floating in this dtype."""
        call = self._compiled if jit and not self.uncompiled else self._outputs
        with self._set(double=dtype == "float64"):
            weights = _to_jax(cast(self.side.weights, dtype))
            given = _to_jax(cast(arrays, dtype))
            return _from_jax(call(weights, given, dtype))

    def _outputs(self, weights: Any, given: Any, dtype: str) -> dict[str, Any]:
        outputs, _ = self.side.call(weights, given, dtype)
        return named(outputs)

    def after(self, calls: Sequence[Arrays], arrays: Arrays) -> dict[str, np.ndarray]:
        """A call of a copy as it is, after others that it may refuse: what they leave behind, it finds."""
        import jax

        from .in_jax import in_order

        program, weights = _copied(self.program), _to_jax(self.side.weights)
        linen = hasattr(program, "init") and hasattr(program, "apply")

        def run(given: dict[str, Any]) -> Any:
            if linen:
                return self._outputs(weights, given, "float32")
            return named(called(program, in_order(given, self.names)))

        def call(arrays: Arrays) -> Any:
            # A new function each time, or JAX would not run the program again.
            compiled = jax.jit(lambda given: run(given))
            return (run if self.uncompiled else compiled)(_to_jax(arrays))

        with self._set(double=False):
            for other in calls:
                with suppress(Exception):
                    call(other)
            return _from_jax(call(arrays))

    @contextmanager
    def _set(self, *, double: bool) -> Iterator[None]:
        """Anew where float64 is turned on or off, which costs what has been compiled."""
        import jax

        from .in_jax import anew

        turned, self._double = double != self._double, double
        x64 = anew(double=double) if turned else jax.enable_x64(double)
        with x64, jax.default_matmul_precision("highest"):
            yield


def _to_jax(arrays: Arrays) -> dict[str, Any]:
    import jax.numpy as jnp

    return {name: jnp.asarray(x) for name, x in arrays.items()}


def _from_jax(outputs: dict[str, Any]) -> dict[str, np.ndarray]:
    import jax

    for name, x in outputs.items():
        if not isinstance(x, (jax.Array, np.ndarray)):
            raise TypeError(f"output {name} is a {type(x)}, expected JAX's array.")
    return {name: np.asarray(x) for name, x in outputs.items()}


class _Torch:
    """A program of PyTorch on NumPy's arrays."""

    def __init__(self, program: Any, inputs: Arrays) -> None:
        self.program = program
        self.source = source_of(
            type(program) if is_module(program, "torch.nn") else program
        )
        self(inputs, "float32")

    def __call__(self, arrays: Arrays, dtype: str = "float64") -> dict[str, np.ndarray]:
        """With everything floating in this dtype; of a new copy, since a module may keep what it has computed."""
        import torch

        from .in_torch import to_torch, torch_side

        side = torch_side(_copied(self.program))
        weights, given = (
            {name: to_torch(x) for name, x in cast(numbers, dtype).items()}
            for numbers in ({**side.weights, **side.buffers}, arrays)
        )
        with torch.no_grad():
            outputs, _ = side.call(weights, given, dtype)
            return _from_torch(outputs)

    def after(self, calls: Sequence[Arrays], arrays: Arrays) -> dict[str, np.ndarray]:
        """A call of a copy as it is, after others that it may refuse: what they leave behind, it finds."""
        import torch

        from .in_torch import to_torch

        program = _copied(self.program)
        signature = (
            program.eval().forward if is_module(program, "torch.nn") else program
        )

        def call(arrays: Arrays) -> Any:
            given = {name: to_torch(x) for name, x in arrays.items()}
            arguments = bound(signature, given)
            return program(*arguments.args, **arguments.kwargs)

        with torch.no_grad():
            for other in calls:
                with suppress(Exception):
                    call(other)
            return _from_torch(call(arrays))


def _from_torch(outputs: Any) -> dict[str, np.ndarray]:
    from .in_torch import from_torch

    return {name: from_torch(x.detach()) for name, x in named(outputs).items()}


def _runner(program: Any, inputs: Arrays) -> _Jax | _Torch:
    """By what it is made of; of a function only a call can tell."""
    if is_module(getattr(program, "__self__", program), "torch.nn"):
        return _Torch(program, inputs)
    try:
        return _Jax(program, inputs)
    except Exception as error:  # Anybody's code runs here.
        if not find_spec("torch"):
            raise
        try:
            return _Torch(program, inputs)
        except Exception as other:
            error.add_note(f"As a program of PyTorch: {_told(other)}")
            raise error from None


def _copied(program: Any) -> Any:
    try:
        return copy.deepcopy(program)
    except Exception:  # Not everything can be copied.
        return program


def _told(error: Exception) -> str:
    line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {line}"


# ---------------------------------------------------------------------------- comparing


class _Inapplicable(Exception):  # noqa: N818 - it is no error
    """Why an invariant says nothing of this program."""


class _Broken(Exception):  # noqa: N818
    """How an invariant does not hold, where that is not a matter of numbers."""


class _Two(NamedTuple):
    """What should be one."""

    what: str
    found: np.ndarray
    right: np.ndarray


@dataclass(frozen=True)
class _Case:
    """A program, its inputs, and which of them hold positions."""

    run: _Jax | _Torch
    inputs: Arrays
    positions: tuple[str, ...]

    @cached_property
    def whole(self) -> dict[str, np.ndarray]:
        return self.run(self.inputs)

    @property
    def tokens(self) -> list[int]:
        """How many there are, for each input of positions."""
        if not self.positions:
            raise _Inapplicable("no input holds positions")
        return [self.inputs[name].shape[-1] for name in self.positions]

    def moved(self, change: Callable[[np.ndarray], np.ndarray]) -> Arrays:
        return self.inputs | {
            name: change(self.inputs[name]).astype(self.inputs[name].dtype)
            for name in self.positions
        }

    def kind(self, name: str) -> str:
        """What an input is, by its dtype and its name."""
        x = self.inputs[name]
        if name in self.positions:
            return "positions"
        if x.dtype.kind == "b" or "mask" in name:
            return "mask"
        if "segment" in name:
            return "segments"
        return "floats" if _floating(x) else "numbers"

    @property
    def kinds(self) -> set[str]:
        return {self.kind(name) for name in self.inputs}

    def meet(self, sizes: Sequence[int]) -> bool:
        """Whether the first token has an effect on others."""
        first, rest = (dict.fromkeys(sizes, at) for at in (slice(1), slice(1, None)))
        other = {
            "floats": lambda x: x * 1.5 + 0.25,
            "numbers": lambda x: x.max(initial=0) - x,
        }
        changed = dict(self.inputs)
        for name, x in self.inputs.items():
            if change := other.get(self.kind(name)):
                here = tuple(first.get(n, slice(None)) for n in x.shape)
                if any(n in first for n in x.shape):
                    changed[name] = x.copy()
                    changed[name][here] = change(x)[here]
        after, before = _cut(self.run(changed), rest), _cut(self.whole, rest)
        return self.differ(after, before)

    def part(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """A call that has to work where the whole does."""
        try:
            return self.run(arrays)
        except Exception as error:  # Anybody's code runs here.
            shapes = ", ".join(f"{name} {x.shape}" for name, x in arrays.items())
            raise _Broken(f"with {shapes} it raises {_told(error)}") from error

    def differ(self, found: Arrays, right: Arrays) -> bool:
        return _row_of("", self, _same("", found, right)).verdict == "DIVERGE"

    @property
    def roundings(self) -> float:
        here = (int(np.abs(self.inputs[name]).max()) for name in self.positions)
        return ROUNDINGS + ROUNDINGS_PER_TOKEN * (max(here, default=0) + FAR)


def _row(name: str, case: _Case) -> Row:
    try:
        if name not in ALONE:
            _check_tells(case.whole)
        pairs = list(INVARIANTS[name](case))
    except _Inapplicable as why:
        return Row(name, "INVALID", reason=str(why))
    except _Broken as how:
        return Row(name, "DIVERGE", reason=str(how))
    except Exception as error:  # Anybody's code runs here.
        return Row(name, "INVALID", reason=f"a call raised {_told(error)}")
    return _row_of(name, case, pairs)


def _check_tells(outputs: Arrays) -> None:
    for x in outputs.values():
        numbers = x[np.isfinite(x)]
        if numbers.size and numbers.min() < numbers.max():
            return
    raise _Inapplicable("no output has two different numbers")


def _row_of(name: str, case: _Case, pairs: Sequence[_Two]) -> Row:
    """Of the two that are furthest apart, for what rounding may cost."""
    rows = [_judged(name, pair, case.roundings) for pair in pairs]
    worst = max(
        rows,
        key=lambda r: (VERDICTS.index(r.verdict), r.ratio_a, r.error_a),
        default=None,
    )
    return worst or Row(name, "AGREE")


def _judged(name: str, pair: _Two, roundings: float) -> Row:
    if pair.found.shape != pair.right.shape:
        how = f"{pair.what} has shape {pair.found.shape} instead of {pair.right.shape}"
        return Row(name, "DIVERGE", reason=how)
    if pair.right.size == 0:
        return Row(name, "INVALID", reason=f"{pair.what} is empty")
    found, right = (x.astype(np.float64) for x in (pair.found, pair.right))
    with np.errstate(invalid="ignore"):
        same = (found == right) | (np.isnan(found) & np.isnan(right))
        off = np.where(same, 0.0, np.nan_to_num(np.abs(found - right), nan=np.inf))
    largest = np.abs(right[np.isfinite(right)]).max(initial=0.0)
    double, single = (
        float(unit_roundoff(dtype) * roundings * largest)
        for dtype in (np.float64, np.float32)
    )
    error = float(off.max())
    if error <= double:
        return Row(name, "AGREE", error, bound=double)
    if error <= single:
        why = "in float32, whatever it is given"
        return Row(name, "AGREE", error, bound=single, reason=why)
    at = np.unravel_index(int(off.argmax()), off.shape)
    place = f"[{', '.join(map(str, at))}]" if at else ""
    how = f"{pair.what}{place} is {found[at]:.6g} instead of {right[at]:.6g}"
    ratio = error / single if single else np.inf
    return Row(name, "DIVERGE", error, bound=single, ratio_a=ratio, reason=how)


def _cut(arrays: Arrays, where: Mapping[int, slice]) -> dict[str, np.ndarray]:
    """A part of every axis that has one of these sizes."""
    return {
        name: x[tuple(where.get(n, slice(None)) for n in x.shape)]
        for name, x in arrays.items()
    }


def _same(what: str, found: Arrays, right: Arrays) -> list[_Two]:
    return [_Two(what + name, found[name], right[name]) for name in right]


# --------------------------------------------------------------------------- invariants


def _step(case: _Case) -> Iterator[_Two]:
    seq = case.tokens[0]
    if any(x.shape.count(seq) > 1 for x in case.whole.values()):
        raise _Inapplicable(
            "queries and keys are not told apart: give each their positions, and another number of keys"
        )
    if case.meet([seq]):
        raise _Inapplicable(
            "tokens see each other: give queries and keys apart, each with their positions"
        )
    for token in np.unique(np.linspace(0, seq - 1, MOST_STEPS).astype(int)):
        here = {seq: slice(token, token + 1)}
        alone = case.part(_cut(case.inputs, here))
        yield from _same(f"token {token} alone: ", alone, _cut(case.whole, here))


def _packed(case: _Case) -> Iterator[_Two]:
    sizes = case.tokens
    if "segments" not in case.kinds and case.meet(sizes):
        raise _Inapplicable("tokens see each other, and no input holds segments")
    first = {n: slice(n // 2) for n in sizes}
    second = {n: slice(n // 2, None) for n in sizes}
    row = dict(case.inputs)
    for name, x in row.items():
        if case.kind(name) in ("positions", "segments"):
            index, cut = np.arange(x.shape[-1]), x.shape[-1] // 2
            anew = case.kind(name) == "positions"
            values = np.where(index < cut, index, index - cut) if anew else index >= cut
            row[name] = np.broadcast_to(values, x.shape).astype(x.dtype)
    together = case.part(row)
    for number, document in (("first", first), ("second", second)):
        alone = case.part(_cut(row, document))
        yield from _same(f"{number} document packed: ", _cut(together, document), alone)


def _padded(case: _Case) -> Iterator[_Two]:
    sizes = case.tokens
    if not case.kinds & {"segments", "mask"} and case.meet(sizes):
        raise _Inapplicable(
            "tokens see each other, and no input holds segments or a mask"
        )
    known = {
        n
        for arrays in (case.inputs, case.whole)
        for x in arrays.values()
        for n in x.shape
    }
    pads = next(k for k in range(1, 1000) if not {n + k for n in sizes} & known)
    fill = {"segments": -1, "floats": 1.5, "mask": 0, "added mask": -1e9}
    longer = {}
    for name, x in case.inputs.items():
        kind = "added " * (_floating(x) and case.kind(name) == "mask") + case.kind(name)
        width = [(pads if n in sizes else 0, 0) for n in x.shape]
        longer[name] = np.pad(x, width, constant_values=fill.get(kind, 0))
    rest = {n + pads: slice(pads, None) for n in sizes}
    padded = _cut(case.part(longer), rest)
    yield from _same(f"after {pads} pads: ", padded, case.whole)


def _shards(case: _Case) -> Iterator[_Two]:
    """Rows of the batch get positions of their own, so that it shows if one row's serve all."""
    rows = case.moved(lambda p: p + np.arange(len(p))[:, None] if p.ndim == 2 else p)
    whole = case.run(rows)
    found = False
    for n in _sizes_to_split(case):
        axes = {name: x.shape.index(n) for name, x in whole.items()}
        parts = []
        with suppress(Exception):  # A module may be made for so many heads.
            parts = [
                case.run(_cut(rows, {n: part}))
                for part in (slice(n // 2), slice(n // 2, None))
            ]
        sizes = [part[name].shape[at] for name, at in axes.items() for part in parts]
        if sizes != [n // 2, n - n // 2] * len(axes):
            continue
        found = True
        joined = {
            name: np.concatenate([part[name] for part in parts], at)
            for name, at in axes.items()
        }
        yield from _same(f"in halves of the {n}: ", joined, whole)
    if not found:
        raise _Inapplicable("no axis of a batch or of heads is in inputs and outputs")


def _sizes_to_split(case: _Case) -> list[int]:
    """Of axes that the widest inputs have, and all outputs, each once: not tokens, nor the channels at the end."""
    floats = [x for x in case.inputs.values() if _floating(x)]
    given = floats or list(case.inputs.values())
    rank = max(x.ndim for x in given)
    widest = [x for x in given if x.ndim == rank]
    out = {x.shape[-1] for x in widest} if rank > 1 else set()
    out |= {*case.tokens} if case.positions else set()
    axes = widest[0].shape
    if not case.positions:
        # Nobody says which axis has tokens: the first is a batch's if there are two more, or one of integers.
        axes = axes[:1] if rank > (2 if floats else 1) else ()
    return [
        n
        for n in dict.fromkeys(axes)
        if n > 1
        and n not in out
        and all(x.shape.count(n) == 1 for x in (*widest, *case.whole.values()))
        and all(x.shape.count(n) <= 1 for x in case.inputs.values())
    ]


def _order(case: _Case) -> Iterator[_Two]:
    """Of the inputs, and of as many tokens as bfloat16 cannot count."""
    mine = cast(case.inputs, "float32")
    others, targets = {"in bfloat16": cast(mine, "bfloat16")}, [mine]
    if case.positions:
        long, longest = (_longer(mine, case, tokens) for tokens in (MANY, 2 * MANY))
        targets.append(long)
        # Some keep what they have until it is too short: so that in bfloat16 is the longest and before the long one.
        others |= {
            "of many tokens in bfloat16": cast(longest, "bfloat16"),
            "at other positions": cast(case.moved(lambda p: p + FAR), "float32"),
            "of fewer tokens": _cut(mine, {n: slice(n // 2) for n in case.tokens}),
            "of many tokens": long,
        }
    # All of them before the others: what is kept for all objects no copy is free of.
    fresh = [case.run.after([], mine)]
    with suppress(Exception):  # A table may have no more rows.
        fresh += [case.run.after([], target) for target in targets[1:]]
    for target, right in zip(targets, fresh, strict=False):
        try:
            found = case.run.after([*others.values()], target)
        except Exception as error:  # Anybody's code runs here.
            raise _Broken(f"after other calls it raises {_told(error)}") from error
        which = ""
        if case.differ(found, right):
            which = next(
                (
                    f" {what}"
                    for what, other in others.items()
                    if case.differ(case.run.after([other], target), right)
                ),
                "",
            )
        yield from _same(f"after a call{which}: ", found, right)


def _longer(arrays: Arrays, case: _Case, tokens: int) -> Arrays:
    """The same tokens over and over, so many or more, at positions that go on."""
    sizes = case.tokens
    times = tokens // min(sizes) + 1
    longer = {
        name: np.tile(x, [times if n in sizes else 1 for n in x.shape])
        for name, x in arrays.items()
    }
    for name in case.positions:
        x = longer[name]
        longer[name] = np.broadcast_to(np.arange(x.shape[-1]), x.shape).astype(x.dtype)
    return longer


def _dtype(case: _Case) -> Iterator[_Two]:
    if "floats" not in case.kinds:
        raise _Inapplicable("no input is floating")
    tried, refused = [], ""
    for dtype in ("float32", "bfloat16", "float16"):
        try:
            found = case.run(case.inputs, dtype)
        except Exception as error:  # A program may take fewer.
            refused = _told(error)
            continue
        tried += [(dtype, name, x) for name, x in found.items() if _floating(x)]
    if not tried:
        raise _Inapplicable(refused or "no output is floating")
    for dtype, name, x in tried:
        if x.dtype != DTYPES[dtype]:
            raise _Broken(f"{name} is {x.dtype} where inputs and weights are {dtype}")
    yield from ()


def _jit(case: _Case) -> Iterator[_Two]:
    if isinstance(case.run, _Torch):
        raise _Inapplicable("the program is PyTorch's")
    if case.run.uncompiled:
        raise _Broken(f"it cannot be compiled: {case.run.uncompiled}")
    yield from _same("compiled: ", case.whole, case.run(case.inputs, jit=False))


def _shift(case: _Case) -> Iterator[_Two]:
    """Of the outputs themselves or, where they are rotated vectors, of their products."""
    tokens = case.tokens
    moved = case.run(case.moved(lambda p: p + FAR))
    spread = case.run(case.moved(lambda p: 3 * p))
    whole = case.whole
    if _vectors(case) and not case.meet(tokens):
        moved, spread, whole = map(_scores, (moved, spread, whole))
    if not case.differ(spread, whole):
        raise _Broken("positions have no effect: it is the same if all are tripled")
    yield from _same(f"moved by {FAR}: ", moved, whole)


def _scores(outputs: Arrays) -> dict[str, np.ndarray]:
    """Products of the first output's vectors with those of the second, or its own: of all tokens and heads."""
    vectors = [x.reshape(-1, x.shape[-1]) for x in outputs.values()]
    query, key = (x[:: len(x) // MOST_VECTORS + 1] for x in (vectors[0], vectors[-1]))
    return {"scores": query @ key.T}


def _vectors(case: _Case) -> list[str]:
    """The one or two inputs of which the outputs are new versions, in their order; else none."""
    names = [name for name, x in case.inputs.items() if _floating(x) and x.ndim > 1]
    shapes = [case.inputs[name].shape for name in names]
    alike = shapes == [x.shape for x in case.whole.values()]
    return names if alike and len(names) in (1, 2) else []


def _rotated(case: _Case) -> list[str]:
    if names := _vectors(case):
        return names
    raise _Inapplicable("the outputs are not one or two of the inputs, rotated")


def _composition(case: _Case) -> Iterator[_Two]:
    _, names = case.tokens, _rotated(case)
    onwards = case.moved(lambda p: p[..., ::-1] + 17)
    once = dict(zip(names, case.whole.values(), strict=True))
    total = {name: case.inputs[name] + onwards[name] for name in case.positions}
    twice, right = case.run({**onwards, **once}), case.run({**case.inputs, **total})
    yield from _same("rotated twice: ", twice, right)


def _norm(case: _Case) -> Iterator[_Two]:
    for name, (out, x) in zip(_rotated(case), case.whole.items(), strict=True):
        after, before = (
            np.linalg.norm(v.astype(np.float64), axis=-1)
            for v in (x, case.inputs[name])
        )
        yield _Two(f"length of {out}", after, before)


INVARIANTS: dict[str, Callable[[_Case], Iterator[_Two]]] = {
    "step": _step,
    "packed": _packed,
    "padded": _padded,
    "shards": _shards,
    "order": _order,
    "dtype": _dtype,
    "jit": _jit,
    "shift": _shift,
    "composition": _composition,
    "norm": _norm,
}
# These do not go by what it gives in float64.
ALONE = ("order", "dtype")
DEFAULT = ("step", "packed", "padded", "shards", "order", "dtype", "jit")
