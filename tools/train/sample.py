#!/usr/bin/env python3
"""Prints texts that a model makes: fixed prompts, the first seeds, nothing picked.

    python3 tools/train/sample.py --model models/quire-stories > samples.md

The sampler is torch's, so these are not the texts that Quire gives for the same seeds.
"""

import argparse
import pathlib

import torch

import bpe
import hf_directory
from decoder import Decoder

PROMPTS = ("Once upon a time", "One day, a little cat", "\"I have lost my red ball,\" said", "The king of the forest")


def keep_top_p(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """[rows, vocab_size] -> the same with all but the fewest likeliest ids that together reach top_p set to 0."""
    ordered, ids = probabilities.sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    return torch.zeros_like(probabilities).scatter(-1, ids, ordered.masked_fill(before >= top_p, 0.0))


@torch.no_grad()
def sample(model: Decoder, prompt: list[int], seeds: list[int], max_tokens: int, temperature: float, top_p: float
           ) -> list[list[int]]:
    """What follows the prompt for each seed, up to the end of text; seeds go through the model together."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    ids = torch.tensor([prompt] * len(seeds))
    for _ in range(max_tokens):
        probabilities = keep_top_p((model(ids)[:, -1] / temperature).softmax(-1), top_p)
        drawn = [torch.multinomial(row, 1, generator=generator)
                 for row, generator in zip(probabilities, generators, strict=True)]
        ids = torch.cat([ids, torch.stack(drawn)], dim=1)
        if (ids[:, len(prompt) :] == bpe.END_OF_TEXT_ID).any(dim=1).all():
            break
    continuations = ids[:, len(prompt) :].tolist()
    return [row[: row.index(bpe.END_OF_TEXT_ID)] if bpe.END_OF_TEXT_ID in row else row for row in continuations]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=2, help="texts a prompt, of seeds 0 and up (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=250, help="(%(default)s)")
    parser.add_argument("--temperature", type=float, default=0.8, help="(%(default)s)")
    parser.add_argument("--top-p", type=float, default=0.95, help="(%(default)s)")
    args = parser.parse_args()
    model, tokenizer = hf_directory.load(args.model), bpe.load(args.model)
    for prompt in PROMPTS:
        texts = sample(model, tokenizer.encode(prompt).ids, list(range(args.seeds)), args.max_tokens, args.temperature,
                       args.top_p)
        for seed, ids in enumerate(texts):
            story = (prompt + tokenizer.decode(ids)).replace("\n", "\n>\n> ")
            print(f"Seed {seed}, **{prompt}** ...\n\n> {story}\n", flush=True)


if __name__ == "__main__":
    main()
