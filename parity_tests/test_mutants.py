"""The gate fires: every planted fault is seen, and an unharmed copy is not."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from .mutants import MUTANTS, kill

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def _id(mutant):
    return f"{mutant.file}-{mutant.name}".replace(" ", "_")


def pytest_generate_tests(metafunc):
    if "mutant" in metafunc.fixturenames:
        # Which are seen does not depend on the order of other tests; `python -m parity_tests.mutants` shows all.
        step = {"quick": 4, "default": 3, "full": 1}[metafunc.config.getoption("level")]
        metafunc.parametrize("mutant", MUTANTS[::step], ids=_id)


def test_planted_fault_is_seen(mutant):
    found = kill(mutant)
    assert found is not None, f"{mutant.name} in {mutant.file} survives {mutant.pair}"
    side = "A_WORSE" if mutant.file.startswith("posenc_jax") else "B_WORSE"
    raised = found.verdict.endswith("Error")
    assert found.verdict in (side, "DIVERGE", "CONTRACT") or raised


@pytest.mark.parametrize(
    "file", ["posenc_jax/rope.py", "posenc_torch/rope.py"], ids=["jax", "torch"]
)
def test_unharmed_copy_survives(file):
    """Loading a copy is no fault: otherwise every mutant would be killed by its loading."""
    same = "if inv_freq.ndim != 1:"
    original = dataclasses.replace(
        MUTANTS[0], file=file, old=same, new=same, pair="rope.half.leading"
    )
    assert kill(original) is None


def test_mutant_that_does_not_apply_is_an_error():
    stale = dataclasses.replace(MUTANTS[0], old="no such line")
    with pytest.raises(ValueError, match="must occur once"):
        kill(stale)


def test_mutants_are_many_and_in_every_scheme():
    assert len(MUTANTS) >= 100
    files = Counter(mutant.file for mutant in MUTANTS)
    for package in ("posenc_jax", "posenc_torch"):
        for scheme in (
            *("sinusoidal", "learned", "alibi", "attention"),
            *("rope", "rope_scaling", "rope_axes"),
        ):
            assert files[f"{package}/{scheme}.py"] > 0
    assert len({(m.file, m.name) for m in MUTANTS}) == len(MUTANTS)


def test_kill_names_the_case():
    found = kill(MUTANTS[0])
    assert (found.case, found.verdict) == ("float64,sparse", "DIVERGE")
    assert found.ratio > 1e9
