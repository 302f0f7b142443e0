"""Placeholder docstring."""

from __future__ import annotations

PARITY = ("attention.",)


def test_attention_parity(parity_case):
    parity_case.run().check()
