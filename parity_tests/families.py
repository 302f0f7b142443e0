"""What models do, as calls of this library: `python -m parity_tests.families`.

The first table is which models' rotary embeddings `RopeConfig.from_hf` covers, by how they rotate: printed from the
installed transformers, so it says what test_from_hf.py tests. The second is what test_variants.py runs.
"""

from __future__ import annotations

from collections import defaultdict
from importlib.metadata import version
from typing import Any

import posenc_jax

from .test_from_hf import ALL, REFUSED, WITHOUT_CONFIG, layers_of
from .test_variants import VARIANTS

__all__ = ["main"]

# Rotations without a class of their own, that no configuration describes.
UNNAMED = {
    "lightglue.LightGlue": "frequencies are learned",
    "vjepa2.VJEPA2RopeAttention": "the two channels of a pair turn by different angles",
}


def rotation(config: Any, layers: list[str | None]) -> str:
    """How a model rotates, by the names that `RopeConfig` has for it."""
    read = [posenc_jax.RopeConfig.from_hf(config, layer_type=la) for la in layers]
    first = read[0]
    words = [f'`layout="{first.layout}"`']
    if any(one.rotary_dim < one.head_dim for one in read) and first.axes is None:
        words.append(f"{first.placement} part of a head")
    if first.inverse:
        words.append("`inverse`")
    if first.axes is not None:
        count = max(first.axes) + 1
        words.append(f'{count} `axes`, `progression="{first.progression}"`')
    rules = {type(one.scaling).__name__ for one in read if one.scaling is not None}
    words += [f"`{rule}`" for rule in sorted(rules)]
    if len({one.base for one in read}) > 1:
        words.append("a base for each layer type")
    return ", ".join(words)


def main() -> None:
    """Print both tables."""
    print_rotations()
    print()
    print_variants()


def print_variants() -> None:
    print(f"{len(VARIANTS)} variants of sinusoidal, learned and ALiBi encodings\n")
    print("| models and libraries | call | against |")
    print("|---|---|---|")
    for variant in VARIANTS:
        print(f"| {variant.who} | `{variant.call}` | {variant.source} |")


def print_rotations() -> None:
    groups = defaultdict(set)
    left_out = {**REFUSED, **WITHOUT_CONFIG, **UNNAMED}
    covered = [rotary for rotary in ALL if str(rotary) not in left_out]
    for rotary in covered:
        config, module = rotary.build()
        name = config.model_type or str(rotary).split(".")[0]
        groups[rotation(config, layers_of(config, module))].add(name)
    print(
        f"transformers {version('transformers')}: {len(covered)} of {len(ALL)} "
        f"classes of rotary embedding\n"
    )
    print("| rotation | models (`model_type`, default configuration) |")
    print("|---|---|")
    for words, names in sorted(groups.items()):
        print(f"| {words} | {', '.join(sorted(names))} |")
    for name, reason in left_out.items():
        print(f"| **not covered**: {reason} | {name.split('.')[1]} |")


if __name__ == "__main__":
    main()
