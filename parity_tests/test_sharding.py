"""Attention across devices gives what one device gives, and moves no more than it must: data, tensor and sequence.

What needs several devices, several processes or the TPU compiler runs in `sharded`, a program of its own.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
import time
from math import prod
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax
from posenc_jax import ring_attention

from . import sharded
from .sharded import CASES, HEADS, ORDERS
from .tpu import ENVIRONMENT, TOPOLOGIES

# From queries to their gradients there are four sums, of 64 numbers or fewer and in another order here: at most 64
# roundings of 2.2e-16 in each. Logits are up to 16 (a slope of 1/4 over 63 tokens), so theirs are 16 in the weights.
FLOAT64 = 4 * 64 * 2.2e-16
# Of a busy machine; the longest takes half a minute alone.
TIMEOUT = 900
MESHES = (
    "unchecked",
    "pallas_tpu",
    "batch_and_heads",
    "by_ranks",
    "batch_and_heads_by_compiler",
)
PARTITIONED = (
    "reference",
    "reference-explicit",
    "blockwise",
    "blockwise-explicit",
    "blockwise-shard_map",
    "pallas_tpu-shard_map",
)
ITEM_BYTES = {"f32": 4, "bf16": 2, "s32": 4, "u32": 4}


# ------------------------------------------------------------------------- processes


def run(folder: Path, *commands: tuple[str, ...], devices: int = 1) -> list[Any]:
    """What `sharded` finds by these commands, at the same time, each on so many devices."""
    flags = (
        f"--xla_force_host_platform_device_count={devices}",
        "--xla_backend_optimization_level=0",  # Programs run once.
    )
    environment = {
        **os.environ,
        **cache(),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join(flags),
        "PYTHONPATH": str(Path(posenc_jax.__file__).parents[1]),
        **ENVIRONMENT,
        "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    }
    python = [sys.executable, "-P", "-W", "error", sharded.__file__]
    files = [folder / f"{i}.json" for i in range(len(commands))]
    processes = [
        subprocess.Popen(
            [*python, str(file), *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for file, command in zip(files, commands, strict=True)
    ]
    try:
        outputs = [process.communicate(timeout=TIMEOUT)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise RuntimeError("\n".join(output[-4000:] for output in outputs))
    return [json.loads(file.read_text()) for file in files]


def cache() -> dict[str, str]:
    """Where programs are kept that were compiled before, as for the tests of this process."""
    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    if jax.config.jax_compilation_cache_dir is None:
        return {}
    return {name.upper(): str(getattr(jax.config, name)) for name in names}


def once(
    factory: pytest.TempPathFactory, *commands: tuple[str, ...], devices: int = 1
) -> list[Any]:
    """What `run` gives, run by one of the workers of pytest for all of them."""
    root = factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder = root / f"sharded-{commands[0][0]}"
    report = folder / "report.json"
    try:
        folder.mkdir()
    except FileExistsError:
        end = time.monotonic() + 2 * TIMEOUT
        while not report.exists():
            assert time.monotonic() < end, f"no other worker has written {report}"
            time.sleep(0.1)
    else:
        try:
            found = {"found": run(folder, *commands, devices=devices)}
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        unfinished = report.with_suffix(".part")
        unfinished.write_text(json.dumps(found))
        unfinished.rename(report)
    found = json.loads(report.read_text())
    assert "error" not in found, found["error"]
    return found["found"]


@pytest.fixture(scope="module")
def devices(tmp_path_factory):
    return once(tmp_path_factory, ("devices",), devices=8)[0]


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    commands = (("processes", port, rank) for rank in "01")
    return once(tmp_path_factory, *commands, devices=2)


@pytest.fixture(scope="module", params=["v5e:4x4"] if TOPOLOGIES else [])
def tpu(request, tmp_path_factory):
    return once(tmp_path_factory, ("tpu", request.param))[0]


# ----------------------------------------------------------------------- 8 devices


def assert_small(errors: dict[str, float]) -> None:
    assert set(errors) == {"out", *sharded.LEARNT}
    # Not `max`, which may pass over NaN.
    assert all(error <= FLOAT64 for error in errors.values()), errors


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", CASES)
def test_ring_is_attention_of_the_whole(devices, case, order):
    assert_small(devices["rings"][f"{case}-{order}"])


@pytest.mark.parametrize("way", MESHES)
def test_ring_on_any_mesh_is_attention_of_the_whole(devices, way):
    assert set(devices["meshes"]) == set(MESHES)
    assert_small(devices["meshes"][way])


@pytest.mark.parametrize("way", PARTITIONED)
def test_shards_of_batch_and_heads_stay_where_they_are(devices, way):
    """Slopes follow their heads. Only sums over the batch and which blocks to visit go from one device to another."""
    found = devices["partitioned"][way]
    assert_small(found["errors"])
    for operation, dtype, shape in found["moved"]:
        assert operation == "all-reduce"
        blocks = sharded.TOKENS // 4
        assert prod(shape) <= HEADS or (dtype, shape) == ("pred", [blocks, blocks])


def test_what_moves_is_seen(devices):
    """Where tokens are sharded and nothing says how, the compiler gathers keys and values."""
    found = devices["partitioned"]["blockwise-tokens"]
    assert_small(found["errors"])
    whole = [1, sharded.KV_HEADS, sharded.TOKENS, sharded.HEAD_DIM]
    assert ["all-gather", "f64", whole] in found["moved"]


def test_ring_computes_only_blocks_that_are_not_empty(devices):
    """Of 16 blocks of 4 tokens, block i has i + 1 blocks of keys, once forward and once backward."""
    visited = devices["visited"]
    assert visited["contiguous"] == [2 * (2 * i + 1 + 2 * i + 2) for i in range(8)]
    assert visited["zigzag"] == [2 * (i + 1 + 16 - i) for i in range(8)]


# ------------------------------------------------------------ two processes, and a TPU


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("process", [0, 1])
def test_ring_over_processes_is_attention_of_the_whole(processes, process, order):
    found = processes[process]
    assert found["devices"] == [2, 4]
    assert_small(found["errors"][order])


def test_ring_on_a_tpu_moves_no_more_than_keys_and_values(tpu):
    """In bytes; the gradients of bfloat16 keys travel in float32."""
    shard = sharded.TPU_TOKENS // 16
    keys = [1, 2, shard, 128]
    keys_and_values = 2 * 2 * prod(keys)
    sizes = {
        (operation, dtype, tuple(shape)): ITEM_BYTES[dtype] * prod(shape)
        for operation, dtype, shape in tpu["moved"]
    }
    assert ("collective-permute", "bf16", tuple(keys)) in sizes
    assert ("collective-permute", "f32", tuple(keys)) in sizes
    assert max(sizes.values()) <= keys_and_values
    assert {operation for operation, *_ in sizes} == {
        "collective-permute",  # the ring
        "all-reduce",  # the gradients of the slopes
    }


def test_ring_on_a_tpu_holds_no_more_than_shards(tpu):
    """Scores of one shard's queries and all keys would be 2048 times its queries."""
    queries = sharded.TPU_TOKENS // 16 * 8 * 128
    assert tpu["largest"] == queries
    # Outputs and gradients of the queries, and what visits, in float32; it is two of the former that were measured.
    assert tpu["temporary_bytes"] <= 4 * 4 * queries


