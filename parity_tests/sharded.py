"""Attention across devices, in a process of its own, since JAX counts its devices as it starts.

`sharded.py FILE devices` needs 8 devices, `sharded.py FILE processes PORT RANK` 2 in each of two processes, and
`sharded.py FILE tpu TOPOLOGY` the compiler in libtpu. Each writes what it found as JSON; what that must be is said in
`test_sharding`.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from posenc_jax import (
    RopeConfig,
    alibi_slopes,
    apply_rotary_pos_emb,
    dot_product_attention,
    positions_from_segments,
    ring_attention,
    rope_cos_sin,
    shard_positions,
)
from posenc_jax.kernels import blockwise

Arrays = dict[str, Any]
Found = dict[str, Any]

BATCH, TOKENS, HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM = 2, 64, 4, 2, 6, 10
ORDERS = ("contiguous", "zigzag")
LEARNT = ("query", "key", "value", "slopes", "scale", "softcap")
# Documents that end inside a shard of 8 tokens, one that is longer, and padding, 4 and 6.
SEGMENTS = np.array(
    [
        np.repeat([0, 1, 2, 3, 4], [13, 3, 31, 9, 8]),
        np.repeat([5, 6, 7, 8, 9], [2, 14, 30, 17, 1]),
    ]
)
PADDING = (SEGMENTS == 4) | (SEGMENTS == 6)
TPU_TOKENS = 131_072
COLLECTIVES = (
    "all-gather|all-reduce|all-to-all|collective-broadcast|collective-permute"
    "|reduce-scatter"
)

# ------------------------------------------------------------------------------ calls


def drawn() -> Arrays:
    """A call in float64, its tokens in their order, and gradients of its outputs."""
    rng = np.random.default_rng(20)
    return {
        "query": rng.normal(size=(BATCH, TOKENS, HEADS, HEAD_DIM)),
        "key": rng.normal(size=(BATCH, TOKENS, KV_HEADS, HEAD_DIM)),
        "value": rng.normal(size=(BATCH, TOKENS, KV_HEADS, VALUE_DIM)),
        "d_out": rng.normal(size=(BATCH, TOKENS, HEADS, VALUE_DIM)),
        "slopes": alibi_slopes(HEADS, dtype=np.float64),
        "scale": np.array(0.7),
        "softcap": np.array(1.5),
        "positions": np.tile(np.arange(TOKENS), (BATCH, 1)),
        "restarting": np.asarray(positions_from_segments(SEGMENTS.astype(int))),
        "segments": SEGMENTS,
        "key_segments": np.where(PADDING, -1, SEGMENTS),
    }


def cut(batch: Any = None, tokens: Any = None, heads: Any = None) -> dict[str, P]:
    """The mesh axes over which a call and its results are sharded."""
    return (
        dict.fromkeys(
            ("query", "key", "value", "d_out", "out"), P(batch, tokens, heads)
        )
        | dict.fromkeys(
            ("positions", "restarting", "segments", "key_segments"), P(batch, tokens)
        )
        | {"slopes": P(heads), "scale": P(), "softcap": P()}
    )


def call(attend: Callable, x: Arrays, *, at: str = "positions", **options: Any) -> Any:
    qkv = x["query"], x["key"], x["value"]
    return attend(*qkv, query_positions=x[at], key_positions=x[at], **options)


def signed(attend: Callable, x: Arrays) -> Any:
    terms = {"scale": x["scale"], "logit_softcap": x["softcap"]}
    return call(attend, x, alibi_slopes=x["slopes"], alibi_kind="signed", **terms)


def packed(attend: Callable, x: Arrays) -> Any:
    ids = {"query_segment_ids": x["segments"], "key_segment_ids": x["key_segments"]}
    return call(attend, x, at="restarting", is_causal=True, **ids)


def rotated(attend: Callable, x: Arrays) -> Any:
    inv_freq = RopeConfig(HEAD_DIM).inv_freq(dtype=np.float64)
    tables = rope_cos_sin(x["positions"], inv_freq, dtype=np.float64)
    query, key = apply_rotary_pos_emb(x["query"], x["key"], *tables)
    return call(attend, x | {"query": query, "key": key}, is_causal=True)


CASES: dict[str, Callable[[Callable, Arrays], Any]] = {
    "unmasked": lambda attend, x: attend(x["query"], x["key"], x["value"]),
    "causal_rope": rotated,
    "causal_alibi": lambda f, x: call(f, x, is_causal=True, alibi_slopes=x["slopes"]),
    "signed_alibi_softcap": signed,
    "causal_window": partial(call, is_causal=True, sliding_window=11),
    "window": partial(call, sliding_window=5),
    "packed": packed,
}
reference = partial(dot_product_attention, implementation="reference")
ring = partial(ring_attention, axis_name="tokens")


def with_gradients(function: Callable[[Arrays], Any]) -> Callable[[Arrays], Arrays]:
    """Outputs, and the gradients of everything that may be learnt."""

    def both(x: Arrays) -> Arrays:
        learnt = {name: x[name] for name in LEARNT}
        out, back = jax.vjp(lambda learnt: function(x | learnt), learnt)
        return {"out": out} | back(x["d_out"])[0]

    return jax.jit(both)


def by_shard(
    function: Callable[[Arrays], Any], mesh: Mesh, axes: dict[str, P], **options: Any
) -> Callable[[Arrays], Any]:
    def given(x: Arrays) -> Any:
        specs = ({name: axes[name] for name in x},)
        mapped = jax.shard_map(
            function, mesh=mesh, in_specs=specs, out_specs=axes["out"], **options
        )
        return mapped(x)

    return given


# ------------------------------------------------------------------------ comparisons


def order_of(shards: int, order: str) -> np.ndarray:
    """The tokens of the first shard, then of the second, ..."""
    ranks = np.arange(shards)
    return np.asarray(shard_positions(TOKENS, ranks, shards, order=order)).ravel()


def ordered(x: Arrays, order: np.ndarray) -> Arrays:
    return {name: a[:, order] if a.ndim > 1 else a for name, a in x.items()}


def put(x: Arrays, mesh: Mesh, axes: dict[str, P]) -> Arrays:
    def one(name: str, a: np.ndarray) -> Any:
        sharding = NamedSharding(mesh, axes[name])
        return jax.make_array_from_callback(a.shape, sharding, lambda i: a[i])

    return {name: one(name, a) for name, a in x.items()}


def errors(found: Arrays, wanted: Arrays) -> Found:
    """The largest difference in the shards that are here, in parts of the whole array's largest number."""

    def error(a: Any, want: np.ndarray) -> float:
        shards = a.addressable_shards
        apart = max(np.abs(s.data - want[s.index]).max() for s in shards)
        return float(apart / (np.abs(want).max() or 1))

    return {name: error(found[name], want) for name, want in wanted.items()}


