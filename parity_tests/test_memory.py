"""Memory of attention, forward and backward, as the compilers of a CPU and of TPUs plan it: linear in the tokens.

Nothing runs, so lengths may be those of long documents.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import pytest

from . import tpu

HEADS, HEAD_DIM = 2, 128
LENGTHS = (8192, 32_768, 131_072)

# Eight arrays [tokens, heads, head_dim] go in and out: query, key, value, three gradients, outputs and their gradient.
# In float32, as attention computes, a dozen leaves room for four copies in another layout.
PER_TOKEN = 12 * HEADS * HEAD_DIM * 4
# What does not grow with the tokens: blocks of scores, and the program.
FIXED = 8 * 2**20


class Program(NamedTuple):
    """A compiled program: bytes that it needs, and the elements of its largest array."""

    memory: int
    largest: int


def compiled(
    implementation: str, target: str, length: int, effort: float = 0.0
) -> Program:
    program = tpu.attention_program(
        implementation, target, length, HEADS, HEAD_DIM, effort
    )
    plan = program.memory_analysis()
    shapes = re.findall(r"\b[a-z]+\d*\[([\d,]+)\]", program.as_text())
    return Program(
        # A TPU's temporary bytes are without what stands in its fast memory, which the peak has; a CPU's peak is
        # without temporary bytes.
        max(plan.temp_size_in_bytes, plan.peak_memory_in_bytes),
        max(math.prod(map(int, shape.split(","))) for shape in shapes),
    )


# Another TPU's plan is much the same, and its compiler as slow.
MARKS = dict.fromkeys(tpu.TOPOLOGIES[1:], pytest.mark.full)


def cases(*implementations: str, targets: tuple[str, ...]) -> list:
    return [
        pytest.param(implementation, target, marks=MARKS.get(target, ()))
        for implementation in implementations
        for target in targets
    ]


@pytest.mark.parametrize(
    ("implementation", "target"),
    [
        *cases("blockwise", targets=("cpu", *tpu.TOPOLOGIES)),
        # Its compiling takes as long as all the others', so at the full level.
        *(
            pytest.param("pallas_tpu", target, marks=pytest.mark.full)
            for target in tpu.TOPOLOGIES
        ),
    ],
)
def test_memory_is_linear_in_the_tokens(implementation, target):
    programs = [compiled(implementation, target, length) for length in LENGTHS]
    for program, length in zip(programs, LENGTHS, strict=True):
        assert program.memory <= PER_TOKEN * length + FIXED, (length, program)
        assert program.largest < length**2, (length, program)
    # A square would be 256 times larger. A tenth more than 16 times, since a compiler chooses layouts, and what to copy
    # into them, anew for every length.
    assert programs[-1].memory <= 1.1 * 16 * programs[0].memory, programs


@pytest.mark.parametrize(
    ("implementation", "target"),
    cases("reference", targets=("cpu", *tpu.TOPOLOGIES)),
)
def test_memory_of_the_reference_is_a_square(implementation, target):
    """So these figures do see an array of all scores, here in bytes two for each score at least."""
    length = LENGTHS[0]
    # With the least effort a TPU's compiler takes a tenth of the time, for the same arrays.
    program = compiled(implementation, target, length, effort=-1.0)
    assert program.memory >= HEADS * length**2 * 2
    assert program.largest >= HEADS * length**2
