"""Every published variant of the sinusoidal, learned and ALiBi schemes, against the code that made it."""

from __future__ import annotations

import numpy as np
import pytest

from .twins import TWINS
from .variants import U, evaluate
from .variants_alibi import VARIANTS as ALIBI
from .variants_learned import VARIANTS as LEARNED
from .variants_sinusoidal import VARIANTS as SINUSOIDAL

VARIANTS = SINUSOIDAL + LEARNED + ALIBI


@pytest.mark.parametrize("twin", TWINS, ids=str)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: f"{v.scheme} {v.call}")
def test_variant_is_what_its_source_computes(variant, twin):
    reference = variant.reference()
    found = evaluate(twin, variant.call, reference.given)
    assert found.shape == reference.value.shape
    assert np.unique(reference.value).size > 1
    atol = variant.units * U * np.abs(reference.value).max()
    np.testing.assert_allclose(found, reference.value, rtol=0, atol=atol)


def test_no_call_stands_twice():
    """Two rows of the table that mean the same are one row."""
    calls = [variant.call for variant in VARIANTS]
    assert sorted(set(calls)) == sorted(calls)
