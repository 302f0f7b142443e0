"""The usual faults: what a stage of the original may have in its place in a port, and in which words to say so.

Most are of a few kinds: other numbers of the same form (a base, slopes, an eps, positions), of which the port's stages
suggest which; the same numbers in another order; a function of the same family; a step too few or a factor too many;
fewer bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from scipy import special

from .stages import Recording, Region, Stage, leading_to, near

__all__ = ["Change", "Parted", "faults_of"]

# Of RoPE in common models.
USUAL_BASES = (1e4, 1e5, 5e5, 1e6, 1e7)
NARROW = (ml_dtypes.bfloat16, np.float16)
# Not more is added to a variance.
MOST_EPS = 1e-2
# How far back the numbers that a rotation turns are looked for among those of their shape.
MOST_BACK = 6


class Change(NamedTuple):
    """What a stage has in place of its numbers: a function of those of some stages, as they are when it is run."""

    of: tuple[int, ...]
    apply: Callable[..., np.ndarray]


Found = Iterator[tuple[str, Change]]


class _Tables(NamedTuple):
    """Cosines and sines, and of which stages."""

    of: tuple[int, ...]
    cos: np.ndarray
    sin: np.ndarray


@dataclass(frozen=True)
class Parted:
    """Both sides, and where they part."""

    original: Recording
    region: Region
    port: Recording
    parting: Region

    @cached_property
    def known(self) -> set[int]:
        """The last stages that both have, and what they are copies of."""
        found, left = set(), [*self.region.known]
        while left:
            at = left.pop()
            stage = self.original.stages[at]
            found.add(at)
            left += [
                i
                for i in stage.parents
                if i not in found and _is_copy(self.original.stages[i], stage)
            ]
        return found

    @cached_property
    def before(self) -> tuple[int, ...]:
        return tuple(sorted(leading_to(self.original, self.region.known)))

    def applied(self, change: Change) -> np.ndarray:
        """What a stage would be if it alone were changed."""
        with np.errstate(all="ignore"):
            return change.apply(*(self.original.stages[i].value for i in change.of))

    @cached_property
    def theirs(self) -> dict[int, list[Stage]]:
        """What the port has that the original has not, of numbers that are real, by how many they are."""
        found: dict[int, list[Stage]] = {}
        for stage in (self.port.stages[at] for at in self.parting.parting):
            if stage.tells and stage.value.dtype.kind == "f":
                found.setdefault(stage.value.size, []).append(stage)
        return found

    @cached_property
    def added(self) -> set[float]:
        """What the port adds to all numbers of a stage."""
        return self._constants(np.subtract)

    @cached_property
    def factors(self) -> set[float]:
        """What the port multiplies all numbers of a stage by."""
        return self._constants(np.divide)

    def _constants(self, of: np.ufunc) -> set[float]:
        found = (
            _constant(stage.value, self.port.stages[parent].value, of)
            for stage in self.port.stages
            for parent in stage.parents
        )
        return {float(f"{x:.12g}") for x in found if x is not None}

    @cached_property
    def tables(self) -> list[_Tables]:
        """The original's."""
        stages = sorted({*self.before, *self.region.parting})
        return _tables(self.original, stages)

    @cached_property
    def their_tables(self) -> list[_Tables]:
        return _tables(self.port, [*self.parting.known, *self.parting.parting])

    @cached_property
    def partners(self) -> dict[int, set[int]]:
        """The sine of a cosine, and the other way."""
        found: dict[int, set[int]] = {}
        for table in self.tables:
            for i, j in itertools.permutations(table.of, 2):
                found.setdefault(i, set()).add(j)
        return found

    @cached_property
    def lines(self) -> list[tuple[Any, ...]]:
        """What is the same of stages that one line makes."""
        return [
            (_step(stage), stage.where, stage.value.ndim, stage.value.shape[-1:])
            for stage in self.original.stages
        ]

    @cached_property
    def steps(self) -> list[tuple[Any, ...]]:
        """What is the same of stages of other layers: one size, made in one way of what is made in one way."""
        stages = self.original.stages
        return [
            (
                stage.value.shape,
                _step(stage),
                *(_step(stages[i]) for i in stage.parents),
            )
            for stage in stages
        ]


