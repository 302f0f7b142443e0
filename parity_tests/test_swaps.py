"""The swap test: where a fault is that nobody thought of, seen from the numbers alone."""

from __future__ import annotations

import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from .instrument import swaps
from .test_causes import Q, X, causes

pytestmark = pytest.mark.usefixtures("first_cause_suffices")


def swap(port, original, **inputs):
    found = [c for c in causes(port, original, **inputs) if c.startswith("swap test")]
    assert found, "no swap"
    return found[0]


def line(function, text):
    """Where it has this text."""
    lines, first = inspect.getsourcelines(function)
    (at,) = [n for n, code in enumerate(lines, first) if text in code]
    return f"test_swaps.py:{at}"


def test_fault_without_a_name():
    """Between two steps that are right on both sides; axes in another order."""

    def port(x):
        y = jnp.swapaxes(x, 1, 2)
        y = jnp.sin(y * y)
        y = jnp.sqrt(y + 2)
        return jnp.swapaxes(y, 1, 2).sum(-1)

    def original(x):
        y = torch.tanh(x)
        y = torch.sqrt(y + 2)
        return y.sum(-1)

    found = swap(port, original, x=Q)
    assert "of sin at " + line(port, "sin") + " for its own" in found
    assert "own of tanh at " + line(original, "tanh") + "," in found


def test_fault_in_every_layer():
    """Before the first place nothing, though every layer's numbers are others."""

    def port(x):
        for _ in range(3):
            y = jnp.cumsum(x, 1)
            y = jnp.sinh(y / 9)
            x = x + y @ jnp.eye(6)[::-1]
        return x

    def original(x):
        for _ in range(3):
            y = torch.cumsum(x, 1)
            y = torch.tanh(y / 9)
            x = x + y @ torch.eye(6).flip(0).to(x)
        return x

    found = causes(port, original, x=X)
    (said,) = [cause for cause in found if cause.startswith("swap test")]
    assert line(port, "sinh") + " for its own" in said
    assert line(original, "tanh") + " at each of 3 places" in said
    assert said.endswith("nothing else")
    # Of the second layer too everything differs: what is said is the first.
    assert found[-2].endswith(f"not from tanh at {line(original, 'tanh')}")


def test_queries_of_later_layers_only_follow():
    """Keys alone have the fault: a name is found for those of all layers at once."""

    def rotated(np_, x, start):
        at = np_.arange(5)[:, None] + start
        angles = at / 100.0 ** (np_.arange(4) / 4)
        cos, sin = np_.cos(angles), np_.sin(angles)
        a, b = x[..., :4], x[..., 4:]
        stack = jnp.concatenate if np_ is jnp else torch.cat
        return stack([a * cos - b * sin, b * cos + a * sin], -1)

    def layers(np_, q, start):
        for _ in range(2):
            a, b = rotated(np_, q, 0), rotated(np_, q, start)
            q = q + np_.tanh(a @ b.swapaxes(-1, -2)) @ q
        return q

    def port(q):
        return layers(jnp, q, 1)

    found = causes(port, lambda q: layers(torch, q, 0), q=Q)
    assert "positions after their own by 1" in found[0]
    # Keys of both layers, and no queries.
    (said,) = [cause for cause in found if cause.startswith("swap test")]
    assert "at each of 2 places" in said


def test_late_places_are_found_when_time_is_short(monkeypatch):
    """Where first places take long, from the outputs back."""

    def port(x):
        for _ in range(3):
            x = jnp.sin(x)
            x = jnp.exp(x) - x.sum(-1, keepdims=True)
        y = jnp.arctan(x)
        return jnp.cumsum(y, 1)

    def original(x):
        for _ in range(3):
            x = torch.tanh(x)
            x = torch.exp(x) - x.prod(-1, keepdim=True)
        y = torch.atan(x)
        return torch.cumsum(y, 1)

    turns = iter([0.0, 10.0])
    monkeypatch.setattr(swaps.time, "process_time", lambda: next(turns, 2.5))
    monkeypatch.setattr(swaps, "MOST_SECONDS", 4)
    found = swap(port, original, x=X)
    assert line(original, "prod") in found


def test_what_follows_is_no_place():
    """One line makes queries and keys; keys are wrong, and queries of the second layer only follow."""

    def scaled(x, factor):
        return x * factor

    def layers(np_, q, factor):
        for _ in range(2):
            a, b = scaled(np_.tanh(q), 1.5), scaled(np_.tanh(q), factor)
            q = np_.sin(a @ b.swapaxes(-1, -2)) @ q
        return q

    def port(q):
        return layers(jnp, q, 2.0)

    def original(q):
        return layers(torch, q, 3.0)

    found = swap(port, original, q=Q)
    assert "own of mul at " + line(scaled, "return") in found
    assert "at each of 2 places" in found


def test_two_faults():
    """Nothing after the place that is said: it is after both."""

    def port(x):
        y = jnp.sin(x)
        y = jnp.exp(y) + x
        y = jnp.cosh(y)
        return jnp.sqrt(3 + y).sum(-1)

    def original(x):
        y = torch.tanh(x)
        y = torch.exp(y) + x
        y = torch.atan(y)
        return torch.sqrt(3 + y).sum(-1)

    found = swap(port, original, x=X)
    assert "of cosh at " + line(port, "cosh") + " for its own" in found
    assert "of atan at " + line(original, "atan") + "," in found


def test_a_small_fault_after_a_large_one():
    """It is a thousandth of a thousandth of what the large one makes, and still something after it."""

    def port(x):
        y = jnp.sin(x)
        y = y.sum(-1, keepdims=True) - x
        y = jnp.exp(y) + 1e-5
        return jnp.sqrt(y).sum(-1)

    def original(x):
        y = torch.tanh(x)
        y = y.sum(-1, keepdim=True) - x
        y = torch.exp(y) + 2e-5
        return torch.sqrt(y).sum(-1)

    assert "1e-5" in line_of(swap(port, original, x=X))