def on_one_device(case: str) -> Arrays:
    found = with_gradients(partial(CASES[case], reference))(drawn())
    return {name: np.asarray(a) for name, a in found.items()}


def compared(
    function: Callable[[Arrays], Arrays],
    wanted: Arrays,
    mesh: Mesh,
    axes: dict[str, P],
    order: str,
) -> Found:
    """Errors of a function of a sequence that is sharded in this order."""
    tokens = order_of(mesh.shape["tokens"], order)
    found = function(put(ordered(drawn(), tokens), mesh, axes))
    return errors(found, ordered(wanted, tokens))


def moved(program: str) -> list[tuple[str, str, list[int]]]:
    """What a compiled program sends between devices: operation, dtype and shape, each once."""
    found = set()
    for types, operation in re.findall(rf"= (.*?) ({COLLECTIVES})[\w-]*\(", program):
        for dtype, shape in re.findall(r"(\w+)\[([\d,]*)\]", types):
            found.add(
                (operation, dtype, tuple(map(int, filter(None, shape.split(",")))))
            )
    return sorted((op, dtype, list(shape)) for op, dtype, shape in found)


# --------------------------------------------------------------------------- 8 devices


def on_devices() -> Found:
    line = jax.make_mesh((8,), ("tokens",))
    return {
        "rings": rings(line),
        "meshes": meshes(line),
        "partitioned": partitioned(),
        "visited": visited(line),
    }


