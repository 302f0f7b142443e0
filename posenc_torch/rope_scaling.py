"""Scaling rules: how RoPE's frequencies are stretched for contexts longer than those of training.

Every rule replaces the plain frequencies

    f[i] = base ** (-2 i / d),    i = 0 .. d/2 - 1

by others, and some also ask for an attention factor, by which both tables are multiplied.

    d  rotary_dim                                  s  factor
    L  seq_len: the length attended over, tokens   L0 original_max_position_embeddings, tokens

The fields have the names of Hugging Face's configuration (`rope_parameters`). Frequencies are computed on the host in
Python's float64, except from a length that is traced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._checks import (
    check_flag,
    check_length,
    check_positive,
    describe,
    is_array,
)
from ._progression import geometric

__all__ = [
    "DynamicNtkScaling",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "NtkScaling",
    "ProportionalScaling",
    "Scaling",
    "YarnScaling",
    "yarn_mscale",
]


@dataclass(frozen=True)
class Scaling:
    """What all rules are: the type of `RopeConfig.scaling`.

    `RopeConfig` asks a rule for its frequencies and its attention factor, at a `seq_len` that is None, an int, or a
    scalar array whose value may be traced.
    """

    needs_seq_len = False

    def _check(self, base: float, rotary_dim: int) -> None:
        """Raise where the rule has no meaning for this progression."""

    def _frequencies(
        self, base: float, rotary_dim: int, seq_len: Any
    ) -> list[float] | Tensor:
        """Radians per token of each pair: Python floats, or an array where `seq_len` is one."""
        return geometric(base, rotary_dim)

    def _attention_factor(self, seq_len: Any) -> float | Tensor:
        """The attention factor, likewise."""
        return 1.0


@dataclass(frozen=True)
class LinearScaling(Scaling):
    """Position interpolation: every frequency divided by the factor.

        f[i] / s

    Args:
        factor: How many times longer the context is.
    Raises:
        TypeError, ValueError: if `factor` is not a positive number.
    Source:
        Chen et al., 2023, arXiv:2306.15595. Hugging Face's "linear".
    """

    factor: float

    def __post_init__(self) -> None:
        _as_numbers(self, "factor")

    def _frequencies(
        self, base: float, rotary_dim: int, seq_len: Any
    ) -> list[float] | Tensor:
        return [f / self.factor for f in geometric(base, rotary_dim)]


@dataclass(frozen=True)
class NtkScaling(Scaling):
    """NTK-aware scaling by a fixed alpha: a larger base, so that the slowest pair is stretched by alpha.

        (base * alpha ** (d / (d - 2))) ** (-2 i / d)

    Args:
        alpha: How many times longer the slowest wavelength is.
    Raises:
        TypeError, ValueError: if `alpha` is not a positive number; in a config, if fewer than 4 channels rotate.
    Source:
        bloc97, "NTK-Aware Scaled RoPE", 2023; arXiv:2309.00071, eq. 16. HunYuan's "dynamic" with the key `alpha`.
    """

    alpha: float

    def __post_init__(self) -> None:
        _as_numbers(self, "alpha")

    def _check(self, base: float, rotary_dim: int) -> None:
        _check_ntk(rotary_dim)

    def _frequencies(
        self, base: float, rotary_dim: int, seq_len: Any
    ) -> list[float] | Tensor:
        # Its power applied to every frequency, since a base that large may overflow.
        plain = geometric(base, rotary_dim)
        exponents = [-2 * i / (rotary_dim - 2) for i in range(len(plain))]
        terms = zip(plain, exponents, strict=True)
        return [f * self.alpha**exponent for f, exponent in terms]


@dataclass(frozen=True)
class DynamicNtkScaling(Scaling):
    """NTK-aware scaling that grows with the length; up to L0 it is plain RoPE.

        f[i] * ratio ** (-2 i / (d - 2)),    ratio = s max(L, L0) / L0 - (s - 1)

    One sequence must use one length throughout: keys cached under another belong to another rotation.

    Args:
        factor: The factor s.
        max_position_embeddings: The trained length L0, tokens.
    Raises:
        TypeError, ValueError: if a field is not a positive number; in a config, if fewer than 4 channels rotate.
    Source:
        emozilla, 2023; arXiv:2309.00071, section 3.3. Hugging Face's "dynamic".
    """

    factor: float
    max_position_embeddings: int

    needs_seq_len = True

    def __post_init__(self) -> None:
        _as_numbers(self, "factor")
        check_length("max_position_embeddings", self.max_position_embeddings)

    def _check(self, base: float, rotary_dim: int) -> None:
        _check_ntk(rotary_dim)

    def _frequencies(
        self, base: float, rotary_dim: int, seq_len: Any
    ) -> list[float] | Tensor:
        plain = geometric(base, rotary_dim)
        exponents = [-2 * i / (rotary_dim - 2) for i in range(len(plain))]
        trained = self.max_position_embeddings
        if not is_array(seq_len):
            growth = math.log1p(self.factor * max(seq_len - trained, 0) / trained)
            terms = zip(plain, exponents, strict=True)
            return [f * math.exp(e * growth) for f, e in terms]
        excess = _as_real(seq_len.clamp(min=trained) - trained, seq_len.device)
        growth = torch.log1p(self.factor / trained * excess)
        stretch = torch.exp(_as_real(exponents, seq_len.device) * growth)
        return _as_real(plain, seq_len.device) * stretch


@dataclass(frozen=True)
class YarnScaling(Scaling):
    """YaRN: fast pairs as trained, slow pairs interpolated, a ramp between, and an attention factor.

        (1 - ramp[i]) f[i] + ramp[i] f[i] / s
        ramp[i] = clip((i - low) / (high - low), 0, 1)
        low = c(beta_fast), high = c(beta_slow),    c(r) = d ln(L0 / (2 pi r)) / (2 ln base)

    c(r) is the pair that turns r times in L0 tokens. (The paper's ramp is linear in the turns; the authors' code, and
    all that follow it, is linear in the number of the pair, as here.) low and high are rounded outwards if `truncate`,
    and kept within 0 and d - 1 (not d/2 - 1: that is how the authors and every implementation in use have it).

    The attention factor is `attention_factor` if given; the ratio of `yarn_mscale(s, mscale)` to
    `yarn_mscale(s, mscale_all_dim)` if both are given and neither is 0; `yarn_mscale(s)` otherwise.

    DeepSeek's models (and those that follow them) have both equal, so that the tables are a pure rotation, and multiply
    the softmax scale by `yarn_mscale(s, mscale_all_dim) ** 2` instead: pass that to attention as its `scale`.

    Args:
        factor: The factor s.
        original_max_position_embeddings: The trained length L0, tokens.
        attention_factor: The attention factor, where the configuration gives one.
        beta_fast: Turns in L0 tokens from which a pair stays as trained.
        beta_slow: Turns in L0 tokens below which a pair is interpolated.
        mscale: Weight of the logarithm in the numerator of the attention factor.
        mscale_all_dim: Weight of the logarithm in its denominator.
        truncate: Round the ends of the ramp to whole pairs. False in gpt-oss.
    Raises:
        TypeError, ValueError: if a field is not a positive number (`mscale` and `mscale_all_dim` may be 0), or
            `beta_fast` is below `beta_slow`; in a config, if the base is not above 1.
    Source:
        Peng et al., 2023, arXiv:2309.00071, section 3.4. Hugging Face's "yarn".
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        _as_numbers(self, "factor", "beta_fast", "beta_slow")
        check_length(
            "original_max_position_embeddings", self.original_max_position_embeddings
        )
        _as_numbers(self, "attention_factor", optional=True)
        for name in ("mscale", "mscale_all_dim"):
            # A zero is as none given; False is not a number.
            if type(getattr(self, name)) not in (int, float) or getattr(self, name):
                _as_numbers(self, name, optional=True)
        check_flag("truncate", self.truncate)
        if self.beta_fast < self.beta_slow:
            raise ValueError(
                f"`beta_fast` must be at least `beta_slow`, "
                f"got {self.beta_fast} and {self.beta_slow}."
            )

    def _check(self, base: float, rotary_dim: int) -> None:
        if base <= 1:
            raise ValueError(f"`base` must be above 1 for YarnScaling, got {base}.")

    def _frequencies(
        self, base: float, rotary_dim: int, seq_len: Any
    ) -> list[float] | Tensor:
        low, high = (
            self._pair(turns, base, rotary_dim)
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotary_dim - 1)
        if low == high:
            high += 0.001
        plain = geometric(base, rotary_dim)
        ramp = [min(max((i - low) / (high - low), 0), 1) for i in range(len(plain))]
        terms = zip(plain, ramp, strict=True)
        return [f / self.factor * r + f * (1 - r) for f, r in terms]

    def _attention_factor(self, seq_len: Any) -> float | Tensor:
        if self.attention_factor is not None:
            return float(self.attention_factor)
        if self.mscale and self.mscale_all_dim:
            above = yarn_mscale(self.factor, self.mscale)
            return above / yarn_mscale(self.factor, self.mscale_all_dim)
        return yarn_mscale(self.factor)

    def _pair(self, turns: float, base: float, rotary_dim: int) -> float:
        """The pair, between two as a rule, that makes so many turns in the trained length."""
        wavelength = self.original_max_position_embeddings / turns
        return rotary_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(base))


