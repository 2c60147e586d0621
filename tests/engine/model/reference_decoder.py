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
    head_dim: int  # of queries and keys
    value_dim: int | None = None  # None: head_dim
    eps: float = 1e-5
    alibi_bias_max: float | None = None
    rope_frequencies: torch.Tensor | None = None  # [pairs], half-split, of a head's leading dimensions
    rope_factor: float = 1.0                      # of cosines and sines
    rope_interleaved: bool = False  # dimensions 2i and 2i + 1 are a pair, instead of i and i + pairs
    rms_norm: bool = False
    clip: float | None = None
    scale: float | None = None
    alibi_is_rounded: bool = False  # Falcon's: added before the scores are scaled, rounded to bfloat16
    parallel: bool = False         # both halves of a block read the same input
    experts_per_token: int = 0     # of a layer with a router
    norm_topk_prob: bool = True    # the weights of the chosen experts add up to 1
    # Llama 4's: the weight of an expert is the logistic function of its logit, and scales the expert's input.
    logistic_inputs: bool = False
    normed_logistic: bool = False  # DeepSeek-V3's: logistic weights that sum to 1; Layer.choice_bias chooses
    value_scale: float = 1.0
    # One of "gelu", "gelu_tanh", "silu_mul", "gelu_tanh_mul" and "clamped_silu_mul". For the last three, the
    # rows of the gate come before the rows of up in Layer.up.
    activation: str = "gelu"
    activation_alpha: float = 1.702    # of clamped_silu_mul
    activation_limit: float = 7.0
    soft_cap: float | None = None      # of scores, scaled and not yet masked: cap * tanh(score / cap)
    logit_soft_cap: float | None = None
    embedding_scale: float = 1.0
    logit_scale: float = 1.0


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
    attention_post_norm: tuple | None = None  # of what is added to the residual
    mlp_post_norm: tuple | None = None
    heads: int | None = None     # where they are others than the description's
    kv_heads: int | None = None
    window: int | None = None  # tokens seen back from a query, itself included
    chunk: int | None = None   # only the keys of the query's chunk of so many positions are seen
    blocks: tuple | None = None  # (tokens, local, stride, step): the blocks that each head sees, see `sees_block`
    query_growth: tuple | None = None  # (interval, rate): of queries, by the logarithm of their position
    router: torch.Tensor | None = None  # of a mixture of experts, whose up and down are [experts, rows, cols]
    router_bias: torch.Tensor | None = None
    choice_bias: torch.Tensor | None = None
    shared: tuple | None = None  # up and down of a network that is added to a mixture
    rope_frequencies: torch.Tensor | None = None  # where they are others than the description's; none turn if empty
    sinks: torch.Tensor | None = None  # a logit of each head that takes its part of the softmax and has no value


@dataclasses.dataclass
class Weights:
    embedding: torch.Tensor
    layers: list
    final_norm: tuple
    head: torch.Tensor
    embedding_norm: tuple | None = None
    position_embedding: torch.Tensor | None = None  # [positions, width]


class Exact:
    def __call__(self, x, terms):
        return x


