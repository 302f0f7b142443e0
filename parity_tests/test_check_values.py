"""Both packages against numbers that the models' own code printed.

Every literal is somebody else's result, at the version or commit in the comment above
it, or a fact of a public bug report; `x8` is [1, 2, ..., 8]. So the two packages cannot
be wrong together about what a name means.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import posenc_jax
import posenc_torch

if TYPE_CHECKING:
    from types import ModuleType

U = 2.0**-24  # unit roundoff of float32
TOLERANCE = {
    # Frequencies were a float32 power and reciprocal, 1.4 u at most (measured for base
    # 1e4 to 1e6); ours are rounded once, 1 u.
    "inv_freq": 3 * U,  # relative
    # Two products and a sum of numbers up to 8, whose last bit is 8 u, on each side. All
    # rows but one agree to the bit; the complex product of Meta's is off by one bit.
    "rotation": 24 * U,
    # A sine or cosine on each side, half a unit, of an angle that is exact for the first
    # frequency and below 0.2, with 8 u of itself for fairseq's exp formula, for the rest.
    "sinusoid": 3 * U,
    # Printed from float64, or exact powers of two; ours is rounded once to float32.
    "slopes": 1 * U,  # relative
    # Products of two float32 numbers that are exact here: slopes are powers of two.
    "exact": 0.0,
    # Facts given to six decimals.
    "six_decimals": 0.6e-6,
}

X8 = np.arange(1.0, 9.0, dtype=np.float32)
PACKAGES = {"torch": posenc_torch, "jax": posenc_jax}
BOTH = pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)


def array(package: ModuleType, values: Any, dtype: str = "float32") -> Any:
    if package is posenc_torch:
        return torch.tensor(np.asarray(values)).to(getattr(torch, dtype))
    return jnp.asarray(values, dtype)


def one_head(package: ModuleType, rows: Any) -> Any:
    """[seq, head_dim] as one head, in the package's own order of axes."""
    axis = 0 if package is posenc_torch else 1
    return array(package, np.expand_dims(np.asarray(rows, np.float32), axis))


def rotated(
    package: ModuleType, rows: Any, positions: Any, width: int, **options: Any
) -> np.ndarray:
    inv_freq = package.RopeConfig(width).inv_freq()
    positions = array(package, positions, "int32")
    tables = package.rope_cos_sin(positions, inv_freq)
    out = package.apply_rope(one_head(package, rows), *tables, **options)
    return np.squeeze(np.asarray(out), 0 if package is posenc_torch else 1)


def assert_near(found: Any, expected: Any, kind: str) -> None:
    assert np.asarray(found).dtype == np.float32
    np.testing.assert_allclose(
        np.asarray(found), np.asarray(expected), rtol=0, atol=TOLERANCE[kind]
    )


def assert_relatively_near(found: Any, expected: Any, kind: str) -> None:
    assert np.asarray(found).dtype == np.float32
    np.testing.assert_allclose(
        np.asarray(found), np.asarray(expected), rtol=TOLERANCE[kind], atol=0
    )


# --------------------------------------------------------------------------- rotary

INV_FREQ = {
    # transformers==5.24.0, LlamaRotaryEmbedding.compute_default_rope_parameters
    "llama_8": (
        {"head_dim": 8},
        [1.0, 0.10000000149011612, 0.009999999776482582, 0.0010000000474974513],
    ),
    # transformers==5.24.0, the first three of ROPE_INIT_FUNCTIONS["yarn"] for a width of
    # 64, which it leaves as they are. pie-project/pie#603 (A7): the exponent is over
    # rotary_dim, 0.749894, not over head_dim, 0.930572.
    "partial_64_of_256": (
        {"head_dim": 256, "rotary_dim": 64},
        [1.0, 0.7498942017555237, 0.5623413324356079],
    ),
    # deepspeedai/DeepSpeed#4442 (A16): the base is the model's.
    "base_1e6": ({"head_dim": 4, "base": 1e6}, [1.0, 0.001]),
}

