#!/usr/bin/env python3
"""Writes hf_goldens.json: what HF transformers' logits processors make of small rows.

Needs torch and transformers; run in this folder after a change here. Logits are multiples of
1/1024, so that they are exact, and differ within a row, since ties at a cut are kept there and not
here. Kept ids are those not masked to -infinity.
"""

import json

import torch
from transformers.generation import logits_process as lp

VOCAB = 48


def rows(seed, count, spread):
    generator = torch.Generator().manual_seed(seed)
    while True:
        logits = torch.randn(count, VOCAB, generator=generator) * spread
        logits = torch.round(logits * 1024) / 1024
        if all(len(set(row.tolist())) == VOCAB for row in logits):
            return logits


def kept(scores):
    return [i for i, s in enumerate(scores.tolist()) if s != float("-inf")]


def main():
    cuts = []
    for spread in (0.5, 2.0, 5.0):
        for temperature, top_k, typical_p, top_p, min_p in (
            (1.0, 7, 1.0, 1.0, 0.0),
            (0.7, 0, 1.0, 0.9, 0.0),
            (1.5, 0, 1.0, 0.5, 0.0),
            (1.0, 0, 1.0, 1.0, 0.1),
            (1.0, 0, 0.8, 1.0, 0.0),
            (0.8, 20, 0.9, 0.8, 0.05),
        ):
            for row in rows(len(cuts), 2, spread):
                scores = lp.TemperatureLogitsWarper(temperature)(None, row[None])
                if top_k:
                    scores = lp.TopKLogitsWarper(top_k)(None, scores)
                if typical_p < 1.0:
                    scores = lp.TypicalLogitsWarper(typical_p)(None, scores)
                if top_p < 1.0:
                    scores = lp.TopPLogitsWarper(top_p)(None, scores)
                if min_p > 0.0:
                    scores = lp.MinPLogitsWarper(min_p)(None, scores)
                cuts.append(
                    {
                        "logits_x1024": [int(x) for x in (row * 1024).tolist()],
                        "temperature": temperature,
                        "top_k": top_k,
                        "typical_p": typical_p,
                        "top_p": top_p,
                        "min_p": min_p,
                        "kept": kept(scores[0]),
                    }
                )
    penalties = []
    for seed, penalty in ((100, 1.3), (101, 0.7), (102, 5.0)):
        row = rows(seed, 1, 3.0)
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, VOCAB, (1, 30), generator=generator)
        scores = lp.RepetitionPenaltyLogitsProcessor(penalty)(ids, row)
        penalties.append(
            {
                "logits_x1024": [int(x) for x in (row[0] * 1024).tolist()],
                "repetition_penalty": penalty,
                "tokens": ids[0].tolist(),
                "scores": scores[0].tolist(),
            }
        )
    with open("hf_goldens.json", "w", encoding="utf-8") as file:
        json.dump({"cuts": cuts, "penalties": penalties}, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
