#!/usr/bin/env python3
"""Counts where our tokenizers of GGUF files give what llama.cpp gives: ids with special tokens, ids without.

    compare_with_llama_cpp.py ENCODE_LINES DATA [--written WRITE_VOCABULARY] [--random 5000] [--only NAME]... [--show 3]

For each vocabulary of DATA/tokenizers/gguf-vocab, for each name of tokenizer.ggml.pre below over GPT-2's vocabulary and
over one of all pairs of bytes, and for each Hugging Face directory that WRITE_VOCABULARY, the program of that name, says
in GGUF, writes a model of that tokenizer and one layer, which llama.cpp (xllamacpp) opens. Needs `gguf`, `xllamacpp`,
`tokenizers`. Exit status 1 when there is a difference without a reason.
"""
import argparse
import glob
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import urllib.request

import gguf
import numpy
import xllamacpp

import compare_with_hf
import corpora
import vocabularies

NAMES = ["default", "gpt-2", "mpt", "falcon", "llama-bpe", "qwen2", "smollm", "refact", "starcoder", "bloom", "poro-chat", "gpt3-finnish",
         "viking", "tekken", "gpt-4o", "llama4"]
HIDDEN = 32
BUNDLED = os.path.join(os.path.dirname(__file__), "../../../models")


def write_model(source, path, pre=None):
    """Writes a Llama of one layer with the tokenizer of the GGUF file `source`. `pre` replaces its tokenizer.ggml.pre."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, "llama")
    for field in reader.fields.values():
        if field.name == "general.name":
            writer.add_name(field.contents())
        if not field.name.startswith("tokenizer.") or (pre and field.name == "tokenizer.ggml.pre"):
            continue
        kind = field.types[0]
        sub_type = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=sub_type)
    if pre:
        writer.add_tokenizer_pre(pre)
    vocab_size = len(reader.fields["tokenizer.ggml.tokens"].data)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN)
    square = numpy.zeros((HIDDEN, HIDDEN), numpy.float32)
    writer.add_tensor("token_embd.weight", numpy.zeros((vocab_size, HIDDEN), numpy.float16))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(name + ".weight", numpy.ones(HIDDEN, numpy.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", square)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pairs_of_bytes(path):
    """Writes a byte-level vocabulary that merges any two bytes, in an order from a seed. GPT-2's has no token across its
    own splits, so it shows no difference between two splits that are both coarser; this one does."""
    letters = list(vocabularies.byte_letters().values())
    merges = [(a, b) for a in letters for b in letters]
    random.Random(20261122).shuffle(merges)
    tokens = letters + [a + b for a, b in merges] + ["<|end|>"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(tokens) - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges([f"{a} {b}" for a, b in merges])
    writer.add_bos_token_id(len(tokens) - 1)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def written(program, data, scratch):
    """(name, GGUF file, None) of each directory whose tokenizer GGUF can say, as our converter says it."""
    for folder in sorted(glob.glob(f"{data}/tokenizers/hf-json/*/")) + [f"{data}/models/stories260K-hf/", f"{BUNDLED}/quire-stories/"]:
        name = os.path.basename(os.path.dirname(folder))
        path = os.path.join(scratch, name + ".gguf")
        subprocess.run([program, folder + "tokenizer.json", path, name], check=True)
        yield f"{name}, written", path, None


def llama_cpp(path, texts):
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = 128
    params.n_parallel = 1
    params.warmup = False
    server = xllamacpp.Server(params)

    def ids(text, special):
        body = json.dumps({"content": text, "add_special": special, "parse_special": special}).encode()
        request = urllib.request.Request(f"{server.listening_address}/tokenize", data=body, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)["tokens"]

    return [{"ids": ids(text, True), "plain_ids": ids(text, False)} for text in texts]


def strips_unicode_space(name, added):
    """A pattern of the texts that may differ: behind a token that strips (Phi-3's), llama.cpp takes ASCII's white space,
    tokenizers and we take Unicode's."""
    spaces = "\\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"
    tokens = "|".join(re.escape(token) for token in added)
    return re.compile(f"(?:{tokens})[\\t-\\r ]*[{spaces}]") if name.startswith("phi-3") else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("encode_lines")
    parser.add_argument("data")
    parser.add_argument("--written", metavar="WRITE_VOCABULARY")
    parser.add_argument("--random", type=int, default=5000)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--show", type=int, default=3)
    args = parser.parse_args()
    folder = f"{args.data}/tokenizers/gguf-vocab"
    cases = [(name, f"{folder}/ggml-vocab-{name}.gguf", None) for name in ("falcon", "gpt-2", "gpt-neox", "mpt", "phi-3")]
    cases += [(f"pre = {name}", f"{folder}/ggml-vocab-gpt-2.gguf", name) for name in NAMES]
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        pairs = pairs_of_bytes(os.path.join(scratch, "pairs.gguf"))
        cases += [(f"pairs, pre = {name}", pairs, name) for name in NAMES]
        cases += written(args.written, args.data, scratch) if args.written else []
        print(f"| {'vocabulary':25} | {'corpus':12} | strings |     ids |   plain |")
        for name, source, pre in cases:
            if args.only and name not in args.only:
                continue
            path = os.path.join(scratch, "model.gguf")
            write_model(source, path, pre)
            tokenizer = vocabularies.Gguf(source)
            added = [token for token, kind in zip(tokenizer.tokens, tokenizer.types) if kind in (2, 3, 4)]
            for corpus, texts in corpora.of_texts(args.data, added, args.random):
                pairs = list(zip(texts, compare_with_hf.ours(args.encode_lines, path, texts), llama_cpp(path, texts)))
                counts, different, may_differ = [], [], strips_unicode_space(name, added)
                for kind in ("ids", "plain_ids"):
                    found = [(kind, text, a[kind], b[kind]) for text, a, b in pairs if a[kind] != b[kind]]
                    counts.append(len(texts) - len(found))
                    different += [case for case in found if not (may_differ and may_differ.search(case[1]))]
                failed += len(different)
                print(f"| {name:25} | {corpus:12} | {len(texts):7} | {counts[0]:7} | {counts[1]:7} |", flush=True)
                explained = 2 * len(texts) - sum(counts) - len(different)
                if explained:
                    print(f"    {explained} take white space beyond ASCII along with a token")
                for kind, text, a, b in different[:args.show]:
                    print(f"    {kind}: {text!r}\n      ours   {a}\n      theirs {b}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