ROTATED = {
    # transformers==5.24.0, llama apply_rotary_pos_emb(x8, position 3)
    # and torch==2.13.0, torch.onnx.ops.rotary_embedding(interleaved=False): same digits
    "llama_half": (
        {"layout": "half"},
        8,
        [
            *(-1.6955925226211548, 0.1375516653060913),
            *(2.7886815071105957, 3.975982189178467),
            *(-4.808842658996582, 6.323059558868408),
            *(7.086836814880371, 8.011963844299316),
        ],
    ),
    # meta-llama/llama@689c7f2, llama/model.py, apply_rotary_emb(x8, position 3)
    "meta_interleaved": (
        {"layout": "interleaved"},
        8,
        [
            *(-1.2722325325012207, -1.838865041732788),
            *(1.6839287281036377, 4.707906723022461),
            *(4.817777156829834, 6.14727783203125),
            *(6.975968837738037, 8.020964622497559),
        ],
    ),
    # Dao-AILab/flash-attention@0251105a, apply_rotary_emb_torch(interleaved=False)
    "flash_partial_half": (
        {"layout": "half"},
        4,
        [
            *(-1.4133524894714355, 1.8791180849075317),
            *(-2.828857421875, 4.058191299438477),
            *(5.0, 6.0, 7.0, 8.0),
        ],
    ),
    # Dao-AILab/flash-attention@0251105a, apply_rotary_emb_torch(interleaved=True)
    "flash_partial_interleaved": (
        {"layout": "interleaved"},
        4,
        [
            *(-1.2722325325012207, -1.838865041732788),
            *(2.8786680698394775, 4.088186740875244),
            *(5.0, 6.0, 7.0, 8.0),
        ],
    ),
    # transformers==5.24.0, deepseek_v4.apply_rotary_pos_emb: the last 4 channels
    "deepseek_v4_trailing": (
        {"layout": "interleaved", "placement": "trailing"},
        4,
        [
            *(1.0, 2.0, 3.0, 4.0),
            *(-5.796682357788086, -5.2343549728393555),
            *(6.7568864822387695, 8.206368446350098),
        ],
    ),
    # transformers==5.24.0, nanochat.apply_rotary_pos_emb: turns the other way
    "nanochat_inverse": (
        {"layout": "half", "inverse": True},
        8,
        [
            *(-0.28439247608184814, 3.6837944984436035),
            *(3.208618640899658, 4.023982048034668),
            *(-5.091082572937012, 5.1409783363342285),
            *(6.906864166259766, 7.987964153289795),
        ],
    ),
}


@BOTH
@pytest.mark.parametrize("case", INV_FREQ)
def test_rope_config_inv_freq_is_the_models_own(case, package):
    config, expected = INV_FREQ[case]
    found = package.RopeConfig(**config).inv_freq()
    assert found.dtype == np.float32
    assert_relatively_near(found[: len(expected)], expected, "inv_freq")


def test_rope_config_inv_freq_has_the_same_bits_in_both():
    torch_side, jax_side = (
        package.RopeConfig(128, base=500_000.0).inv_freq()
        for package in PACKAGES.values()
    )
    np.testing.assert_array_equal(torch_side, jax_side)


@BOTH
@pytest.mark.parametrize("case", ROTATED)
def test_apply_rope_is_the_models_own(case, package):
    options, width, expected = ROTATED[case]
    (found,) = rotated(package, [X8], [3], width, **options)
    assert_near(found, expected, "rotation")


@BOTH
def test_apply_rope_keeps_other_channels_bit_for_bit(package):
    """labscommunity/cascadia#69 (A8): 4 of 8 rotate as a width of 4, 4 pass."""
    x = np.arange(8.0)
    (found,) = rotated(package, [x], [1], 4)
    (alone,) = rotated(package, [x[:4]], [1], 4)
    np.testing.assert_array_equal(found, np.concatenate((alone, x[4:])))


@BOTH
def test_apply_rope_pairs_within_the_rotary_width(package):
    """pie-project/pie#603 (A7): the partner of channel 0 is 32, not 128."""
    x = np.zeros(256)
    x[0] = 1.0
    (found,) = rotated(package, [x], [1], 64)
    np.testing.assert_array_equal(np.flatnonzero(found), [0, 32])
    assert_near(found[[0, 32]], [math.cos(1), math.sin(1)], "sinusoid")


# Facts of public threads, at position 1, computed in float64 (A1 and A2 of our notes).
FACTS = {
    # huggingface/transformers#16288: without the minus, [1.38, 1.38, 1.01, 1.01]
    "flax_gptj": (
        "interleaved",
        [1.0, 1.0, 1.0, 1.0],
        [-0.301169, 1.381773, 0.989950, 1.009950],
    ),
    # huggingface/transformers#25199: the two pairings of the same channels
    "llama_half": (
        "half",
        [1.0, 2.0, 3.0, 4.0],
        [-1.984111, 1.959901, 2.462378, 4.019800],
    ),
    "llama_interleaved": (
        "interleaved",
        [1.0, 2.0, 3.0, 4.0],
        [-1.142640, 1.922076, 2.959851, 4.029799],
    ),
}


