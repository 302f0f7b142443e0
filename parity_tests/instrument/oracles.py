"""Float64 oracles of the four encodings and of attention, written from the papers, with their gradients.

Every function takes and returns `Bounded` numbers, so each also says how far from the truth a rounded computation
may be. Array order is JAX's: [batch, seq, heads, head_dim]. Sines, cosines and powers come from mpmath at 40
digits: at position 131071 a float64 angle is itself off by 1e-11.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np

from .bounded import Bounded, exact, exp, stack, tanh, where
from .tolerances import FUNCTION_UNITS

__all__ = [
    "add",
    "alibi_bias",
    "alibi_slopes",
    "attention",
    "coordinates_gradient",
    "cos_sin",
    "dynamic_roundings",
    "fourier",
    "joined",
    "linear",
    "look_up",
    "progression",
    "resize",
    "rope_cos_sin",
    "rotate",
    "scaled",
    "sinusoid",
    "sinusoid_times_gradient",
    "summed_to",
    "who_may_attend",
]

DIGITS = 40


@functools.cache
def _cos_sin(position: float, frequency: mpmath.mpf) -> tuple[float, float]:
    with mpmath.workdps(DIGITS):
        cos, sin = mpmath.cos_sin(position * frequency)
        return float(cos), float(sin)


def cos_sin(
    positions: np.ndarray,
    frequencies: list[mpmath.mpf],
    axes: tuple[int, ...] | None = None,
    roundings: Any = 1.0,
) -> tuple[Bounded, Bounded]:
    """cos and sin of positions * frequencies, [*positions, n]; with axes, of coordinates [*positions, axes].

    Units: the frequency is rounded `roundings` times and the product once; then the function itself. (Made on the host,
    a frequency is rounded once in float32, and off by a few units in float64; ORACLE_SHARE leaves room for that.)
    """
    if axes is None:
        at = np.repeat(positions[..., None], len(frequencies), -1)
    else:
        at = np.stack([positions[..., axis] for axis in axes], -1)
    flat = [
        [_cos_sin(float(p), f) for p, f in zip(row, frequencies, strict=True)]
        for row in at.reshape(-1, len(frequencies))
    ]
    cos, sin = np.moveaxis(np.array(flat).reshape(*at.shape, 2), -1, 0)
    angle = np.abs(at * np.array(frequencies, float))
    units = np.where(angle == 0, 0, (1 + roundings) * angle + FUNCTION_UNITS)
    return Bounded(cos, units), Bounded(sin, units)


def coordinates_gradient(
    cos_cotangent: Bounded,
    sin_cotangent: Bounded,
    tables: tuple[Bounded, Bounded],
    frequencies: list[mpmath.mpf],
    axes: tuple[int, ...],
) -> Bounded:
    """d/dm of cos(m w) is -w sin(m w), of sin(m w) is w cos(m w), summed over the pairs of each axis."""
    cos, sin = tables
    value = np.array(frequencies, float)
    terms = (sin_cotangent * cos - cos_cotangent * sin) * Bounded(value, value)
    return stack(
        [
            terms[..., np.flatnonzero(np.array(axes) == axis)].sum(-1)
            for axis in range(max(axes) + 1)
        ],
        -1,
    )


def progression(width: int, base: Any) -> list[mpmath.mpf]:
    """base ** (-2 i / d), i = 0 .. d/2 - 1 (Su et al., 2021, eq. 15)."""
    return _powers(base, [2 * i / width for i in range(width // 2)])


def _powers(base: Any, exponents: list[float]) -> list[mpmath.mpf]:
    """An exponent is a float64 number: rounding it costs a float64 run more than all the rest, ln(base) / 2 units."""
    with mpmath.workdps(DIGITS):
        return [mpmath.power(base, -exponent) for exponent in exponents]


def rope_cos_sin(
    positions: np.ndarray, rotary_dim: int, base: float
) -> tuple[Bounded, Bounded]:
    return cos_sin(positions, progression(rotary_dim, base))


def scaled(
    rule: str,
    width: int,
    base: float,
    *,
    factor: float = 1.0,
    trained: int = 0,
    length: int = 0,
    alpha: float = 1.0,
    turns: tuple[float, float] = (32.0, 1.0),
    truncate: bool = True,
    divisors: tuple[tuple[float, ...], tuple[float, ...]] = ((), ()),
    part: float = 1.0,
) -> list[mpmath.mpf]:
    """The frequencies of a scaling rule, each from its paper (or, for "llama3" and "proportional", its first code).

    `turns` in the trained length bound the blend, the faster pair's first; `divisors` are those up to the trained
    length and beyond.
    """
    plain = progression(width, base)
    with mpmath.workdps(DIGITS):
        if rule == "linear":  # Chen et al., 2023
            return [f / factor for f in plain]
        if rule == "ntk":  # Peng et al., 2023, eq. 16
            power = mpmath.mpf(width) / (width - 2)
            return progression(width, base * mpmath.power(alpha, power))
        if rule == "dynamic":  # as above, by how far the trained length is exceeded
            grown = mpmath.mpf(factor) * max(length, trained) / trained - factor + 1
            return scaled("ntk", width, base, alpha=grown)
        if rule == "longrope":  # Ding et al., 2024
            chosen = divisors[0] if length <= trained else divisors[1]
            return [f / d for f, d in zip(plain, chosen, strict=True)]
        if rule == "proportional":
            still = len(plain) - int(part * len(plain))
            return [f / factor for f in plain[: len(plain) - still]] + [
                mpmath.mpf(0)
            ] * still
        if rule == "yarn":  # Peng et al., 2023, section 3.2, by the pair's number
            ends = [
                width * mpmath.log(trained / (2 * mpmath.pi * t)) / mpmath.log(base) / 2
                for t in turns
            ]
            if truncate:
                ends = [mpmath.floor(ends[0]), mpmath.ceil(ends[1])]
            first, last = max(ends[0], 0), min(ends[1], width - 1)
            kept = [(last - i) / (last - first) for i in range(len(plain))]
        else:  # "llama3": by the turns that a pair makes in the trained length
            made = [trained * f / (2 * mpmath.pi) for f in plain]
            kept = [(t - turns[1]) / (turns[0] - turns[1]) for t in made]
        kept = [min(max(share, 0), 1) for share in kept]
        return [
            f * share + f / factor * (1 - share)
            for f, share in zip(plain, kept, strict=True)
        ]


def dynamic_roundings(
    width: int, factor: float, trained: int, length: int
) -> np.ndarray:
    """Units of a frequency of "dynamic" that is computed from a length which is not known beforehand.

    The frequency is f exp(e log1p(c x)): c, e and f are rounded, c x, the exponent and the result are products.
    """
    excess = factor / trained * max(length - trained, 0)
    growth = np.log1p(excess)
    exponent = np.arange(0, width, 2) / (width - 2)
    units_of_growth = 2 * excess / (1 + excess) + FUNCTION_UNITS * growth
    units_of_power = exponent * (units_of_growth + 2 * growth) + FUNCTION_UNITS
    return 1 + units_of_power + 1


def sinusoid(
    positions: np.ndarray,
    dim: int,
    base: float,
    layout: str,
    spacing: str,
    scale: float = 1.0,
) -> Bounded:
    """Column by column: which function of which frequency stands there (Vaswani et al., 2017, section 3.5)."""
    sin, cos, _ = _sinusoid_parts(positions, dim, base, spacing, scale)
    zero = exact(np.zeros(positions.shape))
    columns = [
        zero if part is None else {"sin": sin, "cos": cos}[part][..., i]
        for part, i in _columns(dim, layout, spacing)
    ]
    return stack(columns, -1)


def sinusoid_times_gradient(
    cotangent: Bounded,
    times: np.ndarray,
    dim: int,
    base: float,
    layout: str,
    spacing: str,
    scale: float = 1.0,
) -> Bounded:
    """d/dt of sin(t w) is w cos(t w), of cos(t w) is -w sin(t w)."""
    sin, cos, frequency = _sinusoid_parts(times, dim, base, spacing, scale)
    frequency = np.broadcast_to(frequency, cos.value.shape)
    rounded = Bounded(frequency, frequency)
    terms = []
    for column, (part, i) in enumerate(_columns(dim, layout, spacing)):
        if part is None:
            continue
        slope = cos[..., i] if part == "sin" else -sin[..., i]
        terms.append(cotangent[..., column] * slope * rounded[..., i])
    return stack(terms, -1).sum(-1)


def _sinusoid_parts(
    positions: np.ndarray, dim: int, base: float, spacing: str, scale: float
) -> tuple[Bounded, Bounded, np.ndarray]:
    half = dim // 2
    whole = dim + 1 if spacing == "next_even" and dim % 2 else dim
    exponents = {
        "dim": [2 * i / dim for i in range(dim - half)],
        "next_even": [2 * i / whole for i in range(dim - half)],
        "half": [i / half for i in range(half)],
        "endpoint": [i / max(half - 1, 1) for i in range(half)],
    }[spacing]
    frequencies = [scale * power for power in _powers(base, exponents)]
    cos, sin = cos_sin(positions, frequencies)
    return sin, cos, np.array(frequencies, float)


def _columns(dim: int, layout: str, spacing: str) -> list[tuple[str | None, int]]:
    """What stands in every column: (function, frequency index), or (None, 0) for a zero."""
    sines = dim - dim // 2 if spacing in ("dim", "next_even") else dim // 2
    sin = [("sin", i) for i in range(sines)]
    cos = [("cos", i) for i in range(dim // 2)]
    if layout == "half":
        order = sin + cos
    elif layout == "half_cos_first":
        order = cos + sin
    else:
        order = sorted(sin + cos, key=lambda column: (column[1], column[0] == "cos"))
    return order + [(None, 0)] * (dim - len(order))


def rotate(
    x: Bounded, cos: Bounded, sin: Bounded, layout: str, placement: str
) -> tuple[Bounded, Callable[[Bounded], tuple[Bounded, Bounded, Bounded]]]:
    """Multiply every pair by [[cos, -sin], [sin, cos]] (Su et al., 2021, eq. 34), and the vector-Jacobian product.

    The layout "A_to_B" finds the pairs as A has them and leaves them as B has them.
    """
    width, head_dim = 2 * cos.value.shape[-1], x.value.shape[-1]
    start = 0 if placement == "leading" else head_dim - width
    i = start + np.arange(width // 2)
    members = {
        "half": (i, i + width // 2),
        "interleaved": (2 * i - start, 2 * i - start + 1),
    }
    found, left = members[layout.split("_to_")[0]], members[layout.split("_to_")[-1]]
    cos, sin = cos[..., None, :], sin[..., None, :]

    def place(a: Bounded, b: Bounded, where: Any, rest: Bounded) -> Bounded:
        def put(a: np.ndarray, b: np.ndarray, rest: np.ndarray) -> np.ndarray:
            out = rest.copy()
            out[..., where[0]], out[..., where[1]] = a, b
            return out

        return Bounded(
            put(a.value, b.value, rest.value), put(a.units, b.units, rest.units)
        )

    def turn(x: Bounded, sin: Bounded, start: Any, end: Any) -> Bounded:
        a, b = x[..., start[0]], x[..., start[1]]
        return place(a * cos - b * sin, b * cos + a * sin, end, x)

    def vjp(g: Bounded) -> tuple[Bounded, Bounded, Bounded]:
        a, b, ga, gb = (
            x[..., found[0]],
            x[..., found[1]],
            g[..., left[0]],
            g[..., left[1]],
        )
        return (
            turn(g, -sin, left, found),
            (ga * a + gb * b).sum(-2),
            (gb * a - ga * b).sum(-2),
        )

    return turn(x, sin, found, left), vjp


def look_up(
    table: Bounded,
    positions: np.ndarray,
    out_of_range: str,
    coarse: float = 1.0,
    padding_idx: int | None = None,
) -> tuple[Bounded, Callable[[Bounded], Bounded]]:
    """Rows of the table; a position outside it gives NaN, zeros or, if clipped, the nearest row.

    Its gradient adds up in the dtype of the table, `coarse` times as roughly as the arithmetic elsewhere.
    """
    max_len = table.value.shape[0]
    nearest = np.clip(positions, 0, max_len - 1)
    inside = (positions == nearest) | (out_of_range == "clip")
    trained = inside & (True if padding_idx is None else nearest != padding_idx)
    outside = 0.0 if out_of_range == "zero" else np.nan

    def vjp(g: Bounded) -> Bounded:
        received = where(trained[..., None], g, 0.0)
        hits = (nearest[..., None] == np.arange(max_len)).reshape(-1, max_len)
        flat = received.move(lambda a: a.reshape(-1, a.shape[-1]))
        total = hits.T @ flat.value
        # Each row is a sum of as many terms as read it.
        adds = np.maximum(hits.sum(0) - 1, 0)[:, None]
        size = hits.T @ abs(flat.value)
        return Bounded(total, hits.T @ flat.units + coarse * adds * size)

    return where(inside[..., None], table[nearest], outside), vjp


def resize(
    old: tuple[int, ...], new: tuple[int, ...], method: str, antialias: bool
) -> Bounded:
    """The matrix that resizes a grid of rows, in rational numbers.

    For every axis, Keys' cubic (1981, eq. 15) or a triangle about the place where the centres of rows agree, made wider
    by old / new if the grid is antialiased and shrinks.

    Units: a place is rounded three times and a weight changes by at most 3/2 per row; then come some sixteen roundings
    of terms of up to 2, and that to the dtype. (All but the last are in float64 even in a float32 run.)
    """
    value, units = np.ones((1, 1)), np.zeros((1, 1))
    for rows, size in zip(old, new, strict=True):
        weights, off = np.zeros((size, rows)), np.zeros((size, rows))
        stretch = max(Fraction(rows, size), 1) if antialias else 1
        kept = antialias or method == "keys_cubic"
        for i in range(size):
            place = Fraction((2 * i + 1) * rows, 2 * size) - Fraction(1, 2)
            found = [Fraction(0)] * rows
            for j in range(-4 * rows, 5 * rows):
                if not kept or 0 <= j < rows:
                    row = min(max(j, 0), rows - 1)
                    found[row] += _kernel(abs(place - j) / stretch, method, kept)
            weights[i] = [float(weight / sum(found)) for weight in found]
            reached = weights[i] != 0
            off[i] = reached * (4.5 * float(abs(place)) + 16 + np.abs(weights[i]))
        units = np.kron(np.abs(value), off) + np.kron(units, np.abs(weights))
        value = np.kron(value, weights)
    return Bounded(value, units)


def _kernel(x: Fraction, method: str, half: bool) -> Fraction:
    if method == "linear":
        return max(1 - x, Fraction(0))
    a = Fraction(-1, 2) if half else Fraction(-3, 4)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else Fraction(0)


def fourier(
    positions: np.ndarray, frequencies: np.ndarray
) -> tuple[Bounded, Callable[[Bounded], tuple[Bounded, Bounded]]]:
    """sin and cos of 2 pi (positions @ frequencies), and the gradients in both (Tancik et al., 2020, section 5)."""
    with mpmath.workdps(DIGITS):
        rows = [
            [
                mpmath.cos_sin(
                    2 * mpmath.pi * mpmath.fdot(zip(row, column, strict=True))
                )
                for column in frequencies.T.tolist()
            ]
            for row in positions.reshape(-1, positions.shape[-1]).tolist()
        ]
    shape = (*positions.shape[:-1], frequencies.shape[1], 2)
    cos, sin = np.moveaxis(np.array(rows, float).reshape(shape), -1, 0)
    # Each product is rounded, each sum but the first, 2 pi itself, and the product with it.
    reach = 2 * np.pi * (np.abs(positions) @ np.abs(frequencies))
    units = (len(frequencies) + 2) * reach + FUNCTION_UNITS
    cos, sin = Bounded(cos, units), Bounded(sin, units)

    def vjp(g: Bounded) -> tuple[Bounded, Bounded]:
        count = frequencies.shape[1]
        turned = g[..., :count] * cos - g[..., count:] * sin
        turned = turned * Bounded(np.array(2 * np.pi), np.array(2 * np.pi))
        flat = turned.move(lambda a: a.reshape(-1, count))
        at = exact(positions.reshape(-1, positions.shape[-1]).T)
        return turned @ exact(frequencies.T), at @ flat

    return joined([sin, cos]), vjp


def alibi_slopes(num_heads: int, bias_max: float = 8.0) -> np.ndarray:
    """The start and ratio 2 ** (-8 / n) for a power of two, else every other slope of twice as many, appended."""

    def ladder(n: int) -> list[float]:
        return [2.0 ** (-bias_max * k / n) for k in range(1, n + 1)]

    power = 1
    while 2 * power <= num_heads:
        power *= 2
    return np.array(ladder(power) + ladder(2 * power)[::2][: num_heads - power])


def alibi_bias(
    query_positions: np.ndarray, key_positions: np.ndarray, slopes: Bounded, kind: str
) -> tuple[Bounded, Callable[[Bounded], Bounded]]:
    """Slope times distance, [*batch, heads, q, k] (Press et al., 2022, section 3)."""
    distance = _grid_distance if kind in ("manhattan", "euclidean") else _distance
    distance = distance(
        query_positions.astype(np.float64), key_positions.astype(np.float64), kind
    )

    def vjp(g: Bounded) -> Bounded:
        product = (g * distance).move(lambda a: np.moveaxis(a, -3, 0))
        return product.move(lambda a: a.reshape(a.shape[0], -1)).sum(-1)

    return slopes.move(lambda a: a[:, None, None]) * distance, vjp


def _distance(query: np.ndarray, key: np.ndarray, kind: str) -> Bounded:
    i, j = query[..., None, :, None], key[..., None, None, :]
    return exact(
        {
            "symmetric": -abs(i - j),
            "signed": j - i,
            "key": j + 0 * i,
            "past": -np.maximum(i - j, 0),
            "future": -np.maximum(j - i, 0),
        }[kind]
    )


def _grid_distance(query: np.ndarray, key: np.ndarray, kind: str) -> Bounded:
    apart = np.abs(query[..., None, :, None, :] - key[..., None, None, :, :])
    if kind == "manhattan":
        return exact(-apart.sum(-1))
    straight = np.sqrt((apart**2).sum(-1))
    # Squares and their sums are rounded by one unit each, which the root halves; then it is rounded itself.
    return Bounded(-straight, (apart.shape[-1] / 2 + 1) * straight)


def who_may_attend(
    shape: tuple[int, ...],
    *,
    mask: np.ndarray | None = None,
    query_positions: np.ndarray | None = None,
    key_positions: np.ndarray | None = None,
    is_causal: bool = False,
    sliding_window: int | None = None,
    query_segment_ids: np.ndarray | None = None,
    key_segment_ids: np.ndarray | None = None,
) -> np.ndarray:
    """True where query i may attend to key j, [batch, heads, q, k]."""
    allowed = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)
    if query_positions is not None:
        i, j = query_positions[..., None, :, None], key_positions[..., None, None, :]
        if is_causal:
            allowed = allowed & (j <= i)
        if sliding_window is not None:
            allowed = allowed & (abs(i - j) < sliding_window)
    if query_segment_ids is not None:
        i = query_segment_ids[..., None, :, None]
        allowed = allowed & (i == key_segment_ids[..., None, None, :])
    return np.broadcast_to(allowed, shape)


def attention(
    query: Bounded,
    key: Bounded,
    value: Bounded,
    *,
    biases: tuple[Bounded, ...] = (),
    allowed: np.ndarray,
    softcap: Bounded | float | None = None,
    scale: Bounded | float | None = None,
    coarse: float = 1.0,
) -> tuple[Bounded, Callable[[Bounded], dict[str, Bounded]]]:
    """softmax(q k^T / sqrt(d) + bias) v over the allowed keys (Vaswani et al., 2017, eq. 1), else zeros.

    With `coarse` above 1, weights and gradients of scores are rounded to that before they are multiplied as matrices,
    as fused kernels do, and outputs before the backward pass reads them.
    """
    group = query.value.shape[2] // key.value.shape[2]
    q, k, v = (
        x.move(lambda a: np.swapaxes(a, 1, 2))
        for x in (query, _repeat(key, group), _repeat(value, group))
    )
    scale = 1 / np.sqrt(q.value.shape[-1]) if scale is None else scale
    factor = scale if isinstance(scale, Bounded) else Bounded(*np.full(2, scale))
    products = q @ _transpose(k)
    scores = products * factor
    if softcap is not None:
        cap = exact(softcap)
        relative = scores / cap
        capped = tanh(relative)
        logits = capped * cap
    else:
        logits = scores
    for bias in biases:
        logits = logits + bias
    # The softmax does not depend on what is subtracted, so the peak carries no error.
    peak = np.where(allowed, logits.value, -np.inf).max(-1, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0)
    logits = where(allowed, logits, peak)
    weights = where(allowed, exp(logits - peak), 0.0)
    total = weights.sum(-1, keepdims=True)
    weights = weights / where(total.value == 0, 1.0, total)
    rounded = weights.cast(coarse)
    out = rounded @ v

    def vjp(g: Bounded) -> dict[str, Bounded]:
        g = g.move(lambda a: np.swapaxes(a, 1, 2))
        d_weights = g @ _transpose(v)
        mean = (weights * d_weights).sum(-1, keepdims=True)
        if coarse > 1:
            read = (out.cast(coarse) * g).sum(-1, keepdims=True)
            mean = Bounded(mean.value, read.units)
        d_logits = weights * (d_weights - mean)
        found = {"logits": d_logits}
        d_scores = d_logits
        if softcap is not None:
            slope = exact(1.0) - capped * capped
            d_scores = d_logits * cap * slope / cap
            found["logit_softcap"] = _total(d_logits * (capped - relative * slope))
        d_products = (d_scores * factor).cast(coarse)
        return found | {
            "query": _heads_last((d_products @ k).cast(coarse), 1),
            "key": _heads_last(_transpose(d_products) @ q, group),
            "value": _heads_last(_transpose(rounded) @ g, group),
            "scale": _total(d_scores * products),
        }

    return _heads_last(out, 1), vjp


def linear(
    x: Bounded, weight: Bounded
) -> tuple[Bounded, Callable[[Bounded], tuple[Bounded, Bounded]]]:
    """x W, and its gradients."""

    def rows(a: Bounded) -> Bounded:
        return a.move(lambda a: a.reshape(-1, a.shape[-1]))

    def vjp(g: Bounded) -> tuple[Bounded, Bounded]:
        return g @ _transpose(weight), _transpose(rows(x)) @ rows(g)

    return x @ weight, vjp


def add(*terms: Bounded, coarse: float = 1.0) -> Bounded:
    """The sum, in whatever order the terms are added; every partial sum is rounded."""
    value = np.sum([term.value for term in terms], axis=0)
    size = np.sum([np.abs(term.value) for term in terms], axis=0)
    units = np.sum([term.units for term in terms], axis=0)
    return Bounded(value, units + coarse * (len(terms) - 1) * size)


def joined(parts: list[Bounded], axis: int = -1) -> Bounded:
    """One after the other."""
    return Bounded(
        np.concatenate([part.value for part in parts], axis),
        np.concatenate([part.units for part in parts], axis),
    )


def summed_to(x: Bounded, shape: tuple[int, ...]) -> Bounded:
    """The gradient of what was broadcast from `shape`."""
    x = x.sum(tuple(range(x.value.ndim - len(shape))))
    ones = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return x.sum(ones, keepdims=True)


def _total(x: Bounded) -> Bounded:
    return x.move(np.ravel).sum(0)


def _repeat(x: Bounded, group: int) -> Bounded:
    """Key head g serves query heads g * group ... g * group + group - 1 (Ainslie et al., 2023)."""
    return x.move(lambda a: np.repeat(a, group, 2))


def _heads_last(x: Bounded, group: int) -> Bounded:
    """[batch, heads, seq, d] back to [batch, seq, heads, d], summing the query heads that share a key head."""
    x = x.move(lambda a: np.swapaxes(a, 1, 2))
    if group == 1:
        return x
    return x.move(lambda a: a.reshape(*a.shape[:2], -1, group, a.shape[-1])).sum(3)


def _transpose(x: Bounded) -> Bounded:
    return x.move(lambda a: np.swapaxes(a, -1, -2))
