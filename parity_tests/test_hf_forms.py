"""`RopeConfig.from_hf` on config.json as models were published, in the older forms, against what they mean, by hand.

Of every file the keys are given that concern positions. The rest of the forms is in test_from_hf.py, model by model,
as the installed transformers has them.
"""

from __future__ import annotations

import copy
import linecache
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import posenc_jax
import posenc_torch

PACKAGES = {"torch": posenc_torch, "jax": posenc_jax}
both = pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)

# Phi-3-vision-128k-instruct's divisors.
SHORT = """
1.05 1.05 1.05 1.1 1.1 1.1 1.2500000000000002 1.2500000000000002 1.4000000000000004 1.4500000000000004
1.5500000000000005 1.8500000000000008 1.9000000000000008 2.000000000000001 2.000000000000001 2.000000000000001
2.000000000000001 2.000000000000001 2.000000000000001 2.000000000000001 2.000000000000001 2.000000000000001
2.000000000000001 2.000000000000001 2.000000000000001 2.000000000000001 2.000000000000001 2.000000000000001
2.000000000000001 2.000000000000001 2.000000000000001 2.000000000000001 2.1000000000000005 2.1000000000000005 2.2
2.3499999999999996 2.3499999999999996 2.3499999999999996 2.3499999999999996 2.3999999999999995 2.3999999999999995
2.6499999999999986 2.6999999999999984 2.8999999999999977 2.9499999999999975 3.049999999999997 3.049999999999997
3.049999999999997
"""
LONG = """
1.0299999713897705 1.0499999523162842 1.0499999523162842 1.0799999237060547 1.2299998998641968 1.2299998998641968
1.2999999523162842 1.4499999284744263 1.5999999046325684 1.6499998569488525 1.8999998569488525 2.859999895095825
3.68999981880188 5.419999599456787 5.489999771118164 5.489999771118164 9.09000015258789 11.579999923706055
15.65999984741211 15.769999504089355 15.789999961853027 18.360000610351562 21.989999771118164 23.079999923706055
30.009998321533203 32.35000228881836 32.590003967285156 35.56000518798828 39.95000457763672 53.840003967285156
56.20000457763672 57.95000457763672 59.29000473022461 59.77000427246094 59.920005798339844 61.190006256103516
61.96000671386719 62.50000762939453 63.3700065612793 63.48000717163086 63.48000717163086 63.66000747680664
63.850006103515625 64.08000946044922 64.760009765625 64.80001068115234 64.81001281738281 64.81001281738281
"""
SHORT, LONG = ([float(number) for number in text.split()] for text in (SHORT, LONG))


@dataclass(frozen=True)
class Form:
    """What a model's config.json says, and what that means in a package."""

    model: str
    contents: dict[str, Any] = field(hash=False)
    means: Callable[[ModuleType], Any]
    layer_type: str | None = None
    unused: str | None = None  # keys that are warned of

    def __str__(self) -> str:
        name = self.model.split("/")[1]
        return name if self.layer_type is None else f"{name}-{self.layer_type}"

    def read(self, package: ModuleType, config: Any) -> Any:
        if self.unused is None:
            return package.RopeConfig.from_hf(config, layer_type=self.layer_type)
        with pytest.warns(UserWarning, match=f"do not use {self.unused}\\.$"):
            return package.RopeConfig.from_hf(config, layer_type=self.layer_type)


