#!/usr/bin/env python3
"""Draws new tiny models of every served family that transformers has, and compares answers.

    compare_random_with_hf.py ANSWER_LINES [--convert QUIRE_CONVERT] [--seed N] [--models 17] [--keep DIR]

Sizes are odd on purpose: numbers of heads that are no powers of two, grouped keys, windows, and more rows in the
vocabulary than the tokenizer has tokens. Each model is a directory that transformers writes, run by the whole engine
(ANSWER_LINES, built) and by transformers in float64. Compared are, for prompts of 1, 17, 70 and 150 ids and 24 greedy
tokens after each, the log probabilities of the 20 likeliest ids at every position, and the tokens. With --convert the
GGUF file of the same weights, where there is one, has to agree as well. Without --seed another one is taken each time,
and printed. Exit status 1 when something differs, 77 without transformers.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

try:
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, decoders
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

NUM_TOKENS = 300  # of the tokenizer
PROMPT_LENGTHS = (1, 17, 70, 150)
MAX_TOKENS = 24
CONTEXT = 256
# The largest allowed error of a log probability: ten times the largest error seen in hundreds of float32
# runs.
BOUND = 3e-3


def sizes(draw, heads=(3, 5, 6, 7, 9), dims=(8, 16, 24, 40, 48)):
    """Returns heads, KV heads that divide them, the head size, layers, and vocabulary rows."""
    num_heads = draw.choice(heads)
    kv_heads = draw.choice([n for n in range(1, num_heads + 1) if num_heads % n == 0])
    return num_heads, kv_heads, draw.choice(dims), draw.choice((2, 3)), NUM_TOKENS + draw.choice((0, 3, 87))


def llama_like(draw, **more):
    heads, kv_heads, dim, layers, rows = sizes(draw)
    return dict(vocab_size=rows, hidden_size=heads * draw.choice((8, 12, 16)), intermediate_size=draw.choice((72, 120)),
                num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=dim,
                max_position_embeddings=CONTEXT, tie_word_embeddings=draw.random() < 0.5, **more)


def llama(draw):
    scaling = draw.choice((None, dict(rope_type="linear", factor=2.5), dict(rope_type="yarn", factor=4.0),
                           dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                original_max_position_embeddings=90)))
    theta = dict(rope_theta=draw.choice((1e4, 5e5)))
    bias = draw.random() < 0.3
    config = llama_like(draw, attention_bias=bias, mlp_bias=bias)
    return transformers.LlamaConfig(**config, rope_parameters=dict(scaling or dict(rope_type="default"), **theta))


def mistral(draw):
    return transformers.MistralConfig(**llama_like(draw, sliding_window=draw.choice((None, 1, 23, 64))))


def mixtral(draw):
    experts = draw.choice((3, 5))
    return transformers.MixtralConfig(**llama_like(draw, num_local_experts=experts, num_experts_per_tok=draw.choice((1, 2))))


def qwen2(draw):
    config = llama_like(draw)
    config["head_dim"] = 16
    config["hidden_size"] = 16 * config["num_attention_heads"]
    return transformers.Qwen2Config(**config)


def qwen3(draw):
    return transformers.Qwen3Config(**llama_like(draw, attention_bias=draw.random() < 0.3))


def qwen3_moe(draw):
    config = llama_like(draw, num_experts=draw.choice((5, 7)), num_experts_per_tok=2, moe_intermediate_size=40,
                        norm_topk_prob=draw.random() < 0.5)
    return transformers.Qwen3MoeConfig(**config, **dense(draw, config["num_hidden_layers"]))


def dense(draw, layers):
    """Chooses which layers of a mixture have one feed-forward network instead of experts."""
    return draw.choice((dict(), dict(decoder_sparse_step=2), dict(mlp_only_layers=[draw.randrange(layers)])))


def smollm3(draw):
    config = llama_like(draw, no_rope_layer_interval=draw.choice((2, 4)), use_sliding_window=draw.random() < 0.5,
                        sliding_window=19, attention_bias=draw.random() < 0.3, pad_token_id=0)
    config["num_hidden_layers"] = 5
    return transformers.SmolLM3Config(**config)


def gemma2(draw):
    config = llama_like(draw, sliding_window=draw.choice((17, 40)), query_pre_attn_scalar=draw.choice((16, 31)),
                        attn_logit_softcapping=draw.choice((None, 6.0, 50.0)), final_logit_softcapping=draw.choice((None, 9.0)))
    return transformers.Gemma2Config(**config)


def gpt_oss(draw):
    config = llama_like(draw, sliding_window=draw.choice((17, 40)), num_local_experts=draw.choice((5, 7)),
                        num_experts_per_tok=draw.choice((1, 3)), swiglu_limit=draw.choice((1.5, 7.0)))
    config["tie_word_embeddings"] = False
    return transformers.GptOssConfig(**config)


def llama4(draw):
    config = llama_like(draw, attention_chunk_size=draw.choice((1, 17, 64)), num_local_experts=draw.choice((5, 7)),
                        num_experts_per_tok=draw.choice((1, 2)), intermediate_size_mlp=draw.choice((40, 96)),
                        interleave_moe_layer_step=draw.choice((1, 2)), use_qk_norm=draw.random() < 0.5,
                        attn_temperature_tuning=draw.random() < 0.7, floor_scale=draw.choice((5, 32)), attn_scale=0.4,
                        no_rope_layer_interval=draw.choice((2, 4)), attention_bias=draw.random() < 0.3)
    config.update(num_hidden_layers=5, tie_word_embeddings=False)
    return transformers.Llama4TextConfig(**config)


def gemma3(draw):
    config = llama_like(draw, sliding_window=draw.choice((17, 40)), query_pre_attn_scalar=draw.choice((16, 31)))
    config["num_hidden_layers"] = 7
    return transformers.Gemma3TextConfig(**config)


def phi3(draw):
    config = llama_like(draw, sliding_window=draw.choice((None, 47)), pad_token_id=0)
    config["head_dim"] = 24
    config["hidden_size"] = 24 * config["num_attention_heads"]
    return transformers.Phi3Config(**config)


def mpt(draw):
    heads, _, dim, layers, rows = sizes(draw)
    return transformers.MptConfig(d_model=heads * dim, n_heads=heads, n_layers=layers, expansion_ratio=4,
                                  max_seq_len=CONTEXT, vocab_size=rows,
                                  attn_config=dict(clip_qkv=draw.choice((None, 1.5)), softmax_scale=draw.choice((None, 0.2))))


def bloom(draw):
    heads, _, dim, layers, rows = sizes(draw)
    return transformers.BloomConfig(vocab_size=rows, hidden_size=heads * dim, n_layer=layers, n_head=heads, seq_length=CONTEXT)


def falcon(draw):
    heads, kv_heads, dim, layers, rows = sizes(draw)
    kind = draw.choice((dict(alibi=True, multi_query=False, parallel_attn=False, bias=True),
                        dict(alibi=True, multi_query=True, parallel_attn=True, bias=False),
                        dict(alibi=False, multi_query=True, parallel_attn=True, bias=draw.random() < 0.5),
                        dict(alibi=False, new_decoder_architecture=True, num_kv_heads=kv_heads, bias=False,
                             num_ln_in_parallel_attn=draw.choice((1, 2)))))
    return transformers.FalconConfig(vocab_size=rows, hidden_size=heads * dim, num_hidden_layers=layers,
                                     num_attention_heads=heads, max_position_embeddings=CONTEXT, **kind)


def gpt_neox(draw):
    heads, _, dim, layers, rows = sizes(draw, dims=(16, 24, 40, 48))
    return transformers.GPTNeoXConfig(vocab_size=rows, hidden_size=heads * dim, num_hidden_layers=layers,
                                      num_attention_heads=heads, intermediate_size=120, max_position_embeddings=CONTEXT,
                                      rotary_pct=draw.choice((0.25, 0.5, 1.0)), use_parallel_residual=draw.random() < 0.5,
                                      tie_word_embeddings=draw.random() < 0.5)


def gpt2(draw):
    heads, _, dim, layers, rows = sizes(draw)
    return transformers.GPT2Config(vocab_size=rows, n_embd=heads * dim, n_layer=layers, n_head=heads, n_positions=CONTEXT)


FAMILIES = [llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, gpt_oss, llama4, smollm3, gemma2, gemma3, phi3, mpt,
            bloom, falcon, gpt_neox, gpt2]


def save_tokenizer(folder):
    """Saves a tokenizer of bytes and made-up words. Only ids are compared."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet()) + [f"word{i}" for i in range(NUM_TOKENS - 256)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def ways_of(config):
    """Avoids two implementations of transformers: eager attention of Falcon adds ALiBi twice, and the grouped matrix
    product of experts does not take float64."""
    return dict(falcon=dict(attn_implementation="sdpa"), mixtral=dict(experts_implementation="eager"),
                qwen3_moe=dict(experts_implementation="eager"), gemma2=dict(attn_implementation="eager"),
                llama4_text=dict(attn_implementation="eager"),
                gpt_oss=dict(attn_implementation="eager", experts_implementation="eager")).get(config.model_type, {})