def _step(stage: Stage) -> str:
    """In place or not."""
    return stage.operation.rstrip("_")


def _constant(a: np.ndarray, b: np.ndarray, of: np.ufunc) -> float | None:
    """By which all numbers of a and b differ, if it is one."""
    if a.shape != b.shape or {a.dtype.kind, b.dtype.kind} != {"f"}:
        return None
    there = np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0)
    if not there.any():
        return None
    found = of(a[there], b[there])
    rounding = 8 * np.finfo(np.float64).eps
    rounding *= np.abs(a[there] if of is np.subtract else found).max()
    middle = float(np.median(found))
    is_one = np.ptp(found) <= rounding < abs(middle - (of is np.divide)) / 4
    return middle if is_one else None


def faults_of(parted: Parted, at: int) -> Found:
    """What a port may have in place of a stage of the original; fewer of those that looked the same in the port."""
    stage = parted.original.stages[at]
    value = stage.value
    if not stage.tells or not np.isfinite(value).any():
        return
    parents = [(i, parted.original.stages[i]) for i in stage.parents]
    if any(_is_copy(parent, stage) for _, parent in parents):
        return  # Nothing is to be said that was not said of what it is a copy of.
    parts, known = at in parted.region.parting, at in parted.known
    alone: list[Iterable[Applied]] = [_narrowed(value), _shifted(value), _turned(value)]
    yield from _of_another_eps(stage, parents, parted.added)
    yield from _reshaped(stage, parents)
    others = parted.theirs.get(value.size, [])
    if parts or known:
        alone += [_of_another_size(stage, other) for other in others]
    if parts:
        alone += [_of_another_kind(stage, other) for other in others]
        alone += [_of_usual_bases(value), _of_other_slopes(value)]
        alone += [_negative(value), _reordered(value)]
        yield from _skipped(stage, parents)
        yield from _weighed(stage, parents, parted.factors)
        yield from _activated(stage, parents)
        yield from _masked(stage, parents)
        yield from _rotated(parted, at)
        yield from _tabulated(parted, at)
    for words, apply in itertools.chain(*alone):
        yield words, Change((at,), apply)


def _is_copy(a: Stage, b: Stage) -> bool:
    """A constant cannot be changed itself."""
    return a.operation != "constant" and np.array_equal(a.value, b.value)


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


def _of_another_eps(stage: Stage, parents: Parents, added: set[float]) -> Found:
    """What is added to a variance, or to its root."""
    for i, parent in parents:
        eps = _constant(stage.value, parent.value, np.subtract)
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
    for _, wrong, change in _of_a_family(stage, parents, SOFTMAXES):
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

Applied = tuple[str, Callable[[np.ndarray], np.ndarray]]


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
    return f"{sign}{x:.6g}"


# ------------------------------------------------------------- frequencies and slopes


