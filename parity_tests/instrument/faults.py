"""The usual faults: what a stage of the original may have in its place in a port, and in which words to say so.

Most are of a few kinds: other numbers of the same form (a base, slopes, an eps, positions), of which the port's stages
suggest which; the same numbers in another order; a function of the same family; a step too few or a factor too many;
fewer bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from scipy import special

from .encodings import (
    of_another_kind,
    of_other_slopes,
    of_usual_bases,
    rotated,
    tabulated,
)
from .parted import Applied, Change, Found, Parted, constant_of, is_copy
from .stages import Stage, near

__all__ = ["faults_of"]

NARROW = (ml_dtypes.bfloat16, np.float16)
# Not more is added to a variance.
MOST_EPS = 1e-2


def faults_of(parted: Parted, at: int) -> Found:
    """What a port may have in place of a stage of the original; fewer of those that looked the same in the port."""
    stage = parted.original.stages[at]
    value = stage.value
    if not stage.tells or not np.isfinite(value).any():
        return
    parents = [(i, parted.original.stages[i]) for i in stage.parents]
    if any(is_copy(parent, stage) for _, parent in parents):
        return  # Nothing is to be said that was not said of what it is a copy of.
    parts, known = at in parted.region.parting, at in parted.known
    alone: list[Iterable[Applied]] = [_narrowed(value), _shifted(value), _turned(value)]
    yield from _of_another_eps(stage, parents, parted.added)
    yield from _reshaped(stage, parents)
    yield from _pieces(parted, at)
    others = parted.theirs.get(value.size, [])
    if parts or known:
        alone += [_of_another_size(stage, other) for other in others]
    if parts:
        alone += [of_another_kind(stage, other) for other in others]
        alone += [of_usual_bases(value), of_other_slopes(value)]
        alone += [_negative(value), _reordered(value)]
        yield from _skipped(stage, parents)
        yield from _weighed(stage, parents, parted.factors)
        yield from _multiplied(stage, parents, parted.added)
        yield from _activated(stage, parents)
        yield from _masked(stage, parents)
        yield from rotated(parted, at)
        yield from tabulated(parted, at)
    for words, apply in itertools.chain(*alone):
        yield words, Change((at,), apply)


# -------------------------------------------------------------- of what a stage is made of

Parents = list[tuple[int, Stage]]


def _skipped(stage: Stage, parents: Parents) -> Found:
    """As if it gave one of those that it is made of."""
    numbers = [(i, parent.value) for i, parent in parents if parent.value.dtype != bool]
    for n, (i, x) in enumerate(numbers, 1):
        if x.shape == stage.value.shape:
            of = f" but for its input {n}" if len(numbers) > 1 else ""
            words = f"the step {stage.operation!r} is left out{of}"
            yield words, Change((i,), np.array)


def _pieces(parted: Parted, at: int) -> Found:
    """Of what is cut into equal pieces, as gate and value or queries, keys and values: those in another order."""
    pieces, stages = parted.pieces.get(at, []), parted.original.stages
    if len(pieces) < 2 or len(stages[at].parents) != 1:
        return
    (whole,), shape = stages[at].parents, stages[at].value.shape
    cut = stages[whole].value
    axes = [n for n, size in enumerate(cut.shape) if shape[n : n + 1] != (size,)]
    if cut.ndim != len(shape) or len(axes) != 1:
        return
    places = [partial(_piece, axes[0], n, shape[axes[0]]) for n in range(len(pieces))]
    if not all(
        near(place(cut), stages[i].value)
        for place, i in zip(places, pieces, strict=True)
    ):
        return
    for order in itertools.permutations(range(len(pieces))):
        if order != tuple(range(len(pieces))):
            said = ", ".join(map(str, order))
            words = f"what the step {stages[at].operation!r} gives in the order {said}"
            yield words, Change((whole,), places[order[pieces.index(at)]])


def _piece(axis: int, n: int, size: int, x: np.ndarray) -> np.ndarray:
    return x.take(np.arange(n * size, (n + 1) * size), axis, mode="clip")


def _weighed(stage: Stage, parents: Parents, factors: set[float]) -> Found:
    """Of a sum, one part by a factor that the port has somewhere."""
    if len(parents) != 2:
        return
    (i, a), (j, b) = parents
    shape = stage.value.shape
    if a.value.shape != shape or b.value.shape != shape:
        return
    if not near(a.value + b.value, stage.value):
        return
    for factor in factors:
        for n in (1, 2):
            words = f"input {n} of the step {stage.operation!r} multiplied by {_number(factor)}"
            x, y = (factor, 1.0) if n == 1 else (1.0, factor)
            yield words, Change((i, j), partial(_sum, x, y))


def _sum(x: float, y: float, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return x * a + y * b


def _multiplied(stage: Stage, parents: Parents, added: set[float]) -> Found:
    """Of a product, one part with something added, as 1 to the weight of a norm; or all in few bits, as an angle."""
    if len(parents) != 2:
        return
    (i, a), (j, b) = parents
    if {a.value.dtype.kind, b.value.dtype.kind} != {"f"}:
        return
    try:
        with np.errstate(invalid="ignore"):
            product = a.value * b.value
    except ValueError:  # Of shapes that are not broadcast to each other.
        return
    if product.shape != stage.value.shape or not near(product, stage.value):
        return
    for dtype in NARROW:
        words = f"the step {stage.operation!r} computed in {np.dtype(dtype).name}"
        yield words, Change((i, j), partial(_product_in, dtype))
    for number, n in itertools.product(added, (1, 2)):
        words = f"{number:.6g} added to input {n} of the step {stage.operation!r}"
        x, y = (number, 0.0) if n == 1 else (0.0, number)
        yield words, Change((i, j), partial(_product, x, y))


def _product_in(dtype: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _through(dtype, _through(dtype, a) * _through(dtype, b))


def _product(x: float, y: float, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a + x) * (b + y)


def _of_another_eps(stage: Stage, parents: Parents, added: set[float]) -> Found:
    """What is added to a variance, or to its root."""
    for i, parent in parents:
        eps = constant_of(stage.value, parent.value, np.subtract)
        if eps is None or not 0 < eps <= MOST_EPS or parent.value.min() < 0:
            continue
        others = [other for other in added if 0 < other <= MOST_EPS]
        for other in others:
            words = f"eps {other:.2g} in place of {eps:.2g}"
            yield words, Change((i,), partial(np.add, other))
        for other in others:
            words = f"eps {other:.2g} added to the root in place of {eps:.2g} under it"
            yield words, Change((i,), partial(_to_the_root, other))


def _to_the_root(eps: float, x: np.ndarray) -> np.ndarray:
    return (np.sqrt(x) + eps) ** 2


def _of_a_family(
    stage: Stage, parents: Parents, family: dict[str, Callable[..., np.ndarray]]
) -> Iterator[tuple[str, str, Change]]:
    """What it is in a family of functions, and each of the others."""
    for i, parent in parents:
        x = parent.value
        if x.shape != stage.value.shape or x.dtype.kind != "f" or np.isnan(x).any():
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            is_it = [name for name, f in family.items() if near(f(x), stage.value)]
        for name, function in family.items() if is_it else ():
            if name not in is_it:
                yield is_it[0], name, Change((i,), function)


def _activated(stage: Stage, parents: Parents) -> Found:
    for right, wrong, change in _of_a_family(stage, parents, ACTIVATIONS):
        yield f"activation {wrong} in place of {right}", change
    family = dict(SOFTMAXES)
    for axis in range(stage.value.ndim - 1):
        family[f"softmax over axis {axis}"] = partial(special.softmax, axis=axis)
    for _, wrong, change in _of_a_family(stage, parents, family):
        yield wrong, change


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu by erf": lambda x: x * (1 + special.erf(x / np.sqrt(2))) / 2,
    "gelu by tanh": lambda x: (
        x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
    ),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * special.expit(x),
}


def _softmax(dtype: Any, x: np.ndarray) -> np.ndarray:
    """Every step in a dtype, but for the sum, which frameworks round once."""
    x = x.astype(dtype)
    x = np.exp(x - x.max(-1, keepdims=True))
    whole = x.astype(np.float64).sum(-1, keepdims=True).astype(dtype)
    return (x / whole).astype(np.float64)


# Not in float16, which XLA divides in another way than NumPy.
SOFTMAXES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "softmax": partial(_softmax, np.float64),
    "softmax computed in bfloat16": partial(_softmax, ml_dtypes.bfloat16),
}


def _masked(stage: Stage, parents: Parents) -> Found:
    """By a mask that ends a key later or earlier, as for the query after or before, or that counts queries from 0."""
    hidden = stage.value == -np.inf
    if stage.value.ndim < 2 or not hidden.any():
        return
    for i, parent in parents:
        x = parent.value
        if x.shape != hidden.shape or x.dtype.kind != "f" or np.isneginf(x).any():
            continue
        if not near(np.where(hidden, 0, x), np.where(hidden, 0, stage.value)):
            continue
        for words, other in _masks(hidden):
            yield words, Change((i,), partial(_hide, other))


def _hide(hidden: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.where(hidden, -np.inf, x)


def _masks(hidden: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    queries, keys = hidden.shape[-2:]
    yield "mask the other way round", ~hidden
    for way, by in (("later", 1), ("earlier", -1)):
        rows = np.clip(np.arange(queries) + by, 0, queries - 1)
        yield f"mask by one key {way}", hidden[..., rows, :]
    first = keys - int(hidden[..., 0, :].reshape(-1, keys)[0].sum()) - 1
    causal = ~np.tri(queries, keys, first, dtype=bool)
    if (hidden == causal).all():
        for other in {0, keys - queries} - {first}:
            words = f"mask with the first query at position {other} in place of {first}"
            yield (
                words,
                np.broadcast_to(
                    ~np.tri(queries, keys, other, dtype=bool), hidden.shape
                ),
            )


def _reshaped(stage: Stage, parents: Parents) -> Found:
    """With axes in another order in memory."""
    if len(parents) != 1:
        return
    ((i, parent),) = parents
    old, new = parent.value.shape, stage.value.shape
    if "view" in stage.operation or "reshape" in stage.operation:
        for axis in range(1, min(len(old), len(new))):
            order = _exchanged(old, new, axis)
            if order is not None:
                words = "heads and their width exchanged in a reshape"
                yield words, Change((i,), partial(_taken, order, axis, old, new))
    elif stage.operation in ("transpose", "permute", "t") and old != new:
        words = "reshaped in place of its axes exchanged"
        yield words, Change((i,), partial(np.reshape, shape=new))


def _exchanged(
    old: tuple[int, ...], new: tuple[int, ...], axis: int
) -> np.ndarray | None:
    """The order along an axis that is split into two, or that two are merged into, were these the other way round."""
    whole, parts = (old, new) if len(old) < len(new) else (new, old)
    if (*whole[:axis], *parts[axis : axis + 2], *whole[axis + 1 :]) != parts:
        return None
    if axis + 2 > len(parts) or 1 in parts[axis : axis + 2]:
        return None
    heads, width = parts[axis : axis + 2]
    if heads * width != whole[axis]:
        return None
    if whole is new:
        heads, width = width, heads
    return np.arange(heads * width).reshape(width, heads).T.ravel()


def _taken(
    order: np.ndarray,
    axis: int,
    old: tuple[int, ...],
    new: tuple[int, ...],
    x: np.ndarray,
) -> np.ndarray:
    whole = old if len(old) < len(new) else new
    return x.reshape(whole).take(order, axis).reshape(new)


# ------------------------------------------------------- faults of a stage by itself


def _narrowed(value: np.ndarray) -> Iterator[Applied]:
    for dtype in NARROW:
        apply = partial(_through, dtype)
        if not near(value, apply(value)):
            yield f"rounded to {np.dtype(dtype).name}", apply


def _through(dtype: Any, x: np.ndarray) -> np.ndarray:
    """Complex numbers as two."""
    numbers = np.ascontiguousarray(x).view(np.float64)
    with np.errstate(over="ignore"):
        numbers = numbers.astype(dtype).astype(np.float64)
    return numbers.view(x.dtype).reshape(x.shape)


def _shifted(value: np.ndarray) -> Iterator[Applied]:
    """Positions, angles, or what else grows evenly along an axis; positions too that do not, as whole numbers."""
    if value.dtype.kind == "f" and np.isfinite(value).all() and (value % 1 == 0).all():
        yield "positions after their own by 1", partial(np.add, 1)
        yield "positions before their own by 1", partial(np.add, -1)
    for axis in range(value.ndim):
        with np.errstate(invalid="ignore"):
            steps = np.diff(value, axis=axis)
        if value.shape[axis] < 3 or not np.isfinite(steps).all():
            continue
        step, first = steps.take([0], axis), value.take([0], axis)
        if step.any() and near(steps, np.broadcast_to(step, steps.shape)):
            for way, by in (("after", step), ("before", -step)):
                yield f"positions {way} their own by 1", partial(np.add, by)
            if first.size == 1 and not near(first, 0 * first):
                yield (
                    "positions from 0 on, without their offset",
                    partial(np.add, -first),
                )


def _turned(value: np.ndarray) -> Iterator[Applied]:
    if value.ndim >= 2 and value.shape[-1] == value.shape[-2]:
        yield "the last two axes exchanged", lambda x: x.swapaxes(-1, -2)


def _negative(value: np.ndarray) -> Iterator[Applied]:
    yield "the sign is changed", np.negative
    if value.dtype.kind == "c":
        yield "the sign of the imaginary part is changed", np.conj


def _reordered(value: np.ndarray) -> Iterator[Applied]:
    for axis, n in enumerate(value.shape):
        if n < 3:
            continue
        orders = {"reversed": np.arange(n)[::-1]}
        if n % 2 == 0:
            pairs = np.arange(n).reshape(2, -1).T.ravel()
            orders["in neighbouring pairs in place of halves"] = pairs
            orders["in halves in place of neighbouring pairs"] = np.argsort(pairs)
        for words, order in orders.items():
            yield f"axis {axis} {words}", partial(np.take, indices=order, axis=axis)


def _of_another_size(stage: Stage, other: Stage) -> Iterator[Applied]:
    """By a factor that a stage of the port suggests."""
    if stage.value.dtype.kind != "f":
        return
    ours, theirs = stage.sorted, other.sorted
    sizes = [max(abs(x[-1]), abs(x[0])) for x in (theirs, ours)]
    if not all(sizes) or not np.isfinite(sizes).all():
        return
    factor = sizes[0] / sizes[1]
    if abs(factor - 1) < 1e-6:
        return
    for signed, scaled in ((factor, factor * ours), (-factor, -factor * ours[::-1])):
        if near(scaled, theirs):
            yield f"multiplied by {_number(signed)}", partial(np.multiply, signed)


def _number(x: float) -> str:
    """As a root or its inverse, if it is one of a whole number."""
    sign, x = ("-" if x < 0 else ""), abs(x)
    for text, value in (
        ("{}", x),
        ("1/{}", 1 / x),
        ("sqrt({})", x**2),
        ("1/sqrt({})", x**-2),
    ):
        if value > 1.5 and abs(value - round(value)) < 1e-4:
            return sign + text.format(round(value))
    return f"{sign}{x:.9g}"
