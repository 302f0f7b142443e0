"""The four encodings as modules: they hold configuration and parameters, the functions hold the arithmetic.

Frequencies, slopes and tables are constants made on the host. They are buffers, so that they follow the module to
its device, but they are not in the state dict and no cast rounds them: see `_HostConstants`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ._checks import check_choice, check_size, check_table_dtype
from ._modules import (
    check_embeddings,
    check_left_out,
    check_rows,
    check_scores,
    check_sinusoidal,
    is_tabulated,
    rope_config,
    rope_length,
    score_key_positions,
    score_query_positions,
    token_positions,
)
from .alibi import KINDS, Kind, Rule, alibi_bias, alibi_slopes
from .learned import (
    OUT_OF_RANGE,
    Init,
    OutOfRange,
    init_position_table,
    learned_position_encoding,
)
from .positions import position_range
from .rope import rope_cos_sin
from .rope_scaling import Scaling
from .sinusoidal import (
    Layout,
    Spacing,
    add_position_encoding,
    sinusoidal_position_encoding,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int, Real

__all__ = [
    "AlibiPositionEmbedding",
    "LearnedPositionalEncoding",
    "RotaryPositionEmbedding",
    "SinusoidalPositionalEncoding",
]


class _HostConstants(nn.Module):
    """A module whose buffers are constants, made anew whenever the module is cast or moved.

    `.half()`, `.to(dtype)` and their like round every floating-point buffer, and a frequency in bfloat16 can put
    the angle at position 4096 off by 8 radians; `to_empty` leaves buffers unwritten. Here a cast changes none, and
    a module built on the meta device has them all after `to_empty(device=...)`.
    """

    def _constants(self) -> dict[str, Tensor]:
        """The buffers by name, computed on the default device."""
        raise NotImplementedError

    def _fill(self, device: torch.device) -> None:
        with torch.device(device):
            constants = self._constants()
        for name, constant in constants.items():
            self.register_buffer(name, constant.to(device), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self._fill(next(self.buffers(recurse=False)).device)
        return self


class SinusoidalPositionalEncoding(_HostConstants):
    """Add the sinusoidal encoding of each token's position: x + `sinusoidal_position_encoding`.

    Tutorials stop at `max_len` and fail on an odd `d_model`; here neither is a limit. Positions below `max_len`
    are read from a table, others computed.

    Args:
        max_len: Length of the table, tokens.
        d_model: Channels of x.
        preset, base, layout, spacing, angle_scale, amplitude, padding_idx: As in `sinusoidal_position_encoding`, for
            one coordinate and an amplitude that is a number. (Tokens begin at 0 all the same: where a family begins
            later, as fairseq at `padding_idx` + 1, say so by `offset` or `positions`.)
        dtype: float32 or float64, of the encoding; casting the module does not change it.
    Raises:
        TypeError, ValueError: if a size is not an int of at least 1, or as `sinusoidal_position_encoding`.
    Source:
        arXiv:1706.03762, section 3.5.
    """

    table: Tensor

    def __init__(
        self,
        max_len: int,
        d_model: int,
        *,
        preset: str = "paper",
        base: float | None = None,
        layout: Layout | None = None,
        spacing: Spacing | None = None,
        angle_scale: float | None = None,
        amplitude: float | Literal["rsqrt_dim"] | None = None,
        padding_idx: int | None = None,
        dtype: Any = torch.float32,
    ) -> None:
        super().__init__()
        check_sinusoidal(max_len, d_model, preset, amplitude)
        self.max_len, self.d_model = max_len, d_model
        self.preset, self.base = preset, base
        self.layout: Layout | None = layout
        self.spacing: Spacing | None = spacing
        self.angle_scale = angle_scale
        self.amplitude: float | Literal["rsqrt_dim"] | None = amplitude
        self.padding_idx = padding_idx
        self.dtype = dtype
        self._fill(torch.get_default_device())

    def forward(
        self,
        x: Float[Tensor, "*batch seq d_model"],
        *,
        positions: int | Real[Tensor, "*#batch seq"] | None = None,
        offset: int | Int[Tensor, "*#batch"] = 0,
    ) -> Float[Tensor, "*batch seq d_model"]:
        """Encode the positions of x.

        Args:
            x: Embeddings, any float dtype.
            positions: Tokens, [seq] or with batch axes; None means consecutive ones from `offset`.
            offset: Position of the first token, an int or integers for each batch row.
        Returns:
            x + encoding, in the shape and dtype of x.
        Raises:
            TypeError: if x is not floating-point, or positions or `offset` are of the wrong type.
            ValueError: if shapes do not fit, or both `positions` and `offset` are given.
        """
        check_embeddings(x, self.d_model)
        if positions is None and is_tabulated(offset, x.shape[-2], self.max_len):
            return add_position_encoding(x, self.table[offset : offset + x.shape[-2]])
        tokens = token_positions(positions, offset, x, real=True)
        return add_position_encoding(x, self._encode(tokens))

    def _encode(self, positions: int | Tensor) -> Tensor:
        return sinusoidal_position_encoding(
            positions,
            self.d_model,
            preset=self.preset,
            base=self.base,
            layout=self.layout,
            spacing=self.spacing,
            angle_scale=self.angle_scale,
            amplitude=self.amplitude,
            padding_idx=self.padding_idx,
            dtype=self.dtype,
        )

    def _constants(self) -> dict[str, Tensor]:
        return {"table": self._encode(self.max_len)}

    def extra_repr(self) -> str:
        """Show the sizes in the module's repr."""
        return f"{self.max_len}, {self.d_model}"


