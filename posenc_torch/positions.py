"""Positions: of tokens, integers of any shape; of the points of a grid, their coordinates in the last axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ._checks import (
    as_boolean,
    as_integers,
    as_positions,
    check_choice,
    check_length,
    check_position,
    check_rank,
    check_size,
    check_table_dtype,
    is_size,
    is_traced,
)

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Real

__all__ = [
    "grid_positions",
    "grid_positions_from_mask",
    "last_positions",
    "patch_centres",
    "position_range",
    "positions_from_mask",
    "positions_from_segments",
    "shard_positions",
]

Order = Literal["contiguous", "zigzag"]
Normalize = Literal["end", "centre"]

ORDERS = ("contiguous", "zigzag")
NORMALIZE = (None, "end", "centre")


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


def positions_from_mask(
    mask: Bool[Tensor, "*batch seq"], *, start: int = 0, padding: int = 0
) -> Int[Tensor, "*batch seq"]:
    """Positions that count the tokens and skip the padding, on whichever side it is.

        positions[t] = start + (tokens before t)    where mask[t], elsewhere `padding`

    BLOOM counts from 0, with 0 at the padding; OPT has start 2, padding 1. RoBERTa and fairseq have, for their
    `padding_idx`, mask = ids != padding_idx, start = padding_idx + 1 and padding = padding_idx.

    Args:
        mask: True at tokens, False at padding; a tokenizer's ones and zeros are first made boolean.
        start: Position of the first token.
        padding: Position of the padding.
    Returns:
        Integers, [*batch, seq].
    Raises:
        TypeError: if `mask` is not boolean, or a position not an int.
        ValueError: if `mask` has no axis, or a position does not fit int32.
    Source:
        `create_position_ids_from_input_ids` of RoBERTa and `OPTLearnedPositionalEmbedding` in transformers.
    """
    mask = as_boolean("mask", mask)
    check_rank("mask", mask, "[..., seq]", at_least=1)
    for name, value in (("start", start), ("padding", padding)):
        check_position(name, value)
    length = mask.shape[-1]
    # The size of a dynamic axis in a program for export is not known.
    if isinstance(length, int) and start + length > 2**31:
        raise ValueError(
            f"`start` must leave room for {length} positions in int32, got {start}."
        )
    tokens = torch.cumsum(mask, -1)
    return torch.where(mask, tokens - 1 + start, padding)


def positions_from_segments(
    segment_ids: Int[Tensor, "*batch seq"],
) -> Int[Tensor, "*batch seq"]:
    """Positions that begin again at 0 with every document of a packed sequence.

    They do not keep the documents apart: give attention the ids too (`query_segment_ids`, `key_segment_ids`). Of a
    sequence that is sharded, take these of the whole, then the shard's.

    Args:
        segment_ids: Which document each token is of; a document is a run of equal ids, padding too.
    Returns:
        Integers, [*batch, seq].
    Raises:
        TypeError: if `segment_ids` are not integers.
        ValueError: if they have no axis.
    """
    segment_ids = as_integers("segment_ids", segment_ids)
    check_rank("segment_ids", segment_ids, "[..., seq]", at_least=1)
    places = position_range(segment_ids.shape[-1]).to(segment_ids.device)
    begins = segment_ids[..., 1:] != segment_ids[..., :-1]
    begins = torch.where(begins, places[1:], 0)
    begins = torch.cat((torch.zeros_like(segment_ids[..., :1]), begins), -1)
    return places - torch.cummax(begins, -1).values


def shard_positions(
    length: int,
    shard: int | Int[Tensor, "*shards"],
    num_shards: int,
    *,
    order: Order = "contiguous",
) -> Int[Tensor, "*shards n"]:
    """Positions of the tokens that one shard of a sequence holds, n = length / num_shards of them.

        contiguous    shard r holds chunk r of num_shards
        zigzag        shard r holds chunks r and 2 num_shards - 1 - r of 2 num_shards, so that under a causal mask
                      every shard has as much to do

    How to order a sequence before it is split: those of all shards, 0 to num_shards - 1, flattened.

    Args:
        length: Tokens of the whole sequence.
        shard: Which shard, an int or integers of any shape, one range for each.
        num_shards: Shards, of the same length.
        order: "contiguous" or "zigzag".
    Returns:
        Integers, [*shard, length / num_shards].
    Raises:
        TypeError: if a size is not an int or `shard` not integers.
        ValueError: if the chunks would not be of one length, a size does not fit int32, there is no such shard, or
            `order` is unknown.
    Source:
        "zigzag" is the load-balanced context parallelism of Megatron-LM and TransformerEngine.
    """
    check_length("num_shards", num_shards)
    check_length("length", length, at_least=0)
    check_choice("order", order, ORDERS)
    chunks = num_shards if order == "contiguous" else 2 * num_shards
    if length % chunks:
        raise ValueError(
            f"`length` must be a multiple of {chunks} for {num_shards} {order} shards, "
            f"got {length}."
        )
    ranks = _as_ranks(shard, num_shards)
    size = length // chunks
    first = position_range(size, offset=ranks * size)
    if order == "contiguous":
        return first
    last = position_range(size, offset=length - (ranks + 1) * size)
    return torch.cat((first, last), -1)


def grid_positions(*sizes: int) -> Int[Tensor, "points axes"]:
    """Coordinates of every point of a grid, the last axis fastest: (0, 0), (0, 1), ..., (1, 0), ...

    Args:
        sizes: Points along each axis, such as height and width in patches.
    Returns:
        Integers, [product of sizes, axes].
    Raises:
        TypeError, ValueError: if a size is not an int of at least 1, or there is none.
    """
    for i, size in enumerate(sizes):
        check_size(f"sizes[{i}]", size)
    if not sizes:
        raise ValueError("`sizes` must have an int for each axis, got none.")
    return torch.cartesian_prod(*map(torch.arange, sizes)).reshape(-1, len(sizes))


def patch_centres(*sizes: int) -> Float[Tensor, "points axes"]:
    """Centres of the patches of an image whose sides go from -1 to 1, whatever its size, the last axis fastest.

    DINOv3 turns by 2 pi times a centre: multiply `inv_freq` by 2 pi.

    Args:
        sizes: Patches along each axis, such as height and width.
    Returns:
        [product of sizes, axes], float64, (2 i + 1) / size - 1.
    Raises:
        TypeError, ValueError: if a size is not an int of at least 1, or there is none.
    Source:
        Siméoni et al., "DINOv3", 2025, arXiv:2508.10104.
    """
    centres = (2 * grid_positions(*sizes) + 1).to(torch.float64)
    return centres / torch.tensor(sizes) - 1


def grid_positions_from_mask(
    mask: Bool[Tensor, "*batch height width"],
    *,
    normalize: Normalize | None = None,
    dtype: Any = torch.float32,
) -> Real[Tensor, "*batch height width 2"]:
    """Row and column of every pixel of padded images, counted from 1 (DETR): the padding is not counted.

        y[i, j] = mask[0, j] + ... + mask[i, j],    x[i, j] = mask[i, 0] + ... + mask[i, j]

    Args:
        mask: True at pixels, False at padding.
        normalize: None, integers; "end", y / (y[-1] + 1e-6) and x / (x[:, -1] + 1e-6), from 0 to 1 (DETR); "centre",
            (y - 1/2) / (y[-1] + 1e-6) and likewise (Deformable DETR). Models turn by 2 pi of these.
        dtype: float32 or float64, of normalized ones.
    Returns:
        [*batch, height, width, 2], row and column, integers or in `dtype`. At the padding they mean nothing.
    Raises:
        TypeError: if `mask` is not boolean, or dtype is neither float.
        ValueError: if `mask` has not two axes, or `normalize` is unknown.
    Source:
        Carion et al., "End-to-End Object Detection with Transformers", 2020, arXiv:2005.12872, and its
        `PositionEmbeddingSine`; the centre from Deformable DETR's.
    """
    mask = as_boolean("mask", mask)
    check_rank("mask", mask, "[..., height, width]", at_least=2)
    check_choice("normalize", normalize, NORMALIZE)
    check_table_dtype("dtype", dtype)
    y, x = (torch.cumsum(mask, axis) for axis in (-2, -1))
    if normalize is not None:
        shift = 0.5 if normalize == "centre" else 0.0
        y = (y.to(dtype) - shift) / (y[..., -1:, :].to(dtype) + 1e-6)
        x = (x.to(dtype) - shift) / (x[..., :, -1:].to(dtype) + 1e-6)
    return torch.stack((y, x), -1)


def _as_ranks(shard: int | Tensor, num_shards: int) -> Tensor:
    """Integers, each of them a shard, as far as their values can be seen."""
    if is_size(shard):
        low = high = shard
    else:
        shard = as_positions("shard", shard)
        if is_traced(shard) or shard.numel() == 0:
            return shard
        low, high = int(shard.min()), int(shard.max())
    if low < 0 or high >= num_shards:
        raise ValueError(
            f"`shard` must be in 0..{num_shards - 1}, got {low} to {high}."
        )
    return torch.as_tensor(shard)