@BOTH
@pytest.mark.parametrize("case", FACTS)
def test_apply_rope_is_right_where_a_port_was_wrong(case, package):
    layout, x, expected = FACTS[case]
    (found,) = rotated(package, [x], [1], 4, layout=layout)
    assert_near(found, expected, "six_decimals")


@BOTH
def test_apply_rope_leaves_position_0_alone(package):
    (found,) = rotated(package, [X8], [0], 8)
    np.testing.assert_array_equal(found, X8)


@BOTH
def test_permute_rope_weights_is_the_step_between_the_two_models(package):
    """Llama's half result is Meta's interleaved one, permuted as the weights are."""
    (meta,) = rotated(package, [X8], [3], 8, layout="interleaved")
    halves = package.permute_rope_weights(array(package, X8), 1, to="half")
    (llama,) = rotated(package, [np.asarray(halves)], [3], 8, layout="half")
    permuted = package.permute_rope_weights(array(package, meta), 1, to="half")
    assert_near(llama, permuted, "rotation")
    # transformers==5.24.0, deepseek_v3.apply_rotary_pos_emb_interleave(x8, position 3)
    expected = [
        *(-1.2722325325012207, 1.6839286088943481),
        *(4.817777156829834, 6.975968360900879),
        *(-1.838865041732788, 4.707906723022461),
        *(6.14727783203125, 8.020964622497559),
    ]
    assert_near(llama, expected, "rotation")


# ---------------------------------------------------------------------------- ALiBi

SLOPES = {
    # ofirpress/attention_with_linear_biases@4b92f28, get_slopes
    1: [0.00390625],
    # and ml-explore/mlx#343 (E1), where a uniform series began with .39685
    6: [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125],
    8: [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625],
    # and NVIDIA/TensorRT-LLM#1611 (E2): neither uniform nor sorted
    12: [
        *(0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625),
        *(0.7071067811865476, 0.35355339059327384),
        *(0.17677669529663692, 0.08838834764831849),
    ],
}


@BOTH
@pytest.mark.parametrize("num_heads", SLOPES)
def test_alibi_slopes_are_the_authors(num_heads, package):
    found = package.alibi_slopes(num_heads)
    assert_relatively_near(found, SLOPES[num_heads], "slopes")


def mpt_slopes(num_heads: int) -> list[float]:
    """mosaicml/llm-foundry@8c8dd48f7, in our words.

    A series for the next power of two; every second slope first, then those between.
    """
    power = 1 << (num_heads - 1).bit_length()
    series = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    if power == num_heads:
        return series
    return (series[1::2] + series[0::2])[:num_heads]


@BOTH
@pytest.mark.parametrize("num_heads", range(1, 129))
def test_alibi_slopes_are_mpts(num_heads, package):
    found = package.alibi_slopes(num_heads)
    assert_relatively_near(found, mpt_slopes(num_heads), "slopes")


BIASES = {
    # transformers==5.24.0, bloom.build_alibi_tensor(ones(1, 4), 2)
    "bloom": (
        "key",
        [3],
        range(4),
        [[[0.0, 0.0625, 0.125, 0.1875]], [[0.0, 0.00390625, 0.0078125, 0.01171875]]],
    ),
    # mosaicml/llm-foundry@8c8dd48f7, build_alibi_bias(2, 4, full=True)
    "mpt_full": (
        "symmetric",
        range(4),
        range(4),
        [
            [
                [0.0, -0.0625, -0.125, -0.1875],
                [-0.0625, 0.0, -0.0625, -0.125],
                [-0.125, -0.0625, 0.0, -0.0625],
                [-0.1875, -0.125, -0.0625, 0.0],
            ],
            [
                [0.0, -0.00390625, -0.0078125, -0.01171875],
                [-0.00390625, 0.0, -0.00390625, -0.0078125],
                [-0.0078125, -0.00390625, 0.0, -0.00390625],
                [-0.01171875, -0.0078125, -0.00390625, 0.0],
            ],
        ],
    ),
    # Dao-AILab/flash-attention@0251105a, attn_bias_from_alibi_slopes(slopes, 2, 4):
    # the two queries are the last two of the four tokens
    "flash_2x4": (
        "symmetric",
        [2, 3],
        range(4),
        [
            [[-0.125, -0.0625, 0.0, -0.0625], [-0.1875, -0.125, -0.0625, 0.0]],
            [
                [-0.0078125, -0.00390625, 0.0, -0.00390625],
                [-0.01171875, -0.0078125, -0.00390625, 0.0],
            ],
        ],
    ),
    # transformers==5.24.0, build_mpt_alibi_tensor(2, 4), and flash-attention's causal
    # reference: the row of the last query
    "mpt_causal": (
        "signed",
        [3],
        range(4),
        [
            [[-0.1875, -0.125, -0.0625, 0.0]],
            [[-0.01171875, -0.0078125, -0.00390625, 0.0]],
        ],
    ),
    # EleutherAI/gpt-neox@ea7aefd8, AliBi(2).bias(4, 4), third row, up to its diagonal
    "neox_row": (
        "symmetric",
        [2],
        range(3),
        [[[-0.125, -0.0625, 0.0]], [[-0.0078125, -0.00390625, 0.0]]],
    ),
    # meta-pytorch/attention-gym@7fdb85d, generate_alibi_bias(2): positive above the
    # diagonal (its slopes are the authors' for a power of two)
    "attention_gym": ("signed", [0], [1], [[[0.0625]], [[0.00390625]]]),
    # keras-team/keras-hub#2861 (E8): the bias of one decoded query is not zero
    "decode_step": (
        "symmetric",
        [3],
        range(4),
        [
            [[-0.1875, -0.125, -0.0625, 0.0]],
            [[-0.01171875, -0.0078125, -0.00390625, 0.0]],
        ],
    ),
}


