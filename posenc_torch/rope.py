"""Rotary position embedding (RoPE): rotate pairs of query and key channels by position times frequency.

Pair i of a token at position m turns by the angle

    angle[m, i] = m * inv_freq[i],    inv_freq[i] = base ** (-2 i / rotary_dim)

so a rotated query at m and a rotated key at n meet in a product that depends on m - n alone.

    S  tokens           H  heads            D  head_dim
    n  rotated pairs, rotary_dim / 2        x  queries or keys, [..., H, S, D]

Source: Su et al., "RoFormer", 2021, arXiv:2104.09864, eq. 14, 15 and 34.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from . import _exact, _hf
from ._checks import (
    as_axes,
    as_coordinates,
    as_floating,
    as_length,
    as_positions,
    as_table,
    check_choice,
    check_exact,
    check_factor,
    check_fits,
    check_flag,
    check_positive,
    check_rank,
    check_size,
    check_table_dtype,
    compute_dtype,
    host_dtype,
    is_array,
)
from ._progression import geometric
from .rope_scaling import Scaling

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Real

__all__ = [
    "RopeConfig",
    "apply_rope",
    "apply_rotary_pos_emb",
    "permute_rope_weights",
    "rope_cos_sin",
    "rotate_half",
]

Pairing = Literal["half", "interleaved"]
Layout = Literal["half", "interleaved", "interleaved_to_half"]
Placement = Literal["leading", "trailing"]
Progression = Literal["shared", "per_axis", "alternating"]
Angles = Literal["float32", "exact"]

PAIRINGS = ("half", "interleaved")
LAYOUTS = (*PAIRINGS, "interleaved_to_half")
PLACEMENTS = ("leading", "trailing")
PROGRESSIONS = ("shared", "per_axis", "alternating")
ANGLES = ("float32", "exact")
LARGEST = 2.0**127  # float32 holds any number below it


@dataclass(frozen=True)
class RopeConfig:
    """The static description of one rotary embedding; hashable, so it can be a static argument.

    `cos_sin` makes its tables and `apply` rotates by them; its fields are what the functions beneath take.

    Args:
        head_dim: Channels per head, D.
        base: Base of the geometric progression of wavelengths; the longest is close to 2 pi base tokens.
        rotary_dim: Channels that rotate, even; the rest pass through. None means all of them.
        layout: Which channels form pair i: "half" pairs (i, i + n), as in GPT-NeoX and Hugging Face's
            Llama; "interleaved" pairs (2i, 2i + 1), as in the paper, GPT-J and Meta's Llama;
            "interleaved_to_half" reads (2i, 2i + 1) and writes (i, i + n), as Hugging Face's DeepSeek-V3.
        placement: Whether the first ("leading") or the last ("trailing") `rotary_dim` channels rotate.
        inverse: Rotate by the negative angle (nanochat); see `apply_rope`.
        scaling: One of the rules of `rope_scaling`; None means plain RoPE.
        axes: Where positions have several coordinates, which of them each pair takes: n ints from 0 (`mrope_axes`).
        progression: Which frequency each pair takes where there are `axes`: "shared", that of its number among all
            (M-RoPE); "per_axis", that of its number among the pairs of its axis, each axis having a progression of
            its own (Qwen2-VL's vision tower, FLUX, DINOv3); "alternating", those of one progression in turn (Pixtral).
    Raises:
        ValueError, TypeError: if a field is out of its range or type, or the fields do not fit each other.
    """

    head_dim: int
    _: KW_ONLY
    base: float = 10_000.0
    rotary_dim: int | None = None
    layout: Layout = "half"
    placement: Placement = "leading"
    inverse: bool = False
    scaling: Scaling | None = None
    axes: tuple[int, ...] | None = None
    progression: Progression = "shared"

    def __post_init__(self) -> None:
        check_size("head_dim", self.head_dim)
        check_positive("base", self.base)
        check_choice("layout", self.layout, LAYOUTS)
        check_choice("placement", self.placement, PLACEMENTS)
        check_choice("progression", self.progression, PROGRESSIONS)
        check_flag("inverse", self.inverse)
        object.__setattr__(self, "base", float(self.base))
        rotary_dim = _as_rotary_dim(self.rotary_dim, self.head_dim)
        object.__setattr__(self, "rotary_dim", rotary_dim)
        _check_scaling(self.scaling, self.base, self._width, self.progression)
        if self.axes is not None:
            object.__setattr__(self, "axes", as_axes("axes", self.axes))
        _check_progression(self.progression, self.axes, self._width // 2)

    def inv_freq(
        self, seq_len: int | Int[Tensor, ""] | None = None, *, dtype: Any = "float32"
    ) -> Float[np.ndarray | Tensor, " n"]:
        """Angles per token of each pair, fastest first: base ** (-2 i / rotary_dim), or what `scaling` makes of it.

        Computed on the host in Python's float64 and rounded once to float32, so that both frameworks hold the same
        bits, in any compiled program too. (XLA rewrites a traced power: cosines then part by 4e-3 at position 131071.)

        Args:
            seq_len: Tokens that the model attends over, the last position plus one: needed by the rules that depend on
                it (`DynamicNtkScaling`, `LongRopeScaling`), the same for the others. One length for a whole sequence. A
                scalar array may be traced, so that one compiled program serves every length.
            dtype: float32 or float64. (The default is a name because `torch.compile` takes no NumPy type.)
        Returns:
            [n], radians per token: NumPy, or the framework's array where `seq_len` is one and the rule depends on it.
        Raises:
            TypeError: if dtype is neither float, or `seq_len` is not an integer.
            ValueError: if `seq_len` is needed and missing, an int that is negative or beyond int32, or a frequency
                is not finite.
        """
        dtype = host_dtype("dtype", dtype)
        seq_len = self._seq_len(seq_len)
        if self.scaling is None:
            frequencies: Any = self._plain()
        else:
            frequencies = self.scaling._frequencies(self.base, self._width, seq_len)
        if is_array(frequencies):
            return frequencies.to(getattr(torch, dtype))
        if not all(f < LARGEST for f in frequencies):
            raise ValueError(
                f"`base` and `scaling` must give finite frequencies, got {frequencies}."
            )
        return np.array(frequencies, dtype)

    def attention_factor(
        self, seq_len: int | Int[Tensor, ""] | None = None
    ) -> float | Float[Tensor, ""]:
        """The factor that `scaling` asks for, by which `rope_cos_sin` multiplies both tables; 1 for most rules.

        It stays apart from the rotation. Multiplying the tables scales the logits by its square, of queries and keys;
        where only some channels of a head rotate, only their part.

        Args:
            seq_len: As for `inv_freq`.
        Returns:
            A Python float; a scalar array where `seq_len` is one and the rule depends on it.
        Raises:
            TypeError, ValueError: as `inv_freq`.
        """
        seq_len = self._seq_len(seq_len)
        return 1.0 if self.scaling is None else self.scaling._attention_factor(seq_len)

    def cos_sin(
        self,
        positions: int | Real[Tensor, "*positions"],
        seq_len: int | Int[Tensor, ""] | None = None,
        *,
        angles: Angles = "float32",
        dtype: Any = torch.float32,
    ) -> tuple[Float[Tensor, "*positions n"], Float[Tensor, "*positions n"]]:
        """Tabulate the cosine and sine of every pair: `rope_cos_sin` with this configuration's frequencies.

        Args:
            positions: As for `rope_cos_sin`; [*positions, axes] where there are `axes`.
            seq_len: As for `inv_freq`.
            angles: "float32" or "exact", which takes the frequencies in float64 and wants a constant `seq_len`.
            dtype: float32 or float64, of the arithmetic and of the tables.
        Returns:
            cos and sin, [*positions, n], in `dtype`, times the attention factor.
        Raises:
            TypeError, ValueError: as `rope_cos_sin` and `inv_freq`.
        """
        check_table_dtype("dtype", dtype)
        check_choice("angles", angles, ANGLES)
        exact = angles == "exact"
        if exact and is_array(seq_len):
            raise TypeError(
                "`seq_len` must be an int for exact angles, whose frequencies are prepared "
                "on the host, got an array."
            )
        return rope_cos_sin(
            positions,
            self.inv_freq(seq_len, dtype="float64" if exact else dtype),
            attention_factor=self.attention_factor(seq_len),
            axes=self.axes,
            angles=angles,
            dtype=dtype,
        )

    def apply(
        self,
        x: Float[Tensor, "*batch heads seq head_dim"],
        cos: Float[Tensor, "*positions n"],
        sin: Float[Tensor, "*positions n"],
    ) -> Float[Tensor, "*batch heads seq head_dim"]:
        """Rotate queries or keys: `apply_rope` with this configuration's layout, placement and direction.

        Args:
            x: As for `apply_rope`, with heads of `head_dim` channels.
            cos, sin: As from `cos_sin`.
        Returns:
            Rotated x, same shape and dtype.
        Raises:
            TypeError, ValueError: as `apply_rope`; if x has heads of another width, or the tables of other pairs.
        """
        x, cos = as_floating("x", x), as_floating("cos", cos)
        _check_heads(x, cos, self.head_dim, self._width // 2)
        return apply_rope(
            x,
            cos,
            sin,
            layout=self.layout,
            placement=self.placement,
            inverse=self.inverse,
        )

    @classmethod
    def from_hf(cls, config: Any, *, layer_type: str | None = None) -> RopeConfig:
        """The rotary embedding of a model, from its Hugging Face configuration.

        Takes the current form, `rope_parameters` (flat or one dict per layer type), and the older ones:
        `rope_scaling`, `type` for `rope_type`, and `rope_theta`, `partial_rotary_factor` and
        `original_max_position_embeddings` beside it. What a model's code does and its configuration does not say
        (which channels form a pair, what part of a head rotates by default) comes from a table by `model_type`. A
        model that is not in it is taken to rotate halves, as Llama; the tests try every model of transformers.

        `head_dim` is that of the model's rotary embedding: for DeepSeek's latent attention, the slice that rotates.

        Positions are the caller's, with coordinates in the last axis. Vision towers count rows and columns from 0
        (Llama 4 and EfficientLoFTR from 1, with Llama 4's class token at 0, 0); DINOv3 and its kin take
        `2 * pi * patch_centres(height, width)`.

        Args:
            config: A configuration object, or a dict such as the contents of `config.json`, where that leaves no key to
                the default of the model's class. For a model of several parts, the part: `config.text_config`.
            layer_type: Which layers, such as "full_attention" or "sliding_attention", where they differ.
        Returns:
            A `RopeConfig`.
        Raises:
            TypeError: if config is neither an object nor a dict, or a value is of a wrong type.
            ValueError: if the rope type is unknown, a key is missing or out of its range, `layer_type` is missing or
                unknown, or a model is known to do what no `RopeConfig` describes.
        Warns:
            UserWarning: for a key of the rope parameters that their type does not use.
        Source:
            transformers 5, `modeling_rope_utils`.
        """
        return cls(**_hf.read(config, layer_type))

    def to_hf(
        self, model_type: str | None = None, *, layer_type: str | None = None
    ) -> Mapping[str, Any]:
        """The configuration keys from which `from_hf` gives this back, in Hugging Face's current form.

        Layout, placement, direction and the order of the axes are not among them: they are in each model's code.

        Args:
            model_type: The model; None means one that rotates halves, as Llama.
            layer_type: Which layers, for a model whose layers differ: the parameters are nested under it.
        Returns:
            A dict with `head_dim`, `rope_parameters`, `model_type` if given and, where a rule needs it,
            `max_position_embeddings`.
        Raises:
            ValueError: if the model's code does otherwise than this says, or a rule has no form in a configuration.
        """
        return _hf.write(self, model_type, layer_type)

    @property
    def _width(self) -> int:
        return self.head_dim if self.rotary_dim is None else self.rotary_dim

    def _plain(self) -> list[float]:
        """The progression of every axis, or of all."""
        whole = geometric(self.base, self._width)
        if self.axes is None or self.progression == "shared":
            return whole
        number = [self.axes[:i].count(axis) for i, axis in enumerate(self.axes)]
        if self.progression == "alternating":
            count = max(self.axes) + 1
            return [
                whole[n * count + a] for n, a in zip(number, self.axes, strict=True)
            ]
        pairs = [self.axes.count(axis) for axis in self.axes]
        terms = zip(number, pairs, strict=True)
        return [geometric(self.base, 2 * count)[n] for n, count in terms]

    def _seq_len(self, seq_len: Any) -> Any:
        seq_len = as_length("seq_len", seq_len)
        if seq_len is None and self.scaling is not None and self.scaling.needs_seq_len:
            raise ValueError(
                f"`seq_len` must be given for {type(self.scaling).__name__}, got None."
            )
        return seq_len


def rope_cos_sin(
    positions: int | Real[Tensor, "*positions"],
    inv_freq: Float[np.ndarray | Tensor, " n"],
    *,
    attention_factor: float | Float[Tensor, ""] = 1.0,
    axes: Sequence[int] | None = None,
    angles: Angles = "float32",
    dtype: Any = torch.float32,
) -> tuple[Float[Tensor, "*positions n"], Float[Tensor, "*positions n"]]:
    """Tabulate the cosine and sine of every pair's angle, one column per pair.

        cos[m, i] = cos(m * inv_freq[i]) * attention_factor,    sin likewise

    Args:
        positions: Token positions: an int n for 0..n-1, or an array of integers of any shape. With `axes`, an array
            [*positions, axes] of coordinates, integers or float32 or float64 (patch centres).
        inv_freq: Radians per token, [n], float32 or float64: `RopeConfig.inv_freq()` or a checkpoint's own.
        attention_factor: Scale of both tables, as YaRN and LongRoPE ask for: see
            `RopeConfig.attention_factor`.
        axes: Which coordinate of the position each pair takes, n ints from 0: `RopeConfig.axes`.
        angles: How the angle is formed. "float32": one product in `dtype`, what every float32 model does;
            the angle is then off by up to 7.8e-3 radians at position 131071. "exact": in integers, so that
            cos and sin are right to 1.2e-7 at every int32 position, and the same distance gives the same score
            wherever it is; `inv_freq` must be a constant, best in float64, and `dtype` float32.
        dtype: float32 or float64, of the arithmetic and of the tables.
    Returns:
        cos and sin, [*positions, n], in `dtype`.
    Raises:
        TypeError: if positions are not integers (or, with `axes`, an array of reals), or a dtype is not float32 or
            float64.
        ValueError: if `inv_freq` is not one axis, `axes` do not fit it or the positions, `angles` is unknown, or exact
            ones are asked for in float64, of a frequency that is not finite or a position that does not fit int32.
    Source:
        arXiv:2104.09864, eq. 15.
    """
    check_table_dtype("dtype", dtype)
    check_choice("angles", angles, ANGLES)
    check_factor("attention_factor", attention_factor)
    if axes is None:
        device = inv_freq.device if isinstance(inv_freq, Tensor) else None
        positions = as_positions("positions", positions, device=device)
    else:
        axes = as_axes("axes", axes)
        real = angles != "exact"
        positions = as_coordinates("positions", positions, axes, real=real)
    frequencies, inv_freq = inv_freq, as_table("inv_freq", inv_freq, positions.device)
    if inv_freq.ndim != 1:
        raise ValueError(f"`inv_freq` must be [n], got shape {tuple(inv_freq.shape)}.")
    # Frequencies made from a length that torch.compile traced are on the CPU.
    inv_freq = inv_freq.to(positions.device)
    positions = _coordinates(positions, axes, inv_freq.shape[0])
    if angles == "exact":
        check_exact(positions, dtype)
        turns = _exact.turns(frequencies)
        if isinstance(attention_factor, Tensor):
            cos, sin = _exact.cos_sin(positions, turns)
            return cos * attention_factor, sin * attention_factor
        return _exact.cos_sin(positions, turns, attention_factor)
    # A broadcast product, never a matmul: TF32 or bfloat16 passes would round the positions.
    angle = positions.to(dtype) * inv_freq.to(dtype)
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

    ("interleaved_to_half" has (2i, 2i + 1) on the right and (i, i + n) on the left.)

    Written as x cos + swap(x) sin, whose transpose has the same form: the backward pass is the inverse
    rotation and moves as many bytes as the forward pass.

    Args:
        x: Queries or keys, any float dtype.
        cos, sin: Tables with one column per pair, [seq, n] or [*batch, seq, n] (batch axes may be 1).
        layout: "half", "interleaved" or "interleaved_to_half"; see `RopeConfig`.
        placement: Rotate the first ("leading") or last ("trailing") 2n channels.
        inverse: Rotate back, by the negative angle (and from halves to neighbours, if `layout` went the other way).
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
    pairings = _pairings(layout, inverse)
    return _rotate(x, cos.unsqueeze(-3), sin.unsqueeze(-3), pairings, placement)


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
        layout: As for `apply_rope`.
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
    x: Float[Tensor, "*shape width"], *, layout: Pairing = "half"
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
    check_choice("layout", layout, PAIRINGS)
    if x.shape[-1] % 2:
        raise ValueError(f"`x` must have an even last axis, got {x.shape[-1]}.")
    first, second = _split_pairs(x, layout)
    return _join_pairs(-second, first, layout)


def permute_rope_weights(
    weight: Float[Tensor, " heads*head_dim *features"],
    num_heads: int,
    *,
    to: Pairing,
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
    check_choice("to", to, PAIRINGS)
    check_choice("placement", placement, PLACEMENTS)
    check_rank("weight", weight, "[num_heads * head_dim, ...]", at_least=1)
    head_dim = _head_dim(weight.shape[0], num_heads)
    width = _as_rotary_dim(rotary_dim, head_dim)
    channels_last = weight.movedim(0, -1)
    heads = channels_last.unflatten(-1, (num_heads, head_dim))
    rotary, rest = _split_rotary(heads, width, placement)
    (origin,) = set(PAIRINGS) - {to}
    rotary = _join_pairs(*_split_pairs(rotary, origin), to)
    permuted = _join_rotary(rotary, rest, placement)
    return permuted.flatten(-2).movedim(-1, 0)


def _coordinates(positions: Tensor, axes: tuple[int, ...] | None, pairs: int) -> Tensor:
    """The coordinate that each pair takes: [..., 1], or [..., axes] -> [..., pairs]."""
    if axes is None:
        return positions[..., None]
    _check_axis_count(axes, pairs)
    # Selects are elementwise, and fuse where a gather of channels would not.
    chosen = torch.tensor(axes, device=positions.device)
    coordinates = positions[..., :1].expand(*positions.shape[:-1], pairs)
    for axis in range(1, positions.shape[-1]):
        coordinate = positions[..., axis : axis + 1]
        coordinates = torch.where(chosen == axis, coordinate, coordinates)
    return coordinates


def _pairings(layout: Layout, inverse: bool) -> tuple[Pairing, Pairing]:
    """How pairs are read and how they are written."""
    if layout != "interleaved_to_half":
        return layout, layout
    return ("half", "interleaved") if inverse else ("interleaved", "half")


def _rotate(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    pairings: tuple[Pairing, Pairing],
    placement: Placement,
) -> Tensor:
    """x cos + swap(x) sin on the channels that rotate; tables have a heads axis."""
    source, target = pairings
    dtype = compute_dtype(x, cos, sin)
    rotary, rest = _split_rotary(x, 2 * cos.shape[-1], placement)
    rotary, cos, sin = (part.to(dtype) for part in (rotary, cos, sin))
    first, second = _split_pairs(rotary, source)
    if source != target:
        rotary = _join_pairs(first, second, target)
    rotated = rotary * _join_pairs(cos, cos, target)
    swapped = _join_pairs(second, first, target)
    rotated = rotated + swapped * _join_pairs(-sin, sin, target)
    return _join_rotary(rotated.to(x.dtype), rest, placement)


def _split_pairs(x: Tensor, layout: Pairing) -> tuple[Tensor, Tensor]:
    """First and second members of the pairs: [..., 2n] -> [..., n] and [..., n]."""
    if layout == "half":
        first, second = x.chunk(2, -1)
    else:
        first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    return first, second


def _join_pairs(first: Tensor, second: Tensor, layout: Pairing) -> Tensor:
    """The inverse of `_split_pairs`."""
    if layout == "half":
        return torch.cat((first, second), -1)
    return torch.stack((first, second), -1).flatten(-2)


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


def _as_rotary_dim(rotary_dim: Any, head_dim: int) -> int:
    """All channels where it is None."""
    if rotary_dim is None:
        if head_dim % 2:
            raise ValueError(
                f"`head_dim` must be even where `rotary_dim` is None, got {head_dim}."
            )
        return head_dim
    check_size("rotary_dim", rotary_dim, at_least=2)
    if rotary_dim % 2 or rotary_dim > head_dim:
        raise ValueError(
            f"`rotary_dim` must be even and at most `head_dim`, "
            f"got {rotary_dim} and {head_dim}."
        )
    return rotary_dim


def _check_scaling(
    scaling: Any, base: float, rotary_dim: int, progression: Progression
) -> None:
    if scaling is None:
        return
    if not isinstance(scaling, Scaling):
        raise TypeError(
            f"`scaling` must be a rule of `rope_scaling` or None, "
            f"got {type(scaling).__name__}."
        )
    if progression != "shared":
        raise ValueError(
            f"`scaling` must be None for the progression {progression!r}, "
            f"got {type(scaling).__name__}."
        )
    scaling._check(base, rotary_dim)


def _check_progression(
    progression: Progression, axes: tuple[int, ...] | None, pairs: int
) -> None:
    if axes is None:
        if progression != "shared":
            raise ValueError(
                f"`axes` must be given for the progression {progression!r}, got None."
            )
        return
    _check_axis_count(axes, pairs)
    counts = [axes.count(axis) for axis in range(max(axes) + 1)]
    if progression == "alternating" and len(set(counts)) > 1:
        raise ValueError(
            f"`axes` must have as many pairs each for the progression 'alternating', "
            f"got {counts}."
        )


def _check_axis_count(axes: tuple[int, ...], pairs: int) -> None:
    if len(axes) != pairs:
        raise ValueError(
            f"`axes` must have one int for each of {pairs} pairs, got {len(axes)}."
        )


def _check_heads(x: Tensor, cos: Tensor, head_dim: int, pairs: int) -> None:
    if x.ndim < 1 or x.shape[-1] != head_dim:
        raise ValueError(
            f"`x` must have heads of {head_dim} channels, got shape {tuple(x.shape)}."
        )
    if cos.ndim < 1 or cos.shape[-1] != pairs:
        raise ValueError(
            f"`cos` must have {pairs} columns, one per pair, got shape {tuple(cos.shape)}."
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
