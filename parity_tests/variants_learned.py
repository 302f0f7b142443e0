"""Learned tables as every published model reads and resizes them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import scipy.ndimage
import torch
from torch import nn

from .variants import Reference, Variant

__all__ = ["VARIANTS"]

# Tokens, the tokens before them, columns, and the grid of a table that is read by row and column.
N, START, DIM = 5, 3, 6
GRID = (3, 4)
# The square grid that a table is for, and the one that it is resized to: one side shrinks, the other grows.
SIDE, NEW = 4, (3, 7)
PATCH = 2  # pixels

# Two sentences padded on either side, and one that is not.
MASK = np.array([[0, 0, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]], bool)
# Token ids of two sentences, 1 at the padding, which may also be in between.
IDS = np.array([[5, 6, 1, 7], [1, 1, 8, 9]], np.int32)


def _table(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def _class(model: str, name: str) -> Any:
    """A class of one model of transformers."""
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    return getattr(module, name)


def _holding(table: np.ndarray, module: nn.Module) -> Any:
    """The embedding, with the rows of `table`."""
    module.load_state_dict({"weight": torch.from_numpy(table)})
    return module.eval()


def _read(part: nn.Module, run: Callable[[], Any]) -> torch.Tensor:
    """What one part of a model returns while the model runs."""
    seen = []
    handle = part.register_forward_hook(lambda *call: seen.append(call[-1]))
    run()
    handle.remove()
    (rows,) = seen
    return rows


def _same(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """The one answer of several models."""
    arrays = [tensor.detach().numpy() for tensor in tensors]
    for array in arrays[1:]:
        np.testing.assert_array_equal(array, arrays[0])
    return arrays[0]


# ------------------------------------------------------------------------------- rows


def _plain() -> Reference:
    from transformers import BertConfig

    table = _table(N + START, DIM)
    sizes = {"vocab_size": 2, "hidden_size": DIM, "num_attention_heads": 1}
    bert = _class("bert", "BertEmbeddings")(
        BertConfig(**sizes, max_position_embeddings=len(table))
    )
    part = _holding(table, bert.position_embeddings)
    rows = [_read(part, lambda: bert(torch.zeros(1, N, dtype=torch.int64)))[0]]
    for model, name in (
        ("led", "LEDLearnedPositionalEmbedding"),
        ("blenderbot", "BlenderbotLearnedPositionalEmbedding"),
        ("bigbird_pegasus", "BigBirdPegasusLearnedPositionalEmbedding"),
    ):
        embedding = _holding(table, _class(model, name)(*table.shape))
        rows.append(embedding(torch.Size((1, N))))
    return Reference(_same(rows), {"table": table, "n": N})


def _decoding() -> Reference:
    from transformers import DynamicCache, GPT2Config

    table = _table(N + START, DIM)
    ids = {"vocab_size": 2, "bos_token_id": 0, "eos_token_id": 0}
    sizes = {"n_positions": len(table), "n_embd": DIM, "n_layer": 1, "n_head": 1}
    model = _class("gpt2", "GPT2Model")(GPT2Config(**ids, **sizes)).eval()
    part = _holding(table, model.wpe)
    tokens = torch.zeros(1, N + START, dtype=torch.int64)
    cache = DynamicCache(config=model.config)
    model(tokens[:, :START], cache=cache)
    rows = _read(part, lambda: model(tokens[:, START:], cache=cache))
    given = {"table": table, "n": N, "start": START}
    return Reference(rows[0].detach().numpy(), given)


def _bart() -> Reference:
    table = _table(N + 2, DIM)
    ids = torch.zeros(1, N, dtype=torch.int64)
    rows = []
    for model, name in (
        ("bart", "Bart"),
        ("mbart", "MBart"),
        ("plbart", "PLBart"),
        ("mvp", "Mvp"),
        ("trocr", "TrOCR"),
        ("pp_formulanet", "PPFormulaNet"),
    ):
        embedding = _class(model, f"{name}LearnedPositionalEmbedding")(N, DIM)
        rows.append(_holding(table, embedding)(ids)[0])
    return Reference(_same(rows), {"table": table, "n": N})


def _opt() -> Reference:
    table = _table(MASK.shape[1] + 2, DIM)
    mask = torch.from_numpy(MASK).to(torch.int64)
    rows = []
    for model, name in (("opt", "OPT"), ("biogpt", "BioGpt")):
        embedding = _class(model, f"{name}LearnedPositionalEmbedding")
        rows.append(_holding(table, embedding(MASK.shape[1], DIM))(mask))
    return Reference(_same(rows), {"table": table, "mask": MASK})


def _roberta() -> Reference:
    from transformers import RobertaConfig

    # The longest sentence has 3 tokens, whose rows are 2 to 4.
    table = _table(5, DIM)
    config = RobertaConfig(
        vocab_size=10,
        hidden_size=DIM,
        num_attention_heads=1,
        max_position_embeddings=len(table),
        pad_token_id=1,
    )
    ids = torch.from_numpy(IDS).to(torch.int64)
    rows = []
    for model, name in (
        ("roberta", "RobertaEmbeddings"),
        ("xlm_roberta", "XLMRobertaEmbeddings"),
        ("camembert", "CamembertEmbeddings"),
        ("longformer", "LongformerEmbeddings"),
    ):
        module = _class(model, name)(config).eval()
        part = _holding(table, module.position_embeddings)
        rows.append(_read(part, lambda module=module: module(ids)))
    return Reference(_same(rows), {"table": table, "ids": IDS})


def _prophetnet() -> Reference:
    from transformers import ProphetNetConfig

    table = _table(MASK.shape[1] + 1, DIM)
    config = ProphetNetConfig(
        hidden_size=DIM, max_position_embeddings=len(table), pad_token_id=0
    )
    module = _class("prophetnet", "ProphetNetPositionalEmbeddings")(config)
    mask = torch.from_numpy(MASK).to(torch.int64)
    rows, _ = _holding(table, module)(mask.shape, mask.device, attention_mask=mask)
    return Reference(rows.detach().numpy(), {"table": table, "mask": MASK})


def _fairseq() -> Reference:
    table = _table(5, DIM)
    # "sin.fairseq.positions", of `IDS`: LearnedPositionalEmbedding reads these rows.
    positions = np.array([[2, 3, 1, 4], [1, 1, 2, 3]])
    return Reference(table[positions], {"table": table, "ids": IDS, "pad": 1})


def _x_transformers() -> Reference:
    # "learned.xtransformers.scale": in four columns, rows of ones become rows of 0.5.
    table = _table(N, 4)
    return Reference(0.5 * table, {"table": table, "n": N, "dim": 4})


def _x_transformers_start() -> Reference:
    table = _table(N, DIM)
    start = np.array([0, 2], np.int32)
    positions = np.maximum(np.arange(N) - start[:, None], 0)
    value = np.float64(DIM) ** -0.5 * table[positions].astype(np.float64)
    return Reference(value, {"table": table, "n": N, "dim": DIM, "start": start})


def _x_transformers_l2norm() -> Reference:
    table = _table(N, DIM)
    rows = table.astype(np.float64)
    value = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return Reference(value, {"table": table, "n": N})


def _praxis() -> Reference:
    table = _table(N + START, DIM)
    positions = np.array([[0, 1, N - 1, N], [N - 2, N + 1, 2, 3]], np.int32)
    one_hot = (positions[..., None] == np.arange(N)).astype(np.float32)
    given = {"table": table, "positions": positions, "seq": N}
    return Reference(one_hot @ table[:N], given)


def _reformer(training: bool) -> Reference:
    from transformers import ReformerConfig

    height, width = GRID
    rows, columns = _table(height, 2), _table(width, 5)
    config = ReformerConfig(
        axial_pos_shape=GRID,
        axial_pos_embds_dim=(2, 5),
        hidden_size=7,
        hidden_dropout_prob=0.0,
    )
    module = _class("reformer", "AxialPositionEmbeddings")(config).train(training)
    for weight, table in zip(module.weights, (rows, columns), strict=True):
        weight.data.copy_(torch.from_numpy(table).reshape(weight.shape))
    # In training, the whole grid; otherwise any tokens, here of two sentences.
    positions = np.arange(height * width)[None]
    if not training:
        positions = np.array([[0, 1, 2, 3, 4], [5, 0, 9, 7, 6]])
    found = module(torch.from_numpy(positions)).detach().numpy()
    given = {"rows": rows, "columns": columns, "height": height, "width": width}
    if training:
        return Reference(found[0], given)
    return Reference(found, {**given, "positions": positions.astype(np.int32)})


def _columns_first() -> Reference:
    from transformers import Florence2Config

    height, width = GRID
    # DETR has fifty rows of each, whatever the image.
    rows, columns = _table(50, DIM), -_table(50, DIM)
    florence = Florence2Config(
        vision_config={
            "embed_dim": [1, 1, 1, 2 * DIM],
            "max_position_embeddings": len(rows),
        }
    )
    shape = (1, 1, height, width)
    found = []
    for model, name, sizes, arguments in (
        (
            "detr",
            "DetrLearnedPositionEmbedding",
            (DIM,),
            (shape, "cpu", torch.float32),
        ),
        (
            "conditional_detr",
            "ConditionalDetrLearnedPositionEmbedding",
            (DIM,),
            (shape, "cpu", torch.float32),
        ),
        (
            "florence2",
            "Florence2VisionLearnedAbsolutePositionEmbedding2D",
            (florence,),
            (torch.zeros(shape),),
        ),
    ):
        module = _class(model, name)(*sizes)
        _holding(rows, module.row_embeddings)
        _holding(columns, module.column_embeddings)
        # [1, channels, height, width] there.
        found.append(module(*arguments)[0].flatten(1).T)
    given = {"rows": rows, "columns": columns, "height": height, "width": width}
    return Reference(_same(found), given)


def _gemma4() -> Reference:
    from transformers.models.gemma4.configuration_gemma4 import Gemma4VisionConfig

    config = Gemma4VisionConfig(hidden_size=DIM, position_embedding_size=4)
    module = _class("gemma4", "Gemma4VisionPatchEmbedder")(config)
    x, y = _table(4, DIM), -_table(4, DIM)
    module.position_embedding_table.data.copy_(torch.from_numpy(np.stack((x, y))))
    # Column and row of the patches of two images, and -1 for those that only fill up.
    positions = np.array(
        [[[0, 0], [1, 0], [3, 2]], [[2, 3], [-1, -1], [-1, -1]]], np.int32
    )
    padding = torch.from_numpy((positions == -1).all(-1))
    rows = module._position_embeddings(torch.from_numpy(positions), padding)
    given = {"x": x, "y": y, "positions": positions}
    return Reference(rows.detach().numpy(), given)


# ----------------------------------------------------------------------------- resized


def _resized(value: np.ndarray, table: np.ndarray, **more: Any) -> Reference:
    height, width = NEW
    given = {"table": table, "height": height, "width": width, **more}
    return Reference(value, given)


def _vit(
    model: str, name: str, config: Any, prefix: int, double: bool
) -> tuple[np.ndarray, np.ndarray]:
    """What `interpolate_pos_encoding` of one model gives, and the table; in float64 where the model lets it be."""
    table = _table(prefix + SIDE**2, DIM)
    module = _class(model, name)(config)
    module.position_embeddings.data.copy_(torch.from_numpy(table)[None])
    module = module.double() if double else module
    height, width = NEW
    embeddings = torch.zeros(1, prefix + height * width, DIM)
    sizes = (PATCH * height, PATCH * width)
    return module.interpolate_pos_encoding(embeddings, *sizes)[
        0
    ].detach().numpy(), table


def _patches(**more: Any) -> dict[str, Any]:
    """The arguments that configurations of vision models share."""
    return {"hidden_size": DIM, "image_size": PATCH * SIDE, "patch_size": PATCH, **more}


def _vit_and_beit() -> Reference:
    from transformers import BeitConfig, ViTConfig

    absolute = BeitConfig(**_patches(use_absolute_position_embeddings=True))
    vit, table = _vit("vit", "ViTEmbeddings", ViTConfig(**_patches()), 1, True)
    beit, _ = _vit("beit", "BeitEmbeddings", absolute, 1, True)
    np.testing.assert_array_equal(beit, vit)
    return _resized(vit, table)


def _deit() -> Reference:
    from transformers import DeiTConfig

    return _resized(*_vit("deit", "DeiTEmbeddings", DeiTConfig(**_patches()), 2, True))


def _registers() -> Reference:
    from transformers import Dinov2WithRegistersConfig

    config = Dinov2WithRegistersConfig(**_patches())
    name = "Dinov2WithRegistersEmbeddings"
    return _resized(*_vit("dinov2_with_registers", name, config, 1, False))


def _dinov2() -> Reference:
    """HY-V4-VL has the rule that transformers' DINOv2 has no more; it leaves the class token's row out."""
    from transformers.models.hy_v4_vl.configuration_hy_v4_vl import HYV4VLVisionConfig

    sizes = {"hidden_size": DIM, "patch_size": PATCH, "max_image_size": PATCH * SIDE}
    config = HYV4VLVisionConfig(**sizes, interpolate_mode="bicubic")
    module = _class("hy_v4_vl", "HYV4VLVisionPatchEmbed")(config)
    table = _table(1 + SIDE**2, DIM)
    _holding(table, module.position_embedding)
    patches = module.interpolate_pos_encoding(torch.zeros(()), *NEW)[0]
    value = np.concatenate((table[:1], patches.detach().numpy()))
    return _resized(value, table, side=SIDE)


def _siglip2() -> Reference:
    module = _class("siglip2", "Siglip2VisionEmbeddings")
    table = _table(SIDE**2, DIM)
    grid = torch.from_numpy(table).reshape(SIDE, SIDE, DIM)
    count = NEW[0] * NEW[1]
    value = module.resize_positional_embeddings(grid, torch.tensor([NEW]), count)
    return _resized(value[0].numpy(), table)


def _videoprism() -> Reference:
    from transformers import VideoPrismVisionConfig

    config = VideoPrismVisionConfig(hidden_size=DIM, num_frames=7)
    module = _class("videoprism", "VideoPrismTemporalEmbeddings")(config)
    table = _table(7, DIM)
    module.position_embeddings.data.copy_(torch.from_numpy(table)[None])
    value = module.interpolate_pos_encoding(torch.zeros(1, N, DIM))[0]
    return Reference(value.detach().numpy(), {"table": table, "n": N})


def _qwen3_vl() -> Reference:
    from transformers.vision_utils import get_vision_interpolation_indices_and_weights

    table = _table(SIDE**2, DIM)
    rows, weights = get_vision_interpolation_indices_and_weights(
        torch.tensor([[1, *NEW]]), SIDE, mode="bilinear", align_corners=True
    )
    taken = torch.from_numpy(table)[rows].double()
    value = (weights[..., None].double() * taken).sum(1)
    return _resized(value.numpy(), table)


def _big_vision() -> Reference:
    # Its function is this call on a square; the last axis is that of the columns.
    table = _table(SIDE**2, DIM)
    grid = table.reshape(SIDE, SIDE, DIM).astype(np.float64)
    zoom = (NEW[1] / SIDE, NEW[1] / SIDE, 1)
    value = scipy.ndimage.zoom(grid, zoom, order=1).reshape(-1, DIM)
    return Reference(value, {"table": table, "side": NEW[1]})


def _timm() -> Reference:
    # "learned.resize.timm.4x4to6x6", of a row of -1 and k ** 1.5, k = 1..16.
    value = [
        *(-1.0, 0.2172582447528839, 1.0047687292099, 2.389007806777954),
        *(3.908670663833618, 5.892209529876709, 7.216495513916016),
        *(4.691904544830322, 5.887863636016846, 7.887223720550537),
        *(9.884766578674316, 12.364277839660645, 13.9902925491333),
        *(13.197831153869629, 14.96574592590332, 17.8316593170166),
        *(20.51410484313965, 23.711666107177734, 25.776628494262695),
        *(23.770328521728516, 25.884733200073242, 29.288293838500977),
        *(32.42408752441406, 36.11414337158203, 38.48516082763672),
        *(38.11178207397461, 40.56248092651367, 44.48979187011719),
        *(48.0713996887207, 52.24985885620117, 54.92550277709961),
        *(47.81313705444336, 50.461212158203125, 54.69660186767578),
        *(58.54194641113281, 63.01069259643555, 65.86775970458984),
    ]
    table = np.append(-1.0, np.arange(1, 17) ** 1.5).astype(np.float32)[:, None]
    return Reference(np.array(value)[:, None], {"table": table})


def _jax(method: str, antialias: bool) -> Reference:
    old = (SIDE, N)
    table = _table(SIDE * N, DIM)
    with jax.enable_x64(True):
        grid = table.reshape(*old, DIM).astype(np.float64)
        resized = jax.image.resize(grid, (*NEW, DIM), method, antialias)
        value = np.asarray(resized).reshape(-1, DIM)
    return _resized(value, table, old=old)


# What is only read, or added once, has the same bits.
EXACT = 0.0

ROWS = (
    (
        "BERT, LED, Blenderbot, BigBird-Pegasus; ViT, its class token's row first; maxtext",
        "learned_position_encoding(table, n)",
        "transformers",
        _plain,
        EXACT,
    ),
    (
        "GPT-2 with a cache; keras-hub's start_index",
        "learned_position_encoding(table, position_range(n, offset=start))",
        "transformers",
        _decoding,
        EXACT,
    ),
    (
        "BART, mBART, PLBart, MVP, TrOCR, PP-FormulaNet",
        "learned_position_encoding(table, position_range(n, offset=2))",
        "transformers",
        _bart,
        EXACT,
    ),
    (
        "OPT, BioGPT",
        "learned_position_encoding(table, positions_from_mask(mask, start=2, padding=1))",
        "transformers",
        _opt,
        EXACT,
    ),
    (
        "RoBERTa, XLM-R, CamemBERT, Longformer",
        "learned_position_encoding(table, positions_from_mask(ids != 1, start=2, padding=1), padding_idx=1)",
        "transformers",
        _roberta,
        EXACT,
    ),
    (
        "ProphetNet, from an attention mask",
        "learned_position_encoding(table, positions_from_mask(mask, start=1), padding_idx=0)",
        "transformers",
        _prophetnet,
        EXACT,
    ),
    (
        "fairseq LearnedPositionalEmbedding",
        "learned_position_encoding(table, "
        "positions_from_mask(ids != pad, start=pad + 1, padding=pad), padding_idx=pad)",
        "stored",
        _fairseq,
        EXACT,
    ),
    (
        "x-transformers AbsolutePositionalEmbedding",
        "dim ** -0.5 * learned_position_encoding(table, n)",
        "stored",
        _x_transformers,
        EXACT,  # by a power of two
    ),
    (
        "x-transformers with seq_start_pos",
        'dim ** -0.5 * learned_position_encoding(table, position_range(n) - start[:, None], out_of_range="clip")',
        "formula",
        _x_transformers_start,
        2,  # the factor is rounded, and the product
    ),
    (
        "x-transformers with l2norm_embed",
        "(rows := learned_position_encoding(table, n)) / (rows * rows).sum(-1)[:, None] ** 0.5",
        "formula",
        _x_transformers_l2norm,
        # Squares and sums of 6, of which the root halves the relative error: 6 / 2, and the root and the quotient.
        5,
    ),
    (
        "praxis TrainablePositionalEmbedding, lookup by matmul",
        'learned_position_encoding(table[:seq], positions, out_of_range="zero")',
        "formula",
        _praxis,
        EXACT,
    ),
    (
        "Reformer in training",
        "axial_position_encoding([rows, columns], grid_positions(height, width))",
        "transformers",
        lambda: _reformer(True),
        EXACT,
    ),
    (
        "Reformer, any tokens of a long sequence",
        "axial_position_encoding([rows, columns], grid_positions(height, width)[positions])",
        "transformers",
        lambda: _reformer(False),
        EXACT,
    ),
    (
        "DETR and Conditional DETR, learned; Florence-2",
        "axial_position_encoding([columns, rows], grid_positions(height, width)[:, [1, 0]])",
        "transformers",
        _columns_first,
        EXACT,
    ),
    (
        "Gemma 4 vision, -1 at the padding",
        'axial_position_encoding([x, y], positions, combine="sum", out_of_range="zero")',
        "transformers",
        _gemma4,
        EXACT,
    ),
)

# The sum of the sizes of a row's weights: a = -3/4, a = -1/2, linear; and of their slopes.
SIZES, SLOPES = (1.375, 1.25, 1.0), (3.0, 3.0, 2.0)
# A weighted sum along each axis, where the source is in float64: our weight, product and sum are rounded in float32, 5
# units of what is summed.
CUBIC, KEYS, LINEAR = (2 * 5 * size**2 for size in SIZES)
# A source in float32 rounds as much again, and before that the place of a row, (i + 1/2) old / new - 1/2, of up to 4
# rows: 10 units, 4 each of the quotient and the product and 2 of the difference.
CUBIC32, KEYS32, LINEAR32 = (
    2 * 2 * 5 * size**2 + 2 * 10 * slope * size
    for size, slope in zip(SIZES, SLOPES, strict=True)
)

RESIZED = (
    (
        "ViT, BEiT",
        "resize_position_table(table, (height, width), num_prefix=1)",
        "transformers",
        _vit_and_beit,
        CUBIC,
    ),
    (
        "DeiT",
        "resize_position_table(table, (height, width), num_prefix=2)",
        "transformers",
        _deit,
        CUBIC,
    ),
    (
        "DINOv2 as published; HY-V4-VL",
        "resize_position_table(table, (height, width), "
        "scale_factor=((height + 0.1) / side, (width + 0.1) / side), num_prefix=1)",
        "transformers",
        _dinov2,
        CUBIC32,
    ),
    (
        "DINOv2 with registers",
        "resize_position_table(table, (height, width), antialias=True, num_prefix=1)",
        "transformers",
        _registers,
        KEYS32,
    ),
    (
        "timm",
        "resize_position_table(table, (6, 6), antialias=True, num_prefix=1)",
        "stored",
        _timm,
        KEYS32,
    ),
    (
        "SigLIP 2; jax.image.resize linear",
        'resize_position_table(table, (height, width), method="linear", antialias=True)',
        "transformers",
        _siglip2,
        LINEAR32,
    ),
    (
        "VideoPrism, its frames",
        'resize_position_table(table, n, method="linear", antialias=True)',
        "transformers",
        _videoprism,
        LINEAR32,
    ),
    (
        "Qwen3-VL; maxtext's Qwen3-Omni",
        'resize_position_table(table, (height, width), method="linear", align_corners=True)',
        "transformers",
        _qwen3_vl,
        LINEAR32,
    ),
    (
        "big_vision",
        'resize_position_table(table, (side, side), method="linear", align_corners=True)',
        "scipy",
        _big_vision,
        LINEAR,
    ),
    (
        "jax.image.resize linear, antialias=False",
        'resize_position_table(table, (height, width), old_grid=old, method="linear")',
        "jax",
        lambda: _jax("linear", False),
        LINEAR,
    ),
    (
        "jax.image.resize cubic",
        'resize_position_table(table, (height, width), old_grid=old, method="keys_cubic", antialias=True)',
        "jax",
        lambda: _jax("cubic", True),
        KEYS,
    ),
    (
        "jax.image.resize cubic, antialias=False",
        'resize_position_table(table, (height, width), old_grid=old, method="keys_cubic")',
        "jax",
        lambda: _jax("cubic", False),
        KEYS,
    ),
)

VARIANTS = tuple(Variant("learned", *row) for row in ROWS + RESIZED)
