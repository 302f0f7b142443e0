"""Bad input gets one sentence, the same in both packages, before any arithmetic.

A row changes arguments of a valid call and states the error. Each row is called in both
packages, under jit, and under a watch for arithmetic; the rows together must reach every
`raise` of the packages and every argument of every public function. The last part is
input that looks bad and is not.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import re
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import posenc_jax
import posenc_torch
from posenc_jax._presets import LINE_NAMES, NAMES

pytestmark = pytest.mark.usefixtures("compiled_quickly")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

U = 2.0**-24  # unit roundoff of float32
# Both packages run the same float32 formula on the same bits, so they part by the last
# bit of cos, sin, exp and tanh (1 u each) and by the order of a sum. Per unit of scale:
TOLERANCE = {
    "table": 2 * U,  # one cos or sin, and one product
    "rotation": 4 * U,  # two products and a sum; XLA may fuse one of them
    "attention": 32 * U,  # sums over 8 channels and 7 keys, exp, a division
    "resize": 16 * U,  # on each of two axes, sums of up to 6 products
    "exact": 0.0,  # integers, lookups, permutations, powers of two
}

# ---------------------------------------------------------------- the two frameworks


@dataclass(frozen=True)
class Framework:
    """What a row needs to know about a framework."""

    name: str
    package: ModuleType

    @property
    def is_torch(self) -> bool:
        return self.name == "torch"

    def dtype(self, name: str) -> Any:
        return getattr(torch if self.is_torch else jnp, name)

    def array(self, values: Any, dtype: str) -> Any:
        if self.is_torch:
            return torch.tensor(values).to(self.dtype(dtype))
        return jnp.asarray(values, dtype)

    def function(self, dotted: str) -> Callable:
        found: Any = self.package
        for name in dotted.split("."):
            found = getattr(found, name)
        return found

    def seeded(self, function: str) -> dict[str, Any]:
        if function != "init_position_table":
            return {}
        generator = {"generator": torch.Generator().manual_seed(0)}
        return generator if self.is_torch else {"key": jax.random.key(0)}


TORCH = Framework("torch", posenc_torch)
JAX = Framework("jax", posenc_jax)
FRAMEWORKS = (TORCH, JAX)


@dataclass(frozen=True)
class Make:
    """A value that each framework makes for itself."""

    make: Callable[[Framework], Any]
    label: str

    def __repr__(self) -> str:
        return self.label


def drawn(shape: Sequence[int]) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape)


def floats(*shape: int, dtype: str = "float32") -> Make:
    return Make(lambda fw: fw.array(drawn(shape), dtype), f"{dtype}{list(shape)}")


def heads(*shape: int, dtype: str = "float32") -> Make:
    """[..., seq, heads, head_dim] in JAX, [..., heads, seq, head_dim] in torch."""

    def make(fw: Framework) -> Any:
        values = drawn(shape)
        return fw.array(values.swapaxes(-2, -3) if fw.is_torch else values, dtype)

    return Make(make, f"{dtype}{list(shape)}")


def weight(*shape: int, dtype: str = "float32") -> Make:
    """[..., rows] in JAX, [rows, ...] in torch."""

    def make(fw: Framework) -> Any:
        values = drawn(shape)
        return fw.array(np.moveaxis(values, -1, 0) if fw.is_torch else values, dtype)

    return Make(make, f"{dtype}{list(shape)}")


def ints(values: Any, dtype: str = "int32") -> Make:
    return Make(lambda fw: fw.array(np.asarray(values), dtype), f"{dtype}({values})")


def scalar(value: float, dtype: str = "float32") -> Make:
    return Make(lambda fw: fw.array(value, dtype), f"{dtype}({value})")


def bools(*shape: int) -> Make:
    values = np.random.default_rng(0).random(shape) < 0.7
    return Make(lambda fw: fw.array(values, "bool"), f"bool{list(shape)}")


def tables(*shapes: tuple[int, ...], dtype: str = "float32") -> Make:
    """A list of arrays, one for each axis."""
    made = [floats(*shape, dtype=dtype) for shape in shapes]
    return Make(lambda fw: [each.make(fw) for each in made], f"{dtype}{list(shapes)}")


def points(*coordinates: Any, dtype: str = "int32") -> Make:
    """Coordinates, [points, axes]."""
    return ints(np.array(coordinates), dtype)


def false(*shape: int) -> Make:
    return Make(lambda fw: fw.array(np.zeros(shape), "bool"), f"False{list(shape)}")


def dtype(name: str) -> Make:
    return Make(lambda fw: fw.dtype(name), name)


def made(function: str, *args: Any, **options: Any) -> Make:
    """What a call of the package returns, such as a configuration."""

    def make(fw: Framework) -> Any:
        given = {
            k: v.make(fw) if isinstance(v, Make) else v for k, v in options.items()
        }
        return fw.function(function)(*args, **given)

    return Make(make, f"{function}{args}{options}")


def config(head_dim: int = 8, **options: Any) -> Make:
    return made("RopeConfig", head_dim, **options)


def module(slopes: Make, kind: str = "symmetric") -> Make:
    """What `scaled_dot_product_attention_with_alibi` takes from a module."""
    return Make(lambda fw: SimpleNamespace(slopes=slopes.make(fw), kind=kind), "alibi")


ATTENTION = {
    "query": heads(2, 5, 6, 8),
    "key": heads(2, 7, 3, 8),
    "value": heads(2, 7, 3, 4),
    "mask": bools(2, 1, 5, 7),
    "is_causal": True,
    "scale": 0.5,
    "query_positions": ints(range(2, 7)),
    "key_positions": 7,
}
# A configuration of 4 pairs, in the current form.
HF = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 8,
    "max_position_embeddings": 40,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
DYNAMIC = made("DynamicNtkScaling", 2.0, 10)
# Valid calls, with every argument whose check could come too late.
CALLS: dict[str, dict[str, Any]] = {
    "DynamicNtkScaling": {"factor": 2.0, "max_position_embeddings": 10},
    "LinearScaling": {"factor": 2.0},
    "Llama3Scaling": {
        "factor": 2.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 10,
    },
    "LongRopeScaling": {
        "short_factor": (1.0, 1.5, 2.0, 2.5),
        "long_factor": (1.0, 2.0, 4.0, 8.0),
        "original_max_position_embeddings": 10,
        "factor": 4.0,
    },
    "NtkScaling": {"alpha": 2.0},
    "ProportionalScaling": {"partial_rotary_factor": 0.5},
    "RopeConfig": {"head_dim": 8},
    "RopeConfig.attention_factor": {"self": config()},
    "RopeConfig.apply": {
        "self": config(),
        "x": heads(2, 5, 3, 8),
        "cos": floats(5, 4),
        "sin": floats(5, 4),
    },
    "RopeConfig.cos_sin": {"self": config(), "positions": 5},
    "RopeConfig.from_hf": {"config": HF},
    "RopeConfig.inv_freq": {"self": config()},
    "RopeConfig.to_hf": {"self": config()},
    "Scaling": {},
    "YarnScaling": {"factor": 4.0, "original_max_position_embeddings": 10},
    "axial_position_encoding": {
        "tables": tables((3, 8), (4, 8)),
        "positions": points([0, 1], [2, 3]),
    },
    "add_position_encoding": {"x": floats(2, 5, 8), "encoding": floats(5, 8)},
    "alibi_bias": {"query_positions": 5, "key_positions": 7, "slopes": floats(3)},
    "alibi_slopes": {"num_heads": 6},
    "apply_rope": {"x": heads(2, 5, 3, 8), "cos": floats(5, 4), "sin": floats(5, 4)},
    "apply_rotary_pos_emb": {
        "q": heads(2, 5, 6, 8),
        "k": heads(2, 5, 3, 8),
        "cos": floats(5, 4),
        "sin": floats(5, 4),
    },
    "dot_product_attention": ATTENTION
    | {
        "bias": floats(6, 5, 7),
        "alibi_slopes": floats(6),
        "query_segment_ids": ints([0, 0, 0, 1, 1]),
        "key_segment_ids": ints([0, 0, 0, 0, 0, 1, 1]),
        "sliding_window": 4,
        "logit_softcap": 30.0,
    },
    "fourier_position_encoding": {
        "positions": floats(5, 2),
        "frequencies": floats(2, 4),
    },
    "grid_positions": {"sizes": (2, 3)},
    "grid_positions_from_mask": {"mask": bools(2, 3, 4)},
    "init_position_table": {"max_len": 5, "dim": 8},
    "last_positions": {"query_len": 2, "key_len": 5},
    "learned_position_encoding": {"table": floats(7, 8), "positions": 5},
    "mrope_axes": {"sections": (4, 2, 2)},
    "patch_centres": {"sizes": (2, 3)},
    "permute_rope_weights": {"weight": weight(5, 24), "num_heads": 3, "to": "half"},
    "position_range": {"length": 5},
    "positions_from_mask": {"mask": bools(2, 5)},
    "positions_from_segments": {"segment_ids": ints([[3, 3, 0, 0, 3]])},
    "resize_position_table": {"table": floats(9, 8), "length_or_grid": 5},
    "rope_cos_sin": {"positions": 5, "inv_freq": floats(4)},
    "rotate_half": {"x": floats(5, 8)},
    "scaled_dot_product_attention_with_alibi": ATTENTION | {"alibi": module(floats(6))},
    "shard_positions": {"length": 8, "shard": 1, "num_shards": 2},
    "sinusoidal_position_encoding": {"positions": 5, "dim": 8},
    "sinusoidal_preset": {"name": "whisper"},
    "xpos_scale": {"positions": 5, "rotary_dim": 8},
    "yarn_mscale": {"factor": 4.0},
}
# (function, argument): why no row of ours is needed.
CHECKED_BY_FRAMEWORK = {
    ("init_position_table", "key"): "jax.random names a bad key",
    ("init_position_table", "generator"): "torch.randn names a bad generator",
}


def prepared(fw: Framework, function: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, made in a framework."""
    given = CALLS[function] | changes
    made = {k: v.make(fw) if isinstance(v, Make) else v for k, v in given.items()}
    return fw.seeded(function) | made


def apart(function: str, changes: dict[str, Any]) -> tuple[Callable, dict[str, Any]]:
    """A JAX call as a function of its arrays alone, to be traced, and the arrays."""
    given, call = prepared(JAX, function, changes), bound(JAX, function)
    arrays = {k: v for k, v in given.items() if isinstance(v, jax.Array)}
    static = {k: v for k, v in given.items() if k not in arrays}
    return lambda traced: call(**traced, **static), arrays


def bound(fw: Framework, function: str) -> Callable:
    found = fw.function(function)
    if function in ("grid_positions", "patch_centres"):
        return lambda sizes: found(*sizes)
    return found


# ----------------------------------------------------------------------- bad input


@dataclass(frozen=True)
class Row:
    function: str
    case: str
    error: type[Exception]
    sentence: str
    changes: dict[str, Any] = field(hash=False)
    looks_at_values: bool = False  # so jit cannot see it

    @property
    def id(self) -> str:
        return f"{self.function}-{'+'.join(self.changes)}-{self.case}"


def bad(
    function: str, case: str, error: type[Exception], sentence: str, **changes: Any
) -> Row:
    return Row(function, case, error, sentence, changes)


YARN, LONGROPE = "YarnScaling", "LongRopeScaling"
TRAINED = "original_max_position_embeddings"
MSCALES = ("mscale", "mscale_all_dim")
MSCALES_OF_LONGROPE = ("short_mscale", "long_mscale")
LLAMA3 = ("", "low_freq_", "high_freq_")
PROPORTIONAL = ("partial_rotary_factor", "factor")
SDPA, ALIBI_SDPA = "dot_product_attention", "scaled_dot_product_attention_with_alibi"
ROTARY = "apply_rotary_pos_emb"
SINUSOIDAL, LEARNED = "sinusoidal_position_encoding", "learned_position_encoding"
FOURIER, AXIAL = "fourier_position_encoding", "axial_position_encoding"
INIT, RESIZE = "init_position_table", "resize_position_table"
MASK, GRID_MASK = "positions_from_mask", "grid_positions_from_mask"
SEGMENTS, SHARD = "positions_from_segments", "shard_positions"

NOT_AN_ARRAY = {
    "list": [1.0, 2.0],
    "float": 1.0,
    "bool": True,
    "NoneType": None,
    "float32": np.float32(1),
    "str": "1",
}
FLOATING = "a floating-point array"
TABLE = "a float32 or float64 array"
POSITIONS = "an int or an array of signed integers"
INTEGERS = "an array of signed integers"
BOOLEAN = "a boolean array"
NUMBER = "a number"
INT = "an int"
FLAG = "a Python bool"

# What is refused, by what is asked for: {what came: value}.
REFUSED: dict[str, dict[str, Any]] = {
    FLOATING: NOT_AN_ARRAY | {"int32": ints([[[1, 2]]]), "bool": bools(2, 5, 3, 8)},
    TABLE: NOT_AN_ARRAY
    | {
        "int32": ints([1, 2]),
        "bfloat16": floats(4, dtype="bfloat16"),
        "float16": floats(4, dtype="float16"),
    },
    POSITIONS: {
        "list": [0, 1],
        "float": 5.0,
        "bool": True,
        "NoneType": None,
        "int32": np.int32(5),
        "str": "5",
        "float32": floats(5),
        "bfloat16": floats(5, dtype="bfloat16"),
        "float16": floats(5, dtype="float16"),
    },
    INTEGERS: {
        "uint8": ints([0, 1, 2, 3, 4], "uint8"),
        "uint32": ints([0, 1, 2, 3, 4], "uint32"),
        "bool": bools(5),
        "complex64": ints([0, 1, 2, 3, 4], "complex64"),
    },
    BOOLEAN: NOT_AN_ARRAY | {"float32": floats(5, 7), "int32": ints([[1]])},
    NUMBER: {
        "list": [1.0],
        "bool": True,
        "NoneType": None,
        "str": "1",
        "complex": 1 + 0j,
        "complex64": np.complex64(1),
        "float32": floats(2),
        "int32": ints(1),
    },
    INT: {
        "list": [1],
        "float": 2.0,
        "bool": True,
        "NoneType": None,
        "str": "2",
        "int64": np.int64(2),
        "int32": ints(2),
    },
    FLAG: {"str": "no", "NoneType": None, "int": 1, "list": [True], "bool": bools(2)},
}
NOT_POSITIVE = {
    "zero": 0.0,
    "negative": -1.0,
    "nan": np.nan,
    "inf": np.inf,
    "huge": 2**1023,
}

