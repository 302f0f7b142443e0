"""The pairs of this project: every scheme in JAX, in PyTorch, and as an oracle.

Sizes differ on every axis, heads are no power of two and the rotation is partial, so that no exchanged axis, no
forgotten argument and no special case can hide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from .instrument import Pair, oracles
from .instrument.bounded import Bounded, exact, stack, where
from .instrument.inputs import PROFILES, positions

__all__ = ["IMPLEMENTED", "Call", "attention", "pairs"]

BATCH, SEQ, HEADS, KV_HEADS = 2, 13, 6, 3
ROWS = 4  # of a second batch axis
HEAD_DIM, ROTARY_DIM, VALUE_DIM, MODEL_DIM = 10, 8, 5, 7
MAX_LEN = 11
BASE = 500_000.0
LAYOUTS = ("half", "interleaved", "interleaved_to_half")
PLACEMENTS = ("leading", "trailing")


def _heads_first(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-3, -2)


def _table_dtype(x: Any, float64: Any, float32: Any) -> Any:
    """Tables are float64 in a float64 run and float32 in every other."""
    return float64 if x.dtype == float64 else float32


# Sinusoidal ------------------------------------------------------------------------------------------------------


def _sinusoidal(pj: Any, pt: Any, layout: str, spacing: str, dim: int) -> Pair:
    static = {"layout": layout, "spacing": spacing, "base": BASE}

    def in_jax(times: Any) -> Any:
        dtype = _table_dtype(times, jnp.float64, jnp.float32)
        out = pj.sinusoidal_position_encoding(times, dim, dtype=dtype, **static)
        return {"out": out}

    def in_torch(times: Any) -> Any:
        dtype = _table_dtype(times, torch.float64, torch.float32)
        out = pt.sinusoidal_position_encoding(times, dim, dtype=dtype, **static)
        return {"out": out}

    def oracle(times: Bounded) -> Any:
        t = times.value
        out = oracles.sinusoid(t, dim, **static)

        def vjp(g: Any) -> Any:
            return {
                "times": oracles.sinusoid_times_gradient(g["out"], t, dim, **static)
            }

        return {"out": out}, vjp

    def draw(rng: np.random.Generator, profile: str) -> Any:
        """Times are positions and, for the gradient to be that of a real variable, some fractions."""
        where = positions(rng, profile, BATCH, SEQ)["positions"].astype(np.float64)
        where[:, ::3] += rng.integers(0, 8, where[:, ::3].shape) / 8
        return {"times": where}

    return Pair(
        f"sinusoidal.{layout}.{spacing}.{dim}",
        in_jax,
        in_torch,
        oracle,
        draw,
        wrt=("times",),
        float32=("times", "out"),
    )


# Two coordinates, the second one's block first, an odd block, and a base for each.
GRID = {"axes": (1, 0), "base": (BASE, 10_000.0), "angle_scale": 2.5}
GRID_DIM = 14


def _sinusoidal_grid(pj: Any, pt: Any, layout: str, spacing: str) -> Pair:
    """Coordinates of two axes, and a learnt amplitude."""
    static = {**GRID, "layout": layout, "spacing": spacing}
    width = GRID_DIM // 2
    across = layout == "half_across_axes"
    within = "half" if across else layout
    # Where the columns of the two blocks stand in the whole.
    order = np.arange(GRID_DIM)
    if across:
        half = width // 2
        # The sines of both blocks, their cosines, and the zeros that fill them up.
        rank = np.tile(np.repeat((0, 1, 2), (half, half, width - 2 * half)), 2)
        order = np.argsort(rank, kind="stable")

    def side(package: Any, float64: Any, float32: Any) -> Any:
        def encode(times: Any, amplitude: Any) -> Any:
            dtype = _table_dtype(times, float64, float32)
            out = package.sinusoidal_position_encoding(
                times, GRID_DIM, amplitude=amplitude, dtype=dtype, **static
            )
            return {"out": out}

        return encode

    def oracle(times: Bounded, amplitude: Bounded) -> Any:
        t = times.value
        given = [
            (t[..., axis], width, GRID["base"][axis], within, spacing, 2.5)
            for axis in GRID["axes"]
        ]
        plain = oracles.joined([oracles.sinusoid(*block) for block in given])[
            ..., order
        ]

        def vjp(g: Any) -> Any:
            received = (g["out"] * amplitude)[..., np.argsort(order)]
            first, second = received[..., :width], received[..., width:]
            parts = [
                oracles.sinusoid_times_gradient(*both)
                for both in zip((first, second), *zip(*given, strict=True), strict=True)
            ]
            return {
                "times": stack([parts[1], parts[0]], -1),
                "amplitude": (g["out"] * plain).sum((0, 1, 2)),
            }

        return {"out": plain * amplitude}, vjp

    def draw(rng: np.random.Generator, profile: str) -> Any:
        return {
            "times": rng.uniform(-50, 50, (BATCH, SEQ, 2)),
            "amplitude": rng.uniform(0.5, 2, ()),
        }

    return Pair(
        f"sinusoidal_grid.{layout}.{spacing}",
        side(pj, jnp.float64, jnp.float32),
        side(pt, torch.float64, torch.float32),
        oracle,
        draw,
        wrt=("times", "amplitude"),
        float32=("times", "amplitude", "out"),
        profiles=("dense",),  # coordinates have none
    )


def _sinusoidal_padding(pj: Any, pt: Any) -> Pair:
    """fairseq's, whose padding is position 0 here, scaled as x-transformers' is."""
    static = {"layout": "half", "spacing": "endpoint", "base": BASE}

    def side(package: Any, float64: Any, float32: Any) -> Any:
        def encode(times: Any) -> Any:
            dtype = _table_dtype(times, float64, float32)
            out = package.sinusoidal_position_encoding(
                times,
                MODEL_DIM,
                padding_idx=0,
                amplitude="rsqrt_dim",
                dtype=dtype,
                **static,
            )
            return {"out": out}

        return encode

    def oracle(times: Bounded) -> Any:
        padding = (times.value == 0)[..., None]
        amplitude = Bounded(np.array(MODEL_DIM**-0.5), np.array(MODEL_DIM**-0.5))
        out = oracles.sinusoid(times.value, MODEL_DIM, **static) * amplitude

        def vjp(g: Any) -> Any:
            received = where(padding, 0.0, g["out"] * amplitude)
            gradient = oracles.sinusoid_times_gradient
            return {"times": gradient(received, times.value, MODEL_DIM, **static)}

        return {"out": where(padding, 0.0, out)}, vjp

    def draw(rng: np.random.Generator, profile: str) -> Any:
        where_ = positions(rng, profile, BATCH, SEQ)["positions"].astype(np.float64)
        where_[:, 5] = 0
        return {"times": where_}

    return Pair(
        "sinusoidal_padding",
        side(pj, jnp.float64, jnp.float32),
        side(pt, torch.float64, torch.float32),
        oracle,
        draw,
        wrt=("times",),
        float32=("times", "out"),
    )


def _fourier(pj: Any, pt: Any) -> Pair:
    """Two coordinates with frequencies that are learnt."""

    def draw(rng: np.random.Generator, profile: str) -> Any:
        return {
            "coordinates": rng.uniform(-1, 1, (BATCH, SEQ, 2)),
            # Angles of about a turn: of larger ones, ten numbers to a slice, luck decides which side is nearer.
            "frequencies": rng.normal(size=(2, 5)) / 4,
        }

    def side(package: Any) -> Any:
        def encode(coordinates: Any, frequencies: Any) -> Any:
            out = package.fourier_position_encoding(coordinates, frequencies)
            return {"out": out}

        return encode

    def oracle(coordinates: Bounded, frequencies: Bounded) -> Any:
        out, vjp = oracles.fourier(coordinates.value, frequencies.value)
        names = ("coordinates", "frequencies")
        return {"out": out}, lambda g: dict(zip(names, vjp(g["out"]), strict=True))

    return Pair(
        "sinusoidal_fourier",
        side(pj),
        side(pt),
        oracle,
        draw,
        wrt=("coordinates", "frequencies"),
        float32=("coordinates", "frequencies", "out"),
        profiles=("dense",),  # coordinates have none
    )


# Learned ---------------------------------------------------------------------------------------------------------


def _learned(
    pj: Any, pt: Any, out_of_range: str, padding_idx: int | None = None
) -> Pair:
    def draw(rng: np.random.Generator, profile: str) -> Any:
        """Some positions of every profile lie outside the table, unless outside is an error."""
        where = positions(rng, profile, BATCH, SEQ)["positions"]
        if out_of_range == "error":
            where %= MAX_LEN
        else:
            where[:, 1::4] %= MAX_LEN
            where[0, 2] = -1
        return {"table": rng.normal(size=(MAX_LEN, MODEL_DIM)), "positions": where}

    def side(package: Any) -> Any:
        def look_up(table: Any, positions: Any) -> Any:
            return {
                "out": package.learned_position_encoding(
                    table,
                    positions,
                    padding_idx=padding_idx,
                    out_of_range=out_of_range,
                )
            }

        return look_up

    def oracle(table: Bounded, positions: np.ndarray, coarse: float) -> Any:
        out, vjp = oracles.look_up(table, positions, out_of_range, coarse, padding_idx)
        return {"out": out}, lambda g: {"table": vjp(g["out"])}

    return Pair(
        f"learned.{out_of_range}{'' if padding_idx is None else '.padding'}",
        side(pj),
        side(pt),
        oracle,
        draw,
        wrt=("table",),
        casts=True,
    )


def _learned_axial(pj: Any, pt: Any, combine: str) -> Pair:
    """A table for the row and one for the column, which have as many columns only where they are added."""
    columns = MODEL_DIM if combine == "sum" else 3

    def draw(rng: np.random.Generator, profile: str) -> Any:
        return {
            "rows": rng.normal(size=(MAX_LEN, MODEL_DIM)),
            "columns": rng.normal(size=(5, columns)),
            "positions": np.stack(
                [rng.integers(0, n, (BATCH, SEQ)) for n in (MAX_LEN, 5)], -1
            ),
        }

    def side(package: Any) -> Any:
        def look_up(rows: Any, columns: Any, positions: Any) -> Any:
            out = package.axial_position_encoding(
                (rows, columns), positions, combine=combine
            )
            return {"out": out}

        return look_up

    def oracle(
        rows: Bounded, columns: Bounded, positions: np.ndarray, coarse: float
    ) -> Any:
        found = [
            oracles.look_up(table, positions[..., axis], "error", coarse)
            for axis, table in enumerate((rows, columns))
        ]
        parts = [part for part, _ in found]
        out = oracles.joined(parts)
        if combine == "sum":
            out = (parts[0] + parts[1]).cast(coarse)

        def vjp(g: Any) -> Any:
            received = [g["out"]] * 2
            if combine == "concat":
                received = [g["out"][..., :MODEL_DIM], g["out"][..., MODEL_DIM:]]
            return {
                name: back(part)
                for name, part, (_, back) in zip(
                    ("rows", "columns"), received, found, strict=True
                )
            }

        return {"out": out}, vjp

    return Pair(
        f"learned_axial.{combine}",
        side(pj),
        side(pt),
        oracle,
        draw,
        wrt=("rows", "columns"),
        casts=True,
        profiles=("dense",),  # coordinates have none
    )


# Old and new grid, method and whether it is antialiased.
RESIZED = {
    "cubic": ((3, 5), (5, 2), "cubic", False),
    "cubic_antialiased": ((3, 5), (5, 2), "cubic", True),
    "keys_cubic": ((3, 5), (5, 2), "keys_cubic", False),
    "linear": ((9,), (4,), "linear", False),
}


def _learned_resized(pj: Any, pt: Any, name: str) -> Pair:
    """A table with two rows of prefix."""
    old, new, method, antialias = RESIZED[name]
    options = {"old_grid": old, "method": method, "antialias": antialias}

    def draw(rng: np.random.Generator, profile: str) -> Any:
        return {"table": rng.normal(size=(2 + int(np.prod(old)), MODEL_DIM))}

    def side(package: Any) -> Any:
        def resize(table: Any) -> Any:
            out = package.resize_position_table(table, new, num_prefix=2, **options)
            return {"out": out}

        return resize

    matrix = oracles.resize(old, new, method, antialias)

    def oracle(table: Bounded, coarse: float) -> Any:
        out = (matrix @ table[2:]).cast(coarse)

        def vjp(g: Any) -> Any:
            back = matrix.move(np.transpose) @ g["out"][2:]
            return {"table": oracles.joined([g["out"][:2], back.cast(coarse)], 0)}

        return {"out": oracles.joined([table[:2], out], 0)}, vjp

    return Pair(
        f"learned_resized.{name}",
        side(pj),
        side(pt),
        oracle,
        draw,
        wrt=("table",),
        casts=True,
        profiles=("dense",),  # no positions, so all profiles are the same run
    )


# RoPE ------------------------------------------------------------------------------------------------------------


def _rope_apply(pj: Any, pt: Any, layout: str, placement: str, inverse: bool) -> Pair:
    """The rotation alone, on random tables: real ones are symmetric enough to hide a wrong gradient."""
    static = {"layout": layout, "placement": placement}

    def draw(rng: np.random.Generator, profile: str) -> Any:
        tables = (BATCH, ROWS, SEQ, ROTARY_DIM // 2)
        return {
            "x": rng.normal(size=(BATCH, ROWS, SEQ, HEADS, HEAD_DIM)),
            "cos": rng.normal(size=tables),
            "sin": rng.normal(size=tables),
        }

    def in_jax(x: Any, cos: Any, sin: Any) -> Any:
        return {"out": pj.apply_rope(x, cos, sin, inverse=inverse, **static)}

    def in_torch(x: Any, cos: Any, sin: Any) -> Any:
        x = _heads_first(x)
        out = pt.apply_rope(x, cos, sin, inverse=inverse, **static)
        return {"out": _heads_first(out)}

    back = "half_to_interleaved" if layout == "interleaved_to_half" else layout

    def oracle(x: Bounded, cos: Bounded, sin: Bounded) -> Any:
        if inverse:
            out, vjp = oracles.rotate(x, cos, -sin, back, placement)
        else:
            out, vjp = oracles.rotate(x, cos, sin, layout, placement)

        def gradients(g: Any) -> Any:
            d_x, d_cos, d_sin = vjp(g["out"])
            return {"x": d_x, "cos": d_cos, "sin": -d_sin if inverse else d_sin}

        return {"out": out}, gradients

    return Pair(
        f"rope_apply.{layout}.{placement}{'.inverse' if inverse else ''}",
        in_jax,
        in_torch,
        oracle,
        draw,
        wrt=("x", "cos", "sin"),
        float32=("cos", "sin"),
        profiles=("dense",),  # no positions, so all profiles are the same run
    )


def _rope(
    pj: Any, pt: Any, layout: str, placement: str, *, learnt_factor: bool = False
) -> Pair:
    """From positions, half of them negative, to tables with an attention factor and rotated channels."""
    static = {"layout": layout, "placement": placement}

    def draw(rng: np.random.Generator, profile: str) -> Any:
        where = positions(rng, profile, BATCH, SEQ)["positions"]
        where[0] *= -1
        x = rng.normal(size=(BATCH, SEQ, HEADS, HEAD_DIM))
        return {"x": x, "positions": where, "factor": np.array(1.375)}

    def in_jax(x: Any, positions: Any, factor: Any) -> Any:
        cos, sin = _jax_tables(pj, x, positions, factor)
        out = pj.apply_rope(x, cos, sin, **static)
        return {"cos": cos, "sin": sin, "out": out}

    def in_torch(x: Any, positions: Any, factor: Any) -> Any:
        cos, sin = _torch_tables(pt, x, positions, factor)
        out = pt.apply_rope(_heads_first(x), cos, sin, **static)
        return {"cos": cos, "sin": sin, "out": _heads_first(out)}

    def oracle(x: Bounded, positions: np.ndarray, factor: Bounded) -> Any:
        unscaled = oracles.rope_cos_sin(positions, ROTARY_DIM, BASE)
        cos, sin = (table * factor for table in unscaled)
        out, vjp = oracles.rotate(x, cos, sin, **static)

        def gradients(g: Any) -> Any:
            d_x, *through_x = vjp(g["out"])
            parts = zip(through_x, (g["cos"], g["sin"]), unscaled, strict=True)
            terms = [((a + b) * table).sum((0, 1, 2)) for a, b, table in parts]
            return {"x": d_x, "factor": oracles.add(*terms)}

        return {"cos": cos, "sin": sin, "out": out}, gradients

    return Pair(
        f"rope.{layout}.{placement}{'.learnt_factor' if learnt_factor else ''}",
        in_jax,
        in_torch,
        oracle,
        draw,
        wrt=("x", "factor") if learnt_factor else ("x",),
        float32=("cos", "sin", "factor"),
        # A gradient summed over all angles drowns in their rounding where they are large.
        profiles=("dense", "packed", "left_pad") if learnt_factor else tuple(PROFILES),
    )


# Rules with numbers for which each does all that it can to the 4 pairs, the same for the oracle, and the magnitude.
YARN = {"factor": 4.0, "original_max_position_embeddings": 131_072}
STRETCH = 0.1 * np.log(4.0)
SCALED: dict[str, tuple[str, dict[str, Any], str, dict[str, Any], float]] = {
    "linear": ("LinearScaling", {"factor": 2.5}, "linear", {"factor": 2.5}, 1.0),
    "ntk": ("NtkScaling", {"alpha": 3.75}, "ntk", {"alpha": 3.75}, 1.0),
    "llama3": (
        "Llama3Scaling",
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "llama3",
        {"factor": 8.0, "trained": 8192, "turns": (4.0, 1.0)},
        1.0,
    ),
    "proportional": (
        "ProportionalScaling",
        {"partial_rotary_factor": 0.75, "factor": 2.0},
        "proportional",
        {"part": 0.75, "factor": 2.0},
        1.0,
    ),
    "yarn": (
        "YarnScaling",
        YARN,
        "yarn",
        {"factor": 4.0, "trained": 131_072},
        1 + STRETCH,
    ),
    "yarn_weights": (
        "YarnScaling",
        YARN | {"mscale": 0.5, "mscale_all_dim": 1.25},
        "yarn",
        {"factor": 4.0, "trained": 131_072},
        (1 + 0.5 * STRETCH) / (1 + 1.25 * STRETCH),
    ),
    "yarn_untruncated": (
        "YarnScaling",
        # A long ramp, so that in float64 the roundings of its ends, which are logarithms, move no pair by much.
        YARN
        | {"truncate": False, "attention_factor": 0.75}
        | {"beta_fast": 1000.0, "beta_slow": 0.001},
        "yarn",
        {
            "factor": 4.0,
            "trained": 131_072,
            "turns": (1000.0, 0.001),
            "truncate": False,
        },
        0.75,
    ),
}


def _scaled(pj: Any, pt: Any) -> Pair:
    """The tables of every rule that does not depend on the length, and channels rotated by the last of them."""

    def draw(rng: np.random.Generator, profile: str) -> Any:
        x = rng.normal(size=(BATCH, SEQ, HEADS, HEAD_DIM))
        return {"x": x, **_positions(rng, profile)}

    def tables(package: Any, positions: Any, dtype: Any) -> Any:
        found = {}
        for name, (rule, fields, *_) in SCALED.items():
            config = _config(package, scaling=getattr(package, rule)(**fields))
            found[f"cos_{name}"], found[f"sin_{name}"] = package.rope_cos_sin(
                positions,
                config.inv_freq(dtype=dtype),
                attention_factor=config.attention_factor(),
                dtype=dtype,
            )
        return found

    in_jax, in_torch = _rotated(pj, pt, tables)

    def oracle(x: Bounded, positions: np.ndarray) -> Any:
        found = {}
        for name, (_, _, rule, numbers, factor) in SCALED.items():
            frequencies = oracles.scaled(rule, ROTARY_DIM, BASE, **numbers)
            pair = oracles.cos_sin(positions, frequencies)
            if factor != 1:
                pair = [table * Bounded(*np.full(2, factor)) for table in pair]
            found[f"cos_{name}"], found[f"sin_{name}"] = pair
        return _with_rotation(x, found, *pair)

    return Pair(
        "rope_scaled.rules",
        in_jax,
        in_torch,
        oracle,
        draw,
        wrt=("x",),
        float32=tuple(f"{table}_{name}" for name in SCALED for table in ("cos", "sin")),
        profiles=("sparse", "dense"),
    )


# The trained length, and lengths below, at, just above and far above it.
TRAINED = 64
LENGTHS = (50, TRAINED, TRAINED + 1, 100 * TRAINED)
DIVISORS = (1.0, 1.25, 1.75, 2.5), (1.5, 4.0, 9.0, 20.0)
MAGNITUDES = 1.125, 1.375


def _scaled_by_length(pj: Any, pt: Any) -> Pair:
    """The rules that depend on the length, at lengths that are traced: tables [lengths, batch, seq, n]."""
    short, long = DIVISORS

    def draw(rng: np.random.Generator, profile: str) -> Any:
        x = rng.normal(size=(BATCH, SEQ, HEADS, HEAD_DIM))
        lengths = np.array(LENGTHS, np.int32)
        return {"x": x, **_positions(rng, profile), "lengths": lengths}

    def tables(stack: Any) -> Any:
        def of_lengths(package: Any, positions: Any, dtype: Any, lengths: Any) -> Any:
            rules = {
                "dynamic": package.DynamicNtkScaling(3.0, TRAINED),
                "longrope": package.LongRopeScaling(
                    short,
                    long,
                    TRAINED,
                    100.0,
                    short_mscale=MAGNITUDES[0],
                    long_mscale=MAGNITUDES[1],
                ),
            }
            found = {}
            for name, rule in rules.items():
                config = _config(package, scaling=rule)
                each = [
                    package.rope_cos_sin(
                        positions,
                        config.inv_freq(length, dtype=dtype),
                        attention_factor=config.attention_factor(length),
                        dtype=dtype,
                    )
                    for length in lengths
                ]
                for table, parts in zip(
                    ("cos", "sin"), zip(*each, strict=True), strict=True
                ):
                    found[f"{table}_{name}"] = stack(parts)
            return found

        return of_lengths

    in_jax, _ = _rotated(pj, pt, tables(jnp.stack), last=-1)
    _, in_torch = _rotated(pj, pt, tables(torch.stack), last=-1)

    def oracle(x: Bounded, positions: np.ndarray, lengths: np.ndarray) -> Any:
        made: dict[str, list[Any]] = {"dynamic": [], "longrope": []}
        for length in lengths.tolist():
            numbers = {"factor": 3.0, "trained": TRAINED, "length": length}
            frequencies = oracles.scaled("dynamic", ROTARY_DIM, BASE, **numbers)
            roundings = oracles.dynamic_roundings(ROTARY_DIM, **numbers)
            made["dynamic"].append(
                oracles.cos_sin(positions, frequencies, None, roundings)
            )
            numbers = {"divisors": DIVISORS, "trained": TRAINED, "length": length}
            frequencies = oracles.scaled("longrope", ROTARY_DIM, BASE, **numbers)
            factor = MAGNITUDES[length > TRAINED]
            pair = oracles.cos_sin(positions, frequencies)
            made["longrope"].append(tuple(table * factor for table in pair))
        found = {
            f"{table}_{name}": stack(list(parts), 0)
            for name, pairs in made.items()
            for table, parts in zip(
                ("cos", "sin"), zip(*pairs, strict=True), strict=True
            )
        }
        return _with_rotation(x, found, *made["longrope"][-1])

    return Pair(
        "rope_scaled.by_length",
        in_jax,
        in_torch,
        oracle,
        draw,
        wrt=("x",),
        float32=("cos_dynamic", "sin_dynamic", "cos_longrope", "sin_longrope"),
        profiles=("sparse", "dense"),
    )


# Sections of time, height and width (of height, width and time for "ernie"), and the axis of each of the 6 pairs.
MROPE = {
    "chunked": ((3, 2, 1), (0, 0, 0, 1, 1, 2)),
    "interleaved": ((3, 2, 1), (0, 1, 2, 0, 1, 0)),
    "ernie": ((2, 2, 2), (1, 2, 1, 2, 0, 0)),
}
AXES_DIM = 12


def _mrope(pj: Any, pt: Any) -> Pair:
    """Positions of three axes, each with its own, in every order of the pairs."""

    def draw(rng: np.random.Generator, profile: str) -> Any:
        axes = [_positions(rng, profile)["positions"] for _ in range(3)]
        x = rng.normal(size=(BATCH, SEQ, HEADS, AXES_DIM + 2))
        return {"x": x, "positions": np.stack(axes, -1)}

    def tables(package: Any, positions: Any, dtype: Any) -> Any:
        found = {}
        for order, (sections, _) in MROPE.items():
            axes = package.mrope_axes(sections, order=order)
            config = package.RopeConfig(
                AXES_DIM + 2, base=BASE, rotary_dim=AXES_DIM, axes=axes
            )
            found[f"cos_{order}"], found[f"sin_{order}"] = package.rope_cos_sin(
                positions, config.inv_freq(dtype=dtype), axes=config.axes, dtype=dtype
            )
        return found

    in_jax, in_torch = _rotated(pj, pt, tables)

    def oracle(x: Bounded, positions: np.ndarray) -> Any:
        found = {}
        frequencies = oracles.progression(AXES_DIM, BASE)
        for order, (_, axes) in MROPE.items():
            pair = oracles.cos_sin(positions, frequencies, axes)
            found[f"cos_{order}"], found[f"sin_{order}"] = pair
        return _with_rotation(x, found, *pair)

    return Pair(
        "rope_axes.mrope",
        in_jax,
        in_torch,
        oracle,
        draw,
        wrt=("x",),
        float32=tuple(
            f"{table}_{order}" for order in MROPE for table in ("cos", "sin")
        ),
        profiles=("sparse", "dense"),
    )


# The axis of each of the 6 pairs, and its number in which progression: (pairs of the progression, number).
AXIAL = {
    "per_axis": (
        (0, 1, 0, 0, 1, 0),
        ((4, 0), (2, 0), (4, 1), (4, 2), (2, 1), (4, 3)),
    ),
    "alternating": (
        (0, 1, 1, 0, 1, 0),
        ((6, 0), (6, 1), (6, 3), (6, 2), (6, 5), (6, 4)),
    ),
}


def _axial(pj: Any, pt: Any) -> Pair:
    """Real coordinates of two axes, and their gradient."""

    def draw(rng: np.random.Generator, profile: str) -> Any:
        return {
            "x": rng.normal(size=(BATCH, SEQ, HEADS, AXES_DIM + 2)),
            "positions": rng.uniform(-30, 30, (BATCH, SEQ, 2)),
        }

    def tables(package: Any, positions: Any, dtype: Any) -> Any:
        found = {}
        for progression, (axes, _) in AXIAL.items():
            config = package.RopeConfig(
                AXES_DIM + 2,
                base=BASE,
                rotary_dim=AXES_DIM,
                axes=axes,
                progression=progression,
            )
            pair = package.rope_cos_sin(
                positions, config.inv_freq(dtype=dtype), axes=axes, dtype=dtype
            )
            found[f"cos_{progression}"], found[f"sin_{progression}"] = pair
        return found

    in_jax, in_torch = _rotated(pj, pt, tables)

    def oracle(x: Bounded, positions: Bounded) -> Any:
        found, made = {}, {}
        for name, (axes, numbers) in AXIAL.items():
            frequencies = [oracles.progression(2 * n, BASE)[i] for n, i in numbers]
            pair = oracles.cos_sin(positions.value, frequencies, axes)
            found[f"cos_{name}"], found[f"sin_{name}"] = pair
            made[name] = pair, frequencies, axes
        outputs, rotation_vjp = _with_rotation(x, found, *pair)

        def gradients(g: Any) -> Any:
            through_x = rotation_vjp(g)
            parts = []
            for name, given in made.items():
                d_cos, d_sin = g[f"cos_{name}"], g[f"sin_{name}"]
                if name == "alternating":
                    d_cos, d_sin = d_cos + through_x["cos"], d_sin + through_x["sin"]
                parts.append(oracles.coordinates_gradient(d_cos, d_sin, *given))
            return {"x": through_x["x"], "positions": oracles.add(*parts)}

        return outputs, gradients

    return Pair(
        "rope_axes.axial",
        in_jax,
        in_torch,
        oracle,
        draw,
        wrt=("x", "positions"),
        float32=(
            "positions",
            *(f"{table}_{name}" for name in AXIAL for table in ("cos", "sin")),
        ),
        profiles=("dense",),  # coordinates have none
    )


def _positions(rng: np.random.Generator, profile: str) -> dict[str, np.ndarray]:
    return {"positions": positions(rng, profile, BATCH, SEQ)["positions"]}


def _config(package: Any, **options: Any) -> Any:
    return package.RopeConfig(HEAD_DIM, base=BASE, rotary_dim=ROTARY_DIM, **options)


def _rotated(pj: Any, pt: Any, tables: Any, last: Any = ...) -> tuple[Any, Any]:
    """Tables and, as "out", x rotated by the last two of them (at the last length)."""

    def in_jax(x: Any, **rest: Any) -> Any:
        dtype = _table_dtype(x, jnp.float64, jnp.float32)
        found = tables(pj, dtype=dtype, **rest)
        cos, sin = list(found.values())[-2:]
        return found | {"out": pj.apply_rope(x, cos[last], sin[last])}

    def in_torch(x: Any, **rest: Any) -> Any:
        dtype = _table_dtype(x, torch.float64, torch.float32)
        found = tables(pt, dtype=dtype, **rest)
        cos, sin = list(found.values())[-2:]
        out = pt.apply_rope(_heads_first(x), cos[last], sin[last])
        return found | {"out": _heads_first(out)}

    return in_jax, in_torch


def _with_rotation(x: Bounded, tables: Any, cos: Bounded, sin: Bounded) -> Any:
    """The oracle's side of `_rotated`."""
    out, vjp = oracles.rotate(x, cos, sin, "half", "leading")

    def gradients(g: Any) -> Any:
        d_x, d_cos, d_sin = vjp(g["out"])
        return {"x": d_x, "cos": d_cos, "sin": d_sin}

    return tables | {"out": out}, gradients


