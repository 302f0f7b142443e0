"""Sinusoidal tables as every published model makes them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from .variants import Reference, U, Variant

__all__ = ["VARIANTS"]

# Tokens, and columns: an odd number where the source allows one.
N, DIM, ODD = 9, 6, 7
# Rows and columns of an image, and columns of its encoding.
HEIGHT, WIDTH, GRID_DIM = 4, 5, 12

# Ids of two sentences, 1 at the padding, which may also be in between.
IDS = np.array([[5, 6, 1, 7], [1, 1, 8, 9]], np.int32)
# Diffusion times, which may be real; the second ones are multiplied by 1000.
TIMES = np.array([0, 0.5, 3, 17.25], np.float32)
UNIT_TIMES = np.array([0, 0.3, 0.7, 1], np.float32)

# Two images, padded to one size below and on the right.
MASK = np.zeros((2, HEIGHT, WIDTH), bool)
MASK[0, :3, :] = MASK[1, :, :4] = True

# Tolerances, in units of 2 ** -24. A sine or a cosine is off by at most one, there and here.
FUNCTIONS = 2
# The first frequency is 1, whose angles are exact. The source takes the others as exp(-x), x > 2.6, with x rounded
# twice (2 x units of the frequency) and the exponential itself to two, or does better; it rounds the angle once. Here
# frequency and angle are rounded once each. At positions t < 10, t exp(-x) (2 x + 5) is below 7.
LINE = 7 + FUNCTIONS
# Angles of twice a frequency, a factor that rounds nothing.
DOUBLED = 14 + FUNCTIONS
# Times t < 18, x > 3.
TIME = 10 + FUNCTIONS
# A thousand times t <= 1, x > 3, in one rounding more: 1000 exp(-x) (2 x + 6). (Both round 1000 t once, alike.)
THOUSAND = 610 + FUNCTIONS
# Periods from a quarter on, t <= 1: angles to 8 pi. The source rounds the power (to two), its product, the reciprocal,
# 2 pi, the frequency and the angle; here frequency and angle are rounded once each.
PERIODS = 25.2 * 9 + FUNCTIONS
# The source is in float64. Here frequencies below 0.05 of positions below 8 and their angles are rounded once each.
GRID = 1 + FUNCTIONS
# Positions to 1.2, which the source rounds in two divisions; here the factor and three products are rounded.
STRETCHED = 1.2 * 6 + FUNCTIONS
# Angles to 2 pi. The source rounds 2 pi and the angle twice, and a frequency below 1, of at most 0.37, to four units.
# Here frequency and angle are rounded once each, and XLA may divide positions by a rounded reciprocal, two units more:
# 6.3 * (3 + 2 + 2), or 6.3 * 0.37 * (3 + 4 + 2 + 2).
NORMALIZED = 45 + FUNCTIONS
# Angles to 2 pi times 3 or, of two coordinates, 2: there and here two products, their sum, 2 pi and its product are
# rounded, and each coordinate of two twice.
FOURIER = 19 * 2 * 7 + FUNCTIONS


def _part(model: str, name: str) -> Any:
    """A class or function of one model of transformers."""
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    return getattr(module, name)


def _config(**values: Any) -> Any:
    """What a class reads of its configuration, smaller than the configuration itself allows."""
    return SimpleNamespace(**values)


def _alike(tensors: Sequence[torch.Tensor], units: float) -> np.ndarray:
    """The first of the answers of several models, which differ by no more than the tolerance of the row."""
    arrays = [tensor.detach().numpy() for tensor in tensors]
    for array in arrays[1:]:
        np.testing.assert_allclose(array, arrays[0], rtol=0, atol=units * U)
    return arrays[0]


def _stored(values: Sequence[float], found: np.ndarray) -> None:
    """Float32 numbers that the source printed, and what its formula gives in their place."""
    np.testing.assert_allclose(found, values, rtol=0, atol=LINE * U)


def _waves(positions: np.ndarray, frequencies: np.ndarray) -> tuple[Any, Any]:
    """Sines and cosines in float64."""
    angles = np.asarray(positions, np.float64)[..., None] * frequencies
    return np.sin(angles), np.cos(angles)


def _powers(exponents: np.ndarray) -> np.ndarray:
    return 10_000.0 ** -np.asarray(exponents, np.float64)


def _coordinates(*sizes: int) -> list[np.ndarray]:
    """The coordinates of every point of a grid, along each axis, the last axis fastest."""
    return [axis.ravel() for axis in np.indices(sizes)]


# ------------------------------------------------------------------ one coordinate


def _paper() -> Reference:
    def filled(create: Any) -> torch.Tensor:
        table = torch.empty(N, ODD)
        create(N, ODD, table)
        return table

    tables = [
        filled(_part("xlm", "create_sinusoidal_embeddings")),
        filled(_part("flaubert", "create_sinusoidal_embeddings")),
        filled(_part("distilbert", "_create_sinusoidal_embeddings")),
        _part("videomae", "get_sinusoid_encoding_table")(N, ODD)[0],
    ]
    return Reference(_alike(tables, LINE), {"n": N, "dim": ODD})


def _interleaved() -> Reference:
    from diffusers.models.embeddings import SinusoidalPositionalEmbedding

    zeros = torch.zeros(1, N, DIM)
    vision = _config(embed_dim=[2, DIM], max_temporal_embeddings=N)
    florence = _part("florence2", "Florence2VisionPositionalEmbeddingCosine1D")
    tables = [
        SinusoidalPositionalEmbedding(DIM, N)(zeros)[0],
        florence(_config(vision_config=vision))(zeros),
    ]
    return Reference(_alike(tables, LINE), {"n": N, "dim": DIM})


def _speecht5() -> Reference:
    module = _part("speecht5", "SpeechT5ScaledPositionalEncoding")(0.0, DIM, N)
    module.alpha.data.fill_(0.75)
    value = module(torch.zeros(1, N, DIM))[0].detach().numpy()
    return Reference(value, {"n": N, "dim": DIM, "alpha": 0.75})


def _conformer() -> Reference:
    states = torch.zeros(1, N, DIM)
    config = _config(
        hidden_size=DIM, max_source_positions=N + 2, max_position_embeddings=N
    )
    tables = [
        _part("wav2vec2_conformer", "Wav2Vec2ConformerRelPositionalEmbedding")(config),
        _part("parakeet", "ParakeetEncoderRelPositionalEncoding")(config),
    ]
    value = _alike([module(states)[0] for module in tables], LINE)
    return Reference(value, {"n": N, "dim": DIM})


def _positional_encodings() -> Reference:
    # "sin.positional_encodings.d7.pos3"
    value = [
        0.14112000167369843,
        -0.9899924993515015,
        0.29552021622657776,
        0.9553365111351013,
        0.029995499178767204,
        0.9995500445365906,
        0.0029999956022948027,
    ]
    given = {"positions": np.array([3], np.int32), "dim": ODD}
    return Reference(np.array([value]), given)


def _flax_nlp_seq() -> Reference:
    sin, cos = _waves(np.arange(N), _powers(np.arange(0, DIM, 2) / DIM))
    value = np.stack((sin, cos), -1).reshape(N, DIM)
    return Reference(value, {"n": N, "dim": DIM})


def _marian() -> Reference:
    tables = [
        _part(model, f"{name}SinusoidalPositionalEmbedding")(N, ODD).create_weight()
        for model, name in (
            ("marian", "Marian"),
            ("pegasus", "Pegasus"),
            ("roformer", "RoFormer"),
            ("autoformer", "Autoformer"),
            ("informer", "Informer"),
            ("time_series_transformer", "TimeSeries"),
        )
    ]
    return Reference(_alike(tables, LINE), {"n": N, "dim": ODD})


def _xlnet() -> Reference:
    model = _part("xlnet", "XLNetModel")
    config = _config(
        d_model=DIM,
        attn_type="bi",
        bi_data=False,
        clamp_len=-1,
        positional_embedding=model.positional_embedding,
    )
    table = model.relative_positional_encoding(config, N, N)
    return Reference(table[:, 0].numpy(), {"n": N, "dim": DIM})


def _gpt_neox() -> Reference:
    # "sin.neox.d6.pos3"
    value = [
        0.14112000167369843,
        0.1387980878353119,
        0.006463258061558008,
        -0.9899924993515015,
        0.9903206825256348,
        0.9999791383743286,
    ]
    given = {"positions": np.array([3], np.int32), "dim": DIM}
    return Reference(np.array([value]), given)


def _bros() -> Reference:
    # Differences of the sides of boxes, from 0 to 1: [tokens, tokens, batch, dim_bbox].
    corners = np.random.default_rng(0).uniform(-1, 1, (3, 3, 2, 4)).astype(np.float32)
    config = _config(dim_bbox=4, dim_bbox_sinusoid_emb_1d=DIM)
    module = _part("bros", "BrosPositionalEmbedding2D")(config)
    value = module(torch.from_numpy(corners)).numpy()
    return Reference(value, {"corners": corners, "dim": 4 * DIM})


def _whisper() -> Reference:
    zeros = torch.zeros(1, N, DIM)
    timesfm = _config(min_timescale=1, max_timescale=10_000, hidden_size=DIM)
    tipsv2 = _config(max_position_embeddings=N, hidden_size=DIM)
    omni = _part("qwen2_5_omni", "SinusoidsPositionEmbedding")(N, DIM)
    tables = [
        _part("whisper", "sinusoids")(N, DIM),
        omni(N),
        _part("timesfm", "TimesFmPositionalEmbedding")(timesfm)(N)[0],
        _part("pegasus_x", "PegasusXSinusoidalPositionalEmbedding")(DIM)(zeros)[0],
        _part("tipsv2", "Tipsv2SinusoidalPositionalEmbedding")(tipsv2)(torch.arange(N)),
    ]
    return Reference(_alike(tables, LINE), {"n": N, "dim": DIM})


def _tensor2tensor() -> Reference:
    shortest, longest = 2.0, 500.0
    timescales = shortest * (longest / shortest) ** (np.arange(3) / 2)
    sin, cos = _waves(np.arange(N), 1 / timescales)
    given = {"n": N, "dim": ODD, "shortest": shortest, "longest": longest}
    return Reference(np.concatenate((sin, cos, np.zeros((N, 1))), -1), given)


def _timesfm() -> Reference:
    shortest, longest = 2.0, 500.0
    config = _config(min_timescale=shortest, max_timescale=longest, hidden_size=DIM)
    value = _part("timesfm", "TimesFmPositionalEmbedding")(config)(N)[0].numpy()
    given = {"n": N, "dim": DIM, "shortest": shortest, "longest": longest}
    return Reference(value, given)


def _flax_wmt() -> Reference:
    sin, cos = _waves(np.arange(N), _powers(np.arange(3) / 2))
    value = np.concatenate((sin, cos, np.zeros((N, 1))), -1)
    return Reference(value, {"n": N, "dim": ODD})


def _funasr() -> Reference:
    module = _part("fun_asr_nano", "FunAsrNanoPositionEmbedding")(N + 1, DIM)
    value = module(torch.zeros(1, N, DIM)).numpy()
    return Reference(value, {"n": N, "dim": DIM})


def _qwen_omni_time() -> Reference:
    module = _part("qwen2_5_omni", "SinusPositionEmbedding")(DIM)
    value = module(torch.from_numpy(UNIT_TIMES)).numpy()
    return Reference(value, {"times": UNIT_TIMES, "dim": DIM})


def _fairseq() -> Reference:
    table = _flax_wmt().value.copy()
    # "sin.fairseq.d7.pos3" and "sin.fairseq.positions", of `IDS`
    stored = [
        0.14112000167369843,
        0.029995499178767204,
        0.0002999999560415745,
        -0.9899924993515015,
        0.9995500445365906,
        0.9999999403953552,
        0.0,
    ]
    _stored(stored, table[3])
    positions = np.array([[2, 3, 1, 4], [1, 1, 2, 3]])
    table[1] = 0
    return Reference(table[positions], {"ids": IDS, "dim": ODD, "pad": 1})


def _m2m100() -> Reference:
    ids = torch.from_numpy(IDS).long()
    fsmt = _part("fsmt", "SinusoidalPositionalEmbedding")(N, ODD, 1)
    fsmt.make_weight(N, ODD, 1)
    tables = [fsmt(ids)]
    for model, name in (
        ("m2m_100", "M2M100"),
        ("nllb_moe", "NllbMoe"),
        ("speech_to_text", "Speech2Text"),
        ("trocr", "TrOCR"),
        ("kosmos2", "Kosmos2Text"),
        ("seamless_m4t", "SeamlessM4T"),
    ):
        module = _part(model, f"{name}SinusoidalPositionalEmbedding")(N, ODD, 1)
        tables.append(module(ids))
    return Reference(_alike(tables, LINE), {"ids": IDS, "dim": ODD, "pad": 1})


def _m2m100_decoding() -> Reference:
    ids = torch.from_numpy(IDS).long()
    tables = [
        _part(model, f"{name}SinusoidalPositionalEmbedding")(N, ODD, 1)(
            ids, cache_length=3
        )
        for model, name in (
            ("m2m_100", "M2M100"),
            ("nllb_moe", "NllbMoe"),
            ("kosmos2", "Kosmos2Text"),
        )
    ]
    given = {"ids": IDS, "dim": ODD, "pad": 1, "cached": 3}
    return Reference(_alike(tables, LINE), given)


def _xglm() -> Reference:
    module = _part("xglm", "XGLMSinusoidalPositionalEmbedding")(N, ODD, 1)
    value = module(torch.arange(N)[None])[0].numpy()
    return Reference(value, {"n": N, "dim": ODD})


def _gemma4() -> Reference:
    config = _config(
        hidden_size=DIM,
        attention_chunk_size=4,
        attention_context_left=5,
        attention_context_right=0,
    )
    module = _part("gemma4", "Gemma4AudioRelPositionalEncoding")(config)
    value = module(torch.zeros(1, N, DIM))[0].numpy()
    return Reference(value, {"left": 4, "dim": DIM})


def _gemma3n() -> Reference:
    config = _config(
        hidden_size=DIM,
        conf_num_attention_heads=1,
        conf_attention_context_left=5,
        conf_attention_context_right=2,
    )
    module = _part("gemma3n", "Gemma3nAudioRelativePositionEmbedding")(config)
    left, right = module.max_backward, module.max_forward
    positions = torch.arange(left, -right - 1, -1)
    value = module._get_timing_signal_1d_pos(positions, torch.float32)[0].numpy()
    return Reference(value, {"left": left, "right": right, "dim": DIM})


def _musicgen() -> Reference:
    melody = _part("musicgen_melody", "MusicgenMelodySinusoidalPositionalEmbedding")
    tables = [
        _part("musicgen", "MusicgenSinusoidalPositionalEmbedding")(N, ODD)(
            torch.zeros(1, 2, N)
        ),
        melody(N, ODD)(torch.zeros(1, N, DIM)),
    ]
    return Reference(_alike(tables, 0), {"n": N, "dim": ODD})


def _timesteps(
    times: np.ndarray, given: dict[str, Any], dim: int, **options: Any
) -> Reference:
    from diffusers.models.embeddings import get_timestep_embedding

    value = get_timestep_embedding(torch.from_numpy(times), dim, **options).numpy()
    return Reference(value, {"times": times, "dim": dim, **given})


def _ddpm() -> Reference:
    return _timesteps(TIMES, {}, ODD)


def _stable_diffusion() -> Reference:
    options = {"flip_sin_to_cos": True, "downscale_freq_shift": 0}
    return _timesteps(TIMES, {}, ODD, **options)


def _sines_first() -> Reference:
    return _timesteps(TIMES, {}, DIM, flip_sin_to_cos=False, downscale_freq_shift=0)


def _flux() -> Reference:
    options = {"flip_sin_to_cos": True, "downscale_freq_shift": 0}
    given = {"scale": 1000, "max_period": 20_000}
    return _timesteps(UNIT_TIMES, given, DIM, **options, **given)


def _vibevoice() -> Reference:
    config = _config(frequency_embedding_size=DIM, diffusion_max_period=20_000)
    module = _part("vibevoice", "VibeVoiceDiffusionHeadSinusoidalEmbedding")(config)
    value = module(torch.from_numpy(TIMES)).numpy()
    return Reference(value, {"times": TIMES, "dim": DIM, "max_period": 20_000})


def _pi0() -> Reference:
    shortest, longest = 0.25, 4.0
    config = _config(
        dit_config=_config(hidden_size=DIM), min_period=shortest, max_period=longest
    )
    module = _part("pi0", "PI0TimestepEmbeddings")(config)
    value = module(torch.from_numpy(UNIT_TIMES)).numpy()
    given = {"turn": 2 * math.pi, "shortest": shortest, "longest": longest}
    return Reference(value, {"times": UNIT_TIMES, "dim": DIM, **given})


def _x_transformers() -> Reference:
    # "sin.xtransformers.scaled.d6.pos3"
    value = [
        0.05761200189590454,
        0.056664083153009415,
        0.0026386140380054712,
        -0.40416276454925537,
        0.40429672598838806,
        0.40823978185653687,
    ]
    given = {"positions": np.array([3], np.int32), "dim": DIM}
    return Reference(np.array([value]), given)


def _canary() -> Reference:
    module = _part("canary", "CanaryPositionalEmbedding")(N, DIM)
    return Reference(module(torch.arange(N)).numpy(), {"n": N, "dim": DIM})


# ----------------------------------------------------------- two or three coordinates


def _on_grid(blocks: Sequence[np.ndarray], height: int, width: int) -> Reference:
    given = {"height": height, "width": width, "dim": GRID_DIM}
    return Reference(np.concatenate(blocks, -1), given)


def _mae() -> Reference:
    from transformers import ViTMAEConfig

    # A square is all that it takes.
    config = ViTMAEConfig(hidden_size=GRID_DIM, image_size=HEIGHT, patch_size=1)
    module = _part("vit_mae", "ViTMAEEmbeddings")(config)
    module.initialize_weights()
    value = module.position_embeddings[0, 1:]  # without the class token
    return _on_grid([value.detach().numpy()], HEIGHT, HEIGHT)


def _dit() -> Reference:
    from diffusers.models.embeddings import get_2d_sincos_pos_embed

    sizes, base_size, scale = (HEIGHT, WIDTH), 3, 2.0
    value = get_2d_sincos_pos_embed(
        GRID_DIM, sizes, base_size=base_size, interpolation_scale=scale
    ).numpy()
    stretch = np.float32([base_size / size / scale for size in sizes])
    given = {"height": HEIGHT, "width": WIDTH, "stretch": stretch, "dim": GRID_DIM}
    return Reference(value, given)


def _scenic() -> Reference:
    y, x = (_waves(at, _powers(np.arange(3) / 3)) for at in _coordinates(HEIGHT, WIDTH))
    return _on_grid([*x, *y], HEIGHT, WIDTH)


def _scenic_3d() -> Reference:
    sizes = (2, HEIGHT, WIDTH)
    z, y, x = (_waves(at, _powers(np.arange(2) / 2)) for at in _coordinates(*sizes))
    given = {"depth": 2, "height": HEIGHT, "width": WIDTH, "dim": GRID_DIM}
    return Reference(np.concatenate([*z, *x, *y], -1), given)


def _big_vision() -> Reference:
    y, x = (_waves(at, _powers(np.arange(3) / 2)) for at in _coordinates(HEIGHT, WIDTH))
    return _on_grid([*x, *y], HEIGHT, WIDTH)


# "sin.timm.sincos2d.d8.2x2": sines and cosines of 1 and of 0.01.
SIN = [0.8414709568023682, 0.009999833069741726]
COS = [0.5403023362159729, 0.9999499917030334]
TIMM = {
    "default": np.array(
        [
            [0, 0, 0, 0, 1, 1, 1, 1],
            [0, 0, *SIN, 1, 1, *COS],
            [*SIN, 0, 0, *COS, 1, 1],
            [*SIN, *SIN, *COS, *COS],
        ]
    ),
    "interleave": np.array(
        [
            [0, 0, 1, 1, 0, 0, 1, 1],
            [0, 0, 1, 1, *SIN, *COS],
            [*SIN, *COS, 0, 0, 1, 1],
            [*SIN, *COS, *SIN, *COS],
        ]
    ),
}


def _timm(name: str) -> Reference:
    """What is stored, and the formula beyond two rows and columns."""
    frequencies = _powers(np.arange(2) / 2)
    y, x = (_waves(at, frequencies) for at in _coordinates(HEIGHT, WIDTH))
    blocks = [y[0], x[0], y[1], x[1]] if name == "default" else [*y, *x]
    value = np.concatenate(blocks, -1)
    _stored(TIMM[name], value.reshape(HEIGHT, WIDTH, 8)[:2, :2].reshape(4, 8))
    return Reference(value, {"height": HEIGHT, "width": WIDTH, "dim": 8})


def _timm_default() -> Reference:
    return _timm("default")


def _timm_interleaved() -> Reference:
    return _timm("interleave")


def _praxis_2d() -> Reference:
    places = [
        at - size / 2
        for at, size in zip(_coordinates(HEIGHT, WIDTH), (HEIGHT, WIDTH), strict=True)
    ]
    y, x = (_waves(at, _powers(np.arange(3) / 3)) for at in places)
    value = np.concatenate([*y, *x], -1)
    centre = np.float32([HEIGHT / 2, WIDTH / 2])
    given = {"height": HEIGHT, "width": WIDTH, "centre": centre, "dim": GRID_DIM}
    return Reference(value, given)


def _rt_detr() -> Reference:
    tables = [
        _part(model, f"{name}SinePositionEmbedding")(GRID_DIM)(
            WIDTH, HEIGHT, torch.device("cpu"), torch.float32
        )[0]
        for model, name in (
            ("rt_detr", "RTDetr"),
            ("rt_detr_v2", "RTDetrV2"),
            ("d_fine", "DFine"),
        )
    ]
    return _on_grid([_alike(tables, GRID)], HEIGHT, WIDTH)


def _moco_v3() -> Reference:
    # The first axis of its grid is the slow one, which is called the width; images are square.
    w, h = (
        _waves(at, _powers(np.arange(3) / 3)) for at in _coordinates(HEIGHT, HEIGHT)
    )
    return _on_grid([*w, *h], HEIGHT, HEIGHT)


# -------------------------------------------------------------------------- DETR's


def _last(tensor: torch.Tensor) -> np.ndarray:
    """From [batch, dim, height, width]."""
    return tensor.permute(0, 2, 3, 1).numpy()


def _detr(
    models: Sequence[tuple[str, str]], masked: bool, **options: Any
) -> np.ndarray:
    shape = torch.Size((len(MASK), GRID_DIM, HEIGHT, WIDTH))
    mask = torch.from_numpy(MASK) if masked else None
    tables = []
    for model, name in models:
        part = _part(model, f"{name}SinePositionEmbedding")
        module = part(GRID_DIM // 2, **options)
        tables.append(module(shape, torch.device("cpu"), torch.float32, mask))
    return _last(torch.from_numpy(_alike(tables, LINE)))


DETR = (
    ("detr", "Detr"),
    ("conditional_detr", "ConditionalDetr"),
    ("maskformer", "MaskFormer"),
    ("mask2former", "Mask2Former"),
    ("oneformer", "OneFormer"),
    ("sam2", "Sam2"),
)


def _detr_unnormalized() -> Reference:
    value = _detr((*DETR, ("deformable_detr", "DeformableDetr")), False)
    return _on_grid([value[0].reshape(HEIGHT * WIDTH, GRID_DIM)], HEIGHT, WIDTH)


def _detr_masked() -> Reference:
    value = _detr((*DETR, ("deformable_detr", "DeformableDetr")), True)
    return Reference(value, {"mask": MASK, "dim": GRID_DIM})


def _detr_normalized() -> Reference:
    value = _detr(DETR, True, normalize=True)
    return Reference(value, {"mask": MASK, "dim": GRID_DIM})


def _deformable_detr() -> Reference:
    value = _detr((("deformable_detr", "DeformableDetr"),), True, normalize=True)
    # Where a whole row or column is padding, its place is half a pixel before nothing: 3 million radians.
    return Reference(value[MASK], {"mask": MASK, "dim": GRID_DIM})


def _dab_detr() -> Reference:
    config = _config(
        hidden_size=GRID_DIM,
        temperature_height=20,
        temperature_width=30,
        sine_position_embedding_scale=None,
    )
    module = _part("dab_detr", "DabDetrSinePositionEmbedding")(config)
    value = _last(module(torch.zeros(1), torch.from_numpy(MASK)))
    bases = {"of_height": 20, "of_width": 30}
    return Reference(value, {"mask": MASK, "dim": GRID_DIM, **bases})


def _grounding_dino() -> Reference:
    from transformers import DabDetrConfig, GroundingDinoConfig

    # Their own temperature.
    config = GroundingDinoConfig(d_model=GRID_DIM)
    pixels, mask = torch.zeros(1), torch.from_numpy(MASK)
    dab = _part("dab_detr", "DabDetrSinePositionEmbedding")
    tables = [
        _part("grounding_dino", "GroundingDinoSinePositionEmbedding")(config),
        _part("mm_grounding_dino", "MMGroundingDinoSinePositionEmbedding")(config),
        dab(DabDetrConfig(hidden_size=GRID_DIM)),
    ]
    value = _alike([module(pixels, mask) for module in tables], NORMALIZED)
    value = _last(torch.from_numpy(value))
    return Reference(value, {"mask": MASK, "dim": GRID_DIM})


def _queries() -> Reference:
    # Centre (x, y), width and height of boxes, from 0 to 1.
    boxes = np.random.default_rng(0).uniform(0, 1, (3, 4)).astype(np.float32)
    tables = [
        _part(model, "encode_sinusoidal_position_embedding")(torch.from_numpy(boxes), 6)
        for model in ("conditional_detr", "dab_detr", "grounding_dino", "rf_detr")
    ]
    return Reference(_alike(tables, NORMALIZED), {"boxes": boxes, "dim": 24})


# ------------------------------------------------------------------------- Fourier


def _gaussian() -> Reference:
    from diffusers.models.embeddings import GaussianFourierProjection

    times = np.array([-2.5, 0, 0.75, 3], np.float32)
    module = GaussianFourierProjection(4, log=False, flip_sin_to_cos=True)
    frequencies = np.random.default_rng(0).uniform(-1, 1, (1, 4)).astype(np.float32)
    module.weight.data.copy_(torch.from_numpy(frequencies[0]))
    value = module(torch.from_numpy(times)).numpy()
    return Reference(value, {"times": times, "frequencies": frequencies})


def _sam() -> Reference:
    points = np.array([[[[0, 5], [31, 7], [63, 47]]]], np.float32)
    module = _part("sam", "SamPositionalEmbedding")(_config(scale=1, num_pos_feats=4))
    frequencies = np.random.default_rng(0).uniform(-1, 1, (2, 4)).astype(np.float32)
    module.positional_embedding.data.copy_(torch.from_numpy(frequencies))
    value = module(torch.from_numpy(points), (48, 64)).detach().numpy()
    size = np.array([64, 48], np.float32)
    given = {"points": points, "size": size, "frequencies": frequencies}
    return Reference(value, given)


# Who, the call, what the reference is computed with, the reference, and its tolerance.
ROWS = (
    (
        "the paper, XLM, FlauBERT, DistilBERT, VideoMAE",
        "sinusoidal_position_encoding(n, dim)",
        "transformers",
        _paper,
        LINE,
    ),
    (
        "diffusers' SinusoidalPositionalEmbedding, Florence-2 (frames)",
        'sinusoidal_position_encoding(n, dim, preset="florence2")',
        "diffusers, transformers",
        _interleaved,
        LINE,
    ),
    (
        "SpeechT5 (its amplitude is learnt)",
        'sinusoidal_position_encoding(n, dim, preset="speecht5", amplitude=alpha)',
        "transformers",
        _speecht5,
        LINE,
    ),
    (
        "Wav2Vec2-Conformer, Parakeet (relative positions)",
        'sinusoidal_position_encoding(n - 1 - position_range(2 * n - 1), dim, preset="wav2vec2-conformer")',
        "transformers",
        _conformer,
        LINE,
    ),
    (
        "positional-encodings",
        'sinusoidal_position_encoding(positions, dim, preset="positional_encodings")',
        "stored",
        _positional_encodings,
        LINE,
    ),
    (
        "Flax's nlp_seq example, KerasHub, axlearn's RoFormer",
        'sinusoidal_position_encoding(n, dim, preset="flax_nlp_seq")',
        "formula",
        _flax_nlp_seq,
        LINE,
    ),
    (
        "Marian, Pegasus, RoFormer, Autoformer, Informer, Time Series Transformer",
        'sinusoidal_position_encoding(n, dim, preset="marian")',
        "transformers",
        _marian,
        LINE,
    ),
    (
        "XLNet, Transformer-XL (relative positions)",
        'sinusoidal_position_encoding(n - position_range(2 * n), dim, preset="xlnet")',
        "transformers",
        _xlnet,
        LINE,
    ),
    (
        "GPT-NeoX",
        'sinusoidal_position_encoding(positions, dim, preset="transformer_xl")',
        "stored",
        _gpt_neox,
        LINE,
    ),
    (
        "Bros (corners of boxes)",
        'sinusoidal_position_encoding(corners, dim, preset="xlnet", axes=(0, 1, 2, 3))',
        "transformers",
        _bros,
        LINE,
    ),
    (
        "Whisper, Qwen2-Audio, Qwen2.5-Omni (audio), TimesFM, Pegasus-X, TIPSv2",
        'sinusoidal_position_encoding(n, dim, preset="whisper")',
        "transformers",
        _whisper,
        LINE,
    ),
    (
        "tensor2tensor, its shortest and longest wavelength over 2 pi chosen",
        'sinusoidal_position_encoding(n, dim, preset="tensor2tensor", base=longest / shortest, '
        "angle_scale=1 / shortest)",
        "formula",
        _tensor2tensor,
        LINE,
    ),
    (
        "TimesFM, praxis, axlearn, Flax's wmt example, which multiply by the shortest instead",
        'sinusoidal_position_encoding(n, dim, preset="timesfm", base=longest / shortest, angle_scale=shortest)',
        "transformers",
        _timesfm,
        DOUBLED,
    ),
    (
        "Flax's wmt and lm1b examples, MaxText, praxis, axlearn",
        'sinusoidal_position_encoding(n, dim, preset="flax_wmt")',
        "formula",
        _flax_wmt,
        LINE,
    ),
    (
        "FunASR",
        'sinusoidal_position_encoding(position_range(n, offset=1), dim, preset="whisper")',
        "transformers",
        _funasr,
        LINE,
    ),
    (
        "Qwen2.5-Omni (diffusion time)",
        'sinusoidal_position_encoding(times, dim, preset="ddpm", angle_scale=1000)',
        "transformers",
        _qwen_omni_time,
        THOUSAND,
    ),
    (
        "fairseq",
        "sinusoidal_position_encoding(positions_from_mask(ids != pad, start=pad + 1, padding=pad), dim, "
        'preset="fairseq")',
        "stored, formula",
        _fairseq,
        LINE,
    ),
    (
        "FSMT, M2M100, NLLB-MoE, Speech2Text, TrOCR, Kosmos-2, SeamlessM4T",
        "sinusoidal_position_encoding(positions_from_mask(ids != pad, start=pad + 1, padding=pad), dim, "
        'preset="m2m_100")',
        "transformers",
        _m2m100,
        LINE,
    ),
    (
        "M2M100, NLLB-MoE, Kosmos-2, after tokens in a cache",
        "sinusoidal_position_encoding(positions_from_mask(ids != pad, start=pad + 1 + cached, padding=pad), dim, "
        'preset="m2m_100")',
        "transformers",
        _m2m100_decoding,
        LINE,
    ),
    (
        "XGLM",
        'sinusoidal_position_encoding(position_range(n, offset=2), dim, preset="xglm")',
        "transformers",
        _xglm,
        LINE,
    ),
    (
        "Gemma 4 (audio, relative positions)",
        'sinusoidal_position_encoding(left - position_range(left + 1), dim, preset="gemma4_audio")',
        "transformers",
        _gemma4,
        LINE,
    ),
    (
        "Gemma 3n (audio, relative positions)",
        'sinusoidal_position_encoding(left - position_range(left + right + 1), dim, preset="gemma4_audio")',
        "transformers",
        _gemma3n,
        LINE,
    ),
    (
        "MusicGen",
        'sinusoidal_position_encoding(n, dim, preset="musicgen")',
        "transformers",
        _musicgen,
        LINE,
    ),
    (
        "DDPM (diffusers' get_timestep_embedding as it is)",
        'sinusoidal_position_encoding(times, dim, preset="ddpm")',
        "diffusers",
        _ddpm,
        TIME,
    ),
    (
        "Stable Diffusion, SDXL, FLUX (flip_sin_to_cos, downscale_freq_shift 0)",
        'sinusoidal_position_encoding(times, dim, preset="stable_diffusion")',
        "diffusers",
        _stable_diffusion,
        TIME,
    ),
    (
        "get_timestep_embedding with downscale_freq_shift 0",
        'sinusoidal_position_encoding(times, dim, preset="stable_diffusion", layout="half")',
        "diffusers",
        _sines_first,
        TIME,
    ),
    (
        "get_timestep_embedding with a scale and max_period",
        'sinusoidal_position_encoding(times, dim, preset="flux", base=max_period, angle_scale=scale)',
        "diffusers",
        _flux,
        THOUSAND,
    ),
    (
        "VibeVoice",
        'sinusoidal_position_encoding(times, dim, preset="vibevoice", base=max_period)',
        "transformers",
        _vibevoice,
        TIME,
    ),
    (
        "pi0 (periods from the shortest to the longest)",
        'sinusoidal_position_encoding(times, dim, preset="ddpm", base=longest / shortest, angle_scale=turn / shortest)',
        "transformers",
        _pi0,
        PERIODS,
    ),
    (
        "x-transformers (its amplitude is learnt)",
        'sinusoidal_position_encoding(positions, dim, preset="x_transformers")',
        "stored",
        _x_transformers,
        LINE,
    ),
    (
        "Canary",
        'sinusoidal_position_encoding(n, dim, preset="canary")',
        "transformers",
        _canary,
        LINE,
    ),
    (
        "MAE, ViT-MAE",
        'sinusoidal_position_encoding(grid_positions(height, width), dim, preset="mae")',
        "transformers",
        _mae,
        GRID,
    ),
    (
        "DiT, PixArt (sizes interpolated)",
        'sinusoidal_position_encoding(grid_positions(height, width) * stretch, dim, preset="dit")',
        "diffusers",
        _dit,
        STRETCHED,
    ),
    (
        "scenic",
        'sinusoidal_position_encoding(grid_positions(height, width), dim, preset="scenic")',
        "formula",
        _scenic,
        GRID,
    ),
    (
        "scenic (three axes)",
        'sinusoidal_position_encoding(grid_positions(depth, height, width), dim, preset="scenic_3d")',
        "formula",
        _scenic_3d,
        GRID,
    ),
    (
        "big_vision, Gemma 3's vision in gemma, SimpleViT of vit-pytorch",
        'sinusoidal_position_encoding(grid_positions(height, width), dim, preset="big_vision")',
        "formula",
        _big_vision,
        GRID,
    ),
    (
        "timm",
        'sinusoidal_position_encoding(grid_positions(height, width), dim, preset="timm")',
        "stored, formula",
        _timm_default,
        GRID,
    ),
    (
        "timm with interleave_sin_cos",
        'sinusoidal_position_encoding(grid_positions(height, width), dim, preset="timm_interleaved")',
        "stored, formula",
        _timm_interleaved,
        GRID,
    ),
    (
        "praxis (centred)",
        'sinusoidal_position_encoding(grid_positions(height, width) - centre, dim, preset="praxis_2d")',
        "formula",
        _praxis_2d,
        GRID,
    ),
    (
        "RT-DETR, RT-DETRv2, D-FINE",
        'sinusoidal_position_encoding(grid_positions(height, width), dim, preset="rt_detr")',
        "transformers",
        _rt_detr,
        GRID,
    ),
    (
        "MoCo v3",
        'sinusoidal_position_encoding(grid_positions(height, width), dim, preset="moco_v3")',
        "formula",
        _moco_v3,
        GRID,
    ),
    (
        "DETR, Conditional and Deformable DETR, MaskFormer, Mask2Former, OneFormer, SAM 2, not normalized",
        'sinusoidal_position_encoding(grid_positions(height, width) + 1, dim, preset="detr_unnormalized")',
        "transformers",
        _detr_unnormalized,
        LINE,
    ),
    (
        "the same, of padded images",
        'sinusoidal_position_encoding(grid_positions_from_mask(mask), dim, preset="detr_unnormalized")',
        "transformers",
        _detr_masked,
        LINE,
    ),
    (
        "DETR, Conditional DETR, MaskFormer, Mask2Former, OneFormer, SAM 2",
        'sinusoidal_position_encoding(grid_positions_from_mask(mask, normalize="end"), dim, preset="detr")',
        "transformers",
        _detr_normalized,
        NORMALIZED,
    ),
    (
        "Deformable DETR",
        'sinusoidal_position_encoding(grid_positions_from_mask(mask, normalize="centre"), dim, '
        'preset="deformable_detr")[mask]',
        "transformers",
        _deformable_detr,
        NORMALIZED,
    ),
    (
        "DAB-DETR, Grounding DINO, MM Grounding DINO",
        'sinusoidal_position_encoding(grid_positions_from_mask(mask, normalize="end"), dim, preset="grounding-dino")',
        "transformers",
        _grounding_dino,
        NORMALIZED,
    ),
    (
        "DAB-DETR with two temperatures",
        'sinusoidal_position_encoding(grid_positions_from_mask(mask, normalize="end"), dim, preset="dab-detr", '
        "base=(of_height, of_width))",
        "transformers",
        _dab_detr,
        NORMALIZED,
    ),
    (
        "queries of Conditional DETR, DAB-DETR, Grounding DINO, RF-DETR (x, y, width, height)",
        'sinusoidal_position_encoding(boxes, dim, preset="conditional_detr", axes=(1, 0, 2, 3))',
        "transformers",
        _queries,
        NORMALIZED,
    ),
    (
        "diffusers' GaussianFourierProjection",
        'fourier_position_encoding(times[:, None], frequencies, layout="half_cos_first")',
        "diffusers",
        _gaussian,
        FOURIER,
    ),
    (
        "SAM's prompt encoder",
        "fourier_position_encoding(2 * points / size - 1, frequencies)",
        "transformers",
        _sam,
        FOURIER,
    ),
)
VARIANTS = tuple(Variant("sinusoidal", *row) for row in ROWS)