def line_of(cause):
    """The code of A's place."""
    number = int(cause.partition("test_swaps.py:")[2].partition(" ")[0])
    return Path(__file__).read_text().splitlines()[number - 1]


def test_other_outputs_stay_as_they_are():
    """What makes one output right and another wrong is not the place."""

    def port(x):
        y = jnp.tanh(x)
        return jnp.exp(2 * y), jnp.cumsum(y, 1)

    def original(x):
        y = torch.tanh(x)
        return torch.exp(y), torch.cumsum(y, 1)

    found = causes(port, original, x=X)
    assert not any(cause.startswith("swap test") for cause in found)


def test_no_place_but_the_output():
    """What parts in the last step is said by the lines; that its outputs give its outputs says nothing."""
    found = causes(lambda x: jnp.sin(x * x), lambda x: torch.tanh(x * x), x=X)
    assert not any(cause.startswith("swap test") for cause in found)


def test_small_faults_are_placed():
    """Of some millionths, where stages that differ are counterparts by the usual share."""

    def port(x):
        y = jnp.exp(x)
        y = jnp.sqrt(y + 1e-5 * jnp.sin(x))
        return jnp.cumsum(y, 1)

    def original(x):
        y = torch.exp(x)
        y = torch.sqrt(y + 1e-5 * torch.cos(x))
        return torch.cumsum(y, 1)

    assert line(port, "sin") + " for its own" in swap(port, original, x=X)


@pytest.mark.parametrize("function", [jnp.abs, jax.nn.sigmoid])
def test_step_that_leaves_the_numbers_as_they_are(function):
    """relu of what is positive: what differs is that step, not the one before, and none is added."""

    def port(x):
        y = x @ x.mT
        y = function(y)
        return jnp.cumsum(y, 1)

    def original(x):
        y = x @ x.mT
        y = torch.relu(y)
        return y.cumsum(1)

    found = causes(port, original, x=X)
    assert not any(cause.endswith("are added") for cause in found)
    (said,) = [cause for cause in found if cause.startswith("swap test")]
    assert "own of relu at " + line(original, "relu") in said


def test_line_of_several_products():
    """Of two in PyTorch and three in JAX the last ones are one place, in every layer."""

    def port(x):
        weights = jnp.linspace(0.5, 1.0, 8)

        def scaled(x):
            return x * (x * x) * (2 - weights)

        for _ in range(2):
            x = scaled(jnp.tanh(x)) - x[..., ::-1]
        return jnp.cumsum(jnp.sin(x), 1)

    def original(x):
        weights = torch.linspace(0.5, 1.0, 8).to(x)

        def scaled(x):
            return x * x.pow(2) * weights

        for _ in range(2):
            x = scaled(torch.tanh(x)) - x.flip(-1)
        return torch.cumsum(torch.sin(x), 1)

    found = swap(port, original, x=Q)
    assert "for its own of mul at " + line(original, "pow") in found
    assert "at each of 2 places" in found


def test_outputs_on_the_way():
    """An output that leads to another may be the place."""

    def port(x):
        y = jnp.sinh(x)
        return y, jnp.cumsum(jnp.exp(y), 1)

    def original(x):
        y = torch.tanh(x)
        return y, torch.cumsum(torch.exp(y), 1)

    assert "own of tanh at " in swap(port, original, x=X)


def test_small_channels_count():
    """Beside one ten million times larger."""
    sizes = np.array([1e7, 1, 1, 1, 1, 1])

    def port(x):
        y = jnp.exp(jnp.sin(x)) * sizes
        y = y * np.array([1, 1, 1, 2, 2, 2])
        return jnp.cumsum(y, 1)

    def original(x):
        y = torch.exp(torch.tanh(x)) * torch.as_tensor(sizes)
        y = y * 1
        return torch.cumsum(y, 1)

    assert line(port, "1, 2, 2, 2") in swap(port, original, x=X)


@pytest.mark.parametrize("has", ["port", "original"])
def test_steps_of_one_side(has):
    """A norm that the other side has not, of several steps."""

    def norm(np_, x):
        y = x - x.mean(-1, keepdims=True)
        return y / np_.sqrt((y * y).mean(-1, keepdims=True))

    def program(np_, x, *, norms):
        y = np_.tanh(x)
        y = norm(np_, y) if norms else y
        return np_.exp(y).sum(-1)

    def port(x):
        return program(jnp, x, norms=has == "port")

    def original(x):
        return program(torch, x, norms=has == "original")

    found = causes(port, original, x=X)
    words = "added" if has == "port" else "left out"
    (said,) = [cause for cause in found if cause.endswith(f"are {words}")]
    assert "the steps after tanh at " + line(program, "tanh") in said
    assert "up to div at " + line(norm, "return") in said


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda x, w: x * (1 + w), "1 added to input 2 of the step 'mul'"),
        (lambda x, w: (1 + x) * w, "1 added to input 1 of the step 'mul'"),
        (
            lambda x, w: (x.astype(jnp.bfloat16) * w.astype(jnp.bfloat16)).astype(
                x.dtype
            ),
            "the step 'mul' computed in bfloat16",
        ),
    ],
)
def test_products(fault, words):
    def port(x, w):
        return jnp.cumsum(fault(jnp.tanh(x), w), 1)

    def original(x, w):
        return torch.cumsum(torch.tanh(x) * w, 1)

    found = causes(port, original, x=X, w=X[0, 0])
    assert any(words in cause for cause in found[:3]), "\n".join(found)