ASKED: list[tuple[str, str, str]] = [
    *((FLOATING, "apply_rope", name) for name in ("x", "cos", "sin")),
    *((FLOATING, "RopeConfig.apply", name) for name in ("x", "cos", "sin")),
    *((wanted, "RopeConfig.cos_sin", "positions") for wanted in (POSITIONS, INTEGERS)),
    *((FLOATING, ROTARY, name) for name in ("q", "k", "cos", "sin")),
    *((FLOATING, "add_position_encoding", name) for name in ("x", "encoding")),
    *((FLOATING, f, n) for f in (SDPA, ALIBI_SDPA) for n in ("query", "key", "value")),
    (FLOATING, SDPA, "bias"),
    (FLOATING, "rotate_half", "x"),
    (FLOATING, "permute_rope_weights", "weight"),
    (FLOATING, "learned_position_encoding", "table"),
    (TABLE, "rope_cos_sin", "inv_freq"),
    (TABLE, "alibi_bias", "slopes"),
    (TABLE, SDPA, "alibi_slopes"),
    (POSITIONS, "rope_cos_sin", "positions"),
    (POSITIONS, "learned_position_encoding", "positions"),
    (POSITIONS, "position_range", "offset"),
    *((POSITIONS, "alibi_bias", f"{name}_positions") for name in ("query", "key")),
    *((POSITIONS, SDPA, f"{name}_positions") for name in ("query", "key")),
    *((POSITIONS, ALIBI_SDPA, f"{name}_positions") for name in ("query", "key")),
    (INTEGERS, "rope_cos_sin", "positions"),
    (INTEGERS, "sinusoidal_position_encoding", "positions"),
    (INTEGERS, "learned_position_encoding", "positions"),
    (INTEGERS, "position_range", "offset"),
    *((INTEGERS, "alibi_bias", f"{name}_positions") for name in ("query", "key")),
    *((INTEGERS, SDPA, f"{name}_positions") for name in ("query", "key")),
    *((INTEGERS, SDPA, f"{name}_segment_ids") for name in ("query", "key")),
    *((BOOLEAN, function, "mask") for function in (SDPA, ALIBI_SDPA)),
    *((NUMBER, function, "scale") for function in (SDPA, ALIBI_SDPA)),
    (NUMBER, SDPA, "logit_softcap"),
    (NUMBER, "rope_cos_sin", "attention_factor"),
    (NUMBER, "sinusoidal_position_encoding", "base"),
    (NUMBER, "RopeConfig", "base"),
    (NUMBER, "init_position_table", "stddev"),
    (INT, "RopeConfig", "head_dim"),
    (INT, "RopeConfig", "rotary_dim"),
    (INT, "permute_rope_weights", "num_heads"),
    (INT, "permute_rope_weights", "rotary_dim"),
    (INT, "sinusoidal_position_encoding", "dim"),
    (INT, "alibi_slopes", "num_heads"),
    (INT, "init_position_table", "max_len"),
    (INT, "init_position_table", "dim"),
    (INT, "position_range", "length"),
    (INT, "last_positions", "query_len"),
    (INT, "last_positions", "key_len"),
    (INT, SDPA, "sliding_window"),
    *((FLAG, function, "is_causal") for function in (SDPA, ALIBI_SDPA)),
    (FLAG, "apply_rope", "inverse"),
    (FLAG, "RopeConfig", "inverse"),
    (FLAG, "YarnScaling", "truncate"),
    (NUMBER, "LinearScaling", "factor"),
    (NUMBER, "NtkScaling", "alpha"),
    (NUMBER, "DynamicNtkScaling", "factor"),
    *((NUMBER, YARN, name) for name in ("factor", "beta_fast", "beta_slow")),
    *((NUMBER, YARN, name) for name in ("attention_factor", *MSCALES)),
    *((NUMBER, LONGROPE, name) for name in ("factor", "attention_factor")),
    *((NUMBER, LONGROPE, name) for name in MSCALES_OF_LONGROPE),
    *((NUMBER, "Llama3Scaling", f"{kind}factor") for kind in LLAMA3),
    *((NUMBER, "ProportionalScaling", name) for name in PROPORTIONAL),
    *((NUMBER, "yarn_mscale", name) for name in ("factor", "mscale")),
    (NUMBER, "xpos_scale", "scale_base"),
    (INT, "DynamicNtkScaling", "max_position_embeddings"),
    *((INT, rule, TRAINED) for rule in (YARN, LONGROPE, "Llama3Scaling")),
    (INT, "xpos_scale", "rotary_dim"),
    *((POSITIONS, "xpos_scale", name) for name in ("positions", "center")),
    *((INTEGERS, "xpos_scale", name) for name in ("positions", "center")),
    *((NUMBER, SINUSOIDAL, name) for name in ("angle_scale", "amplitude")),
    *((INT, f, "padding_idx") for f in (SINUSOIDAL, LEARNED, INIT)),
    (TABLE, FOURIER, "frequencies"),
    *((wanted, AXIAL, "positions") for wanted in (POSITIONS, INTEGERS)),
    *((BOOLEAN, function, "mask") for function in (MASK, GRID_MASK)),
    *((INT, MASK, name) for name in ("start", "padding")),
    (INTEGERS, SEGMENTS, "segment_ids"),
    *((wanted, SHARD, "shard") for wanted in (POSITIONS, INTEGERS)),
    *((INT, SHARD, name) for name in ("length", "num_shards")),
    (FLOATING, RESIZE, "table"),
    *((INT, RESIZE, name) for name in ("length_or_grid", "old_grid", "num_prefix")),
    *((FLAG, RESIZE, name) for name in ("antialias", "align_corners")),
    (NUMBER, RESIZE, "scale_factor"),
    (NUMBER, "alibi_slopes", "bias_max"),
    (INT, "alibi_slopes", "num_biased"),
]
MAY_BE_NONE = {
    (SDPA, "bias"),
    (SDPA, "mask"),
    (SDPA, "scale"),
    (SDPA, "alibi_slopes"),
    (SDPA, "key_positions"),
    (SDPA, "sliding_window"),
    (SDPA, "logit_softcap"),
    (ALIBI_SDPA, "mask"),
    (ALIBI_SDPA, "scale"),
    (ALIBI_SDPA, "key_positions"),
    ("RopeConfig", "rotary_dim"),
    ("permute_rope_weights", "rotary_dim"),
    *((YARN, name) for name in ("attention_factor", *MSCALES)),
    *((LONGROPE, name) for name in ("attention_factor", *MSCALES_OF_LONGROPE)),
    *((SINUSOIDAL, name) for name in ("base", "angle_scale", "amplitude")),
    *((f, "padding_idx") for f in (SINUSOIDAL, LEARNED, INIT)),
    *((RESIZE, name) for name in ("old_grid", "scale_factor")),
    ("alibi_slopes", "num_biased"),
    # None alone is another error, with a row below.
    (SDPA, "query_positions"),
    (ALIBI_SDPA, "query_positions"),
}
# What else an argument takes, with rows of its own below.
ALSO_TAKES = {
    (SINUSOIDAL, "amplitude"): "str",
    **{(RESIZE, name): "list" for name in ("length_or_grid", "old_grid")},
    (RESIZE, "scale_factor"): "list",
}
OUT_OF_RANGE = "'error', 'nan', 'clip', 'zero'"
KINDS = "'symmetric', 'signed', 'key', 'past', 'future'"
CHOICES = [
    ("RopeConfig", "layout", "'half', 'interleaved', 'interleaved_to_half'"),
    ("RopeConfig", "placement", "'leading', 'trailing'"),
    ("RopeConfig", "progression", "'shared', 'per_axis', 'alternating'"),
    ("apply_rope", "layout", "'half', 'interleaved', 'interleaved_to_half'"),
    ("apply_rope", "placement", "'leading', 'trailing'"),
    (ROTARY, "layout", "'half', 'interleaved', 'interleaved_to_half'"),
    ("mrope_axes", "order", "'chunked', 'interleaved', 'ernie'"),
    ("rope_cos_sin", "angles", "'float32', 'exact'"),
    ("RopeConfig.cos_sin", "angles", "'float32', 'exact'"),
    ("rotate_half", "layout", "'half', 'interleaved'"),
    ("permute_rope_weights", "to", "'half', 'interleaved'"),
    ("permute_rope_weights", "placement", "'leading', 'trailing'"),
    (
        SINUSOIDAL,
        "layout",
        "'interleaved', 'half', 'half_cos_first', 'half_across_axes'",
    ),
    (SINUSOIDAL, "spacing", "'dim', 'half', 'endpoint', 'next_even'"),
    (SINUSOIDAL, "angles", "'float32', 'exact'"),
    (SINUSOIDAL, "preset", ", ".join(map(repr, NAMES))),
    ("sinusoidal_preset", "name", ", ".join(map(repr, NAMES))),
    (FOURIER, "layout", "'interleaved', 'half', 'half_cos_first'"),
    (LEARNED, "out_of_range", OUT_OF_RANGE),
    (AXIAL, "out_of_range", OUT_OF_RANGE),
    (AXIAL, "combine", "'concat', 'sum'"),
    (
        INIT,
        "init",
        "'normal', 'truncated_normal', 'uniform', 'sinusoidal', 'patchtst'",
    ),
    (INIT, "preset", ", ".join(map(repr, LINE_NAMES))),
    (RESIZE, "method", "'linear', 'cubic', 'keys_cubic'"),
    (GRID_MASK, "normalize", "None, 'end', 'centre'"),
    (SHARD, "order", "'contiguous', 'zigzag'"),
    ("alibi_slopes", "rule", "'authors', 'uniform'"),
    ("alibi_bias", "kind", f"{KINDS}, 'manhattan', 'euclidean'"),
    (SDPA, "alibi_kind", KINDS),
]
NONE_IS_A_CHOICE = {
    *((SINUSOIDAL, name) for name in ("layout", "spacing")),
    (GRID_MASK, "normalize"),
}
NOT_A_CHOICE = {
    "unknown": "halves",
    "case": "Half",
    "empty": "",
    "none": None,
    "number": 1,
    "list": ["half"],
    "array": np.array(["half", "leading"]),
}
DTYPES = [
    "RopeConfig.cos_sin",
    "rope_cos_sin",
    "sinusoidal_position_encoding",
    "alibi_slopes",
    "init_position_table",
    "xpos_scale",
    GRID_MASK,
]
NOT_A_TABLE_DTYPE = {
    "bfloat16": dtype("bfloat16"),
    "float16": dtype("float16"),
    "int32": dtype("int32"),
    "None": None,
    "'nonsense'": "nonsense",
}


def wrong_types() -> Iterator[Row]:
    for wanted, function, argument in ASKED:
        for came, value in REFUSED[wanted].items():
            none = value is None and (function, argument) in MAY_BE_NONE
            if not none and ALSO_TAKES.get((function, argument)) != came:
                sentence = f"`{argument}` must be {wanted}, got {came}."
                case = f"{came}_array" if isinstance(value, Make) else came
                yield bad(function, case, TypeError, sentence, **{argument: value})


def wrong_numbers() -> Iterator[Row]:
    """YaRN's weights may be zero, which is as if they were not given."""
    for wanted, function, argument in ASKED:
        for case, value in NOT_POSITIVE.items() if wanted == NUMBER else ():
            if case == "zero" and function == YARN and argument in MSCALES:
                continue
            sentence = f"`{argument}` must be positive and finite, got {value}."
            yield bad(function, case, ValueError, sentence, **{argument: value})


def wrong_factors() -> Iterator[Row]:
    """What multiplies a float32 number is one."""
    for argument in ("scale", "logit_softcap"):
        for case, value in {"large": 1e39, "tiny": 1e-39, "large_int": 10**39}.items():
            sentence = f"`{argument}` must be a normal float32 number, got {value}."
            yield bad(SDPA, case, ValueError, sentence, **{argument: value})


def wrong_static_numbers() -> Iterator[Row]:
    """What a host constant is made of is a number, never an array, traced or not."""
    for function, argument in (
        ("RopeConfig", "base"),
        (SINUSOIDAL, "base"),
        (SINUSOIDAL, "angle_scale"),
        ("alibi_slopes", "bias_max"),
        (INIT, "stddev"),
        (RESIZE, "scale_factor"),
    ):
        sentence = f"`{argument}` must be a number, got float32."
        array = {argument: scalar(100.0)}
        yield bad(function, "scalar_array", TypeError, sentence, **array)


def wrong_choices() -> Iterator[Row]:
    for function, argument, choices in CHOICES:
        for case, value in NOT_A_CHOICE.items():
            if value is None and (function, argument) in NONE_IS_A_CHOICE:
                continue
            sentence = f"`{argument}` must be one of {choices}, got {value!r}."
            yield bad(function, case, ValueError, sentence, **{argument: value})


def wrong_dtypes() -> Iterator[Row]:
    for function in DTYPES:
        for came, value in NOT_A_TABLE_DTYPE.items():
            sentence = f"`dtype` must be float32 or float64, got {came}."
            yield bad(function, came, TypeError, sentence, dtype=value)


def too_small(function: str, argument: str, least: int, *values: int) -> Iterator[Row]:
    for value in values:
        sentence = f"`{argument}` must be at least {least}, got {value}."
        yield bad(function, str(value), ValueError, sentence, **{argument: value})


def unfit(
    function: str,
    case: str,
    name: str,
    wanted: Sequence[int],
    came: Sequence[int],
    *,
    loose: int = 0,
    **changes: Any,
) -> Row:
    rule = f" (the first {loose} axes may be 1 or absent)" if loose else ""
    sentence = f"`{name}` must have shape {tuple(wanted)}{rule}, got {tuple(came)}."
    return bad(function, case, ValueError, sentence, **changes)


def both(*shape: int) -> dict[str, Make]:
    return {"cos": floats(*shape), "sin": floats(*shape)}


def too_long(function: str, argument: str) -> Iterator[Row]:
    for case, value in (("2_to_31", 2**31), ("huge", 10**400)):
        sentence = f"`{argument}` must fit int32, got {value}."
        yield bad(function, case, ValueError, sentence, **{argument: value})


SIZES = [
    *too_small("DynamicNtkScaling", "max_position_embeddings", 1, 0, -1),
    *too_small(YARN, TRAINED, 1, 0, -1),
    *too_small("Llama3Scaling", TRAINED, 1, 0, -1),
    *too_small(LONGROPE, TRAINED, 2, 1, 0, -1),
    *too_small("RopeConfig.inv_freq", "seq_len", 0, -1),
    *too_small("RopeConfig.attention_factor", "seq_len", 0, -1),
    *too_small("RopeConfig.cos_sin", "seq_len", 0, -1),
    *too_small("xpos_scale", "positions", 0, -1),
    *too_small("xpos_scale", "rotary_dim", 2, 0, 1, -4),
    *too_long("DynamicNtkScaling", "max_position_embeddings"),
    *too_long(YARN, TRAINED),
    *too_long("Llama3Scaling", TRAINED),
    *too_long(LONGROPE, TRAINED),
    *too_long("RopeConfig.inv_freq", "seq_len"),
    *too_long("RopeConfig.attention_factor", "seq_len"),
    *too_small("RopeConfig", "head_dim", 1, 0, -2),
    *too_small("RopeConfig", "rotary_dim", 2, 0, 1, -4),
    *too_small("permute_rope_weights", "num_heads", 1, 0, -3),
    *too_small("permute_rope_weights", "rotary_dim", 2, 0, 1),
    *too_small("sinusoidal_position_encoding", "dim", 1, 0, -8),
    *too_small("sinusoidal_position_encoding", "positions", 0, -1),
    *too_small("alibi_slopes", "num_heads", 1, 0, -6),
    *too_small("init_position_table", "max_len", 1, 0, -5),
    bad(
        INIT,
        "of_random_numbers",
        ValueError,
        "`preset` must be left out where `init` is 'normal', got 'whisper'.",
        preset="whisper",
    ),
    *too_small("init_position_table", "dim", 1, 0, -8),
    *too_small("position_range", "length", 0, -1),
    *too_small("last_positions", "query_len", 0, -1),
    *too_small("last_positions", "key_len", 2, 1, -1),
    *too_small("rope_cos_sin", "positions", 0, -1),
    *too_small("learned_position_encoding", "positions", 0, -1),
    *too_small("alibi_bias", "query_positions", 0, -1),
    *too_small("alibi_bias", "key_positions", 0, -1),
    *too_small(SDPA, "query_positions", 0, -1),
    *too_small(SDPA, "key_positions", 0, -1),
    *too_small(SDPA, "sliding_window", 1, 0, -4),
    bad(
        "sinusoidal_position_encoding",
        "endpoint",
        ValueError,
        "`dim` must be at least 2, got 1.",
        dim=1,
        spacing="endpoint",
    ),
    *(
        row
        for function, name in (
            (SINUSOIDAL, "padding_idx"),
            (MASK, "start"),
            (MASK, "padding"),
        )
        for row in (
            *too_small(function, name, -(2**31), -(2**31) - 1),
            *too_long(function, name),
        )
    ),
    *too_small(LEARNED, "padding_idx", 0, -1),
    *too_small(INIT, "padding_idx", 0, -1),
    *too_small(SHARD, "length", 0, -8),
    *too_small(SHARD, "num_shards", 1, 0, -2),
    *too_long(SHARD, "length"),
    *too_long(SHARD, "num_shards"),
    *too_small(RESIZE, "length_or_grid", 1, 0, -1),
    *too_small(RESIZE, "old_grid", 1, 0, -9),
    *too_small(RESIZE, "num_prefix", 0, -1),
    *too_small("alibi_slopes", "num_biased", 0, -1),
    bad(
        INIT,
        "patchtst",
        ValueError,
        "`dim` must be at least 2, got 1.",
        dim=1,
        init="patchtst",
    ),
]

