"""Rotary position embedding (RoPE): rotate pairs of query and key channels by position times frequency.

Pair i of a token at position m turns by the angle

    angle[m, i] = m * inv_freq[i],    inv_freq[i] = base ** (-2 i / rotary_dim)

so a rotated query at m and a rotated key at n meet in a product that depends on m - n alone.

    S  tokens           H  heads            D  head_dim
    n  rotated pairs, rotary_dim / 2        x  queries or keys, [..., H, S, D]

Source: Su et al., "RoFormer", 2021, arXiv:2104.09864, eq. 14, 15 and 34.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from . import _exact
from ._checks import (
    as_exact_frequencies,
    as_floating,
    as_positions,
    as_table,
    check_choice,
    check_factor,
    check_fits,
    check_flag,
    check_int32,
    check_positive,
    check_rank,
    check_size,
    check_table_dtype,
    compute_dtype,
    dtype_name,
    host_dtype,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = [
    "RopeConfig",
    "apply_rope",
    "apply_rotary_pos_emb",
    "permute_rope_weights",
    "rope_cos_sin",
    "rotate_half",
]

Layout = Literal["half", "interleaved"]
Placement = Literal["leading", "trailing"]
Angles = Literal["float32", "exact"]

LAYOUTS = ("half", "interleaved")
PLACEMENTS = ("leading", "trailing")
ANGLES = ("float32", "exact")


@dataclass(frozen=True)
class RopeConfig:
    """The static description of one rotary embedding; hashable, so it can be a static argument.

    Its fields are what the functions take: `rope_cos_sin(positions, config.inv_freq())` for the tables, then
    `apply_rope(x, cos, sin, layout=config.layout, placement=config.placement)`.

    Args:
        head_dim: Channels per head, D.
        base: Base of the geometric progression of wavelengths; the longest is close to 2 pi base tokens.
        rotary_dim: Channels that rotate, even; the rest pass through. None means all of them.
        layout: Which channels form pair i: "half" pairs (i, i + n), as in GPT-NeoX and Hugging Face's
            Llama; "interleaved" pairs (2i, 2i + 1), as in the paper, GPT-J and Meta's Llama.
        placement: Whether the first ("leading") or the last ("trailing") `rotary_dim` channels rotate.
    Raises:
        ValueError, TypeError: if a field is out of its range or type.
    """

    head_dim: int
    _: KW_ONLY
    base: float = 10_000.0
    rotary_dim: int | None = None
    layout: Layout = "half"
    placement: Placement = "leading"

    def __post_init__(self) -> None:
        check_size("head_dim", self.head_dim)
        check_positive("base", self.base)
        check_choice("layout", self.layout, LAYOUTS)
        check_choice("placement", self.placement, PLACEMENTS)
        object.__setattr__(self, "base", float(self.base))
        if self.rotary_dim is None:
            object.__setattr__(self, "rotary_dim", self.head_dim)
        _check_rotary_dim(self.rotary_dim, self.head_dim)

    def inv_freq(self, *, dtype: Any = "float32") -> Float[np.ndarray, " n"]:
        """Angles per token of each pair, fastest first: base ** (-2 i / rotary_dim).

        Computed on the host in Python's float64 and rounded once to float32, so that both frameworks hold the same
        bits, in any compiled program too. (XLA rewrites a traced power: cosines then part by 4e-3 at position 131071.)

        Args:
            dtype: float32 or float64. (The default is a name because `torch.compile` takes no NumPy type.)
        Returns:
            NumPy array [n], radians per token.
        Raises:
            TypeError: if dtype is neither float.
        """
        dtype = host_dtype("dtype", dtype)
        width = self.head_dim if self.rotary_dim is None else self.rotary_dim
        return np.array(
            [self.base ** (-2 * i / width) for i in range(width // 2)], dtype
        )


def rope_cos_sin(
    positions: int | Int[Tensor, "*positions"],
    inv_freq: Float[np.ndarray | Tensor, " n"],
    *,
    attention_factor: float = 1.0,
    angles: Angles = "float32",
    dtype: Any = torch.float32,
) -> tuple[Float[Tensor, "*positions n"], Float[Tensor, "*positions n"]]:
    """Tabulate the cosine and sine of every pair's angle, one column per pair.

        cos[m, i] = cos(m * inv_freq[i]) * attention_factor,    sin likewise

    Args:
        positions: Token positions: an int n for 0..n-1, or an array of integers of any shape.
        inv_freq: Radians per token, [n], float32 or float64: `RopeConfig.inv_freq()` or a checkpoint's own.
        attention_factor: Scale of both tables, the magnitude that YaRN and LongRoPE ask for.
        angles: How the angle is formed. "float32": one product in `dtype`, what every float32 model does;
            the angle is then off by up to 7.8e-3 radians at position 131071. "exact": in integers, so that
            cos and sin are right to 1.2e-7 at every int32 position, and the same distance gives the same score
            wherever it is; `inv_freq` must be a constant, best in float64, and `dtype` float32.
        dtype: float32 or float64, of the arithmetic and of the tables.
    Returns:
        cos and sin, [*positions, n], in `dtype`.
    Raises:
        TypeError: if positions are not integers, or a dtype is not float32 or float64.
        ValueError: if `inv_freq` is not one axis, `angles` is unknown, or exact ones are asked for in float64,
            of a frequency that is not finite or a position that does not fit int32.
    Source:
        arXiv:2104.09864, eq. 15.
    """
    check_table_dtype("dtype", dtype)
    check_choice("angles", angles, ANGLES)
    check_factor("attention_factor", attention_factor)
    device = inv_freq.device if isinstance(inv_freq, Tensor) else None
    positions = as_positions("positions", positions, device=device)
    frequencies, inv_freq = inv_freq, as_table("inv_freq", inv_freq, positions.device)
    if inv_freq.ndim != 1:
        raise ValueError(f"`inv_freq` must be [n], got shape {tuple(inv_freq.shape)}.")
    if angles == "exact":
        _check_exact(positions, dtype)
        turns = _exact.turns(as_exact_frequencies("inv_freq", frequencies))
        cos, sin = _exact.cos_sin(positions, turns)
        return cos * attention_factor, sin * attention_factor
    # A broadcast product, never a matmul: TF32 or bfloat16 passes would round the positions.
    angle = positions[..., None].to(dtype) * inv_freq.to(dtype)
    return torch.cos(angle) * attention_factor, torch.sin(angle) * attention_factor


def apply_rope(
    x: Float[Tensor, "*batch heads seq head_dim"],
    cos: Float[Tensor, "*positions n"],
    sin: Float[Tensor, "*positions n"],
    *,
    layout: Layout = "half",
    placement: Placement = "leading",
    inverse: bool = False,
) -> Float[Tensor, "*batch heads seq head_dim"]:
    """Rotate 2n channels of every head by the tabulated angles and pass the others through.

        y[a] = x[a] cos[i] - x[b] sin[i]
        y[b] = x[b] cos[i] + x[a] sin[i]        (a, b) = (i, i + n) or (2i, 2i + 1)

    Written as x cos + swap(x) sin, whose transpose has the same form: the backward pass is the inverse
    rotation and moves as many bytes as the forward pass.

    Args:
        x: Queries or keys, any float dtype.
        cos, sin: Tables with one column per pair, [seq, n] or [*batch, seq, n] (batch axes may be 1).
        layout: "half" or "interleaved"; see `RopeConfig`.
        placement: Rotate the first ("leading") or last ("trailing") 2n channels.
        inverse: Rotate back, by the negative angle.
    Returns:
        Rotated x, same shape and dtype. Computed in float32 (float64 if x or a table is), rounded
        once at the end; channels that do not rotate are returned bit for bit.
    Raises:
        TypeError: if x or a table is not floating-point.
        ValueError: if shapes do not fit, or `layout` or `placement` is unknown.
    Source:
        arXiv:2104.09864, eq. 34. "half" is GPT-NeoX's order of the same channels.
    """
    x, cos, sin = as_floating("x", x), as_floating("cos", cos), as_floating("sin", sin)
    check_flag("inverse", inverse)
    _check_apply("x", x, cos, sin, layout, placement)
    sin = -sin if inverse else sin
    return _rotate(x, cos.unsqueeze(-3), sin.unsqueeze(-3), layout, placement)


def apply_rotary_pos_emb(
    q: Float[Tensor, "*batch heads seq head_dim"],
    k: Float[Tensor, "*batch kv_heads seq head_dim"],
    cos: Float[Tensor, "*positions n"],
    sin: Float[Tensor, "*positions n"],
    *,
    layout: Layout = "half",
) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by the same tables: `apply_rope` of each, in the usual pair-wise spelling.

    The tables have one column per pair, [seq, head_dim / 2]. Tutorials repeat them to head_dim columns;
    those are refused here, since they would ask for twice as many channels as there are.

    Args:
        q, k: Queries and keys at the same positions; the numbers of heads may differ. (Where keys are cached, rotate
            each by itself with `apply_rope`.)
        cos, sin: As from `rope_cos_sin` or `RotaryPositionEmbedding`.
        layout: "half" or "interleaved".
    Returns:
        Rotated q and k, each in its own shape and dtype.
    Raises:
        TypeError, ValueError: as `apply_rope`.
    """
    q, k = as_floating("q", q), as_floating("k", k)
    cos, sin = as_floating("cos", cos), as_floating("sin", sin)
    _check_apply("q", q, cos, sin, layout, "leading")
    _check_apply("k", k, cos, sin, layout, "leading")
    rotated_q = apply_rope(q, cos, sin, layout=layout)
    return rotated_q, apply_rope(k, cos, sin, layout=layout)


