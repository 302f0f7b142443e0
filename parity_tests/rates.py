"""How often the comparison of ports calls a right pair wrong: `python -m parity_tests.rates`, some minutes.

The right pairs are those of this project, at other inputs, weights and position profiles in every drawing; no oracle is
given, and nothing of what the pairs know of themselves but the two functions.
"""

from __future__ import annotations

import argparse

import numpy as np

import posenc_jax
import posenc_torch

from .instrument import compare
from .schemes import pairs


def main() -> int:
    """Print every false alarm, and how many there were; return their number."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--drawings", type=int, default=7, help="of every pair")
    drawings = parser.parse_args().drawings
    # One function of the reference is enough: the kernels' are the same.
    chosen = {
        name: pair
        for name, pair in pairs(posenc_jax, posenc_torch).items()
        if not name.startswith(("blockwise", "pallas_tpu"))
    }
    wrong = 0
    for seed in range(drawings):
        for name, pair in chosen.items():
            profile = pair.profiles[seed % len(pair.profiles)]
            inputs = pair.draw(np.random.default_rng(seed), profile)
            report = compare(pair.jax, pair.torch, inputs, seed=seed)
            if not report.passed:
                wrong += 1
                print(f"{name}, {profile}, drawing {seed}\n{report}")
    print(f"{wrong} false alarms in {drawings * len(chosen)} right pairs.")
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