EVEN = "`rotary_dim` must be even and at most `head_dim`, got {} and {}."
WHOLE = "`head_dim` must be even where `rotary_dim` is None, got {}."
COLUMNS = (
    "`cos` must have one column per rotated pair, 1 to 4 for a `head_dim` of 8, got {}."
)
ROWS_OF_WEIGHT = "`weight` must have num_heads * head_dim rows, got {} and {}."
ROPE = [
    bad("RopeConfig", "odd", ValueError, WHOLE.format(7), head_dim=7),
    bad("RopeConfig", "one", ValueError, WHOLE.format(1), head_dim=1),
    bad("RopeConfig", "odd", ValueError, EVEN.format(3, 8), rotary_dim=3),
    bad("RopeConfig", "wide", ValueError, EVEN.format(10, 8), rotary_dim=10),
    *(
        bad(
            "RopeConfig.inv_freq",
            name,
            TypeError,
            f"`dtype` must be float32 or float64, got {name}.",
            dtype=np.dtype(name),
        )
        for name in ("float16", "int32")
    ),
    *(
        bad(
            "rope_cos_sin",
            f"shape_{shape}",
            ValueError,
            f"`inv_freq` must be [n], got shape {shape}.",
            inv_freq=floats(*shape),
        )
        for shape in ((), (2, 4), (1, 4))
    ),
    *(
        bad(
            "rope_cos_sin",
            f"exact_{value}",
            ValueError,
            f"`inv_freq` must be finite for exact angles, got [{value}].",
            angles="exact",
            inv_freq=np.array([value], np.float32),
        )
        for value in (np.inf, np.nan)
    ),
    *(
        bad(f, f"columns_{n}", ValueError, COLUMNS.format(n), **both(5, n))
        for f in ("apply_rope", ROTARY)
        for n in (0, 5, 8)
    ),
    *(
        unfit(f, case, "cos", (2, 5, 4), shape, loose=1, **both(*shape))
        for f in ("apply_rope", ROTARY)
        for case, shape in {
            "seq_1": (1, 4),
            "seq_6": (6, 4),
            "batch_3": (3, 5, 4),
            "batch_1_seq_1": (1, 1, 4),
            "more_axes": (1, 2, 5, 4),
        }.items()
    ),
    unfit(ROTARY, "seq_6", "cos", (2, 6, 4), (5, 4), loose=1, k=heads(2, 6, 3, 8)),
    *(
        unfit(f, case, "sin", (5, 4), shape, sin=floats(*shape))
        for f in ("apply_rope", ROTARY)
        for case, shape in {
            "seq_1": (1, 4),
            "columns_3": (5, 3),
            "columns_1": (5, 1),
            "more_axes": (1, 5, 4),
        }.items()
    ),
    bad(
        "apply_rope",
        "1_axis",
        ValueError,
        "`cos` must be [..., seq, n], at least 2 axes, got shape (4,).",
        **both(4),
    ),
    *(
        bad(
            function,
            "2_axes",
            ValueError,
            f"`{name}` must be [..., seq, heads, head_dim], at least 3 axes, "
            "got shape (5, 8).",
            **{name: floats(5, 8)},
        )
        for function, name in (("apply_rope", "x"), (ROTARY, "q"), (ROTARY, "k"))
    ),
    bad(
        "rotate_half",
        "0_axes",
        ValueError,
        "`x` must be [..., width], at least 1 axes, got shape ().",
        x=floats(),
    ),
    bad(
        "rotate_half",
        "odd",
        ValueError,
        "`x` must have an even last axis, got 7.",
        x=floats(5, 7),
    ),
    bad(
        "permute_rope_weights",
        "0_axes",
        ValueError,
        "`weight` must be [..., num_heads * head_dim], at least 1 axes, got shape ().",
        weight=floats(),
    ),
    *(
        bad("permute_rope_weights", case, ValueError, sentence, **changes)
        for case, sentence, changes in (
            ("heads_5", ROWS_OF_WEIGHT.format(24, 5), {"num_heads": 5}),
            ("rows_7", ROWS_OF_WEIGHT.format(7, 3), {"weight": weight(5, 7)}),
            ("vector_7", ROWS_OF_WEIGHT.format(7, 3), {"weight": weight(7)}),
            ("odd", EVEN.format(3, 8), {"rotary_dim": 3}),
            ("wide", EVEN.format(10, 8), {"rotary_dim": 10}),
            ("odd_head", WHOLE.format(5), {"weight": weight(2, 15)}),
        )
    ),
]

FINITE = "`base` and `scaling` must give finite frequencies, got"
THREE = "`{}` must be 3 ints for the order {!r}, got {}."
EQUAL = (
    "`{}` must be as many of height as of width for the order 'ernie', got {} and {}."
)
THIRD = (
    "`sections` must not have more of height or width than every third pair for the "
    "order 'interleaved', got {}."
)
NO_LENGTH = "`seq_len` must be given for {}, got None."
LONG = made("LongRopeScaling", (1.0,) * 4, (2.0,) * 4, 10, 4.0)
LENGTHS = [
    *(
        bad(
            f"RopeConfig.{method}",
            came,
            TypeError,
            f"`seq_len` must be an int, got {came}.",
            seq_len=value,
        )
        for method in ("inv_freq", "attention_factor")
        for came, value in REFUSED[INT].items()
        if not isinstance(value, Make) and value is not None
    ),
    *(
        bad(
            f"RopeConfig.{method}",
            f"{came}_array",
            TypeError,
            f"`seq_len` must be {INTEGERS}, got {came}.",
            seq_len=value,
        )
        for method in ("inv_freq", "attention_factor")
        for came, value in {
            "float32": scalar(5.0),
            "bool": bools(),
            "uint32": ints(5, "uint32"),
        }.items()
    ),
    *(
        bad(
            f"RopeConfig.{method}",
            f"shape_{shape}",
            ValueError,
            f"`seq_len` must be a scalar, got shape {shape}.",
            seq_len=ints(np.ones(shape, int)),
        )
        for method in ("inv_freq", "attention_factor")
        for shape in ((1,), (2, 3))
    ),
    *(
        bad(
            f"RopeConfig.{method}",
            name,
            ValueError,
            NO_LENGTH.format(name),
            self=config(scaling=rule),
        )
        for method in ("inv_freq", "attention_factor")
        for name, rule in {
            "DynamicNtkScaling": DYNAMIC,
            "LongRopeScaling": LONG,
        }.items()
    ),
    *(
        bad("RopeConfig.inv_freq", case, ValueError, sentence, **changes)
        for case, sentence, changes in (
            (
                "tiny_base",
                f"{FINITE} {[1e-300 ** (-i / 4) for i in range(4)]}.",
                {"self": config(base=1e-300)},
            ),
            (
                "tiny_factor",
                f"{FINITE} {[10.0**-i / 1e-300 for i in range(4)]}.",
                {"self": config(scaling=made("LinearScaling", 1e-300))},
            ),
            (
                "growth_without_end",
                f"{FINITE} [nan, 0.0, 0.0, 0.0].",
                {
                    "self": config(scaling=made("DynamicNtkScaling", 1e300, 1)),
                    "seq_len": 2**31 - 1,
                },
            ),
        )
    ),
]

BETWEEN_AXES = (0, 1, 1, 0)
RULES = [
    *(
        bad(
            "RopeConfig",
            case,
            TypeError,
            f"`scaling` must be a rule of `rope_scaling` or None, got {came}.",
            scaling=value,
        )
        for case, came, value in (
            ("name", "str", "linear"),
            ("dict", "dict", {"rope_type": "linear", "factor": 2.0}),
            ("number", "float", 2.0),
            ("class", "type", Make(lambda fw: fw.package.LinearScaling, "class")),
        )
    ),
    *(
        bad(
            "RopeConfig",
            f"scaled_{progression}",
            ValueError,
            f"`scaling` must be None for the progression '{progression}', "
            "got LinearScaling.",
            scaling=made("LinearScaling", 2.0),
            axes=(0, 1, 1, 0),
            progression=progression,
        )
        for progression in ("per_axis", "alternating")
    ),
    *(
        bad(
            "RopeConfig",
            f"{name}_of_2",
            ValueError,
            "`rotary_dim` must be at least 4 for NTK scaling, got 2.",
            scaling=rule,
            rotary_dim=2,
        )
        for name, rule in {
            "ntk": made("NtkScaling", 2.0),
            "dynamic": DYNAMIC,
        }.items()
    ),
    *(
        bad(
            "RopeConfig",
            f"yarn_{base}",
            ValueError,
            f"`base` must be above 1 for YarnScaling, got {base}.",
            scaling=made(YARN, 4.0, 10),
            base=base,
        )
        for base in (1.0, 0.5)
    ),
    *(
        bad(
            "RopeConfig",
            f"{name}_of_{count}",
            ValueError,
            f"`{name}` must have one number for each of 4 pairs, got {count}.",
            scaling=made(
                LONGROPE,
                original_max_position_embeddings=10,
                factor=4.0,
                **{"short_factor": [1.0] * 4, "long_factor": [1.0] * 4}
                | {name: [1.0] * count},
            ),
        )
        for name in ("short_factor", "long_factor")
        for count in (0, 3, 8)
    ),
    *(
        bad(
            "RopeConfig",
            f"still_{part}",
            ValueError,
            f"`partial_rotary_factor` must leave a pair to rotate, "
            f"got {part} of 4 pairs.",
            scaling=made("ProportionalScaling", part),
        )
        for part in (0.01, 0.249)
    ),
    bad(
        "ProportionalScaling",
        "above_1",
        ValueError,
        "`partial_rotary_factor` must be at most 1, got 1.01.",
        partial_rotary_factor=1.01,
    ),
    *(
        bad(
            YARN,
            case,
            ValueError,
            f"`beta_fast` must be at least `beta_slow`, got {fast} and {slow}.",
            beta_fast=fast,
            beta_slow=slow,
        )
        for case, fast, slow in (("just_below", 2.0, 2.5), ("exchanged", 1.0, 32.0))
    ),
    *(
        bad(
            "Llama3Scaling",
            case,
            ValueError,
            f"`high_freq_factor` must be at least `low_freq_factor`, got {high} and {low}.",
            high_freq_factor=high,
            low_freq_factor=low,
        )
        for case, high, low in (("just_below", 2.0, 2.5), ("exchanged", 1.0, 4.0))
    ),
    *(
        bad(
            LONGROPE,
            came,
            TypeError,
            f"`{name}` must be a tuple of numbers, got {came}.",
            **{name: value},
        )
        for name in ("short_factor", "long_factor")
        for came, value in {"float": 2.0, "str": "1234", "NoneType": None}.items()
    ),
    *(
        bad(
            LONGROPE,
            f"of_{came}",
            TypeError,
            f"`{name}[1]` must be a number, got {came}.",
            **{name: [1.0, value]},
        )
        for name in ("short_factor", "long_factor")
        for came, value in REFUSED[NUMBER].items()
        if not isinstance(value, Make)
    ),
    *(
        bad(
            LONGROPE,
            f"of_{case}",
            ValueError,
            f"`{name}[1]` must be positive and finite, got {value}.",
            **{name: (1.0, value)},
        )
        for name in ("short_factor", "long_factor")
        for case, value in NOT_POSITIVE.items()
    ),
    *(
        bad(
            LONGROPE,
            "alone",
            ValueError,
            "`short_mscale` and `long_mscale` must be given together, "
            f"got {changes.get('short_mscale')} and {changes.get('long_mscale')}.",
            **changes,
        )
        for changes in ({"short_mscale": 1.25}, {"long_mscale": 1.25})
    ),
    bad(
        LONGROPE,
        "beside_mscale",
        ValueError,
        "`attention_factor` must be left out where `short_mscale` is given, got 1.5.",
        attention_factor=1.5,
        short_mscale=1.25,
        long_mscale=1.25,
    ),
]

COORDINATES = {
    function: {"positions": ints(np.ones((5, 2), int))}
    for function in ("rope_cos_sin", SINUSOIDAL)
}
# (function, the argument that the coordinates belong to, what makes it so)
WITH_COORDINATES = (
    ("rope_cos_sin", "axes", {"axes": (0, 1, 1, 0)}),
    (SINUSOIDAL, "axes", {"axes": (1, 0)}),
    (FOURIER, "frequencies", {}),
    (AXIAL, "tables", {}),
)
AXES = [
    *(
        bad(
            function,
            f"axes_{came}",
            TypeError,
            f"`{name}` must be a tuple of ints, got {came}.",
            **{name: value} | COORDINATES.get(function, {}),
        )
        for function, name in (
            ("RopeConfig", "axes"),
            ("rope_cos_sin", "axes"),
            (SINUSOIDAL, "axes"),
            ("mrope_axes", "sections"),
        )
        for came, value in {
            "int": 1,
            "str": "0011",
            "set": {0, 1},
            "int32": ints([0, 0, 1, 1]),
            **({"NoneType": None} if name == "sections" else {}),
        }.items()
    ),
    *(
        bad(
            function,
            f"{name}_of_{came}",
            TypeError,
            f"`{name}[1]` must be an int, got {came}.",
            **{name: (2, value)} | COORDINATES.get(function, {}),
        )
        for function, name in (
            ("RopeConfig", "axes"),
            ("rope_cos_sin", "axes"),
            (SINUSOIDAL, "axes"),
            ("mrope_axes", "sections"),
            ("grid_positions", "sizes"),
            ("patch_centres", "sizes"),
            (RESIZE, "length_or_grid"),
            (RESIZE, "old_grid"),
        )
        for came, value in REFUSED[INT].items()
        if not isinstance(value, Make)
    ),
    *(
        bad(
            function,
            f"gap_{case}",
            ValueError,
            f"`axes` must name every axis from 0 on, got {axes}.",
            axes=axes,
            **COORDINATES.get(function, {}),
        )
        for function in ("RopeConfig", "rope_cos_sin", SINUSOIDAL)
        for case, axes in {
            "none": (),
            "first": (1, 1, 2, 2),
            "middle": [0, 2, 0, 2],
            "far": (0, 10**12),
        }.items()
    ),
    *(
        bad(
            function,
            "negative",
            ValueError,
            "`axes[3]` must be at least 0, got -1.",
            axes=(0, 1, 1, -1),
            **COORDINATES.get(function, {}),
        )
        for function in ("RopeConfig", "rope_cos_sin", SINUSOIDAL)
    ),
    *(
        bad(
            function,
            f"{len(axes)}_axes",
            ValueError,
            f"`axes` must have one int for each of 4 pairs, got {len(axes)}.",
            axes=axes,
            **COORDINATES.get(function, {}),
        )
        for function in ("RopeConfig", "rope_cos_sin")
        for axes in ((0, 1, 1), (0, 0, 0, 0, 1, 1, 1, 1))
    ),
    *(
        bad(
            "RopeConfig",
            f"none_{progression}",
            ValueError,
            f"`axes` must be given for the progression '{progression}', got None.",
            progression=progression,
        )
        for progression in ("per_axis", "alternating")
    ),
    bad(
        "RopeConfig",
        "unequal",
        ValueError,
        "`axes` must have as many pairs each for the progression 'alternating', got [3, 1].",
        axes=(0, 0, 1, 0),
        progression="alternating",
    ),
    *(
        bad(
            function,
            f"coordinates_{np.shape(values)}",
            ValueError,
            f"`positions` must be [..., 2], one coordinate for each of `{of}`, "
            f"got shape {np.shape(values)}.",
            positions=ints(values),
            **axes,
        )
        for function, of, axes in WITH_COORDINATES
        for values in (3, [3, 4, 5], [[1, 2, 3]], np.ones((2, 5), int))
    ),
    *(
        bad(
            function,
            f"count_{n}",
            TypeError,
            f"`positions` must be an array of coordinates where there are `{of}`, "
            "got int.",
            positions=n,
            **axes,
        )
        for function, of, axes in WITH_COORDINATES
        for n in (2, 5)  # 2 would pass for one point with two coordinates
    ),
    *(
        bad(
            function,
            f"axes_and_{came}",
            TypeError,
            f"`positions` must be {wanted}, got {came}.",
            positions=value,
            **axes,
        )
        for function, of, axes in WITH_COORDINATES
        if function != AXIAL  # takes no real ones
        for wanted, came, value in (
            (TABLE, "bfloat16", floats(5, 2, dtype="bfloat16")),
            (TABLE, "float16", floats(5, 2, dtype="float16")),
            (INTEGERS, "uint8", ints([[0, 1]], "uint8")),
            (INTEGERS, "bool", bools(5, 2)),
            (POSITIONS, "list", [[0, 1]]),
            (POSITIONS, "float", 0.5),
            (POSITIONS, "NoneType", None),
        )
    ),
    *(
        bad(
            function,
            "exact_reals",
            TypeError,
            f"`positions` must be {POSITIONS}, got float32.",
            positions=floats(5, 2),
            angles="exact",
            **axes,
        )
        for function, of, axes in WITH_COORDINATES
        if of == "axes"
    ),
    *(
        bad(
            function,
            f"{name}_{value}",
            ValueError,
            f"`{name}[1]` must be at least 1, got {value}.",
            **{name: (3, value)},
        )
        for function, name in (
            ("mrope_axes", "sections"),
            ("grid_positions", "sizes"),
            ("patch_centres", "sizes"),
            (RESIZE, "length_or_grid"),
            (RESIZE, "old_grid"),
        )
        for value in (0, -1)
    ),
    *(
        bad(
            function,
            "none",
            ValueError,
            "`sizes` must have an int for each axis, got none.",
            sizes=(),
        )
        for function in ("grid_positions", "patch_centres")
    ),
    *(
        bad("mrope_axes", case, ValueError, sentence, sections=sections, order=order)
        for case, sentence, sections, order in (
            (
                "none",
                "`sections` must have an int for each axis, got ().",
                (),
                "chunked",
            ),
            ("two", THREE.format("sections", "interleaved", 2), (4, 4), "interleaved"),
            ("four", THREE.format("sections", "ernie", 4), (2, 2, 2, 2), "ernie"),
            ("unequal", EQUAL.format("sections", 3, 2), (3, 2, 3), "ernie"),
            ("much_height", THIRD.format((2, 3, 2)), (2, 3, 2), "interleaved"),
            ("much_width", THIRD.format((3, 2, 3)), (3, 2, 3), "interleaved"),
        )
    ),
]

