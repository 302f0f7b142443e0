"""A model in PyTorch, as somebody may have it: causal attention with RoPE and grouped heads."""

import torch
from torch import nn


def rotate_half(x):
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


class Attention(nn.Module):
    def __init__(self, width=48, heads=6, kv_heads=3, base=500_000.0):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, width // heads
        self.q_proj = nn.Linear(width, heads * self.dim)
        self.k_proj = nn.Linear(width, kv_heads * self.dim)
        self.v_proj = nn.Linear(width, kv_heads * self.dim)
        self.o_proj = nn.Linear(heads * self.dim, width)
        inv_freq = 1.0 / base ** (torch.arange(0, self.dim, 2) / self.dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rotate(self, x, positions):
        angles = positions[:, None] * self.inv_freq
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        return x * cos + rotate_half(x) * sin

    def forward(self, x):
        batch, tokens, _ = x.shape
        positions = torch.arange(tokens)

        def split(y, heads):
            return y.view(batch, tokens, heads, self.dim).transpose(1, 2)

        q = self.rotate(split(self.q_proj(x), self.heads), positions)
        k = self.rotate(split(self.k_proj(x), self.kv_heads), positions)
        v = split(self.v_proj(x), self.kv_heads)
        k, v = (y.repeat_interleave(self.heads // self.kv_heads, 1) for y in (k, v))
        scores = q @ k.transpose(-1, -2) / self.dim**0.5
        future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(batch, tokens, -1))
