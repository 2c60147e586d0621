#!/usr/bin/env python3
"""Writes testdata/gguf_*.gguf and testdata/gguf_goldens.json: tiny random models of the families as llama.cpp
stores them, and their logits in float64.

    python3 make_gguf_goldens.py [case ...]     those alone, or all; needs torch, transformers, gguf, numpy, xllamacpp

The files are laid out as llama.cpp's converters lay them out: projections of each head or group stacked, rotary
rows of Baichuan and SmolLM3 interleaved, Gemma's norms with their one, GPT-2's matrices turned. llama.cpp itself then runs each
file, and has to agree with the reference. It keeps K, V and the softmax in f16 and looks GELU up in a table of f16:
the bound of its run is reference_decoder's with every op's result moved by one rounding to f16; where a family has the
exact GELU it takes the other, so its reference does too.

Baichuan's files need 40 layers for llama.cpp to know ALiBi: written, run and not kept.
"""

import base64
import copy
import json
import pathlib
import sys
import tempfile

import gguf
import numpy
import torch

import reference_decoder as reference
from families import baichuan, bloom, falcon, gemma2, gemma3, gpt2, gpt_neox, llama4, llama_like, mpt, openelm, refact
from make_goldens import NUM_TOKENS, fill, tensor_values

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "bench" / "peers"))
import llama_library