def _of_another_kind(stage: Stage, other: Stage) -> Iterator[Applied]:
    """Frequencies base^(-i/n), from 1 down, their inverses, or slopes, as a stage of the port suggests."""
    n = stage.value.size
    if stage.value.dtype.kind != "f" or stage.sorted[0] <= 0:
        return
    ours, theirs = stage.sorted[::-1], other.sorted[::-1]
    if any(x[-1] <= 0 or x[1] >= x[0] or not np.isfinite(x[0]) for x in (ours, theirs)):
        return
    if all(abs(x[-1] - 1) < 1e-6 for x in (ours, theirs)):
        ours, theirs = 1 / ours[::-1], 1 / theirs[::-1]
    power = np.log(theirs[-1] / theirs[0]) / np.log(ours[-1] / ours[0])
    factor = theirs[0] / ours[0] ** power
    same = abs(power - 1) < 1e-6
    if same or not near(factor * ours**power, theirs):
        return
    if any(abs(x[0] - 1) > 1e-6 for x in (ours, theirs)):
        if ours[0] <= 1 and _ratio(ours) and stage.value.squeeze().ndim == 1:
            words = "slopes from {:.6g} by {:.6g} in place of from {:.6g} by {:.6g}"
            numbers = (theirs[0], _ratio(theirs), ours[0], _ratio(ours))
            yield words.format(*numbers), partial(_to_the_power, power, factor)
        return
    bases = (x[1] ** -float(n) for x in (theirs, ours))
    words = "base {:.6g} in place of {:.6g}".format(*bases)
    words += f", or a width of {2 * n / power:.6g} in place of {2 * n} in the exponent"
    yield words, partial(_to_the_power, power, 1.0)


def _of_usual_bases(value: np.ndarray) -> Iterator[Applied]:
    """As of a port whose tables were made elsewhere, so that no stage of it has its frequencies."""
    if value.dtype.kind != "f":
        return
    n, ordered = value.size, np.sort(value, axis=None)[::-1]
    ratio = _ratio(ordered)
    if ratio is None or abs(ordered[0] - 1) > 1e-6:
        return
    base = ratio ** -float(n)
    for other in USUAL_BASES:
        if abs(other / base - 1) > 1e-3:
            power = np.log(other) / np.log(base)
            words = f"base {other:.6g} in place of {base:.6g}"
            yield words, partial(_to_the_power, power, 1.0)


def _ratio(ordered: np.ndarray) -> float | None:
    """Of each number to the one before, if it is one and they fall."""
    if ordered[-1] <= 0:
        return None
    ratios = ordered[1:] / ordered[:-1]
    even = ratios[0] < 1 - 1e-6 and near(ratios, np.full(ratios.shape, ratios[0]))
    return float(ratios[0]) if even else None


def _to_the_power(power: float, factor: float, x: np.ndarray) -> np.ndarray:
    return factor * x**power


def _of_other_slopes(value: np.ndarray) -> Iterator[Applied]:
    """Of ALiBi, by the other rules that are in use, which differ where heads are no power of two."""
    heads, flat = value.size, value.ravel()
    if value.dtype.kind != "f" or not 3 <= heads == max(value.shape):
        return
    sign = np.sign(flat[0])
    rules = {name: sign * rule(heads) for name, rule in SLOPES.items()}
    right = [name for name, slopes in rules.items() if near(slopes, flat)]
    for name, slopes in rules.items() if right else ():
        if name not in right:
            words = f"slopes {name} in place of {right[0]}"
            yield words, partial(_instead, slopes.reshape(value.shape))


def _instead(new: np.ndarray, x: np.ndarray) -> np.ndarray:
    return new


def _powers(heads: int) -> np.ndarray:
    return 2.0 ** (-8 * np.arange(1, heads + 1) / heads)


def _published(heads: int) -> np.ndarray:
    """As in the paper's code: those of the power of two below, then every other one of twice as many."""
    below = 2 ** (heads.bit_length() - 1)
    return np.concatenate([_powers(below), _powers(2 * below)[::2][: heads - below]])


SLOPES: dict[str, Callable[[int], np.ndarray]] = {
    "2^(-8i/heads)": _powers,
    "by the rule for heads that are no power of two": _published,
    "2^(-8i/heads) of the power of two above": lambda heads: _powers(
        2 ** (heads - 1).bit_length()
    )[:heads],
    "2^(-8i/heads) from i = 0": lambda heads: 2.0 ** (-8 * np.arange(heads) / heads),
}


# ---------------------------------------------------------------------------- rotations


