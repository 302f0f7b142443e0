"""Which weight of a port is which of the original, checked before anything runs.

A map is {JAX's name: (PyTorch's name, how)}. How it gets there is "same", or "transpose": a Dense kernel is [in, out],
or [in, heads, head_dim] or [heads, head_dim, out], where a Linear weight is [out, in]; a convolution's is [height,
width, in, out] where PyTorch's is [out, in, height, width].
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

__all__ = [
    "WeightMap",
    "back",
    "carried",
    "checked",
    "doubts",
    "exchanges",
    "guessed",
]

Arrays = Mapping[str, np.ndarray]
WeightMap = dict[str, tuple[str, str]]
HOW = ("same", "transpose")
# Of shapes that do not fit, beside costs of a few; and of another order, which only decides where names cost the same.
UNFIT, ORDER = 1e6, 1e-3
# How many other weights are said.
SAID = 3
# Words that say the same; what is left out says nothing.
SYNONYMS = {
    "kernel": "weight",
    "embedding": "weight",
    "scale": "weight",
    "gamma": "weight",
    "beta": "bias",
    "query": "q",
    "key": "k",
    "value": "v",
    "output": "out",
    "o": "out",
    "wq": "q",
    "wk": "k",
    "wv": "v",
    "wo": "out",
    "attention": "attn",
    "w1": "gate",
    "w2": "down",
    "w3": "up",
    "feed": "mlp",
    "forward": "mlp",
    "ffn": "mlp",
    "ff": "mlp",
    "self": "",
    "proj": "",
    "lin": "",
    "linear": "",
    "layers": "",
    "layer": "",
    "params": "",
}


def carried(weight: np.ndarray, how: str, shape: tuple[int, ...]) -> np.ndarray:
    """PyTorch's weight as JAX's of this shape."""
    if how == "transpose":
        weight = weight.transpose(*range(2, weight.ndim), 1, 0)
    return weight.reshape(shape)


def back(weight: np.ndarray, how: str, shape: tuple[int, ...]) -> np.ndarray:
    """JAX's weight, or its gradient, as PyTorch's of this shape: the inverse of `carried`."""
    if how == "same":
        return weight.reshape(shape)
    last = len(shape) - 1
    weight = weight.reshape(_transposed(shape))
    return weight.transpose(last, last - 1, *range(last - 1))


def _transposed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[2:], *shape[1::-1])


def checked(names: WeightMap, jax_weights: Arrays, torch_weights: Arrays) -> WeightMap:
    """The map, if it uses every weight of both sides once and every shape fits.

    Raises:
        ValueError: otherwise, with every fault that there is.
    """
    faults = [
        f"no weight of JAX's is {name}" for name in names.keys() - jax_weights.keys()
    ]
    faults += [
        f"{name} of JAX's is not mapped" for name in jax_weights.keys() - names.keys()
    ]
    used = [name for name, _ in names.values()]
    faults += [
        f"no weight of PyTorch's is {name}" for name in set(used) - torch_weights.keys()
    ]
    faults += [
        f"{name} of PyTorch's is not used" for name in torch_weights.keys() - set(used)
    ]
    faults += [
        f"{name} of PyTorch's is used {used.count(name)} times"
        for name in {n for n in used if used.count(n) > 1}
    ]
    for name, (other, how) in names.items():
        if how not in HOW:
            faults.append(
                f"{name} is got by {how!r}, which is not one of {', '.join(HOW)}"
            )
        elif name in jax_weights and other in torch_weights:
            faults += _misfit(name, jax_weights[name], other, torch_weights[other], how)
    if faults:
        raise ValueError("the weights do not fit:\n  " + "\n  ".join(sorted(faults)))
    return names


def guessed(jax_weights: Arrays, torch_weights: Arrays) -> WeightMap:
    """The map that names and shapes suggest.

    Raises:
        ValueError: if the sides have not as many weights, or nothing fits one of them.
    """
    if len(jax_weights) != len(torch_weights):
        raise ValueError(
            f"the weights do not fit: JAX's side has {len(jax_weights)} "
            f"({_listed(jax_weights)}), PyTorch's {len(torch_weights)} ({_listed(torch_weights)})."
        )
    ours, theirs, cost = _matching(jax_weights, torch_weights)
    # Where names say nothing, the order in which weights are made does.
    places = (np.arange(len(units)) / len(units) for units in (ours, theirs))
    cost = cost + ORDER * np.subtract.outer(*places) ** 2
    names = {}
    for row, column in zip(*linear_sum_assignment(cost), strict=True):
        for a, b in _members(ours[row], theirs[column]):
            if cost[row, column] >= UNFIT:
                raise ValueError(
                    f"the weights do not fit: {a} {jax_weights[a].shape} is none of "
                    f"{_listed(torch_weights)}."
                )
            names[a] = b, _how(a, torch_weights[b])
    return checked(names, jax_weights, torch_weights)


def doubts(
    names: WeightMap, jax_weights: Arrays, torch_weights: Arrays
) -> dict[str, str]:
    """Of the weights of a guess, those that another would fit as well by its name and shape."""
    ours, theirs, cost = _matching(jax_weights, torch_weights)
    unit_of = {b: n for n, unit in enumerate(theirs) for b in unit.members.values()}
    firsts = [next(iter(unit.members.values())) for unit in ours]
    chosen = np.array([unit_of[names[a][0]] for a in firsts], int)
    here = cost[np.arange(len(ours)), chosen]
    found: dict[str, str] = {}
    for row, unit in enumerate(ours):
        # If it had that of another, and that one its own.
        exchanged = cost[row, chosen] + cost[:, chosen[row]]
        as_well = np.flatnonzero(exchanged <= here[row] + here + ORDER)
        others = [theirs[chosen[other]] for other in as_well if other != row]
        for part, a in unit.members.items() if others else ():
            said = ", ".join(other.members[part] for other in others[:SAID])
            found[a] = f", by order alone: {said} would fit as well"
    return found


def exchanges(
    names: WeightMap, jax_weights: Arrays, torch_weights: Arrays
) -> Iterator[tuple[str, WeightMap]]:
    """Maps as this one but for what shapes cannot tell: square matrices, and modules with the same weights."""
    for a, (b, how) in names.items():
        shape = jax_weights[a].shape
        if len(shape) == 2 and shape[0] == shape[1]:
            other = HOW[1 - HOW.index(how)]
            yield (
                f"weight {a} is {b} by {other!r}, not {how!r}",
                {**names, a: (b, other)},
            )
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for b, weight in torch_weights.items():
        for end in [i for i, letter in enumerate(b) if letter == "."] + [len(b)]:
            shapes.setdefault(b[:end], {})[b[end:]] = weight.shape
    alike = [
        (one, other, [*its])
        for (one, its), (other, others) in itertools.combinations(shapes.items(), 2)
        if its == others
    ]
    beside, layers = [], {}
    for one, other, ends in alike:
        if one.rpartition(".")[0] == other.rpartition(".")[0]:
            beside.append((one, other, ends))
            in_any = tuple(re.sub(r"\d+", "*", name) for name in (one, other))
            layers.setdefault(in_any, []).append((one, other, ends))
    for pair in beside:
        yield "weights {} and {} are exchanged".format(*pair), _exchanged(names, [pair])
    for in_any, pairs in layers.items():
        if len(pairs) > 1:
            words = "weights {} and {} are exchanged in every layer".format(*in_any)
            yield words, _exchanged(names, pairs)
    for pair in alike:
        if pair not in beside:
            words = "weights {} and {} are exchanged".format(*pair)
            yield words, _exchanged(names, [pair])


def _exchanged(names: WeightMap, pairs: list[tuple[str, str, list[str]]]) -> WeightMap:
    swap = {one + end: other + end for one, other, ends in pairs for end in ends}
    swap |= {b: a for a, b in swap.items()}
    return {a: (swap.get(b, b), how) for a, (b, how) in names.items()}


class _Unit(NamedTuple):
    """The weights of a module, which go together: by what they are there, their names."""

    name: str
    members: dict[str, str]


def _matching(
    jax_weights: Arrays, torch_weights: Arrays
) -> tuple[list[_Unit], list[_Unit], np.ndarray]:
    """The modules of both sides, and how much speaks against each pair of them; or the weights, if modules do not fit.

    UNFIT where shapes or what they have do.
    """
    for by_module in (True, False):
        ours, theirs = (
            _units(x, by_module=by_module) for x in (jax_weights, torch_weights)
        )
        cost = np.full((len(ours), len(theirs)), UNFIT)
        described = [_described(unit.name for unit in side) for side in (ours, theirs)]
        for (row, a), (column, b) in itertools.product(
            enumerate(ours), enumerate(theirs)
        ):
            if _fit(a, b, jax_weights, torch_weights):
                cost[row, column] = _cost(described[0][a.name], described[1][b.name])
        if len(ours) == len(theirs) and ours:
            best = cost[linear_sum_assignment(cost)]
            if best.max() < UNFIT:
                break
    return ours, theirs, cost


def _units(weights: Arrays, *, by_module: bool) -> list[_Unit]:
    found: dict[str, _Unit] = {}
    for name in weights:
        module, separator, part = re.match(r"(.*?)([./]?)([^./]*)$", name).groups()
        part = SYNONYMS.get(part, part)
        if by_module and separator and part in ("weight", "bias"):
            found.setdefault(module, _Unit(module, {})).members[part] = name
        else:
            found[name] = _Unit(name, {"": name})
    return [*found.values()]


def _members(a: _Unit, b: _Unit) -> list[tuple[str, str]]:
    return [
        (name, b.members[part]) for part, name in a.members.items() if part in b.members
    ]


def _fit(a: _Unit, b: _Unit, jax_weights: Arrays, torch_weights: Arrays) -> bool:
    return a.members.keys() == b.members.keys() and not any(
        _misfit(x, jax_weights[x], y, torch_weights[y], _how(x, torch_weights[y]))
        for x, y in _members(a, b)
    )


def _cost(a: tuple[set[str], list[int]], b: tuple[set[str], list[int]]) -> float:
    """The words that are in one name alone, and the numbers that are others, which tell more.

    The root, so that two names that are the same are not given up for two that are nearly so. Of names with more
    numbers than others it is not known which are which.
    """
    (ours, first), (theirs, second) = a, b
    numbers = sum(x != y for x, y in zip(first, second, strict=False))
    if len(first) != len(second):
        numbers = min(len(first), len(second))
    return math.sqrt(len(ours ^ theirs) + 2.0 * numbers)


def _described(names: Iterable[str]) -> dict[str, tuple[set[str], list[int]]]:
    """Words, and numbers by their rank: the layers of one side may be 0, 1, 2 and those of the other 0, 2, 4."""
    found = {}
    parts = {name: _parts(name) for name in names}
    for name, words in parts.items():
        ranks = []
        for n, word in enumerate(words):
            if word.isdigit():
                alike = {
                    int(other[n])
                    for other in parts.values()
                    if len(other) > n and other[n].isdigit() and other[:n] == words[:n]
                }
                ranks.append(sorted(alike).index(int(word)))
        text = {SYNONYMS.get(word, word) for word in words if not word.isdigit()}
        found[name] = text - {""}, ranks
    return found


def _parts(name: str) -> list[str]:
    return re.findall(
        r"\bw[123]\b|[a-z]+|\d+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
    )


def _how(name: str, y: np.ndarray) -> str:
    """By Flax's convention a kernel is transposed, a table or a bias is not."""
    return (
        "transpose"
        if name.split("/")[-1].startswith("kernel") and y.ndim > 1
        else "same"
    )


def _misfit(a: str, x: np.ndarray, b: str, y: np.ndarray, how: str) -> list[str]:
    """A shape may be split or joined, but only along whole axes."""
    shape = _transposed(y.shape) if how == "transpose" and y.ndim > 1 else y.shape
    if x.size == y.size and _splits(shape, x.shape):
        return []
    return [f"{a} is {x.shape}, and {b} by {how!r} is {shape}"]


def _splits(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether one shape is the other with axes split."""
    fine, coarse = (a, b) if len(a) >= len(b) else (b, a)
    ends = np.cumprod(coarse)
    return set(ends) <= set(np.cumprod(fine))


def _listed(arrays: Arrays) -> str:
    return (
        ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "none"
    )
