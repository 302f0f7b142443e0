"""Planted faults: one line of one package changed, as people do get it wrong. The gate must see every one.

    python -m parity_tests.mutants        prints the kill table

A mutant is the package itself with a text replaced, loaded under another name; a text that does not occur exactly
once is an error, so no mutant can silently become the original.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import posenc_jax
import posenc_torch

from .implementations import cut_into
from .instrument import run
from .schemes import IMPLEMENTED, pairs

__all__ = ["MUTANTS", "Kill", "Mutant", "kill", "mutated"]

# In this order: is it another function, is it a worse one in float32, is it one in low precision?
DTYPES = ("float64", "float32", "bfloat16", "float16")
PROFILES = ("sparse", "packed", "dense")


@dataclass(frozen=True)
class Mutant:
    """`old` becomes `new` in `file`, e.g. "posenc_jax/rope.py"; `pair` is what should notice."""

    name: str
    file: str
    old: str
    new: str
    pair: str


@dataclass(frozen=True)
class Kill:
    """What noticed a mutant: the case, the verdict, and the worst error as a multiple of its bound."""

    case: str
    verdict: str
    ratio: float


def kill(mutant: Mutant) -> Kill | None:
    """Run the mutant's pair, from the plainest question on; None if it survives."""
    cut = mutant.pair.startswith(tuple(IMPLEMENTED))
    with mutated(mutant) as package, cut_into(4, package) if cut else nullcontext():
        if mutant.file.startswith("posenc_jax"):
            pair = pairs(package, posenc_torch)[mutant.pair]
        else:
            pair = pairs(posenc_jax, package)[mutant.pair]
        for dtype in DTYPES:
            for profile in (p for p in PROFILES if p in pair.profiles):
                try:
                    report = run(pair, dtype=dtype, profile=profile, seed=0, jit=False)
                except (TypeError, ValueError, RuntimeError) as error:
                    return Kill(f"{dtype},{profile}", type(error).__name__, 0.0)
                if not report.passed:
                    ratio = max(max(r.ratio_a, r.ratio_b) for r in report.rows)
                    return Kill(f"{dtype},{profile}", report.verdict, ratio)
    return None


