#!/usr/bin/env python3
"""Trains a small decoder on text files; the defaults are those of models/quire-stories.

    python3 tools/train/train.py --data stories.txt more.txt --out build/stories

Makes a vocabulary, holds out some documents, trains, and writes the best weights as a Hugging Face directory to
OUT/model. A run that was stopped continues when the same command is given again.
"""

import os

# Makes threads sleep while they wait for each other: spinning would take the processor from other programs.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import dataclasses
import json
import pathlib
import sys

import torch

import bpe
import hf_directory
from decoder import DecoderConfig
from documents import add_split_flags, split_of
from packing import PackedDocuments
from trainer import Trainer, TrainerConfig, native_precision

RUN = "run.json"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add_split_flags(parser)
    add("--out", type=pathlib.Path, required=True, metavar="DIR", help="folder for the run's files and the model")
    add("--positions", choices=["alibi", "rope"], default="alibi", help="(%(default)s)")
    add("--vocab-size", type=int, default=4096, help="(%(default)s)")
    for name in ("d_model", "n_heads", "kv_n_heads", "n_layers"):
        add(f"--{name.replace('_', '-')}", type=int, default=getattr(DecoderConfig, name), help="(%(default)s)")
    add("--context", type=int, default=512, help="tokens in a window (%(default)s)")
    add("--max-seq-len", type=int, default=2048, help="context that the model's config names, in tokens (%(default)s)")
    add("--tokens", type=float, default=20e6, help="tokens to train on, counting repeats (%(default).0f)")
    for name, what in (("batch_size", "windows a step"), ("learning_rate", "at its highest"), ("warmup_steps", ""),
                       ("cooldown", "share of the steps in which the learning rate falls"),
                       ("weight_decay", ""), ("dropout", ""), ("log_steps", ""),
                       ("validate_steps", ""), ("checkpoint_seconds", "")):
        default = getattr(TrainerConfig, name)
        add(f"--{name.replace('_', '-')}", type=type(default), default=default, help=f"{what} (%(default)s)".strip())
    add("--precision", choices=["float32", "bfloat16"], default=native_precision(),
        help="precision of the products (here: %(default)s)")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads on the CPU (%(default)s)")
    return parser.parse_args()


def settings_of(args: argparse.Namespace) -> dict:
    """The settings that must be the same when a run continues. Paths, speed and the number of tokens are not among
    them: they may change on the way."""
    settings = {name: value for name, value in vars(args).items()
                if name not in ("data", "out", "tokens", "cooldown", "threads", "log_steps", "checkpoint_seconds")}
    return settings | {"data": [path.name for path in args.data]}


def agree_with_earlier_run(out: pathlib.Path, settings: dict) -> None:
    path = out / RUN
    if path.exists():
        earlier = json.loads(path.read_text())
        differing = [f"{name} {earlier.get(name)} (now {settings.get(name)})" for name in {**earlier, **settings}
                     if earlier.get(name) != settings.get(name)]
        if differing:
            raise ValueError(f"{out} holds a run of other settings: {', '.join(differing)}; want another --out")
    path.write_text(json.dumps(settings, indent=2) + "\n")


def train(args: argparse.Namespace) -> bool:
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    agree_with_earlier_run(args.out, settings_of(args))
    split = split_of(args)
    if not (args.out / "tokenizer.json").exists():
        bpe.save(bpe.train(split.training, args.vocab_size), args.out, args.max_seq_len)
    tokenizer = bpe.load(args.out)
    training, validation = (PackedDocuments(bpe.encode(tokenizer, documents), bpe.END_OF_TEXT_ID, args.context, args.seed)
                            for documents in (split.training, split.validation))
    model_config = DecoderConfig(tokenizer.get_vocab_size(), args.d_model, args.n_heads, args.kv_n_heads, args.n_layers,
                                 positions=args.positions)
    names = {field.name for field in dataclasses.fields(TrainerConfig)}
    config = TrainerConfig(steps=max(1, round(args.tokens / (args.batch_size * args.context))),
                           **{name: value for name, value in vars(args).items() if name in names})
    hf_directory.write_config(args.out, model_config, args.max_seq_len)
    trainer = Trainer(model_config, config, training, validation, args.out)
    print(f"{len(split.training)} documents, {training.num_tokens} tokens to train on "
          f"({args.tokens / training.num_tokens:.1f} epochs); {len(split.validation)} and {validation.num_tokens} held out; "
          f"{sum(weight.numel() for weight in trainer.model.parameters())} parameters, {trainer.device}", flush=True)
    if not trainer.run():
        print(f"stopped at step {trainer.step}; the same command goes on", flush=True)
        return False
    hf_directory.export(args.out, args.out / "model")
    print(f"validation loss {trainer.best_loss:.4f}; the model is {args.out / 'model'}", flush=True)
    return True


def main() -> int:
    try:
        return 0 if train(arguments()) else 1
    except (ValueError, OSError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
