"""A transformer block and a tiny language model with each of the four encodings; `blocks_torch.py` is the twin.

The two files are one text in two frameworks: a diff of them shows where the frameworks differ and nothing else. What
they would differ in by default is said aloud: the epsilon of the layer norm and its variance (Flax's fast one cancels),
the exact GELU, the precision of products.

Weights are drawn once, in NumPy, under their names in Flax and in Flax's layout: see `functional`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posenc_jax import (
    alibi_bias,
    alibi_slopes,
    apply_rotary_pos_emb,
    dot_product_attention,
)
from posenc_jax.nnx import (
    LearnedPositionalEncoding,
    RotaryPositionEmbedding,
    SinusoidalPositionalEncoding,
)

__all__ = [
    "SCHEMES",
    "LanguageModel",
    "TransformerBlock",
    "abstract",
    "draw_weights",
    "functional",
    "shapes",
]

Arrays = Mapping[str, np.ndarray]

SCHEMES = ("sinusoidal", "learned", "rope", "alibi")

EPSILON = 1e-6


class TransformerBlock(nnx.Module):
    """One causal pre-norm block: x + attention, then x + a two-layer perceptron.

    "sinusoidal" and "learned" are added to x on entry, "rope" turns queries and keys, "alibi" biases the scores by
    slopes that train. Queries, keys and values have no bias: that of the keys would have no effect, since a softmax
    does not see what is added to all of its inputs, and its gradient would be nothing but rounding.

    Args:
        scheme: One of `SCHEMES`.
        dim: Channels of x; `num_heads` divides it.
        num_heads: Attention heads.
        max_len: Rows of the learned table, tokens.
        dtype: float32 or float64, of the parameters and the encoding.
        rngs: Source of randomness of the first weights.
    """

    def __init__(
        self,
        scheme: str,
        *,
        dim: int,
        num_heads: int,
        max_len: int,
        dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        if scheme not in SCHEMES:
            raise ValueError(f"`scheme` must be one of {SCHEMES}, got {scheme!r}.")
        self.scheme, self.num_heads = scheme, num_heads
        if scheme == "sinusoidal":
            self.position = SinusoidalPositionalEncoding(max_len, dim, dtype=dtype)
        if scheme == "learned":
            self.position = LearnedPositionalEncoding(
                max_len, dim, dtype=dtype, rngs=rngs
            )
        if scheme == "rope":
            head_dim = dim // num_heads
            self.position = RotaryPositionEmbedding(head_dim, max_len, dtype=dtype)
        if scheme == "alibi":
            self.slopes = nnx.Param(jnp.asarray(alibi_slopes(num_heads, dtype=dtype)))
        self.attention_norm = _norm(dim, dtype, rngs)
        self.query = _linear(dim, dim, dtype, rngs, bias=False)
        self.key = _linear(dim, dim, dtype, rngs, bias=False)
        self.value = _linear(dim, dim, dtype, rngs, bias=False)
        self.project = _linear(dim, dim, dtype, rngs)
        self.mlp_norm = _norm(dim, dtype, rngs)
        self.up = _linear(dim, 4 * dim, dtype, rngs)
        self.down = _linear(4 * dim, dim, dtype, rngs)

    def __call__(self, x: Array) -> dict[str, Array]:
        """Run the block.

        Args:
            x: Embeddings, [batch, seq, dim].
        Returns:
            `encoding`, see there; `attention`, [batch, seq, dim], what the heads gathered, before the projection;
            `out`, [batch, seq, dim].
        """
        encoding = self.encoding(x)
        if self.scheme in ("sinusoidal", "learned"):
            x = self.position(x)
        attention = self.attend(self.attention_norm(x))
        x = x + self.project(attention)
        hidden = nnx.gelu(self.up(self.mlp_norm(x)), approximate=False)
        out = x + self.down(hidden)
        return {"encoding": encoding, "attention": attention, "out": out}

    def attend(self, x: Array) -> Array:
        """Causal self-attention of normalised x, heads side by side."""
        query, key, value = (
            project(x).reshape(*x.shape[:-1], self.num_heads, -1)
            for project in (self.query, self.key, self.value)
        )
        if self.scheme == "rope":
            cos, sin = self.position(query)
            query, key = apply_rotary_pos_emb(query, key, cos, sin)
        slopes = self.slopes[...] if self.scheme == "alibi" else None
        heads = dot_product_attention(
            query, key, value, is_causal=True, alibi_slopes=slopes
        )
        return heads.reshape(x.shape)

    def encoding(self, x: Array) -> Array:
        """The encoding of x alone: rows that are added, cosines and sines, or the biases of every head."""
        seq = x.shape[-2]
        if self.scheme == "rope":
            return jnp.concatenate(self.position(seq_len=seq), -1)
        if self.scheme == "alibi":
            return alibi_bias(seq, seq, self.slopes[...])
        return self.position(jnp.zeros_like(x[0]))


class LanguageModel(nnx.Module):
    """Tokens in, logits of the next token out: an embedding, one block, a norm and a head."""

    def __init__(
        self,
        scheme: str,
        *,
        vocab: int,
        dim: int,
        dtype: Any,
        rngs: nnx.Rngs,
        **block: Any,
    ) -> None:
        self.embedding = nnx.Embed(vocab, dim, param_dtype=dtype, rngs=rngs)
        self.block = TransformerBlock(scheme, dim=dim, dtype=dtype, rngs=rngs, **block)
        self.norm = _norm(dim, dtype, rngs)
        self.head = _linear(dim, vocab, dtype, rngs, bias=False)

    def __call__(self, tokens: Array) -> Array:
        """Logits, [batch, seq, vocab], of tokens [batch, seq]."""
        return self.head(self.norm(self.block(self.embedding(tokens))["out"]))


def _linear(
    dim: int, out: int, dtype: Any, rngs: nnx.Rngs, *, bias: bool = True
) -> nnx.Linear:
    return nnx.Linear(
        dim, out, use_bias=bias, param_dtype=dtype, precision="highest", rngs=rngs
    )


def _norm(dim: int, dtype: Any, rngs: nnx.Rngs) -> nnx.LayerNorm:
    return nnx.LayerNorm(
        dim, epsilon=EPSILON, use_fast_variance=False, param_dtype=dtype, rngs=rngs
    )


def draw_weights(
    shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Draw a weight for every shape of `shapes`, in float64; none is 0 or 1, so none can be forgotten unseen."""

    def draw(kind: str, shape: tuple[int, ...]) -> np.ndarray:
        if kind == "slopes":
            return alibi_slopes(*shape) * rng.uniform(0.5, 2, shape)
        drawn = rng.normal(size=shape)
        if kind == "kernel":
            return drawn / np.sqrt(shape[0])
        return 1 + drawn / 4 if kind == "scale" else drawn / 4

    return {name: draw(name.split(".")[-1], shape) for name, shape in shapes.items()}


