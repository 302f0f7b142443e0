"""The four encodings as Flax Linen modules: they hold configuration and parameters, the functions hold the arithmetic.

Nothing but the learned table is stored: frequencies and slopes are constants of the compiled program.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array

from ._checks import check_choice, check_size, check_table_dtype
from ._flax_attention import make_attention_fn
from ._modules import (
    check_embeddings,
    check_rows,
    check_scores,
    check_sinusoidal,
    rope_config,
    rope_positions,
    score_key_positions,
    score_query_positions,
    token_positions,
)
from .alibi import KINDS, Kind, Rule, alibi_bias, alibi_slopes
from .learned import (
    INITS,
    OUT_OF_RANGE,
    Init,
    OutOfRange,
    init_position_table,
    learned_position_encoding,
)
from .rope import RopeConfig
from .rope_scaling import Scaling
from .sinusoidal import (
    Layout,
    Spacing,
    add_position_encoding,
    sinusoidal_position_encoding,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Real

__all__ = [
    "AlibiPositionEmbedding",
    "LearnedPositionalEncoding",
    "RotaryPositionEmbedding",
    "SinusoidalPositionalEncoding",
    "make_attention_fn",
]


class SinusoidalPositionalEncoding(nn.Module):
    """Add the sinusoidal encoding of each token's position: x + `sinusoidal_position_encoding`.

    Tutorials stop at `max_len` and fail on an odd `d_model`; here neither is a limit. The table is a constant of
    the compiled program, of the length that the program asks for.

    Args:
        max_len: Usual length, tokens. Nothing is stored, so it has no effect; it is here for the twin's sake.
        d_model: Channels of x.
        preset, base, layout, spacing, angle_scale, amplitude, padding_idx: As in `sinusoidal_position_encoding`, for
            one coordinate and an amplitude that is a number. (Tokens begin at 0 all the same: where a family begins
            later, as fairseq at `padding_idx` + 1, say so by `offset` or `positions`.)
        dtype: float32 or float64, of the encoding.
    Raises:
        TypeError, ValueError: if a size is not an int of at least 1, or as `sinusoidal_position_encoding`.
    Source:
        arXiv:1706.03762, section 3.5.
    """

    max_len: int
    d_model: int
    _: KW_ONLY
    preset: str = "paper"
    base: float | None = None
    layout: Layout | None = None
    spacing: Spacing | None = None
    angle_scale: float | None = None
    amplitude: float | Literal["rsqrt_dim"] | None = None
    padding_idx: int | None = None
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sinusoidal(
            self.max_len,
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

    def __call__(
        self,
        x: Float[Array, "*batch seq d_model"],
        *,
        positions: int | Real[Array, "*#batch seq"] | None = None,
        offset: int | Int[Array, "*#batch"] = 0,
    ) -> Float[Array, "*batch seq d_model"]:
        """Encode the positions of x.

        Args:
            x: Embeddings, any float dtype.
            positions: Tokens, [seq] or with batch axes; None means consecutive ones from `offset`.
            offset: Position of the first token, an int or integers for each batch row. May be traced, so that
                one compiled program serves every offset.
        Returns:
            x + encoding, in the shape and dtype of x.
        Raises:
            TypeError: if x is not floating-point, or positions or `offset` are of the wrong type.
            ValueError: if shapes do not fit, or both `positions` and `offset` are given.
        """
        check_embeddings(x, self.d_model)
        encoding = sinusoidal_position_encoding(
            token_positions(positions, offset, x, real=True),
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
        return add_position_encoding(x, encoding)


class LearnedPositionalEncoding(nn.Module):
    """Add the trained row of each token's position: x + table[positions].

    The table ends at `max_len`. What a position past it does is an argument; it is never the last row unasked.

    Args:
        max_len: Rows of `table`, tokens.
        d_model: Channels of x.
        table_init, stddev, preset: First value of `table`, as `init`, `stddev` and `preset` of `init_position_table` (a
            Linen module's `init` is a method of it).
        padding_idx: Row that begins as zero and stays as it is, or None.
        out_of_range: "error", "nan", "zero" or "clip", as in `learned_position_encoding`.
        dtype: float32 or float64, of `table`.
    Raises:
        TypeError, ValueError: as `init_position_table`, or if `out_of_range` is unknown.
    Source:
        arXiv:1705.03122, section 3.1.
    """

    max_len: int
    d_model: int
    _: KW_ONLY
    table_init: Init = "normal"
    stddev: float = 0.02
    preset: str = "paper"
    padding_idx: int | None = None
    out_of_range: OutOfRange = "error"
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("max_len", self.max_len)
        check_size("d_model", self.d_model)
        check_choice("table_init", self.table_init, INITS)
        check_choice("out_of_range", self.out_of_range, OUT_OF_RANGE)
        # The function checks the rest itself, without computing anything.
        jax.eval_shape(lambda: self._first_table(jax.random.key(0)))

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "*batch seq d_model"],
        *,
        positions: int | Int[Array, "*#batch seq"] | None = None,
        offset: int | Int[Array, "*#batch"] = 0,
    ) -> Float[Array, "*batch seq d_model"]:
        """Encode the positions of x.

        Args:
            x: Embeddings, any float dtype.
            positions: Tokens, [seq] or with batch axes; None means consecutive ones from `offset`.
            offset: Position of the first token, an int or integers for each batch row. May be traced, so that
                one compiled program serves every offset.
        Returns:
            x + encoding, in the shape and dtype of x.
        Raises:
            TypeError: if x is not floating-point, or positions or `offset` are not integers.
            ValueError: if shapes do not fit, both `positions` and `offset` are given, or a position is out of
                range under "error" (values that are not known inside `jax.jit` act as under "nan").
        """
        check_embeddings(x, self.d_model)
        tokens = token_positions(positions, offset, x)
        if positions is None and self.out_of_range == "error":
            check_rows(offset, x.shape[-2], self.max_len)
        table = self.param("table", self._first_table)
        encoding = learned_position_encoding(
            table, tokens, padding_idx=self.padding_idx, out_of_range=self.out_of_range
        )
        return add_position_encoding(x, encoding)

    def _first_table(self, key: Array) -> Array:
        return init_position_table(
            key,
            self.max_len,
            self.d_model,
            init=self.table_init,
            stddev=self.stddev,
            preset=self.preset,
            padding_idx=self.padding_idx,
            dtype=self.dtype,
        )


class RotaryPositionEmbedding(nn.Module):
    """Tabulate the cosines and sines that `apply_rope` and `apply_rotary_pos_emb` take.

    The tables have one column per rotated pair, dim / 2: half the width of those in tutorials, which hold
    every column twice. They are computed for the positions asked for, inside the program that uses them.

    Args:
        dim: Channels that rotate in each head, even.
        max_seq_len: Usual length, tokens. Nothing is stored, so it has no effect; it is here for the twin's sake.
        base: Base of the geometric progression of wavelengths.
        scaling: A rule of `rope_scaling` that does not depend on the length, or None. The tables have its factor.
        dtype: float32 or float64, of the tables.
    Raises:
        TypeError, ValueError: if `dim` is not even, a size is below 1, `base` not positive, or `scaling` another rule.
    Source:
        arXiv:2104.09864, eq. 15.
    """

    dim: int
    max_seq_len: int = 512
    _: KW_ONLY
    base: float = 10_000.0
    scaling: Scaling | None = None
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_table_dtype("dtype", self.dtype)
        rope_config(self.dim, self.max_seq_len, self.base, self.scaling)

    @property
    def config(self) -> RopeConfig:
        """The static description of the embedding."""
        return rope_config(self.dim, self.max_seq_len, self.base, self.scaling)

    @property
    def inv_freq(self) -> Float[np.ndarray | Array, " n"]:
        """Radians per token of each pair, [dim / 2] in `dtype`, on the host."""
        return self.config.inv_freq(dtype=self.dtype)

    def __call__(
        self,
        x: Float[Array, "*batch seq heads head_dim"] | None = None,
        seq_len: int | None = None,
        *,
        positions: int | Int[Array, "*positions"] | None = None,
        offset: int | Int[Array, "*batch"] = 0,
    ) -> tuple[Float[Array, "*positions n"], Float[Array, "*positions n"]]:
        """Tabulate the positions of x, of `seq_len` tokens, or those given.

        Args:
            x: Queries or keys, [..., seq, heads, head_dim]. Only its length is read, and only where neither
                `seq_len` nor `positions` is given (tutorials compare a missing `seq_len` with a number); then it
                must have at least 4 axes, since with 3 one cannot tell whether the first is a batch.
            seq_len: Tokens.
            positions: Tokens, of any shape; None means consecutive ones from `offset`.
            offset: Position of the first token, an int or integers for each batch row. May be traced, so that
                one compiled program serves every offset.
        Returns:
            cos and sin, [seq, dim / 2], [*offset, seq, dim / 2] or [*positions, dim / 2], in `dtype`.
        Raises:
            TypeError: if a length is not an int, or positions or `offset` are not integers.
            ValueError: if nothing is given, x has too few axes, or `positions` and also `seq_len` or `offset`.
        """
        at = rope_positions(x, seq_len, positions, offset)
        return self.config.cos_sin(at, dtype=self.dtype)


class AlibiPositionEmbedding(nn.Module):
    """Add ALiBi's linear bias to attention scores: scores + `alibi_bias`.

    Tutorials add the signed bias m (j - i), which rewards keys in the future wherever nothing masks them. The
    default here is the distance, -m |i - j|; under a causal mask all kinds but "future" give the same attention.

    Args:
        num_heads: Query heads.
        kind: As in `alibi_bias`, but for "manhattan" and "euclidean".
        rule, bias_max, num_biased: Of the slopes, as in `alibi_slopes`.
        dtype: float32 or float64, of the slopes and the bias.
    Raises:
        TypeError, ValueError: if `num_heads` is not an int of at least 1, or an option is unknown.
    Source:
        arXiv:2108.12409, section 3.
    """

    num_heads: int
    _: KW_ONLY
    kind: Kind = "symmetric"
    rule: Rule = "authors"
    bias_max: float = 8.0
    num_biased: int | None = None
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("num_heads", self.num_heads)
        check_choice("kind", self.kind, KINDS)
        check_table_dtype("dtype", self.dtype)
        _ = self.slopes

    @property
    def slopes(self) -> Float[np.ndarray, " heads"]:
        """[num_heads], logits per token, as from `alibi_slopes`."""
        return alibi_slopes(
            self.num_heads,
            rule=self.rule,
            bias_max=self.bias_max,
            num_biased=self.num_biased,
            dtype=self.dtype,
        )

    def __call__(
        self,
        attention_scores: Float[Array, "*batch heads q k"],
        seq_len_q: int | None = None,
        seq_len_k: int | None = None,
        *,
        query_positions: int | Int[Array, "*#batch q"] | None = None,
        key_positions: int | Int[Array, "*#batch k"] | None = None,
        offset: int | Int[Array, "*#batch"] | None = None,
    ) -> Float[Array, "*batch heads q k"]:
        """Bias scaled scores, before the mask and the softmax.

        Args:
            attention_scores: [..., heads, q, k], any float dtype.
            seq_len_q, seq_len_k: Their lengths, if anything; tutorials pass them.
            query_positions: Tokens, [q] or with batch axes. None means consecutive ones from `offset`; without
                that too, the queries are the last of the keys, as in a decoding step.
            key_positions: Tokens, [k] or with batch axes; None means 0, 1, 2, ...
            offset: Position of the first query, an int or integers for each batch row. May be traced, so that
                one compiled program serves every offset.
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
