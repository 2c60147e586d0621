#!/usr/bin/env python3
"""Changes one key of the config.json of tiny random models at a time. Each change must be refused, or answered as
transformers answers it: no setting is left out in silence.

    compare_changed_configs.py ANSWER_LINES [--seed N] [--models 20] [--family NAME]

The models are those of compare_random_with_hf.py, with every key that transformers writes, nested ones included, and
some that it does not write. A change that transformers itself refuses, or for which the weights have another shape, must
only not crash. Exit status 1 when an answer differs or the program crashes, 77 without transformers.
"""

import argparse
import collections
import copy
import json
import pathlib
import random
import sys
import tempfile
import time

import compare_random_with_hf as harness
import torch
import transformers

PROMPT_LENGTH = 70
# Keys that say what the other keys mean, how the weights are stored, or how text is written. `_name_or_path` and the
# like are names. transformers ignores MPT's alibi_bias_max, which the published class and Quire do not.
NOT_CHANGED = {"architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "_name_or_path",
               "_attn_implementation", "rope_type", "alibi_bias_max"}
# Keys that are set where transformers writes none, or null.
ABSENT = dict(sliding_window=23, attention_bias=True, mlp_bias=True, partial_rotary_factor=0.5, logit_scale=0.5,
              logits_scaling=2.0, attention_multiplier=0.5, embedding_multiplier=2.0, residual_multiplier=0.5,
              final_logit_softcapping=5.0, attn_logit_softcapping=5.0, clip_qkv=1.0, use_qk_norm=True, use_mrope=True,
              layer_types=["sliding_attention"], quantization_config=dict(quant_method="awq"),
              rope_scaling=dict(rope_type="yarn", factor=4.0), alibi=True)
OTHER_WORDS = {"silu": "gelu", "gelu": "relu", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu_fast": "relu",
               "full_attention": "sliding_attention", "sliding_attention": "full_attention"}


def changed_value(value, draw):
    """Returns another value of the same kind, or None if there is none to try."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice((value + 1, max(0, value - 1), value * 2))
    if isinstance(value, float):
        return value * draw.choice((0.5, 1.7)) if value else 0.3
    if isinstance(value, str):
        return OTHER_WORDS.get(value)
    if isinstance(value, list) and value:
        changed = list(value)
        at = draw.randrange(len(value))
        changed[at] = changed_value(value[at], draw)
        return None if changed[at] is None else changed
    return None


def changes(config, draw):
    """Yields (the path of a key, a copy of the config in which it is changed)."""
    def with_value(path, value):
        copied = copy.deepcopy(config)
        holder = copied
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value
        return path, copied

    def walk(holder, path):
        for key, value in holder.items():
            if key in NOT_CHANGED:
                continue
            if isinstance(value, dict):
                yield from walk(value, (*path, key))
            elif (changed := changed_value(value, draw)) is not None and changed != value:
                yield with_value((*path, key), changed)

    yield from walk(config, ())
    for key, value in ABSENT.items():
        if config.get(key) is None:
            yield with_value((key,), value)


def load(folder, config, ways):
    """Returns transformers' model of the folder in float64, or the reason why there is none."""
    (folder / "config.json").write_text(json.dumps(config))
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **ways)
    except Exception as error:  # whatever a wrong config makes of transformers
        return None, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
        return None, "the weights do not fit"
    return model.double().eval(), ""


def judge(program, folder, config, prompts, ways):
    """Returns what became of a change, and the details. A change differs if both prompts do: a router that has two
    experts of nearly the same weight decides about one."""
    model, why = load(folder, config, ways)
    try:
        answers = harness.run(program, str(folder), prompts)
    except harness.Crash as error:
        return "CRASHED", str(error)[-300:]
    except RuntimeError as error:
        return "refused", str(error)
    if model is None:
        return "only here", why
    try:
        results = [harness.compare(model, [ids], [answer]) for ids, answer in zip(prompts, answers, strict=True)]
    except Exception as error:
        return "only here", f"transformers: {error}"
    differ = all(worst > harness.BOUND or wrong for worst, _, wrong, _ in results)
    return ("DIFFERS" if differ else "equal"), f"largest difference {max(worst for worst, *_ in results):.1e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="ANSWER_LINES")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--models", type=int, default=20, help="of the families in turn, from a random one on")
    parser.add_argument("--family", help="only models of this family")
    args = parser.parse_args()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    print(f"seed {args.seed}, transformers {transformers.__version__}, torch {torch.__version__}, bound {harness.BOUND}")
    draw = random.Random(args.seed)
    families = [family for family in harness.FAMILIES if args.family in (None, family.__name__)]
    first = draw.randrange(len(families))
    total = collections.Counter()
    for i in range(args.models):
        family = families[(first + i) % len(families)]
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            built = family(draw)
            harness.make_model(built, draw.randrange(2**31), folder)
            whole = json.loads(built.to_json_string(use_diff=False))
            whole["architectures"] = json.loads((folder / "config.json").read_text())["architectures"]
            prompts = [[draw.randrange(whole["vocab_size"]) for _ in range(PROMPT_LENGTH)] for _ in range(2)]
            ways = harness.ways_of(built)
            counts = collections.Counter()
            for path, config in (((), whole), *changes(whole, draw)):
                outcome, details = judge(args.program, folder, config, prompts, ways)
                if not path and outcome != "equal":
                    outcome = "DIFFERS"
                counts[outcome] += 1
                if outcome.isupper():
                    value = config
                    for key in path:
                        value = value[key]
                    print(f"{outcome} {family.__name__} {'.'.join(path)} = {json.dumps(value) if path else 'as drawn'}: {details}",
                          flush=True)
        print(f"{family.__name__:10} {', '.join(f'{count} {outcome}' for outcome, count in sorted(counts.items()))}", flush=True)
        total += counts
    failures = total["DIFFERS"] + total["CRASHED"]
    print(f"{total.total()} configs: {', '.join(f'{count} {outcome}' for outcome, count in sorted(total.items()))}; {failures} failed")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