GEMMA_3 = {
    "model_type": "gemma3_text",
    "head_dim": 256,
    "hidden_size": 3840,
    "max_position_embeddings": 131072,
    "num_attention_heads": 16,
    "rope_local_base_freq": 10000,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "rope_theta": 1000000,
    "sliding_window_pattern": 6,
}
MODERNBERT = {
    "model_type": "modernbert",
    "global_rope_theta": 160000.0,
    "hidden_size": 768,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "num_attention_heads": 12,
    "position_embedding_type": "absolute",
}
FORMS = [
    Form(
        "mistralai/Mistral-7B-v0.1",
        {
            "model_type": "mistral",
            "hidden_size": 4096,
            "max_position_embeddings": 32768,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "rope_theta": 10000.0,
        },
        lambda p: p.RopeConfig(128),
    ),
    Form(
        "meta-llama/Llama-3.1-8B",
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "max_position_embeddings": 131072,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "rope_theta": 500000.0,
        },
        lambda p: p.RopeConfig(
            128, base=500_000.0, scaling=p.Llama3Scaling(8.0, 1.0, 4.0, 8192)
        ),
    ),
    Form(
        "meta-llama/Llama-3.2-1B",
        {
            "model_type": "llama",
            "head_dim": 64,
            "hidden_size": 2048,
            "max_position_embeddings": 131072,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "rope_scaling": {
                "factor": 32.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "rope_theta": 500000.0,
        },
        lambda p: p.RopeConfig(
            64, base=500_000.0, scaling=p.Llama3Scaling(32.0, 1.0, 4.0, 8192)
        ),
    ),
    Form(
        "deepseek-ai/deepseek-coder-6.7b-base",
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "max_position_embeddings": 16384,
            "num_attention_heads": 32,
            "rope_scaling": {"factor": 4.0, "type": "linear"},
            "rope_theta": 100000,
        },
        lambda p: p.RopeConfig(128, base=100_000.0, scaling=p.LinearScaling(4.0)),
    ),
    Form(
        "internlm/internlm2_5-7b-chat",
        {
            "model_type": "internlm2",
            "hidden_size": 4096,
            "max_position_embeddings": 32768,
            "num_attention_heads": 32,
            "rope_scaling": {"type": "dynamic", "factor": 2.0},
            "rope_theta": 1000000,
        },
        lambda p: p.RopeConfig(128, base=1e6, scaling=p.DynamicNtkScaling(2.0, 32768)),
    ),
    Form(  # with the lines that the model's card adds for long texts
        "Qwen/Qwen2.5-7B-Instruct",
        {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "max_position_embeddings": 32768,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "rope_scaling": {
                "factor": 4.0,
                "original_max_position_embeddings": 32768,
                "type": "yarn",
            },
            "rope_theta": 1000000.0,
        },
        lambda p: p.RopeConfig(128, base=1e6, scaling=p.YarnScaling(4.0, 32768)),
    ),
    Form(
        "openai/gpt-oss-20b",
        {
            "model_type": "gpt_oss",
            "head_dim": 64,
            "hidden_size": 2880,
            "initial_context_length": 4096,
            "max_position_embeddings": 131072,
            "num_attention_heads": 64,
            "rope_scaling": {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "rope_type": "yarn",
                "truncate": False,
            },
            "rope_theta": 150000,
        },
        lambda p: p.RopeConfig(
            64, base=150_000.0, scaling=p.YarnScaling(32.0, 4096, truncate=False)
        ),
    ),
    Form(
        "microsoft/Phi-3-vision-128k-instruct",
        {
            "model_type": "phi3_v",
            "hidden_size": 3072,
            "max_position_embeddings": 131072,
            "num_attention_heads": 32,
            "original_max_position_embeddings": 4096,
            "rope_scaling": {"long_factor": LONG, "short_factor": SHORT, "type": "su"},
            "rope_theta": 10000.0,
        },
        lambda p: p.RopeConfig(
            96, scaling=p.LongRopeScaling(tuple(SHORT), tuple(LONG), 4096, 32.0)
        ),
    ),
    Form(  # as its own config.json, with the divisors of one pair of a head of 2
        "microsoft/Phi-3.5-MoE-instruct",
        {
            "model_type": "phimoe",
            "hidden_size": 64,
            "max_position_embeddings": 131072,
            "num_attention_heads": 32,
            "original_max_position_embeddings": 4096,
            "rope_scaling": {
                "long_factor": [1.0199999809265137],
                "long_mscale": 1.243163121016122,
                "original_max_position_embeddings": 4096,
                "short_factor": [1.0],
                "short_mscale": 1.243163121016122,
                "type": "longrope",
            },
            "rope_theta": 10000.0,
        },
        lambda p: p.RopeConfig(
            2,
            scaling=p.LongRopeScaling(
                (1.0,),
                (1.0199999809265137,),
                4096,
                32.0,
                short_mscale=1.243163121016122,
                long_mscale=1.243163121016122,
            ),
        ),
    ),
    Form(
        "deepseek-ai/DeepSeek-V3",
        {
            "model_type": "deepseek_v3",
            "hidden_size": 7168,
            "max_position_embeddings": 163840,
            "num_attention_heads": 128,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "rope_scaling": {
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 40,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096,
                "type": "yarn",
            },
            "rope_theta": 10000,
        },
        lambda p: p.RopeConfig(
            64,
            layout="interleaved_to_half",
            scaling=p.YarnScaling(40.0, 4096, mscale=1.0, mscale_all_dim=1.0),
        ),
    ),
    Form(
        "deepseek-ai/DeepSeek-V2-Lite",
        {
            "model_type": "deepseek_v2",
            "hidden_size": 2048,
            "max_position_embeddings": 163840,
            "num_attention_heads": 16,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "rope_scaling": {
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 40,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
                "original_max_position_embeddings": 4096,
                "type": "yarn",
            },
            "rope_theta": 10000,
        },
        lambda p: p.RopeConfig(
            64,
            layout="interleaved",
            scaling=p.YarnScaling(40.0, 4096, mscale=0.707, mscale_all_dim=0.707),
        ),
    ),
    Form(
        "google/gemma-3-12b-it",
        GEMMA_3,
        lambda p: p.RopeConfig(256, base=1e6, scaling=p.LinearScaling(8.0)),
        "full_attention",
    ),
    Form(
        "google/gemma-3-12b-it",
        GEMMA_3,
        lambda p: p.RopeConfig(256, base=1e4),
        "sliding_attention",
    ),
    Form(
        "answerdotai/ModernBERT-base",
        MODERNBERT,
        lambda p: p.RopeConfig(64, base=160_000.0),
        "full_attention",
    ),
    Form(
        "answerdotai/ModernBERT-base",
        MODERNBERT,
        lambda p: p.RopeConfig(64),
        "sliding_attention",
    ),
    Form(
        "EleutherAI/gpt-neox-20b",
        {
            "model_type": "gpt_neox",
            "hidden_size": 6144,
            "max_position_embeddings": 2048,
            "num_attention_heads": 64,
            "rotary_emb_base": 10000,
            "rotary_pct": 0.25,
        },
        lambda p: p.RopeConfig(96, rotary_dim=24),
    ),
    Form(
        "EleutherAI/gpt-j-6b",
        {
            "model_type": "gptj",
            "n_embd": 4096,
            "n_head": 16,
            "n_positions": 2048,
            "rotary": True,
            "rotary_dim": 64,
        },
        lambda p: p.RopeConfig(256, rotary_dim=64, layout="interleaved"),
    ),
    Form(
        "Salesforce/codegen-350M-mono",
        {
            "model_type": "codegen",
            "n_embd": 1024,
            "n_head": 16,
            "n_positions": 2048,
            "rotary_dim": 32,
        },
        lambda p: p.RopeConfig(64, rotary_dim=32, layout="interleaved"),
    ),
    Form(
        "microsoft/phi-2",
        {
            "model_type": "phi",
            "hidden_size": 2560,
            "max_position_embeddings": 2048,
            "num_attention_heads": 32,
            "partial_rotary_factor": 0.4,
            "rope_scaling": None,
            "rope_theta": 10000.0,
        },
        lambda p: p.RopeConfig(80, rotary_dim=32),
    ),
    Form(
        "zai-org/glm-4-9b-chat-hf",
        {
            "model_type": "glm",
            "head_dim": 128,
            "hidden_size": 4096,
            "max_position_embeddings": 131072,
            "num_attention_heads": 32,
            "partial_rotary_factor": 0.5,
            "rope_theta": 10000.0,
        },
        lambda p: p.RopeConfig(128, rotary_dim=64, layout="interleaved"),
    ),
    Form(
        "CohereLabs/c4ai-command-r-v01",
        {
            "model_type": "cohere",
            "hidden_size": 8192,
            "max_position_embeddings": 8192,
            "num_attention_heads": 64,
            "rope_scaling": None,
            "rope_theta": 8000000.0,
        },
        lambda p: p.RopeConfig(128, base=8e6, layout="interleaved"),
    ),
    Form(
        "Qwen/Qwen2-VL-7B-Instruct",
        {
            "model_type": "qwen2_vl",
            "hidden_size": 3584,
            "max_position_embeddings": 32768,
            "num_attention_heads": 28,
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
            "rope_theta": 1000000.0,
        },
        lambda p: p.RopeConfig(128, base=1e6, axes=(0,) * 16 + (1,) * 24 + (2,) * 24),
    ),
    Form(
        "tencent/Hunyuan-7B-Instruct",
        {
            "model_type": "hunyuan_v1_dense",
            "attention_head_dim": 128,
            "head_dim": 128,
            "hidden_size": 4096,
            "max_position_embeddings": 32768,
            "num_attention_heads": 32,
            "rope_scaling": {
                "alpha": 1000.0,
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "type": "dynamic",
            },
            "rope_theta": 10000.0,
        },
        lambda p: p.RopeConfig(128, scaling=p.NtkScaling(1000.0)),
        unused="beta_fast, beta_slow, mscale, mscale_all_dim",
    ),
    Form(
        "meta-llama/Llama-4-Scout-17B-16E",
        {
            "model_type": "llama4_text",
            "head_dim": 128,
            "hidden_size": 5120,
            "max_position_embeddings": 10485760,
            "num_attention_heads": 40,
            "rope_scaling": {
                "factor": 16.0,
                "high_freq_factor": 1.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "rope_theta": 500000.0,
        },
        lambda p: p.RopeConfig(
            128,
            base=500_000.0,
            layout="interleaved",
            scaling=p.Llama3Scaling(16.0, 1.0, 1.0, 8192),
        ),
    ),
    Form(
        "Qwen/Qwen2.5-VL-7B-Instruct",
        {
            "model_type": "qwen2_5_vl_vision",
            "hidden_size": 1280,
            "num_heads": 16,
        },
        lambda p: p.RopeConfig(80, axes=(0,) * 20 + (1,) * 20, progression="per_axis"),
    ),
    Form(
        "moonshotai/Kimi-K2-Instruct",
        {
            "model_type": "kimi_k2",
            "hidden_size": 7168,
            "max_position_embeddings": 131072,
            "num_attention_heads": 64,
            "qk_rope_head_dim": 64,
            "rope_scaling": {
                "beta_fast": 1.0,
                "beta_slow": 1.0,
                "factor": 32.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096,
                "type": "yarn",
            },
            "rope_theta": 50000.0,
        },
        lambda p: p.RopeConfig(
            64,
            base=50_000.0,
            layout="interleaved_to_half",
            scaling=p.YarnScaling(
                32.0, 4096, None, 1.0, 1.0, mscale=1.0, mscale_all_dim=1.0
            ),
        ),
    ),
    Form(
        "MiniMaxAI/MiniMax-M2",
        {
            "model_type": "minimax_m2",
            "head_dim": 128,
            "hidden_size": 3072,
            "max_position_embeddings": 196608,
            "num_attention_heads": 48,
            "rope_theta": 5000000,
            "rotary_dim": 64,
        },
        lambda p: p.RopeConfig(128, base=5e6, rotary_dim=64),
    ),
    *(
        Form(
            "allenai/Olmo-3-7B-Instruct",
            {
                "model_type": "olmo3",
                "hidden_size": 4096,
                "max_position_embeddings": 65536,
                "num_attention_heads": 32,
                "rope_scaling": {
                    "attention_factor": 1.2079441541679836,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "factor": 8.0,
                    "original_max_position_embeddings": 8192,
                    "rope_type": "yarn",
                },
                "rope_theta": 500000,
            },
            lambda p, long=layer == "full_attention": p.RopeConfig(
                128,
                base=500_000.0,
                scaling=p.YarnScaling(8.0, 8192, 1.2079441541679836) if long else None,
            ),
            layer,
        )
        for layer in ("full_attention", "sliding_attention")
    ),
    *(
        Form(
            "example/scaled-ModernBERT",
            MODERNBERT | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            lambda p, base=base: p.RopeConfig(
                64, base=base, scaling=p.LinearScaling(2.0)
            ),
            layer,
        )
        for layer, base in (("full_attention", 160_000.0), ("sliding_attention", 1e4))
    ),
]
each = pytest.mark.parametrize("form", FORMS, ids=str)