class LearnedPositionalEncoding(nn.Module):
    """Add the trained row of each token's position: x + table[positions].

    The table ends at `max_len`. What a position past it does is an argument; it is never the last row unasked.

    Args:
        max_len: Rows of `table`, tokens.
        d_model: Channels of x.
        init, stddev, preset: First value of `table`, as in `init_position_table`.
        padding_idx: Row that begins as zero and stays as it is, or None.
        out_of_range: "error", "nan", "zero" or "clip", as in `learned_position_encoding`.
        generator: Source of randomness; None means torch's default one.
        dtype: float32 or float64, of `table`; it is a parameter, so casting the module casts it.
    Raises:
        TypeError, ValueError: as `init_position_table`, or if `out_of_range` is unknown.
    Source:
        arXiv:1705.03122, section 3.1.
    """

    def __init__(
        self,
        max_len: int,
        d_model: int,
        *,
        init: Init = "normal",
        stddev: float = 0.02,
        preset: str = "paper",
        padding_idx: int | None = None,
        out_of_range: OutOfRange = "error",
        generator: torch.Generator | None = None,
        dtype: Any = torch.float32,
    ) -> None:
        super().__init__()
        check_size("max_len", max_len)
        check_size("d_model", d_model)
        check_choice("out_of_range", out_of_range, OUT_OF_RANGE)
        check_table_dtype("dtype", dtype)
        self.max_len, self.d_model = max_len, d_model
        self.init: Init = init
        self.stddev, self.preset, self.padding_idx = stddev, preset, padding_idx
        self.out_of_range: OutOfRange = out_of_range
        self.table = nn.Parameter(torch.empty(max_len, d_model, dtype=dtype))
        self.reset_parameters(generator=generator)

    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Set `table` to a new first value, as is needed after `to_empty`.

        Args:
            generator: Source of randomness; None means torch's default one.
        """
        double = self.table.dtype == torch.float64
        table = init_position_table(
            self.max_len,
            self.d_model,
            init=self.init,
            stddev=self.stddev,
            preset=self.preset,
            padding_idx=self.padding_idx,
            generator=generator,
            dtype=torch.float64 if double else torch.float32,
        )
        with torch.no_grad():
            self.table.copy_(table)

    def forward(
        self,
        x: Float[Tensor, "*batch seq d_model"],
        *,
        positions: int | Int[Tensor, "*#batch seq"] | None = None,
        offset: int | Int[Tensor, "*#batch"] = 0,
    ) -> Float[Tensor, "*batch seq d_model"]:
        """Encode the positions of x.

        Args:
            x: Embeddings, any float dtype.
            positions: Tokens, [seq] or with batch axes; None means consecutive ones from `offset`.
            offset: Position of the first token, an int or integers for each batch row.
        Returns:
            x + encoding, in the shape and dtype of x.
        Raises:
            TypeError: if x is not floating-point, or positions or `offset` are not integers.
            ValueError: if shapes do not fit, both `positions` and `offset` are given, or a position is out of
                range under "error" (values that are not known inside `torch.compile` act as under "nan").
        """
        check_embeddings(x, self.d_model)
        tokens = token_positions(positions, offset, x)
        if positions is None and self.out_of_range == "error":
            check_rows(offset, x.shape[-2], self.max_len)
        encoding = learned_position_encoding(
            self.table,
            tokens,
            padding_idx=self.padding_idx,
            out_of_range=self.out_of_range,
        )
        return add_position_encoding(x, encoding)

    def extra_repr(self) -> str:
        """Show the sizes in the module's repr."""
        return f"{self.max_len}, {self.d_model}"


