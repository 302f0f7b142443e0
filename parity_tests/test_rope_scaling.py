"""Scaling rules of RoPE: against transformers, against their formulas in 40 digits, and at traced lengths."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import torch
from transformers import (
    DeepseekV3Config,
    HunYuanDenseV1Config,
    LlamaConfig,
    PhimoeConfig,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention
from transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense import (
    HunYuanDenseV1RotaryEmbedding,
)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb
from transformers.models.phimoe.modeling_phimoe import PhimoeRotaryEmbedding

import posenc_jax
import posenc_torch

from .twins import TWINS

both = pytest.mark.parametrize("twin", TWINS, ids=str)

# Unit roundoffs.
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}

# Cases ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Case:
    """A rule with its keys in Hugging Face's configuration; a callable is given the number of pairs."""

    rule: str
    keys: dict[str, Any]
    # Where the fields of our rule are not the keys.
    fields: dict[str, Any] = field(default_factory=dict)
    longest: int = 131_072
    seq_len: int | None = None


class Shape(NamedTuple):
    head_dim: int
    base: float
    part: float | None = None


# Whole heads and parts of them; the exponents 2 i / d are exact where the width is a power of two.
SHAPES = {
    "8_base_20": Shape(8, 20.0),
    "8": Shape(8, 10_000.0),
    "64": Shape(64, 10_000.0),
    "64_gpt_oss": Shape(64, 150_000.0),
    "128": Shape(128, 500_000.0),
    "80_part": Shape(80, 10_000.0, 0.4),
    "96_part": Shape(96, 1_000_000.0, 0.5),
    "256_part": Shape(256, 1_000_000.0, 0.75),
}


def short(pairs: int) -> list[float]:
    return [1 + 0.05 * i for i in range(pairs)]


def long(pairs: int) -> list[float]:
    return [1 + 31.7 * i / pairs for i in range(pairs)]


def yarn(**keys: Any) -> Case:
    keys = {"factor": 4.0, "original_max_position_embeddings": 4096, **keys}
    trained = keys["original_max_position_embeddings"]
    return Case("yarn", keys, longest=int(trained * (keys["factor"] or 32)))


def dynamic(seq_len: int, factor: float = 2.0) -> Case:
    trained = 64
    fields = {"max_position_embeddings": trained}
    return Case("dynamic", {"factor": factor}, fields, trained, seq_len)


def longrope(seq_len: int, longest: int = 8192, **keys: Any) -> Case:
    trained = 256
    sets = {"short_factor": short, "long_factor": long}
    keys = {**sets, "original_max_position_embeddings": trained, **keys}
    fields = {} if "factor" in keys else {"factor": longest / trained}
    return Case("longrope", keys, fields, longest, seq_len)


def llama3(**keys: Any) -> Case:
    edges = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    trained = {"original_max_position_embeddings": 8192}
    return Case("llama3", {"factor": 8.0, **edges, **trained, **keys})


def proportional(part: float, **keys: Any) -> Case:
    return Case("proportional", {"partial_rotary_factor": part, **keys})


def ntk(alpha: float) -> Case:
    return Case("ntk", {"alpha": alpha, "factor": 1.0}, {"alpha": alpha})


CASES = {
    "linear": Case("linear", {"factor": 3.3}),
    "linear_gemma3": Case("linear", {"factor": 8.0}),
    "dynamic_before": dynamic(63),
    "dynamic_at": dynamic(64),
    "dynamic_after": dynamic(65),
    "dynamic_twice": dynamic(128),
    "dynamic_far": dynamic(6400),
    "dynamic_factor_8": dynamic(500, 8.0),
    "yarn": yarn(),
    "yarn_untruncated": yarn(truncate=False),
    "yarn_betas": yarn(beta_fast=16.0, beta_slow=2.5),
    "yarn_betas_untruncated": yarn(beta_fast=16, beta_slow=2, truncate=False),
    "yarn_steep": yarn(beta_fast=2.0, beta_slow=1.5, truncate=False),
    "yarn_mscales": yarn(factor=40.0, mscale=0.707, mscale_all_dim=1.0),
    "yarn_mscales_equal": yarn(factor=40.0, mscale=0.707, mscale_all_dim=0.707),
    "yarn_mscale_zero": yarn(factor=40.0, mscale=0.0, mscale_all_dim=1.0),
    "yarn_mscale_all_zero": yarn(factor=40.0, mscale=0.707, mscale_all_dim=0),
    "yarn_mscale_alone": yarn(factor=40.0, mscale=0.707),
    "yarn_mscale_all_alone": yarn(factor=40.0, mscale=None, mscale_all_dim=0.707),
    "yarn_attention_factor": yarn(factor=64.0, attention_factor=1.0),
    "yarn_attention_factor_first": yarn(
        attention_factor=0.8782, mscale=0.707, mscale_all_dim=1.0
    ),
    "yarn_factor_1": yarn(factor=1.0),
    "yarn_factor_absent": dataclasses.replace(
        yarn(factor=None), fields={"factor": 32.0}
    ),
    "yarn_deepseek_v3": yarn(
        factor=40.0, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0
    ),
    "yarn_gpt_oss": yarn(factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False),
    # Where an end of the ramp is kept at 0 or, for the smallest base, at d - 1; where both are and meet, or cross.
    "yarn_low_clamped": yarn(original_max_position_embeddings=128),
    "yarn_low_clamped_untruncated": yarn(
        original_max_position_embeddings=128, truncate=False
    ),
    "yarn_both_at_0": yarn(original_max_position_embeddings=6),
    "yarn_high_below_0": yarn(original_max_position_embeddings=6, truncate=False),
    "yarn_high_clamped": yarn(original_max_position_embeddings=10_000),
    "yarn_high_clamped_untruncated": yarn(
        original_max_position_embeddings=10_000, truncate=False
    ),
    "yarn_both_at_last": yarn(original_max_position_embeddings=50_000),
    "yarn_low_above_high": yarn(original_max_position_embeddings=10**6),
    "longrope_before": longrope(255),
    "longrope_at": longrope(256),
    "longrope_after": longrope(257),
    "longrope_factor": longrope(4000, factor=16.0),
    "longrope_factor_1": longrope(257, factor=1.0),
    "longrope_factor_below_1": longrope(257, factor=0.5),
    "longrope_not_longer": longrope(257, longest=256),
    "longrope_attention_factor": longrope(257, attention_factor=1.25),
    "llama3": llama3(),
    "llama3_2": llama3(factor=32.0),
    "llama3_steep": llama3(low_freq_factor=2.0, high_freq_factor=2.5),
    "proportional": proportional(0.25),
    "proportional_whole": proportional(1.0),
    "proportional_rounded_down": proportional(0.3, factor=2.5),
    "ntk": ntk(4.0),
    "ntk_hunyuan": ntk(1000.0),
}
GRID = {
    f"{name}-{shape}": (CASES[name], SHAPES[shape])
    for name, shape in itertools.product(CASES, SHAPES)
}
grid = pytest.mark.parametrize(("case", "shape"), GRID.values(), ids=GRID)
# What comes after the frequencies does not see how they were made; each width is a program for JAX to compile.
some_shapes = pytest.mark.parametrize(
    ("case", "shape"),
    [pair for pair in GRID.values() if pair[1].head_dim in (64, 80)],
    ids=[name for name, (_, shape) in GRID.items() if shape.head_dim in (64, 80)],
)

