"""Where to add an absolute encoding: before or after the layer norm at the entrance of a transformer.

Before, what is left of the position depends on the scale of the token embeddings: at the usual 0.02 the sinusoids
(of size about 0.7) drown the tokens, at 10 they drown themselves. After, the norm has made that scale 1.

    python examples/absolute_encoding.py
"""

import jax
import jax.numpy as jnp
from flax import nnx

from posenc_jax.nnx import SinusoidalPositionalEncoding

VOCAB, SEQ, DIM = 50, 64, 32

norm = nnx.LayerNorm(DIM, rngs=nnx.Rngs(0))
encode = SinusoidalPositionalEncoding(SEQ, DIM)


def before(x: jax.Array) -> jax.Array:
    """Add the encoding, then normalise, as BERT does."""
    return norm(encode(x))


def after(x: jax.Array) -> jax.Array:
    """Normalise, then add the encoding."""
    return encode(norm(x))


def position_share(out: jax.Array) -> float:
    """Part of the variance of out [vocab, seq, dim] that the position alone explains."""
    by_position = out.mean(0) - out.mean((0, 1))
    return float(jnp.square(by_position).mean() / (out - out.mean((0, 1))).var())


def main() -> None:
    """Put every token at every position and print how much of the result is position."""
    tokens = jax.random.normal(jax.random.key(0), (VOCAB, 1, DIM))
    everywhere = jnp.broadcast_to(tokens, (VOCAB, SEQ, DIM))
    print("scale of the      share of the variance that is position")
    print("embeddings        added before norm     added after norm")
    for scale in (0.02, 1.0, 10.0):
        shares = (position_share(add(scale * everywhere)) for add in (before, after))
        print("{:10.2f} {:23.0%} {:20.0%}".format(scale, *shares))


if __name__ == "__main__":
    main()
