"""What the module files need beside the functions: the positions that a call asks for, and checks of its form."""

from __future__ import annotations

from typing import Any

import jax
from jax import Array

from ._checks import (
    as_floating,
    as_positions,
    check_choice,
    check_fits,
    check_rank,
    check_size,
    describe,
    is_array,
)
from ._presets import LINE_NAMES
from .positions import last_positions, position_range
from .rope import RopeConfig
from .sinusoidal import sinusoidal_position_encoding


def token_positions(
    positions: Any, offset: Any, x: Array, *, real: bool = False
) -> Array:
    """Where the tokens of x [*batch, seq, d_model] stand."""
    *batch, seq, _ = x.shape
    if positions is None:
        positions = position_range(seq, offset=offset)
        check_fits("offset", positions.shape[:-1], batch, exact=0)
        return positions
    check_left_out("offset", offset, 0, given="positions")
    positions = as_positions("positions", positions, real=real)
    check_fits("positions", positions.shape, (*batch, seq), exact=1)
    return positions


def score_query_positions(
    positions: Any, offset: Any, length: Any, scores: Array, key_positions: Any
) -> Array:
    """Where the queries of scores [*batch, heads, q, k] stand."""
    *batch, _, q_len, k_len = scores.shape
    _check_length("seq_len_q", length, scores, axis=-2)
    if positions is not None:
        check_left_out("seq_len_q", length, None, given="query_positions")
        check_left_out("offset", offset, None, given="query_positions")
        positions = as_positions("query_positions", positions)
        check_fits("query_positions", positions.shape, (*batch, q_len), exact=1)
        return positions
    if offset is not None:
        positions = position_range(q_len, offset=offset)
        check_fits("offset", positions.shape[:-1], batch, exact=0)
        return positions
    if key_positions is not None:
        raise ValueError(
            "`query_positions` or `offset` must be given with `key_positions`, got None."
        )
    check_size("seq_len_k", k_len, at_least=q_len)
    return last_positions(q_len, k_len)


def score_key_positions(positions: Any, length: Any, scores: Array) -> Array:
    """Where the keys of scores [*batch, heads, q, k] stand."""
    *batch, _, _, k_len = scores.shape
    _check_length("seq_len_k", length, scores, axis=-1)
    if positions is None:
        return position_range(k_len)
    check_left_out("seq_len_k", length, None, given="key_positions")
    positions = as_positions("key_positions", positions)
    check_fits("key_positions", positions.shape, (*batch, k_len), exact=1)
    return positions


def rope_positions(x: Any, seq_len: Any, positions: Any, offset: Any) -> Any:
    """Positions to tabulate: those given, or `seq_len`, or the length of x [..., seq, heads, head_dim]."""
    if positions is not None:
        check_left_out("seq_len", seq_len, None, given="positions")
        check_left_out("offset", offset, 0, given="positions")
        return positions
    if seq_len is not None:
        check_size("seq_len", seq_len, at_least=0)
        return position_range(seq_len, offset=offset)
    if x is None:
        raise ValueError("`x`, `seq_len` or `positions` must be given, got None.")
    x = as_floating("x", x)
    if x.ndim < 4:
        raise ValueError(
            f"`x` must be [..., seq, heads, head_dim], at least 4 axes, so that its "
            f"length is certain, or `seq_len` or `positions` be given, "
            f"got shape {tuple(x.shape)}."
        )
    return position_range(x.shape[-3], offset=offset)


def rope_config(dim: int, max_seq_len: int, base: float, scaling: Any) -> RopeConfig:
    check_size("dim", dim, at_least=2)
    check_size("max_seq_len", max_seq_len)
    if dim % 2:
        raise ValueError(f"`dim` must be even, got {dim}.")
    config = RopeConfig(dim, base=base, scaling=scaling)
    if scaling is not None and scaling.needs_seq_len:
        raise ValueError(
            f"`scaling` must not depend on the length in a module, which is not told it, "
            f"got {type(scaling).__name__}."
        )
    return config


def check_sinusoidal(max_len: int, d_model: int, **options: Any) -> None:
    """What a module asks beyond the function: one coordinate, and no array that would be a parameter."""
    check_size("max_len", max_len)
    check_size("d_model", d_model)
    check_choice("preset", options["preset"], LINE_NAMES)
    if is_array(options["amplitude"]):
        raise TypeError(
            f"`amplitude` must be a number in a module, "
            f"got {describe(options['amplitude'])}."
        )
    # The function checks the rest itself, without computing anything.
    jax.eval_shape(lambda: sinusoidal_position_encoding(0, d_model, **options))


def check_embeddings(x: Any, d_model: int) -> None:
    x = as_floating("x", x)
    check_rank("x", x, "[..., seq, d_model]", at_least=2)
    if x.shape[-1] != d_model:
        raise ValueError(
            f"`x` must have {d_model} channels, `d_model`, got shape {tuple(x.shape)}."
        )


def check_scores(scores: Any, num_heads: int) -> None:
    scores = as_floating("attention_scores", scores)
    check_rank("attention_scores", scores, "[..., heads, q, k]", at_least=3)
    if scores.shape[-3] != num_heads:
        raise ValueError(
            f"`attention_scores` must have `num_heads` heads in axis -3, "
            f"got {scores.shape[-3]} and {num_heads}."
        )


def check_rows(offset: Any, length: int, max_len: int) -> None:
    """Raise even where a compiled program would not see the positions, if they are Python numbers."""
    if not isinstance(offset, int) or 0 <= offset <= max_len - length or not length:
        return
    raise ValueError(
        f"`positions` must be in 0..{max_len - 1}, the rows of `table`, "
        f"got {offset} to {offset + length - 1}."
    )


def _check_length(name: str, length: int | None, scores: Array, *, axis: int) -> None:
    if length is None:
        return
    check_size(name, length, at_least=0)
    if length != scores.shape[axis]:
        raise ValueError(
            f"`{name}` must be the length of axis {axis} of `attention_scores`, "
            f"got {length} and {scores.shape[axis]}."
        )


def check_left_out(name: str, value: Any, default: Any, *, given: str) -> None:
    if is_array(value) or value != default:
        came = describe(value) if is_array(value) else value
        raise ValueError(
            f"`{name}` must be left out where `{given}` are given, got {came}."
        )