# Run by code of their own, outside transformers.
REMOTE = {"internlm2", "kimi_k2", "phi3_v"}


@both
@each
def test_published_form_is_read(form, package):
    assert form.read(package, form.contents) == form.means(package)


@both
@each
def test_reading_changes_nothing(form, package):
    """A caller's dict, which several models may share, and what is nested in it."""
    before = copy.deepcopy(form.contents)
    first = form.read(package, form.contents)
    assert form.contents == before
    assert form.read(package, form.contents) == first


@each
def test_object_made_of_it_says_the_same(form):
    """The configuration that transformers makes of the file: its class brings the form up to date."""
    kind = form.contents["model_type"]
    assert (kind in CONFIG_MAPPING) != (kind in REMOTE)
    if kind in REMOTE:
        return
    contents = {k: v for k, v in form.contents.items() if k != "model_type"}
    config = AutoConfig.for_model(kind, **copy.deepcopy(contents))
    config = getattr(config, "text_config", config)
    before = copy.deepcopy(config.to_dict())
    assert form.read(posenc_torch, config) == form.means(posenc_torch)
    assert config.to_dict() == before


@both
@each
def test_current_form_says_the_same(form, package):
    meant = form.means(package)
    kind = form.contents["model_type"]
    layer = form.layer_type
    written = meant.to_hf(kind, layer_type=layer)
    assert package.RopeConfig.from_hf(written, layer_type=layer) == meant