class _Way(NamedTuple):
    """Pairs of a layout, of the first or the last numbers, along which axis the tokens are."""

    layout: str
    sign: int
    axis: int
    pairs: int
    last: bool

    def words(self, width: int) -> str:
        turned = 2 * self.pairs
        part = f"the {'last' if self.last else 'first'} {turned}"
        numbers = f"all {turned}" if turned == width else part
        backwards = "" if self.sign > 0 else ", backwards"
        return f"of {numbers} numbers in the layout {self.layout!r}{backwards}"


def _rotated(parted: Parted, at: int) -> Found:
    """Of a rotation, the others that are in use, and those by tables of another width, which the port has."""
    value = parted.original.stages[at].value
    if value.ndim < 2 or value.dtype.kind != "f":
        return
    stages = parted.original.stages
    made_of = sorted(leading_to(parted.original, [at]) - {at})
    xs = [i for i in made_of if stages[i].value.shape == value.shape]
    for i, table in itertools.product(xs[-MOST_BACK:], parted.tables):
        x = stages[i].value
        if max(table.of) >= at or not near(np.sum(x**2, -1), np.sum(value**2, -1)):
            continue
        right = [
            way
            for way in _ways(x, table.cos)
            if near(_rotation(way, x, table.cos, table.sin), value)
        ]
        if not right:
            continue
        for way in _ways(x, table.cos):
            if way not in right:
                words = _said(way, right[0], value.shape[-1])
                apply = partial(_rotated_by, way, len(table.of))
                yield words, Change((i, *table.of), apply)
        for other in parted.their_tables:
            for way in _ways(x, other.cos):
                if way.pairs != right[0].pairs:
                    words = _said(way, right[0], value.shape[-1])
                    turn = partial(_rotation, way, cos=other.cos, sin=other.sin)
                    yield words, Change((i,), turn)
        return


def _said(wrong: _Way, right: _Way, width: int) -> str:
    """But for what they have in common."""
    if (wrong.pairs, wrong.last) == (right.pairs, right.last):
        a, b = (way.words(width).partition("numbers ")[2] for way in (wrong, right))
    elif (wrong.layout, wrong.sign) == (right.layout, right.sign):
        a, b = (way.words(width).partition(" in the")[0] for way in (wrong, right))
    else:
        a, b = wrong.words(width), right.words(width)
    return f"a rotation {a} in place of one {b}"


def _tables(recording: Recording, among: Iterable[int]) -> list[_Tables]:
    """What may be cosines and sines, or both in complex numbers; those that are made anew once."""
    found: dict[tuple[bytes, bytes], _Tables] = {}
    bounded: dict[tuple[int, ...], list[tuple[int, np.ndarray]]] = {}

    def add(of: tuple[int, ...], cos: np.ndarray, sin: np.ndarray) -> None:
        table = _Tables(of, _of_pairs(cos), _of_pairs(sin))
        found.setdefault((table.cos.tobytes(), table.sin.tobytes()), table)

    for at in among:
        stage = recording.stages[at]
        x = stage.value
        if not stage.tells or not np.isfinite(x).all() or np.abs(x).max() > 1 + 1e-6:
            continue
        if x.dtype.kind == "f":
            bounded.setdefault(x.shape, []).append((at, x))
        elif near(np.abs(x), np.ones(x.shape)):
            add((at,), x.real, x.imag)
    for alike in bounded.values():
        for (i, cos), (j, sin) in itertools.combinations(alike, 2):
            if abs(cos.flat[0] ** 2 + sin.flat[0] ** 2 - 1) > 1e-3:
                continue
            if near(cos**2 + sin**2, np.ones(cos.shape)):
                # The slowest pair has hardly turned.
                if np.abs(cos[..., -1]).sum() < np.abs(sin[..., -1]).sum():
                    add((j, i), sin, cos)
                else:
                    add((i, j), cos, sin)
    return [*found.values()]