RULES = {
    "linear": "LinearScaling",
    "ntk": "NtkScaling",
    "dynamic": "DynamicNtkScaling",
    "yarn": "YarnScaling",
    "longrope": "LongRopeScaling",
    "llama3": "Llama3Scaling",
    "proportional": "ProportionalScaling",
}


def part_of(case: Case, shape: Shape) -> float:
    """The part of a head that rotates; two rules take no slice of a head."""
    return 1.0 if case.rule in ("ntk", "proportional") else shape.part or 1.0


def width_of(case: Case, shape: Shape) -> int:
    return int(shape.head_dim * part_of(case, shape))


def scaling(package: Any, case: Case, shape: Shape) -> Any:
    fields = case.fields if case.rule == "ntk" else case.keys | case.fields
    return getattr(package, RULES[case.rule])(**filled(fields, case, shape))


def filled(keys: dict[str, Any], case: Case, shape: Shape) -> dict[str, Any]:
    pairs = width_of(case, shape) // 2
    return {k: v(pairs) if callable(v) else v for k, v in keys.items()}


def direct(package: Any, case: Case, shape: Shape) -> Any:
    return package.RopeConfig(
        shape.head_dim,
        base=shape.base,
        rotary_dim=width_of(case, shape),
        scaling=scaling(package, case, shape),
    )


def hf_config(case: Case, shape: Shape) -> Any:
    keys = {"rope_theta": shape.base, **filled(case.keys, case, shape)}
    keys["rope_type"] = "dynamic" if case.rule == "ntk" else case.rule
    if part_of(case, shape) < 1:
        keys["partial_rotary_factor"] = shape.part
    kind = HunYuanDenseV1Config if case.rule == "ntk" else LlamaConfig
    return kind(
        head_dim=shape.head_dim,
        max_position_embeddings=case.longest,
        rope_parameters=keys,
    )


def hf_module(case: Case, shape: Shape) -> Any:
    kind = HunYuanDenseV1RotaryEmbedding if case.rule == "ntk" else LlamaRotaryEmbedding
    return kind(hf_config(case, shape))


def hf_frequencies(case: Case, shape: Shape) -> tuple[np.ndarray, float]:
    if case.rule == "ntk":
        module = hf_module(case, shape)
        return module.inv_freq.numpy(), module.attention_scaling
    rule = ROPE_INIT_FUNCTIONS[case.rule]
    inv_freq, factor = rule(hf_config(case, shape), "cpu", seq_len=case.seq_len)
    return inv_freq.numpy(), factor


# The formulas, from the papers and in 40 digits ----------------------------------------------------------------------


class Exact(NamedTuple):
    """What the formula gives, and how many unit roundoffs a plain program may be off."""

    values: list[Any]
    units: np.ndarray

    def off(self, found: np.ndarray) -> np.ndarray:
        pairs = zip(self.values, found.tolist(), strict=True)
        return np.array([float(abs(value - f)) for value, f in pairs])


@functools.cache
def exact(case: Case, shape: Shape) -> Exact:
    """Roundings of a frequency, in unit roundoffs u of itself.

    - ln(base) / 2: the exponent 2 i / d is below 1, so its own rounding is u / 2 at most, times ln(base).
    - 3 ln(growth), where the base has grown: it is a sum and a product, raised to a power.
    - 8: a power (2 u), a product with a factor that is rounded too, a reciprocal, a blend of two products, and a
      last rounding.

    Where a rule blends f and f / s, their weight has an error of its own, which is one of f.
    """
    rule = scaling(posenc_torch, case, shape)  # only its fields are read
    width, base = width_of(case, shape), mpmath.mpf(shape.base)
    with mpmath.workdps(40):
        plain = progression(base, width)
        values = FORMULAS[case.rule](rule, plain, base, case.seq_len)
        growth, blended = mpmath.mpf(1), [0.0] * len(plain)
        if case.rule in ("ntk", "dynamic"):
            growth = (plain[-1] / values[-1]) ** (mpmath.mpf(width) / (width - 2))
        if case.rule in WEIGHTS:
            weights, units = WEIGHTS[case.rule](rule, plain, base)
            blended = [
                float(f) * units * (0 < w < 1)
                for f, w in zip(plain, weights, strict=True)
            ]
        relative = float(mpmath.log(base) / 2 + 3 * mpmath.log(growth) + 8)
    return Exact(values, relative * np.array(values, float) + np.array(blended))