def _pairwise(pj: Any, pt: Any) -> Pair:
    """The pair-wise spelling: both rotated, in the layout asked for."""

    def draw(rng: np.random.Generator, profile: str) -> Any:
        tables = (BATCH, SEQ, HEAD_DIM // 2)
        return {
            "q": rng.normal(size=(BATCH, SEQ, HEADS, HEAD_DIM)),
            "k": rng.normal(size=(BATCH, SEQ, KV_HEADS, HEAD_DIM)),
            "cos": rng.normal(size=tables),
            "sin": rng.normal(size=tables),
        }

    def in_jax(q: Any, k: Any, cos: Any, sin: Any) -> Any:
        q, k = pj.apply_rotary_pos_emb(q, k, cos, sin, layout="interleaved")
        return {"q_out": q, "k_out": k}

    def in_torch(q: Any, k: Any, cos: Any, sin: Any) -> Any:
        q, k = _heads_first(q), _heads_first(k)
        q, k = pt.apply_rotary_pos_emb(q, k, cos, sin, layout="interleaved")
        return {"q_out": _heads_first(q), "k_out": _heads_first(k)}

    def oracle(q: Bounded, k: Bounded, cos: Bounded, sin: Bounded) -> Any:
        q_out, q_vjp = oracles.rotate(q, cos, sin, "interleaved", "leading")
        k_out, k_vjp = oracles.rotate(k, cos, sin, "interleaved", "leading")

        def gradients(g: Any) -> Any:
            return {"q": q_vjp(g["q_out"])[0], "k": k_vjp(g["k_out"])[0]}

        return {"q_out": q_out, "k_out": k_out}, gradients

    return Pair(
        "rope_apply.pairwise",
        in_jax,
        in_torch,
        oracle,
        draw,
        wrt=("q", "k"),
        float32=("cos", "sin"),
        profiles=("dense",),  # as `_rope_apply`
    )


def _jax_tables(pj: Any, x: Any, positions: Any, factor: Any = 1.0) -> Any:
    dtype = _table_dtype(x, jnp.float64, jnp.float32)
    inv_freq = _inv_freq(pj, dtype)
    return pj.rope_cos_sin(positions, inv_freq, attention_factor=factor, dtype=dtype)


def _torch_tables(pt: Any, x: Any, positions: Any, factor: Any = 1.0) -> Any:
    dtype = _table_dtype(x, torch.float64, torch.float32)
    inv_freq = _inv_freq(pt, dtype)
    return pt.rope_cos_sin(positions, inv_freq, attention_factor=factor, dtype=dtype)


def _inv_freq(package: Any, dtype: Any) -> np.ndarray:
    return _config(package).inv_freq(dtype=dtype)


# ALiBi -----------------------------------------------------------------------------------------------------------


def _alibi(pj: Any, pt: Any, kind: str) -> Pair:
    """More keys than queries, as when decoding."""

    def draw(rng: np.random.Generator, profile: str) -> Any:
        keys = positions(rng, profile, BATCH, SEQ)["positions"]
        if kind in ("manhattan", "euclidean"):
            keys = np.stack(
                (keys, positions(rng, profile, BATCH, SEQ)["positions"]), -1
            )
        return {
            "query_positions": keys[:, -4:],
            "key_positions": keys,
            "slopes": oracles.alibi_slopes(HEADS) * rng.uniform(0.5, 2, HEADS),
        }

    def side(package: Any) -> Any:
        def bias(query_positions: Any, key_positions: Any, slopes: Any) -> Any:
            own = {"bias_max": 12.0, "num_biased": 5}
            return {
                "slopes": package.alibi_slopes(HEADS, dtype=slopes.dtype),
                "own_slopes": package.alibi_slopes(HEADS, dtype=slopes.dtype, **own),
                "out": package.alibi_bias(
                    query_positions, key_positions, slopes, kind=kind
                ),
            }

        return bias

    def oracle(
        query_positions: np.ndarray, key_positions: np.ndarray, slopes: Bounded
    ) -> Any:
        out, vjp = oracles.alibi_bias(query_positions, key_positions, slopes, kind)
        outputs = {"out": out}
        own = np.append(oracles.alibi_slopes(5, 12.0), np.zeros(HEADS - 5))
        for name, rule in (
            ("slopes", oracles.alibi_slopes(HEADS)),
            ("own_slopes", own),
        ):
            # A power of two is exact, any other slope rounded once from a float64 power.
            units = np.where(np.frexp(rule)[0] == 0.5, 0.0, 2 * rule)
            outputs[name] = Bounded(rule, units)
        return outputs, lambda g: {"slopes": vjp(g["out"])}

    return Pair(
        f"alibi.{kind}",
        side(pj),
        side(pt),
        oracle,
        draw,
        wrt=("slopes",),
        float32=("slopes", "own_slopes", "out"),
    )


# Attention -------------------------------------------------------------------------------------------------------

# Scattered tokens see only themselves through a window, and one key has no softmax to differentiate.
_TOGETHER = tuple(profile for profile in PROFILES if profile != "sparse")
# Far out, m j is so large that the gradient of m, a sum of such terms that cancel, drowns in rounding.
_NEAR = ("dense", "packed", "left_pad")


@dataclass(frozen=True)
class Call:
    """A call of attention.

    Args:
        options: Arguments of `dot_product_attention`.
        drawn: Inputs beside query, key and value: see `_optional`.
        tokens: Of the keys; `queries` are those that ask.
        by_position: Give the positions of the profile; otherwise they are 0, 1, 2, ... and not given.
    """

    options: dict[str, Any] = field(default_factory=dict)
    drawn: tuple[str, ...] = ()
    tokens: int = SEQ
    # Fewer than there are keys, and not the last: queries and keys can never be exchanged.
    queries: tuple[int, ...] = (1, 4, 7, 10, 12)
    heads: int = HEADS
    kv_heads: int = KV_HEADS
    head_dim: int = HEAD_DIM
    value_dim: int = VALUE_DIM
    by_position: bool = True
    profiles: tuple[str, ...] = tuple(PROFILES)


ATTENTION = {
    "plain": Call(),
    "causal": Call({"is_causal": True}),
    "window": Call({"sliding_window": 3}, profiles=_TOGETHER),
    "causal_window": Call({"is_causal": True, "sliding_window": 3}, profiles=_TOGETHER),
    "scale": Call({"scale": 0.3}),
    "softcap": Call({"logit_softcap": 1.5}, ("bias",)),
    "learnt_scale_and_cap": Call({}, ("scale", "logit_softcap")),
    "deep_logits": Call({}, ("deep_bias",)),
    "mask": Call({}, ("mask",)),
    "per_head": Call({}, ("head_mask", "head_bias")),
    "one_key_head": Call(
        {"is_causal": True}, ("bias",), kv_heads=1, value_dim=HEAD_DIM
    ),
    "segments": Call({"is_causal": True}, ("query_segment_ids", "key_segment_ids")),
    "alibi_symmetric": Call({"alibi_kind": "symmetric"}, ("alibi_slopes",)),
    "alibi_signed": Call(
        {"alibi_kind": "signed", "is_causal": True}, ("alibi_slopes",)
    ),
    "alibi_key": Call(
        {"alibi_kind": "key", "is_causal": True},
        ("alibi_slopes", "bias"),
        profiles=_NEAR,
    ),
}

# All that goes by position or segment, and all learnt numbers.
_RULES = Call(
    {"is_causal": True, "sliding_window": 7, "alibi_kind": "symmetric"},
    (
        *("alibi_slopes", "scale", "logit_softcap"),
        *("query_segment_ids", "key_segment_ids"),
    ),
    profiles=_TOGETHER,
)
# What the other implementations are tried on, as their pairs.
IMPLEMENTED = {
    "blockwise": {"rules": _RULES, "per_head": ATTENTION["per_head"]},
    # Keys for two of a TPU's blocks; with more, or more queries, the gradient of the scale drowns in its bound.
    "pallas_tpu": {
        "rules": replace(
            _RULES,
            options={**_RULES.options, "sliding_window": 80},
            tokens=132,
            queries=(2, 61, 99, 127, 130),
            heads=4,
            kv_heads=2,
        )
    },
}

# The drawn inputs to differentiate, and the arguments they are for.
LEARNT = {
    "bias": "bias",
    "head_bias": "bias",
    "deep_bias": "bias",
    "alibi_slopes": "alibi_slopes",
    "scale": "scale",
    "logit_softcap": "logit_softcap",
}


def _optional(
    rng: np.random.Generator, call: Call, segment_ids: np.ndarray
) -> dict[str, Any]:
    """What may be drawn: the argument it is for, and its value."""
    q, k, heads = len(call.queries), call.tokens, call.heads
    slopes = oracles.alibi_slopes(heads) * rng.uniform(0.5, 2, heads)
    # Far below any floor that a careless softmax might put under its peak.
    deep = rng.normal(size=(BATCH, 1, q, k)) - 200
    asking = segment_ids[:, call.queries]
    return {
        "bias": ("bias", rng.normal(size=(BATCH, 1, q, k))),
        "head_bias": ("bias", rng.normal(size=(heads, 1, k))),
        "deep_bias": ("bias", deep),
        "mask": ("mask", _mask_with_dead_rows(rng, (BATCH, 1, q, k))),
        "head_mask": ("mask", _mask_with_dead_rows(rng, (BATCH, heads, q, k))),
        "alibi_slopes": ("alibi_slopes", slopes),
        "scale": ("scale", np.array(0.3)),
        "logit_softcap": ("logit_softcap", np.array(1.5)),
        "query_segment_ids": ("query_segment_ids", asking),
        "key_segment_ids": ("key_segment_ids", segment_ids),
        # Of keys: a third of the tokens, at the end of the first row.
        "padding": ("mask", _padding(k)),
        # Queries and keys are rotated by these tables first.
        "cos": ("cos", np.cos(_angles(call))),
        "sin": ("sin", np.sin(_angles(call))),
        # The first queries are of a document that no key is of.
        "lonely_segment_ids": (
            "query_segment_ids",
            np.where(np.arange(q) < q // 3, 9, asking).astype(np.int32),
        ),
    }


def attention(
    pj: Any, pt: Any, name: str, call: Call, implementation: str | None = None
) -> Pair:
    """The call in both packages, in JAX by the implementation that is named."""
    options, q_len = call.options, len(call.queries)

    def draw(rng: np.random.Generator, profile: str) -> Any:
        where = positions(rng, profile, BATCH, call.tokens)
        optional = _optional(rng, call, where["segment_ids"])
        stand = {
            "query_positions": where["positions"][:, call.queries],
            "key_positions": where["positions"],
        }
        return {
            "query": rng.normal(size=(BATCH, q_len, call.heads, call.head_dim)),
            "key": rng.normal(size=(BATCH, call.tokens, call.kv_heads, call.head_dim)),
            "value": rng.normal(
                size=(BATCH, call.tokens, call.kv_heads, call.value_dim)
            ),
            **(stand if call.by_position else {}),
            **dict(optional[extra] for extra in call.drawn),
        }

    def in_jax(
        query: Any, key: Any, value: Any, cos: Any = None, sin: Any = None, **rest: Any
    ) -> Any:
        if cos is not None:
            query, key = pj.apply_rotary_pos_emb(query, key, cos, sin)
        out = pj.dot_product_attention(
            query, key, value, **options, **rest, implementation=implementation
        )
        return {"out": out}

    def in_torch(
        query: Any, key: Any, value: Any, cos: Any = None, sin: Any = None, **rest: Any
    ) -> Any:
        q, k, v = map(_heads_first, (query, key, value))
        if cos is not None:
            q, k = pt.apply_rotary_pos_emb(q, k, cos, sin)
        out = pt.dot_product_attention(q, k, v, **options, **rest)
        return {"out": _heads_first(out)}

    def oracle(
        query: Bounded,
        key: Bounded,
        value: Bounded,
        query_positions: np.ndarray | None = None,
        key_positions: np.ndarray | None = None,
        bias: Bounded | None = None,
        alibi_slopes: Bounded | None = None,
        scale: Bounded | None = None,
        logit_softcap: Bounded | None = None,
        cos: Bounded | None = None,
        sin: Bounded | None = None,
        coarse: float = 1.0,
        **conditions: np.ndarray,
    ) -> Any:
        if query_positions is None or key_positions is None:
            query_positions = key_positions = np.arange(call.tokens)[None]
        biases = [] if bias is None else [bias]
        if "alibi_slopes" in options:
            alibi_slopes = exact(options["alibi_slopes"])
        if alibi_slopes is not None:
            kind = options["alibi_kind"]
            alibi, alibi_vjp = oracles.alibi_bias(
                query_positions, key_positions, alibi_slopes, kind
            )
            biases.append(alibi)
        if cos is not None:
            query, query_vjp = oracles.rotate(query, cos, sin, "half", "leading")
            key, key_vjp = oracles.rotate(key, cos, sin, "half", "leading")
            query, key = query.cast(coarse), key.cast(coarse)
        by_position = {
            name: options[name]
            for name in ("is_causal", "sliding_window")
            if name in options
        }
        allowed = oracles.who_may_attend(
            (BATCH, call.heads, q_len, call.tokens),
            query_positions=query_positions,
            key_positions=key_positions,
            **by_position,
            **conditions,
        )
        out, vjp = oracles.attention(
            query,
            key,
            value,
            biases=tuple(biases),
            allowed=allowed,
            softcap=options.get("logit_softcap", logit_softcap),
            scale=options.get("scale", scale),
            coarse=coarse,
        )

        def gradients(g: Any) -> Any:
            found = vjp(g["out"])
            d_logits = found["logits"]
            if bias is not None:
                found["bias"] = oracles.summed_to(d_logits, bias.value.shape)
            if alibi_slopes is not None:
                found["alibi_slopes"] = alibi_vjp(d_logits)
            if cos is not None:
                found["query"] = query_vjp(found["query"])[0]
                found["key"] = key_vjp(found["key"])[0]
            return found

        return {"out": out}, gradients

    learnt = [LEARNT[extra] for extra in call.drawn if extra in LEARNT]
    return Pair(
        f"{implementation or 'attention'}.{name}",
        in_jax,
        in_torch,
        oracle,
        draw,
        wrt=("query", "key", "value", *learnt),
        float32=("alibi_slopes", "scale", "logit_softcap", "cos", "sin"),
        # The kernels of others multiply in half precision.
        casts=implementation in ("splash", "cudnn"),
        profiles=call.profiles,
    )


def _angles(call: Call) -> np.ndarray:
    """Of RoPE at positions 0, 1, 2, ..., [1, tokens, head_dim / 2]."""
    inv_freq = BASE ** -(np.arange(0, call.head_dim, 2) / call.head_dim)
    return np.arange(call.tokens)[None, :, None] * inv_freq


def _padding(tokens: int) -> np.ndarray:
    real = np.full((BATCH, 1, 1, tokens), True)
    real[0, ..., tokens - tokens // 3 :] = False
    return real


def _mask_with_dead_rows(
    rng: np.random.Generator, shape: tuple[int, ...]
) -> np.ndarray:
    mask = rng.random(shape) < 0.5
    mask[0, :, 2] = mask[1, :, -1] = False
    return mask


# Whole paths: embeddings, projections, encoding, attention ---------------------------------------------------------


def _path(pj: Any, pt: Any, scheme: str) -> Pair:
    """Causal self-attention of packed or padded sequences with one encoding, from embeddings to attention output."""
    learnt = {"learned": ("table",), "alibi": ("slopes",)}.get(scheme, ())

    def draw(rng: np.random.Generator, profile: str) -> Any:
        where = positions(rng, profile, BATCH, SEQ)
        if scheme == "learned":
            where["positions"] %= MAX_LEN
        optional = {
            "table": rng.normal(size=(MAX_LEN, MODEL_DIM)),
            "slopes": oracles.alibi_slopes(HEADS) * rng.uniform(0.5, 2, HEADS),
        }
        widths = {
            "w_query": HEADS * HEAD_DIM,
            "w_key": KV_HEADS * HEAD_DIM,
            "w_value": KV_HEADS * VALUE_DIM,
        }
        weights = {
            name: rng.normal(size=(MODEL_DIM, width)) / (3 * np.sqrt(MODEL_DIM))
            for name, width in widths.items()
        }
        x = rng.normal(size=(BATCH, SEQ, MODEL_DIM))
        return {
            "x": x,
            **weights,
            **where,
            **{name: optional[name] for name in learnt},
        }

    def side(
        package: Any, tables: Any, float64: Any, float32: Any, project: Any
    ) -> Any:
        def path(
            x: Any,
            w_query: Any,
            w_key: Any,
            w_value: Any,
            positions: Any,
            segment_ids: Any,
            table: Any = None,
            slopes: Any = None,
        ) -> Any:
            if scheme == "sinusoidal":
                dtype = _table_dtype(x, float64, float32)
                rows = package.sinusoidal_position_encoding(
                    positions, MODEL_DIM, base=BASE, dtype=dtype
                )
                x = package.add_position_encoding(x, rows)
            if scheme == "learned":
                rows = package.learned_position_encoding(table, positions)
                x = package.add_position_encoding(x, rows)
            query, key = project(x, w_query, HEAD_DIM), project(x, w_key, HEAD_DIM)
            if scheme == "rope":
                cos, sin = tables(package, x, positions)
                query, key = package.apply_rotary_pos_emb(query, key, cos, sin)
            return package.dot_product_attention(
                query,
                key,
                project(x, w_value, VALUE_DIM),
                is_causal=True,
                alibi_slopes=slopes,
                query_positions=positions,
                key_positions=positions,
                query_segment_ids=segment_ids,
                key_segment_ids=segment_ids,
            )

        return path

    def project_jax(x: Any, weight: Any, width: int) -> Any:
        out = jnp.matmul(x, weight, precision="highest")
        return out.reshape(*x.shape[:-1], -1, width)

    def project_torch(x: Any, weight: Any, width: int) -> Any:
        return _heads_first((x @ weight).unflatten(-1, (-1, width)))

    jax_path = side(pj, _jax_tables, jnp.float64, jnp.float32, project_jax)
    torch_path = side(pt, _torch_tables, torch.float64, torch.float32, project_torch)

    def in_jax(**inputs: Any) -> Any:
        return {"out": jax_path(**inputs)}

    def in_torch(**inputs: Any) -> Any:
        return {"out": _heads_first(torch_path(**inputs))}

    def oracle(
        x: Bounded,
        w_query: Bounded,
        w_key: Bounded,
        w_value: Bounded,
        positions: np.ndarray,
        segment_ids: np.ndarray,
        coarse: float,
        table: Bounded | None = None,
        slopes: Bounded | None = None,
    ) -> Any:
        if scheme == "sinusoidal":
            rows = oracles.sinusoid(positions, MODEL_DIM, BASE, "interleaved", "dim")
            x = (x + rows).cast(coarse)
        if scheme == "learned":
            rows, rows_vjp = oracles.look_up(table, positions, "error", coarse)
            x = (x + rows).cast(coarse)
        (q, q_vjp), (k, k_vjp), (v, v_vjp) = (
            oracles.linear(x, w) for w in (w_query, w_key, w_value)
        )
        q, k, v = (
            _split_heads(y.cast(coarse), width)
            for y, width in ((q, HEAD_DIM), (k, HEAD_DIM), (v, VALUE_DIM))
        )
        if scheme == "rope":
            cos, sin = oracles.rope_cos_sin(positions, ROTARY_DIM, BASE)
            q, q_rope_vjp = oracles.rotate(q, cos, sin, "half", "leading")
            k, k_rope_vjp = oracles.rotate(k, cos, sin, "half", "leading")
            q, k = q.cast(coarse), k.cast(coarse)
        biases: tuple[Bounded, ...] = ()
        if scheme == "alibi":
            bias, bias_vjp = oracles.alibi_bias(
                positions, positions, slopes, "symmetric"
            )
            biases = (bias,)
        allowed = oracles.who_may_attend(
            (BATCH, HEADS, SEQ, SEQ),
            query_positions=positions,
            key_positions=positions,
            is_causal=True,
            query_segment_ids=segment_ids,
            key_segment_ids=segment_ids,
        )
        out, vjp = oracles.attention(q, k, v, biases=biases, allowed=allowed)

        def gradients(g: Any) -> Any:
            found = vjp(g["out"])
            d_q, d_k, d_v = (
                found[name].cast(coarse) for name in ("query", "key", "value")
            )
            if scheme == "rope":
                d_q = q_rope_vjp(d_q)[0].cast(coarse)
                d_k = k_rope_vjp(d_k)[0].cast(coarse)
            d_q, d_k, d_v = map(_merge_heads, (d_q, d_k, d_v))
            (x_q, w_q), (x_k, w_k), (x_v, w_v) = q_vjp(d_q), k_vjp(d_k), v_vjp(d_v)
            parts = (part.cast(coarse) for part in (x_q, x_k, x_v))
            d_x = oracles.add(*parts, coarse=coarse)
            return {
                "x": d_x,
                "w_query": w_q,
                "w_key": w_k,
                "w_value": w_v,
                "table": rows_vjp(d_x) if scheme == "learned" else None,
                "slopes": bias_vjp(found["logits"]) if scheme == "alibi" else None,
            }

        return {"out": out}, gradients

    return Pair(
        f"path.{scheme}",
        in_jax,
        in_torch,
        oracle,
        draw,
        wrt=("x", "w_query", "w_key", "w_value", *learnt),
        float32=("slopes",),
        casts=True,
    )


def _split_heads(x: Bounded, width: int) -> Bounded:
    return x.move(lambda a: a.reshape(*a.shape[:-1], -1, width))


def _merge_heads(x: Bounded) -> Bounded:
    return x.move(lambda a: a.reshape(*a.shape[:-2], -1))


def pairs(pj: Any, pt: Any) -> dict[str, Pair]:
    """Every scheme of a JAX package against that of a torch package, under the public names of this project."""
    return {pair.name: pair for pair in _all(pj, pt)}


def _all(pj: Any, pt: Any) -> Iterator[Pair]:
    for layout in ("interleaved", "half", "half_cos_first"):
        for spacing in ("dim", "endpoint"):
            yield _sinusoidal(pj, pt, layout, spacing, 10)
            yield _sinusoidal(pj, pt, layout, spacing, 7)
    yield _sinusoidal(pj, pt, "half", "half", 7)
    yield _sinusoidal(pj, pt, "interleaved", "next_even", 7)
    yield _sinusoidal_grid(pj, pt, "interleaved", "endpoint")
    yield _sinusoidal_grid(pj, pt, "half_across_axes", "half")
    yield _sinusoidal_padding(pj, pt)
    yield _fourier(pj, pt)
    for policy in ("error", "nan", "clip", "zero"):
        yield _learned(pj, pt, policy)
    yield _learned(pj, pt, "error", padding_idx=1)
    for combine in ("concat", "sum"):
        yield _learned_axial(pj, pt, combine)
    for name in RESIZED:
        yield _learned_resized(pj, pt, name)
    for layout in LAYOUTS:
        for placement in PLACEMENTS:
            yield _rope_apply(pj, pt, layout, placement, inverse=False)
            yield _rope(pj, pt, layout, placement)
        yield _rope_apply(pj, pt, layout, "leading", inverse=True)
    yield _rope_apply(pj, pt, "interleaved_to_half", "trailing", inverse=True)
    yield _rope(pj, pt, "half", "leading", learnt_factor=True)
    yield _scaled(pj, pt)
    yield _scaled_by_length(pj, pt)
    yield _mrope(pj, pt)
    yield _axial(pj, pt)
    yield _pairwise(pj, pt)
    for kind in (*pt.alibi.KINDS, *pt.alibi.GRID_KINDS):
        yield _alibi(pj, pt, kind)
    for name, call in ATTENTION.items():
        yield attention(pj, pt, name, call)
    for implementation, calls in IMPLEMENTED.items():
        for name, call in calls.items():
            yield attention(pj, pt, name, call, implementation)
    for scheme in ("sinusoidal", "learned", "rope", "alibi"):
        yield _path(pj, pt, scheme)
