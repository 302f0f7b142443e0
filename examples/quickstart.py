"""A Flax transformer block with each position encoding, and its PyTorch twin: are they one function?

    python examples/quickstart.py

`compare` gives twins the same weights and embeddings of a real text. They run in float64, where nothing but the same
function agrees, and in float32: the encoding, what attention gathers, the block's output, and the gradients of x and of
every weight.
"""

from __future__ import annotations

import platform
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import flax
import jax
import numpy as np
import torch

from parity_tests import VERDICTS, Row, blocks_nnx, blocks_torch, compare
from parity_tests.instrument.tolerances import PORT_FACTOR

BATCH, SEQ, DIM = 2, 256, 96
SIZES = {"dim": DIM, "num_heads": 6, "max_len": SEQ}
SCHEMES = blocks_torch.SCHEMES

LINE = "{:<10}  {:<12}  {:<14}  {:<14}  {:<14}  {:<14}  {:<7}  {}"


def main() -> int:
    """Print the table; 1 if twins are not one function."""
    # Tensors this small are done before a second thread is awake.
    torch.set_num_threads(1)
    text = Path(textwrap.__file__).read_bytes()
    tokens = np.frombuffer(text, np.uint8, BATCH * SEQ).reshape(BATCH, SEQ)
    x = np.random.default_rng(0).normal(size=(256, DIM))[tokens]
    print(
        f"Python {platform.python_version()}; jax {jax.__version__}, flax "
        f"{flax.__version__}, {jax.devices()[0].device_kind}, jit; torch "
        f"{torch.__version__}, cpu; matmul precision highest; x64 in float64 runs only\n"
        f"Text: {textwrap.__name__}.py of the standard library, {len(text)} bytes, of "
        f"which {BATCH} passages of {SEQ}\n"
    )
    report = compare(port, original, drawn(x))
    titles = "encoding", "attention", "block output", "gradients", "float64", "verdict"
    print(" " * 26 + "largest difference, and what float32 rounding allows")
    print(LINE.format("scheme", "output shape", *titles))
    for scheme in SCHEMES:
        rows = [row for row in report.rows if scheme in row.name]
        single = [row for row in rows if row.name.endswith("float32")]
        parts = [
            [row for row in single if row.name.startswith(f"{scheme}/{output}")]
            for output in ("encoding", "attention", "out")
        ]
        parts.append([row for row in single if row.name.startswith("d_")])
        cells = [f"{row.apart:.0e} of {row.bound:.0e}" for row in map(worst, parts)]
        double = max(row.apart for row in rows if row.name.endswith("float64"))
        cells += [f"{double:.0e}", worst(rows).verdict]
        print(LINE.format(scheme, str(x.shape), *cells))
    print(
        '\n"a of b": in float32 JAX and PyTorch differ by a, and rounding allows b, '
        f"{PORT_FACTOR:g} times what it costs PyTorch.\n"
        "Gradients: of x and all weights, the one nearest its limit. Float64: the largest difference there."
    )
    if not report.passed:
        print(report)
        return 1
    print(f"All {len(SCHEMES)} blocks agree: one function in JAX and in PyTorch.")
    return 0


def drawn(x: np.ndarray) -> dict[str, np.ndarray]:
    """For every scheme x and all weights of its block."""
    rng = np.random.default_rng(1)
    inputs = {}
    for scheme in SCHEMES:
        block = blocks_torch.TransformerBlock(scheme, **SIZES)
        weights = blocks_nnx.draw_weights(blocks_torch.shapes(block), rng)
        own = {"x": x, **weights}
        inputs |= {f"{scheme}.{name}": array for name, array in own.items()}
    return inputs


def port(**inputs: Any) -> dict[str, Any]:
    """All blocks in Flax: one program, so what they share is compiled once."""
    outputs = {}
    for scheme, own in of_schemes(inputs):
        dtype = own["x"].dtype.name
        kind = blocks_nnx.TransformerBlock
        block = blocks_nnx.abstract(kind, scheme, dtype=dtype, **SIZES)
        outputs[scheme] = blocks_nnx.functional(block)(**own)
    return outputs


def original(**inputs: Any) -> dict[str, Any]:
    """All blocks in PyTorch."""
    outputs = {}
    for scheme, own in of_schemes(inputs):
        block = blocks_torch.TransformerBlock(scheme, dtype=own["x"].dtype, **SIZES)
        outputs[scheme] = blocks_torch.functional(block)(**own)
    return outputs


def of_schemes(inputs: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Each with its own inputs."""
    for scheme in SCHEMES:
        start = f"{scheme}."
        own = {n.removeprefix(start): x for n, x in inputs.items() if start in n}
        yield scheme, own


def worst(rows: Iterable[Row]) -> Row:
    """Of the worst verdict, the one nearest its limit."""
    return max(rows, key=lambda row: (VERDICTS.index(row.verdict), row.ratio_a))


if __name__ == "__main__":
    sys.exit(main())