def progression(base: Any, width: int) -> list[Any]:
    return [base ** (mpmath.mpf(-2 * i) / width) for i in range(width // 2)]


def linear_formula(rule, plain, base, seq_len):
    return [f / rule.factor for f in plain]


def ntk_formula(rule, plain, base, seq_len):
    width = 2 * len(plain)
    power = mpmath.mpf(width) / (width - 2)
    return progression(base * mpmath.mpf(rule.alpha) ** power, width)


def dynamic_formula(rule, plain, base, seq_len):
    width, trained = 2 * len(plain), rule.max_position_embeddings
    factor = mpmath.mpf(rule.factor)
    ratio = factor * max(seq_len, trained) / trained - (factor - 1)
    return progression(base * ratio ** (mpmath.mpf(width) / (width - 2)), width)


def longrope_formula(rule, plain, base, seq_len):
    beyond = seq_len > rule.original_max_position_embeddings
    divisors = rule.long_factor if beyond else rule.short_factor
    return [f / divisor for f, divisor in zip(plain, divisors, strict=True)]


def proportional_formula(rule, plain, base, seq_len):
    part = mpmath.mpf(repr(rule.partial_rotary_factor))  # 0.3, not the float below it
    rotating = mpmath.floor(part * len(plain))
    return [f / rule.factor if i < rotating else 0 for i, f in enumerate(plain)]


def blend_formula(rule, plain, base, seq_len):
    weights, _ = WEIGHTS[rule_name(rule)](rule, plain, base)
    pairs = zip(plain, weights, strict=True)
    return [(1 - w) * f + w * f / rule.factor for f, w in pairs]


def rule_name(rule: Any) -> str:
    return {kind: name for name, kind in RULES.items()}[type(rule).__name__]


def clipped(x: Any) -> Any:
    return min(max(x, 0), 1)


def yarn_weights(rule, plain, base):
    width, trained = 2 * len(plain), rule.original_max_position_embeddings
    per_fold = width / (2 * mpmath.log(base))  # pairs per factor e of wavelength
    low, high = (
        per_fold * mpmath.log(trained / (2 * mpmath.pi * turns))
        for turns in (rule.beta_fast, rule.beta_slow)
    )
    if rule.truncate:
        low, high = mpmath.floor(low), mpmath.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    step = high - low or 0.001
    # An end is off by 4 u of itself and by 3 u in the argument of its logarithm; a difference, a quotient and what is
    # left of 1 are rounded.
    ends = 4 * (abs(low) + abs(high)) + 6 * per_fold
    weights = [clipped((i - low) / step) for i in range(len(plain))]
    return weights, float(ends / abs(step)) + 3


def llama3_weights(rule, plain, base):
    low, high = rule.low_freq_factor, rule.high_freq_factor
    turns = [rule.original_max_position_embeddings * f / (2 * mpmath.pi) for f in plain]
    # The turns, at most `high` in a blend, are off as the plain frequency is.
    off = high * (float(mpmath.log(base)) / 2 + 8)
    weights = [1 - clipped((t - low) / (high - low)) for t in turns]
    return weights, off / (high - low) + 3


FORMULAS: dict[str, Callable] = {
    "linear": linear_formula,
    "ntk": ntk_formula,
    "dynamic": dynamic_formula,
    "yarn": blend_formula,
    "longrope": longrope_formula,
    "llama3": blend_formula,
    "proportional": proportional_formula,
}
# Of the interpolated frequency f / s.
WEIGHTS = {"yarn": yarn_weights, "llama3": llama3_weights}


def exact_factor(case: Case, shape: Shape) -> Any:
    """The attention factor, in 40 digits."""
    rule = scaling(posenc_torch, case, shape)
    given = case.keys.get("attention_factor")
    with mpmath.workdps(40):
        if given is not None:
            return mpmath.mpf(given)
        stretch = max(mpmath.mpf(getattr(rule, "factor", 1.0)), 1)
        if case.rule == "longrope":
            trained = rule.original_max_position_embeddings
            return mpmath.sqrt(1 + mpmath.log(stretch) / mpmath.log(trained))
        if case.rule != "yarn":
            return mpmath.mpf(1)
        weights = rule.mscale, rule.mscale_all_dim
        above, below = weights if all(weights) else (1, 0)
        grown = mpmath.log(stretch) / 10
        return (above * grown + 1) / (below * grown + 1)


@both
@grid
def test_rule_is_the_formula(twin, case, shape):
    """Frequencies in float64; in float32, rounded once; and the attention factor."""
    spec = direct(twin.package, case, shape)
    right = exact(case, shape)
    double = spec.inv_freq(case.seq_len, dtype=np.float64)
    assert double.dtype == np.float64
    assert (right.off(double) <= UNIT["float64"] * right.units).all()
    # Of a float64 that is right to 1e-8 of a float32 unit or better: off by half a spacing, one unit.
    single = spec.inv_freq(case.seq_len)
    assert single.dtype == np.float32
    np.testing.assert_array_equal(single, double.astype(np.float32))
    units = np.array(right.values, float) * (1 + 1e-6)
    assert (right.off(single) <= UNIT["float32"] * units).all()
    # Two logarithms, a quotient and a root or product of float64: 8 roundings.
    factor = spec.attention_factor(case.seq_len)
    right_factor = exact_factor(case, shape)
    assert isinstance(factor, float)
    assert abs(factor - right_factor) <= 8 * UNIT["float64"] * right_factor


# transformers --------------------------------------------------------------------------------------------------------


@grid
def test_frequencies_are_those_of_transformers(case, shape):
    """Directly and from the configuration, in both packages; transformers computes in float32."""
    expected, factor = hf_frequencies(case, shape)
    config = hf_config(case, shape)
    bits = set()
    for twin in TWINS:
        spec = direct(twin.package, case, shape)
        assert twin.package.RopeConfig.from_hf(config) == spec
        found = spec.inv_freq(case.seq_len)
        double = spec.inv_freq(case.seq_len, dtype=np.float64)
        bits.add((found.tobytes(), double.tobytes()))
        tolerance = UNIT["float32"] * exact(case, shape).units
        assert (np.abs(double - expected) <= tolerance).all()
        assert spec.attention_factor(case.seq_len) == pytest.approx(factor, rel=1e-12)
    assert len(bits) == 1


def positions_of(case: Case) -> np.ndarray:
    """The first ones, and others up to the length."""
    seq_len = case.seq_len or 4096
    spread = np.linspace(0, seq_len - 1, 24).astype(np.int32)
    return np.concatenate((np.arange(9, dtype=np.int32), spread))


def table_error(case: Case, shape: Shape, positions: np.ndarray, factor: float) -> Any:
    """How far two float32 tables may be apart, [positions, pairs].

    The angles differ by the position times what the frequencies differ by, and by a rounding of each product; cosine
    and sine are within a unit, and are rounded again where they are scaled.
    """
    right = exact(case, shape)
    apart = right.units + 2 * np.array(right.values, float)
    angle = positions[:, None] * apart * UNIT["float32"]
    return factor * (angle + 4 * UNIT["float32"])


@both
@some_shapes
def test_tables_and_rotation_are_those_of_transformers(twin, case, shape):
    positions = positions_of(case)
    spec = direct(twin.package, case, shape)
    factor = spec.attention_factor(case.seq_len)
    inv_freq = spec.inv_freq(case.seq_len)
    tables = twin.call(
        "rope_cos_sin", positions, inv_freq, attention_factor=float(factor)
    )
    their_positions = torch.from_numpy(positions)[None]
    their_tables = hf_module(case, shape)(torch.zeros(()), their_positions)
    tolerance = table_error(case, shape, positions, factor)
    pairs = inv_freq.size
    for ours, theirs in zip(tables, their_tables, strict=True):
        assert ours.dtype == np.float32
        assert (np.abs(ours - theirs[0, :, :pairs].numpy()) <= tolerance).all()

    # Of 3 query heads and 2 key heads, [1, positions, heads, head_dim].
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(1, positions.size, 5, shape.head_dim)).astype(np.float32)
    q, k = drawn[:, :, :3], drawn[:, :, 3:]
    rotated = twin.call_heads("apply_rotary_pos_emb", q, k, *tables, count=2)
    their_heads = (torch.from_numpy(x).transpose(1, 2) for x in (q, k))
    their_rotated = apply_rotary_pos_emb(*their_heads, *their_tables)
    # A channel is a sum of two products with table entries, and each of the three operations is rounded.
    each = tolerance + 4 * factor * UNIT["float32"]
    for x, ours, theirs in zip((q, k), rotated, their_rotated, strict=True):
        theirs = theirs.transpose(1, 2).numpy()
        sizes = np.abs(x[..., :pairs]) + np.abs(x[..., pairs : 2 * pairs])
        bound = np.zeros(x.shape)
        bound[..., : 2 * pairs] = np.tile(sizes * each[:, None], 2)
        assert (np.abs(ours - theirs) <= bound).all()


def test_the_grid_reaches_what_it_is_meant_to():
    """The ends of YaRN's ramp are kept within 0 and d - 1, and meet, in some case of the grid."""
    reached = set()
    for case, shape in GRID.values():
        if case.rule != "yarn":
            continue
        rule, width = scaling(posenc_torch, case, shape), width_of(case, shape)
        turns = [rule.beta_fast, rule.beta_slow]
        low, high = (rule._pair(t, shape.base, width) for t in turns)
        if rule.truncate:
            low, high = math.floor(low), math.ceil(high)
        kept = max(low, 0), min(high, width - 1)
        reached |= {"low"} if low < 0 else set()
        reached |= {"high"} if high > width - 1 else set()
        reached |= {"equal"} if kept[0] == kept[1] else set()
        reached |= {"crossed"} if kept[0] > kept[1] else set()
    assert reached == {"low", "high", "equal", "crossed"}


PHIMOE = {
    "original_max_position_embeddings": 64,
    "short_factor": short(4),
    "long_factor": long(4),
    "short_mscale": 1.1,
    "long_mscale": 1.25,
}


@both
@pytest.mark.parametrize("seq_len", [63, 64, 65, 200])
def test_magnitudes_by_length_are_those_of_phimoe(twin, seq_len):
    """Frequencies by length are those of the function, which its module of transformers 5.24 calls without a length."""
    config = PhimoeConfig(
        hidden_size=32,
        num_attention_heads=4,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, **PHIMOE},
    )
    spec = twin.package.RopeConfig(
        8, scaling=twin.package.LongRopeScaling(**PHIMOE, factor=128.0)
    )
    assert twin.package.RopeConfig.from_hf(config) == spec
    cos, _ = PhimoeRotaryEmbedding(config)(torch.zeros(()), torch.arange(seq_len)[None])
    magnitude = spec.attention_factor(seq_len)
    np.testing.assert_array_equal(cos[0, 0], np.float32(magnitude))
    expected, _ = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=seq_len)
    # The case has these divisors too, and a trained length of 256 instead of 64.
    case, shape = longrope(256 + seq_len - 64), Shape(8, 1e4)
    tolerance = UNIT["float32"] * exact(case, shape).units
    assert (np.abs(spec.inv_freq(seq_len) - expected.numpy()) <= tolerance).all()