@BOTH
@pytest.mark.parametrize("case", BIASES)
def test_alibi_bias_is_the_models_own(case, package):
    kind, queries, keys, expected = BIASES[case]
    found = package.alibi_bias(
        array(package, list(queries), "int32"),
        array(package, list(keys), "int32"),
        package.alibi_slopes(2),
        kind=kind,
    )
    assert_near(found, expected, "exact")


# ----------------------------------------------------------------------- sinusoidal

PAPER_SIN = [0.14112000167369843, 0.13879810273647308, 0.006463258992880583]
PAPER_COS = [-0.9899924993515015, 0.9903206825256348, 0.9999791383743286]
ENDPOINT_SIN = [0.14112000167369843, 0.029995499178767204, 0.0002999999560415745]
ENDPOINT_COS = [-0.9899924993515015, 0.9995500445365906, 0.9999999403953552]

# Rows of position 3, or of time 3.0.
SINUSOIDS = {
    # transformers==5.24.0, MarianSinusoidalPositionalEmbedding(8, 6)
    "marian_6": ({"dim": 6, "layout": "half"}, PAPER_SIN + PAPER_COS),
    # transformers==5.24.0, MarianSinusoidalPositionalEmbedding(8, 7): a sine more
    "marian_7": (
        {"dim": 7, "layout": "half"},
        [
            *(0.14112000167369843, 0.2142321914434433),
            *(0.015537798404693604, 0.0011182778980582952),
            *(-0.9899924993515015, 0.9767827391624451, 0.9998793005943298),
        ],
    ),
    # facebookresearch/fairseq@3d262bb2, SinusoidalPositionalEmbedding.get_embedding(8, 6)
    "fairseq_6": (
        {"dim": 6, "layout": "half", "spacing": "endpoint"},
        ENDPOINT_SIN + ENDPOINT_COS,
    ),
    # facebookresearch/fairseq@3d262bb2, get_embedding(8, 7): a zero at the end
    "fairseq_7": (
        {"dim": 7, "layout": "half", "spacing": "endpoint"},
        [*ENDPOINT_SIN, *ENDPOINT_COS, 0.0],
    ),
    # transformers==5.24.0, MusicgenSinusoidalPositionalEmbedding.get_embedding(8, 6)
    "musicgen": (
        {"dim": 6, "layout": "half_cos_first", "spacing": "endpoint"},
        ENDPOINT_COS + ENDPOINT_SIN,
    ),
    # transformers==5.24.0, SpeechT5ScaledPositionalEncoding(0.0, 6, 8).pe
    "speecht5": (
        {"dim": 6, "layout": "interleaved"},
        [x for pair in zip(PAPER_SIN, PAPER_COS, strict=True) for x in pair],
    ),
    # EleutherAI/gpt-neox@ea7aefd8, SinusoidalPositionalEmbedding of width 6
    "neox": (
        {"dim": 6, "layout": "half"},
        [
            *(0.14112000167369843, 0.1387980878353119, 0.006463258061558008),
            *(-0.9899924993515015, 0.9903206825256348, 0.9999791383743286),
        ],
    ),
    # diffusers==0.42.1, get_timestep_embedding(flip_sin_to_cos=False, shift 1)
    "diffusers_ddpm": (
        {"dim": 6, "layout": "half", "spacing": "endpoint"},
        ENDPOINT_SIN + ENDPOINT_COS,
    ),
    # diffusers==0.42.1, get_timestep_embedding(flip_sin_to_cos=True, shift 0)
    "diffusers_sd": (
        {"dim": 6, "layout": "half_cos_first"},
        PAPER_COS + PAPER_SIN,
    ),
}
POSITIONS = {"int": ([3], "int32"), "time": ([3.0], "float32")}


