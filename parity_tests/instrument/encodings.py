"""The usual faults of position encodings: frequencies and slopes of another rule, and rotations of another kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from .parted import Applied, Change, Found, Parted, Tables, of_pairs
from .stages import Stage, leading_to, near

__all__ = [
    "of_another_kind",
    "of_other_slopes",
    "of_usual_bases",
    "rotated",
    "tabulated",
]

# Of RoPE in common models.
USUAL_BASES = (1e4, 1e5, 5e5, 1e6, 1e7)
# How far back the numbers that a rotation turns are looked for among those of their shape.
MOST_BACK = 6


# ------------------------------------------------------------- frequencies and slopes


def of_another_kind(stage: Stage, other: Stage) -> Iterator[Applied]:
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


def of_usual_bases(value: np.ndarray) -> Iterator[Applied]:
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


def of_other_slopes(value: np.ndarray) -> Iterator[Applied]:
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


def rotated(parted: Parted, at: int) -> Found:
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


def tabulated(parted: Parted, at: int) -> Found:
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
            power = np.log(base) / np.log(right)
            others = np.arange(len(turns))[:, None] * turns[1] ** power
            new = np.exp(1j * others) if len(table.of) == 1 else make(others)
            words = f"base {base:.6g} in place of {right:.6g}"
            yield words, Change((at,), partial(_instead, _twice_as(stage.value, new)))


def _base_and_turns(table: Tables) -> tuple[float, np.ndarray] | None:
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


def _rotated_by(
    way: _Way, tables: int, x: np.ndarray, *table: np.ndarray
) -> np.ndarray:
    cos, sin = table if tables == 2 else (table[0].real, table[0].imag)
    return _rotation(way, x, of_pairs(cos), of_pairs(sin))


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
