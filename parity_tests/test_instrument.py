"""The instrument is calibrated: it fails on everything it should fail on, and its oracles are right."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from .instrument import DTYPES, PROFILES, VERDICTS, Pair, Report, judge, oracles, run
from .instrument.bounded import Bounded, exact, exp, tanh
from .instrument.dtypes import unit_roundoff
from .instrument.in_jax import run_jax
from .instrument.in_torch import run_torch
from .instrument.inputs import FAR, positions

F32, F64, BF16 = DTYPES["float32"], DTYPES["float64"], DTYPES["bfloat16"]
TRUTH = np.random.default_rng(0).normal(size=(4, 5))
RIGHT = TRUTH.astype(F32)
# One rounding of the result: what a float32 program that computes it exactly may show.
ONE_ROUNDING = Bounded(TRUTH, np.abs(TRUTH))


def verdict(a, b, truth=ONE_ROUNDING, dtype=F32, compute=F32):
    return judge("out", a, b, truth, dtype=dtype, compute=compute).verdict


def nudged(by, at=(1, 2)):
    result = RIGHT.copy()
    result[at] += by
    return result


def test_judge_equal():
    assert verdict(RIGHT, RIGHT) == "EQUAL"


def test_judge_agree_within_rounding():
    towards = np.where(TRUTH > RIGHT, np.inf, -np.inf).astype(F32)
    other = np.nextafter(RIGHT, towards)
    loose = Bounded(TRUTH, 4 * np.abs(TRUTH))
    assert verdict(RIGHT, other, loose) == "AGREE"


@pytest.mark.parametrize("by", [1e-5, -1e-5, 1.0], ids=str)
def test_judge_names_the_worse_side(by):
    assert verdict(nudged(by), RIGHT) == "A_WORSE"
    assert verdict(RIGHT, nudged(by)) == "B_WORSE"


def test_judge_float64_difference_is_another_function():
    double = Bounded(TRUTH, np.abs(TRUTH))
    right = TRUTH.copy()
    assert verdict(right + 1e-12, right, double, F64, F64) == "DIVERGE"
    assert verdict(right, right + 1e-12, double, F64, F64) == "DIVERGE"


def test_judge_shared_fault_is_both_poor():
    assert verdict(nudged(1e-3), nudged(1e-3)) == "BOTH_POOR"


def test_judge_two_faults_diverge():
    assert verdict(nudged(1.0), nudged(-1.0)) == "DIVERGE"


def test_judge_one_bad_head_cannot_hide():
    """Within the loose bound of the whole, but far worse than its peer in one slice."""
    loose = Bounded(TRUTH, np.full_like(TRUTH, 1e4))
    bad = RIGHT.copy()
    bad[2] += np.float32(5e3 * unit_roundoff(F32))
    assert verdict(bad, RIGHT, loose) == "A_WORSE"
    assert verdict(RIGHT, bad, loose) == "B_WORSE"


@pytest.mark.parametrize(
    "wrong",
    [
        RIGHT[:, :4],
        RIGHT[None],
        RIGHT.astype(F64),
        RIGHT.astype(BF16),
        nudged(np.nan),
        nudged(np.inf),
    ],
    ids=["shape", "rank", "wider", "narrower", "nan", "inf"],
)
def test_judge_contract(wrong):
    assert verdict(wrong, RIGHT) == "CONTRACT"
    assert verdict(RIGHT, wrong) == "CONTRACT"


def test_judge_nan_where_nan_is_right():
    truth, right = TRUTH.copy(), RIGHT.copy()
    truth[0, 0] = right[0, 0] = np.nan
    bounded = Bounded(truth, np.abs(truth))
    assert verdict(right, right, bounded) == "EQUAL"
    assert verdict(RIGHT, right, bounded) == "CONTRACT"
    assert verdict(right, RIGHT, bounded) == "CONTRACT"


@pytest.mark.parametrize(
    "truth",
    [np.zeros((4, 5)), np.full((4, 5), 2.5), np.full((4, 5), np.nan), np.zeros((0, 5))],
    ids=["zero", "constant", "nan", "empty"],
)
def test_judge_nothing_is_invalid(truth):
    result = truth.astype(F32)
    assert verdict(result, result, exact(truth)) == "INVALID"


def test_judge_exact_places_allow_nothing():
    assert verdict(RIGHT, RIGHT, exact(RIGHT)) == "EQUAL"
    ulp = np.spacing(RIGHT[1, 2])
    assert verdict(nudged(ulp), RIGHT, exact(RIGHT)) == "A_WORSE"


def test_judge_half_precision_allows_one_rounding():
    rounded = TRUTH.astype(BF16)
    assert verdict(rounded, rounded, ONE_ROUNDING, BF16, F32) == "EQUAL"
    twice = np.nextafter(rounded, BF16.type(9))
    assert verdict(twice, rounded, ONE_ROUNDING, BF16, F32) == "A_WORSE"


def test_judge_bound_that_admits_zero_is_invalid():
    loose = Bounded(TRUTH, np.full_like(TRUTH, 4 / unit_roundoff(F32)))
    assert verdict(RIGHT, RIGHT, loose) == "INVALID"


def test_report_verdict_is_the_worst():
    rows = [dataclasses.replace(_row(), verdict=verdict) for verdict in VERDICTS]
    assert Report("all", tuple(rows)).verdict == "INVALID"
    assert Report("two", tuple(rows[:2])).verdict == "AGREE"
    assert Report("none", ()).verdict == "INVALID"


def test_report_check_raises_with_the_table():
    Report("good", (_row(),)).check()
    bad = dataclasses.replace(_row(), verdict="DIVERGE")
    with pytest.raises(AssertionError, match="PARITY DIVERGE  bad"):
        Report("bad", (bad,)).check()


def _row():
    return judge("out", RIGHT, RIGHT, ONE_ROUNDING, dtype=F32, compute=F32)


# Runners ---------------------------------------------------------------------------------------------------------


def _square(x):
    return {"out": x * x}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_runners_keep_bits_and_dtype(dtype):
    x = np.random.default_rng(1).normal(size=(3, 4)).astype(DTYPES[dtype])
    same = {"x": x}
    cotangent = {"out": np.ones_like(x)}
    for results in (
        run_jax(lambda x: {"out": x}, same, cotangent, ("x",), jit=False),
        run_torch(lambda x: {"out": x * 1}, same, cotangent, ("x",)),
    ):
        assert results["out"].dtype == x.dtype
        np.testing.assert_array_equal(results["out"], x)
        np.testing.assert_array_equal(results["d_x"], cotangent["out"])


def test_runners_give_zeros_for_an_unused_input():
    inputs = {"x": TRUTH, "y": TRUTH}
    cotangents = {"out": TRUTH}
    for results in (
        run_jax(lambda x, y: _square(x), inputs, cotangents, ("x", "y"), jit=True),
        run_torch(lambda x, y: _square(x), inputs, cotangents, ("x", "y")),
    ):
        assert not results["d_y"].any()
        np.testing.assert_allclose(results["d_x"], 2 * TRUTH**2, rtol=1e-15)


def test_run_reports_a_stopped_gradient():
    def draw(rng, profile):
        return {"x": rng.normal(size=(3, 4))}

    def oracle(x):
        return {"out": x * x}, lambda g: {"x": g["out"] * x * exact(2.0)}

    def stopped(x):
        return {"out": x.detach() * x}

    fair = Pair("square", _square, _square, oracle, draw, wrt=("x",))
    assert run(fair, dtype="float64", profile="dense", seed=0, jit=True).passed
    unfair = dataclasses.replace(fair, torch=stopped)
    report = run(unfair, dtype="float64", profile="dense", seed=0, jit=True)
    assert [row.verdict for row in report.rows] == ["EQUAL", "DIVERGE"]


# Inputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_positions_of_every_profile(profile):
    drawn = positions(np.random.default_rng(3), profile, 2, 13)
    assert {array.shape for array in drawn.values()} == {(2, 13)}
    assert {array.dtype for array in drawn.values()} == {np.dtype(np.int32)}
    assert drawn["positions"].min() >= 0
    assert drawn["positions"].max() <= FAR


def test_positions_reach_what_hides_faults():
    """0 hides an offset, below 256 hides bfloat16, one offset hides a common rotation: sparse has none of these."""
    sparse = positions(np.random.default_rng(0), "sparse", 2, 13)["positions"]
    assert all({0, 255, 257, FAR} <= set(row) for row in sparse.tolist())
    packed = positions(np.random.default_rng(0), "packed", 2, 13)
    assert (packed["segment_ids"].max(1) == 1).all()
    assert (packed["positions"] == 0).sum() == 4
    padded = positions(np.random.default_rng(0), "left_pad", 2, 13)
    assert len(set((padded["segment_ids"] < 0).sum(1))) == 2


# Bounded arithmetic ----------------------------------------------------------------------------------------------


BOUNDED = {
    "add": (lambda x, y: x + y, jnp.add),
    "subtract": (lambda x, y: x - y, jnp.subtract),
    "multiply": (lambda x, y: x * y, jnp.multiply),
    "divide": (lambda x, y: x / y, jnp.divide),
    "matmul": (lambda x, y: x @ y, jnp.matmul),
    "exp": (lambda x, y: exp(x), lambda x, y: jnp.exp(x)),
    "tanh": (lambda x, y: tanh(x), lambda x, y: jnp.tanh(x)),
    "sum": (lambda x, y: (x * y).sum(-1), lambda x, y: (x * y).sum(-1)),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_bounded_holds_and_is_not_idle(name):
    """float32 stays inside the bound, and the bound is not so wide that nothing could ever leave it."""
    bounded, plain = BOUNDED[name]
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(2, 20, 20)).astype(F32)
    right = bounded(exact(x), exact(y))
    bound = unit_roundoff(F32) * right.units
    worst = (np.abs(np.asarray(plain(x, y), F64) - right.value) / bound).max()
    assert 1 / 64 < worst <= 1


def test_bounded_carries_input_errors():
    x = Bounded(np.array([3.0]), np.array([2.0]))
    assert (x + 1.0).units == 2 + 4
    assert (x * 2.0).units == 2 * 2 + 6
    assert (-x).units == 2
    assert (x + 0.0).units == 2
    cancelled = x - x
    assert (cancelled + 1.0).units == 4 + 1
    assert x.cast(256.0).units == 2 + 256 * 3
    assert x.cast(1.0).units == 2


# Oracles ---------------------------------------------------------------------------------------------------------


def test_rope_oracle_is_the_closed_form():
    cos, sin = oracles.rope_cos_sin(np.array([[3, FAR]]), 8, 10_000.0)
    with mpmath.workdps(60):
        angle = FAR * mpmath.mpf(10_000) ** (-mpmath.mpf(2) / 8)
        expected = float(mpmath.cos(angle)), float(mpmath.sin(angle))
    assert (cos.value[0, 1, 1], sin.value[0, 1, 1]) == expected
    np.testing.assert_allclose(cos.value[0, 0], np.cos(3 * 10.0 ** -np.arange(4)))


def test_oracle_gradients_are_derivatives():
    """Each vector-Jacobian product against a central difference of its own oracle; 1e-6 is that difference's error."""
    rng = np.random.default_rng(7)
    q, k, v = (rng.normal(size=(1, 4, h, 3)) for h in (4, 2, 2))
    bias = rng.normal(size=(1, 4, 4, 4))
    allowed = np.tril(np.ones((4, 4), bool)) & (np.arange(4) != 2)[:, None]
    allowed = np.broadcast_to(allowed, (1, 4, 4, 4))

    def attend(q, k, v, bias, scale, cap):
        out, vjp = oracles.attention(
            exact(q),
            exact(k),
            exact(v),
            biases=(exact(bias),),
            allowed=allowed,
            scale=exact(scale),
            softcap=exact(cap),
        )
        names = "query", "key", "value", "logits", "scale", "logit_softcap"
        return out, lambda g: tuple(map(vjp(g).get, names))

    scalars = np.array(0.7), np.array(2.0)
    _check_vjp(attend, (q, k, v, bias, *scalars), rng)
    tables = rng.normal(size=(2, 1, 4, 2))

    def turn(x, cos, sin):
        return oracles.rotate(
            exact(x), exact(cos), exact(sin), "interleaved", "trailing"
        )

    _check_vjp(turn, (rng.normal(size=(1, 4, 3, 5)), *tables), rng)
    where = np.array([[0, 3, 3, 9]])

    def look_up(table):
        out, vjp = oracles.look_up(exact(table), where, "clip")
        return out, lambda g: (vjp(g),)

    _check_vjp(look_up, (rng.normal(size=(5, 2)),), rng)


