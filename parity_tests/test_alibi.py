"""Placeholder docstring."""

from __future__ import annotations

PARITY = ("alibi.", "path.alibi")


def test_alibi_parity(parity_case):
    parity_case.run().check()