# Files that leave a key to the default of the model's class, which a dict does not know.
SPARSE = {
    "meta-llama/Llama-2-7b-hf": (
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "max_position_embeddings": 4096,
            "num_attention_heads": 32,
            "rope_scaling": None,
        },
        None,
        "`rope_theta` must be given for the rope type 'default', got only rope_type.",
        lambda p: p.RopeConfig(128),
    ),
    "google/gemma-3-27b-it": (
        {
            "model_type": "gemma3_text",
            "head_dim": 128,
            "hidden_size": 5376,
            "num_attention_heads": 32,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
        "full_attention",
        "`rope_theta` must be given beside rope parameters that do not state the base of "
        "each layer type, got None.",
        lambda p: p.RopeConfig(128, base=1e6, scaling=p.LinearScaling(8.0)),
    ),
}


@pytest.mark.parametrize("model", SPARSE)
def test_default_of_the_class_is_not_guessed(model):
    contents, layer_type, sentence, means = SPARSE[model]
    for package in PACKAGES.values():
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
            package.RopeConfig.from_hf(contents, layer_type=layer_type)
        rest = {k: v for k, v in contents.items() if k != "model_type"}
        config = AutoConfig.for_model(contents["model_type"], **copy.deepcopy(rest))
        found = package.RopeConfig.from_hf(config, layer_type=layer_type)
        assert found == means(package)


