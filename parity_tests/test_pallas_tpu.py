"""The TPU kernel itself: it compiles for TPUs, and it runs in a simulation of their memory."""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

import posenc_jax
from posenc_jax.kernels import pallas_tpu

from . import tpu

# As a share of the largest number: logits of size 10 are off by some of float32's 6e-8 of that, and weights by as much.
ROUNDING = 1e-5

# Name: dtype, query heads for a key head, tokens, head_dim, and what else there is.
EVERYTHING = ("window", "alibi", "cap", "segments", "mask", "batch", "learnt scale")
CASES: dict[str, tuple[Any, int, int, int, tuple[str, ...]]] = {
    "nothing": (jnp.bfloat16, 1, 1024, 64, ()),
    "everything": (jnp.bfloat16, 2, 1000, 128, EVERYTHING),
    "everything in float32": (jnp.float32, 2, 600, 256, EVERYTHING),
    "narrow heads in float16": (jnp.float16, 1, 200, 40, ("alibi",)),
    "one query": (jnp.bfloat16, 4, 1, 32, ("alibi",)),
}
# Settings of JAX that reach into a kernel; "highest" is what all tests run with.
SETTINGS = {
    "highest": contextlib.nullcontext,
    "default": lambda: jax.default_matmul_precision("default"),
    "x64": lambda: jax.enable_x64(True),
}


def call(case: str) -> tuple[Any, dict[str, tuple[tuple[int, ...], Any]]]:
    """Outputs and all gradients as a function of named arrays, and these arrays' shapes and dtypes."""
    dtype, group, q_len, dim, more = CASES[case]
    batch, heads, k_len = 2, 4, max(q_len, 300)
    rows = batch if "batch" in more else 1
    shapes = {
        "query": ((batch, q_len, heads, dim), dtype),
        "key": ((batch, k_len, heads // group, dim), dtype),
        "value": ((batch, k_len, heads // group, dim), dtype),
        "query_positions": ((rows, q_len), jnp.int32),
        "key_positions": ((rows, k_len), jnp.int32),
    }
    if "alibi" in more:
        shapes["alibi_slopes"] = (heads,), jnp.float32
    if "learnt scale" in more:
        shapes["scale"] = (), jnp.float32
    if "segments" in more:
        shapes["query_segment_ids"] = (batch, q_len), jnp.int32
        shapes["key_segment_ids"] = (batch, k_len), jnp.int32
    if "mask" in more:
        shapes["mask"] = (batch, 1, 1, k_len), jnp.bool_
    static = {
        "is_causal": True,
        "sliding_window": 500 if "window" in more else None,
        "logit_softcap": 30.0 if "cap" in more else None,
    }
    names = {"query", "key", "value", "alibi_slopes", "scale"} & shapes.keys()

    def both(arrays: dict[str, Any], implementation: str = "pallas_tpu") -> Any:
        rest = {name: x for name, x in arrays.items() if name not in names}

        def attend(learnt: dict[str, Any]) -> Any:
            return posenc_jax.dot_product_attention(
                **learnt, **rest, **static, implementation=implementation
            )

        out, pull = jax.vjp(attend, {name: arrays[name] for name in sorted(names)})
        return out, pull(out)

    return both, shapes


@pytest.mark.parametrize(
    ("case", "setting", "topology"),
    [
        # The first TPU at every level; others at the full one.
        pytest.param(
            case,
            setting,
            topology,
            marks=pytest.mark.full if n else (),
        )
        for n, topology in enumerate(tpu.TOPOLOGIES)
        for case in CASES
        for setting in (SETTINGS if case == "everything" else ("highest",))
    ],
)
def test_kernel_compiles_for_a_tpu(case, setting, topology):
    """Interpretation shows nothing of what the TPU's compiler takes."""
    both, shapes = call(case)
    sharding = jax.sharding.SingleDeviceSharding(tpu.device(topology))
    specs = {
        name: jax.ShapeDtypeStruct(*spec, sharding=sharding)
        for name, spec in shapes.items()
    }
    with SETTINGS[setting](), tpu.uncached():
        program = jax.jit(both).lower(specs).compile()
    assert program.as_text().count("tpu_custom_call") >= 3


def test_kernel_runs_in_a_simulation_of_a_tpu():
    """Memory that nothing was written to holds NaN there, and a read beyond an array is an error."""
    both, shapes = call("everything in float32")
    rng = np.random.default_rng(5)
    arrays = {
        name: {
            jnp.float32: lambda shape: np.float32(
                rng.normal(size=shape) if shape[1:] else rng.uniform(0.05, 0.2, shape)
            ),
            jnp.int32: lambda shape: np.sort(rng.integers(0, 9, shape), -1),
            jnp.bool_: lambda shape: rng.random(shape) < 0.8,
        }[dtype](shape)
        for name, (shape, dtype) in shapes.items()
    }
    simulation = pltpu.InterpretParams(uninitialized_memory="nan")
    with mock.patch.object(pallas_tpu, "INTERPRET", simulation):
        found = jax.jit(both)(arrays)
    expected = jax.jit(lambda arrays: both(arrays, "reference"))(arrays)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=ROUNDING * abs(y).max())