RANGE = "`positions` must be in 0..6, the rows of `table`, got {} to {}."
TABLES = [
    *(
        unfit(
            "add_position_encoding",
            case,
            "encoding",
            (2, 5, 8),
            shape,
            loose=1,
            encoding=floats(*shape),
        )
        for case, shape in {
            "seq_1": (1, 8),
            "dim_1": (5, 1),
            "seq_6": (6, 8),
            "1_axis": (8,),
            "batch_3": (3, 5, 8),
            "more_axes": (1, 2, 5, 8),
        }.items()
    ),
    bad(
        "add_position_encoding",
        "1_axis",
        ValueError,
        "`x` must be [..., seq, dim], at least 2 axes, got shape (8,).",
        x=floats(8),
    ),
    *(
        bad(
            "learned_position_encoding",
            f"{len(shape)}_axes_{shape[0]}_rows",
            ValueError,
            f"`table` must be [max_len, dim] with at least one row, got shape {shape}.",
            table=floats(*shape),
        )
        for shape in ((7,), (1, 7, 8), (0, 8))
    ),
    *(
        Row(
            "learned_position_encoding",
            case,
            ValueError,
            RANGE.format(low, high),
            {"positions": ints(values)},
            looks_at_values=True,
        )
        for case, values, low, high in (
            ("above", [[0, 7]], 0, 7),
            ("below", [-1, 3], -1, 3),
            ("both_ends", [9, 0, -9], -9, 9),
            ("scalar", 7, 7, 7),
        )
    ),
    Row(
        "learned_position_encoding",
        "int_above",
        ValueError,
        RANGE.format(0, 7),
        {"positions": 8},
    ),
    *(
        bad(
            "sinusoidal_position_encoding",
            name,
            TypeError,
            f"`positions` must be a float32 or float64 array, got {name}.",
            positions=floats(5, dtype=name),
        )
        for name in ("bfloat16", "float16")
    ),
    *(
        bad(
            "sinusoidal_position_encoding",
            came,
            TypeError,
            f"`positions` must be {POSITIONS}, got {came}.",
            positions=REFUSED[POSITIONS][came],
        )
        for came in ("list", "float", "bool", "NoneType", "int32", "str")
    ),
    *(
        bad(
            "sinusoidal_position_encoding",
            f"exact_{name}",
            TypeError,
            f"`positions` must be {POSITIONS}, got {name}.",
            positions=floats(5, dtype=name),
            angles="exact",
        )
        for name in ("float32", "bfloat16")
    ),
]

ODD = "`rotary_dim` must be even, got {}."
XPOS = [
    *(
        bad("xpos_scale", f"odd_{n}", ValueError, ODD.format(n), rotary_dim=n)
        for n in (3, 7)
    ),
    *(
        bad(
            "xpos_scale",
            f"center_{shape}",
            ValueError,
            f"`center` must be a scalar, got shape {shape}.",
            center=ints(np.ones(shape, int)),
        )
        for shape in ((1,), (2, 5))
    ),
]


def hf(rope: Any, **others: Any) -> dict[str, Any]:
    return HF | {"rope_parameters": rope} | others


def without(given: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key not in keys}


# The least that each rope type must have, and how it is complained of.
LEAST = {
    "default": {},
    "axial": {},
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, TRAINED: 10},
    "longrope": {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, TRAINED: 10},
    "llama3": CALLS["Llama3Scaling"],
    "proportional": {"partial_rotary_factor": 0.5},
}
LEAST = {
    kind: {"rope_type": kind, "rope_theta": 1e4, **keys} for kind, keys in LEAST.items()
}
LEAST_OF_TYPE = [(kind, key) for kind, keys in LEAST.items() for key in keys]
TYPES = (
    "'default', 'axial', 'linear', 'dynamic', 'ntk_alpha', 'yarn', 'longrope', "
    "'llama3', 'proportional'"
)
DESCRIBES = "`config` must be of a model whose rotation a RopeConfig describes, got {}"
GIVEN = "`{}` must be given for the rope type {!r}, got {}."
LAYERED = {
    "full_attention": LEAST["linear"],
    "sliding_attention": LEAST["default"],
    "none": None,
}
LAYERS = "`layer_type` must be one of 'full_attention', 'sliding_attention', got {!r}."
FROM_HF = [
    *(
        bad(
            "RopeConfig.from_hf",
            came,
            TypeError,
            "`config` must be a Hugging Face configuration or a dict, "
            f"got {came.removesuffix('_array')}.",
            config=value,
        )
        for came, value in {
            "NoneType": None,
            "str": "llama",
            "list": [HF],
            "int": 8,
            "RopeConfig": config(),
            "float32_array": floats(4),
        }.items()
    ),
    bad(
        "RopeConfig.from_hf",
        "model_type",
        TypeError,
        "`model_type` must be a string, got int.",
        config=HF | {"model_type": 5},
    ),
    *(
        bad(
            "RopeConfig.from_hf",
            model,
            ValueError,
            f"{DESCRIBES.format(repr(model))}: {reason}.",
            config=HF | {"model_type": model} | others,
        )
        for model, reason, others in (
            (
                "hunyuan_vl_text",
                "the two channels of a pair turn by angles of different axes",
                {},
            ),
            (
                "falcon",
                "it has linear biases (ALiBi) in place of a rotation",
                {"alibi": True},
            ),
            (
                "zamba2",
                "it rotates where `use_mem_rope` is True, and that is None",
                {},
            ),
        )
    ),
    *(
        bad(
            "RopeConfig.from_hf",
            f"{name}_{came}",
            TypeError,
            f"`{name}` must be a dict, got {came}.",
            config=without(HF, "rope_parameters") | {name: value},
        )
        for name in ("rope_parameters", "rope_scaling")
        for came, value in {"str": "linear", "list": [LEAST["linear"]]}.items()
    ),
    bad(
        "RopeConfig.from_hf",
        "both",
        ValueError,
        "`rope_scaling` must not be given beside other `rope_parameters`, "
        f"got {LEAST['linear']} and {LEAST['default']}.",
        config=hf(LEAST["default"], rope_scaling=LEAST["linear"]),
    ),
    *(
        bad(
            "RopeConfig.from_hf",
            f"{key}_{case}",
            ValueError,
            f"`rope_type` must be one of {TYPES}, got {value!r}.",
            config=hf({key: value, "rope_theta": 1e4}),
        )
        for key in ("rope_type", "type")
        for case, value in {
            "unknown": "ntk",
            "case": "YaRN",
            "number": 5,
            "list": ["linear"],
        }.items()
    ),
    *(
        bad(
            "RopeConfig.from_hf",
            f"{kind}_{case}_{key}",
            ValueError,
            GIVEN.format(
                key, kind, f"only {', '.join(sorted(without(LEAST[kind], key)))}"
            ),
            config=hf(without(LEAST[kind], key) | changed),
        )
        for kind, key in LEAST_OF_TYPE
        if key != "rope_type"
        for case, changed in {"without": {}, "none": {key: None}}.items()
        # For YaRN a factor of None means the ratio of the lengths.
        if (kind, key, case) != ("yarn", "factor", "none")
    ),
    bad(
        "RopeConfig.from_hf",
        "no_parameters",
        ValueError,
        GIVEN.format("rope_theta", "default", "only rope_type"),
        config=hf(None),
    ),
    bad(
        "RopeConfig.from_hf",
        "whole_model",
        ValueError,
        "`config` must be that of one part of a model, such as `config.text_config`, got "
        "that of several.",
        config={"model_type": "gemma3", "text_config": HF},
    ),
    bad(
        "RopeConfig.from_hf",
        "flat_where_layers_differ",
        ValueError,
        "`rope_parameters` must be nested by layer type for this model, whose layers "
        "differ, got flat keys.",
        config={"model_type": "laguna", "head_dim": 8, "rope_theta": 1e4},
    ),
    bad(
        "RopeConfig.from_hf",
        "no_local_base",
        ValueError,
        "`rope_local_base_freq` must be given beside rope parameters that do not state the "
        "base of each layer type, got None.",
        config={"model_type": "gemma3_text", "head_dim": 8, "rope_theta": 1e4},
    ),
    bad(
        "RopeConfig.from_hf",
        "bases_by_layer",
        ValueError,
        "`layer_rope_theta` must be `rope_theta` or 0 in every layer, got "
        "[10000.0, 0, 20.0].",
        config=HF | {"layer_rope_theta": [1e4, 0, 20.0]},
    ),
    bad(
        "RopeConfig.from_hf",
        "no_slice",
        ValueError,
        "`qk_rope_head_dim` must be given for this model, got None.",
        config={"model_type": "deepseek_v3", "head_dim": 8, "rope_theta": 1e4},
    ),
    bad(
        "RopeConfig.to_hf",
        "number",
        TypeError,
        "`model_type` must be a string, got int.",
        model_type=5,
    ),
    bad(
        "RopeConfig.to_hf",
        "layers_differ",
        ValueError,
        "`rope_parameters` must be nested by layer type for this model, whose layers "
        "differ, got flat keys.",
        model_type="gemma4_text",
    ),
    bad(
        "RopeConfig.to_hf",
        "layers_have_one_base",
        ValueError,
        "`model_type` must be of a model whose code has this layout, which a "
        "configuration does not hold, got 'glm'.",
        model_type="glm",
        layer_type="full_attention",
    ),
    bad(
        "RopeConfig.from_hf",
        "default_of_the_class",
        ValueError,
        "`head_dim` must be given for this model, whose class has a default of its own "
        "for it, got None.",
        config={"model_type": "qwen3", "rope_theta": 1e4, "hidden_size": 8},
    ),
    *(
        bad(
            "RopeConfig.from_hf",
            f"{name}_{came}",
            TypeError,
            f"`{name}` must be a number, got {came}.",
            config=hf(LEAST["linear"] | {name: value}),
        )
        for name in ("rope_theta", "factor", "partial_rotary_factor")
        for came, value in {"str": "2", "bool": True, "list": [2.0]}.items()
    ),
    *(
        bad(
            "RopeConfig.from_hf",
            f"{name}_{case}",
            ValueError,
            f"`{name}` must be positive and finite, got {value}.",
            config=hf(LEAST["linear"] | {name: value}),
        )
        for name in ("rope_theta", "factor", "partial_rotary_factor")
        for case, value in NOT_POSITIVE.items()
    ),
    *(
        bad(
            "RopeConfig.from_hf",
            f"part_{part}_of_{head_dim}",
            ValueError,
            "`partial_rotary_factor` must leave an even number of channels, from 2 to "
            f"`head_dim`, got {part} of {head_dim}.",
            config=hf(LEAST["default"] | {"partial_rotary_factor": part})
            | {"head_dim": head_dim},
        )
        for part, head_dim in ((1.5, 8), (1e308, 8), (0.01, 8), (0.5, 10), (1.0, 7))
    ),
    *(
        bad(
            "RopeConfig.from_hf",
            f"layer_type_{case}",
            ValueError,
            LAYERS.format(layer_type),
            config=hf(LAYERED),
            layer_type=layer_type,
        )
        for case, layer_type in {
            "missing": None,
            "unknown": "global",
            "of_none": "none",
            "number": 0,
        }.items()
    ),
    bad(
        "RopeConfig.from_hf",
        "superfluous",
        ValueError,
        "`layer_type` must be None, since all layers have one set of rope parameters, "
        "got 'full_attention'.",
        layer_type="full_attention",
    ),
    *(
        bad(
            "RopeConfig.from_hf",
            f"no_head_dim_{width}_{heads}",
            ValueError,
            "`head_dim`, or `hidden_size` and `num_attention_heads`, must be given, "
            f"got None, {width} and {heads}.",
            config=HF | {"hidden_size": width, "num_attention_heads": heads},
        )
        for width, heads in ((None, None), (None, 8), (64, None))
    ),
    *(
        bad(
            "RopeConfig.from_hf",
            f"{name}_{came}",
            TypeError,
            f"`{name}` must be an int, got {came}.",
            config=given | {name: value},
        )
        for name, given in (
            ("head_dim", HF),
            ("hidden_size", HF),
            ("num_attention_heads", HF),
            ("max_position_embeddings", hf(LEAST["dynamic"])),
            (TRAINED, hf(LEAST["yarn"])),
            ("qk_rope_head_dim", HF),
            ("memory_attention_hidden_size", HF),
        )
        for came, value in {"str": "8", "float": 8.0, "bool": True}.items()
    ),
    *(
        bad(
            "RopeConfig.from_hf",
            f"{name}_zero",
            ValueError,
            f"`{name}` must be at least 1, got 0.",
            config=HF | {name: 0},
        )
        # A `head_dim` of 0 is as none given, as in the models' own code.
        for name in ("hidden_size", "num_attention_heads")
    ),
    *(
        bad(
            "RopeConfig.from_hf",
            f"{kind}_without_length",
            ValueError,
            GIVEN.format("max_position_embeddings", kind, None),
            config=without(hf(LEAST[kind]), "max_position_embeddings"),
        )
        for kind in ("dynamic", "longrope")
    ),
    *(
        bad(
            "RopeConfig.from_hf",
            f"sections_{case}",
            error,
            sentence,
            config=hf(LEAST["default"] | {"mrope_section": sections} | others),
        )
        for case, error, sentence, sections, others in (
            (
                "int",
                TypeError,
                "`mrope_section` must be a tuple of ints, got int.",
                4,
                {},
            ),
            (
                "str",
                TypeError,
                "`mrope_section[0]` must be an int, got str.",
                ["2", 1, 1],
                {},
            ),
            (
                "zero",
                ValueError,
                "`mrope_section[1]` must be at least 1, got 0.",
                [2, 0, 2],
                {},
            ),
            (
                "sum",
                ValueError,
                "`mrope_section` must add up to the 4 pairs, got [2, 1, 2].",
                [2, 1, 2],
                {},
            ),
            (
                "two",
                ValueError,
                THREE.format("mrope_section", "interleaved", 2),
                [2, 2],
                {"mrope_interleaved": True},
            ),
        )
    ),
    bad(
        "RopeConfig.from_hf",
        "ernie",
        ValueError,
        EQUAL.format("mrope_section", 2, 1),
        config=hf(LEAST["default"] | {"mrope_section": [2, 1, 1]})
        | {"model_type": "ernie4_5_vl_moe"},
    ),
]

HOLD = (
    "`scaling` must be a rule that a Hugging Face configuration can hold for {} of 8 "
    "channels, got {}."
)
CODE = (
    "`model_type` must be of a model whose code has this {}, which a configuration does "
    "not hold, got {!r}."
)
OF_A_CONFIG = [
    bad(
        "RopeConfig.apply",
        "other_heads",
        ValueError,
        "`x` must have heads of 10 channels, got shape (5, 8).",
        self=config(10),
        x=floats(5, 8),
    ),
    bad(
        "RopeConfig.cos_sin",
        "no_length",
        ValueError,
        "`seq_len` must be given for DynamicNtkScaling, got None.",
        self=config(scaling=made("DynamicNtkScaling", 2.0, 4)),
    ),
    bad(
        "RopeConfig.cos_sin",
        "exact_at_an_array",
        TypeError,
        "`seq_len` must be an int for exact angles, whose frequencies are prepared on the "
        "host, got an array.",
        angles="exact",
        seq_len=ints(4),
    ),
    *(
        bad(
            "RopeConfig.apply",
            f"{argument}_{shape}",
            ValueError,
            sentence.format(shape),
            **{argument: floats(*shape)},
        )
        for argument, sentence, shapes in (
            (
                "x",
                "`x` must have heads of 8 channels, got shape {}.",
                ((2, 5, 3, 10), (2, 5, 3, 4), ()),
            ),
            (
                "cos",
                "`cos` must have 4 columns, one per pair, got shape {}.",
                ((5, 2), ()),
            ),
        )
        for shape in shapes
    ),
]
TO_HF = [
    bad(
        "RopeConfig.to_hf",
        "no_rule",
        ValueError,
        HOLD.format(8, "Scaling"),
        self=config(scaling=made("Scaling")),
    ),
    bad(
        "RopeConfig.to_hf",
        "slice",
        ValueError,
        HOLD.format(4, "ProportionalScaling"),
        self=config(rotary_dim=4, scaling=made("ProportionalScaling", 0.5)),
    ),
    *(
        bad(
            "RopeConfig.to_hf",
            case,
            ValueError,
            CODE.format(differs, model),
            self=config(**fields),
            model_type=model,
        )
        for case, differs, model, fields in (
            ("layout", "layout", None, {"layout": "interleaved"}),
            ("another_layout", "layout", "glm", {}),
            ("placement", "placement", None, {"placement": "trailing"}),
            ("direction", "inverse", None, {"inverse": True}),
            ("no_order", "axes", None, {"axes": (0, 2, 1, 0)}),
            ("too_much_width", "axes", None, {"axes": (0, 2, 1, 2)}),
            (
                "alternating",
                "progression",
                None,
                {"axes": (0, 0, 1, 1), "progression": "alternating"},
            ),
        )
    ),
]

