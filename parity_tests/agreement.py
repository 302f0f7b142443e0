"""How closely the two packages agree, measured.

python -m parity_tests.agreement      prints the table, in Markdown
"""

from __future__ import annotations

import platform

import jax
import torch

import posenc_jax
import posenc_torch

from .instrument import DTYPES, Row, run
from .schemes import pairs

__all__ = ["main"]

SCHEMES = ("sinusoidal", "learned", "rope", "rope_scaled", "alibi")
SEEDS = range(3)


def main() -> None:
    print(
        f"jax {jax.__version__} ({jax.default_backend()}), torch {torch.__version__},"
    )
    print(f"Python {platform.python_version()}, {platform.machine()}; jitted.")
    print()
    print("| scheme | dtype | encoding | attention output | gradients |")
    print("|---|---|---|---|---|")
    for scheme in SCHEMES:
        for dtype in DTYPES:
            rows = list(_rows(scheme, dtype))
            encoding = [row for path, row in rows if not path and row.name[:2] != "d_"]
            output = [row for path, row in rows if path and row.name == "out"]
            gradients = [row for _, row in rows if row.name[:2] == "d_"]
            cells = map(_cell, (encoding, output, gradients))
            print(f"| {scheme} | {dtype} | {' | '.join(cells)} |")


def _rows(scheme: str, dtype: str):
    """Every tensor of every pair of the scheme, and whether it comes from a whole path with attention."""
    for name, pair in pairs(posenc_jax, posenc_torch).items():
        if _scheme(name) == scheme:
            for profile in pair.profiles:
                for seed in SEEDS:
                    report = run(
                        pair, dtype=dtype, profile=profile, seed=seed, jit=True
                    )
                    report.check()
                    for row in report.rows:
                        yield name.startswith("path."), row


def _scheme(name: str) -> str:
    """What a pair is of; scaled RoPE apart, since a traced length makes its frequencies in float32."""
    part = name.removeprefix("path.").partition(".")[0]
    return part if part == "rope_scaled" else part.partition("_")[0]


def _cell(rows: list[Row]) -> str:
    if not rows:
        return ""
    apart = max(row.apart for row in rows)
    ratio = max(max(row.ratio_a, row.ratio_b) for row in rows)
    return f"{apart:.1e} ({ratio:.2g})"


if __name__ == "__main__":
    main()