def rotate_half(
    x: Float[Tensor, "*shape width"], *, layout: Layout = "half"
) -> Float[Tensor, "*shape width"]:
    """Turn every pair of the last axis by a quarter: (x[a], x[b]) -> (-x[b], x[a]).

    Args:
        x: Any float dtype, an even number of channels.
        layout: "half" or "interleaved"; see `RopeConfig`.
    Returns:
        Same shape and dtype.
    Raises:
        TypeError, ValueError: if x is not floating-point or its last axis is odd.
    """
    x = as_floating("x", x)
    check_rank("x", x, "[..., width]", at_least=1)
    check_choice("layout", layout, LAYOUTS)
    if x.shape[-1] % 2:
        raise ValueError(f"`x` must have an even last axis, got {x.shape[-1]}.")
    first, second = _split_pairs(x, layout)
    return _join_pairs(-second, first, layout)


def permute_rope_weights(
    weight: Float[Tensor, " heads*head_dim *features"],
    num_heads: int,
    *,
    to: Layout,
    rotary_dim: int | None = None,
    placement: Placement = "leading",
) -> Float[Tensor, " heads*head_dim *features"]:
    """Reorder a query or key projection from one pair layout to the other.

    Attention with layout `to` on the permuted weights equals attention with the other layout on the old
    ones: queries and keys are permuted alike, and their products do not see a common permutation.

    Args:
        weight: `nn.Linear` weight [num_heads * head_dim, in_features], or a bias [num_heads * head_dim].
        num_heads: Heads of this projection (key heads for a grouped key projection).
        to: The layout the weights will be used with, "half" or "interleaved".
        rotary_dim: Channels that rotate in each head; None means all.
        placement: Where they are, "leading" or "trailing".
    Returns:
        Same shape and dtype; applying the function with the other `to` gives the weight back.
    Raises:
        TypeError, ValueError: if shapes do not divide or an option is unknown.
    Source:
        The permutation of Hugging Face's Llama weight conversion.
    """
    weight = as_floating("weight", weight)
    check_size("num_heads", num_heads)
    check_choice("to", to, LAYOUTS)
    check_choice("placement", placement, PLACEMENTS)
    check_rank("weight", weight, "[num_heads * head_dim, ...]", at_least=1)
    head_dim = _head_dim(weight.shape[0], num_heads)
    width = head_dim if rotary_dim is None else rotary_dim
    _check_rotary_dim(width, head_dim)
    channels_last = weight.movedim(0, -1)
    heads = channels_last.unflatten(-1, (num_heads, head_dim))
    rotary, rest = _split_rotary(heads, width, placement)
    (origin,) = set(LAYOUTS) - {to}
    rotary = _join_pairs(*_split_pairs(rotary, origin), to)
    permuted = _join_rotary(rotary, rest, placement)
    return permuted.flatten(-2).movedim(-1, 0)