BATCHES = (
    "`query_positions` and `key_positions` must have the same batch axes, "
    "got (2,) and (3,)."
)
LOOSE4 = {"wanted": (2, 6, 5, 7), "loose": 4}
QKV = {
    "query": "[..., q, heads, head_dim]",
    "key": "[..., k, kv_heads, head_dim]",
    "value": "[..., k, kv_heads, value_dim]",
}
DIVIDES = (
    "`key` must have a number of heads that divides that of `query`, got {} and 6."
)
WHERE = (
    "`query_positions` must be given where `key_positions` are or where there are not "
    "as many queries as keys, got None for {0} and {1}; the last of the keys are "
    "`last_positions({0}, {1})`."
)
SLOPES = (
    "`alibi_slopes` must have one slope for each of the 6 heads of `query`, "
    "got shape {}."
)
TOGETHER = (
    "`query_segment_ids` and `key_segment_ids` must be given together, got None for "
    "`{}_segment_ids`."
)
ATTEND = [
    *(
        bad(
            "alibi_bias",
            "0_axes",
            ValueError,
            f"`{side}_positions` must be [..., {side[0]}], at least 1 axes, "
            "got shape ().",
            **{f"{side}_positions": ints(3)},
        )
        for side in ("query", "key")
    ),
    *(
        bad(
            "alibi_bias",
            f"{len(shape)}_axes",
            ValueError,
            f"`slopes` must be [heads], got shape {shape}.",
            slopes=floats(*shape),
        )
        for shape in ((), (1, 3))
    ),
    bad(
        "alibi_bias",
        "batches",
        ValueError,
        BATCHES,
        query_positions=ints([[0, 1]] * 2),
        key_positions=ints([[0, 1]] * 3),
    ),
    *(
        bad(
            function,
            "2_axes",
            ValueError,
            f"`{name}` must be {axes}, at least 3 axes, got shape (5, 8).",
            **{name: floats(5, 8)},
        )
        for function in (SDPA, ALIBI_SDPA)
        for name, axes in QKV.items()
    ),
    *(
        bad(
            SDPA,
            "dtype",
            TypeError,
            f"`{name}` must have the dtype of `query`, got bfloat16 and float32.",
            **{name: heads(2, 7, 3, 8, dtype="bfloat16")},
        )
        for name in ("key", "value")
    ),
    *(
        bad(
            SDPA,
            f"heads_{n}",
            ValueError,
            DIVIDES.format(n),
            key=heads(2, 7, n, 8),
            value=heads(2, 7, n, 4),
        )
        for n in (0, 4, 12)
    ),
    *(
        unfit(SDPA, case, "key", (2, 7, 3, 8), shape, key=heads(*shape))
        for case, shape in {
            "head_dim": (2, 7, 3, 6),
            "batch_1": (1, 7, 3, 8),
            "no_batch": (7, 3, 8),
        }.items()
    ),
    *(
        unfit(SDPA, case, "value", (2, 7, 3, shape[-1]), shape, value=heads(*shape))
        for case, shape in {
            "seq": (2, 6, 3, 4),
            "heads": (2, 7, 6, 4),
            "batch": (3, 7, 3, 4),
            "no_batch": (7, 3, 4),
        }.items()
    ),
    bad(
        SDPA,
        "empty",
        ValueError,
        "`query` must have a `head_dim` of at least 1, got 0.",
        query=heads(2, 5, 6, 0),
        key=heads(2, 7, 3, 0),
        scale=None,
    ),
    *(
        unfit(SDPA, case, name, came=shape, **LOOSE4, **{name: make(*shape)})
        for name, make in (("bias", floats), ("mask", bools))
        for case, shape in {
            "keys": (5, 6),
            "queries": (4, 7),
            "heads": (3, 5, 7),
            "batch": (3, 1, 5, 7),
            "more_axes": (1, 2, 6, 5, 7),
        }.items()
    ),
    *(
        bad(SDPA, case, ValueError, SLOPES.format(shape), alibi_slopes=floats(*shape))
        for case, shape in {
            "short": (5,),
            "key_heads": (3,),
            "one": (1,),
            "0_axes": (),
            "2_axes": (1, 6),
        }.items()
    ),
    bad(ALIBI_SDPA, "short", ValueError, SLOPES.format((5,)), alibi=module(floats(5))),
    bad(
        ALIBI_SDPA,
        "kind",
        ValueError,
        f"`alibi_kind` must be one of {KINDS}, got 'causal'.",
        alibi=module(floats(6), "causal"),
    ),
    *(
        bad(
            ALIBI_SDPA,
            type(value).__name__,
            TypeError,
            f"`alibi` must have `slopes` and `kind`, as `AlibiPositionEmbedding` does, "
            f"got {type(value).__name__}.",
            alibi=value,
        )
        for value in (None, [0.5], 8)
    ),
    bad(
        ALIBI_SDPA,
        "more_queries",
        ValueError,
        "`key_len` must be at least 5, got 3.",
        key=heads(2, 3, 3, 8),
        value=heads(2, 3, 3, 4),
        query_positions=None,
        key_positions=None,
    ),
    bad(ALIBI_SDPA, "none", ValueError, WHERE.format(5, 7), query_positions=None),
    *(
        unfit(
            SDPA,
            case,
            f"{side}_{kind}",
            (2, n),
            np.shape(values),
            loose=1,
            **{f"{side}_{kind}": ints(values)},
        )
        for kind in ("positions", "segment_ids")
        for side, n in (("query", 5), ("key", 7))
        for case, values in {
            "one": [3],
            "scalar": 3,
            "short": [0, 1, 2],
            "batch_3": np.zeros((3, n), int),
            "more_axes": np.zeros((1, 2, n), int),
        }.items()
    ),
    *(
        unfit(SDPA, "int", f"{side}_positions", (2, n), (4,), loose=1, **changes)
        for side, n, changes in (
            ("query", 5, {"query_positions": 4}),
            ("key", 7, {"key_positions": 4}),
        )
    ),
    bad(SDPA, "none", ValueError, WHERE.format(5, 7), query_positions=None),
    bad(
        SDPA,
        "none_without_keys",
        ValueError,
        WHERE.format(5, 7),
        query_positions=None,
        key_positions=None,
    ),
    bad(
        SDPA,
        "needed_by_nothing",
        ValueError,
        WHERE.format(5, 7),
        query_positions=None,
        is_causal=False,
        alibi_slopes=None,
        sliding_window=None,
    ),
    *(
        bad(SDPA, f"none_for_{side}", ValueError, TOGETHER.format(side), **changes)
        for side, changes in (
            ("query", {"query_segment_ids": None}),
            ("key", {"key_segment_ids": None}),
        )
    ),
    *(
        bad(
            SDPA,
            came,
            TypeError,
            f"`{side}_segment_ids` must be {INTEGERS}, got {came}.",
            **{f"{side}_segment_ids": value},
        )
        for side in ("query", "key")
        for came, value in {
            "int": 5,
            "list": [0, 1],
            "float32": floats(5),
            "bfloat16": floats(5, dtype="bfloat16"),
        }.items()
    ),
    *(
        bad(
            SDPA,
            case,
            ValueError,
            r"`implementation` must be one of None, 'reference'.*, got "
            + re.escape(f"{value!r}."),
            implementation=value,
        )
        for case, value in NOT_A_CHOICE.items()
        if value is not None
    ),
]

EACH_AXIS = COORDINATES[SINUSOIDAL] | {"axes": (1, 0)}
AS_MANY = "`base` must be a number or 2 of them, one for each axis, got {}."
FREQUENCIES = "`base` and `angle_scale` must give finite frequencies, got {} and {}."
SINUSOIDS = [
    *(
        bad(
            SINUSOIDAL, f"bases_{len(bases)}", ValueError, AS_MANY.format(len(bases)),
            base=bases, **EACH_AXIS,
        )
        for bases in ((), [100.0], (100.0, 20.0, 20.0))
    ),
    *(
        bad(
            SINUSOIDAL, f"bases_of_{came}", TypeError,
            f"`base[1]` must be a number, got {came}.",
            base=(100.0, value), **EACH_AXIS,
        )
        for came, value in REFUSED[NUMBER].items()
        if not isinstance(value, Make)
    ),
    *(
        bad(
            SINUSOIDAL, f"bases_of_{case}", ValueError,
            f"`base[1]` must be positive and finite, got {value}.",
            base=[100.0, value], **EACH_AXIS,
        )
        for case, value in NOT_POSITIVE.items()
    ),
    bad(
        SINUSOIDAL, "bases_without_axes", TypeError,
        "`base` must be a number, got tuple.", base=(100.0, 20.0),
    ),
    *(
        bad(
            SINUSOIDAL, f"{case}_{angles}", ValueError,
            FREQUENCIES.format(base, scale),
            base=base, angle_scale=scale, spacing=spacing, angles=angles,
        )
        for angles in ("float32", "exact")
        for case, base, scale, spacing in (
            ("tiny_base", 1e-300, 1.0, "dim"),
            # A power of it is more than any float.
            ("least_base", 5e-324, 1.0, "endpoint"),
            ("large_scale", 1e4, 2.0**127, "dim"),
            ("both", 1e-30, 1e30, "half"),
        )
    ),
    bad(
        SINUSOIDAL, "tiny_base_of_an_axis", ValueError, FREQUENCIES.format(1e-300, 1.0),
        base=(1e4, 1e-300), **EACH_AXIS,
    ),
    *(
        bad(
            SINUSOIDAL, f"amplitude_{value}", ValueError,
            f"`amplitude` must be one of 'rsqrt_dim', got {value!r}.", amplitude=value,
        )
        for value in ("", "1", "sqrt_dim")
    ),
    bad(
        SINUSOIDAL, "not_a_multiple", ValueError,
        "`dim` must be a multiple of 3, the axes, got 8.",
        axes=(0, 1, 0), **COORDINATES[SINUSOIDAL],
    ),
    *(
        bad(
            SINUSOIDAL, f"least_{spacing}", ValueError,
            f"`dim` must be at least {least}, got {least - 1}.",
            dim=least - 1, spacing=spacing, **EACH_AXIS,
        )
        for spacing, least in (("dim", 2), ("half", 4), ("endpoint", 4))
    ),
    *(
        bad(
            SINUSOIDAL, f"padding_{case}", ValueError,
            f"`padding_idx` must be None where there are `axes`, got {idx}.",
            **EACH_AXIS, **changes,
        )
        for case, idx, changes in (
            ("given", 0, {"padding_idx": 0}),
            ("of_a_preset", 1, {"preset": "fairseq"}),
        )
    ),
    *(
        bad(
            FOURIER, f"shape_{shape}", ValueError,
            f"`frequencies` must be [axes, n], got shape {shape}.",
            frequencies=floats(*shape),
        )
        for shape in ((), (4,), (0, 4), (1, 2, 4))
    ),
]  # fmt: skip

MULTIPLE = "`length` must be a multiple of {} for {} {} shards, got {}."
NO_SHARD = "`shard` must be in 0..1, got {} to {}."
PLACES = [
    *(
        bad(
            function, f"{len(shape)}_axes", ValueError,
            f"`{name}` must be {axes}, at least {least} axes, got shape {shape}.",
            **{name: make},
        )
        for function, name, axes, least, shape, make in (
            (MASK, "mask", "[..., seq]", 1, (), bools()),
            (SEGMENTS, "segment_ids", "[..., seq]", 1, (), ints(3)),
            (GRID_MASK, "mask", "[..., height, width]", 2, (), bools()),
            (GRID_MASK, "mask", "[..., height, width]", 2, (4,), bools(4)),
        )
    ),
    *(
        bad(
            MASK, f"start_{start}", ValueError,
            f"`start` must leave room for 5 positions in int32, got {start}.",
            start=start,
        )
        for start in (2**31 - 4, 2**31 - 1)
    ),
    *(
        bad(
            SEGMENTS, came, TypeError,
            f"`segment_ids` must be {INTEGERS}, got {came}.", segment_ids=value,
        )
        for came, value in {
            "int": 5, "list": [0, 1], "NoneType": None, "float32": floats(5),
        }.items()
    ),
    *(
        bad(
            SHARD, f"{length}_{order}", ValueError,
            MULTIPLE.format(chunks, 2, order, length), length=length, order=order,
        )
        for length, order, chunks in (
            (7, "contiguous", 2), (6, "zigzag", 4), (1, "zigzag", 4),
        )
    ),
    *(
        bad(
            SHARD, f"int_{shard}", ValueError, NO_SHARD.format(shard, shard),
            shard=shard,
        )
        for shard in (-1, 2, 2**31, 10**400)
    ),
    *(
        Row(
            SHARD, f"array_{low}_{high}", ValueError, NO_SHARD.format(low, high),
            {"shard": ints([[0, low], [high, 1]], "int8")}, looks_at_values=True,
        )
        for low, high in ((0, 2), (-1, 1), (-128, 127))
    ),
]  # fmt: skip