def _check_vjp(function, arguments, rng):
    out, vjp = function(*arguments)
    cotangent = rng.normal(size=out.value.shape)
    for index, gradient in enumerate(vjp(exact(cotangent))):
        direction = rng.normal(size=arguments[index].shape)

        def along(step, index=index, direction=direction):
            moved = list(arguments)
            moved[index] = moved[index] + step * direction
            return (function(*moved)[0].value * cotangent).sum()

        numeric = (along(1e-5) - along(-1e-5)) / 2e-5
        analytic = (gradient.value * direction).sum()
        assert analytic == pytest.approx(numeric, rel=1e-6, abs=1e-6)
        assert abs(analytic) > 1e-3


def test_alibi_oracle_is_the_paper():
    """Section 3: for 8 heads 1/2, 1/4, ..., 1/256; for 16 heads the ratio is its square root."""
    np.testing.assert_array_equal(oracles.alibi_slopes(8), 0.5 ** np.arange(1, 9))
    sixteen = oracles.alibi_slopes(16)
    np.testing.assert_allclose(sixteen[1:] / sixteen[:-1], 0.5**0.5, rtol=1e-15)


def test_unit_roundoff():
    assert unit_roundoff(F32) == 2**-24
    assert unit_roundoff(BF16) == 2**-8
    assert unit_roundoff(DTYPES["float16"]) == 2**-11