def _rotate(
    x: Tensor, cos: Tensor, sin: Tensor, layout: Layout, placement: Placement
) -> Tensor:
    """x cos + swap(x) sin on the channels that rotate; tables have a heads axis."""
    dtype = compute_dtype(x, cos, sin)
    rotary, rest = _split_rotary(x, 2 * cos.shape[-1], placement)
    rotary, cos, sin = (part.to(dtype) for part in (rotary, cos, sin))
    rotated = rotary * _join_pairs(cos, cos, layout)
    rotated = rotated + _swap_pairs(rotary, layout) * _join_pairs(-sin, sin, layout)
    return _join_rotary(rotated.to(x.dtype), rest, placement)


def _split_pairs(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """First and second members of the pairs: [..., 2n] -> [..., n] and [..., n]."""
    if layout == "half":
        first, second = x.chunk(2, -1)
    else:
        first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    return first, second


def _join_pairs(first: Tensor, second: Tensor, layout: Layout) -> Tensor:
    """The inverse of `_split_pairs`."""
    if layout == "half":
        return torch.cat((first, second), -1)
    return torch.stack((first, second), -1).flatten(-2)


def _swap_pairs(x: Tensor, layout: Layout) -> Tensor:
    """Exchange the members of every pair."""
    first, second = _split_pairs(x, layout)
    return _join_pairs(second, first, layout)


def _split_rotary(x: Tensor, width: int, placement: Placement) -> tuple[Tensor, Tensor]:
    """The channels that rotate, and the rest."""
    if placement == "leading":
        return x[..., :width], x[..., width:]
    return x[..., x.shape[-1] - width :], x[..., : x.shape[-1] - width]


def _join_rotary(rotary: Tensor, rest: Tensor, placement: Placement) -> Tensor:
    """The inverse of `_split_rotary`."""
    if rest.shape[-1] == 0:
        return rotary
    parts = (rotary, rest) if placement == "leading" else (rest, rotary)
    return torch.cat(parts, -1)


def _head_dim(rows: int, num_heads: int) -> int:
    if rows % num_heads:
        raise ValueError(
            f"`weight` must have num_heads * head_dim rows, got {rows} and {num_heads}."
        )
    return rows // num_heads


def _check_rotary_dim(rotary_dim: Any, head_dim: int) -> None:
    check_size("rotary_dim", rotary_dim, at_least=2)
    if rotary_dim % 2 or rotary_dim > head_dim:
        raise ValueError(
            f"`rotary_dim` must be even and at most `head_dim`, "
            f"got {rotary_dim} and {head_dim}."
        )


def _check_exact(positions: Tensor, dtype: Any) -> None:
    check_int32("positions", positions)
    if dtype_name(dtype) != "float32":
        raise ValueError(
            f"`dtype` must be float32 for exact angles, got {dtype_name(dtype)}."
        )


def _check_apply(
    name: str, x: Tensor, cos: Tensor, sin: Tensor, layout: str, placement: str
) -> None:
    check_choice("layout", layout, LAYOUTS)
    check_choice("placement", placement, PLACEMENTS)
    check_rank(name, x, "[..., heads, seq, head_dim]", at_least=3)
    check_rank("cos", cos, "[..., seq, n]", at_least=2)
    check_fits("sin", sin.shape, cos.shape, exact=cos.ndim)
    *batch, _, seq, head_dim = x.shape
    pairs = cos.shape[-1]
    if not 1 <= pairs <= head_dim // 2:
        raise ValueError(
            f"`cos` must have one column per rotated pair, 1 to {head_dim // 2} "
            f"for a `head_dim` of {head_dim}, got {pairs}."
        )
    check_fits("cos", cos.shape, (*batch, seq, pairs), exact=2)