NO_ROW = "`{}` must be in 0..{}, the rows, got {}."
BESIDE = "the rows beside the prefix"
LEARNT = [
    *(
        bad(
            f, f"no_row_{row}", ValueError, NO_ROW.format(name, last, row),
            **{name: row},
        )
        for f, name, last in ((LEARNED, "padding_idx", 6), (INIT, "padding_idx", 4))
        for row in (last + 1, 2**31, 10**400)
    ),
    *(
        bad(
            INIT, preset, ValueError,
            f"`preset` must be one of {', '.join(map(repr, LINE_NAMES))}, got {preset!r}.",
            preset=preset,
        )
        for preset in ("timm", "detr", "mae")
    ),
    *(
        bad(
            AXIAL, came, TypeError,
            f"`tables` must be a list of arrays, one for each axis, got {came}.",
            tables=value,
        )
        for came, value in {
            "float32": floats(3, 8), "NoneType": None, "dict": {}, "str": "",
        }.items()
    ),
    *(
        bad(
            AXIAL, f"none_{type(none).__name__}", ValueError,
            f"`tables` must have an array for each axis, got {none}.", tables=none,
        )
        for none in ([], ())
    ),
    *(
        bad(
            AXIAL, f"of_{came}", TypeError,
            f"`tables[0]` must be {FLOATING}, got {came}.", tables=value,
        )
        for came, value in {
            "list": [[1.0]], "NoneType": (None,),
            "int32": tables((3, 8), dtype="int32"),
        }.items()
    ),
    *(
        bad(
            AXIAL, f"shape_{shape}", ValueError,
            "`tables[1]` must be [max_len, dim] with at least one row, "
            f"got shape {shape}.",
            tables=tables((3, 8), shape),
        )
        for shape in ((), (8,), (1, 4, 8), (0, 8))
    ),
    bad(
        AXIAL, "dtypes", ValueError,
        "`tables` must have one dtype, got float32 and bfloat16.",
        tables=Make(
            lambda fw: [
                floats(4, 8, dtype=name).make(fw) for name in ("float32", "bfloat16")
            ],
            "two dtypes",
        ),
    ),
    bad(
        AXIAL, "columns", ValueError,
        "`tables` must have as many columns each for 'sum', got [8, 6].",
        tables=tables((3, 8), (4, 6)), combine="sum",
    ),
    *(
        Row(
            AXIAL, case, ValueError,
            f"`positions` must be in 0..{last}, the rows of `{of}`, "
            f"got {low} to {high}.",
            {"positions": points(*at)}, looks_at_values=True,
        )
        for case, at, of, last, low, high in (
            ("first_above", ([0, 0], [3, 0]), "tables[0]", 2, 0, 3),
            ("last_above", ([0, 4], [2, 0]), "tables[1]", 3, 0, 4),
            ("last_below", ([0, 0], [0, -1]), "tables[1]", 3, -1, 0),
        )
    ),
    *(
        bad(
            RESIZE, f"shape_{shape}", ValueError,
            f"`table` must be [max_len, dim] with at least one row, got shape {shape}.",
            table=floats(*shape),
        )
        for shape in ((), (9,), (1, 9, 8), (0, 8))
    ),
    *(
        bad(
            RESIZE, f"{name}_none_{type(none).__name__}", ValueError,
            f"`{name}` must have an int for each axis, got {none}.", **{name: none},
        )
        for name in ("length_or_grid", "old_grid")
        for none in ([], ())
    ),
    *(
        bad(
            RESIZE, f"prefix_{n}", ValueError,
            f"`num_prefix` must leave at least one row of `table`, got {9 - n} left.",
            num_prefix=n,
        )
        for n in (9, 10)
    ),
    *(
        bad(
            RESIZE, case, ValueError,
            f"`old_grid` must be given where {BESIDE} are no square, got {rows} rows.",
            **changes,
        )
        for case, rows, changes in (
            ("no_square", 8, {"length_or_grid": (2, 2), "num_prefix": 1}),
            ("no_cube", 9, {"length_or_grid": (2, 2, 2)}),
        )
    ),
    *(
        bad(
            RESIZE, f"old_{old}", ValueError,
            f"`old_grid` must be {axes} sizes whose product is 9, {BESIDE}, got {came}.",
            old_grid=old, length_or_grid=new,
        )
        for old, came, axes, new in (
            (8, (8,), 1, 5), ([3, 3], (3, 3), 1, 5),
            ((2, 4), (2, 4), 2, (2, 2)), (9, (9,), 2, (2, 2)),
        )
    ),
    *(
        bad(
            RESIZE, f"factors_{len(factors)}", ValueError,
            f"`scale_factor` must be a number or 2 of them, got {len(factors)}.",
            scale_factor=factors, length_or_grid=(3, 3),
        )
        for factors in ((), [1.0], (1.0, 1.0, 1.0))
    ),
    *(
        bad(
            RESIZE, f"factors_of_{came}", error, sentence,
            scale_factor=(1.0, value), length_or_grid=(3, 3),
        )
        for error, sentence, came, value in (
            *(
                (TypeError, f"`scale_factor[1]` must be a number, got {came}.", came, v)
                for came, v in REFUSED[NUMBER].items() if not isinstance(v, Make)
            ),
            *(
                (
                    ValueError,
                    f"`scale_factor[1]` must be positive and finite, got {v}.", case, v,
                )
                for case, v in NOT_POSITIVE.items()
            ),
        )
    ),
    *(
        bad(
            RESIZE, f"factor_{factor}_of_{new}", ValueError,
            f"`scale_factor` must be less than one row above {new} / 9, or half a row "
            f"below, got {factor}.",
            scale_factor=factor, length_or_grid=new, antialias=True,
        )
        for new, factor in (
            (5, 6 / 9), (5, 4.4 / 9), (5, 1.0), (5, 1e300),
            # With one row anything is less than a row away, and its kernel might be as wide as it likes.
            (1, 1e-12), (1, 5e-324),
        )
    ),
    *(
        bad(
            RESIZE, f"corners_and_{name}", ValueError,
            f"`align_corners` must be False where there is `{name}`, got True.",
            align_corners=True, **{name: value},
        )
        for name, value in {"antialias": True, "scale_factor": 5 / 9}.items()
    ),
]  # fmt: skip

SAME_COORDINATES = (
    "`query_positions` and `key_positions` must have the same coordinates, one or "
    "more, got {} and {}."
)
BIASES = [
    *(
        bad(
            "alibi_slopes", f"biased_{n}", ValueError,
            f"`num_biased` must be at most 6, `num_heads`, got {n}.", num_biased=n,
        )
        for n in (7, 10**400)
    ),
    *(
        bad(
            "alibi_bias", f"{kind}_{side}_int", ValueError,
            f"`{side}_positions` must be [..., {side[0]}, axes], at least 2 axes, "
            "got shape (5,).",
            kind=kind, **{
                name: 5 if name == f"{side}_positions" else points([0, 1], [2, 3])
                for name in ("query_positions", "key_positions")
            },
        )
        for kind in ("manhattan", "euclidean")
        for side in ("query", "key")
    ),
    *(
        bad(
            "alibi_bias", f"{kind}_{len(query[0])}_{len(key[0])}", ValueError,
            SAME_COORDINATES.format(len(query[0]), len(key[0])),
            kind=kind, query_positions=points(*query), key_positions=points(*key),
        )
        for kind in ("manhattan", "euclidean")
        for query, key in (
            ([[0, 1]], [[0, 1, 2]]), ([[0], [1]], [[0, 1]]), ([[], []], [[], []]),
        )
    ),
    *(
        bad(
            "alibi_bias", f"{kind}_batches", ValueError, BATCHES, kind=kind,
            query_positions=ints(np.ones((2, 4, 2), int)),
            key_positions=ints(np.ones((3, 4, 2), int)),
        )
        for kind in ("manhattan", "euclidean")
    ),
]  # fmt: skip

ROWS = [
    *wrong_types(),
    *wrong_numbers(),
    *wrong_factors(),
    *wrong_static_numbers(),
    *wrong_choices(),
    *wrong_dtypes(),
    *SIZES,
    *ROPE,
    *LENGTHS,
    *RULES,
    *AXES,
    *FROM_HF,
    *OF_A_CONFIG,
    *TO_HF,
    *XPOS,
    *TABLES,
    *ATTEND,
    *SINUSOIDS,
    *PLACES,
    *LEARNT,
    *BIASES,
]


def raised(fw: Framework, row: Row) -> Exception | None:
    return watched(fw, row)[0]


def watched(fw: Framework, row: Row) -> tuple[Exception | None, set[str]]:
    """What a call raises, and the arithmetic it does before."""
    call, given = bound(fw, row.function), prepared(fw, row.function, row.changes)
    error = None
    with watching(fw) as seen:
        try:
            call(**given)
        except Exception as caught:
            error = caught
    return error, seen


def alike(sentence: str) -> str:
    """A sentence with the sizes of a shape, and the names of its axes, in one order."""

    def in_order(found: re.Match[str]) -> str:
        return found[1] + ", ".join(sorted(found[2].split(", "))) + found[3]

    return re.sub(r"([\[(])([^\[\]()]*, [^\[\]()]*)([\])])", in_order, sentence)


def matches(row: Row, error: Exception) -> bool:
    """The whole sentence; a row with `.*` leaves room for choices yet to come."""
    exact = ".*" not in row.sentence
    pattern = re.escape(alike(row.sentence)) if exact else row.sentence
    return re.fullmatch(pattern, alike(str(error))) is not None


def test_rows_have_distinct_ids():
    ids = [row.id for row in ROWS]
    assert sorted(set(ids)) == sorted(ids)
    assert len(ids) > 300


@pytest.mark.parametrize("fw", FRAMEWORKS, ids=lambda fw: fw.name)
@pytest.mark.parametrize("function", CALLS)
def test_valid_call_raises_nothing(function, fw):
    bound(fw, function)(**prepared(fw, function, {}))


def test_valid_calls_cover_the_public_surface():
    """Every name that both packages have, and every method of every class; test_sharding.py has the ring's errors."""
    names = set(posenc_jax.__all__) & set(posenc_torch.__all__)
    for name in posenc_jax.__all__:
        members = vars(getattr(posenc_jax, name)) if name[0].isupper() else {}
        names |= {
            f"{name}.{member}"
            for member, value in members.items()
            if not member.startswith("_")
            and isinstance(value, (FunctionType, classmethod))
        }
    assert set(CALLS) == names


@pytest.mark.parametrize("fw", FRAMEWORKS, ids=lambda fw: fw.name)
@pytest.mark.parametrize("function", CALLS)
def test_rows_cover_every_argument(function, fw):
    parameters = set(inspect.signature(bound(fw, function)).parameters)
    covered = {a for row in ROWS if row.function == function for a in row.changes}
    elsewhere = {a for f, a in CHECKED_BY_FRAMEWORK if f == function}
    assert parameters - elsewhere <= covered


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_error_is_one_sentence_everywhere_and_comes_before_arithmetic(row):
    """In both packages, and under jit where it does not look at values."""
    for fw in FRAMEWORKS:
        error, seen = watched(fw, row)
        assert type(error) is row.error, repr(error)
        assert matches(row, error), error
        assert seen == set(), fw.name
    if not row.looks_at_values:
        traced, arrays = apart(row.function, row.changes)
        with pytest.raises(row.error) as caught:
            jax.eval_shape(traced, arrays)
        assert matches(row, caught.value), caught.value


# ------------------------------------------------------------- before any arithmetic

# What a check may do: make positions of an int, convert, view, and look at the ends of
# the positions of a learned table.
LOOKING = {
    "_local_scalar_dense",
    "_to_copy",
    "alias",
    "aminmax",
    "arange",
    "clone",
    "detach",
    "expand",
    "lift_fresh",
    "max",
    "min",
    "select",
    "slice",
    "transpose",
    "unsqueeze",
    "view",
}


