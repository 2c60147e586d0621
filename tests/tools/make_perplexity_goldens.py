#!/usr/bin/env python3
"""Writes testdata/perplexity_goldens.json: the perplexity of models/quire-stories on a text of the repository.

    python3 make_perplexity_goldens.py        needs torch, transformers, numpy, safetensors, tokenizers

By tests/engine/model/reference_decoder.py in float64, for both rules of tools/perplexity.h, and how far float32 may put
the logits of the first window off (minutes a window, so the others, as long and of the same text, are taken as alike).
"""

import json
import math
import pathlib
import sys

import safetensors.torch
import tokenizers
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "engine/model"))

import reference_decoder as reference  # noqa: E402
from families import mpt  # noqa: E402

TEXT = HERE / "testdata/perplexity_text.txt"


def chunked(ids, context, bos):
    """llama.cpp's rule: (tokens fed, index of the first that is scored)."""
    for begin in range(0, len(ids) - context + 1, context):
        yield [bos] + ids[begin + 1:begin + context], context // 2 + 1


def strided(ids, context, stride):
    """Hugging Face's rule."""
    seen = 1
    for begin in range(0, len(ids), stride):
        end = min(begin + context, len(ids))
        yield ids[begin:end], max(seen, begin + 1) - begin
        seen = end
        if end == len(ids):
            break


def main():
    model = HERE.parents[1] / "models/quire-stories"
    config = json.loads((model / "config.json").read_text())
    tensors = {name: tensor.double() for name, tensor in safetensors.torch.load_file(model / "model.safetensors").items()}
    description, weights = mpt.describe(config, tensors, config["max_seq_len"])
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    ids = tokenizer.encode(TEXT.read_text()).ids
    bos = tokenizer.encode("").ids[0]
    cases = []
    for context, stride in ((64, 0), (64, 24)):
        losses, bound = [], 0.0
        for window, first in strided(ids, context, stride) if stride else chunked(ids, context, bos):
            logprobs = torch.log_softmax(reference.logits(description, weights, window), -1)
            losses += [-logprobs[i - 1, window[i]].item() for i in range(first, len(window))]
            bound = bound or reference.bound(description, weights, window)
        cases.append({"context": context, "stride": stride, "num_scored": len(losses),
                      "perplexity": math.exp(sum(losses) / len(losses)), "logit_bound": bound})
        print(cases[-1])
    lines = ",\n".join(json.dumps(case) for case in cases)
    (HERE / "testdata/perplexity_goldens.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
