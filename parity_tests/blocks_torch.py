"""A transformer block and a tiny language model with each of the four encodings; `blocks_nnx.py` is the twin.

The two files are one text in two frameworks: a diff of them shows where the frameworks differ and nothing else. What
they would differ in by default is said aloud: the epsilon of the layer norm, the exact GELU.

Weights are drawn once, in NumPy, under their names in Flax and in Flax's layout: see `functional`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from posenc_torch import (
    LearnedPositionalEncoding,
    RotaryPositionEmbedding,
    SinusoidalPositionalEncoding,
    alibi_bias,
    alibi_slopes,
    apply_rotary_pos_emb,
    dot_product_attention,
)

__all__ = [
    "SCHEMES",
    "LanguageModel",
    "TransformerBlock",
    "functional",
    "shapes",
]

Arrays = Mapping[str, np.ndarray]

SCHEMES = ("sinusoidal", "learned", "rope", "alibi")

EPSILON = 1e-6


class TransformerBlock(nn.Module):
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
    """

    def __init__(
        self,
        scheme: str,
        *,
        dim: int,
        num_heads: int,
        max_len: int,
        dtype: Any = torch.float32,
    ) -> None:
        super().__init__()
        if scheme not in SCHEMES:
            raise ValueError(f"`scheme` must be one of {SCHEMES}, got {scheme!r}.")
        self.scheme, self.num_heads = scheme, num_heads
        if scheme == "sinusoidal":
            self.position = SinusoidalPositionalEncoding(max_len, dim, dtype=dtype)
        if scheme == "learned":
            self.position = LearnedPositionalEncoding(max_len, dim, dtype=dtype)
        if scheme == "rope":
            head_dim = dim // num_heads
            self.position = RotaryPositionEmbedding(head_dim, max_len, dtype=dtype)
        if scheme == "alibi":
            self.slopes = nn.Parameter(alibi_slopes(num_heads, dtype=dtype))
        self.attention_norm = _norm(dim, dtype)
        self.query = _linear(dim, dim, dtype, bias=False)
        self.key = _linear(dim, dim, dtype, bias=False)
        self.value = _linear(dim, dim, dtype, bias=False)
        self.project = _linear(dim, dim, dtype)
        self.mlp_norm = _norm(dim, dtype)
        self.up = _linear(dim, 4 * dim, dtype)
        self.down = _linear(4 * dim, dim, dtype)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
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
        hidden = F.gelu(self.up(self.mlp_norm(x)), approximate="none")
        out = x + self.down(hidden)
        return {"encoding": encoding, "attention": attention, "out": out}

    def attend(self, x: Tensor) -> Tensor:
        """Causal self-attention of normalised x, heads side by side."""
        query, key, value = (
            project(x).unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)
            for project in (self.query, self.key, self.value)
        )
        if self.scheme == "rope":
            cos, sin = self.position(query)
            query, key = apply_rotary_pos_emb(query, key, cos, sin)
        slopes = self.slopes if self.scheme == "alibi" else None
        heads = dot_product_attention(
            query, key, value, is_causal=True, alibi_slopes=slopes
        )
        return heads.transpose(-3, -2).flatten(-2)

    def encoding(self, x: Tensor) -> Tensor:
        """The encoding of x alone: rows that are added, cosines and sines, or the biases of every head."""
        seq = x.shape[-2]
        if self.scheme == "rope":
            return torch.cat(self.position(seq_len=seq), -1)
        if self.scheme == "alibi":
            return alibi_bias(seq, seq, self.slopes)
        return self.position(torch.zeros_like(x[0]))


class LanguageModel(nn.Module):
    """Tokens in, logits of the next token out: an embedding, one block, a norm and a head."""

    def __init__(
        self, scheme: str, *, vocab: int, dim: int, dtype: Any, **block: Any
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim, dtype=dtype)
        self.block = TransformerBlock(scheme, dim=dim, dtype=dtype, **block)
        self.norm = _norm(dim, dtype)
        self.head = _linear(dim, vocab, dtype, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, [batch, seq, vocab], of tokens [batch, seq]."""
        return self.head(self.norm(self.block(self.embedding(tokens))["out"]))


def _linear(dim: int, out: int, dtype: Any, *, bias: bool = True) -> nn.Linear:
    return nn.Linear(dim, out, bias, dtype=dtype)


def _norm(dim: int, dtype: Any) -> nn.LayerNorm:
    return nn.LayerNorm(dim, EPSILON, dtype=dtype)


# What Flax calls the `weight` of each. A kernel is [in, out] there and [out, in] in torch.
FLAX_NAMES = {nn.Linear: "kernel", nn.LayerNorm: "scale", nn.Embedding: "embedding"}


def functional(module: nn.Module) -> Callable[..., Any]:
    """Turn a module into a function of its input and, by keyword, of all its weights.

    Args:
        module: The module; its own weights are not used.
    Returns:
        A function (x, **weights). It takes each weight under its name in Flax and as Flax has it, and raises
        ValueError unless there is one for every parameter, of its shape, and no other.
    """
    own, expected = _own_names(module), shapes(module)

    def function(x: Tensor, **weights: Tensor) -> Any:
        _check_weights(weights, expected)
        parameters = {
            own[name]: weight.T if name.endswith("kernel") else weight
            for name, weight in weights.items()
        }
        return torch.func.functional_call(module, parameters, (x,))

    return function


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shape of every weight under its name in Flax, as Flax has it."""
    parameters = dict(module.named_parameters())
    return {
        name: tuple(parameters[own].shape)[:: -1 if name.endswith("kernel") else 1]
        for name, own in _own_names(module).items()
    }


def _own_names(module: nn.Module) -> dict[str, str]:
    """The name in torch of every parameter by its name in Flax."""
    names = {}
    for path, part in module.named_modules():
        for own, _ in part.named_parameters(recurse=False):
            flax = FLAX_NAMES[type(part)] if own == "weight" else own
            names[f"{path}.{flax}".strip(".")] = f"{path}.{own}".strip(".")
    return names


def _check_weights(weights: Mapping[str, Tensor], expected: Mapping[str, Any]) -> None:
    given = {name: tuple(weight.shape) for name, weight in weights.items()}
    if given != expected:
        raise ValueError(
            f"`weights` must be one of its shape for every parameter, "
            f"missing {dict(expected.items() - given.items())}, "
            f"left over {dict(given.items() - expected.items())}."
        )
