"""Functions and modules that JAX or Flax and PyTorch both have, which nobody ported: right pairs by other hands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from flax import linen, nnx
from torch.nn import functional

from .instrument.draws import Draw, normal, tokens

__all__ = ["Counterparts", "counterparts"]

FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "gelu": (lambda x: jax.nn.gelu(x, approximate=False), functional.gelu),
    "gelu by tanh": (jax.nn.gelu, lambda x: functional.gelu(x, approximate="tanh")),
    "silu": (jax.nn.silu, functional.silu),
    "softplus": (jax.nn.softplus, functional.softplus),
    "elu": (jax.nn.elu, functional.elu),
    "selu": (jax.nn.selu, functional.selu),
    "leaky relu": (jax.nn.leaky_relu, functional.leaky_relu),
    "mish": (jax.nn.mish, functional.mish),
    "log sigmoid": (jax.nn.log_sigmoid, functional.logsigmoid),
    "gated": (jax.nn.glu, functional.glu),
    "softmax": (jax.nn.softmax, lambda x: x.softmax(-1)),
    "log softmax": (jax.nn.log_softmax, lambda x: x.log_softmax(-1)),
    "log of a sum": (lambda x: jax.nn.logsumexp(x, -1), lambda x: x.logsumexp(-1)),
    "standardize": (
        lambda x: jax.nn.standardize(x, epsilon=1e-5),
        lambda x: functional.layer_norm(x, x.shape[-1:]),
    ),
    "running sum": (lambda x: jnp.cumsum(x, 1), lambda x: x.cumsum(1)),
    "variance": (lambda x: x.var(-1, ddof=1), lambda x: x.var(-1)),
    "norm": (lambda x: jnp.linalg.norm(x, axis=-1), lambda x: x.norm(dim=-1)),
    "sorted": (lambda x: jnp.sort(x, -1), lambda x: x.sort(-1).values),
    "padded and rolled": (
        lambda x: jnp.roll(jnp.pad(x, ((0, 0), (2, 1), (0, 0))), 3, 1),
        lambda x: functional.pad(x, (0, 0, 2, 1)).roll(3, 1),
    ),
    "fourier transform": (
        lambda x: jnp.abs(jnp.fft.rfft(x, axis=1)),
        lambda x: torch.fft.rfft(x, dim=1).abs(),
    ),
    "larger image": (
        lambda x: jax.image.resize(x, (*x.shape[:1], 19, 48), "linear"),
        lambda x: functional.interpolate(x[:, None], (19, 48), mode="bilinear")[:, 0],
    ),
    "outer products": (
        lambda x: jnp.einsum("bsi,bsj->bij", x, x),
        lambda x: torch.einsum("bsi,bsj->bij", x, x),
    ),
}


class Counterparts(NamedTuple):
    """The two programs, and what to draw for them."""

    jax: Any
    torch: Any
    draws: dict[str, Draw]

    @property
    def sizes(self) -> dict[str, int]:
        return {"B": 2, "S": 17, "D": 24}


def counterparts() -> dict[str, Counterparts]:
    """By name, modules made anew."""
    x = {"x": normal("B S D")}
    found = {name: Counterparts(*both, x) for name, both in FUNCTIONS.items()}
    return found | dict(_attention()) | dict(_modules(x))


def _attention() -> Iterator[tuple[str, Counterparts]]:
    heads = {name: normal("B S 4 8") for name in "qkv"}
    for causal in (False, True):

        def ours(q: Any, k: Any, v: Any, causal: bool = causal) -> Any:
            return jax.nn.dot_product_attention(q, k, v, is_causal=causal)

        def theirs(q: Any, k: Any, v: Any, causal: bool = causal) -> Any:
            q, k, v = (y.transpose(1, 2) for y in (q, k, v))
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            return out.transpose(1, 2)

        name = "causal attention" if causal else "attention"
        yield name, Counterparts(ours, theirs, heads)


def _modules(x: dict[str, Draw]) -> Iterator[tuple[str, Counterparts]]:
    rngs = nnx.Rngs(0)
    yield (
        "Linear",
        Counterparts(nnx.Linear(24, 7, rngs=rngs), torch.nn.Linear(24, 7), x),
    )
    yield "Dense", Counterparts(linen.Dense(7), torch.nn.Linear(24, 7), x)
    yield (
        "LayerNorm",
        Counterparts(
            nnx.LayerNorm(24, epsilon=1e-5, rngs=rngs), torch.nn.LayerNorm(24), x
        ),
    )
    yield (
        "linen.LayerNorm",
        Counterparts(linen.LayerNorm(epsilon=1e-5), torch.nn.LayerNorm(24), x),
    )
    yield (
        "RMSNorm",
        Counterparts(
            nnx.RMSNorm(24, epsilon=1e-6, rngs=rngs), torch.nn.RMSNorm(24, eps=1e-6), x
        ),
    )
    yield (
        "Embed",
        Counterparts(
            nnx.Embed(11, 24, rngs=rngs),
            torch.nn.Embedding(11, 24),
            {"x": tokens("B S", 11)},
        ),
    )
    yield (
        "layers",
        Counterparts(
            nnx.Sequential(
                nnx.Linear(24, 32, rngs=rngs), nnx.silu, nnx.Linear(32, 24, rngs=rngs)
            ),
            torch.nn.Sequential(
                torch.nn.Linear(24, 32), torch.nn.SiLU(), torch.nn.Linear(32, 24)
            ),
            x,
        ),
    )
    yield "Conv", Counterparts(nnx.Conv(24, 5, (3,), rngs=rngs), _Convolution(), x)


class _Convolution(torch.nn.Module):
    """Channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(24, 5, 3, padding="same")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.mT).mT
