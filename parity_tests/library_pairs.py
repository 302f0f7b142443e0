"""Functions and modules that JAX or Flax and PyTorch both have, which nobody ported: right pairs by other hands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
from flax import linen, nnx
from torch.nn import functional

from .instrument.draws import Draw, normal, tokens

__all__ = ["SIZES", "LibraryPair", "library_pairs"]

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


SIZES = {"B": 2, "S": 17, "D": 24}
X = {"x": normal("B S D")}

# The two programs, and what to draw for them.
LibraryPair = tuple[tuple[Any, Any], dict[str, Draw]]


def library_pairs() -> dict[str, LibraryPair]:
    """By name, modules made anew."""
    found: dict[str, LibraryPair] = {
        name: (both, X) for name, both in FUNCTIONS.items()
    }
    heads = {name: normal("B S 4 8") for name in "qkv"}
    for causal in (False, True):
        both = partial(_attend_jax, causal), partial(_attend_torch, causal)
        found["causal attention" if causal else "attention"] = both, heads
    return found | _modules()


def _attend_jax(causal: bool, q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, is_causal=causal)


def _attend_torch(causal: bool, q: Any, k: Any, v: Any) -> Any:
    q, k, v = (y.transpose(1, 2) for y in (q, k, v))
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return out.transpose(1, 2)


def _modules() -> dict[str, LibraryPair]:
    rngs = nnx.Rngs(0)
    layers = (
        nnx.Sequential(
            nnx.Linear(24, 32, rngs=rngs), nnx.silu, nnx.Linear(32, 24, rngs=rngs)
        ),
        torch.nn.Sequential(
            torch.nn.Linear(24, 32), torch.nn.SiLU(), torch.nn.Linear(32, 24)
        ),
    )
    both = {
        "Linear": (nnx.Linear(24, 7, rngs=rngs), torch.nn.Linear(24, 7)),
        "Dense": (linen.Dense(7), torch.nn.Linear(24, 7)),
        "LayerNorm": (
            nnx.LayerNorm(24, epsilon=1e-5, rngs=rngs),
            torch.nn.LayerNorm(24),
        ),
        "linen.LayerNorm": (linen.LayerNorm(epsilon=1e-5), torch.nn.LayerNorm(24)),
        "RMSNorm": (
            nnx.RMSNorm(24, epsilon=1e-6, rngs=rngs),
            torch.nn.RMSNorm(24, eps=1e-6),
        ),
        "layers": layers,
        "Conv": (nnx.Conv(24, 5, (3,), rngs=rngs), _Convolution()),
    }
    embed = nnx.Embed(11, 24, rngs=rngs), torch.nn.Embedding(11, 24)
    found: dict[str, LibraryPair] = {name: (sides, X) for name, sides in both.items()}
    return found | {"Embed": (embed, {"x": tokens("B S", 11)})}


class _Convolution(torch.nn.Module):
    """Channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(24, 5, 3, padding="same")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.mT).mT
