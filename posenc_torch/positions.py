"""Token positions: integers, counted from 0, of any shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._checks import as_positions, check_size, is_size

if TYPE_CHECKING:
    from jaxtyping import Int

__all__ = ["last_positions", "position_range"]


def position_range(
    length: int, *, offset: int | Int[Tensor, "*batch"] = 0
) -> Int[Tensor, "*batch length"]:
    """Consecutive positions offset, offset + 1, ..., offset + length - 1.

    Args:
        length: Tokens.
        offset: Position of the first token, a Python int or integers of any shape, one range for each:
            the tokens already in a cache, or where a shard of the sequence begins.
    Returns:
        Integers, [*offset, length].
    Raises:
        TypeError: if `length` is not an int or `offset` not integers.
        ValueError: if `length` is negative.
    """
    check_size("length", length, at_least=0)
    if is_size(offset):
        return torch.arange(offset, offset + length)
    offset = as_positions("offset", offset)
    return offset[..., None] + torch.arange(length, device=offset.device)


def last_positions(query_len: int, key_len: int) -> Int[Tensor, " query_len"]:
    """Positions of the last `query_len` of `key_len` tokens: queries that end where their keys end.

    Args:
        query_len: Queries, tokens.
        key_len: Keys, tokens, the cached ones among them.
    Returns:
        Integers, [query_len].
    Raises:
        TypeError, ValueError: if a length is not an int, is negative, or there are more queries than keys.
    Source:
        The alignment of flash-attention's causal mask and ALiBi (Dao-AILab/flash-attention).
    """
    check_size("query_len", query_len, at_least=0)
    check_size("key_len", key_len, at_least=query_len)
    return position_range(query_len, offset=key_len - query_len)
