"""What does attention cost, forward and backward, in time and in memory, without an array of all scores?

    python examples/attention_cost.py

It takes some minutes, most of them in compilers.

Time on this CPU: 4096 tokens, 8 heads of 64 channels, float32, causal ALiBi, all of it or a window of 512; each the
least of turns taken one after the other. PyTorch's attention takes the bias as a mask.

Memory at most, inputs and outputs included, as the compilers of a CPU and of TPUs plan it; nothing runs: 8 heads of 128
channels, bfloat16, causal ALiBi with learnt slopes. The compiler for TPUs needs none; `pip install libtpu` has it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np
import torch

from parity_tests import tpu
from posenc_jax import alibi_slopes, dot_product_attention

HEADS = 8
SEQ, HEAD_DIM, WINDOW, TURNS = 4096, 64, 512, 5
LENGTHS, PLANNED_HEAD_DIM = (8192, 32_768, 131_072), 128

SECONDS = {
    "reference": "S x S, `reference`",
    "torch": "PyTorch's, S x S mask",
    "blockwise": "`blockwise`",
}


def in_jax(
    implementation: Any, window: int | None, arrays: np.ndarray
) -> Callable[[], Any]:
    """Attention of arrays [4, tokens, heads, head_dim]: d_out, query, key and value."""
    d_out, *learnt = arrays
    attend = partial(
        dot_product_attention,
        is_causal=True,
        alibi_slopes=alibi_slopes(HEADS),
        sliding_window=window,
        implementation=implementation,
    )

    @jax.jit
    def both(d_out: Any, *learnt: Any) -> Any:
        out, pull = jax.vjp(attend, *learnt)
        return out, pull(d_out)

    return lambda: jax.block_until_ready(both(d_out, *learnt))


def in_torch(window: int | None, arrays: np.ndarray) -> Callable[[], Any]:
    """The same by PyTorch's own."""
    heads_first = torch.from_numpy(arrays).transpose(1, 2).contiguous()
    d_out, *learnt = heads_first[:, None]
    learnt = [x.requires_grad_() for x in learnt]
    distance = torch.arange(SEQ)[:, None] - torch.arange(SEQ)
    seen = (distance >= 0) & (distance < (window or SEQ))
    bias = -torch.tensor(alibi_slopes(HEADS))[:, None, None] * distance
    mask = bias.masked_fill(~seen, -torch.inf)[None]
    attend = torch.nn.functional.scaled_dot_product_attention

    def call() -> Any:
        out = attend(*learnt, attn_mask=mask)
        return out, torch.autograd.grad(out, learnt, d_out)

    return call


def seconds(window: int | None) -> dict[str, float]:
    """The least of many turns."""
    rng = np.random.default_rng(0)
    arrays = rng.standard_normal((4, SEQ, HEADS, HEAD_DIM), np.float32)
    calls = {
        name: in_torch(window, arrays)
        if name == "torch"
        else in_jax(name, window, arrays)
        for name in SECONDS
    }
    least = dict.fromkeys(calls, float("inf"))
    for turn in range(TURNS + 1):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if turn:  # the first one compiles
                least[name] = min(least[name], time.perf_counter() - began)
    return least


def megabytes(implementation: Any, target: str, length: int) -> float:
    """Of a compiled program, at most."""
    program = tpu.attention_program(
        implementation, target, length, HEADS, PLANNED_HEAD_DIM
    )
    plan = program.memory_analysis()
    # A CPU's peak is without temporary memory, and a TPU's temporary memory without what stands in its fast memory.
    outside = plan.argument_size_in_bytes + plan.output_size_in_bytes
    planned = plan.temp_size_in_bytes + outside
    return (planned if target == "cpu" else plan.peak_memory_in_bytes) / 1e6


def print_row(*cells: str) -> None:
    """One row of a Markdown table."""
    print("| " + " | ".join(cells) + " |")


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(os.cpu_count() or 1)
    columns = [seconds(None), seconds(WINDOW)]
    print_row("seconds, CPU", f"{SEQ} tokens", f"window of {WINDOW}")
    print("|---|---|---|")
    for name, title in SECONDS.items():
        ratios = (least[name] / least["blockwise"] for least in columns)
        times = zip(columns, ratios, strict=True)
        cells = (f"{least[name]:.2f} ({ratio:.1f} x)" for least, ratio in times)
        print_row(title, *cells)

    print()
    print_row("megabytes at most, tokens:", *(f"{length}" for length in LENGTHS))
    print("|---" * (1 + len(LENGTHS)) + "|")
    scores = (f"{HEADS * length**2 * 4 / 1e6:.0f}" for length in LENGTHS)
    print_row("one array of all scores, float32", *scores)
    topologies = tpu.TOPOLOGIES if find_spec("libtpu") else ()
    planned = [("blockwise", target) for target in ("cpu", *topologies)]
    planned += [("pallas_tpu", target) for target in topologies]
    for implementation, target in planned:
        sizes = [megabytes(implementation, target, length) for length in LENGTHS]
        chip = "CPU" if target == "cpu" else f"TPU {target.partition(':')[0]}"
        print_row(f"`{implementation}`, {chip}", *(f"{size:.0f}" for size in sizes))


if __name__ == "__main__":
    main()