@both
@pytest.mark.parametrize("mscale", [0.707, 1.0])
def test_yarn_mscale_is_the_softmax_factor_of_deepseek(twin, mscale):
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    sizes = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 8}
    keys = {"factor": 40.0, "original_max_position_embeddings": 4096}
    keys |= {"mscale": mscale, "mscale_all_dim": mscale}
    config = DeepseekV3Config(
        hidden_size=32,
        **heads,
        **sizes,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, **keys},
    )
    factor = twin.package.yarn_mscale(40.0, mscale) ** 2
    scale = DeepseekV3Attention(config, 0).scaling
    assert 24**-0.5 * factor == pytest.approx(scale, rel=1e-14)
    assert twin.package.RopeConfig.from_hf(config).attention_factor() == 1.0


# Lengths that are traced ---------------------------------------------------------------------------------------------

TRAINED = 2048
LENGTHS = [TRAINED - 1, TRAINED, TRAINED + 1, 2 * TRAINED, 100 * TRAINED]
BY_LENGTH = {
    "dynamic": {"factor": 2.0, "max_position_embeddings": TRAINED},
    "longrope": PHIMOE | {"original_max_position_embeddings": TRAINED, "factor": 64.0},
}
each_rule = pytest.mark.parametrize("rule", BY_LENGTH)
precisions = pytest.mark.parametrize("dtype", UNIT)