def rings(line: Mesh) -> Found:
    """Errors of every case by a ring of 8."""
    axes, found = cut(tokens="tokens"), {}
    for name, case in CASES.items():
        wanted = on_one_device(name)
        function = with_gradients(by_shard(partial(case, ring), line, axes))
        for order in ORDERS:
            found[f"{name}-{order}"] = compared(function, wanted, line, axes, order)
    return found


def meshes(line: Mesh) -> Found:
    """Errors of causal ALiBi in zigzag order, by other ways to say it and where batch and heads are sharded too."""
    wanted = on_one_device("causal_alibi")
    alibi = partial(CASES["causal_alibi"], ring)

    def by_ranks(x: Arrays) -> Any:
        """Every device makes its own positions, and takes its own of all slopes."""
        rank, shards = lax.axis_index("tokens"), lax.axis_size("tokens")
        at = shard_positions(TOKENS, rank, shards, order="zigzag")
        heads = x["query"].shape[-2]
        first = lax.axis_index("heads") * heads
        slopes = lax.dynamic_slice_in_dim(x["slopes"], first, heads)
        return alibi(x | {"positions": at, "slopes": slopes})

    cube = jax.make_mesh((2, 2, 2), ("data", "heads", "tokens"))
    automatic = Mesh(cube.devices, cube.axis_names)
    tokens, all_axes = cut(tokens="tokens"), cut("data", "tokens", "heads")
    whole_slopes = all_axes | {"slopes": P()}
    # By key positions a row is shifted as a whole, whoever its keys come from: the causal attention is the same.
    kernel = partial(ring, implementation="pallas_tpu", alibi_kind="key")
    kernel = partial(CASES["causal_alibi"], kernel)
    ways = {
        "unchecked": (line, tokens, by_shard(alibi, line, tokens, check_vma=False)),
        # JAX cannot check the types of a kernel that it interprets.
        "pallas_tpu": (line, tokens, by_shard(kernel, line, tokens, check_vma=False)),
        "batch_and_heads": (cube, all_axes, by_shard(alibi, cube, all_axes)),
        "by_ranks": (cube, whole_slopes, by_shard(by_ranks, cube, whole_slopes)),
        "batch_and_heads_by_compiler": (
            automatic,
            all_axes,
            by_shard(alibi, automatic, tokens, axis_names={"tokens"}),
        ),
    }
    return {
        name: compared(with_gradients(function), wanted, mesh, axes, "zigzag")
        for name, (mesh, axes, function) in ways.items()
    }


def partitioned() -> Found:
    """Errors of causal ALiBi whose batch and heads are sharded, and what its program moves."""
    wanted = on_one_device("causal_alibi")
    four = np.array(jax.devices()[:4]).reshape(2, 2)
    automatic = Mesh(four, ("data", "heads"))
    explicit = Mesh(four, ("data", "heads"), axis_types=(AxisType.Explicit,) * 2)

    def case(implementation: str) -> Callable[[Arrays], Any]:
        attend = partial(dot_product_attention, implementation=implementation)
        return partial(CASES["causal_alibi"], attend)

    def mapped(implementation: str, **options: Any) -> Callable[[Arrays], Any]:
        return by_shard(case(implementation), explicit, axes, **options)

    axes = cut("data", None, "heads")
    ways = {
        "reference": (automatic, axes, case("reference")),
        "reference-explicit": (explicit, axes, case("reference")),
        "blockwise": (automatic, axes, case("blockwise")),
        "blockwise-explicit": (explicit, axes, case("blockwise")),
        "blockwise-shard_map": (explicit, axes, mapped("blockwise")),
        "pallas_tpu-shard_map": (
            explicit,
            axes,
            mapped("pallas_tpu", check_vma=False),
        ),
        # Which is not for the compiler to partition: what the others do not move, it does.
        "blockwise-tokens": (automatic, cut("data", "heads"), case("blockwise")),
    }
    found = {}
    for name, (mesh, axes, function) in ways.items():
        given = put(drawn(), mesh, axes)
        program = with_gradients(function).lower(given).compile()
        found[name] = {
            "errors": errors(program(given), wanted),
            "moved": moved(program.as_text()),
        }
    return found


