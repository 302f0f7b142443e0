"""Placeholder docstring."""

from __future__ import annotations

PARITY = ("sinusoidal.", "path.sinusoidal")


def test_sinusoidal_parity(parity_case):
    parity_case.run().check()