def by_length(package: Any, rule: str) -> Any:
    kind = getattr(package, RULES[rule])
    return package.RopeConfig(8, scaling=kind(**BY_LENGTH[rule]))


def arithmetic(package: Any, rule: str, seq_len: Any, dtype: str) -> tuple[Any, Any]:
    spec = by_length(package, rule)
    return spec.inv_freq(seq_len, dtype=dtype), spec.attention_factor(seq_len)


def tables(package: Any, rule: str, positions: Any, seq_len: Any) -> tuple[Any, Any]:
    inv_freq, factor = arithmetic(package, rule, seq_len, "float32")
    return package.rope_cos_sin(positions, inv_freq, attention_factor=factor)


def stretch_units(rule: str, seq_len: int) -> float:
    """Unit roundoffs by which two programs for a frequency at this length may be apart, of itself.

    LongRoPE only chooses. Dynamic NTK is f exp(e growth), growth = log1p(s / L0 excess), with e at most 1: the
    quotient, the excess, the product and the logarithm (2 units) are rounded, then the exponent and its product with
    growth; the exponential (2 units), f and the last product make 4, and the host's own last rounding 1.
    """
    excess = max(seq_len - TRAINED, 0)
    growth = math.log1p(BY_LENGTH["dynamic"]["factor"] * excess / TRAINED)
    return 0.0 if rule == "longrope" else 7 * growth + 5


def assert_same_frequencies(found: Any, rule: str, seq_len: int, dtype: str) -> None:
    """Those of the host at this length."""
    found, factor = map(np.asarray, found)
    expected, magnitude = arithmetic(posenc_jax, rule, seq_len, dtype)
    assert found.dtype == np.dtype(dtype)
    rtol = stretch_units(rule, seq_len) * UNIT[dtype]
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=0)
    assert float(factor) == factor.dtype.type(magnitude)


def assert_same_tables(found: Any, rule: str, positions: Any, seq_len: int) -> None:
    """Angles are apart by as many units of themselves; their products, cosines and scaling are rounded."""
    expected = tables(posenc_torch, rule, torch.from_numpy(positions), seq_len)
    inv_freq, magnitude = arithmetic(posenc_torch, rule, seq_len, "float32")
    angle = positions[:, None] * inv_freq
    units = (stretch_units(rule, seq_len) + 2) * angle + 4
    tolerance = UNIT["float32"] * magnitude * units
    for ours, theirs in zip(found, expected, strict=True):
        ours = np.asarray(ours)
        assert ours.dtype == np.float32
        assert (np.abs(ours - theirs.numpy()) <= tolerance).all()


POSITIONS = np.array([0, 1, 2, 30, 400, 2000], np.int32)


@each_rule
@precisions
def test_one_jax_program_serves_every_length(rule, dtype):
    count = 0

    @jax.jit
    def step(seq_len):
        nonlocal count
        count += 1
        return arithmetic(posenc_jax, rule, seq_len, dtype)

    with jax.enable_x64(dtype == "float64"):
        for seq_len in LENGTHS:
            assert_same_frequencies(step(seq_len), rule, seq_len, dtype)
    assert count == 1


@each_rule
@precisions
def test_jax_vmap_over_lengths(rule, dtype):
    with jax.enable_x64(dtype == "float64"):
        found, factors = jax.vmap(
            lambda seq_len: arithmetic(posenc_jax, rule, seq_len, dtype),
            out_axes=(0, None if rule == "dynamic" else 0),
        )(jnp.array(LENGTHS))
    factors = np.broadcast_to(factors, len(LENGTHS))
    for row, factor, seq_len in zip(found, factors, LENGTHS, strict=True):
        assert_same_frequencies((row, factor), rule, seq_len, dtype)