def test_alibi_of_falcon_is_not_taken_for_a_rotation():
    """tiiuae/falcon-rw-1b; its configuration has a base all the same."""
    contents = {
        "alibi": True,
        "hidden_size": 2048,
        "max_position_embeddings": 2048,
        "num_attention_heads": 32,
    }
    config = AutoConfig.for_model("falcon", **contents)
    for package in PACKAGES.values():
        for given in (config, contents | {"model_type": "falcon", "rope_theta": 1e4}):
            with pytest.raises(ValueError, match="it has linear biases"):
                package.RopeConfig.from_hf(given)


@both
def test_warning_names_the_keys_and_points_at_the_caller(package):
    contents = copy.deepcopy(FORMS[1].contents)
    contents["rope_scaling"] |= {"mscale": 1.0, "finetuned": True, "truncate": None}
    sentence = "^`rope_parameters` of type 'llama3' do not use finetuned, mscale.$"
    with pytest.warns(UserWarning, match=sentence) as caught:
        package.RopeConfig.from_hf(contents)
    (warning,) = caught
    assert warning.filename == __file__
    assert "RopeConfig.from_hf(contents)" in linecache.getline(__file__, warning.lineno)


@both
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
        {"type": "linear", "rope_type": "linear", "factor": 2.0},
        {"rope_type": "default", "mrope_section": [32, 16, 16]},
        {"mrope_section": [24, 20, 20], "mrope_interleaved": True},
        {"rope_type": "linear", "factor": 2.0, "low_freq_factor": None},
    ],
    ids=["part", "both_names", "sections", "interleaved", "none"],
)
def test_keys_that_are_used_are_not_warned_of(package, rope):
    config = {"head_dim": 128, "rope_theta": 1e4, "rope_parameters": rope}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        package.RopeConfig.from_hf(config)