@contextmanager
def mutated(mutant: Mutant) -> Iterator[ModuleType]:
    package, file = mutant.file.split("/", 1)
    origin = Path(sys.modules[package].__file__).parent
    name = f"{package}_mutant"
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(origin, Path(folder) / name)
        text = (copy / file).read_text()
        if text.count(mutant.old) != 1:
            raise ValueError(
                f"`old` of mutant {mutant.name!r} must occur once in {mutant.file}, "
                f"got {text.count(mutant.old)}."
            )
        (copy / file).write_text(text.replace(mutant.old, mutant.new))
        spec = importlib.util.spec_from_file_location(
            name, copy / "__init__.py", submodule_search_locations=[str(copy)]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
            yield module
        finally:
            for loaded in [m for m in sys.modules if m.partition(".")[0] == name]:
                del sys.modules[loaded]


_TABLE = [
    # RoPE
    ("sine without its minus", "posenc_jax/rope.py", "swapped * _join_pairs(-sin, sin, target)", "swapped * _join_pairs(sin, sin, target)", "rope.half.leading"),
    ("rotates the other way", "posenc_jax/rope.py", "swapped * _join_pairs(-sin, sin, target)", "swapped * _join_pairs(sin, -sin, target)", "rope.half.leading"),
    ("pairs not swapped", "posenc_jax/rope.py", "swapped = _join_pairs(second, first, target)", "swapped = _join_pairs(first, second, target)", "rope.interleaved.leading"),
    ("interleaved read as halves", "posenc_jax/rope.py", "return x[..., ::2], x[..., 1::2]", "return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]", "rope.interleaved.leading"),
    ("position + 1", "posenc_jax/rope.py", "positions.astype(dtype) * inv", "(positions + 1).astype(dtype) * inv", "rope.half.leading"),
    ("positions in bfloat16", "posenc_jax/rope.py", "positions.astype(dtype) * inv", "positions.astype(jnp.bfloat16).astype(dtype) * inv", "rope.half.leading"),
    ("frequencies in bfloat16", "posenc_jax/rope.py", "inv_freq.astype(dtype)", "inv_freq.astype(jnp.bfloat16).astype(dtype)", "rope.half.leading"),
    ("frequencies in float32 only", "posenc_jax/rope.py", "inv_freq.astype(dtype)", "inv_freq.astype(jnp.float32).astype(dtype)", "rope.half.leading"),
    ("tables in bfloat16", "posenc_jax/rope.py", "rotary, cos, sin = (part.astype(dtype) for part in (rotary, cos, sin))", "cos, sin = (part.astype(jnp.bfloat16).astype(dtype) for part in (cos, sin))\n    rotary = rotary.astype(dtype)", "rope.half.leading"),
    ("exponent over head_dim", "posenc_jax/rope.py", "whole = geometric(self.base, self._width)", "whole = geometric(self.base, self.head_dim)[: self._width // 2]", "rope.half.leading"),
    ("base ignored", "posenc_jax/rope.py", "whole = geometric(self.base, self._width)", "whole = geometric(10_000.0, self._width)", "rope.half.leading"),
    ("heads rolled by one", "posenc_jax/rope.py", "rotary, rest = _split_rotary(x, 2", "rotary, rest = _split_rotary(jnp.roll(x, 1, -2), 2", "rope.half.leading"),
    ("trailing slice taken from the front", "posenc_jax/rope.py", "return x[..., x.shape[-1] - width :], x[..., : x.shape[-1] - width]", "return x[..., :width], x[..., width:]", "rope.half.trailing"),
    ("inverse ignored", "posenc_jax/rope.py", "sin = -sin if inverse else sin", "sin = sin", "rope_apply.half.leading.inverse"),
    ("rotated in the dtype of x", "posenc_jax/rope.py", "dtype = compute_dtype(x, cos, sin)\n    rotary, rest", "dtype = x.dtype\n    rotary, rest", "rope.half.leading"),
    ("no gradient to x", "posenc_jax/rope.py", "return _join_rotary(rotated.astype(x.dtype)", "return _join_rotary(jax.lax.stop_gradient(rotated).astype(x.dtype)", "rope.half.leading"),
    ("backward rotates forward", "posenc_jax/rope.py", "    rotated = rotated + swapped * _join_pairs(-sin, sin, target)\n", "    back = rotated + swapped * _join_pairs(sin, -sin, target)\n    ahead = rotated + swapped * _join_pairs(-sin, sin, target)\n    rotated = jax.lax.stop_gradient(ahead - back) + back\n", "rope.half.leading"),
    ("backward forgets one half of the sine", "posenc_jax/rope.py", "swapped * _join_pairs(-sin, sin, target)", "swapped * _join_pairs(-sin, jax.lax.stop_gradient(sin), target)", "rope_apply.half.leading"),
    ("sine without its minus", "posenc_torch/rope.py", "_join_pairs(-sin, sin, target)", "_join_pairs(sin, sin, target)", "rope.interleaved.trailing"),
    ("position + 1", "posenc_torch/rope.py", "positions.to(dtype) * inv", "(positions + 1).to(dtype) * inv", "rope.half.leading"),
    ("positions in float16", "posenc_torch/rope.py", "positions.to(dtype) * inv", "positions.to(torch.float16).to(dtype) * inv", "rope.half.leading"),
    ("frequencies in float16", "posenc_torch/rope.py", "inv_freq.to(dtype)", "inv_freq.to(torch.float16).to(dtype)", "rope.half.leading"),
    ("gradient detached", "posenc_torch/rope.py", "rotary, cos, sin = (part.to(dtype)", "rotary, cos, sin = (part.detach().to(dtype)", "path.rope"),
    ("tokens in reverse", "posenc_torch/rope.py", "_rotate(x, cos.unsqueeze(-3)", "_rotate(x, cos.unsqueeze(-3).flip(-2)", "rope.half.leading"),
    ("float16 rotated in float16", "posenc_jax/rope.py", "dtype = compute_dtype(x, cos, sin)\n    rotary, rest", "dtype = x.dtype if x.dtype == jnp.float16 else compute_dtype(x, cos, sin)\n    rotary, rest", "rope.half.leading"),
    ("sign of the position lost", "posenc_jax/rope.py", "positions.astype(dtype) * inv", "jnp.abs(positions).astype(dtype) * inv", "rope.half.leading"),
    ("attention factor on the cosine only", "posenc_jax/rope.py", "jnp.sin(angle) * factor", "jnp.sin(angle)", "rope.half.leading"),
    ("attention factor not learnable", "posenc_torch/rope.py", "torch.sin(angle) * attention_factor", "torch.sin(angle) * torch.as_tensor(attention_factor).detach()", "rope.half.leading.learnt_factor"),
    ("layout forgotten for the keys", "posenc_jax/rope.py", "apply_rope(k, cos, sin, layout=layout)", "apply_rope(k, cos, sin)", "rope_apply.pairwise"),
    ("written as it was read", "posenc_jax/rope.py", "else (\"interleaved\", \"half\")", "else (\"interleaved\", \"interleaved\")", "rope.interleaved_to_half.leading"),
    ("turned back from where it was found", "posenc_torch/rope.py", "return (\"half\", \"interleaved\") if inverse else (\"interleaved\", \"half\")", "return (\"interleaved\", \"half\")", "rope_apply.interleaved_to_half.trailing.inverse"),
    ("swapped from the order that was read", "posenc_torch/rope.py", "        rotary = _join_pairs(first, second, target)", "        rotary = rotary", "rope_apply.interleaved_to_half.leading"),
    # RoPE with axes
    ("first coordinate for every pair", "posenc_jax/rope.py", "coordinate = positions[..., axis : axis + 1]", "coordinate = positions[..., :1]", "rope_axes.mrope"),
    ("axes in reverse", "posenc_torch/rope.py", "coordinate = positions[..., axis : axis + 1]", "coordinate = positions[..., -axis : positions.shape[-1] - axis + 1]", "rope_axes.mrope"),
    ("height and width exchanged in turn", "posenc_jax/rope_axes.py", "i % 3 if i < 3 * sections[i % 3] else 0", "-i % 3 if i < 3 * sections[-i % 3] else 0", "rope_axes.mrope"),
    ("stride off by one", "posenc_torch/rope_axes.py", "i % 3 if i < 3 * sections[i % 3] else 0", "(i + 2) % 3 if i < 3 * sections[(i + 2) % 3] else 0", "rope_axes.mrope"),
    ("columns before rows", "posenc_torch/rope_axes.py", "return (1, 2) * height + (0,) * time", "return (2, 1) * height + (0,) * time", "rope_axes.mrope"),
    ("time before the rest", "posenc_jax/rope_axes.py", "return (1, 2) * height + (0,) * time", "return (0,) * time + (1, 2) * height", "rope_axes.mrope"),
    ("sections shifted by one pair", "posenc_jax/rope_axes.py", "return tuple(axis for axis, n in enumerate(sections) for _ in range(n))", "axes = tuple(axis for axis, n in enumerate(sections) for _ in range(n))\n        return axes[1:] + axes[-1:]", "rope_axes.mrope"),
    ("one progression for every axis", "posenc_jax/rope.py", "if self.axes is None or self.progression == \"shared\":", "if self.progression != \"alternating\":", "rope_axes.axial"),
    ("exponents of an axis over the whole width", "posenc_torch/rope.py", "geometric(self.base, 2 * count)[n]", "geometric(self.base, self._width)[n]", "rope_axes.axial"),
    ("axis by axis, not dealt", "posenc_torch/rope.py", "whole[n * count + a]", "whole[n + a * len(whole) // count]", "rope_axes.axial"),
    ("coordinates rounded to patches", "posenc_torch/rope.py", "positions.to(dtype) * inv", "positions.to(torch.int64).to(dtype) * inv", "rope_axes.axial"),
    ("coordinates not learnable", "posenc_jax/rope.py", "positions.astype(dtype) * inv", "jax.lax.stop_gradient(positions).astype(dtype) * inv", "rope_axes.axial"),
    # Scaling of RoPE
    ("multiplied by the factor", "posenc_jax/rope_scaling.py", "return [f / self.factor for f in geometric(base, rotary_dim)]", "return [f * self.factor for f in geometric(base, rotary_dim)]", "rope_scaled.rules"),
    ("exponent over head_dim where scaled", "posenc_torch/rope.py", "self.scaling._frequencies(self.base, self._width, seq_len)", "self.scaling._frequencies(self.base, self.head_dim, seq_len)[: self._width // 2]", "rope_scaled.rules"),
    ("alpha to the power of (d - 2) / d", "posenc_torch/rope_scaling.py", "exponents = [-2 * i / (rotary_dim - 2) for i in range(len(plain))]\n        terms", "exponents = [-2 * i * (rotary_dim - 2) / rotary_dim**2 for i in range(len(plain))]\n        terms", "rope_scaled.rules"),
    ("alpha to the power of 1", "posenc_jax/rope_scaling.py", "exponents = [-2 * i / (rotary_dim - 2) for i in range(len(plain))]\n        terms", "exponents = [-2 * i / rotary_dim for i in range(len(plain))]\n        terms", "rope_scaled.rules"),
    ("shrinks below the trained length", "posenc_torch/rope_scaling.py", "seq_len.clamp(min=trained) - trained", "(seq_len - trained)", "rope_scaled.by_length"),
    ("grows by the length alone", "posenc_jax/rope_scaling.py", "jnp.log1p(self.factor / trained * excess)", "jnp.log1p(1 / trained * excess)", "rope_scaled.by_length"),
    ("grows by the factor and the length", "posenc_torch/rope_scaling.py", "torch.log1p(self.factor / trained * excess)", "torch.log(self.factor * (1 + excess / trained))", "rope_scaled.by_length"),
    ("ramp kept within the pairs", "posenc_jax/rope_scaling.py", "min(high, rotary_dim - 1)", "min(high, rotary_dim // 2 - 1)", "rope_scaled.rules"),
    ("ends of the ramp always rounded", "posenc_torch/rope_scaling.py", "if self.truncate:", "if True:", "rope_scaled.rules"),
    ("ends of the ramp never rounded", "posenc_jax/rope_scaling.py", "if self.truncate:", "if False:", "rope_scaled.rules"),
    ("ramp reversed", "posenc_torch/rope_scaling.py", "f / self.factor * r + f * (1 - r)", "f / self.factor * (1 - r) + f * r", "rope_scaled.rules"),
    ("turns without 2 pi", "posenc_jax/rope_scaling.py", "math.log(wavelength / (2 * math.pi))", "math.log(wavelength)", "rope_scaled.rules"),
    ("magnitude squared", "posenc_jax/rope_scaling.py", "        return yarn_mscale(self.factor)\n", "        return yarn_mscale(self.factor) ** 2\n", "rope_scaled.rules"),
    ("magnitude ignored", "posenc_torch/rope_scaling.py", "        return yarn_mscale(self.factor)\n", "        return 1.0\n", "rope_scaled.rules"),
    ("magnitude given and ignored", "posenc_torch/rope_scaling.py", "        if self.attention_factor is not None:\n            return float(self.attention_factor)\n        if self.mscale", "        if self.mscale", "rope_scaled.rules"),
    ("ratio of magnitudes inverted", "posenc_jax/rope_scaling.py", "above = yarn_mscale(self.factor, self.mscale)\n            return above / yarn_mscale(self.factor, self.mscale_all_dim)", "above = yarn_mscale(self.factor, self.mscale)\n            return yarn_mscale(self.factor, self.mscale_all_dim) / above", "rope_scaled.rules"),
    ("long factors at the trained length", "posenc_jax/rope_scaling.py", "jnp.where(seq_len > trained", "jnp.where(seq_len >= trained", "rope_scaled.by_length"),
    ("long and short exchanged", "posenc_torch/rope_scaling.py", "torch.where(seq_len > trained, long, short)", "torch.where(seq_len > trained, short, long)", "rope_scaled.by_length"),
    ("magnitude of the short factors for all", "posenc_jax/rope_scaling.py", "return self._choose(self.short_mscale, self.long_mscale, seq_len)", "return self.short_mscale", "rope_scaled.by_length"),
    ("low and high exchanged", "posenc_torch/rope_scaling.py", "smooth = min(max(blend, 0), 1)", "smooth = min(max((turns - high) / (low - high), 0), 1)", "rope_scaled.rules"),
    ("blend left out", "posenc_jax/rope_scaling.py", "smooth = min(max(blend, 0), 1)", "smooth = float(turns > low)", "rope_scaled.rules"),
    ("exponent over the slice that rotates", "posenc_torch/rope_scaling.py", "plain = geometric(base, rotary_dim)\n        return [f / self.factor if i < rotating", "plain = geometric(base, 2 * rotating) + [0.0] * (rotary_dim // 2 - rotating)\n        return [f / self.factor if i < rotating", "rope_scaled.rules"),
    ("slow pairs rotate, fast ones stand", "posenc_jax/rope_scaling.py", "return [f / self.factor if i < rotating else 0.0 for i, f in enumerate(plain)]", "return [0.0 if i < len(plain) - rotating else f / self.factor for i, f in enumerate(plain)]", "rope_scaled.rules"),
    # Sinusoidal
    ("halves for interleaved", "posenc_jax/sinusoidal.py", "if layout == \"interleaved\":", "if layout == \"none\":", "sinusoidal.interleaved.dim.10"),
    ("sine and cosine exchanged", "posenc_jax/sinusoidal.py", "else (sin, cos)\n", "else (cos, sin)\n", "sinusoidal.half.dim.10"),
    ("endpoint not reached", "posenc_jax/sinusoidal.py", "return 1, max(half - 1, 1), half", "return 1, max(half, 1), half", "sinusoidal.half.endpoint.10"),
    ("odd width rounded up", "posenc_jax/sinusoidal.py", "width + width % 2 if spacing == \"next_even\" else width", "width + width % 2", "sinusoidal.interleaved.dim.7"),
    ("odd width not rounded up", "posenc_torch/sinusoidal.py", "width + width % 2 if spacing == \"next_even\" else width", "width", "sinusoidal.interleaved.next_even.7"),
    ("half of an odd width rounded up", "posenc_jax/sinusoidal.py", "half = width // 2\n    if spacing == \"half\"", "half = (width + 1) // 2\n    if spacing == \"half\"", "sinusoidal.half.half.7"),
    ("base ignored", "posenc_torch/sinusoidal.py", "inv_freq = [scale * base **", "inv_freq = [scale * 10_000.0 **", "sinusoidal.half_cos_first.dim.10"),
    ("angle scale ignored", "posenc_jax/sinusoidal.py", "inv_freq = [scale * base **", "inv_freq = [base **", "sinusoidal_grid.interleaved.endpoint"),
    ("axes in their own order", "posenc_jax/sinusoidal.py", "positions[..., axis] for axis in options.axes", "positions[..., axis] for axis in sorted(options.axes)", "sinusoidal_grid.interleaved.endpoint"),
    ("bases in the order of the blocks", "posenc_torch/sinusoidal.py", "[bases[axis] for axis in axes]", "list(bases)", "sinusoidal_grid.interleaved.endpoint"),
    ("blocks side by side", "posenc_torch/sinusoidal.py", "if options.layout == \"half_across_axes\":", "if options.layout == \"none\":", "sinusoidal_grid.half_across_axes.half"),
    ("exponents over all columns", "posenc_jax/sinusoidal.py", "exponents = _exponents(width, options.spacing)", "exponents = _exponents(width, options.spacing)\n    exponents = (exponents[0], _exponents(dim, options.spacing)[1], exponents[2])", "sinusoidal_grid.interleaved.endpoint"),
    ("amplitude not learnable", "posenc_torch/sinusoidal.py", "return encoding * torch.as_tensor(\n        amplitude, dtype=encoding.dtype, device=encoding.device\n    )", "return encoding * torch.as_tensor(amplitude, dtype=encoding.dtype).detach()", "sinusoidal_grid.interleaved.endpoint"),
    ("amplitude of half the width", "posenc_jax/sinusoidal.py", "dim**-0.5 if isinstance", "(dim // 2) ** -0.5 if isinstance", "sinusoidal_padding"),
    ("padding not zero", "posenc_jax/sinusoidal.py", "encoding = jnp.where(padding[..., None], 0, encoding)", "pass", "sinusoidal_padding"),
    ("gradient through the padding", "posenc_torch/sinusoidal.py", "encoding = encoding.masked_fill(padding[..., None], 0)", "encoding = encoding - (encoding * padding[..., None]).detach()", "sinusoidal_padding"),
    ("radians for turns", "posenc_jax/sinusoidal.py", "angle = 2 * math.pi * turns", "angle = turns", "sinusoidal_fourier"),
    ("Fourier frequencies frozen", "posenc_torch/sinusoidal.py", "coordinates[..., axis, None] * frequencies[axis]", "coordinates[..., axis, None] * frequencies[axis].detach()", "sinusoidal_fourier"),
    ("Fourier features by a product in bfloat16", "posenc_jax/sinusoidal.py", "coordinates = positions.astype(frequencies.dtype)", "coordinates = positions.astype(jnp.bfloat16).astype(frequencies.dtype)", "sinusoidal_fourier"),
    ("times in bfloat16", "posenc_torch/sinusoidal.py", "positions[..., None].to(dtype)", "positions[..., None].to(torch.bfloat16).to(dtype)", "sinusoidal.interleaved.dim.10"),
    ("encoding scaled by sqrt(dim)", "posenc_torch/sinusoidal.py", "(x.to(dtype) + encoding", "(x.to(dtype) * x.shape[-1] ** 0.5 + encoding", "path.sinusoidal"),
    # Learned
    ("outside is NaN, not zero", "posenc_jax/learned.py", "outside = 0 if out_of_range == \"zero\" else jnp.nan", "outside = jnp.nan", "learned.zero"),
    ("padding row trained", "posenc_torch/learned.py", "rows = torch.where(padding, rows.detach(), rows)", "pass", "learned.error.padding"),
    ("padding row read as zero", "posenc_jax/learned.py", "rows = jnp.where(padding, jax.lax.stop_gradient(rows), rows)", "rows = jnp.where(padding, 0, rows)", "learned.error.padding"),
    ("row and column exchanged", "posenc_jax/learned.py", "tables[axis], coordinates[..., axis], out", "tables[axis], coordinates[..., axis - 1] % len(tables[axis]), out", "learned_axial.concat"),
    ("tables multiplied", "posenc_torch/learned.py", "return sum(rows[1:], rows[0])", "return rows[0] * rows[1]", "learned_axial.sum"),
    ("the other cubic", "posenc_jax/_resize.py", "else -0.75", "else -0.5", "learned_resized.cubic"),
    ("the other cubic, antialiased", "posenc_torch/_resize.py", "-0.5 if antialias or method", "-0.5 if method", "learned_resized.cubic_antialiased"),
    ("not antialiased", "posenc_jax/_resize.py", "stretch = max(step, 1.0) if antialias else 1.0", "stretch = 1.0", "learned_resized.cubic_antialiased"),
    ("corners for centres", "posenc_torch/_resize.py", "if align_corners:", "if True:", "learned_resized.linear"),
    ("edge not renormalised", "posenc_jax/_resize.py", "weights /= weights.sum(-1, keepdims=True)", "pass", "learned_resized.keys_cubic"),
    ("edge renormalised", "posenc_torch/_resize.py", "    if antialias or method == \"keys_cubic\":\n        # A row", "    if True:\n        # A row", "learned_resized.cubic"),
    ("height and width exchanged", "posenc_torch/learned.py", "zip(old, new, factors, strict=True)", "zip(old, new[::-1], factors, strict=True)", "learned_resized.cubic"),
    ("prefix resized too", "posenc_jax/learned.py", "(table[:num_prefix], resized)", "(resized[:num_prefix], resized)", "learned_resized.cubic"),
    ("clamped lookup", "posenc_jax/learned.py", "if out_of_range == \"clip\":", "if out_of_range != \"error\":", "learned.nan"),
    ("row + 1", "posenc_jax/learned.py", "nearest = tokens.clip(0", "nearest = (tokens + 1).clip(0", "learned.clip"),
    ("negative counts from the end", "posenc_torch/learned.py", "nearest = tokens.clamp(0", "nearest = (tokens % table.shape[0]).clamp(0", "learned.clip"),
    ("table frozen", "posenc_torch/learned.py", "rows = table[nearest]", "rows = table.detach()[nearest]", "path.learned"),
    ("row 0 is padding, without gradient", "posenc_jax/learned.py", "rows = jnp.take(table,", "rows = jnp.take(table.at[0].set(jax.lax.stop_gradient(table[0])),", "learned.error"),
    # ALiBi
    ("slope exponent off by one", "posenc_jax/alibi.py", "-bias_max * (h + 1)", "-bias_max * h", "alibi.symmetric"),
    ("one geometric series for any head count", "posenc_jax/alibi.py", "(_geometric(power, bias_max) + between)[:biased]", "_geometric(biased, bias_max)", "alibi.symmetric"),
    ("slopes sorted", "posenc_torch/alibi.py", "torch.tensor(slopes + [0.0] * (num_heads - biased),", "torch.tensor(sorted(slopes + [0.0] * (num_heads - biased), reverse=True),", "alibi.symmetric"),
    ("largest exponent ignored", "posenc_jax/alibi.py", "2.0 ** (-bias_max *", "2.0 ** (-8.0 *", "alibi.symmetric"),
    ("slopes of all heads, the last ones cut", "posenc_torch/alibi.py", "biased = num_heads if num_biased is None else num_biased", "biased = num_heads", "alibi.symmetric"),
    ("bias grows with distance", "posenc_jax/_scores.py", "return -jnp.abs(ahead)", "return jnp.abs(ahead)", "path.alibi"),
    ("signed the wrong way", "posenc_torch/_scores.py", "        return ahead\n", "        return -ahead\n", "alibi.signed"),
    ("key kind by query", "posenc_torch/_scores.py", "return key.expand(", "return query.expand(", "alibi.key"),
    ("decode offset lost", "posenc_jax/alibi.py", "signed_distance(query[..., :, None], key", "signed_distance((query - query[..., :1])[..., :, None], key", "alibi.symmetric"),
    ("past and future exchanged", "posenc_jax/_scores.py", "if kind == \"past\" else", "if kind == \"future\" else", "alibi.past"),
    ("future for both", "posenc_torch/_scores.py", "return ahead.clamp(max=0) if kind == \"past\"", "return ahead.clamp(max=0) if kind == \"none\"", "alibi.past"),
    ("largest coordinate alone", "posenc_jax/alibi.py", "total = total + part(axis)", "total = jnp.maximum(total, part(axis))", "alibi.manhattan"),
    ("root forgotten", "posenc_torch/alibi.py", "else -total.sqrt()", "else -total", "alibi.euclidean"),
    ("slopes of the heads reversed", "posenc_jax/alibi.py", "slopes[:, None, None]", "slopes[::-1, None, None]", "alibi.symmetric"),
    ("distance in bfloat16", "posenc_jax/alibi.py", "distance[..., None, :, :].astype(slopes.dtype)", "distance[..., None, :, :].astype(jnp.bfloat16).astype(slopes.dtype)", "alibi.symmetric"),
    ("slopes not learnable", "posenc_torch/alibi.py", "slopes[:, None, None]", "slopes.detach()[:, None, None]", "alibi.symmetric"),
    # Attention
    ("slopes of the heads reversed in attention", "posenc_jax/_scores.py", "jnp.asarray(slopes)[:, None, None]", "jnp.asarray(slopes)[::-1, None, None]", "attention.alibi_symmetric"),
    ("slopes not learnable in attention", "posenc_torch/_scores.py", "else slopes[:, None, None]", "else slopes.detach()[:, None, None]", "attention.alibi_symmetric"),
    ("scale dropped", "posenc_jax/_scores.py", "query = query * jnp.asarray(terms.scale, query.dtype)", "query = query * 1", "attention.plain"),
    ("scale by the value width", "posenc_torch/attention.py", "1 / math.sqrt(head_dim)", "1 / math.sqrt(value.shape[-1])", "attention.plain"),
    ("key heads interleaved over query heads", "posenc_torch/_scores.py", "    return x.reshape(*batch, kv_heads, heads // kv_heads * tokens, columns)", "    x = x.reshape(*batch, heads // kv_heads, kv_heads, tokens, columns)\n    return x.transpose(-4, -3).reshape(*batch, kv_heads, -1, columns)", "attention.plain"),
    ("causal without the diagonal", "posenc_jax/_scores.py", "conditions.append(key.positions <= query.positions)", "conditions.append(key.positions < query.positions)", "attention.causal"),
    ("causal by index", "posenc_torch/_scores.py", "conditions.append(key.positions <= query.positions)", "conditions.append(torch.ones(query.positions.shape[-2], key.positions.shape[-1]).tril().bool())", "attention.causal"),
    ("window one too wide", "posenc_jax/_scores.py", "(apart >= 0) & (apart <= far)", "(apart >= 0) & (apart <= far + 1)", "attention.window"),
    ("window without its future side", "posenc_torch/_scores.py", "(apart >= 0) & (apart <= far)", "(query.positions >= key.positions) & (apart <= far)", "attention.window"),
    ("scale ignored", "posenc_jax/attention.py", "if scale is None:\n        scale", "if True:\n        scale", "attention.scale"),
    ("keys stand where queries stand", "posenc_torch/attention.py", "Tokens(positions[1], segments[1])", "Tokens(positions[0], segments[1])", "attention.alibi_symmetric"),
    ("segment ids exchanged", "posenc_jax/attention.py", "return query_ids, key_ids", "return key_ids, query_ids", "attention.segments"),
    ("mask of the first head for all", "posenc_torch/_scores.py", "conditions.append(mask)", "conditions.append(mask[:, :1])", "attention.per_head"),
    ("bias of the first head for all", "posenc_jax/_scores.py", "logits = logits + terms.bias.astype(dtype)", "logits = logits + terms.bias[..., :1, :, :].astype(dtype)", "attention.per_head"),
    ("softmax with a floor under its peak", "posenc_torch/_scores.py", "torch.exp(logits - finite(peak))", "torch.exp(logits - peak.clamp(min=-80.0))", "attention.deep_logits"),
    ("scale not learnable", "posenc_torch/_scores.py", "products(query * terms.scale, key)", "products(query * torch.as_tensor(terms.scale).detach(), key)", "attention.learnt_scale_and_cap"),
    ("cap not learnable", "posenc_jax/_scores.py", "cap = jnp.asarray(terms.softcap, dtype)", "cap = jax.lax.stop_gradient(jnp.asarray(terms.softcap, dtype))", "attention.learnt_scale_and_cap"),
    ("mask dropped", "posenc_jax/_scores.py", "conditions.append(mask)", "pass", "attention.mask"),
    ("mask inverted", "posenc_torch/_scores.py", "conditions.append(mask)", "conditions.append(~mask)", "attention.mask"),
    ("dead rows average the values", "posenc_jax/_scores.py", "jnp.where(allowed, logits, -math.inf)", "jnp.where(allowed, logits, -1e30)", "attention.mask"),
    ("segments ignored", "posenc_torch/_scores.py", "conditions.append(query.segment_ids == key.segment_ids)", "pass", "attention.segments"),
    ("cap not multiplied back", "posenc_jax/_scores.py", "logits = cap * jnp.tanh", "logits = jnp.tanh", "attention.softcap"),
    ("bias dropped", "posenc_jax/_scores.py", "logits = logits + terms.bias.astype(dtype)", "logits = logits", "attention.softcap"),
    ("softmax in half precision", "posenc_torch/_scores.py", "return compute_dtype(operands.query, *learnt)", "return operands.query.dtype", "attention.causal"),
    ("no gradient through the weights", "posenc_jax/_scores.py", "return average(weights, value)", "return average(jax.lax.stop_gradient(weights), value)", "attention.plain"),
    # Attention by blocks
    ("sum not rescaled to the new peak", "posenc_jax/kernels/blockwise.py", "total = total * decay + weights.sum(-1)", "total = total + weights.sum(-1)", "blockwise.rules"),
    ("outputs not rescaled to the new peak", "posenc_jax/kernels/blockwise.py", "out * decay[..., None] + average", "out + average", "blockwise.rules"),
    ("mean of the gradient not taken off", "posenc_jax/kernels/blockwise.py", "(d_weights - delta_i)", "d_weights", "blockwise.rules"),
    ("last block of keys left out", "posenc_jax/kernels/_blocks.py", "last = count - visit", "last = count - 1 - visit", "blockwise.rules"),
    ("first block of keys left out", "posenc_jax/kernels/_blocks.py", "first = visit.argmax(-1).astype(jnp.int32)", "first = visit.argmax(-1).astype(jnp.int32) + 1", "blockwise.rules"),
    ("blocks at the edge of the window left out", "posenc_jax/kernels/_blocks.py", "far = reach(rules.sliding_window, jnp.iinfo(low_q.dtype).max)", "far = reach(rules.sliding_window, jnp.iinfo(low_q.dtype).max) - 4", "blockwise.rules"),
    ("padded keys attended", "posenc_jax/kernels/_blocks.py", "key_tokens = key_tokens._replace(are_there=real)", "pass", "blockwise.rules"),
    ("keys of the block of the queries", "posenc_jax/kernels/_blocks.py", "take(key, j, k_block, -2)", "take(key, i, k_block, -2)", "blockwise.rules"),
    ("keys stand where the first block stands", "posenc_jax/kernels/_blocks.py", "Tokens(*(take(x, j, k_block, -1) for x in key_tokens))", "Tokens(*(take(x, 0 * j, k_block, -1) for x in key_tokens))", "blockwise.rules"),
    ("gradients of the last block of queries alone", "posenc_jax/kernels/_blocks.py", "there + part, start", "part, start", "blockwise.rules"),
    ("gradients put into the next block", "posenc_jax/kernels/_blocks.py", "start[axis] = index * size", "start[axis] = (index + 1) * size", "blockwise.rules"),
    ("learnt numbers of the last block alone", "posenc_jax/kernels/blockwise.py", "sums = jax.tree.map(jnp.add, totals", "sums = jax.tree.map(lambda _, part: part, totals", "blockwise.rules"),
    ("gradient of the bias by the block of queries", "posenc_jax/kernels/blockwise.py", "{-2: rows, -1: columns}", "{-2: rows, -1: rows}", "blockwise.per_head"),
    ("gradient of the scale along scaled queries", "posenc_jax/kernels/__init__.py", "d_scale = along / jnp.asarray(scale, d_query.dtype)", "d_scale = along", "blockwise.rules"),
    ("outputs not rescaled to the new peak", "posenc_jax/kernels/pallas_tpu.py", "acc[...] = acc[...] * decay + _dot", "acc[...] = acc[...] + _dot", "pallas_tpu.rules"),
    ("slope of the first head for all", "posenc_jax/kernels/pallas_tpu.py", "number(SLOPES + step.head)", "number(SLOPES)", "pallas_tpu.rules"),
    ("mean of the gradient not taken off", "posenc_jax/kernels/pallas_tpu.py", "(_dot(value, d_out, 1, 1) - stats[2:])", "_dot(value, d_out, 1, 1)", "pallas_tpu.rules"),
]  # fmt: skip

MUTANTS = [Mutant(*row) for row in _TABLE]


def main() -> int:
    survivors = 0
    width = max(len(mutant.name) for mutant in MUTANTS)
    print(f"{'fault':<{width}}  {'planted in':<26} {'seen by':<26} {'in':<16} verdict")
    for mutant in MUTANTS:
        found = kill(mutant)
        survivors += found is None
        seen = "SURVIVES" if found is None else f"{found.case:<16} {found.verdict}"
        line = f"{mutant.name:<{width}}  {mutant.file:<26} {mutant.pair:<26} {seen}"
        if found and found.ratio:
            line += f"  {found.ratio:.2g} x bound"
        print(line)
    print(f"{len(MUTANTS) - survivors} of {len(MUTANTS)} planted faults seen.")
    return survivors


if __name__ == "__main__":
    sys.exit(main())