@each_rule
def test_one_jax_program_serves_the_tables_of_every_length(rule):
    count = 0

    @jax.jit
    def step(positions, seq_len):
        nonlocal count
        count += 1
        return tables(posenc_jax, rule, positions, seq_len)

    for seq_len in LENGTHS:
        found = step(POSITIONS, seq_len)
        assert_same_tables(found, rule, POSITIONS, seq_len)
    assert count == 1


@each_rule
def test_jax_export_with_a_symbolic_length(rule):
    (seq,) = jax.export.symbolic_shape("seq")
    spec = jax.ShapeDtypeStruct((2, seq), jnp.float32)
    exported = jax.export.export(
        jax.jit(lambda x: tables(posenc_jax, rule, x.shape[1], x.shape[1]))
    )(spec)
    for seq_len in LENGTHS[:4]:
        found = exported.call(np.zeros((2, seq_len), np.float32))
        assert_same_tables(found, rule, np.arange(seq_len, dtype=np.int32), seq_len)


@each_rule
@precisions
@pytest.mark.parametrize("integers", [torch.int32, torch.int64], ids=str)
def test_torch_takes_a_length_in_a_tensor(rule, dtype, integers):
    """Its arithmetic is float64, so float32 results are the host's but for a rounding that falls the other way."""
    for seq_len in LENGTHS:
        length = torch.tensor(seq_len, dtype=integers)
        found = arithmetic(posenc_torch, rule, length, dtype)
        assert isinstance(found[0], torch.Tensor)
        assert_same_frequencies(found, rule, seq_len, dtype)
        found = tables(posenc_torch, rule, torch.from_numpy(POSITIONS), length)
        assert_same_tables(found, rule, POSITIONS, seq_len)


def of_size(x: torch.Tensor, rule: str) -> tuple[Any, Any]:
    """Tables as long as x, on its device."""
    positions = torch.arange(x.shape[1], device=x.device)
    return tables(posenc_torch, rule, positions, x.shape[1])


def compiled(call: Callable) -> tuple[Callable, list[Any]]:
    """The call compiled for varying sizes, and its graphs so far."""
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    program = torch.compile(call, backend=backend, fullgraph=True, dynamic=True)
    return program, graphs


@each_rule
def test_torch_compile_serves_every_length_in_a_tensor(rule):
    program, graphs = compiled(
        lambda positions, seq_len: tables(posenc_torch, rule, positions, seq_len)
    )
    for seq_len in LENGTHS:
        found = program(torch.from_numpy(POSITIONS), torch.tensor(seq_len))
        assert_same_tables(found, rule, POSITIONS, seq_len)
    assert len(graphs) == 1


@each_rule
def test_torch_compile_serves_every_size(rule):
    program, graphs = compiled(lambda x: of_size(x, rule))
    for seq_len in LENGTHS[:4]:
        found = program(torch.zeros(2, seq_len))
        assert_same_tables(found, rule, np.arange(seq_len, dtype=np.int32), seq_len)
    assert len(graphs) == 1


@each_rule
def test_torch_compile_leaves_the_tables_of_a_size_on_their_device(rule):
    program, _ = compiled(lambda x: of_size(x, rule))
    cos, sin = program(torch.zeros(2, 5, device="meta"))
    assert cos.device.type == sin.device.type == "meta"