# --------------------------------------------------------------------------- one device


def tokens(count: int = 3) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(7)
    drawn = rng.normal(size=(3, 1, count, 2, 4)).astype(np.float32)
    return *(jnp.asarray(x) for x in drawn), jnp.arange(count)


def alone(*args: Any, **options: Any) -> Any:
    """In a ring of one device."""

    def attend(*args: Any) -> Any:
        return ring_attention(*args, axis_name="ring", **options)

    mesh = jax.make_mesh((1,), ("ring",), axis_types=(jax.sharding.AxisType.Auto,))
    # Given whole, so that nothing varies along the ring before the call.
    attend = jax.shard_map(
        attend, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(None, "ring")
    )
    return attend(*args)


def test_ring_of_one_device():
    query, key, value, _ = tokens()
    expected = posenc_jax.dot_product_attention(query, key, value)
    found = alone(query, key, value)
    # Weights of 3 keys sum to 1: a few roundings of float32.
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-7)


def test_ring_of_no_tokens():
    query, key, value, _ = tokens(0)
    assert alone(query, key, value).shape == query.shape


def test_ring_keeps_the_dtype_of_the_queries():
    query, key, value, _ = (x.astype(jnp.bfloat16) for x in tokens())
    assert alone(query, key, value).dtype == jnp.bfloat16


def test_axis_must_be_of_a_shard_map():
    query, key, value, _ = tokens()
    message = r"`axis_name` must be an axis of .*'nowhere'"
    attend = functools.partial(ring_attention, axis_name="nowhere")
    for call in (attend, jax.vmap(attend, axis_name="nowhere")):
        with pytest.raises(ValueError, match=message):
            call(query, key, value)
    for wrong in (3, ["nowhere"]):
        with pytest.raises(TypeError, match="`axis_name` must be a str, got"):
            ring_attention(query, key, value, axis_name=wrong)


@pytest.mark.parametrize(
    "rule",
    [
        {"is_causal": True},
        {"sliding_window": 2},
        {"alibi_slopes": posenc_jax.alibi_slopes(2)},
    ],
    ids=lambda rule: next(iter(rule)),
)
@pytest.mark.parametrize("missing", ["query_positions", "key_positions"])
def test_positions_must_be_given_where_a_rule_needs_them(rule, missing):
    """An index says nothing, and a length would mean 0, 1, 2, ... on every device."""
    query, key, value, at = tokens()
    for given, came in ((None, "NoneType"), (3, "int")):
        positions = {"query_positions": at, "key_positions": at, missing: given}
        with pytest.raises(TypeError, match=rf"`{missing}` must be an array .*{came}"):
            alone(query, key, value, **rule, **positions)


def test_arguments_are_checked_as_those_of_attention():
    query, key, value, at = tokens()
    for options, error, message in (
        ({"implementation": "reference"}, ValueError, "`implementation` must be one"),
        ({"scale": 0.0}, ValueError, "`scale` must be positive"),
        ({"query_segment_ids": at}, ValueError, "must be given together"),
    ):
        with pytest.raises(error, match=message):
            alone(query, key, value, **options)
