"""The TPU compiler on a machine without a TPU: programs are compiled ahead of time for a device of a topology."""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies

import posenc_jax

# Where `libtpu`, which holds the compiler, is published.
TOPOLOGIES = (
    ("v5e:2x2", "v6e:2x2")
    if sys.platform == "linux" and platform.machine() == "x86_64"
    else ()
)

# Read once, when libtpu is loaded.
ENVIRONMENT = {
    # What it would ask of the machine, which has no TPU.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    # One process at a time is a rule for those that use a TPU; it is kept by a file in /tmp.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
}


@cache
def device(topology: str) -> jax.Device:
    """A device to compile for, nothing runs on it; shape and sharding of an argument say that it is meant."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    described = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    return described.devices[0]


@contextmanager
def uncached() -> Iterator[None]:
    """What is compiled here goes to no cache on disk, since programs for a device that is not there cannot be read."""
    least = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, least)
    jax.config.update(least, math.inf)
    try:
        yield
    finally:
        jax.config.update(least, before)


def attention_program(
    implementation: str,
    target: str,
    length: int,
    heads: int,
    head_dim: int,
    effort: float = 0.0,
) -> Any:
    """Causal ALiBi attention in bfloat16, outputs and gradients of query, key, value and slopes, compiled and not run.

    Args:
        target: "cpu" or one of TOPOLOGIES.
        effort: Of the compiler, from -1 to 1.
    """
    where = jax.devices("cpu")[0] if target == "cpu" else device(target)
    sharding = jax.sharding.SingleDeviceSharding(where)
    shape = (length, heads, head_dim)
    tokens = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)
    slopes = jax.ShapeDtypeStruct((heads,), jnp.float32, sharding=sharding)

    def both(d_out: Any, query: Any, key: Any, value: Any, slopes: Any) -> Any:
        def attend(query: Any, key: Any, value: Any, slopes: Any) -> Any:
            return posenc_jax.dot_product_attention(
                query,
                key,
                value,
                is_causal=True,
                alibi_slopes=slopes,
                implementation=implementation,
            )

        out, pull = jax.vjp(attend, query, key, value, slopes)
        return out, pull(d_out)

    lowered = jax.jit(both).lower(*[tokens] * 4, slopes)
    with uncached():
        return lowered.compile({"exec_time_optimization_effort": effort})