@each_rule
@pytest.mark.parametrize("strict", [True, False])
def test_torch_export_with_a_dynamic_length(rule, strict):
    class Tables(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return of_size(x, rule)

    sizes = {"x": {1: torch.export.Dim("seq", min=2, max=10 * TRAINED)}}
    example = (torch.zeros(2, 16),)
    exported = torch.export.export(
        Tables(), example, dynamic_shapes=sizes, strict=strict
    )
    for seq_len in LENGTHS[:4]:
        found = exported.module()(torch.zeros(2, seq_len))
        assert_same_tables(found, rule, np.arange(seq_len, dtype=np.int32), seq_len)


# One length for a sequence -------------------------------------------------------------------------------------------

SEQ = 6


def decoded(
    twin: Any, rule: str, chunk: int, length_at: Callable[[int], int]
) -> np.ndarray:
    """Attention in chunks, with keys that stay as they were rotated; `length_at` says at what length each chunk is."""
    keys = {"original_max_position_embeddings": 4, "max_position_embeddings": 4}
    fields = {k: keys.get(k, v) for k, v in BY_LENGTH[rule].items()}
    package = twin.package
    spec = package.RopeConfig(8, scaling=getattr(package, RULES[rule])(**fields))
    # [query, key, value], each [1, SEQ, 2, 8].
    q, k, v = 3 * np.random.default_rng(3).normal(size=(3, 1, SEQ, 2, 8))
    cache, out = np.zeros((1, 0, 2, 8)), []
    for start in range(0, SEQ, chunk):
        rows = slice(start, start + chunk)
        seq_len = length_at(start + chunk)
        cos_sin = twin.call(
            "rope_cos_sin",
            np.arange(SEQ)[rows],
            spec.inv_freq(seq_len, dtype=np.float64),
            attention_factor=float(spec.attention_factor(seq_len)),
            dtype=twin.float64,
        )
        query, key = (
            twin.call_heads("apply_rope", x[:, rows], *cos_sin, count=1) for x in (q, k)
        )
        cache = np.concatenate((cache, key), 1)
        seen = cache.shape[1]
        out.append(
            twin.call_heads(
                "dot_product_attention",
                query,
                cache,
                v[:, :seen],
                count=3,
                is_causal=True,
                query_positions=np.arange(SEQ)[rows],
                key_positions=np.arange(seen),
            )
        )
    return np.concatenate(out, 1)


@both
@each_rule
def test_chunks_are_the_whole_at_one_length(twin, rule):
    """huggingface/transformers#25104 (C1) and trymirai/uzu#604 (C18): keys cached under another length are wrong.

    In float64, sums over 6 keys of products of order 10.
    """
    whole = decoded(twin, rule, SEQ, lambda seen: SEQ)
    chunked = decoded(twin, rule, 2, lambda seen: SEQ)
    growing = decoded(twin, rule, 2, lambda seen: seen)
    np.testing.assert_allclose(chunked, whole, rtol=0, atol=1e-13)
    assert np.abs(growing - whole).max() > 1e-2


# Configurations ------------------------------------------------------------------------------------------------------


@both
@each_rule
def test_configs_are_values(twin, rule):
    first, second = (by_length(twin.package, rule) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert len({first, second}) == 1
    other = dataclasses.replace(first.scaling, factor=3.0)
    changed = dataclasses.replace(first, scaling=other)
    assert changed.scaling.factor == 3.0
    assert changed != first
    assert len({first, changed}) == 2
    assert dataclasses.replace(changed, scaling=first.scaling) == first
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.scaling.factor = 3.0


@both
def test_configs_of_different_rules_are_different(twin):
    package = twin.package
    linear, dynamic = package.LinearScaling(2.0), package.DynamicNtkScaling(2.0, 64)
    rules = [None, linear, dynamic, package.NtkScaling(2.0)]
    assert len({package.RopeConfig(8, scaling=rule) for rule in rules}) == 4


@both
def test_lists_become_tuples(twin):
    package = twin.package
    lists = package.LongRopeScaling(short(4), long(4), 64, 2.0)
    tuples = package.LongRopeScaling(tuple(short(4)), tuple(long(4)), 64, 2.0)
    assert lists == tuples
    assert hash(lists) == hash(tuples)
    assert isinstance(lists.short_factor, tuple)
    assert isinstance(lists.long_factor, tuple)
    axes = package.RopeConfig(8, axes=[0, 1, 0, 1]).axes
    assert axes == (0, 1, 0, 1)


@each_rule
def test_a_config_is_a_static_argument_of_jit(rule):
    traced = []

    def step(spec, seq_len):
        traced.append(spec)
        return spec.inv_freq(seq_len)

    program = jax.jit(step, static_argnums=0)
    spec = by_length(posenc_jax, rule)
    same = by_length(posenc_jax, rule)
    other = dataclasses.replace(spec, base=500_000.0)
    for given, traces in ((spec, 1), (same, 1), (other, 2), (spec, 2)):
        found = program(given, TRAINED)
        np.testing.assert_array_equal(found, given.inv_freq(TRAINED))
        assert len(traced) == traces


# What others got wrong -----------------------------------------------------------------------------------------------


class Fact(NamedTuple):
    """A rule, a length, and right frequencies: all of them, or those of a plain config, with their relative error."""

    config: dict[str, Any]
    rule: Callable[[Any], Any]
    seq_len: int | None
    expected: Any
    digits: float


def ramped(**options: Any) -> Callable[[Any], Any]:
    return lambda package: package.YarnScaling(4.0, 4096, **options)


def multiplied(package: Any) -> np.ndarray:
    """lablup/mlxcel#1355: what Llama 3.2's rule makes of plain frequencies, in six digits."""
    factors = [1.0] * 15 + [0.605573, 0.303743, 0.103448] + [1 / 32] * 14
    return package.RopeConfig(64, base=5e5).inv_freq() * np.array(factors)


D64 = {"head_dim": 64}
FACTS = {
    # huggingface/transformers#25104: the base in 7 digits.
    "C1_at_trained": Fact(
        D64,
        lambda package: package.DynamicNtkScaling(2.0, 2048),
        2048,
        lambda package: package.RopeConfig(64).inv_freq(),
        0.0,
    ),
    "C1_twice": Fact(
        D64,
        lambda package: package.DynamicNtkScaling(2.0, 2048),
        4096,
        lambda package: package.RopeConfig(64, base=31_082.24).inv_freq(),
        3e-7,
    ),
    # vllm-project/vllm#3488 and #5093: short sequences are plain.
    "C3_short": Fact(
        D64,
        lambda package: package.DynamicNtkScaling(2.0, 2048),
        100,
        lambda package: package.RopeConfig(64).inv_freq(),
        0.0,
    ),
    # vllm-project/vllm#52665: served below the trained length.
    "C4_served_below": Fact(
        D64 | {"base": 1000.0},
        lambda package: package.DynamicNtkScaling(2.0, 2048),
        512,
        lambda package: package.RopeConfig(64, base=1000.0).inv_freq(),
        0.0,
    ),
    # AI-Hypercomputer/maxtext#2294 and #3112; four digits.
    "C13_rounded": Fact(
        {"head_dim": 8}, ramped(), None, [1.0, 0.1, 0.00625, 0.00025], 1e-6
    ),
    "C13_unrounded": Fact(
        {"head_dim": 8},
        ramped(truncate=False),
        None,
        [1.0, 0.1, 0.006557, 0.00025],
        1e-4,
    ),
    # unslothai/unsloth#10681: the short set at the trained length itself.
    "C16_at": Fact(
        {"head_dim": 8},
        lambda package: package.LongRopeScaling([1.0] * 4, [4.0] * 4, 4096, 32.0),
        4096,
        [1.0, 0.1, 0.01, 0.001],
        1e-7,
    ),
    "C16_after": Fact(
        {"head_dim": 8},
        lambda package: package.LongRopeScaling([1.0] * 4, [4.0] * 4, 4096, 32.0),
        4097,
        [0.25, 0.025, 0.0025, 0.00025],
        1e-7,
    ),
    # lablup/mlxcel#1355 and ggml-org/llama.cpp#8650: parsed, never applied.
    "C19_llama_3_2": Fact(
        D64 | {"base": 5e5},
        lambda package: package.Llama3Scaling(32.0, 1.0, 4.0, 8192),
        None,
        multiplied,
        6e-6,
    ),
    "C19_llama_3_1": Fact(
        {"head_dim": 8, "base": 5e5},
        lambda package: package.Llama3Scaling(8.0, 1.0, 4.0, 8192),
        None,
        [1.0, 0.037606, 0.000525, 0.00000665],
        5e-4,
    ),
}


@both
@pytest.mark.parametrize("fact", FACTS.values(), ids=FACTS)
def test_inv_freq_is_right_where_others_were_wrong(twin, fact):
    """Facts of public threads; the tolerance is that of the digits given."""
    package = twin.package
    spec = package.RopeConfig(**fact.config, scaling=fact.rule(package))
    expected = fact.expected
    expected = expected(package) if callable(expected) else expected
    found = spec.inv_freq(fact.seq_len)
    np.testing.assert_allclose(found, expected, rtol=fact.digits, atol=0)


MAGNITUDES = {
    # turboderp-org/exllamav3#259 and vllm-project/vllm#48621: a ratio, or one logarithm
    "C6_ratio": ({"factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
    "C6_plain": ({"factor": 16.0}, 1.277259),
    # ml-explore/mlx-lm#1507 and vllm-project/vllm#46280: a given one was ignored
    "C7_given": ({"factor": 64.0, "attention_factor": 1.0}, 1.0),
    "C7_absent": ({"factor": 64.0}, 1.415888),
}


@both
@pytest.mark.parametrize("name", MAGNITUDES)
def test_attention_factor_is_right_where_others_were_wrong(twin, name):
    fields, expected = MAGNITUDES[name]
    rule = twin.package.YarnScaling(original_max_position_embeddings=4096, **fields)
    found = twin.package.RopeConfig(64, scaling=rule).attention_factor()
    assert found == pytest.approx(expected, abs=5e-7)


@both
@pytest.mark.parametrize(("mscale", "squared"), [(0.707, 1.589626), (1.0, 1.873854)])
def test_yarn_mscale_changes_scores_where_it_was_missing(twin, mscale, squared):
    """onnxruntime/mobius#548 (C10): with one visible key no softmax shows it, so with two."""
    factor = twin.package.yarn_mscale(40.0, mscale) ** 2
    assert factor == pytest.approx(squared, abs=5e-7)
    query, value = np.array([[[[2.0, 0.0]]]]), np.array([[[[0.0, 0.0]], [[1.0, 1.0]]]])
    key = np.array([[[[0.0, 0.0]], [[1.0, 0.0]]]])
    found = twin.call_heads(
        "dot_product_attention", query, key, value, count=3, scale=factor
    )
    # The second key has a score of 2 above the first: a sigmoid of it.
    np.testing.assert_allclose(found, 1 / (1 + math.exp(-2 * squared)), atol=1e-6)


@both
@pytest.mark.parametrize(
    ("keys", "unused"),
    [({"attn_factor": 1.0}, "attn_factor"), ({"truncated": False}, "truncated")],
)
def test_from_hf_names_a_key_that_nothing_uses(twin, keys, unused):
    """deepseek-ai/DeepSeek-R1#684 (C11): a misspelt key must not pass in silence."""
    given = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    given |= {"original_max_position_embeddings": 4096, **keys}
    with pytest.warns(UserWarning, match=f"do not use {unused}"):
        spec = twin.package.RopeConfig.from_hf(
            {"head_dim": 8, "rope_parameters": given}
        )
    assert spec.scaling == twin.package.YarnScaling(4.0, 4096)


@both
@pytest.mark.parametrize(
    ("trained", "truncate", "low", "high"),
    [
        (4096, True, 10, 23),
        (4096, False, 10.472, 22.513),
        # Kept within d - 1 = 63, and not within d / 2 - 1 = 31.
        (131_072, True, 22, 35),
    ],
)
def test_yarn_ramps_between_the_right_pairs(twin, trained, truncate, low, high):
    """keras-team/keras-hub#2981 (C12): rounded ends, and kept within d - 1."""
    package = twin.package
    rule = package.YarnScaling(4.0, trained, truncate=truncate)
    scaled = package.RopeConfig(64, scaling=rule).inv_freq(dtype=np.float64)
    plain = package.RopeConfig(64).inv_freq(dtype=np.float64)
    ramp = (1 - scaled / plain) / (1 - 1 / 4)
    expected = np.clip((np.arange(32) - low) / (high - low), 0, 1)
    # Three decimals of ends that are 12 pairs apart; float64 where they are whole.
    np.testing.assert_allclose(ramp, expected, atol=1e-4 if low % 1 else 1e-14)


@both
def test_yarn_differs_by_its_ends_as_reported(twin):
    """keras-team/keras-hub#2981 (C12): 1.0e-3 between rounded ends and others, 0.92 relative by the other clamp."""
    package = twin.package
    rounded, unrounded = (
        package.RopeConfig(
            64, scaling=package.YarnScaling(4.0, 4096, truncate=truncate)
        ).inv_freq()
        for truncate in (True, False)
    )
    assert np.abs(rounded - unrounded).max() == pytest.approx(1.0e-3, abs=5e-5)
    rule = package.YarnScaling(4.0, 131_072)
    last = package.RopeConfig(64, scaling=rule).inv_freq()[31]
    plain = package.RopeConfig(64).inv_freq()[31]
    # Kept within 31, the last pair would be interpolated whole.
    assert last / (plain / 4) - 1 == pytest.approx(0.92, abs=5e-3)
