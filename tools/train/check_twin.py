#!/usr/bin/env python3
"""Compares a model's logits, in float32, with those of transformers' own MPT.

    python3 tools/train/check_twin.py --model models/quire-stories

transformers has no MPT with grouped-query attention. Multi-head attention whose heads have equal K and V is the same
function, so the twin gets a copy of each K and V head for every query head that reads it. Exit status 0 if the two
agree, and if a twin with other slopes does not agree.
"""

import argparse
import functools
import math
import pathlib
import sys

import torch
from transformers import MptConfig, MptForCausalLM
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

import hf_directory
from decoder import Decoder, DecoderConfig

EPSILON = 2.0**-24


def widened(weight: torch.Tensor, config: DecoderConfig) -> torch.Tensor:
    """Wqkv [d_model + 2 * kv_n_heads * head_dim, d_model] -> [3 * d_model, d_model]."""
    kv_rows = config.kv_n_heads * config.head_dim
    query, key, value = weight.split([config.d_model, kv_rows, kv_rows])
    group = config.n_heads // config.kv_n_heads

    def repeat(rows: torch.Tensor) -> torch.Tensor:
        heads = rows.view(config.kv_n_heads, config.head_dim, config.d_model)
        return heads.repeat_interleave(group, dim=0).reshape(config.d_model, config.d_model)

    return torch.cat([query, repeat(key), repeat(value)])


def twin(model: Decoder, max_seq_len: int, alibi_bias_max: int) -> MptForCausalLM:
    config = model.config
    if config.positions != "alibi" or config.expansion_ratio != 4:
        raise ValueError("transformers' MPT knows ALiBi and an expansion of 4 alone")
    theirs = MptForCausalLM(MptConfig(
        d_model=config.d_model, n_heads=config.n_heads, n_layers=config.n_layers, vocab_size=config.vocab_size,
        max_seq_len=max_seq_len, layer_norm_epsilon=config.layer_norm_epsilon,
        attn_config={"alibi": True, "alibi_bias_max": alibi_bias_max}, attn_implementation="eager"))
    weights = {name: widened(weight, config) if name.endswith("Wqkv.weight") else weight
               for name, weight in model.state_dict().items()}
    theirs.load_state_dict({**weights, "lm_head.weight": weights["transformer.wte.weight"]})
    # transformers' model does not pass the config's alibi_bias_max to this function, so the function would always
    # use 8.
    theirs.transformer.build_mpt_alibi_tensor = functools.partial(build_mpt_alibi_tensor, alibi_bias_max=alibi_bias_max)
    return theirs.float().eval()


def bound(config: DecoderConfig, logits: torch.Tensor) -> float:
    """The most by which rounding may change a logit. A logit is a chain of some ten roundings per block, each of a sum
    of at most expansion_ratio * d_model products, whose errors add up like a random walk. The bound is four times that,
    relative to the largest logit."""
    terms = config.expansion_ratio * config.d_model
    return 4 * EPSILON * math.sqrt(terms * 10 * config.n_layers) * logits.abs().max().item()


@torch.no_grad()
def worst_difference(model: Decoder, ids: torch.Tensor, alibi_bias_max: int) -> float:
    """ids: [batch, length] -> the largest difference between two logits."""
    theirs = twin(model, ids.shape[1], alibi_bias_max)
    return (model(ids) - theirs(input_ids=ids, use_cache=False).logits).abs().max().item()


def agrees(model: Decoder, length: int) -> bool:
    """Random ids, so that every position of every row tests the positions."""
    ids = torch.randint(model.config.vocab_size, (2, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        allowed = bound(model.config, model(ids))
    worst = worst_difference(model, ids, int(model.config.alibi_bias_max))
    control = worst_difference(model, ids, 2 * int(model.config.alibi_bias_max))
    print(f"{ids.numel()} positions: largest difference {worst:.2e}, bound {allowed:.2e}; with other slopes {control:.2e}")
    return worst <= allowed < control


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--length", type=int, default=2048, help="tokens in a row (%(default)s)")
    args = parser.parse_args()
    return 0 if agrees(hf_directory.load(args.model), args.length) else 1


if __name__ == "__main__":
    sys.exit(main())