TESTDATA = pathlib.Path(__file__).parent / "testdata"
CONTEXT = 256
FUSED = ("bloom", "falcon", "gptneox", "gpt2", "mpt", "openelm", "phi3")  # queries, keys and values in one tensor
# CASES maps the name of a file to its architecture, its family and its config.
SMALL = dict(vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
CASES = {
    "qwen2": ("qwen2", llama_like, dict(llama_like.QWEN2, **SMALL)),
    "qwen3": ("qwen3", llama_like, dict(llama_like.QWEN3, **SMALL)),
    "phi3": ("phi3", llama_like, dict(llama_like.PHI3, **SMALL, num_key_value_heads=2, sliding_window=None)),
    "gemma3": ("gemma3", gemma3, dict(gemma3.BASE, vocab_size=32, hidden_size=32, intermediate_size=32,
                                      num_hidden_layers=6, num_attention_heads=2, num_key_value_heads=1)),
    # llama.cpp derives the scale of scores from the head size, not from query_pre_attn_scalar. The case has
    # both soft caps.
    "gemma2": ("gemma2", gemma2, dict(gemma2.BASE, vocab_size=32, hidden_size=32, intermediate_size=48,
                                      num_attention_heads=2, num_key_value_heads=1, attn_logit_softcapping=6.0,
                                      final_logit_softcapping=9.0)),
    # llama.cpp leaves every fourth layer without RoPE, whatever the file says.
    "smollm3": ("smollm3", llama_like, dict(llama_like.SMOLLM3, **{**SMALL, "num_hidden_layers": 5})),
    # llama.cpp has the chunks and the scales of queries of the published models for every file. Every token goes to
    # all experts, so that no rounding to f16 changes its choice.
    "llama4": ("llama4", llama4, dict(llama4.CASES["llama4_published"], vocab_size=32, hidden_size=32, intermediate_size=32,
                                      intermediate_size_mlp=48, num_attention_heads=2, num_key_value_heads=1,
                                      num_local_experts=3, num_experts_per_tok=3)),
    "bloom": ("bloom", bloom, dict(bloom.BASE, vocab_size=32, hidden_size=32)),
    "mpt": ("mpt", mpt, dict(mpt.BASE, vocab_size=32, d_model=32, attn_config=dict(mpt.ATTENTION, clip_qkv=0.75))),
    "falcon": ("falcon", falcon, dict(falcon.CASES["falcon_7b"], vocab_size=32, hidden_size=32)),
    "falcon_40b": ("falcon", falcon, dict(falcon.CASES["falcon_40b"], vocab_size=32, hidden_size=32)),
    "gptneox": ("gptneox", gpt_neox, dict(gpt_neox.CASES["neox"], vocab_size=32)),
    "gpt2": ("gpt2", gpt2, dict(gpt2.BASE, vocab_size=32, n_embd=32)),
    "refact": ("refact", refact, dict(refact.BASE, vocab_size=32, n_embd=32, n_head=4)),
    "openelm": ("openelm", openelm, dict(openelm.BASE, vocab_size=32, model_dim=32)),
    "baichuan": ("baichuan", baichuan, dict(baichuan.BASE, vocab_size=32, hidden_size=16, num_attention_heads=2,
                                            intermediate_size=16, num_hidden_layers=40, model_max_length=256)),
}
NOT_KEPT = ("baichuan",)
INTERLEAVED = ("baichuan", "smollm3")  # the rotary rows of queries and keys


class HalfRounded(reference.Rounded):
    """Perturbs x by one rounding to f16, in addition to the float32 roundings."""

    def __call__(self, x, terms):
        noise = 2 * torch.rand(x.shape, generator=self.generator, dtype=x.dtype) - 1
        return super().__call__(x, terms) * (1 + 2.0**-11 * noise)


def main(chosen):
    path = TESTDATA / "gguf_goldens.json"
    cases = [case for case in json.loads(path.read_text())["cases"] if chosen and case["name"] not in chosen]
    for name, (architecture, family, config) in CASES.items():
        if not chosen or name in chosen:
            cases += make_case(name, architecture, family, config)
    order = list(CASES)
    lines = ",\n".join(json.dumps(case) for case in sorted(cases, key=lambda case: order.index(case["name"])))
    path.write_text(f'{{"cases": [\n{lines}\n]}}\n')


def make_case(name, architecture, family, config):
    """Returns a list of the case, or an empty list if the file is not kept."""
    tensors = {key: fill(key, shape).double() for key, shape in family.shapes(config).items()}
    description, weights = family.describe(config, tensors, CONTEXT)
    ids, logits, bound = choose_prompt(name, description, weights)
    with tempfile.TemporaryDirectory() as scratch:
        file = f"gguf_{name}.gguf"
        path = pathlib.Path(scratch if name in NOT_KEPT else TESTDATA) / file
        write(path, architecture, config, description, weights)
        check_llama_cpp(name, path, description, weights, ids)
    if name in NOT_KEPT:
        return []
    return [{"name": name, "file": file, "ids": ids, "bound": bound,
             "logits": base64.b64encode(logits.float().numpy().tobytes()).decode()}]


def choose_prompt(name, description, weights):
    vocab = len(weights.embedding)
    for salt in range(50):  # the first prompt whose margins decide nearly every argmax
        ids = [int(v) for v in abs(tensor_values(f"ids.{salt}.gguf.{name}", NUM_TOKENS)) * vocab]
        logits = reference.logits(description, weights, ids)
        bound = reference.bound(description, weights, ids)
        top2 = logits.topk(2, dim=-1).values
        if (top2[:, 0] - top2[:, 1] > 2 * bound).double().mean() >= 0.99:
            break
    return ids, logits, bound


def check_llama_cpp(name, path, description, weights, ids):
    theirs = copy.copy(description)
    if theirs.activation == "gelu":
        theirs.activation = "gelu_tanh"
    want = reference.logits(theirs, weights, ids)
    bound = 2 * max((reference.logits(theirs, weights, ids, HalfRounded(seed)) - want).abs().max().item()
                    for seed in range(reference.RUNS))
    got = torch.from_numpy(llama_library.Llama(path, CONTEXT, 1).logits(ids)).double()
    error = (got - want).abs().max().item()
    top2 = want.topk(2, dim=-1).values
    sure = top2[:, 0] - top2[:, 1] > 2 * bound
    same = (got.argmax(-1) == want.argmax(-1))[sure].sum().item()
    print(f"{name:10} llama.cpp: largest error {error:.2e} bound {bound:.2e}, argmax {same} of {sure.sum().item()}, "
          f"smallest margin {(top2[:, 0] - top2[:, 1]).min():.2e}")
    assert error <= bound and same == sure.sum().item(), name


def write(path, architecture, config, d, weights):
    writer = gguf.GGUFWriter(path, architecture)
    width = weights.embedding.shape[1]
    gated = d.activation.endswith("_mul")
    writer.add_vocab_size(len(weights.embedding))
    writer.add_tokenizer_model("no_vocab")
    writer.add_block_count(len(weights.layers))
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(width)
    inner_sizes = [layer.up.shape[-2] // (2 if gated else 1) for layer in weights.layers]
    if architecture == "openelm":
        writer.add_feed_forward_length(inner_sizes)
        writer.add_head_count([layer.heads for layer in weights.layers])
        writer.add_head_count_kv([layer.kv_heads for layer in weights.layers])
    else:
        writer.add_feed_forward_length(inner_sizes[0])
        writer.add_head_count(d.heads)
        writer.add_head_count_kv(d.kv_heads)
    if d.head_dim * d.heads != width:
        writer.add_key_length(d.head_dim)
        writer.add_value_length(d.head_dim)
    (writer.add_layer_norm_rms_eps if d.rms_norm else writer.add_layer_norm_eps)(d.eps)
    if d.rope_frequencies is not None:
        writer.add_rope_dimension_count(2 * len(d.rope_frequencies))
        writer.add_rope_freq_base(config.get("rope_theta", 10000.0))
    elif architecture == "baichuan":
        writer.add_rope_dimension_count(d.head_dim)
    if architecture in ("gemma2", "gemma3"):
        writer.add_sliding_window(config["sliding_window"])
    if d.soft_cap is not None:
        writer.add_attn_logit_softcapping(d.soft_cap)
    if d.logit_soft_cap is not None:
        writer.add_final_logit_softcapping(d.logit_soft_cap)
    if architecture == "llama4":
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        writer.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
    if architecture == "gptneox":
        writer.add_parallel_residual(d.parallel)
    if architecture == "mpt":
        writer.add_max_alibi_bias(d.alibi_bias_max)
        writer.add_clamp_kqv(d.clip)
    for name, tensor in named_tensors(architecture, d, weights).items():
        writer.add_tensor(name, numpy.ascontiguousarray(tensor.numpy().astype(numpy.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def named_tensors(architecture, d, weights):
    found = {}

    def add(name, weight, bias=None):
        if weight is not None:
            found[f"{name}.weight"] = weight
        if bias is not None:
            found[f"{name}.bias"] = bias

    add("token_embd", weights.embedding)
    add("position_embd", weights.position_embedding)
    add("token_embd_norm", *(weights.embedding_norm or (None, None)))
    add("output_norm", *weights.final_norm)
    if weights.head is not weights.embedding:
        add("output", weights.head)
    sizes = [d.heads * d.head_dim, d.kv_heads * d.head_dim, d.kv_heads * d.head_dim]
    for i, layer in enumerate(weights.layers):
        block = f"blk.{i}."
        norms = {"attn_norm": layer.attention_norm, "ffn_norm": layer.mlp_norm,
                 "post_attention_norm": layer.attention_post_norm, "post_ffw_norm": layer.mlp_post_norm}
        if architecture == "falcon":
            norms = {"attn_norm": layer.mlp_norm, "attn_norm_2": layer.attention_norm}
            if layer.mlp_norm[0] is layer.attention_norm[0]:
                del norms["attn_norm_2"]
        for name, norm in norms.items():
            add(block + name, *(norm or (None, None)))
        if architecture != "llama4":  # whose norms have no weights
            add(block + "attn_q_norm", layer.q_norm)
            add(block + "attn_k_norm", layer.k_norm)
        if architecture in FUSED:
            add(block + "attn_qkv", layer.qkv, layer.qkv_bias)
        else:
            biases = [None] * 3 if layer.qkv_bias is None else layer.qkv_bias.split(sizes)
            for part, weight, bias in zip("qkv", layer.qkv.split(sizes), biases):
                if architecture in INTERLEAVED and part != "v":
                    weight = interleaved(weight, d.head_dim)
                add(f"{block}attn_{part}", weight, bias)
        add(block + "attn_output", layer.o, layer.o_bias)
        if layer.router is not None:
            add(block + "ffn_gate_inp", layer.router)
            for suffix, up, down in (("_exps", layer.up, layer.down), ("_shexp", *layer.shared)):
                gate, up = up.chunk(2, dim=-2)
                for part, weight in (("gate", gate), ("up", up), ("down", down)):
                    add(f"{block}ffn_{part}{suffix}", weight)
            continue
        if d.activation.endswith("_mul") and architecture != "phi3":
            gate, up = layer.up.chunk(2)
            add(block + "ffn_gate", gate)
            add(block + "ffn_up", up)
        else:
            add(block + "ffn_up", layer.up, layer.up_bias)
        add(block + "ffn_down", layer.down, layer.down_bias)
    return found


def interleaved(weight, dim):
    """Rows (i, i + dim / 2) of each head become (2i, 2i + 1)."""
    return weight.view(-1, 2, dim // 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


if __name__ == "__main__":
    main(set(sys.argv[1:]))
