"""How far from the truth are the cosines and sines of RoPE, and from which position on?

    python examples/precision.py [precision.png]

Every library runs its own code, as it comes, for heads of 128 channels and base 10000. An error is the worst of cosine
and sine over 64 pairs and 60 random positions of the octave that ends at the position named. The truth is the formula
in integers of 192 bits. (rotary-embedding-torch makes positions in the dtype of the queries, so it is there twice.)

Needs `mpmath`. The other libraries (`pip install diffusers rotary-embedding-torch transformers x-transformers`) are
left out where they are not installed, and so is the figure without `matplotlib`.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from importlib.metadata import version
from typing import NamedTuple

import jax.numpy as jnp
import mpmath
import numpy as np
import torch

import posenc_jax
import posenc_torch

HEAD_DIM, BASE = 128, 10_000.0
LAST = 2**31 - 1
NAMED = (4096, 131_072, 1_048_576, LAST)
SAMPLES = 60
BITS = 192

Tables = tuple[np.ndarray, np.ndarray]
Groups = dict[str, dict[str, list[float]]]  # by line of the figure, then by library


class Library(NamedTuple):
    """Makes cos and sin [positions, pairs] from positions; `group` is its line in the figure."""

    name: str
    group: str
    package: str
    prepare: Callable[[], Callable[[np.ndarray], Tables]]


# Libraries


def ours_in_torch(angles: str, frequencies: type) -> Callable[[np.ndarray], Tables]:
    """RoPE of posenc_torch."""
    inv_freq = posenc_torch.RopeConfig(HEAD_DIM, base=BASE).inv_freq(dtype=frequencies)

    def tables(positions: np.ndarray) -> Tables:
        at = torch.from_numpy(positions)
        cos, sin = posenc_torch.rope_cos_sin(at, inv_freq, angles=angles)
        return cos.numpy(), sin.numpy()

    return tables


def ours_in_jax(angles: str, frequencies: type) -> Callable[[np.ndarray], Tables]:
    """RoPE of posenc_jax, without x64."""
    inv_freq = posenc_jax.RopeConfig(HEAD_DIM, base=BASE).inv_freq(dtype=frequencies)

    def tables(positions: np.ndarray) -> Tables:
        at = jnp.asarray(positions, jnp.int32)
        cos, sin = posenc_jax.rope_cos_sin(at, inv_freq, angles=angles)
        return np.asarray(cos), np.asarray(sin)

    return tables


def transformers() -> Callable[[np.ndarray], Tables]:
    """Llama of Hugging Face: pairs (i, i + 64), every table twice."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(head_dim=HEAD_DIM, rope_theta=BASE)
    rotary, x = LlamaRotaryEmbedding(config), torch.zeros(1)

    def tables(positions: np.ndarray) -> Tables:
        cos, sin = rotary(x, torch.from_numpy(positions)[None])
        return cos[0, :, : HEAD_DIM // 2].numpy(), sin[0, :, : HEAD_DIM // 2].numpy()

    return tables


def diffusers() -> Callable[[np.ndarray], Tables]:
    """The tables of its transformers, pairs (2i, 2i + 1)."""
    from diffusers.models.embeddings import get_1d_rotary_pos_embed

    def tables(positions: np.ndarray) -> Tables:
        made = get_1d_rotary_pos_embed(HEAD_DIM, positions, theta=BASE, use_real=True)
        return made[0][:, ::2].numpy(), made[1][:, ::2].numpy()

    return tables


def x_transformers() -> Callable[[np.ndarray], Tables]:
    """It hands out angles, whose cosine and sine its attention takes."""
    from x_transformers.x_transformers import RotaryEmbedding

    rotary = RotaryEmbedding(HEAD_DIM, base=BASE)

    def tables(positions: np.ndarray) -> Tables:
        angles = rotary(torch.from_numpy(positions))[0][0, :, ::2]
        return angles.cos().numpy(), angles.sin().numpy()

    return tables


def rotary_embedding_torch(dtype: torch.dtype) -> Callable[[np.ndarray], Tables]:
    """It makes positions in the dtype of the queries, then angles, whose cosine and sine it takes."""
    from rotary_embedding_torch import RotaryEmbedding

    rotary = RotaryEmbedding(HEAD_DIM, theta=BASE)

    def angles(position: int) -> torch.Tensor:
        at = rotary.get_seq_pos(1, dtype=dtype, offset=position)
        return rotary(at, seq_len=1, offset=position)[0, ::2]

    def tables(positions: np.ndarray) -> Tables:
        made = torch.stack([angles(position) for position in positions.tolist()])
        return made.detach().cos().numpy(), made.detach().sin().numpy()

    return tables


BFLOAT16 = "bfloat16 positions"
FLOAT32 = "float32 angles"
EXACT = 'angles="exact"'
LIBRARIES = [
    Library(
        "rotary-embedding-torch",
        BFLOAT16,
        "rotary-embedding-torch",
        lambda: rotary_embedding_torch(torch.bfloat16),
    ),
    Library(
        "rotary-embedding-torch",
        FLOAT32,
        "rotary-embedding-torch",
        lambda: rotary_embedding_torch(torch.float32),
    ),
    Library("x-transformers", FLOAT32, "x-transformers", x_transformers),
    Library("diffusers", FLOAT32, "diffusers", diffusers),
    Library("transformers", FLOAT32, "transformers", transformers),
    Library(
        "posenc_torch", FLOAT32, "torch", lambda: ours_in_torch("float32", np.float32)
    ),
    Library("posenc_jax", FLOAT32, "jax", lambda: ours_in_jax("float32", np.float32)),
    Library(
        "posenc_torch",
        EXACT,
        "torch",
        lambda: ours_in_torch("exact", np.float64),
    ),
    Library(
        "posenc_jax",
        EXACT,
        "jax",
        lambda: ours_in_jax("exact", np.float64),
    ),
]


# The colour of a line, where its name begins, and how long a line of that may be.
STYLES = {
    BFLOAT16: ("#b3541e", (450, 0.08), 24),
    FLOAT32: ("#444444", (9e4, 3e-5), 40),
    EXACT: ("#0b5fa5", (9e4, 2e-7), 60),
}
TICKS = {
    1: "1",
    256: "256",
    2**12: "4k",
    2**17: "128k",
    2**20: "1M",
    2**24: "16M",
    2**31: "$2^{31}$",
}


# The truth


def turns_per_token() -> list[int]:
    """BASE ** (-2 i / HEAD_DIM) / (2 pi), in units of 2 ** -BITS."""
    with mpmath.workprec(BITS + 32):
        base, pairs = mpmath.mpf(BASE), HEAD_DIM // 2
        frequencies = [base ** (-mpmath.mpf(i) / pairs) for i in range(pairs)]
        return [int(f / (2 * mpmath.pi) * 2**BITS) for f in frequencies]


def truth(positions: np.ndarray, turns: list[int]) -> Tables:
    """In float64, from phases whose whole turns are taken out in integers."""
    phases = [
        [p * turn % 2**BITS / 2**BITS for turn in turns] for p in positions.tolist()
    ]
    angles = 2 * np.pi * np.array(phases)
    return np.cos(angles), np.sin(angles)


# Errors


def octave(last: int) -> np.ndarray:
    """Positions of the octave that ends at `last`, itself among them."""
    rng = np.random.default_rng(last)
    return np.append(rng.integers(last // 2 + 1, last + 1, SAMPLES - 1), last)


def errors(
    tables: Callable[[np.ndarray], Tables], lasts: list[int], turns: list[int]
) -> list[float]:
    """The worst error of each octave."""
    worst = []
    for last in lasts:
        positions = octave(last)
        both = zip(tables(positions), truth(positions, turns), strict=True)
        worst.append(max(float(np.abs(a - b).max()) for a, b in both))
    return worst


def draw(path: str, lasts: list[int], groups: Groups) -> None:
    """Error against position, both on log axes; one line for the worst of each group, named beside it."""
    try:
        import matplotlib
    except ImportError:
        print("No figure: `pip install matplotlib`.")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rc("font", size=8.5)
    figure, axes = pyplot.subplots(figsize=(6, 3.33), layout="constrained")
    for group, found in groups.items():
        colour, at, width = STYLES[group]
        axes.plot(lasts, np.max(list(found.values()), 0), color=colour, lw=1.8)
        label = textwrap.fill(
            f"{group}: {', '.join(found)}", width, break_on_hyphens=False
        )
        axes.text(*at, label, color=colour, linespacing=1.3)
    axes.set(xscale="log", yscale="log", xlim=(1, 2**31), ylim=(2e-8, 4))
    axes.set_xticks(list(TICKS), list(TICKS.values()))
    axes.set_yticks([1e-7, 1e-5, 1e-3, 1e-1])
    axes.minorticks_off()
    axes.set_xlabel("position, tokens")
    title = f"Worst error of cos and sin: RoPE, {HEAD_DIM} channels, base {BASE:.0f}"
    axes.set_title(title, loc="left")
    axes.grid(color="0.9", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Print the table and draw the figure."""
    path = sys.argv[1] if len(sys.argv) > 1 else "precision.png"
    lasts = sorted({*(int(2 ** (k / 2)) for k in range(62)), *NAMED})
    turns = turns_per_token()
    head = "{:<24}{:<20}{:<31}" + "{:>12}" * len(NAMED)
    print(head.format("worst error of cos and sin", "", "at position", *NAMED))
    groups: Groups = {}
    for library in LIBRARIES:
        try:
            tables = library.prepare()
        except ImportError:
            print(f"{library.name}: left out (`pip install {library.package}`)")
            continue
        found = errors(tables, lasts, turns)
        groups.setdefault(library.group, {})[library.name] = found
        row = [f"{found[lasts.index(last)]:.1e}" for last in NAMED]
        package = f"{library.package} {version(library.package)}"
        print(head.format(library.name, library.group, package, *row))
    draw(path, lasts, groups)


if __name__ == "__main__":
    main()