def visited(line: Mesh) -> Found:
    """How many blocks of scores every device computes, outputs and gradients, under a causal mask."""
    counts: Counter[int] = Counter()
    scores = blockwise.scores

    def counted(*args: Any) -> Any:
        jax.debug.callback(lambda i: counts.update([int(i)]), lax.axis_index("tokens"))
        return scores(*args)

    axes, found = cut(tokens="tokens"), {}
    case = partial(call, ring, is_causal=True)
    function = with_gradients(by_shard(case, line, axes))
    blockwise.scores = counted
    jax.clear_caches()  # It has been traced before.
    for order in ORDERS:
        counts.clear()
        x = put(ordered(drawn(), order_of(8, order)), line, axes)
        jax.block_until_ready(function(x))
        jax.effects_barrier()
        found[order] = [counts[i] for i in range(8)]
    blockwise.scores = scores
    jax.clear_caches()
    return found


# -------------------------------------------------------- two processes, and 16 of a TPU


def in_two_processes(port: str, rank: str) -> Found:
    """Errors of this process's shards."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = f"127.0.0.1:{port}"
    jax.distributed.initialize(address, 2, int(rank), initialization_timeout=120)
    wanted = on_one_device("causal_alibi")
    line, axes = jax.make_mesh((4,), ("tokens",)), cut(tokens="tokens")
    case = partial(CASES["causal_alibi"], ring)
    function = with_gradients(by_shard(case, line, axes))
    found = {o: compared(function, wanted, line, axes, o) for o in ORDERS}
    here, everywhere = len(jax.local_devices()), jax.device_count()
    jax.distributed.shutdown()
    return {"errors": found, "devices": [here, everywhere]}


def for_tpu(name: str) -> Found:
    """A ring of 16 chips, forward and backward: what it moves, and the memory that it needs."""
    topology = topologies.get_topology_desc(platform="tpu", topology_name=name)
    mesh = topologies.make_mesh(topology, (16,), ("tokens",))
    shapes = {
        "query": (1, TPU_TOKENS, 8, 128),
        "key": (1, TPU_TOKENS, 2, 128),
        "value": (1, TPU_TOKENS, 2, 128),
        "d_out": (1, TPU_TOKENS, 8, 128),
        "slopes": (8,),
        "scale": (),
        "softcap": (),
        "positions": (1, TPU_TOKENS),
    }
    axes = cut(tokens="tokens")
    dtypes = (
        dict.fromkeys(shapes, np.float32)
        | {"positions": np.int32}
        | dict.fromkeys(("query", "key", "value", "d_out"), jnp.bfloat16)
    )
    given = {
        name: jax.ShapeDtypeStruct(
            shape, dtypes[name], sharding=NamedSharding(mesh, axes[name])
        )
        for name, shape in shapes.items()
    }
    kernel = partial(CASES["causal_alibi"], partial(ring, implementation="pallas_tpu"))
    program = with_gradients(by_shard(kernel, mesh, axes)).lower(given).compile()
    text = program.as_text()
    sizes = re.findall(r"[a-z]\w+\[([\d,]+)\]", text)
    return {
        "moved": moved(text),
        "largest": max(math.prod(map(int, size.split(","))) for size in sizes),
        "temporary_bytes": program.memory_analysis().temp_size_in_bytes,
    }


if __name__ == "__main__":
    file, mode, *arguments = sys.argv[1:]
    if mode == "tpu":
        # Programs for devices that are not there cannot be read back.
        jax.config.update("jax_enable_compilation_cache", False)
    else:
        jax.config.update("jax_enable_x64", True)
        blockwise.BLOCK = 4  # Two blocks a shard of 8 tokens.
    modes = {"devices": on_devices, "processes": in_two_processes, "tpu": for_tpu}
    Path(file).write_text(json.dumps(modes[mode](*arguments)))
