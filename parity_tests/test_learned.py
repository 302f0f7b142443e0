"""Placeholder docstring."""

from __future__ import annotations

PARITY = ("learned.", "path.learned")


def test_learned_parity(parity_case):
    parity_case.run().check()
