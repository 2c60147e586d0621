"""The model: a decoder as MPT builds it (LayerNorm before each half of a block, exact GELU, no biases, tied embedding),
with grouped-query attention (arXiv:2305.13245) and ALiBi (arXiv:2108.12409), or RoPE (arXiv:2104.09864) for its twin.

Modules have the names of llm-foundry's checkpoints, so a state dict has the names of model.safetensors.
"""

import dataclasses
import math

import torch
from torch import nn
from torch.nn import functional

import alibi


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    vocab_size: int
    d_model: int = 256
    n_heads: int = 8
    kv_n_heads: int = 2
    n_layers: int = 6
    expansion_ratio: int = 4
    positions: str = "alibi"  # or "rope"
    alibi_bias_max: float = 8.0
    rope_theta: float = 10000.0
    layer_norm_epsilon: float = 1e-5

    def __post_init__(self):
        if self.positions not in ("alibi", "rope"):
            raise ValueError(f"positions: want alibi or rope, got {self.positions}")
        if self.d_model % self.n_heads or self.n_heads % self.kv_n_heads:
            raise ValueError(f"want kv_n_heads to divide n_heads and n_heads to divide d_model, got {self.kv_n_heads}, "
                             f"{self.n_heads} and {self.d_model}")

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads


def attention_bias(config: DecoderConfig, length: int, device: torch.device) -> torch.Tensor:
    """[1, n_heads, length, length] f32, added to the scaled scores: -inf for keys to come, else ALiBi's
    -slope * (query - key), or 0 with RoPE."""
    position = torch.arange(length, device=device)
    distance = (position[:, None] - position[None, :]).float()
    slopes = alibi.slopes(config.n_heads, config.alibi_bias_max) if config.positions == "alibi" else [0.0] * config.n_heads
    bias = -torch.tensor(slopes, device=device)[:, None, None] * distance
    return bias.masked_fill(distance < 0, -math.inf)[None]


def rotation(config: DecoderConfig, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine, [length, head_dim] f32 each, both halves alike (GPT-NeoX's and Llama's order)."""
    exponent = torch.arange(0, config.head_dim, 2, device=device).float() / config.head_dim
    angle = torch.arange(length, device=device).float()[:, None] * config.rope_theta**-exponent
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: [batch, heads, length, head_dim], each pair (i, i + head_dim / 2) turned by its position's angle."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


@dataclasses.dataclass(frozen=True)
class Positions:
    """The part of attention that depends on positions. Computed once, and the same for every layer."""

    bias: torch.Tensor                                       # from attention_bias()
    rotation: tuple[torch.Tensor, torch.Tensor] | None       # with RoPE


class Attention(nn.Module):
    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.config = config
        self.Wqkv = nn.Linear(config.d_model, config.d_model + 2 * config.kv_n_heads * config.head_dim, bias=False)
        self.out_proj = nn.Linear(config.d_model, config.d_model, bias=False)

    def forward(self, x: torch.Tensor, positions: Positions) -> torch.Tensor:
        """x, result: [batch, length, d_model]."""
        config = self.config
        batch, length, _ = x.shape
        heads = self.Wqkv(x).view(batch, length, -1, config.head_dim).transpose(1, 2)
        query, key, value = heads.split([config.n_heads, config.kv_n_heads, config.kv_n_heads], dim=1)
        if positions.rotation is not None:
            query, key = rotate(query, *positions.rotation), rotate(key, *positions.rotation)
        # Query head h reads KV head h // group.
        group = config.n_heads // config.kv_n_heads
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=positions.bias,
                                                        scale=1 / math.sqrt(config.head_dim))
        return self.out_proj(mixed.transpose(1, 2).reshape(batch, length, config.d_model))


class FeedForward(nn.Module):
    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.up_proj = nn.Linear(config.d_model, config.expansion_ratio * config.d_model, bias=False)
        self.down_proj = nn.Linear(config.expansion_ratio * config.d_model, config.d_model, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x, result: [batch, length, d_model]."""
        return self.down_proj(functional.gelu(self.up_proj(x)))


class Block(nn.Module):
    def __init__(self, config: DecoderConfig, dropout: float):
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.d_model, config.layer_norm_epsilon, bias=False)
        self.attn = Attention(config)
        self.norm_2 = nn.LayerNorm(config.d_model, config.layer_norm_epsilon, bias=False)
        self.ffn = FeedForward(config)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, positions: Positions) -> torch.Tensor:
        """x, result: [batch, length, d_model]."""
        x = x + self.dropout(self.attn(self.norm_1(x), positions))
        return x + self.dropout(self.ffn(self.norm_2(x)))


class Transformer(nn.Module):
    def __init__(self, config: DecoderConfig, dropout: float):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleList(Block(config, dropout) for _ in range(config.n_layers))
        self.norm_f = nn.LayerNorm(config.d_model, config.layer_norm_epsilon, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: torch.Tensor, positions: Positions) -> torch.Tensor:
        """ids: [batch, length] int64 -> [batch, length, d_model]."""
        x = self.dropout(self.wte(ids))
        for block in self.blocks:
            x = block(x, positions)
        return self.norm_f(x)


class Decoder(nn.Module):
    """ids -> logits of the next token. `dropout` applies to the embedding and to the output of each half of a block."""

    def __init__(self, config: DecoderConfig, dropout: float = 0.0):
        super().__init__()
        self.config = config
        self.transformer = Transformer(config, dropout)
        self._positions: Positions | None = None
        self.apply(self._initialize)
        # Each layer adds to the residual stream twice. As in GPT-2, the weights that write to the residual stream
        # start smaller by a factor of sqrt(2 * n_layers), so that the additions keep the variance of the stream.
        for block in self.transformer.blocks:
            for linear in (block.attn.out_proj, block.ffn.down_proj):
                nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * config.n_layers))

    @staticmethod
    def _initialize(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def _positions_for(self, length: int, device: torch.device) -> Positions:
        kept = self._positions
        if kept is None or kept.bias.shape[-1] != length or kept.bias.device != device:
            rope = self.config.positions == "rope"
            kept = Positions(attention_bias(self.config, length, device),
                             rotation(self.config, length, device) if rope else None)
            self._positions = kept
        return kept

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids: [batch, length] int64 -> logits [batch, length, vocab_size]."""
        hidden = self.transformer(ids, self._positions_for(ids.shape[1], ids.device))
        return functional.linear(hidden, self.transformer.wte.weight)