def _tabulated(parted: Parted, at: int) -> Found:
    """Of tables that the original has ready made, those of another base: of the port's, or a usual one."""
    stage = parted.original.stages[at]
    theirs = (_base_and_turns(table) for table in parted.their_tables)
    bases = dict.fromkeys([*(base for base, _ in filter(None, theirs)), *USUAL_BASES])
    for table in parted.tables if not stage.parents else ():
        found = _base_and_turns(table)
        if at not in table.of or found is None:
            continue
        right, turns = found
        make = np.sin if at == table.of[-1] else np.cos
        for base in bases:
            if abs(base / right - 1) < 1e-3:
                continue
            power = np.log(base) / np.log(right)
            others = np.arange(len(turns))[:, None] * turns[1] ** power
            new = np.exp(1j * others) if len(table.of) == 1 else make(others)
            words = f"base {base:.6g} in place of {right:.6g}"
            yield words, Change((at,), partial(_instead, _twice_as(stage.value, new)))


def _base_and_turns(table: _Tables) -> tuple[float, np.ndarray] | None:
    """Of rotations by positions from 0 on, [tokens, pairs], by frequencies base^(-i/pairs)."""
    if table.cos.ndim != 2 or min(table.cos.shape) < 2:
        return None
    frequencies = np.arctan2(table.sin[1], table.cos[1])
    turns = np.arange(len(table.cos))[:, None] * frequencies
    if not (near(np.cos(turns), table.cos) and near(np.sin(turns), table.sin)):
        return None
    ratio = _ratio(frequencies)
    if ratio is None or abs(frequencies[0] - 1) > 1e-6:
        return None
    return ratio ** -float(len(frequencies)), turns


def _twice_as(value: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Each pair once or twice, as the other array has it."""
    if value.size == table.size:
        return table.reshape(value.shape)
    first, second = np.split(value.squeeze(), 2, -1)
    if near(first, second):
        return np.concatenate([table, table], -1).reshape(value.shape)
    return np.repeat(table, 2, -1).reshape(value.shape)


def _ways(x: np.ndarray, table: np.ndarray) -> list[_Way]:
    """Every layout and direction, tokens along an axis that the table has."""
    if table.ndim != 2 or x.shape[-1] < 2 * table.shape[1]:
        return []
    pairs = table.shape[1]
    axes = [axis for axis in range(x.ndim - 1) if x.shape[axis] == table.shape[0]]
    parts = (False, True) if x.shape[-1] > 2 * pairs else (False,)
    return [
        _Way(layout, sign, axis, pairs, last)
        for layout, sign, axis, last in itertools.product(
            ("half", "interleaved"), (1, -1), axes[-1:], parts
        )
    ]


def _of_pairs(table: np.ndarray) -> np.ndarray:
    """[tokens, pairs] of a table that may hold each pair twice."""
    table = table.squeeze()
    half, odd = divmod(table.shape[-1], 2) if table.ndim == 2 else (0, 1)
    if odd:
        return table
    if half and near(table[:, :half], table[:, half : 2 * half]):
        return table[:, :half]
    if half and near(table[:, ::2], table[:, 1::2]):
        return table[:, ::2]
    return table


def _rotated_by(
    way: _Way, tables: int, x: np.ndarray, *table: np.ndarray
) -> np.ndarray:
    cos, sin = table if tables == 2 else (table[0].real, table[0].imag)
    return _rotation(way, x, _of_pairs(cos), _of_pairs(sin))


def _rotation(way: _Way, x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    n = way.pairs
    shape = [1] * x.ndim
    shape[way.axis], shape[-1] = cos.shape
    cos, sin = cos.reshape(shape), way.sign * sin.reshape(shape)
    start = x.shape[-1] - 2 * n if way.last else 0
    i, j = slice(start, start + n), slice(start + n, start + 2 * n)
    if way.layout == "interleaved":
        i, j = slice(start, start + 2 * n, 2), slice(start + 1, start + 2 * n, 2)
    y = x.copy()
    y[..., i] = x[..., i] * cos - x[..., j] * sin
    y[..., j] = x[..., j] * cos + x[..., i] * sin
    return y
