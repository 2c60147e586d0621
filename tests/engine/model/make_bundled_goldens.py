#!/usr/bin/env python3
"""Writes testdata/bundled_goldens.json: what models/quire-stories says, by reference_decoder.py in float64.

    python3 make_bundled_goldens.py [MODEL]        needs torch, transformers, numpy, safetensors, tokenizers

For each prompt: its ids and the greedy ids after them, how far the likeliest token stands out at each of those, and
how far float32 may be off.
"""

import json
import pathlib
import sys

import safetensors.torch
import tokenizers

import reference_decoder as reference
from families import mpt

PROMPTS = ("Once upon a time", "\"I have lost my red ball,\" said the", "The king of the forest was")
NUM_TOKENS = 80  # of a ModelRunner


def main():
    here = pathlib.Path(__file__).resolve().parent
    model = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here.parents[2] / "models/quire-stories"
    config = json.loads((model / "config.json").read_text())
    tensors = {name: tensor.double() for name, tensor in safetensors.torch.load_file(model / "model.safetensors").items()}
    description, weights = mpt.describe(config, tensors, config["max_seq_len"])
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    cases = []
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt).ids
        num_prompt, margins = len(ids), []
        while len(ids) < NUM_TOKENS:
            values, order = reference.logits(description, weights, ids)[-1].topk(2)
            margins.append((values[0] - values[1]).item())
            ids.append(order[0].item())
        bound = reference.bound(description, weights, ids)
        cases.append({"prompt": prompt, "num_prompt_tokens": num_prompt, "ids": ids, "margins": margins, "bound": bound})
        print(f"bound {bound:.1e} smallest margin {min(margins):.1e}: {tokenizer.decode(ids)!r}")
    lines = ",\n".join(json.dumps(case) for case in cases)
    (here / "testdata/bundled_goldens.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