class RotaryPositionEmbedding(_HostConstants):
    """Tabulate the cosines and sines that `apply_rope` and `apply_rotary_pos_emb` take.

    The tables have one column per rotated pair, dim / 2: half the width of those in tutorials, which hold
    every column twice. Past `max_seq_len` they are computed, at no loss; nothing needs to be rebuilt.

    Args:
        dim: Channels that rotate in each head, even.
        max_seq_len: Length of the stored tables, tokens.
        base: Base of the geometric progression of wavelengths.
        scaling: A rule of `rope_scaling` that does not depend on the length, or None. The tables have its factor.
        dtype: float32 or float64, of the tables; casting the module does not change it.
    Raises:
        TypeError, ValueError: if `dim` is not even, a size is below 1, `base` not positive, or `scaling` another rule.
    Source:
        arXiv:2104.09864, eq. 15.
    """

    inv_freq: Tensor
    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        dim: int,
        max_seq_len: int = 512,
        *,
        base: float = 10_000.0,
        scaling: Scaling | None = None,
        dtype: Any = torch.float32,
    ) -> None:
        super().__init__()
        check_table_dtype("dtype", dtype)
        self.config = rope_config(dim, max_seq_len, base, scaling)
        self.dim, self.max_seq_len = dim, max_seq_len
        self.base, self.scaling, self.dtype = base, scaling, dtype
        self._fill(torch.get_default_device())

    def forward(
        self,
        x: Float[Tensor, "*batch heads seq head_dim"] | None = None,
        seq_len: int | None = None,
        *,
        positions: int | Int[Tensor, "*positions"] | None = None,
        offset: int | Int[Tensor, "*batch"] = 0,
    ) -> tuple[Float[Tensor, "*positions n"], Float[Tensor, "*positions n"]]:
        """Tabulate the positions of x, of `seq_len` tokens, or those given.

        Args:
            x: Queries or keys, [..., heads, seq, head_dim]. Only its length is read, and only where neither
                `seq_len` nor `positions` is given (tutorials compare a missing `seq_len` with a number).
            seq_len: Tokens.
            positions: Tokens, of any shape; None means consecutive ones from `offset`.
            offset: Position of the first token, an int or integers for each batch row.
        Returns:
            cos and sin, [seq, dim / 2], [*offset, seq, dim / 2] or [*positions, dim / 2], in `dtype`.
        Raises:
            TypeError: if a length is not an int, or positions or `offset` are not integers.
            ValueError: if nothing is given, or `positions` and also `seq_len` or `offset`.
        """
        if positions is not None:
            check_left_out("seq_len", seq_len, None, given="positions")
            check_left_out("offset", offset, 0, given="positions")
            return self._tables(positions, self.inv_freq)
        seq_len = rope_length(x, seq_len)
        if is_tabulated(offset, seq_len, self.max_seq_len):
            end = offset + seq_len
            return self.cos[offset:end], self.sin[offset:end]
        positions = position_range(seq_len, offset=offset).to(self.inv_freq.device)
        return self._tables(positions, self.inv_freq)

    def _tables(self, positions: Any, inv_freq: Any) -> tuple[Tensor, Tensor]:
        factor = self.config.attention_factor()
        return rope_cos_sin(
            positions, inv_freq, attention_factor=factor, dtype=self.dtype
        )

    def _constants(self) -> dict[str, Tensor]:
        double = self.dtype == torch.float64
        inv_freq = self.config.inv_freq(dtype=np.float64 if double else np.float32)
        cos, sin = self._tables(self.max_seq_len, inv_freq)
        return {"inv_freq": torch.from_numpy(inv_freq), "cos": cos, "sin": sin}

    def extra_repr(self) -> str:
        """Show the sizes in the module's repr."""
        text = f"{self.dim}, max_seq_len={self.max_seq_len}, base={self.base}"
        return text if self.scaling is None else f"{text}, scaling={self.scaling}"


