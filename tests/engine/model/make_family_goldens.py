#!/usr/bin/env python3
"""Writes testdata/family_goldens.json: logits of randomly initialised tiny models of the families besides Llama.

    python3 make_family_goldens.py [family or case ...]    those alone, or all; needs torch, transformers, numpy

Each case is a config.json, the shapes of its tensors, a prompt, and logits in float64. Weights are a function of
(tensor name, index), as in make_goldens.py, so none are stored. The logits are those of reference_decoder.py; where
transformers has the feature, its own run, float64 but for the softmax, has to agree with them within the bound.
A family is a module of families/: its cases, the shapes of their tensors, their description, their oracle.
"""

import base64
import copy
import json
import pathlib
import sys

import transformers

import reference_decoder as reference
from families import (baichuan, bloom, falcon, gemma2, gemma3, gpt2, gpt_neox, gpt_oss, llama4, llama_like,
                      mimo_v2_flash, mpt, openelm, phi3_small, refact)
from make_goldens import NUM_TOKENS, fill, tensor_values

SERVED_CONTEXT = 256  # ModelRunner::kLimits


def main(chosen):
    path = pathlib.Path(__file__).parent / "testdata" / "family_goldens.json"
    kept = {case["name"]: case for case in json.loads(path.read_text())["cases"]} if chosen else {}
    cases = []
    for family in (mpt, bloom, falcon, gpt_neox, llama_like, gemma3, gpt2, baichuan, refact, gemma2, gpt_oss, llama4,
                   openelm, mimo_v2_flash, phi3_small):
        again = not chosen or family.__name__.removeprefix("families.") in chosen
        cases += [make_case(family, name, config) if again or name in chosen else kept[name]
                  for name, config in family.CASES.items()]
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f'{{"transformers": "{transformers.__version__}", "cases": [\n{lines}\n]}}\n')


def make_case(family, name, config):
    shapes = family.shapes(config)
    tensors = {key: fill(key, shape).double() for key, shape in shapes.items()}
    description, weights = family.describe(config, tensors, SERVED_CONTEXT)
    vocab_size = config.get("text_config", config)["vocab_size"]
    for salt in range(50):  # the first prompt whose margins decide nearly every argmax
        ids = [int(v) for v in abs(tensor_values(f"ids.{salt}.{name}", NUM_TOKENS)) * vocab_size]
        logits = reference.logits(description, weights, ids)
        bound = reference.bound(description, weights, ids)
        top2 = logits.topk(2, dim=-1).values
        margins = top2[:, 0] - top2[:, 1]
        if (margins > 2 * bound).double().mean() >= 0.99 and reference.routes_are_certain(description, weights, ids):
            break
    else:
        raise AssertionError(f"{name}: no prompt is certain")
    theirs = family.oracle(copy.deepcopy(config), tensors, ids)  # which writes into it
    # Describes the model for the prompt's length, because transformers scales RoPE by the length of its
    # input.
    ours = reference.logits(*family.describe(config, tensors, len(ids)), ids)
    difference = "no oracle but ours" if theirs is None else f"{(theirs - ours).abs().max().item():.1e}"
    assert theirs is None or (theirs - ours).abs().max() < bound, (name, difference)
    print(f"{name:16} bound {bound:.2e} smallest margin {margins.min():.2e} spread {logits.std():.2f} "
          f"from transformers: {difference}")
    return {"name": name, "config": config, "tensors": shapes, "ids": ids, "bound": bound,
            "logits": base64.b64encode(logits.float().numpy().tobytes()).decode()}


if __name__ == "__main__":
    main(set(sys.argv[1:]))
