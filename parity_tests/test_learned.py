"""Learned encoding: parity of rows, gradients and attention; the three policies; the first table."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch

import posenc_jax
import posenc_torch

from .twins import TWINS

PARITY = ("learned.", "path.learned")

both = pytest.mark.parametrize("twin", TWINS, ids=str)

TABLE = np.random.default_rng(4).normal(size=(5, 3))


def test_learned_parity(parity_case):
    parity_case.run().check()


@both
@pytest.mark.parametrize("position", [5, -1, 131_071, -(2**31)], ids=str)
def test_learned_position_encoding_out_of_range(twin, position):
    positions = np.array([0, position, 4], np.int32)
    with pytest.raises(ValueError, match=r"`positions` must be in 0\.\.4"):
        twin.call("learned_position_encoding", TABLE, positions)
    missing, clipped = (
        twin.call("learned_position_encoding", TABLE, positions, out_of_range=policy)
        for policy in ("nan", "clip")
    )
    np.testing.assert_array_equal(missing[[0, 2]], TABLE[[0, 4]])
    assert np.isnan(missing[1]).all()
    edge = 0 if position < 0 else 4
    np.testing.assert_array_equal(clipped, TABLE[[0, edge, 4]])


@both
def test_learned_position_encoding_one_row_table(twin):
    """Flax's own Embed gives the only row of a one-row table for any index."""
    positions = np.array([0, 1], np.int32)
    rows = twin.call(
        "learned_position_encoding", TABLE[:1], positions, out_of_range="nan"
    )
    np.testing.assert_array_equal(np.isnan(rows).all(-1), [False, True])


@both
def test_init_position_table_sinusoidal_is_the_encoding(twin):
    start = (jax.random.key(0),) if twin.name == "jax" else ()
    table = twin.call("init_position_table", *start, 6, 8, init="sinusoidal")
    np.testing.assert_array_equal(
        table, twin.call("sinusoidal_position_encoding", 6, 8)
    )


# 40 000 draws: the mean of N(0, s^2) is within 6 s / 200 and s itself within 4 %, but for once in 10^8 runs.
DRAWS, MEAN, SPREAD = (400, 100), 6 / 200, 0.04


@pytest.mark.parametrize(
    "table",
    [
        np.asarray(posenc_jax.init_position_table(jax.random.key(1), *DRAWS)),
        posenc_torch.init_position_table(
            *DRAWS, generator=torch.Generator().manual_seed(1)
        ).numpy(),
    ],
    ids=["jax", "torch"],
)
def test_init_position_table_normal_has_its_moments(table):
    assert table.dtype == np.float32
    assert abs(table.mean()) < 0.02 * MEAN
    assert table.std() == pytest.approx(0.02, rel=SPREAD)


def test_init_position_table_follows_its_source_of_randomness():
    keys = [posenc_jax.init_position_table(jax.random.key(k), 3, 4) for k in (0, 0, 1)]
    seeds = [
        posenc_torch.init_position_table(
            3, 4, generator=torch.Generator().manual_seed(k)
        )
        for k in (0, 0, 1)
    ]
    for same, again, other in (keys, seeds):
        assert bool((same == again).all())
        assert not bool((same == other).any())