class Watch(TorchDispatchMode):
    """Collects the names of torch's operations but those of LOOKING."""

    def __init__(self, seen: set[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.update({func.overloadpacket.__name__} - LOOKING)
        return func(*args, **(kwargs or {}))


WATCHED = ("abs", "cos", "einsum", "exp", "logical_and", "matmul", "sin", "tanh")


@contextlib.contextmanager
def watching(fw: Framework) -> Iterator[set[str]]:
    """JAX has no watch of its own, so its functions are replaced by ones that tell."""
    seen: set[str] = set()
    if fw.is_torch:
        with Watch(seen):
            yield seen
        return
    with pytest.MonkeyPatch.context() as patch:
        for name in WATCHED:
            patch.setattr(jnp, name, told(seen, name, getattr(jnp, name)))
        yield seen


def told(seen: set[str], name: str, real: Callable) -> Callable:
    def telling(*args: Any, **kwargs: Any) -> Any:
        seen.add(name)
        return real(*args, **kwargs)

    return telling


ARITHMETIC = {
    "alibi_bias": "abs",
    "dot_product_attention": "tanh",
    "rope_cos_sin": "cos",
}


@pytest.mark.parametrize("fw", FRAMEWORKS, ids=lambda fw: fw.name)
@pytest.mark.parametrize("function", ARITHMETIC)
def test_watch_sees_arithmetic(function, fw):
    given = prepared(fw, function, {})
    with watching(fw) as seen:
        bound(fw, function)(**given)
    assert ARITHMETIC[function] in seen


# -------------------------------------------------------------- completeness, by AST

FOLDERS = {fw.name: Path(fw.package.__file__).parent for fw in FRAMEWORKS}
SOURCES = {
    f"{name}/{path.relative_to(folder).with_suffix('')}": path
    for name, folder in FOLDERS.items()
    for path in sorted(folder.rglob("*.py"))
}
# What is in one package alone, and the modules, have test files of their own.
TWINS = [
    f"{name}/{path.name}"
    for name, folder in FOLDERS.items()
    for path in sorted(file.with_suffix("") for file in folder.glob("*.py"))
    if path.name != "_modules"
    and {f"{other}/{path.name}" for other in FOLDERS} <= set(SOURCES)
]


def nodes(path: Path, kind: type[ast.AST]) -> list[Any]:
    tree = ast.parse(path.read_text("utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, kind)]


@pytest.mark.parametrize("source", SOURCES)
def test_source_never_asserts(source):
    assert nodes(SOURCES[source], ast.Assert) == []


@pytest.mark.parametrize("source", TWINS)
def test_source_raises_only_value_and_type_errors(source):
    names = {ast.unparse(node.exc.func) for node in nodes(SOURCES[source], ast.Raise)}
    assert names <= {"ValueError", "TypeError"}


@pytest.mark.parametrize("source", TWINS)
def test_source_catches_only_type_errors(source):
    """But that torch has no other sign of a tensor whose values cannot be seen than the error it raises."""
    caught = nodes(SOURCES[source], ast.ExceptHandler)
    names = {ast.unparse(n.type) if n.type else "" for n in caught}
    looking = ("torch/learned", "torch/_checks")
    unseen = {"RuntimeError"} if source in looking else set()
    assert names <= {"TypeError"} | unseen


def places(fw: Framework, rows: Sequence[Row]) -> set[tuple[str, int]]:
    errors = (raised(fw, row) for row in rows)
    frames = [traceback.extract_tb(e.__traceback__)[-1] for e in errors if e]
    return {(frame.filename, frame.lineno or 0) for frame in frames}


@pytest.fixture(scope="module")
def reached() -> set[tuple[str, int]]:
    """Where each row of the tables, one-sided ones too, is raised."""
    with jax.enable_x64(True):
        found = places(JAX, X64_ON) | places(TORCH, X64_ON)
    with jax.enable_x64(False):
        found |= places(JAX, [*ROWS, *X64_OFF]) | places(TORCH, [*ROWS, *TORCH_ONLY])
    with pytest.raises(TypeError, match="must be a constant") as error:
        jax.jit(lambda inv_freq: posenc_jax.rope_cos_sin(4, inv_freq, angles="exact"))(
            np.ones(4, np.float32)
        )
    last = traceback.extract_tb(error.value.__traceback__)[-1]
    return found | {(last.filename, last.lineno or 0)}


@pytest.mark.parametrize("source", TWINS)
def test_rows_reach_every_raise(source, reached):
    lines = {line for file, line in reached if file == str(SOURCES[source])}
    missed = {
        node.lineno: ast.unparse(node)
        for node in nodes(SOURCES[source], ast.Raise)
        if lines.isdisjoint(range(node.lineno, node.end_lineno + 1))
    }
    assert missed == {}


# ------------------------------------------------------------------------ one-sided

NEEDS_X64 = "`dtype` float64 needs `jax_enable_x64`, which is off."
BIG = 2**31
X64_ON = [
    *(
        bad(
            function,
            f"exact_{case}",
            ValueError,
            f"`positions` must fit int32 for exact angles, got {low} to {high}.",
            angles="exact",
            positions=ints([low, 0, high], "int64"),
        )
        for function in ("rope_cos_sin", "sinusoidal_position_encoding")
        for case, low, high in (("above", 0, BIG), ("below", -BIG - 1, 0))
    ),
    *(
        bad(
            function,
            "exact_float64",
            ValueError,
            "`dtype` must be float32 for exact angles, got float64.",
            angles="exact",
            dtype=dtype("float64"),
        )
        for function in ("rope_cos_sin", "sinusoidal_position_encoding")
    ),
]
X64_OFF = [
    *(
        bad(function, "float64", ValueError, NEEDS_X64, dtype=dtype("float64"))
        for function in ("rope_cos_sin", SINUSOIDAL, "xpos_scale", GRID_MASK)
    ),
    bad(
        "init_position_table",
        "float64",
        ValueError,
        NEEDS_X64,
        dtype=dtype("float64"),
    ),
    bad(
        "RopeConfig.inv_freq",
        "float64",
        ValueError,
        NEEDS_X64,
        self=config(scaling=DYNAMIC),
        seq_len=ints(11),
        dtype=dtype("float64"),
    ),
    *(
        bad(
            function,
            case,
            ValueError,
            f"`{argument}` must fit int32 while `jax_enable_x64` is off, "
            f"got {low} to {high}.",
            **{argument: np.array([low, 0, high])},
        )
        for case, low, high in (("above", 0, BIG), ("below", -BIG - 1, 0))
        for function, argument in (
            ("rope_cos_sin", "positions"),
            ("sinusoidal_position_encoding", "positions"),
            ("learned_position_encoding", "positions"),
            ("position_range", "offset"),
            ("alibi_bias", "query_positions"),
            ("alibi_bias", "key_positions"),
            ("xpos_scale", "positions"),
            (SDPA, "query_segment_ids"),
            (SEGMENTS, "segment_ids"),
        )
    ),
    *(
        bad(
            "position_range",
            case,
            ValueError,
            f"`offset` must fit int32 while `jax_enable_x64` is off, "
            f"got {offset} to {offset + 4}.",
            offset=offset,
        )
        for case, offset in (
            ("int_above", BIG),
            ("int_last_above", BIG - 4),
            ("int_far", 2**40),
            ("int_below", -BIG - 1),
        )
    ),
    bad(
        "xpos_scale",
        "int_above",
        ValueError,
        f"`center` must fit int32 while `jax_enable_x64` is off, got {BIG} to {BIG}.",
        center=BIG,
    ),
]
# JAX takes NumPy arrays as host constants; torch takes them only as tables.
NUMPY = np.ones((2, 5, 3, 8), np.float32)
TORCH_ONLY = [
    bad(
        "rope_cos_sin",
        "learnt",
        TypeError,
        "`inv_freq` must be a constant for exact angles, got one that requires a gradient.",
        inv_freq=Make(lambda fw: torch.ones(4, requires_grad=True), "learnt"),
        angles="exact",
    ),
    bad(
        "apply_rope",
        "numpy",
        TypeError,
        f"`x` must be {FLOATING}, got ndarray.",
        x=NUMPY,
    ),
    bad(
        "rope_cos_sin",
        "numpy",
        TypeError,
        f"`positions` must be {POSITIONS}, got ndarray.",
        positions=np.arange(5),
    ),
    *(
        bad(
            "rope_cos_sin",
            f"numpy_{name}",
            TypeError,
            f"`inv_freq` must be {TABLE}, got {name}.",
            inv_freq=np.ones(4, name),
        )
        for name in ("float16", "int64")
    ),
    bad(
        "rope_cos_sin",
        "name_of_dtype",
        TypeError,
        "`dtype` must be float32 or float64, got 'float32'.",
        dtype="float32",
    ),
]


@pytest.mark.parametrize("row", X64_ON, ids=lambda row: row.id)
def test_error_is_one_sentence_in_both_with_x64(row):
    with jax.enable_x64(True):
        errors = [raised(fw, row) for fw in FRAMEWORKS]
    assert [type(error) for error in errors] == [row.error] * 2
    assert all(matches(row, error) for error in errors), errors


@pytest.mark.parametrize("row", X64_OFF, ids=lambda row: row.id)
def test_jax_refuses_what_needs_x64(row):
    with jax.enable_x64(False):
        error = raised(JAX, row)
    assert type(error) is row.error, repr(error)
    assert str(error) == row.sentence


@pytest.mark.parametrize("row", X64_OFF, ids=lambda row: row.id)
def test_jax_allows_it_under_x64(row):
    in_range = {"out_of_range": "clip"} if "learned" in row.function else {}
    ids = {"key_segment_ids": np.arange(7)} if row.function == SDPA else {}
    unfit_ids = {"query_segment_ids": np.arange(5) + BIG} if ids else {}
    with jax.enable_x64(True):
        changes = row.changes | in_range | ids | unfit_ids
        traced, arrays = apart(row.function, changes)
        jax.eval_shape(traced, arrays)


@pytest.mark.parametrize("row", TORCH_ONLY, ids=lambda row: row.id)
def test_torch_refuses_numpy_where_no_table_is_asked(row):
    error = raised(TORCH, row)
    assert type(error) is row.error, repr(error)
    assert str(error) == row.sentence


@pytest.mark.parametrize(
    ("fw", "other"),
    [(TORCH, JAX), (JAX, TORCH)],
    ids=["torch_given_jax", "jax_given_torch"],
)
def test_array_of_the_other_framework_is_refused(fw, other):
    given = prepared(fw, "apply_rope", {})
    given["x"] = CALLS["apply_rope"]["x"].make(other)
    came = type(given["x"]).__name__
    with pytest.raises(TypeError, match=f"^`x` must be {FLOATING}, got {came}\\.$"):
        fw.package.apply_rope(**given)


# ------------------------------------------------------- looks bad and must not raise


@dataclass(frozen=True)
class Edge:
    function: str
    case: str
    tolerance: str
    changes: dict[str, Any] = field(hash=False)

    @property
    def id(self) -> str:
        return f"{self.function}-{self.case}"


def edge(function: str, case: str, tolerance: str, **changes: Any) -> Edge:
    return Edge(function, case, tolerance, changes)


PLAIN = {
    name: None
    for name in (
        *("bias", "mask", "scale", "alibi_slopes", "query_positions", "key_positions"),
        *("query_segment_ids", "key_segment_ids", "sliding_window", "logit_softcap"),
    )
} | {"is_causal": False}
ONE_KEY = {"key": heads(2, 1, 3, 8), "value": heads(2, 1, 3, 4)}
SAME_LENGTH = {"key": heads(2, 5, 3, 8), "value": heads(2, 5, 3, 4)}

EDGES = [
    edge("apply_rope", "empty_batch", "exact", x=heads(0, 5, 3, 8)),
    edge("apply_rope", "seq_0", "exact", x=heads(2, 0, 3, 8), **both(0, 4)),
    edge("apply_rope", "no_heads", "exact", x=heads(2, 5, 0, 8)),
    edge("apply_rope", "no_batch", "rotation", x=heads(5, 3, 8)),
    edge("apply_rope", "one_head", "rotation", x=heads(2, 5, 1, 8)),
    edge("apply_rope", "head_dim_2", "rotation", x=heads(2, 5, 3, 2), **both(5, 1)),
    edge("apply_rope", "odd_head_dim", "rotation", x=heads(2, 5, 3, 9)),
    edge(
        "apply_rope",
        "one_pair_trailing",
        "rotation",
        placement="trailing",
        **both(5, 1),
    ),
    edge("apply_rope", "batch_of_tables_1", "rotation", **both(1, 5, 4)),
    edge(
        "apply_rope",
        "two_batches",
        "rotation",
        x=heads(2, 4, 5, 3, 8),
        layout="interleaved",
        **both(2, 1, 5, 4),
    ),
    edge("apply_rope", "bfloat16_x", "exact", x=heads(2, 5, 3, 8, dtype="bfloat16")),
    edge(
        "apply_rope",
        "float16_tables",
        "rotation",
        cos=floats(5, 4, dtype="float16"),
        sin=floats(5, 4, dtype="bfloat16"),
    ),
    *(
        edge(
            "apply_rope",
            f"interleaved_to_half_{case}",
            "rotation",
            layout="interleaved_to_half",
            **changes,
        )
        for case, changes in {
            "whole": {},
            "inverse": {"inverse": True},
            "one_pair": both(5, 1),
            "odd_trailing": {"x": heads(2, 5, 3, 9), "placement": "trailing"},
            "seq_0": {"x": heads(2, 0, 3, 8), **both(0, 4)},
        }.items()
    ),
    edge(ROTARY, "one_key_head", "rotation", k=heads(2, 5, 1, 8)),
    edge("rotate_half", "vector", "exact", x=floats(2)),
    edge("rotate_half", "width_0", "exact", x=floats(3, 0)),
    edge("rotate_half", "width_0_pairs", "exact", x=floats(3, 0), layout="interleaved"),
    edge("rope_cos_sin", "seq_0", "exact", positions=0),
    edge("rope_cos_sin", "no_pairs", "exact", inv_freq=floats(0)),
    edge("rope_cos_sin", "scalar", "table", positions=ints(3)),
    edge("rope_cos_sin", "one", "table", positions=ints([3]), inv_freq=floats(1)),
    edge("rope_cos_sin", "three_axes", "table", positions=ints([[[1], [2]]])),
    edge("rope_cos_sin", "int8", "table", positions=ints([-128, 127], "int8")),
    edge("rope_cos_sin", "int16", "table", positions=ints([-9, 32767], "int16")),
    edge("rope_cos_sin", "negative", "table", positions=ints([-5, -1, 0])),
    edge("rope_cos_sin", "ends_of_int32", "table", positions=ints([-BIG, BIG - 1])),
    *(
        edge("rope_cos_sin", f"axes_{case}", "table", **changes)
        for case, changes in {
            "reals": {"positions": floats(5, 2), "axes": BETWEEN_AXES},
            "ints": {"positions": ints([[3, -4], [0, 9]]), "axes": BETWEEN_AXES},
            "int8": {"positions": ints([[3, -4]], "int8"), "axes": BETWEEN_AXES},
            "list": {"positions": ints([[3, -4]]), "axes": list(BETWEEN_AXES)},
            "one_point": {"positions": ints([3, 4]), "axes": BETWEEN_AXES},
            "no_points": {"positions": floats(0, 2), "axes": BETWEEN_AXES},
            "one_axis": {"positions": ints([[3], [4]]), "axes": (0,) * 4},
            "four_axes": {"positions": floats(2, 3, 4), "axes": (3, 1, 2, 0)},
            "exact": {
                "positions": ints([[BIG - 1, -BIG]]),
                "axes": BETWEEN_AXES,
                "angles": "exact",
                "inv_freq": np.array([1.0, 0.1, 0.01, 0.001]),
            },
        }.items()
    ),
    edge("rope_cos_sin", "factor_int", "table", attention_factor=2),
    edge("rope_cos_sin", "factor_numpy", "table", attention_factor=np.float32(1.25)),
    edge("rope_cos_sin", "factor_half", "table", attention_factor=np.float16(1.25)),
    edge("rope_cos_sin", "factor_array", "table", attention_factor=scalar(1.25)),
    edge("RopeConfig.inv_freq", "float64", "exact", dtype=np.float64),
    *(
        edge(
            f"RopeConfig.{method}",
            f"{case}_{length}",
            "exact",
            self=config(**changes),
            seq_len=length,
        )
        for case, changes in {
            "plain": {},
            "one_pair": {"rotary_dim": 2, "scaling": made(YARN, 4.0, 10)},
            "compressed": {"scaling": made("LinearScaling", 0.25)},
            "ntk": {"rotary_dim": 4, "scaling": made("NtkScaling", 0.1)},
            "ntk_huge": {"rotary_dim": 4, "scaling": made("NtkScaling", 1e300)},
            "dynamic": {"scaling": DYNAMIC},
            "dynamic_compressed": {"scaling": made("DynamicNtkScaling", 0.1, 10)},
            "longrope": {"scaling": LONG},
            "yarn_near_1": {"base": 1.0 + 1e-15, "scaling": made(YARN, 4.0, 10)},
            "yarn_no_weights": {
                "scaling": made(YARN, 4.0, 10, mscale=0, mscale_all_dim=0.0)
            },
            "still": {"scaling": made("ProportionalScaling", 0.25, 1e300)},
        }.items()
        for method in ("inv_freq", "attention_factor")
        for length in (0, 10, 11, 2**31 - 1)
    ),
    *(
        edge("xpos_scale", case, "rotation", **changes)
        for case, changes in {
            "seq_0": {"positions": 0},
            "scalar": {"positions": ints(3)},
            "negative": {"positions": ints([[-5, -1, 0]])},
            "int8": {"positions": ints([-128, 127], "int8")},
            "one_pair": {"rotary_dim": 2},
            "center": {"center": 2},
            "center_negative": {"center": -2},
            "center_array": {"center": ints(2)},
            "base_int": {"scale_base": 100},
            "base_half": {"scale_base": np.float16(100)},
        }.items()
    ),
    edge("grid_positions", "point", "exact", sizes=(1,)),
    edge("grid_positions", "four_axes", "exact", sizes=(1, 2, 3, 2)),
    edge("patch_centres", "point", "exact", sizes=(1, 1)),
    edge("mrope_axes", "five", "exact", sections=[1, 2, 1, 3, 1]),
    edge("mrope_axes", "in_turn", "exact", sections=(3, 3, 2), order="interleaved"),
    edge("yarn_mscale", "compressed", "exact", factor=0.25),
    edge("yarn_mscale", "numpy", "exact", factor=np.float16(4), mscale=np.float16(0.7)),
    edge(SINUSOIDAL, "seq_0", "exact", positions=0),
    edge(SINUSOIDAL, "dim_1", "table", dim=1),
    edge(SINUSOIDAL, "dim_2_endpoint", "table", dim=2, spacing="endpoint"),
    edge(SINUSOIDAL, "dim_3_endpoint", "table", dim=3, spacing="endpoint"),
    edge(SINUSOIDAL, "dim_7_half", "table", dim=7, layout="half"),
    edge(SINUSOIDAL, "scalar", "table", positions=ints(3)),
    edge(SINUSOIDAL, "scalar_time", "table", positions=floats()),
    edge(SINUSOIDAL, "negative_times", "table", positions=floats(2, 3)),
    edge(SINUSOIDAL, "int8", "table", positions=ints([-128, 127], "int8")),
    edge(SINUSOIDAL, "base_int", "table", base=100),
    *(
        edge(SINUSOIDAL, f"exact_{case}", "table", angles="exact", **changes)
        for case, changes in {
            "seq_0": {"positions": 0},
            "scalar": {"positions": ints(3)},
            "dim_1": {"dim": 1},
            "dim_3_endpoint": {"dim": 3, "spacing": "endpoint"},
            "ends_of_int32": {"positions": ints([-BIG, BIG - 1])},
        }.items()
    ),
    edge(SINUSOIDAL, "base_below_1", "table", base=0.5),
    edge(
        "add_position_encoding",
        "seq_0",
        "exact",
        x=floats(2, 0, 8),
        encoding=floats(0, 8),
    ),
    edge("add_position_encoding", "batch_1", "exact", encoding=floats(1, 5, 8)),
    edge("add_position_encoding", "matrix", "exact", x=floats(5, 8)),
    edge(
        "add_position_encoding",
        "bfloat16",
        "exact",
        x=floats(2, 5, 8, dtype="bfloat16"),
    ),
    edge(LEARNED, "seq_0", "exact", positions=0),
    edge(LEARNED, "empty_array", "exact", positions=ints(np.zeros((2, 0), int))),
    edge(LEARNED, "every_row", "exact", positions=7),
    edge(LEARNED, "last_row", "exact", positions=ints(6)),
    edge(LEARNED, "one_row", "exact", table=floats(1, 8), positions=1),
    edge(LEARNED, "one_row_beyond", "exact", table=floats(1, 8), out_of_range="nan"),
    edge(LEARNED, "dim_0", "exact", table=floats(7, 0)),
    edge(LEARNED, "int8", "exact", positions=ints([[6], [0]], "int8")),
    *(
        edge(
            LEARNED,
            policy,
            "exact",
            out_of_range=policy,
            positions=ints([-BIG, -8, -1, 0, 6, 7, BIG - 1]),
        )
        for policy in ("nan", "clip", "zero")
    ),
    edge(LEARNED, "bfloat16", "exact", table=floats(7, 8, dtype="bfloat16")),
    edge("alibi_slopes", "one", "exact", num_heads=1),
    edge("alibi_slopes", "many", "exact", num_heads=1000),
    edge("alibi_bias", "no_queries", "exact", query_positions=0),
    edge("alibi_bias", "no_keys", "exact", key_positions=0),
    edge("alibi_bias", "no_heads", "exact", slopes=floats(0)),
    edge("alibi_bias", "one_key_batched", "exact", query_positions=ints([[3], [5]])),
    edge(
        "alibi_bias",
        "key_batched",
        "exact",
        query_positions=ints([[3], [5]]),
        kind="key",
    ),
    edge("alibi_bias", "int8", "exact", query_positions=ints([-128, 127], "int8")),
    edge("position_range", "none", "exact", length=0),
    edge("position_range", "negative", "exact", offset=-3),
    edge("position_range", "scalar", "exact", offset=ints(3)),
    edge("position_range", "int8", "exact", offset=ints([[100], [127]], "int8")),
    edge("position_range", "last_of_int32", "exact", offset=BIG - 5),
    edge("last_positions", "none", "exact", query_len=0, key_len=0),
    edge("last_positions", "all", "exact", query_len=5),
    edge("permute_rope_weights", "vector", "exact", weight=weight(24)),
    edge("permute_rope_weights", "three_axes", "exact", weight=weight(2, 5, 24)),
    edge(
        "permute_rope_weights", "one_pair", "exact", rotary_dim=2, placement="trailing"
    ),
    edge("permute_rope_weights", "no_inputs", "exact", weight=weight(0, 24)),
    edge(SDPA, "plain", "attention", **PLAIN),
    edge(
        SDPA,
        "empty_batch",
        "exact",
        **PLAIN
        | {"query": heads(0, 5, 6, 8)}
        | {"key": heads(0, 7, 3, 8), "value": heads(0, 7, 3, 4)},
    ),
    edge(SDPA, "no_queries", "exact", **PLAIN | {"query": heads(2, 0, 6, 8)}),
    edge(SDPA, "no_heads", "exact", **PLAIN | {"query": heads(2, 5, 0, 8)}),
    edge(SDPA, "no_value_dim", "exact", **PLAIN | {"value": heads(2, 7, 3, 0)}),
    edge(SDPA, "one_key", "attention", **PLAIN | ONE_KEY),
    edge(
        SDPA,
        "no_batch",
        "attention",
        **PLAIN
        | {"query": heads(5, 6, 8)}
        | {"key": heads(7, 3, 8), "value": heads(7, 3, 4)},
    ),
    edge(
        SDPA, "same_lengths", "attention", **PLAIN | SAME_LENGTH | {"is_causal": True}
    ),
    edge(SDPA, "scalar_bias", "attention", **PLAIN | {"bias": floats()}),
    edge(SDPA, "scalar_mask", "attention", **PLAIN | {"mask": bools()}),
    edge(SDPA, "bias_of_keys", "attention", bias=floats(1, 1, 7)),
    edge(SDPA, "window_1", "attention", sliding_window=1),
    edge(SDPA, "window_huge", "attention", sliding_window=2**40),
    edge(SDPA, "scale_int", "attention", scale=1),
    edge(SDPA, "scale_numpy", "attention", scale=np.float32(0.5)),
    edge(SDPA, "scale_array", "attention", scale=scalar(0.5)),
    edge(SDPA, "softcap_array", "attention", logit_softcap=scalar(30.0)),
    edge(
        SDPA, "int8_positions", "attention", query_positions=ints(range(2, 7), "int8")
    ),
    edge(SDPA, "negative_positions", "attention", query_positions=ints(range(-5, 0))),
    edge(SDPA, "batch_1_positions", "attention", query_positions=ints([range(2, 7)])),
    edge(SDPA, "int8_segments", "attention", query_segment_ids=ints([0] * 5, "int8")),
    *(
        edge(SINUSOIDAL, case, "table", **changes)
        for case, changes in {
            "padding_negative": {"positions": ints([-3, 0, 3]), "padding_idx": -3},
            "padding_past_the_end": {"padding_idx": 2**31 - 1},
            "padding_of_times": {"positions": floats(2, 3), "padding_idx": 0},
            "amplitude_int": {"amplitude": 3},
            "amplitude_bfloat16": {"amplitude": scalar(0.5, "bfloat16")},
            "one_base_for_each": EACH_AXIS | {"base": [100, np.float32(20)]},
            "axes_list": EACH_AXIS | {"axes": [1, 0]},
            "axes_twice": EACH_AXIS | {"axes": (1, 0, 0, 1)},
            "one_axis": {"positions": points([3], [4]), "axes": (0,)},
            "one_point": EACH_AXIS | {"positions": ints([3, 4])},
            "no_points": EACH_AXIS | {"positions": floats(0, 2)},
            "across_one_axis": {"layout": "half_across_axes"},
            "odd_blocks": EACH_AXIS | {"dim": 10, "layout": "half_across_axes"},
            "odd_half_blocks": EACH_AXIS | {"dim": 6, "spacing": "half"},
            "exact_axes": EACH_AXIS
            | {"positions": ints([[BIG - 1, -BIG]]), "angles": "exact"},
            "exact_scale": {"angles": "exact", "angle_scale": np.float16(0.3)},
            "largest_scale": {"positions": ints([0]), "angle_scale": 2.0**126},
        }.items()
    ),
    edge(FOURIER, "no_frequencies", "exact", frequencies=floats(2, 0)),
    edge(FOURIER, "no_points", "exact", positions=floats(0, 2)),
    edge(FOURIER, "one_point", "table", positions=ints([1, 0])),
    edge(FOURIER, "int8", "table", positions=points([1, 0], [0, 1], dtype="int8")),
    *(
        edge(MASK, case, "exact", **changes)
        for case, changes in {
            "no_tokens": {"mask": bools(2, 0)},
            "all_padding": {"mask": false(2, 3), "padding": -BIG},
            "start_negative": {"start": -BIG},
            "last_of_int32": {"start": BIG - 5, "padding": BIG - 1},
        }.items()
    ),
    *(
        edge(GRID_MASK, f"{case}_{normalize}", "table", mask=mask, normalize=normalize)
        for case, mask in {
            "all_padding": false(2, 3),
            "no_rows": bools(0, 3),
            "no_columns": bools(3, 0),
            "no_images": bools(0, 2, 3),
        }.items()
        for normalize in (None, "end", "centre")
    ),
    *(
        edge(SEGMENTS, case, "exact", segment_ids=ints(values, kind))
        for case, values, kind in (
            ("none", np.zeros((2, 0), int), "int32"),
            ("no_batch", [7], "int32"),
            ("int8", [-128, 127, 127], "int8"),
            ("ends_of_int32", [[-BIG, BIG - 1, -BIG]], "int32"),
        )
    ),
    *(
        edge(SHARD, case, "exact", **changes)
        for case, changes in {
            "no_tokens": {"length": 0},
            "more_shards_than_tokens": {"length": 0, "num_shards": BIG - 1}
            | {"order": "zigzag"},
            "one": {"shard": 0, "num_shards": 1},
            "scalar": {"shard": ints(1, "int8"), "order": "zigzag"},
            "none_asked_for": {"shard": ints(np.zeros((2, 0), int))},
            "all": {"shard": ints([[0], [1]]), "order": "zigzag"},
            # In int8 the first position of shard 100 would wrap.
            "int8": {"length": 1280, "shard": ints(100, "int8"), "num_shards": 128},
        }.items()
    ),
    edge(AXIAL, "no_points", "exact", positions=ints(np.zeros((0, 2), int))),
    edge(AXIAL, "one_point", "exact", positions=ints([2, 3], "int8")),
    edge(AXIAL, "one_table", "exact", tables=tables((3, 8)), positions=points([2])),
    edge(AXIAL, "no_columns", "exact", tables=tables((3, 0), (4, 8))),
    edge(AXIAL, "half", "exact", tables=tables((3, 8), (4, 8), dtype="bfloat16")),
    *(
        edge(
            AXIAL,
            f"{policy}_{combine}",
            "exact",
            out_of_range=policy,
            combine=combine,
            positions=points([-BIG, 0], [2, BIG - 1], [3, 4]),
        )
        for policy in ("nan", "clip", "zero")
        for combine in ("concat", "sum")
    ),
    edge(LEARNED, "padding_last", "exact", positions=7, padding_idx=6),
    edge(LEARNED, "padding_clip", "exact", out_of_range="clip", padding_idx=0),
    edge(INIT, "sinusoidal_one", "table", max_len=1, dim=1, init="sinusoidal"),
    edge(INIT, "padding_only", "exact", max_len=1, padding_idx=0),
    edge(INIT, "patchtst_one", "table", max_len=1, dim=2, init="patchtst"),
    *(
        edge(RESIZE, case, "resize", **changes)
        for case, changes in {
            "same": {"length_or_grid": 9},
            "list": {"length_or_grid": [4]},
            "to_one": {"length_or_grid": 1, "antialias": True},
            "to_one_at_the_corner": {"length_or_grid": 1, "align_corners": True},
            "of_one": {"length_or_grid": (2, 3), "num_prefix": 8},
            "of_one_by_keys": {"table": floats(1, 8), "method": "keys_cubic"},
            "no_columns": {"table": floats(9, 0)},
            "numpy_flag": {"antialias": np.True_},
            "corners_of_no_antialias": {"align_corners": True, "antialias": np.False_},
            "factor_far_above": {"scale_factor": 5.99 / 9},
            "factor_far_below": {"scale_factor": 4.51 / 9, "antialias": True},
            "factors": {"length_or_grid": (4, 3), "scale_factor": [4.1 / 3, 1]},
            "line_of_a_square": {"old_grid": 9},
        }.items()
    ),
    *(
        edge("alibi_slopes", case, "exact", **changes)
        for case, changes in {
            "none_biased": {"num_biased": 0},
            "one_biased": {"num_biased": 1, "rule": "uniform"},
            "bias_max_int": {"bias_max": 8},
            # 2 to the power of less than any float's least exponent is 0.
            "bias_max_large": {"bias_max": 1e300},
            "bias_max_tiny": {"bias_max": 1e-300, "rule": "uniform"},
        }.items()
    ),
    *(
        edge("alibi_bias", f"{kind}_{case}", "table", kind=kind, **changes)
        for kind in ("manhattan", "euclidean")
        for case, changes in {
            "no_queries": {"query_positions": ints(np.zeros((0, 2), int))}
            | {"key_positions": points([0, 1])},
            "one_axis": {"query_positions": points([3]), "key_positions": points([-5])},
            "int8": {"query_positions": points([-128, 127], dtype="int8")}
            | {"key_positions": points([127, -128], dtype="int8")},
        }.items()
    ),
    edge(
        ALIBI_SDPA,
        "last_queries",
        "attention",
        query_positions=None,
        key_positions=None,
    ),
]
ZEROS = [
    edge(SDPA, "no_keys", "exact", **PLAIN | {"key": heads(2, 0, 3, 8)}
         | {"value": heads(2, 0, 3, 4)}),
    edge(SDPA, "mask_all_false", "exact",
         mask=false(5, 7)),
    edge(SDPA, "bias_all_minus_inf", "exact",
         bias=Make(lambda fw: fw.array(np.full((5, 7), -np.inf), "float32"), "-inf")),
    edge(SDPA, "keys_after_queries", "exact", key_positions=ints(range(10, 17))),
    edge(SDPA, "other_segments", "exact", key_segment_ids=ints([9] * 7)),
]  # fmt: skip

HEADS_OUT = {"apply_rope", ROTARY, SDPA, ALIBI_SDPA}


def outputs(fw: Framework, row: Edge) -> list[np.ndarray]:
    """Results as NumPy arrays in JAX's order of axes; half precision as float32."""
    if fw is JAX and row.function == SDPA:  # to compile one program, not one per step
        traced, arrays = apart(row.function, row.changes)
        found = jax.jit(traced)(arrays)
    else:
        found = bound(fw, row.function)(**prepared(fw, row.function, row.changes))
    found = found if isinstance(found, tuple) else (found,)
    return [as_numpy(fw, row.function, array) for array in found]


def as_numpy(fw: Framework, function: str, array: Any) -> np.ndarray:
    if isinstance(array, torch.Tensor):
        array = array.float() if array.dtype == torch.bfloat16 else array
    elif isinstance(array, jax.Array):
        array = array.astype("float32") if array.dtype == jnp.bfloat16 else array
    array = np.asarray(array)
    if fw.is_torch and function in HEADS_OUT:
        return array.swapaxes(-2, -3)
    if fw.is_torch and function == "permute_rope_weights":
        return np.moveaxis(array, 0, -1)
    return array


def same_kind(one: np.ndarray, other: np.ndarray) -> bool:
    """Integers are int64 in torch and int32 in JAX, as each framework counts."""
    integers = one.dtype.kind == other.dtype.kind == "i"
    return one.shape == other.shape and (integers or one.dtype == other.dtype)


@pytest.mark.parametrize("row", [*EDGES, *ZEROS], ids=lambda row: row.id)
def test_edge_case_is_equal_in_both(row):
    torch_side, jax_side = (outputs(fw, row) for fw in FRAMEWORKS)
    assert all(map(same_kind, torch_side, jax_side))
    scale = max((np.nanmax(np.abs(a), initial=1.0) for a in torch_side), default=1.0)
    np.testing.assert_allclose(
        np.concatenate([a.ravel() for a in jax_side]),
        np.concatenate([a.ravel() for a in torch_side]),
        rtol=0,
        atol=TOLERANCE[row.tolerance] * float(scale),
    )


@pytest.mark.parametrize("fw", FRAMEWORKS, ids=lambda fw: fw.name)
@pytest.mark.parametrize("row", ZEROS, ids=lambda row: row.id)
def test_attending_to_nothing_gives_zeros(row, fw):
    (out,) = outputs(fw, row)
    assert out.shape == (2, 5, 6, 4)
    np.testing.assert_array_equal(out, 0.0)


TAKE_ARRAYS = [
    function
    for function in CALLS
    if any(isinstance(v, torch.Tensor) for v in prepared(TORCH, function, {}).values())
]


def strided(x: torch.Tensor) -> torch.Tensor:
    """The same values, every other element of a larger tensor with its axes reversed."""
    twice = x.repeat_interleave(2, -1)
    axes = tuple(range(x.ndim))[::-1]
    return twice.permute(axes).contiguous().permute(axes)[..., ::2]


@pytest.mark.parametrize("function", TAKE_ARRAYS)
def test_torch_strides_do_not_matter(function):
    given = prepared(TORCH, function, {})
    tensors = {k: v for k, v in given.items() if isinstance(v, torch.Tensor)}
    moved = {k: strided(v) if v.ndim else v for k, v in tensors.items()}
    call = bound(TORCH, function)
    expected, found = call(**given), call(**given | moved)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE["attention"])


@pytest.mark.parametrize("function", TAKE_ARRAYS)
def test_jax_numpy_inputs_do_not_matter(function):
    given = prepared(JAX, function, {})
    host = {k: np.asarray(v) for k, v in given.items() if isinstance(v, jax.Array)}
    call = bound(JAX, function)
    expected, found = call(**given), call(**given | host)
    assert jax.tree.all(jax.tree.map(np.array_equal, found, expected))


HOST_TABLES = {
    "plain": np.array([1.0, 0.1, 0.01, 0.001], np.float32),
    "read_only": np.asarray(jnp.asarray([1.0, 0.1, 0.01, 0.001], "float32")),
    "reversed": np.array([0.001, 0.01, 0.1, 1.0], np.float32)[::-1],
    "strided": np.array([1.0, 9.0, 0.1, 9.0, 0.01, 9.0, 0.001], np.float32)[::2],
}


@pytest.mark.parametrize("table", HOST_TABLES)
@pytest.mark.parametrize("fw", FRAMEWORKS, ids=lambda fw: fw.name)
def test_host_table_may_be_laid_out_anyhow(fw, table):
    cos, _ = fw.package.rope_cos_sin(5, HOST_TABLES[table])
    expected, _ = fw.package.rope_cos_sin(5, HOST_TABLES["plain"])
    np.testing.assert_array_equal(np.asarray(cos), np.asarray(expected))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "rule", [name for name in CALLS if re.fullmatch(r"\w+Scaling", name)]
)
@pytest.mark.parametrize("fw", FRAMEWORKS, ids=lambda fw: fw.name)
def test_numbers_of_numpy_do_not_make_a_rule_coarser(fw, rule, kind):
    """They would compute in their own precision: every frequency in float16, say."""

    def cast(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(kind, value))
        return kind(value) if isinstance(value, float) else value

    plain = prepared(fw, rule, {})
    given = {name: cast(value) for name, value in plain.items()}
    one, other = (fw.function(rule)(**fields) for fields in (plain, given))
    assert (one, hash(one)) == (other, hash(other))
    one, other = (fw.package.RopeConfig(8, scaling=made) for made in (one, other))
    tables = [made.inv_freq(11, dtype="float64").tobytes() for made in (one, other)]
    assert tables[0] == tables[1]
    factors = [made.attention_factor(11) for made in (one, other)]
    assert factors[0] == factors[1]
    assert [type(factor) for factor in factors] == [float, float]


NUMPY_NUMBERS = [
    *((SINUSOIDAL, name) for name in ("base", "angle_scale", "amplitude")),
    (INIT, "stddev"),
    ("alibi_slopes", "bias_max"),
    (RESIZE, "scale_factor"),
]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("function", "argument"), NUMPY_NUMBERS)
@pytest.mark.parametrize("fw", FRAMEWORKS, ids=lambda fw: fw.name)
def test_number_of_numpy_is_taken_for_its_value(fw, function, argument, kind):
    """In its own precision the arithmetic would be coarser, and JAX's results wider."""
    number = kind(0.6)
    one, other = (
        np.asarray(bound(fw, function)(**prepared(fw, function, {argument: given})))
        for given in (number, float(number))
    )
    assert one.dtype == other.dtype == np.float32
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("function", "argument"), [(SINUSOIDAL, "amplitude"), (INIT, "stddev")]
)
@pytest.mark.parametrize("fw", FRAMEWORKS, ids=lambda fw: fw.name)
def test_number_may_be_an_int_beyond_int64(fw, function, argument):
    """Python's ints are numbers whatever their size; the frameworks' own products stop at 64 bits."""
    with jax.enable_x64(True):
        options = {argument: 2**900, "dtype": dtype("float64")}
        found = np.asarray(bound(fw, function)(**prepared(fw, function, options)))
    assert np.isfinite(found).all()
    assert np.abs(found).max() > 2.0**890


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_init_position_table_keeps_its_dtype_for_a_numpy_stddev(name):
    call = functools.partial(
        posenc_jax.init_position_table,
        max_len=5,
        dim=8,
        stddev=np.float64(0.02),
        dtype=name,
    )
    with jax.enable_x64(True):
        assert jax.eval_shape(call, jax.random.key(0)).dtype == name
