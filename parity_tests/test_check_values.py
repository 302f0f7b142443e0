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
    # Blends of two such frequencies, or of a larger base, or divided by a factor, which
    # are up to three roundings more; ours are rounded once.
    "scaled": 6 * U,  # relative
    # Float64 on both sides: logarithms, a root or a quotient, 8 roundings.
    "factor": 8 * 2.0**-53,  # relative
    # Two products and a sum of numbers up to 8, whose last bit is 8 u, on each side. All
    # rows but one agree to the bit; the complex product of Meta's is off by one bit.
    "rotation": 24 * U,
    # Sines and cosines of angles up to 3, with frequencies that are exact for the first
    # pair and off by 3 u below it; a product is rounded on each side.
    "table": 6 * U,
    # The same for angles up to 4.2 that are products of three numbers on each side, all
    # of them rounded: 2 * 3 u of the angle, and a sine or cosine.
    "centres": 27 * U,
    # Sines and cosines of the same floats: half a unit on each side, and the last bit.
    "same_angle": 2 * U,
    # Two products of a cosine and a scale, each off by 3 u, and a sum up to 1.4, whose
    # last bit is 1 u, on each side; scales alone have an exponential and a power.
    "xpos": 16 * U,
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
    # transformers==5.24.0, deepseek_v3.apply_rotary_pos_emb_interleave
    "deepseek_v3_to_half": (
        {"layout": "interleaved_to_half"},
        8,
        [
            *(-1.2722325325012207, 1.6839286088943481),
            *(4.817777156829834, 6.975968360900879),
            *(-1.838865041732788, 4.707906723022461),
            *(6.14727783203125, 8.020964622497559),
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


# --------------------------------------------------------------------------- scaling

AT_4096 = {"original_max_position_embeddings": 4096}
DIVISORS = {
    "short_factor": [1.0, 1.05, 1.1, 1.2],
    "long_factor": [1.0, 2.0, 8.0, 32.0],
}
EDGES = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# The config, its rule, the length; the frequencies and the attention factor.
SCALED = {
    # transformers==5.24.0, ROPE_INIT_FUNCTIONS["linear"]: position interpolation
    "linear_4": (
        {"head_dim": 8},
        ("LinearScaling", {"factor": 4.0}),
        None,
        [0.25, 0.02500000037252903, 0.0024999999441206455, 0.0002500000118743628],
        1.0,
    ),
    # transformers==5.24.0, ROPE_INIT_FUNCTIONS["dynamic"] at twice the trained length
    "dynamic_8192": (
        {"head_dim": 8},
        ("DynamicNtkScaling", {"factor": 2.0, "max_position_embeddings": 4096}),
        8192,
        [1.0, 0.06933612376451492, 0.0048074983060359955, 0.00033333332976326346],
        1.0,
    ),
    # transformers==5.24.0, ROPE_INIT_FUNCTIONS["yarn"]; Qwen2.5 and Qwen3 when long
    "yarn_4": (
        {"head_dim": 8},
        ("YarnScaling", {"factor": 4.0, **AT_4096}),
        None,
        [1.0, 0.10000000149011612, 0.00624999962747097, 0.0002500000118743628],
        1.138629436111989,
    ),
    # the same, ends of the ramp as they are: gpt-oss
    "yarn_4_untruncated": (
        {"head_dim": 8},
        ("YarnScaling", {"factor": 4.0, **AT_4096, "truncate": False}),
        None,
        [1.0, 0.10000000149011612, 0.006556970998644829, 0.0002500000118743628],
        1.138629436111989,
    ),
    # the same, with DeepSeek-V3's parameters
    "yarn_deepseek_v3": (
        {"head_dim": 64},
        (
            "YarnScaling",
            {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0, **AT_4096},
        ),
        None,
        [
            *(1.0, 0.7498942017555237, 0.5623413324356079, 0.4216965138912201),
            *(0.3162277638912201, 0.23713736236095428, 0.17782793939113617),
            *(0.1333521455526352, 0.10000000149011612, 0.07498941570520401),
            *(0.05623412877321243, 0.039006926119327545, 0.026879360899329185),
            *(0.01837814413011074, 0.012447956018149853, 0.0083345090970397),
            *(0.005500000435858965, 0.0035619973205029964, 0.002249365206807852),
            *(0.0013705134624615312, 0.0007905694073997438, 0.0004149904125370085),
            *(0.00017782794020604342, 3.333803397254087e-05, 2.499999936844688e-05),
            *(1.8747354260995053e-05, 1.4058532542549074e-05, 1.0542412383074407e-05),
            *(7.905694474175107e-06, 5.928434347879374e-06, 4.445698323252145e-06),
            3.3338035336782923e-06,
        ],
        1.0,
    ),
    # the same, two weights of the magnitude that differ
    "yarn_mscales": (
        {"head_dim": 8},
        (
            "YarnScaling",
            {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0, **AT_4096},
        ),
        None,
        [1.0, 0.10000000149011612, 0.005124999675899744, 2.499999936844688e-05],
        0.9210423553163399,
    ),
    # transformers==5.24.0, ROPE_INIT_FUNCTIONS["longrope"] beyond the trained length
    "longrope_4097": (
        {"head_dim": 8},
        ("LongRopeScaling", {"factor": 32.0, **DIVISORS, **AT_4096}),
        4097,
        [1.0, 0.05000000074505806, 0.0012499999720603228, 3.125000148429535e-05],
        1.1902380714238083,
    ),
    # transformers==5.24.0, ROPE_INIT_FUNCTIONS["llama3"]; Llama 3.1, a narrow head
    "llama_3_1": (
        {"head_dim": 8, "base": 500_000.0},
        ("Llama3Scaling", {"factor": 8.0, **EDGES}),
        None,
        [1.0, 0.03760603070259094, 0.0005248460220173001, 6.647869668086059e-06],
        1.0,
    ),
    # the same, Llama 3.2 1B
    "llama_3_2": (
        {"head_dim": 64, "base": 500_000.0},
        ("Llama3Scaling", {"factor": 32.0, **EDGES}),
        None,
        [
            *(1.0, 0.663601279258728, 0.44036662578582764, 0.2922278344631195),
            *(0.193922758102417, 0.12868738174438477, 0.08539710193872452),
            *(0.05666961893439293, 0.03760603070259094, 0.02495540864765644),
            *(0.016560440883040428, 0.010989529080688953, 0.00729266507551074),
            *(0.00483942124992609, 0.0032114461064338684, 0.0012905480107292533),
            *(0.000429556705057621, 9.708286233944818e-05, 1.9461638657958247e-05),
            *(1.291476746700937e-05, 8.570255886297673e-06, 5.687232260243036e-06),
            *(3.7740544485131977e-06, 2.504467147446121e-06, 1.6619674170215148e-06),
            *(1.1028836297555245e-06, 7.318749339901842e-07, 4.856731266045244e-07),
            *(3.2229328894572973e-07, 2.1387423032592778e-07, 1.4192720243499934e-07),
            9.418306490260875e-08,
        ],
        1.0,
    ),
    # transformers==5.24.0, ROPE_INIT_FUNCTIONS["proportional"]; Gemma 4, a narrow head
    "gemma_4": (
        {"head_dim": 16, "base": 1_000_000.0},
        ("ProportionalScaling", {"partial_rotary_factor": 0.25}),
        None,
        [1.0, 0.17782793939113617, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        1.0,
    ),
    # jquesnelle/yarn@995db5b, LlamaNTKScaledRotaryEmbedding(8, alpha=4)
    "ntk_alpha_4": (
        {"head_dim": 8},
        ("NtkScaling", {"alpha": 4.0}),
        None,
        [1.0, 0.06299605220556259, 0.00396850286051631, 0.0002500000118743628],
        1.0,
    ),
    # microsoft/LongRoPE@c9e56aa, LongRoPEScaledRotaryEmbedding, policy "su"
    "longrope_authors": (
        {"head_dim": 8},
        ("LongRopeScaling", {"factor": 32.0, **DIVISORS, **AT_4096}),
        131_072,
        [1.0, 0.05000000074505806, 0.0012499999720603228, 3.125000148429535e-05],
        1.1902380714238083,
    ),
    # vllm-project/vllm@03587f55, ntk_scaling_rope.py, transcribed: a base 4 times as large,
    # then every frequency by 4 ** (2 / 8)
    "ntk_fixed": (
        {"head_dim": 8, "base": 40_000.0},
        ("LinearScaling", {"factor": 4 ** (2 / 8)}),
        None,
        [
            *(0.7071067690849304, 0.05000000447034836, 0.0035355337895452976),
            0.00024999998277053237,
        ],
        1.0,
    ),
}


@BOTH
@pytest.mark.parametrize("case", SCALED)
def test_scaling_is_the_models_own(case, package):
    config, (rule, fields), seq_len, expected, factor = SCALED[case]
    scaling = getattr(package, rule)(**fields)
    config = package.RopeConfig(**config, scaling=scaling)
    assert_relatively_near(config.inv_freq(seq_len), expected, "scaled")
    found = config.attention_factor(seq_len)
    assert found == pytest.approx(factor, rel=TOLERANCE["factor"])


@BOTH
def test_scaled_frequencies_are_far_from_plain_ones(package):
    """So that a rule which is never applied shows in every row."""
    for config, _, _, expected, _ in SCALED.values():
        plain = package.RopeConfig(**config).inv_freq()
        assert np.abs(np.array(expected) / plain - 1).max() > 0.1


MAGNITUDES = {
    # microsoft/LongRoPE@c9e56aa, LongRoPEScaledRotaryEmbedding, policy "yarn", 32 times
    "longrope_authors_yarn": ((32.0,), 1.3465735902799727),
    # vllm-project/vllm@d5a17e05, telechat3_scaling_rope.py, transcribed: 0.07 ln(4) + 1
    "telechat_3": ((4.0, 0.7), 1.0970406052783923),
}


@BOTH
@pytest.mark.parametrize("case", MAGNITUDES)
def test_yarn_mscale_is_the_models_own(case, package):
    arguments, expected = MAGNITUDES[case]
    found = package.yarn_mscale(*arguments)
    assert found == pytest.approx(expected, rel=TOLERANCE["factor"])


# ------------------------------------------------------------------------------- axes

# Tables of one token or of a grid of 2 by 3, one column per pair.
PER_AXIS = {"head_dim": 8, "axes": (0, 0, 1, 1), "progression": "per_axis"}
TIMM_ROWS = {
    "cos": [(1.0, 1.0), (0.5403023362159729, 0.9999499917030334)],
    "sin": [(0.0, 0.0), (0.8414709568023682, 0.009999833069741726)],
}
TIMM_COLUMNS = {
    "cos": [*TIMM_ROWS["cos"], (-0.416146844625473, 0.9998000264167786)],
    "sin": [*TIMM_ROWS["sin"], (0.9092974066734314, 0.019998665899038315)],
}
DINO_ROWS = {
    "cos": [(-1.0, 0.9510565400123596), (-1.0, 0.9510565400123596)],
    "sin": [
        (8.742277657347586e-08, -0.30901700258255005),
        (-8.742277657347586e-08, 0.30901700258255005),
    ],
}
DINO_COLUMNS = {
    "cos": [
        (-0.5000002980232239, 0.9135454893112183),
        (1.0, 1.0),
        (-0.5000002980232239, 0.9135454893112183),
    ],
    "sin": [
        (0.8660252094268799, -0.4067366421222687),
        (0.0, 0.0),
        (-0.8660252094268799, 0.4067366421222687),
    ],
}


def over_grid(rows: dict[str, Any], columns: dict[str, Any]) -> dict[str, Any]:
    """What the rows and columns of a grid give each of its points, rows first."""
    return {
        name: [[*row, *column] for row in rows[name] for column in columns[name]]
        for name in rows
    }


TABLES = {
    # transformers==5.24.0, Qwen2VLRotaryEmbedding, time, height, width 1, 2, 3
    "qwen2_vl": (
        {"head_dim": 16, "axes": (0, 0, 1, 1, 1, 2, 2, 2)},
        [[1, 2, 3]],
        {
            "cos": [
                [
                    *(0.5403023362159729, 0.950415313243866, 0.9800665974617004),
                    *(0.9980006814002991, 0.9998000264167786, 0.9999549984931946),
                    *(0.9999955296516418, 0.9999995827674866),
                ]
            ],
            "sin": [
                [
                    *(0.8414709568023682, 0.3109835982322693, 0.19866932928562164),
                    *(0.06320340186357498, 0.019998665899038315, 0.00948669109493494),
                    *(0.0029999956022948027, 0.0009486832423135638),
                ]
            ],
        },
    ),
    # transformers==5.24.0, Qwen3VLTextRotaryEmbedding, the same. (Its sections were 2, 3
    # and 3, of which width has two, since the last of every third pair is past the end.)
    "qwen3_vl": (
        {"head_dim": 16, "axes": (0, 1, 2, 0, 1, 2, 0, 1)},
        [[1, 2, 3]],
        {
            "cos": [
                [
                    *(0.5403023362159729, 0.8065783977508545, 0.9553365111351013),
                    *(0.999500036239624, 0.9998000264167786, 0.9999549984931946),
                    *(0.9999995231628418, 0.9999998211860657),
                ]
            ],
            "sin": [
                [
                    *(0.8414709568023682, 0.5911270976066589, 0.29552021622657776),
                    *(0.031617507338523865, 0.019998665899038315, 0.00948669109493494),
                    *(0.0009999999310821295, 0.0006324555142782629),
                ]
            ],
        },
    ),
    # timm==1.0.31, build_rotary_pos_embed([2, 3], dim=8, in_pixels=False); EVA02
    "timm": (PER_AXIS, "grid", over_grid(TIMM_ROWS, TIMM_COLUMNS)),
    # diffusers==0.42.1, get_1d_rotary_pos_embed(8, [3.0], freqs_dtype=float64); FLUX
    "flux": (
        {"head_dim": 8},
        [3],
        {
            "cos": [
                [
                    *(-0.9899924993515015, 0.9553365111351013),
                    *(0.9995500445365906, 0.9999955296516418),
                ]
            ],
            "sin": [
                [
                    *(0.14112000167369843, 0.29552021622657776),
                    *(0.029995501041412354, 0.0029999956022948027),
                ]
            ],
        },
    ),
    # diffusers==0.42.1, get_1d_rotary_pos_embed(8, [3.0], ntk_factor=2,
    # linear_factor=1.5): the base itself times 2; Lumina
    "lumina": (
        {"head_dim": 8, "base": 20_000.0, "scaling": 1.5},
        [3],
        {
            "cos": [
                [
                    *(-0.416146844625473, 0.9858911633491516),
                    *(0.9998999834060669, 0.9999992847442627),
                ]
            ],
            "sin": [
                [
                    *(0.9092974066734314, 0.16738760471343994),
                    *(0.014141663908958435, 0.001189206843264401),
                ]
            ],
        },
    ),
}


def config_of(package: ModuleType, fields: dict[str, Any]) -> Any:
    """A config; its scaling is given as the factor of a linear one."""
    factor = fields.get("scaling")
    scaling = None if factor is None else package.LinearScaling(factor)
    return package.RopeConfig(**fields | {"scaling": scaling})


@BOTH
@pytest.mark.parametrize("case", TABLES)
def test_rope_cos_sin_is_the_models_own(case, package):
    fields, positions, expected = TABLES[case]
    config = config_of(package, fields)
    if positions == "grid":
        positions = package.grid_positions(2, 3)
    at = array(package, positions, "int32")
    tables = package.rope_cos_sin(at, config.inv_freq(), axes=config.axes)
    for name, found in zip(("cos", "sin"), tables, strict=True):
        assert_near(found, expected[name], "table")


@BOTH
@pytest.mark.parametrize(
    ("order", "sections", "case"),
    [("chunked", [2, 3, 3], "qwen2_vl"), ("interleaved", [3, 3, 2], "qwen3_vl")],
)
def test_mrope_axes_are_the_models_own(order, sections, case, package):
    assert package.mrope_axes(sections, order=order) == TABLES[case][0]["axes"]


@BOTH
def test_mrope_axes_are_ernies(package):
    """transformers==5.24.0, Ernie4_5_VLMoeTextRotaryEmbedding, sections 2, 2 and 4.

    Its frequencies are listed by axis, height and width before time.
    """
    axes = package.mrope_axes([2, 2, 4], order="ernie")
    inv_freq = package.RopeConfig(16, axes=axes).inv_freq()
    by_axis = [inv_freq[np.array(axes) == axis] for axis in (1, 2, 0)]
    expected = [
        *(1.0, 0.10000000149011612, 0.3162277638912201, 0.03162277862429619),
        *(0.009999999776482582, 0.003162277862429619),
        *(0.0010000000474974513, 0.0003162277862429619),
    ]
    assert_relatively_near(np.concatenate(by_axis), expected, "inv_freq")


@BOTH
def test_dealt_frequencies_are_pixtrals(package):
    """transformers==5.24.0, PixtralVisionRotaryEmbedding, rows before columns."""
    config = package.RopeConfig(8, axes=(0, 0, 1, 1), progression="alternating")
    expected = [
        *(1.0, 0.009999999776482582),
        *(0.10000000149011612, 0.0010000000474974513),
    ]
    assert_relatively_near(config.inv_freq(), expected, "inv_freq")


@BOTH
def test_rope_cos_sin_of_patch_centres_is_dinos(package):
    """transformers==5.24.0, DINOv3ViTRopePositionEmbedding, base 100, 2 by 3 patches."""
    config = package.RopeConfig(**PER_AXIS, base=100.0)
    assert_relatively_near(
        config.inv_freq(), [1.0, 0.10000000149011612] * 2, "inv_freq"
    )
    centres = array(package, package.patch_centres(2, 3), "float32")
    inv_freq = 2 * np.pi * config.inv_freq(dtype="float64")
    tables = package.rope_cos_sin(centres, inv_freq, axes=config.axes)
    expected = over_grid(DINO_ROWS, DINO_COLUMNS)
    for name, found in zip(("cos", "sin"), tables, strict=True):
        assert_near(found, expected[name], "centres")


@BOTH
def test_rope_cos_sin_takes_the_frequencies_and_coordinates_of_timm(package):
    """timm==1.0.31, build_rotary_pos_embed([2, 3], dim=8, in_pixels=True, max_res=224).

    Its frequencies are pi and 112 pi, and its coordinates -1 to 1.
    """
    bands = np.float32(np.pi) * np.array([1.0, 112.0], np.float32)
    rows, columns = np.linspace(-1, 1, 2), np.linspace(-1, 1, 3)
    points = np.stack(np.meshgrid(rows, columns, indexing="ij"), -1).reshape(6, 2)
    axes = PER_AXIS["axes"]
    at = array(package, points, "float32")
    cos, sin = package.rope_cos_sin(at, np.tile(bands, 2), axes=axes)
    turn = (8.742277657347586e-08, -2.123544254573062e-05)
    back = (-8.742277657347586e-08, 2.123544254573062e-05)
    rows_of = {"cos": [(-1.0, 1.0)] * 2, "sin": [turn, back]}
    columns_of = {
        "cos": [(-1.0, 1.0), (1.0, 1.0), (-1.0, 1.0)],
        "sin": [turn, (0.0, 0.0), back],
    }
    expected = over_grid(rows_of, columns_of)
    assert_near(cos, expected["cos"], "same_angle")
    assert_near(sin, expected["sin"], "same_angle")


# ------------------------------------------------------------------------------- xPos

# rotary-embedding-torch==0.9.1, RotaryEmbedding(8, use_xpos=True), of ones, 4 tokens
XPOS_SCALE = [
    [1.0049055814743042, 1.0030015707015991, 1.0017273426055908, 1.0007686614990234],
    [1.0024497509002686, 1.0014996528625488, 1.0008633136749268, 1.0003843307495117],
    [1.0, 1.0, 1.0, 1.0],
    [0.997556209564209, 0.9985025525093079, 0.9991374015808105, 0.9996158480644226],
]
XPOS_QUERY = [
    [
        *(1.0049055814743042, 1.0049055814743042, 1.0030015707015991),
        *(1.0030015707015991, 1.0017273426055908, 1.0017273426055908),
        *(1.0007686614990234, 1.0007686614990234),
    ],
    [
        *(-0.30190640687942505, 1.3851583003997803, 0.8965131640434265),
        *(1.0964794158935547, 0.9908047914505005, 1.0108217000961304),
        *(0.9993834495544434, 1.0013842582702637),
    ],
    [
        *(-1.325444221496582, 0.4931505620479584, 0.78139728307724),
        *(1.1787359714508057, 0.97980135679245, 1.0197986364364624),
        *(0.997998058795929, 1.0019980669021606),
    ],
    [
        *(-1.1283482313156128, -0.8467980027198792, 0.6588282585144043),
        *(1.24898362159729, 0.9687182307243347, 1.0286574363708496),
        *(0.996612548828125, 1.002610206604004),
    ],
]
XPOS_KEY = [
    [
        *(0.9951183795928955, 0.9951183795928955, 0.997007429599762),
        *(0.997007429599762, 0.998275637626648, 0.998275637626648),
        *(0.9992319345474243, 0.9992319345474243),
    ],
    [
        *(-0.30043262243270874, 1.3783965110778809, 0.8938303589820862),
        *(1.0931981801986694, 0.9890962243080139, 1.0090786218643188),
        *(0.9986156821250916, 1.000614881515503),
    ],
    [
        *(-1.325444221496582, 0.4931505620479584, 0.78139728307724),
        *(1.1787359714508057, 0.97980135679245, 1.0197986364364624),
        *(0.997998058795929, 1.0019980669021606),
    ],
    [
        *(-1.1338834762573242, -0.8509520292282104, 0.6608057618141174),
        *(1.252732515335083, 0.970391571521759, 1.0304343700408936),
        *(0.9973786473274231, 1.0033808946609497),
    ],
]


@BOTH
def test_xpos_scale_is_lucidrains(package):
    scale = package.xpos_scale(4, 8, center=2)
    assert_near(scale, XPOS_SCALE, "xpos")
    cos, sin = package.rope_cos_sin(4, package.RopeConfig(8).inv_freq())
    tables = {
        "query": ((cos * scale, sin * scale), XPOS_QUERY),
        "key": ((cos / scale, sin / scale), XPOS_KEY),
    }
    ones = one_head(package, np.ones((4, 8)))
    for scaled, expected in tables.values():
        found = package.apply_rope(ones, *scaled, layout="interleaved")
        found = np.squeeze(np.asarray(found), 0 if package is posenc_torch else 1)
        assert_near(found, expected, "xpos")


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
def test_alibi_slopes_are_mpts(package):
    for num_heads in range(1, 129):
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
