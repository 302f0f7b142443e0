"""A Flax transformer block with each position encoding, and its PyTorch twin: are they one function?

    python examples/quickstart.py

Twins get the same weights, embeddings of a real text and cotangents, and run forward and backward in float32.
Compared are the encoding, what attention gathers, the block's output, and the gradients of x and of every weight.

How large may a difference be? The twins also run in float64, where nothing but the same function agrees to 1e-12.
That result is as good as the truth, so it shows how far rounding alone takes PyTorch from it in float32.
"""

from __future__ import annotations

import math
import platform
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import flax
import jax
import numpy as np
import torch

from parity_tests import blocks_nnx, blocks_torch
from parity_tests.instrument import DTYPES, PASSING, VERDICTS, judge
from parity_tests.instrument.bounded import Bounded
from parity_tests.instrument.frameworks import unit_roundoff
from parity_tests.instrument.tolerances import PEER_FACTOR

BATCH, SEQ, DIM = 2, 256, 96
SIZES = {"dim": DIM, "num_heads": 6, "max_len": SEQ}
F32, F64 = DTYPES["float32"], DTYPES["float64"]
SAME_FUNCTION = 1e-12  # of the largest number, in float64

LINE = "{:<10}  {:<12}  {:<14}  {:<14}  {:<14}  {:<14}  {:<7}  {}"


class Result(NamedTuple):
    """How far twins are apart in float32, how far rounding may take them, and how far apart they are in float64."""

    verdict: str
    difference: float
    allowed: float
    in_float64: float  # as a share of the largest number


def main() -> int:
    """Print the table; 1 if twins are not one function."""
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
    results = compare_twins(x)
    titles = "encoding", "attention", "block output", "gradients", "float64", "verdict"
    print(" " * 26 + "largest difference, and what float32 rounding allows")
    print(LINE.format("scheme", "output shape", *titles))
    verdicts = []
    for scheme in blocks_torch.SCHEMES:
        result = results[scheme]
        gradients = worst(result[name] for name in result if name.startswith("d_"))
        shown = result["encoding"], result["attention"], result["out"], gradients
        cells = [f"{tensor.difference:.0e} of {tensor.allowed:.0e}" for tensor in shown]
        double = max(tensor.in_float64 for tensor in result.values())
        verdicts.append(worst(shown).verdict)
        cells += [f"{double:.0e}", verdicts[-1]]
        print(LINE.format(scheme, str(x.shape), *cells))
    print(
        f'\n"a of b": in float32 JAX and PyTorch differ by a, and rounding allows b, '
        f"{PEER_FACTOR:g} times an honest error.\nGradients: of x and all "
        f"weights, the one nearest its limit. Float64: the difference there, as a share "
        f"of the largest number."
    )
    if set(verdicts) <= set(PASSING):
        print(f"All {len(verdicts)} blocks agree: one function in JAX and in PyTorch.")
    return 0 if set(verdicts) <= set(PASSING) else 1


def compare_twins(x: np.ndarray) -> dict[str, dict[str, Result]]:
    """Run all twins in both precisions; judge every output, and under "d_" and its name every gradient."""
    # Tensors this small are done before a second thread is awake.
    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    inputs, cotangents = {}, {}
    for scheme in blocks_torch.SCHEMES:
        block = blocks_torch.TransformerBlock(scheme, **SIZES)
        weights = blocks_nnx.draw_weights(blocks_torch.shapes(block), rng)
        inputs[scheme] = {"x": x, **weights}
        outputs = block(torch.tensor(x, dtype=torch.float32))
        cotangents[scheme] = {
            n: rng.normal(size=out.shape) for n, out in outputs.items()
        }
    single = jax.tree.map(lambda array: array.astype(F32), (inputs, cotangents))
    double = jax.tree.map(lambda array: array.astype(F64), single)
    a, a64 = (blocks_nnx.run_blocks(*drawn, **SIZES) for drawn in (single, double))
    b, b64 = (blocks_torch.run_blocks(*drawn, **SIZES) for drawn in (single, double))
    return jax.tree.map(result, a, b, a64, b64)


def result(a: np.ndarray, b: np.ndarray, a64: np.ndarray, b64: np.ndarray) -> Result:
    """Judge one tensor of JAX, a, and of PyTorch, b, by what both are in float64.

    Neither side may be PEER_FACTOR times worse than the other. A sum of n terms is off by about sqrt(n) roundings of
    the largest number, and none here has more terms than there are tokens; an error counts as at least that, in
    case it was lucky.
    """
    size = np.abs(b64).max()
    units = np.full(b64.shape, SAME_FUNCTION * size / unit_roundoff(F64))
    same = judge("", a64, b64, Bounded(b64, units), dtype=F64, compute=F64)
    rounding = math.sqrt(BATCH * SEQ) * unit_roundoff(F32) * size
    error_a, error_b = (max(np.abs(x - b64).max(), rounding) for x in (a, b))
    difference = np.abs(a - b).max()
    if same.verdict not in PASSING:
        verdict = same.verdict
    elif not error_a <= PEER_FACTOR * error_b:
        verdict = "A_WORSE"
    elif not error_b <= PEER_FACTOR * error_a:
        verdict = "B_WORSE"
    else:
        verdict = "AGREE" if difference else "EQUAL"
    allowed = PEER_FACTOR * min(error_a, error_b)
    return Result(verdict, difference, allowed, np.abs(a64 - b64).max() / size)


def worst(results: Iterable[Result]) -> Result:
    """Of the worst verdict, the one nearest its limit."""
    severity = {verdict: rank for rank, verdict in enumerate(VERDICTS)}
    return max(results, key=lambda r: (severity[r.verdict], r.difference / r.allowed))


if __name__ == "__main__":
    sys.exit(main())
