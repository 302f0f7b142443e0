"""Its port to Flax, with one fault: the base of the frequencies is RoPE's usual one, not the model's."""

import jax
import jax.numpy as jnp
from flax import nnx


class Attention(nnx.Module):
    def __init__(self, width=48, heads=6, kv_heads=3, *, rngs):
        self.heads, self.kv_heads, self.dim = heads, kv_heads, width // heads
        self.q = nnx.Linear(width, heads * self.dim, rngs=rngs)
        self.k = nnx.Linear(width, kv_heads * self.dim, rngs=rngs)
        self.v = nnx.Linear(width, kv_heads * self.dim, rngs=rngs)
        self.out = nnx.Linear(heads * self.dim, width, rngs=rngs)

    def rotate(self, x, positions):
        inv_freq = 1.0 / 10_000.0 ** (jnp.arange(0, self.dim, 2) / self.dim)
        angles = (positions[:, None] * inv_freq)[:, None, :]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        first, second = jnp.split(x, 2, axis=-1)
        return jnp.concatenate(
            [first * cos - second * sin, second * cos + first * sin], axis=-1
        )

    def __call__(self, x):
        batch, tokens, _ = x.shape
        positions = jnp.arange(tokens)
        q = self.q(x).reshape(batch, tokens, self.heads, self.dim)
        k = self.k(x).reshape(batch, tokens, self.kv_heads, self.dim)
        v = self.v(x).reshape(batch, tokens, self.kv_heads, self.dim)
        out = jax.nn.dot_product_attention(
            self.rotate(q, positions), self.rotate(k, positions), v, is_causal=True
        )
        return self.out(out.reshape(batch, tokens, -1))