@BOTH
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("case", SINUSOIDS)
def test_sinusoidal_position_encoding_is_the_models_own(case, positions, package):
    options, expected = SINUSOIDS[case]
    at = array(package, *POSITIONS[positions])
    (found,) = package.sinusoidal_position_encoding(at, **options)
    assert_near(found, expected, "sinusoid")


# Facts of public threads, at position 1, computed in float64 (F1, F2 and F3).
SINUSOID_FACTS = {
    # gc-os-ai/pyaptamer#526: an odd width
    "odd_5": ({"dim": 5}, [0.841471, 0.540302, 0.025116, 0.999685, 0.000631]),
    # huggingface/diffusers#1369: the order of a Flax port
    "sin_first_4": (
        {"dim": 4, "layout": "half"},
        [0.841471, 0.01, 0.540302, 0.99995],
    ),
    "cos_first_4": (
        {"dim": 4, "layout": "half_cos_first"},
        [0.540302, 0.99995, 0.841471, 0.01],
    ),
    # allenai/allennlp#2993: the paper's order
    "paper_4": ({"dim": 4}, [0.841471, 0.540302, 0.01, 0.99995]),
}


@BOTH
@pytest.mark.parametrize("case", SINUSOID_FACTS)
def test_sinusoidal_position_encoding_is_right_where_others_were_wrong(case, package):
    options, expected = SINUSOID_FACTS[case]
    (found,) = package.sinusoidal_position_encoding(
        array(package, [1], "int32"), **options
    )
    assert_near(found, expected, "six_decimals")


# hojonathanho/diffusion#15 (F4): the frequencies of width 8, divisor half or half - 1
SPACINGS = {
    "dim": [1.0, 0.1, 0.01, 0.001],
    "endpoint": [1.0, 0.046416, 0.002154, 0.0001],
}


@BOTH
@pytest.mark.parametrize("spacing", SPACINGS)
def test_sinusoidal_position_encoding_spaces_its_frequencies(spacing, package):
    """The angle at time 1 is the frequency, and sine and cosine give it back."""
    (row,) = package.sinusoidal_position_encoding(
        array(package, [1.0]), 8, layout="half", spacing=spacing
    )
    sin, cos = np.split(np.asarray(row), 2)
    assert_near(np.arctan2(sin, cos), SPACINGS[spacing], "six_decimals")


# -------------------------------------------------------------------------- learned

ROWS = {
    # transformers==5.24.0, BartLearnedPositionalEmbedding: row position + 2
    "bart": ([2, 3, 4, 5], [2.0, 3.0, 4.0, 5.0]),
    # transformers==5.24.0, OPTLearnedPositionalEmbedding, mask [[0, 0, 1, 1]]
    "opt_left_padded": ([1, 1, 2, 3], [1.0, 1.0, 2.0, 3.0]),
    # transformers==5.24.0, create_position_ids_from_input_ids([5, 6, 1, 7], 1)
    "roberta": ([2, 3, 1, 4], [2.0, 3.0, 1.0, 4.0]),
}


@BOTH
@pytest.mark.parametrize("case", ROWS)
def test_learned_position_encoding_reads_the_models_rows(case, package):
    rows, expected = ROWS[case]
    table = array(package, np.arange(8.0)[:, None])
    found = package.learned_position_encoding(table, array(package, rows, "int32"))
    np.testing.assert_array_equal(np.asarray(found)[:, 0], expected)


@BOTH
@pytest.mark.parametrize("position", [9, -1, -9])
def test_learned_position_encoding_never_reads_a_wrong_row(position, package):
    """jax-ml/jax#3774 and others (D12): clamped, wrapped, or the integer's minimum."""
    table = array(package, np.arange(8.0).reshape(4, 2))
    at = array(package, [position], "int32")
    found = package.learned_position_encoding(table, at, out_of_range="nan")
    assert np.isnan(np.asarray(found)).all()


# --------------------------------------------------------------- the tests themselves


def test_check_values_are_run_in_float32():
    """Under x64 JAX would still compute what float32 inputs ask for."""
    found = rotated(posenc_jax, [X8], [3], 8)
    with jax.enable_x64(True):
        under_x64 = rotated(posenc_jax, [X8], [3], 8)
    assert found.dtype == under_x64.dtype == np.float32
    np.testing.assert_array_equal(found, under_x64)
