#!/usr/bin/env python3
"""Measures models' perplexity on held-out text by position, far beyond the length at which they were trained.

    python3 tools/train/perplexity_by_position.py --model ALiBi=build/alibi/model --model RoPE=build/rope/model
        --data stories.txt more.txt --trained-at 512 --svg perplexity.svg --json perplexity.json

Documents, separator, share and seed must be those of the training, so that the same documents are held out. They are
joined as in training, each with the end-of-text token before it, and cut into windows of --length.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import math
import pathlib

import torch
from torch.nn import functional

import bpe
import hf_directory
import svg
from decoder import Decoder
from documents import add_split_flags, split_of
from packing import PackedDocuments


@torch.no_grad()
def losses_by_position(model: Decoder, windows: torch.Tensor) -> torch.Tensor:
    """windows: [num_windows, length + 1] int64 -> mean loss at each position, [length] f64, in nats."""
    total = torch.zeros(windows.shape[1] - 1, dtype=torch.float64)
    for window in windows:  # one at a time, because the bias takes n_heads * length^2 floats
        total += functional.cross_entropy(model(window[None, :-1])[0], window[1:], reduction="none").double()
    return total / len(windows)


def perplexities(losses: torch.Tensor, bucket: int) -> list[float]:
    """[length] -> exp of the mean loss in each bucket of positions."""
    return [math.exp(some.mean()) for some in losses.split(bucket)]


def named_folder(text: str) -> tuple[str, pathlib.Path]:
    name, equals, folder = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"want NAME=DIR, got {text}")
    return name, pathlib.Path(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", action="append", type=named_folder, required=True, metavar="NAME=DIR", help="a model; may be repeated")
    add_split_flags(parser)
    add("--length", type=int, default=2048, help="length of a window, in tokens (%(default)s)")
    add("--bucket", type=int, default=64, help="positions per reported number (%(default)s)")
    add("--orders", type=int, default=2, help="shuffles of the documents to measure over (%(default)s)")
    add("--trained-at", type=int, default=512, help="length to mark in the picture (%(default)s)")
    add("--svg", type=pathlib.Path, required=True, metavar="FILE")
    add("--json", type=pathlib.Path, required=True, metavar="FILE")
    args = parser.parse_args()

    split = split_of(args)
    measured = {}
    for name, folder in args.model:
        packed = PackedDocuments(bpe.encode(bpe.load(folder), split.validation), bpe.END_OF_TEXT_ID, args.length, args.seed)
        windows = torch.cat([torch.from_numpy(packed.windows(order).copy()) for order in range(args.orders)])
        measured[name] = perplexities(losses_by_position(hf_directory.load(folder), windows), args.bucket)
        print(f"{name}: {len(windows)} windows, perplexity {measured[name][0]:.2f} at positions 0 to {args.bucket - 1}, "
              f"{measured[name][-1]:.2f} at the last {args.bucket} of {args.length}", flush=True)
    ends = [min((i + 1) * args.bucket, args.length) for i in range(-(-args.length // args.bucket))]
    numbers = {"length": args.length, "windows": len(windows), "trained_at": args.trained_at, "positions_below": ends,
               "perplexity": {name: [round(value, 3) for value in values] for name, values in measured.items()}}
    args.json.write_text(json.dumps(numbers, indent=1) + "\n")
    args.svg.write_text(svg.render(svg.Chart(
        "Perplexity of held-out text by position", "position in the window, tokens", "perplexity",
        [svg.Line(name, list(zip(ends, values, strict=True))) for name, values in measured.items()],
        log_y=True, marks=[(args.trained_at, "trained up to here")])))


if __name__ == "__main__":
    main()
