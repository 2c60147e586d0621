#!/usr/bin/env python3
"""Computes the perplexity of one GGUF file on one text, by Quire and by llama.cpp, with llama.cpp's rule.

    pip install xllamacpp
    python3 bench/peers/perplexity.py MODEL.gguf TEXT [--windows 64] [--context 512] [--cpu_isa avx2]

The rule is llama-perplexity's (tools/perplexity in llama.cpp). The text is cut into windows of `context` tokens, and
tokens left over are dropped. Each window is computed by itself, with its first token replaced by BOS where the model's
tokenizer adds one. The tokens after the first half of each window are scored. Quire's number is that of `quire-inspect
--perplexity`; llama.cpp's is computed here from its logits, in float64. Both get the same first `windows` windows. Each
program tokenizes by itself, and the numbers of tokens are compared.
"""

import argparse
import json
import math
import pathlib
import subprocess
import time

import llama_library


def quire(arguments):
    command = [f"{arguments.bin}/quire-inspect", "--perplexity", arguments.model, arguments.text, "--json",
               f"--context={arguments.context}", f"--windows={arguments.windows}", f"--threads={arguments.threads}",
               f"--cpu_isa={arguments.cpu_isa}"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def llama_cpp(arguments):
    begin = time.monotonic()
    llama = llama_library.Llama(arguments.model, arguments.context, arguments.threads)
    tokens = llama.tokenize(pathlib.Path(arguments.text).read_bytes().decode())
    windows = min(arguments.windows or len(tokens), len(tokens) // arguments.context)
    first = arguments.context // 2
    total = squares = 0.0
    count = 0
    for i in range(windows):
        window = tokens[i * arguments.context:(i + 1) * arguments.context]
        if llama.adds_bos:
            window[0] = llama.bos_id
        llama.forget()
        logprobs = llama_library.log_softmax(llama.logits(window, first))
        for row, token in zip(logprobs, window[first + 1:]):
            total -= row[token]
            squares += row[token] ** 2
            count += 1
        print(f"llama.cpp: {i + 1} of {windows} windows, perplexity {math.exp(total / count):.4f}", flush=True)
    mean = total / count
    error = math.exp(mean) * math.sqrt(max(0.0, squares / count - mean * mean) / (count - 1))
    return {"perplexity": math.exp(mean), "error": error, "num_tokens": len(tokens), "num_scored": count,
            "num_windows": windows, "seconds": time.monotonic() - begin}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--windows", type=int, default=0, help="only this many first windows; 0: all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--cpu_isa", default="auto", help="--cpu_isa of Quire")
    arguments = parser.parse_args()
    results = {"quire": quire(arguments), "llama.cpp": llama_cpp(arguments)}
    for who, result in results.items():
        print(f"{who:9} perplexity {result['perplexity']:.4f} +/- {result['error']:.4f}, {result['num_scored']} of "
              f"{result['num_tokens']} tokens scored in {result['num_windows']} windows, {result['seconds']:.0f} s")
    ratio = results["quire"]["perplexity"] / results["llama.cpp"]["perplexity"]
    print(f"quire / llama.cpp: {ratio:.5f}, {100 * (ratio - 1):+.3f} %")


if __name__ == "__main__":
    main()