def make_model(config, seed, folder):
    """Saves a model of random weights whose logits spread so widely that ties are rare. Returns it in float64."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, **ways_of(config)).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.copy_(("norm" in name or "ln_" in name) * ("bias" not in name) * 1.0 + 0.2 * torch.randn_like(weight))
            else:
                weight.copy_(torch.randn_like(weight) * 1.5 / weight.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model.double()


def theirs(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double()


class Crash(RuntimeError):
    """The program was ended by a signal."""


def run(program, path, prompts):
    """Returns the answers; raises RuntimeError with the reason when the program refuses the model."""
    lines = "".join(" ".join(map(str, ids)) + "\n" for ids in prompts)
    done = subprocess.run([program, path, str(MAX_TOKENS), str(CONTEXT)], input=lines, capture_output=True, text=True)
    if done.returncode != 0:
        raise (Crash if done.returncode < 0 else RuntimeError)(done.stderr.strip())
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(model, prompts, answers):
    """Returns the largest difference of a log probability, and three numbers of greedy tokens: those equal to
    transformers' tokens, those that differ although transformers' token is certain, and all."""
    worst, equal, wrong, total = 0.0, 0, 0, 0
    for ids, answer in zip(prompts, answers, strict=True):
        tokens = answer["tokens"]
        logits = theirs(model, ids + tokens[:-1])
        expected = logits.log_softmax(-1)
        for at, position in enumerate(answer["prompt"] + answer["drawn"]):
            for token, logprob in position.items():
                worst = max(worst, abs(expected[at, int(token)].item() - logprob))
        drawable = logits[len(ids) - 1 :, :NUM_TOKENS]
        best = drawable.topk(2)
        for i, token in enumerate(tokens):
            total += 1
            equal += best.indices[i, 0].item() == token
            certain = (best.values[i, 0] - best.values[i, 1]).item() > 2 * BOUND
            wrong += certain and best.indices[i, 0].item() != token
    return worst, equal, wrong, total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="ANSWER_LINES")
    parser.add_argument("--convert", metavar="QUIRE_CONVERT")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--models", type=int, default=len(FAMILIES), help="of the families in turn, from a random one on")
    parser.add_argument("--keep", metavar="DIR", help="where models stay")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    print(f"seed {args.seed}, transformers {transformers.__version__}, torch {torch.__version__}, bound {BOUND}")
    draw = random.Random(args.seed)
    first = draw.randrange(len(FAMILIES))
    failures = 0
    for i in range(args.models):
        family = FAMILIES[(first + i) % len(FAMILIES)]
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(args.keep or temporary) / f"{i}-{family.__name__}"
            folder.mkdir(parents=True, exist_ok=True)
            config = family(draw)
            model = make_model(config, draw.randrange(2**31), folder)
            rows = model.get_input_embeddings().weight.shape[0]
            prompts = [[draw.randrange(rows) for _ in range(length)] for length in PROMPT_LENGTHS]
            for form in ("directory", "GGUF"):
                path = str(folder)
                if form == "GGUF":
                    path = str(folder / "model.gguf")
                    if args.convert is None or subprocess.run([args.convert, str(folder), path, "--type", "f32"],
                                                              capture_output=True).returncode != 0:
                        continue
                try:
                    worst, equal, wrong, total = compare(model, prompts, run(args.program, path, prompts))
                    failed = worst > BOUND or wrong > 0
                    text = f"largest difference {worst:.1e}, greedy {equal} of {total}"
                except RuntimeError as error:
                    failed, text = True, str(error)
                failures += failed
                print(f"{'FAILED ' if failed else ''}{family.__name__:10} {form:9} {rows} rows for {NUM_TOKENS} tokens: {text}",
                      flush=True)
                if failed:
                    print(json.dumps(config.to_diff_dict(), default=str))
    print(f"{failures} failed")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