@dataclass(frozen=True)
class LongRopeScaling(Scaling):
    """LongRoPE: a factor searched for each pair, one set up to L0 and another above it, and an attention factor.

        f[i] / short_factor[i]    if L <= L0
        f[i] / long_factor[i]     if L >  L0

    The attention factor is `short_mscale` or `long_mscale` if given; `attention_factor` if given;
    sqrt(1 + ln s / ln L0) otherwise, and 1 for s <= 1. (The authors' other policy is YaRN's: give
    `attention_factor=yarn_mscale(s)`.)

    One sequence must use one length throughout: keys cached under the short set belong to another rotation.

    Args:
        short_factor: Divisors up to L0, one for each pair.
        long_factor: Divisors above L0, one for each pair.
        original_max_position_embeddings: The trained length L0, tokens.
        factor: The factor s, as a rule `max_position_embeddings` / L0.
        attention_factor: The attention factor, where the configuration gives one.
        short_mscale: The attention factor up to L0 (PhiMoE).
        long_mscale: The attention factor above L0 (PhiMoE).
    Raises:
        TypeError, ValueError: if a field or a divisor is not a positive number, only one mscale is given, or one with
            `attention_factor`; in a config, if there is not one divisor for each pair.
    Source:
        Ding et al., 2024, arXiv:2402.13753; the attention factor from microsoft/LongRoPE. Hugging Face's "longrope".
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    factor: float
    attention_factor: float | None = None
    short_mscale: float | None = None
    long_mscale: float | None = None

    needs_seq_len = True

    def __post_init__(self) -> None:
        for name in ("short_factor", "long_factor"):
            divisors = getattr(self, name)
            if not isinstance(divisors, (list, tuple)):
                raise TypeError(
                    f"`{name}` must be a tuple of numbers, got {describe(divisors)}."
                )
            for i, divisor in enumerate(divisors):
                check_positive(f"{name}[{i}]", divisor)
            object.__setattr__(self, name, tuple(map(float, divisors)))
        # At 1 the attention factor would divide by ln 1.
        trained = self.original_max_position_embeddings
        check_length("original_max_position_embeddings", trained, at_least=2)
        _as_numbers(self, "factor")
        optional = ("attention_factor", "short_mscale", "long_mscale")
        _as_numbers(self, *optional, optional=True)
        if (self.short_mscale is None) != (self.long_mscale is None):
            raise ValueError(
                f"`short_mscale` and `long_mscale` must be given together, "
                f"got {self.short_mscale} and {self.long_mscale}."
            )
        if self.short_mscale is not None and self.attention_factor is not None:
            raise ValueError(
                f"`attention_factor` must be left out where `short_mscale` is given, "
                f"got {self.attention_factor}."
            )

    def _check(self, base: float, rotary_dim: int) -> None:
        for name in ("short_factor", "long_factor"):
            if len(getattr(self, name)) != rotary_dim // 2:
                raise ValueError(
                    f"`{name}` must have one number for each of {rotary_dim // 2} "
                    f"pairs, got {len(getattr(self, name))}."
                )

    def _frequencies(
        self, base: float, rotary_dim: int, seq_len: Any
    ) -> list[float] | Tensor:
        plain = geometric(base, rotary_dim)
        short, long = (
            [f / divisor for f, divisor in zip(plain, divisors, strict=True)]
            for divisors in (self.short_factor, self.long_factor)
        )
        return self._choose(short, long, seq_len)

    def _attention_factor(self, seq_len: Any) -> float | Tensor:
        if self.short_mscale is not None and self.long_mscale is not None:
            return self._choose(self.short_mscale, self.long_mscale, seq_len)
        if self.attention_factor is not None:
            return float(self.attention_factor)
        if self.factor <= 1:
            return 1.0
        trained = self.original_max_position_embeddings
        return math.sqrt(1 + math.log(self.factor) / math.log(trained))

    def _choose(self, short: Any, long: Any, seq_len: Any) -> Any:
        trained = self.original_max_position_embeddings
        if not is_array(seq_len):
            return long if seq_len > trained else short
        short, long = (_as_real(each, seq_len.device) for each in (short, long))
        return torch.where(seq_len > trained, long, short)


@dataclass(frozen=True)
class Llama3Scaling(Scaling):
    """Llama 3.1: pairs of short wavelength as trained, of long wavelength interpolated, a blend between.

        smooth[i] = clip((L0 / wavelength[i] - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)
        (1 - smooth[i]) f[i] / s + smooth[i] f[i],    wavelength[i] = 2 pi / f[i]

    Args:
        factor: The factor s.
        low_freq_factor: Turns in L0 tokens below which a pair is interpolated.
        high_freq_factor: Turns in L0 tokens from which a pair stays as trained.
        original_max_position_embeddings: The trained length L0, tokens.
    Raises:
        TypeError, ValueError: if a field is not a positive number, or the high factor is below the low one.
    Source:
        meta-llama/llama-models, `apply_scaling`. Hugging Face's "llama3".
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        _as_numbers(self, "factor", "low_freq_factor", "high_freq_factor")
        check_length(
            "original_max_position_embeddings", self.original_max_position_embeddings
        )
        if self.high_freq_factor < self.low_freq_factor:
            raise ValueError(
                f"`high_freq_factor` must be at least `low_freq_factor`, "
                f"got {self.high_freq_factor} and {self.low_freq_factor}."
            )

    def _frequencies(
        self, base: float, rotary_dim: int, seq_len: Any
    ) -> list[float] | Tensor:
        low, high = self.low_freq_factor, self.high_freq_factor
        scaled = []
        for f in geometric(base, rotary_dim):
            turns = self.original_max_position_embeddings * f / (2 * math.pi)
            # Llama 4 has both factors 1: a step.
            blend = (turns - low) / (high - low) if high > low else turns >= low
            smooth = min(max(blend, 0), 1)
            scaled.append((1 - smooth) * f / self.factor + smooth * f)
        return scaled


@dataclass(frozen=True)
class ProportionalScaling(Scaling):
    """Gemma 4: the first pairs of a whole head rotate, the others have frequency 0 and stand still.

        f[i] / s    for i < partial_rotary_factor d / 2, rounded down
        0           for the others

    The exponent counts the whole head and pairs are those of the whole head, so this is not the leading slice that a
    smaller `rotary_dim` gives.

    Args:
        partial_rotary_factor: The part of the pairs that rotates, above 0 and at most 1.
        factor: The factor s.
    Raises:
        TypeError, ValueError: if a field is not a positive number, or the part is above 1; in a config, if no pair is
            left to rotate.
    Source:
        Hugging Face's "proportional" (Gemma 4).
    """

    partial_rotary_factor: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        _as_numbers(self, "partial_rotary_factor", "factor")
        if self.partial_rotary_factor > 1:
            raise ValueError(
                f"`partial_rotary_factor` must be at most 1, "
                f"got {self.partial_rotary_factor}."
            )

    def _check(self, base: float, rotary_dim: int) -> None:
        if self._rotating(rotary_dim) == 0:
            raise ValueError(
                f"`partial_rotary_factor` must leave a pair to rotate, "
                f"got {self.partial_rotary_factor} of {rotary_dim // 2} pairs."
            )

    def _frequencies(
        self, base: float, rotary_dim: int, seq_len: Any
    ) -> list[float] | Tensor:
        rotating = self._rotating(rotary_dim)
        plain = geometric(base, rotary_dim)
        return [f / self.factor if i < rotating else 0.0 for i, f in enumerate(plain)]

    def _rotating(self, rotary_dim: int) -> int:
        return int(self.partial_rotary_factor * rotary_dim // 2)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """YaRN's attention factor: 0.1 mscale ln(factor) + 1, and 1 where nothing is stretched.

    Args:
        factor: How many times longer the context is.
        mscale: Weight of the logarithm.
    Returns:
        A Python float, at least 1 for a positive weight.
    Raises:
        TypeError, ValueError: if an argument is not a positive number.
    Source:
        arXiv:2309.00071, eq. 22; DeepSeek's `yarn_get_mscale`.
    """
    check_positive("factor", factor)
    check_positive("mscale", mscale)
    return 0.1 * float(mscale) * math.log(factor) + 1 if factor > 1 else 1.0


def _as_numbers(rule: Scaling, *names: str, optional: bool = False) -> None:
    """Check these fields and make them Python's floats: NumPy's would round every frequency to their own precision."""
    for name in names:
        value = getattr(rule, name)
        if not (optional and value is None):
            check_positive(name, value)
            object.__setattr__(rule, name, float(value))


def _check_ntk(rotary_dim: int) -> None:
    if rotary_dim < 4:
        raise ValueError(
            f"`rotary_dim` must be at least 4 for NTK scaling, got {rotary_dim}."
        )


def _as_real(numbers: Any, device: torch.device) -> Tensor:
    return torch.as_tensor(numbers, dtype=torch.float64, device=device)