class Rounded:
    """Perturbs x by the error that a sum of `terms` terms can have in float32."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, x, terms):
        noise = 2 * torch.rand(x.shape, generator=self.generator, dtype=x.dtype) - 1
        return x * (1 + LAMBDA * math.sqrt(terms) * UNIT_ROUNDOFF * noise)


def slopes(heads, bias_max):
    """Returns the slopes of arXiv:2108.12409. Let n be the largest power of two that is at most `heads`. The slopes of
    the first n heads are a geometric sequence. The other heads take every second element of the sequence for 2 n
    heads."""
    n = 2 ** math.floor(math.log2(heads))
    ladder = [2.0 ** (-bias_max * (h + 1) / n) for h in range(n)]
    finer = [2.0 ** (-bias_max * (h + 1) / (2 * n)) for h in range(0, 2 * n, 2)]
    return torch.tensor((ladder + finer)[:heads], dtype=torch.float64)


def norm(d, x, weights, rounded):
    weight, bias = weights
    if d.rms_norm:
        normed = functional.rms_norm(x, weight.shape, weight, d.eps)
    else:
        normed = functional.layer_norm(x, weight.shape, weight, bias, d.eps)
    return rounded(normed, x.shape[-1] + 16)


def linear(x, weight, bias, rounded):
    return rounded(functional.linear(x, weight, bias), weight.shape[1] + 16)


def soft_capped(x, cap, rounded):
    """Returns cap * tanh(x / cap), with the rounding error of 1 - 2 / (e^2y + 1): it is relative to the cap, not
    to tanh."""
    if cap is None:
        return x
    return cap * torch.tanh(x / cap) + (rounded(torch.full_like(x, cap), 16) - cap)


def activate(d, x):
    kind = d.activation
    if kind.endswith("_mul"):
        gate, up = x.chunk(2, dim=-1)
        if kind == "clamped_silu_mul":
            gate, up = gate.clamp(max=d.activation_limit), up.clamp(-d.activation_limit, d.activation_limit)
            return gate * torch.sigmoid(d.activation_alpha * gate) * (up + 1)
        return (functional.silu(gate) if kind == "silu_mul" else functional.gelu(gate, approximate="tanh")) * up
    return functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


def rotate(d, x, frequencies):
    """Rotates each pair of dimensions of x, [heads, length, head_dim], by position * frequency. Leaves the dimensions
    after the pairs."""
    pairs = len(frequencies)
    angle = torch.arange(x.shape[1])[:, None] * frequencies
    cos, sin = angle.cos() * d.rope_factor, angle.sin() * d.rope_factor
    if d.rope_interleaved:
        first, second = x[..., : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
        turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)
        return torch.cat([turned, x[..., 2 * pairs :]], dim=-1)
    first, second, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def sees_block(blocks, heads, length):
    """Returns [heads, length, length], true if the key's block is one of the last `local` blocks of the query, or if
    block + head * step + 1 is a multiple of `stride`."""
    tokens, local, stride, step = blocks
    block = torch.arange(length) // tokens
    near = block[:, None] - block[None, :] < local
    far = (block[None, None, :] + torch.arange(heads)[:, None, None] * step + 1) % stride == 0
    return near | far


def attention(d, layer, x, rounded):
    length = len(x)
    heads, kv_heads, value_dim = layer.heads or d.heads, layer.kv_heads or d.kv_heads, d.value_dim or d.head_dim
    qkv = linear(x, layer.qkv, layer.qkv_bias, rounded)
    if d.clip is not None:
        qkv = qkv.clamp(-d.clip, d.clip)
    q, k, v = qkv.split([heads * d.head_dim, kv_heads * d.head_dim, kv_heads * value_dim], dim=-1)
    if layer.q_norm is not None:  # as wide as a head, or as all of them
        q, k = (norm(d, t.view(length, -1, len(weight)), (weight, None), rounded).reshape(length, -1)
                for t, weight in ((q, layer.q_norm), (k, layer.k_norm)))
    q, k, v = (t.view(length, count, -1).transpose(0, 1) for t, count in ((q, heads), (k, kv_heads), (v, kv_heads)))
    frequencies = d.rope_frequencies if layer.rope_frequencies is None else layer.rope_frequencies
    if frequencies is not None:
        q, k = rounded(rotate(d, q, frequencies), 4), rounded(rotate(d, k, frequencies), 4)
    if layer.query_growth is not None:
        interval, rate = layer.query_growth
        q = q * (1 + rate * torch.log1p((torch.arange(length) + 1) // interval))[:, None]
    v = v if d.value_scale == 1 else rounded(v * d.value_scale, 1)
    k, v = (t.repeat_interleave(heads // kv_heads, dim=0) for t in (k, v))
    distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    scale = d.scale or 1 / math.sqrt(d.head_dim)
    scores = rounded(q @ k.transpose(1, 2) * scale, d.head_dim + 16)
    scores = soft_capped(scores, d.soft_cap, rounded)
    if d.alibi_bias_max is not None:  # the bias and its sum with the score round by their own size
        steps = slopes(heads, d.alibi_bias_max)[:, None, None]
        bias = -steps * distance
        if d.alibi_is_rounded:  # by the key's own position
            bias = (steps.bfloat16() * torch.arange(length).bfloat16()).double() * scale
        scores = scores + rounded(bias, 4)
    unseen = (distance < 0) | (distance >= (layer.window or length))
    if layer.chunk is not None:
        chunks = torch.arange(length) // layer.chunk
        unseen |= chunks[:, None] != chunks[None, :]
    if layer.blocks is not None:
        unseen = unseen | ~sees_block(layer.blocks, d.heads, length)
    scores = scores.masked_fill(unseen, -math.inf)
    if layer.sinks is not None:
        scores = torch.cat([scores, layer.sinks.view(-1, 1, 1).expand(-1, length, 1)], dim=-1)
    mixed = rounded(torch.softmax(scores, dim=-1)[..., :length] @ v, length + 64)
    return linear(mixed.transpose(0, 1).reshape(length, -1), layer.o, layer.o_bias, rounded)


def feed_forward(d, layer, x, rounded):
    up = linear(x, layer.up, layer.up_bias, rounded)
    return linear(rounded(activate(d, up), 32), layer.down, layer.down_bias, rounded)


def mixture(d, layer, x, rounded, router_logits):
    scores = linear(x, layer.router, layer.router_bias, rounded)
    ranked = scores
    if d.normed_logistic:
        ranked = rounded(scores.sigmoid(), 4) + layer.choice_bias
    router_logits.append(ranked)
    chosen = ranked.topk(d.experts_per_token, dim=-1).indices
    top = scores.gather(1, chosen)
    over = top if d.norm_topk_prob else scores
    if d.normed_logistic:
        parts = top.sigmoid() / top.sigmoid().sum(dim=-1, keepdim=True)
    elif d.logistic_inputs:
        parts = top.sigmoid()
    else:
        parts = (top - top[:, :1]).exp() / (over - top[:, :1]).exp().sum(dim=-1, keepdim=True)
    parts = rounded(parts, scores.shape[-1] + 16)
    total = torch.zeros_like(x)
    if layer.shared is not None:
        up, down = layer.shared
        total = feed_forward(d, dataclasses.replace(layer, up=up, down=down), x, rounded)
    for rank in range(d.experts_per_token):
        for expert in chosen[:, rank].unique():
            rows = chosen[:, rank] == expert
            parts_of = ("up", "down", "up_bias", "down_bias")
            network = dataclasses.replace(layer, **{name: getattr(layer, name)[expert] for name in parts_of
                                                    if getattr(layer, name) is not None})
            part = parts[rows, rank, None]
            if d.logistic_inputs:
                total[rows] += feed_forward(d, network, rounded(part * x[rows], 1), rounded)
            else:
                total[rows] += part * feed_forward(d, network, x[rows], rounded)
    return rounded(total, d.experts_per_token)


def logits(d: Description, weights: Weights, ids, rounded=Exact(), router_logits=None):
    """Returns logits, [len(ids), vocab_size], in float64. Appends what ranks the experts of each router, [len(ids),
    experts], to a given list."""
    router_logits = [] if router_logits is None else router_logits
    x = weights.embedding[torch.tensor(ids)] * d.embedding_scale
    if weights.position_embedding is not None:
        x = rounded(x + weights.position_embedding[: len(ids)], 1)
    if weights.embedding_norm is not None:
        x = norm(d, x, weights.embedding_norm, rounded)
    for layer in weights.layers:
        mixed = attention(d, layer, norm(d, x, layer.attention_norm, rounded), rounded)
        if layer.attention_post_norm is not None:
            mixed = norm(d, mixed, layer.attention_post_norm, rounded)
        after = rounded(x + mixed, 1)
        before = norm(d, x if d.parallel else after, layer.mlp_norm, rounded)
        if layer.router is None:
            mlp = feed_forward(d, layer, before, rounded)
        else:
            mlp = mixture(d, layer, before, rounded, router_logits)
        if layer.mlp_post_norm is not None:
            mlp = norm(d, mlp, layer.mlp_post_norm, rounded)
        x = rounded(after + mlp, 1)
    heads_logits = linear(norm(d, x, weights.final_norm, rounded), weights.head, None, rounded)
    return soft_capped(rounded(heads_logits * d.logit_scale, 1), d.logit_soft_cap, rounded)


def bound(d: Description, weights: Weights, ids) -> float:
    exact = logits(d, weights, ids)
    return 2 * max((logits(d, weights, ids, Rounded(seed)) - exact).abs().max().item() for seed in range(RUNS))


def routes_are_certain(d: Description, weights: Weights, ids) -> bool:
    """True if no rounding of float32 changes which experts a token goes to, nor their order: neighbours in that order
    are further apart than twice the bound on a router's logits, which is derived as `bound` is."""
    exact = []
    logits(d, weights, ids, router_logits=exact)
    worst = 0.0
    for seed in range(RUNS):
        run = []
        logits(d, weights, ids, Rounded(seed), run)
        worst = max([worst] + [2 * (a - b).abs().max().item() for a, b in zip(run, exact)])
    compared = [scores.topk(min(d.experts_per_token + 1, scores.shape[-1]), dim=-1).values for scores in exact]
    margin = min([math.inf] + [(top[:, :-1] - top[:, 1:]).min().item() for top in compared])
    if exact:
        print(f"  router: smallest margin {margin:.2e}, bound {worst:.2e}")
    return margin > 2 * worst
