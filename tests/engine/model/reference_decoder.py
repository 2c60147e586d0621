"""A decoder in float64 torch as a description says, and how far float32 may take its logits: the oracle where
transformers has none, and the source of every golden's bound.

Bounds: the run is repeated with every op's result perturbed by its float32 rounding error in the probabilistic
model of Higham and Mary (SIAM J. Sci. Comput. 41, 2019), lambda * sqrt(K) * 2^-24 relative for a sum of K terms
with lambda = 6; the largest change of any logit over the runs is doubled.
"""

import dataclasses
import math

import torch
from torch.nn import functional

UNIT_ROUNDOFF = 2.0**-24
LAMBDA = 6.0
RUNS = 24


@dataclasses.dataclass
class Description:
    heads: int
    kv_heads: int
    head_dim: int
    eps: float = 1e-5
    alibi_bias_max: float = 8.0
    clip: float | None = None
    scale: float | None = None
    activation: str = "gelu"


@dataclasses.dataclass
class Layer:
    """Weights [rows, cols]; biases None where there are none; norms (weight, bias or None)."""

    attention_norm: tuple
    qkv: torch.Tensor
    o: torch.Tensor
    mlp_norm: tuple
    up: torch.Tensor
    down: torch.Tensor
    qkv_bias: torch.Tensor | None = None
    o_bias: torch.Tensor | None = None
    up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None


@dataclasses.dataclass
class Weights:
    embedding: torch.Tensor
    layers: list
    final_norm: tuple
    head: torch.Tensor
    embedding_norm: tuple | None = None


class Exact:
    def __call__(self, x, terms):
        return x


class Rounded:
    """What a sum of `terms` terms in float32 may turn x into."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, x, terms):
        noise = 2 * torch.rand(x.shape, generator=self.generator, dtype=x.dtype) - 1
        return x * (1 + LAMBDA * math.sqrt(terms) * UNIT_ROUNDOFF * noise)


def slopes(heads, bias_max):
    """arXiv:2108.12409: a ladder for the largest power of two, then every second rung of the next one's."""
    n = 2 ** math.floor(math.log2(heads))
    ladder = [2.0 ** (-bias_max * (h + 1) / n) for h in range(n)]
    finer = [2.0 ** (-bias_max * (h + 1) / (2 * n)) for h in range(0, 2 * n, 2)]
    return torch.tensor((ladder + finer)[:heads], dtype=torch.float64)


def norm(x, weights, eps, rounded):
    weight, bias = weights
    return rounded(functional.layer_norm(x, weight.shape, weight, bias, eps), x.shape[-1] + 16)


def linear(x, weight, bias, rounded):
    return rounded(functional.linear(x, weight, bias), weight.shape[1] + 16)


def activate(x, kind):
    return functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


def attention(d, layer, x, rounded):
    length = len(x)
    qkv = linear(x, layer.qkv, layer.qkv_bias, rounded)
    if d.clip is not None:
        qkv = qkv.clamp(-d.clip, d.clip)
    q, k, v = qkv.split([d.heads * d.head_dim, d.kv_heads * d.head_dim, d.kv_heads * d.head_dim], dim=-1)
    if layer.q_norm is not None:
        q, k = norm(q, (layer.q_norm, None), d.eps, rounded), norm(k, (layer.k_norm, None), d.eps, rounded)
    q = q.view(length, d.heads, d.head_dim).transpose(0, 1)
    k, v = (t.view(length, d.kv_heads, d.head_dim).transpose(0, 1).repeat_interleave(d.heads // d.kv_heads, dim=0)
            for t in (k, v))
    distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    scores = rounded(q @ k.transpose(1, 2) * (d.scale or 1 / math.sqrt(d.head_dim)), d.head_dim + 16)
    # The bias and its sum with the score round by their own size.
    bias = rounded(-slopes(d.heads, d.alibi_bias_max)[:, None, None] * distance, 4)
    scores = (scores + bias).masked_fill(distance < 0, -math.inf)
    mixed = rounded(torch.softmax(scores, dim=-1) @ v, length + 64)
    return linear(mixed.transpose(0, 1).reshape(length, -1), layer.o, layer.o_bias, rounded)


def logits(d: Description, weights: Weights, ids, rounded=Exact()):
    """[len(ids), vocab_size] float64."""
    x = weights.embedding[torch.tensor(ids)]
    if weights.embedding_norm is not None:
        x = norm(x, weights.embedding_norm, d.eps, rounded)
    for layer in weights.layers:
        x = rounded(x + attention(d, layer, norm(x, layer.attention_norm, d.eps, rounded), rounded), 1)
        up = linear(norm(x, layer.mlp_norm, d.eps, rounded), layer.up, layer.up_bias, rounded)
        mlp = linear(rounded(activate(up, d.activation), 32), layer.down, layer.down_bias, rounded)
        x = rounded(x + mlp, 1)
    return linear(norm(x, weights.final_norm, d.eps, rounded), weights.head, None, rounded)


def bound(d: Description, weights: Weights, ids) -> float:
    exact = logits(d, weights, ids)
    return 2 * max((logits(d, weights, ids, Rounded(seed)) - exact).abs().max().item() for seed in range(RUNS))
