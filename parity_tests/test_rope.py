"""Placeholder docstring."""

from __future__ import annotations

PARITY = ("rope.", "rope_apply.", "path.rope")


def test_rope_parity(parity_case):
    parity_case.run().check()