LENGTH = "original_max_position_embeddings"


@both
@pytest.mark.parametrize(
    ("beside", "within", "layer_type", "trained"),
    [
        (4096, None, None, 4096),
        (4096, 2048, None, 4096),
        (None, 2048, None, 2048),
        (4096, 2048, "full_attention", 2048),
        (4096, None, "full_attention", 4096),
    ],
)
def test_trained_length_beside_the_parameters(
    package, beside, within, layer_type, trained
):
    """It has priority over theirs, where there is one set of them for all layers (Phi-3)."""
    rope = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
    rope |= {} if within is None else {LENGTH: within}
    parameters = rope if layer_type is None else {layer_type: rope}
    config = {"head_dim": 64, LENGTH: beside, "rope_parameters": parameters}
    found = package.RopeConfig.from_hf(config, layer_type=layer_type)
    assert found.scaling == package.YarnScaling(4.0, trained)


@both
def test_a_factor_of_none_is_the_ratio_of_the_lengths(package):
    rope = {"rope_type": "yarn", "factor": None, "rope_theta": 1e4, LENGTH: 4096}
    config = {
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "rope_parameters": rope,
    }
    assert package.RopeConfig.from_hf(config).scaling == package.YarnScaling(32.0, 4096)


@both
def test_both_names_may_hold_the_same(package):
    """A configuration object of transformers 5 answers to either."""
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    config = {"head_dim": 64, "rope_parameters": rope, "rope_scaling": dict(rope)}
    found = package.RopeConfig.from_hf(config)
    assert found == package.RopeConfig(64, scaling=package.LinearScaling(2.0))


@both
def test_sections_bound_height_and_width_as_the_models_do(package):
    """Qwen3-VL's code takes a slice, which ends where the pairs do."""
    rope = {
        "rope_theta": 1e4,
        "mrope_section": [24, 20, 20],
        "mrope_interleaved": True,
    }
    found = package.RopeConfig.from_hf({"head_dim": 16, "rope_parameters": rope})
    assert found.axes == (0, 1, 2, 0, 1, 2, 0, 1)


@both
def test_unknown_model_is_warned_of(package):
    """Its code may pair channels in another way, and no configuration says so (ChatGLM: neighbours)."""
    config = {"model_type": "chatglm", "head_dim": 64, "rope_theta": 1e4}
    sentence = (
        "^`model_type` 'chatglm' is not known: its pairs are taken to be halves.$"
    )
    with pytest.warns(UserWarning, match=sentence) as caught:
        assert package.RopeConfig.from_hf(config) == package.RopeConfig(64)
    assert caught[0].filename == __file__


@both
@pytest.mark.parametrize("given", [None, "nope"])
def test_model_that_does_not_rotate_is_refused(package, given):
    config = AutoConfig.for_model("granitemoehybrid", position_embedding_type=given)
    with pytest.raises(ValueError, match="it rotates where `position_embedding_type`"):
        package.RopeConfig.from_hf(config)
