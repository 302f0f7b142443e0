"""Twenty steps of AdamW on a small language model end in the same weights in both frameworks.

Training asks more than a backward pass: a gradient that is wrong in one place moves the weights, and moved weights
move everything after them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch.nn.functional import cross_entropy

import posenc_jax.nnx
from posenc_torch import (
    LearnedPositionalEncoding,
    RotaryPositionEmbedding,
    SinusoidalPositionalEncoding,
)

from . import blocks_nnx, blocks_torch

SCHEMES = blocks_nnx.SCHEMES
STEPS, BATCH, SEQ, VOCAB, DIM, HEADS = 20, 3, 10, 17, 24, 3
MAX_LEN = SEQ + 1
SIZES = {"vocab": VOCAB, "dim": DIM, "num_heads": HEADS, "max_len": MAX_LEN}

# The same numbers for both, and the same rule: eps is added to the root of the corrected second moment, and the decay
# is multiplied by the rate.
RATE, B1, B2, EPS, DECAY = 1e-2, 0.9, 0.999, 1e-8, 0.1

# AdamW divides a gradient by its own size plus EPS, so what a gradient is rounded by, 1e-17 or so, moves a weight by at
# most 1e-17 RATE / EPS = 1e-11 per step, and that only where the gradient is next to nothing. Twenty such steps, fed
# back through the model, stay below this; 4e-14 was measured. A wrong gradient moves a weight by a share of RATE.
SAME = 1e-9
# What a weight must have moved by, and what a planted difference must come to.
MOVED = 1e-3

Arrays = dict[str, np.ndarray]


class Run(NamedTuple):
    """The loss before every step, and the weights after the last."""

    losses: np.ndarray
    weights: Arrays


def tokens() -> np.ndarray:
    """A batch for every step; each token is to predict the next."""
    return np.random.default_rng(0).integers(0, VOCAB, (STEPS, BATCH, SEQ + 1))


def first_weights(scheme: str, start: Arrays | None = None) -> Arrays:
    """The same draw in both frameworks, but for what `start` has instead."""
    shapes = blocks_torch.shapes(torch_model(scheme))
    return {
        **blocks_nnx.draw_weights(shapes, np.random.default_rng(1)),
        **(start or {}),
    }


def torch_model(scheme: str) -> blocks_torch.LanguageModel:
    return blocks_torch.LanguageModel(scheme, **SIZES, dtype=torch.float64)


def flax_model(scheme: str) -> blocks_nnx.LanguageModel:
    model = blocks_nnx.LanguageModel
    return blocks_nnx.abstract(model, scheme, **SIZES, dtype="float64")


def train_in_jax(scheme: str, start: Arrays | None = None) -> Run:
    logits = blocks_nnx.functional(flax_model(scheme))
    optimiser = optax.adamw(RATE, b1=B1, b2=B2, eps=EPS, weight_decay=DECAY)

    def loss(weights: Any, batch: jax.Array) -> jax.Array:
        predicted = logits(batch[:, :-1], **weights)
        losses = optax.softmax_cross_entropy_with_integer_labels(
            predicted, batch[:, 1:]
        )
        return losses.mean()

    @jax.jit
    def step(weights: Any, state: Any, batch: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, batch)
        updates, state = optimiser.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, value

    with jax.enable_x64(True):
        weights = jax.tree.map(jnp.asarray, first_weights(scheme, start))
        state = optimiser.init(weights)
        losses = []
        for batch in tokens():
            weights, state, value = step(weights, state, batch)
            losses.append(float(value))
    return Run(np.array(losses), jax.tree.map(np.asarray, weights))


def train_in_torch(
    scheme: str,
    logits: Callable[..., torch.Tensor],
    optimiser: type[torch.optim.Optimizer] = torch.optim.AdamW,
    eps: float = EPS,
    start: Arrays | None = None,
) -> Run:
    weights = {
        name: torch.tensor(weight, requires_grad=True)
        for name, weight in first_weights(scheme, start).items()
    }
    adamw = optimiser(
        weights.values(), lr=RATE, betas=(B1, B2), eps=eps, weight_decay=DECAY
    )
    losses = []
    for batch in torch.from_numpy(tokens()):
        predicted = logits(batch[:, :-1], **weights)
        value = cross_entropy(predicted.flatten(0, 1), batch[:, 1:].flatten())
        adamw.zero_grad()
        value.backward()
        adamw.step()
        losses.append(value.item())
    ended = {name: weight.detach().numpy() for name, weight in weights.items()}
    return Run(np.array(losses), ended)


def distance(a: Arrays, b: Arrays) -> dict[str, float]:
    """Largest difference of each weight, or that as a share of its largest number if this is more."""
    return {
        name: np.abs(a[name] - b[name]).max() / min(1.0, np.abs(b[name]).max())
        for name in a.keys() | b.keys()
    }


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Tensors this small are done before a second thread wakes up; on a busy machine, waiting for it takes seconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=SCHEMES)
def trained(request):
    """A scheme, and what training it in JAX ends in."""
    return request.param, train_in_jax(request.param)


def test_training_ends_in_the_same_weights(trained):
    scheme, in_jax = trained
    in_torch = train_in_torch(scheme, blocks_torch.functional(torch_model(scheme)))
    apart = distance(in_jax.weights, in_torch.weights)
    assert max(apart.values()) <= SAME, apart
    np.testing.assert_allclose(in_jax.losses, in_torch.losses, rtol=SAME, atol=0)


def test_training_moves_every_weight(trained):
    """Otherwise the same weights at the end would say nothing."""
    scheme, in_jax = trained
    moved = distance(in_jax.weights, first_weights(scheme))
    assert min(moved.values()) > MOVED, moved


def test_planted_difference_is_seen(trained):
    scheme, in_jax = trained
    in_torch = train_in_torch(scheme, with_fault(scheme))
    assert max(distance(in_jax.weights, in_torch.weights).values()) > MOVED


# What a learned table may begin as instead of a draw: each framework makes its own.
STARTS = ({"init": "sinusoidal"}, {"init": "sinusoidal", "preset": "whisper"})
TABLE = "block.position.table"


def start_in_torch(**options: Any) -> Arrays:
    module = LearnedPositionalEncoding(MAX_LEN, DIM, dtype=torch.float64, **options)
    return {TABLE: module.table.detach().numpy()}


def start_in_jax(**options: Any) -> Arrays:
    with jax.enable_x64(True):
        module = posenc_jax.nnx.LearnedPositionalEncoding(
            MAX_LEN, DIM, dtype=jnp.float64, rngs=flax.nnx.Rngs(0), **options
        )
        return {TABLE: np.asarray(module.table[...])}


@pytest.fixture(scope="module", params=STARTS, ids=["paper", "whisper"])
def trained_from_a_sinusoid(request):
    """How the table begins, and what training from there in JAX ends in."""
    return request.param, train_in_jax("learned", start_in_jax(**request.param))


def test_training_from_a_sinusoidal_table_ends_in_the_same_weights(
    trained_from_a_sinusoid,
):
    options, in_jax = trained_from_a_sinusoid
    start = start_in_torch(**options)
    logits = blocks_torch.functional(torch_model("learned"))
    in_torch = train_in_torch("learned", logits, start=start)
    apart = distance(in_jax.weights, in_torch.weights)
    assert max(apart.values()) <= SAME, apart
    np.testing.assert_allclose(in_jax.losses, in_torch.losses, rtol=SAME, atol=0)
    moved = distance(in_jax.weights, first_weights("learned", start))
    assert min(moved.values()) > MOVED, moved


def test_other_start_is_seen(trained_from_a_sinusoid):
    """The table of the other preset: other frequencies, and the columns in another order."""
    options, in_jax = trained_from_a_sinusoid
    (other,) = (start for start in STARTS if start != options)
    logits = blocks_torch.functional(torch_model("learned"))
    in_torch = train_in_torch("learned", logits, start=start_in_torch(**other))
    assert max(distance(in_jax.weights, in_torch.weights).values()) > MOVED


def with_fault(scheme: str) -> Callable[..., torch.Tensor]:
    """The model with another layout, each position off by one, another base, or the slopes of other heads."""
    model = torch_model(scheme)
    if scheme == "sinusoidal":
        model.block.position = SinusoidalPositionalEncoding(
            MAX_LEN, DIM, layout="half", dtype=torch.float64
        )
    if scheme == "learned":
        model.block.position = OffByOne(MAX_LEN, DIM, dtype=torch.float64)
    if scheme == "rope":
        model.block.position = RotaryPositionEmbedding(
            DIM // HEADS, base=500_000.0, dtype=torch.float64
        )
    logits = blocks_torch.functional(model)
    if scheme != "alibi":
        return logits
    slopes = "block.slopes"
    return lambda x, **weights: logits(
        x, **{**weights, slopes: weights[slopes].flip(0)}
    )


class OffByOne(LearnedPositionalEncoding):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x, offset=1)


@pytest.mark.parametrize(
    "other",
    [{"optimiser": torch.optim.Adam}, {"eps": 1.01 * EPS}],
    ids=["decay_in_the_gradient", "eps"],
)
def test_other_optimiser_is_seen(other):
    logits = blocks_torch.functional(torch_model("rope"))
    right, wrong = (
        train_in_torch("rope", logits),
        train_in_torch("rope", logits, **other),
    )
    assert max(distance(right.weights, wrong.weights).values()) > SAME


@pytest.mark.parametrize("scheme", SCHEMES)
def test_models_have_the_same_weights(scheme):
    shapes = blocks_torch.shapes(torch_model(scheme))
    assert shapes == blocks_nnx.shapes(flax_model(scheme))
    learnt = {"learned": "block.position.table", "alibi": "block.slopes"}
    assert (learnt.get(scheme, "head.kernel")) in shapes


@pytest.mark.parametrize("side", [blocks_nnx, blocks_torch], ids=["jax", "torch"])
@pytest.mark.parametrize("fault", ["missing", "left_over", "transposed"])
def test_every_weight_is_used_once(side, fault):
    model = {blocks_nnx: flax_model, blocks_torch: torch_model}[side]("alibi")
    weights = first_weights("alibi")
    if fault == "missing":
        del weights["block.slopes"]
    if fault == "left_over":
        weights["block.slope"] = weights["block.slopes"]
    if fault == "transposed":
        weights["block.up.kernel"] = weights["block.up.kernel"].T
    with pytest.raises(ValueError, match="for every parameter, missing"):
        side.functional(model)(tokens()[0], **weights)
