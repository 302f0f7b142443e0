"""Float64 oracles of the four encodings and of attention, written from the papers, with their gradients.

Every function takes and returns `Bounded` numbers, so each also says how far from the truth a rounded computation
may be. Array order is JAX's: [batch, seq, heads, head_dim]. Sines, cosines and powers come from mpmath at 40
digits: at position 131071 a float64 angle is itself off by 1e-11.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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
    "linear",
    "look_up",
    "rope_cos_sin",
    "rotate",
    "sinusoid",
    "sinusoid_times_gradient",
    "summed_to",
    "who_may_attend",
]

DIGITS = 40


@functools.cache
def _cos_sin(position: float, base: float, exponent: mpmath.mpf) -> tuple[float, ...]:
    with mpmath.workdps(DIGITS):
        frequency = mpmath.power(base, -exponent)
        cos, sin = mpmath.cos_sin(position * frequency)
        return float(cos), float(sin), float(frequency)


def _tables(
    positions: np.ndarray, base: float, exponents: list[Any]
) -> tuple[Bounded, Bounded, np.ndarray]:
    """cos and sin of positions * base ** -exponents, [*positions, n], and the frequencies.

    Units: the frequency is rounded once and the product once, two units of the angle; then the function itself. (A
    float64 frequency is off by a few units where -2 i / d is not exact; ORACLE_SHARE leaves room for that.)
    """
    flat = [
        [_cos_sin(float(p), base, exponent) for exponent in exponents]
        for p in positions.ravel()
    ]
    shape = (*positions.shape, len(exponents), 3)
    cos, sin, frequency = np.moveaxis(np.array(flat).reshape(shape), -1, 0)
    angle = np.abs(positions[..., None] * frequency)
    units = np.where(angle == 0, 0, 2 * angle + FUNCTION_UNITS)
    return Bounded(cos, units), Bounded(sin, units), frequency


def rope_cos_sin(
    positions: np.ndarray, rotary_dim: int, base: float
) -> tuple[Bounded, Bounded]:
    """cos and sin of m * base ** (-2 i / d), i = 0 .. d/2 - 1 (Su et al., 2021, eq. 15)."""
    exponents = [mpmath.mpf(2 * i) / rotary_dim for i in range(rotary_dim // 2)]
    cos, sin, _ = _tables(positions, base, exponents)
    return cos, sin


def sinusoid(
    positions: np.ndarray, dim: int, base: float, layout: str, spacing: str
) -> Bounded:
    """Column by column: which function of which frequency stands there (Vaswani et al., 2017, section 3.5)."""
    sin, cos, _ = _sinusoid_parts(positions, dim, base, spacing)
    zero = exact(np.zeros(positions.shape))
    columns = [
        zero if part is None else {"sin": sin, "cos": cos}[part][..., i]
        for part, i in _columns(dim, layout, spacing)
    ]
    return stack(columns, -1)


def sinusoid_times_gradient(
    cotangent: np.ndarray,
    times: np.ndarray,
    dim: int,
    base: float,
    layout: str,
    spacing: str,
) -> Bounded:
    """d/dt of sin(t w) is w cos(t w), of cos(t w) is -w sin(t w)."""
    sin, cos, frequency = _sinusoid_parts(times, dim, base, spacing)
    rounded = Bounded(frequency, frequency)
    terms = []
    for column, (part, i) in enumerate(_columns(dim, layout, spacing)):
        if part is None:
            continue
        slope = cos[..., i] if part == "sin" else -sin[..., i]
        terms.append(exact(cotangent[..., column]) * slope * rounded[..., i])
    return stack(terms, -1).sum(-1)


def _sinusoid_parts(
    positions: np.ndarray, dim: int, base: float, spacing: str
) -> tuple[Bounded, Bounded, np.ndarray]:
    if spacing == "dim":
        exponents = [mpmath.mpf(2 * i) / dim for i in range((dim + 1) // 2)]
    else:
        last = max(dim // 2 - 1, 1)
        exponents = [mpmath.mpf(i) / last for i in range(dim // 2)]
    cos, sin, frequency = _tables(positions, base, exponents)
    return sin, cos, frequency


def _columns(dim: int, layout: str, spacing: str) -> list[tuple[str | None, int]]:
    """What stands in every column: (function, frequency index), or (None, 0) for a zero."""
    sines = (dim + 1) // 2 if spacing == "dim" else dim // 2
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
    """Multiply every pair by [[cos, -sin], [sin, cos]] (Su et al., 2021, eq. 34), and the vector-Jacobian product."""
    width, head_dim = 2 * cos.value.shape[-1], x.value.shape[-1]
    start = 0 if placement == "leading" else head_dim - width
    i = np.arange(width // 2)
    first = start + (i if layout == "half" else 2 * i)
    second = first + (width // 2 if layout == "half" else 1)
    cos, sin = cos[..., None, :], sin[..., None, :]

    def place(a: Bounded, b: Bounded, rest: Bounded) -> Bounded:
        def put(a: np.ndarray, b: np.ndarray, rest: np.ndarray) -> np.ndarray:
            out = rest.copy()
            out[..., first], out[..., second] = a, b
            return out

        return Bounded(
            put(a.value, b.value, rest.value), put(a.units, b.units, rest.units)
        )

    def turn(x: Bounded, sin: Bounded) -> Bounded:
        a, b = x[..., first], x[..., second]
        return place(a * cos - b * sin, b * cos + a * sin, x)

    def vjp(g: Bounded) -> tuple[Bounded, Bounded, Bounded]:
        a, b, ga, gb = x[..., first], x[..., second], g[..., first], g[..., second]
        return (
            turn(g, -sin),
            (ga * a + gb * b).sum(-2),
            (gb * a - ga * b).sum(-2),
        )

    return turn(x, sin), vjp


def look_up(
    table: Bounded, positions: np.ndarray, out_of_range: str, coarse: float = 1.0
) -> tuple[Bounded, Callable[[Bounded], Bounded]]:
    """Rows of the table; a position outside it gives NaN or, if clipped, the nearest row.

    Its gradient adds up in the dtype of the table, `coarse` times as roughly as the arithmetic elsewhere.
    """
    max_len = table.value.shape[0]
    nearest = np.clip(positions, 0, max_len - 1)
    inside = (positions == nearest) | (out_of_range == "clip")

    def vjp(g: Bounded) -> Bounded:
        received = where(inside[..., None], g, 0.0)
        hits = (nearest[..., None] == np.arange(max_len)).reshape(-1, max_len)
        flat = received.move(lambda a: a.reshape(-1, a.shape[-1]))
        total = hits.T @ flat.value
        # Each row is a sum of as many terms as read it.
        adds = np.maximum(hits.sum(0) - 1, 0)[:, None]
        size = hits.T @ abs(flat.value)
        return Bounded(total, hits.T @ flat.units + coarse * adds * size)

    return where(inside[..., None], table[nearest], np.nan), vjp


def alibi_slopes(num_heads: int) -> np.ndarray:
    """The start and ratio 2 ** (-8 / n) for a power of two, else every other slope of twice as many, appended."""

    def ladder(n: int) -> list[float]:
        return [2.0 ** (-8.0 * k / n) for k in range(1, n + 1)]

    power = 1
    while 2 * power <= num_heads:
        power *= 2
    return np.array(ladder(power) + ladder(2 * power)[::2][: num_heads - power])


def alibi_bias(
    query_positions: np.ndarray, key_positions: np.ndarray, slopes: Bounded, kind: str
) -> tuple[Bounded, Callable[[Bounded], Bounded]]:
    """Slope times distance, [*batch, heads, q, k] (Press et al., 2022, section 3)."""
    i = query_positions[..., None, :, None].astype(np.float64)
    j = key_positions[..., None, None, :].astype(np.float64)
    distance = {"symmetric": -abs(i - j), "signed": j - i, "key": j + 0 * i}[kind]

    def vjp(g: Bounded) -> Bounded:
        product = (g * distance).move(lambda a: np.moveaxis(a, -3, 0))
        return product.move(lambda a: a.reshape(a.shape[0], -1)).sum(-1)

    return slopes.move(lambda a: a[:, None, None]) * distance, vjp


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
) -> tuple[Bounded, Callable[[Bounded], dict[str, Bounded]]]:
    """softmax(q k^T / sqrt(d) + bias) v over the allowed keys (Vaswani et al., 2017, eq. 1), else zeros."""
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

    def vjp(g: Bounded) -> dict[str, Bounded]:
        g = g.move(lambda a: np.swapaxes(a, 1, 2))
        d_weights = g @ _transpose(v)
        mean = (weights * d_weights).sum(-1, keepdims=True)
        d_logits = weights * (d_weights - mean)
        found = {"logits": d_logits}
        d_scores = d_logits
        if softcap is not None:
            slope = exact(1.0) - capped * capped
            d_scores = d_logits * cap * slope / cap
            found["logit_softcap"] = _total(d_logits * (capped - relative * slope))
        return found | {
            "query": _heads_last(d_scores * factor @ k, 1),
            "key": _heads_last(_transpose(d_scores * factor) @ q, group),
            "value": _heads_last(_transpose(weights) @ g, group),
            "scale": _total(d_scores * products),
        }

    return _heads_last(weights @ v, 1), vjp


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