class AlibiPositionEmbedding(_HostConstants):
    """Add ALiBi's linear bias to attention scores: scores + `alibi_bias`.

    Tutorials add the signed bias m (j - i), which rewards keys in the future wherever nothing masks them. The
    default here is the distance, -m |i - j|; under a causal mask all kinds but "future" give the same attention.

    Args:
        num_heads: Query heads.
        kind: As in `alibi_bias`, but for "manhattan" and "euclidean".
        rule, bias_max, num_biased: Of the slopes, as in `alibi_slopes`.
        dtype: float32 or float64, of the slopes and the bias; casting the module does not change it.
    Attributes:
        slopes: [num_heads], logits per token, as from `alibi_slopes`.
    Raises:
        TypeError, ValueError: if `num_heads` is not an int of at least 1, or an option is unknown.
    Source:
        arXiv:2108.12409, section 3.
    """

    slopes: Tensor

    def __init__(
        self,
        num_heads: int,
        *,
        kind: Kind = "symmetric",
        rule: Rule = "authors",
        bias_max: float = 8.0,
        num_biased: int | None = None,
        dtype: Any = torch.float32,
    ) -> None:
        super().__init__()
        check_choice("kind", kind, KINDS)
        self.num_heads, self.dtype = num_heads, dtype
        self.kind: Kind = kind
        self.rule: Rule = rule
        self.bias_max, self.num_biased = bias_max, num_biased
        self._fill(torch.get_default_device())

    def forward(
        self,
        attention_scores: Float[Tensor, "*batch heads q k"],
        seq_len_q: int | None = None,
        seq_len_k: int | None = None,
        *,
        query_positions: int | Int[Tensor, "*#batch q"] | None = None,
        key_positions: int | Int[Tensor, "*#batch k"] | None = None,
        offset: int | Int[Tensor, "*#batch"] | None = None,
    ) -> Float[Tensor, "*batch heads q k"]:
        """Bias scaled scores, before the mask and the softmax.

        Args:
            attention_scores: [..., heads, q, k], any float dtype.
            seq_len_q, seq_len_k: Their lengths, if anything; tutorials pass them.
            query_positions: Tokens, [q] or with batch axes. None means consecutive ones from `offset`; without
                that too, the queries are the last of the keys, as in a decoding step.
            key_positions: Tokens, [k] or with batch axes; None means 0, 1, 2, ...
            offset: Position of the first query, an int or integers for each batch row.
        Returns:
            scores + bias, in the shape and dtype of `attention_scores`.
        Raises:
            TypeError: if scores are not floating-point, or positions or `offset` are not integers.
            ValueError: if shapes do not fit, what is given contradicts itself or says the same thing twice, or
                where the queries stand must be said: `key_positions` alone, or more queries than keys.
        """
        check_scores(attention_scores, self.num_heads)
        keys = score_key_positions(key_positions, seq_len_k, attention_scores)
        queries = score_query_positions(
            query_positions, offset, seq_len_q, attention_scores, key_positions
        )
        bias = alibi_bias(queries, keys, self.slopes, kind=self.kind)
        return add_position_encoding(attention_scores, bias)

    def _constants(self) -> dict[str, Tensor]:
        slopes = alibi_slopes(
            self.num_heads,
            rule=self.rule,
            bias_max=self.bias_max,
            num_biased=self.num_biased,
            dtype=self.dtype,
        )
        return {"slopes": slopes}

    def extra_repr(self) -> str:
        """Show the sizes in the module's repr."""
        return f"{self.num_heads}, kind={self.kind!r}"