def abstract(
    model: type[nnx.Module], *arguments: Any, dtype: str, **options: Any
) -> nnx.Module:
    """Make a module whose weights are only shapes, in "float32" or "float64": none is drawn, nothing compiled."""
    with jax.enable_x64(dtype == "float64"):
        return nnx.eval_shape(
            lambda: model(*arguments, dtype=dtype, rngs=nnx.Rngs(0), **options)
        )


def functional(module: nnx.Module) -> Callable[..., Any]:
    """Turn a module into a function of its input and, by keyword, of all its weights.

    Args:
        module: The module; its own weights are not used, so one from `abstract` will do.
    Returns:
        A function (x, **weights). It takes each weight under its name and raises ValueError unless there is one
        for every parameter, of its shape, and no other.
    """
    graph, state = nnx.split(module, nnx.Param)
    expected = shapes(module)

    def function(x: Array, **weights: Array) -> Any:
        _check_weights(weights, expected)
        parameters = [
            (path, parameter.replace(weights[_name(path)]))
            for path, parameter in nnx.to_flat_state(state)
        ]
        return nnx.merge(graph, nnx.from_flat_state(parameters))(x)

    return function


def shapes(module: nnx.Module) -> dict[str, tuple[int, ...]]:
    """Shape of every weight under its name."""
    parameters = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {_name(path): parameter.shape for path, parameter in parameters}


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _check_weights(weights: Mapping[str, Array], expected: Mapping[str, Any]) -> None:
    given = {name: tuple(weight.shape) for name, weight in weights.items()}
    if given != expected:
        raise ValueError(
            f"`weights` must be one of its shape for every parameter, "
            f"missing {dict(expected.items() - given.items())}, "
            f"left over {dict(given.items() - expected.items())}."
        )
