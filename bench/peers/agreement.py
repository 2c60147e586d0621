#!/usr/bin/env python3
"""Checks by the margin rule that Quire takes the tokens that llama.cpp takes, on llama.cpp's own greedy texts.

    pip install xllamacpp gguf
    python3 bench/peers/agreement.py MODEL.gguf [--texts 20] [--tokens 64] [--cpu_isa avx2]

llama.cpp writes the texts, greedily, from MODEL.gguf. The reference is llama.cpp again, fed those texts, on a copy of
the file whose weights are dequantised to F32: the same weights, without the rounding of activations that both programs
do with quantised weights. Quire is fed the same tokens, on MODEL.gguf itself, and as a further check on the copy.

The rule: wherever the reference's likeliest token is ahead of its second by more than twice the bound, Quire's
likeliest must be the same. The bound is the largest difference between the log probabilities of llama.cpp on MODEL.gguf
and of the reference, over all generated positions and the reference's five likeliest tokens at each. It is the error
that the rounding of activations causes in llama.cpp itself. A file of F32 weights has no such error, so give --bound.
Exit status 1 when the rule is broken.
"""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy

import compare
import llama_library

PROMPTS = (
    "Once upon a time, in a village by the sea,", "The capital of France is", "Water boils at",
    "To bake a simple loaf of bread, first", "The three laws of motion say that", "Dear Sir or Madam,",
    "The history of paper begins in", "A prime number is", "def fibonacci(n):\n", "The weather today is",
    "Photosynthesis is the process by which", "In 1969, the first humans", "Roses are red,",
    "The difference between a virus and a bacterium is", "My favourite book is", "The mitochondria",
    "Question: What is the largest planet?\nAnswer:", "He opened the door slowly and", "Economists define inflation as",
    "1, 2, 3, 4,",
)
CONTEXT = 512
NUM_LIKELIEST = 5
NUM_TOP = 20  # the most tokens of a position that Quire reports


def write_dequantised(source, target):
    """The same model with every tensor in F32."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=element)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        writer.add_tensor(tensor.name, values.reshape([int(n) for n in reversed(tensor.shape)]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def greedy_texts(llama, arguments):
    """For each text, (tokens, number of prompt tokens, log probabilities of each generated position)."""
    texts = []
    for prompt in PROMPTS[:arguments.texts]:
        tokens = llama.tokenize(prompt)
        num_prompt, rows = len(tokens), []
        llama.forget()
        fed = tokens[:]
        while len(rows) < arguments.tokens:
            logprobs = llama_library.log_softmax(llama.logits(fed, len(fed) - 1))[0]
            rows.append(logprobs)
            fed = [int(logprobs.argmax())]
            tokens += fed
            if llama.is_end(fed[0]):
                break
        texts.append((tokens, num_prompt, numpy.array(rows)))
    return texts


def reference_rows(llama, tokens, num_prompt):
    llama.forget()
    return llama_library.log_softmax(llama.logits(tokens[:-1], num_prompt - 1))


def quire_rows(arguments, port, tokens, num_prompt):
    """For each generated position, {token id: log probability} of the likeliest tokens, best first."""
    command = [f"{arguments.bin}/quire", "generate", "--server", f"127.0.0.1:{port}", "--json", "--max_tokens", "1",
               "--ignore_eos", "--temperature", "0", "--prompt_logprobs", str(NUM_TOP),
               "--token_ids", ",".join(map(str, tokens))]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    positions = [position for line in lines for position in json.loads(line).get("prompt_logprobs", [])]
    assert len(positions) == len(tokens) - 1, (len(positions), len(tokens))
    return [{top.get("token_id", 0): top.get("logprob", 0.0) for top in position["top"]}
            for position in positions[num_prompt - 1:]]


@contextlib.contextmanager
def quire_server(arguments, model):
    """Yields the port of a running server, which is stopped at the end of the block."""
    port = compare.free_port()
    server = subprocess.Popen([f"{arguments.bin}/quire-server", "--model", str(model), "--max_num_seqs", "4",
                               "--max_model_len", str(CONTEXT), "--listen", f"127.0.0.1:{port}",
                               "--admin_listen", "127.0.0.1:0", "--cpu_isa", arguments.cpu_isa,
                               "--threads", str(arguments.threads), "--log_level", "warning"])
    try:
        compare.wait_for(port)
        yield port
    finally:
        server.terminate()
        server.wait()


class Comparison:
    """The agreement of one program with the reference, position by position."""

    def __init__(self):
        self.errors = []  # errors of the log probabilities of the reference's likeliest tokens
        self.unknown = 0  # number of the reference's likeliest tokens that the program did not report
        self.positions = []  # (the reference's margin, whether the likeliest token is the same)

    def add(self, reference, best, logprob_of):
        likeliest = numpy.argsort(-reference)[:NUM_LIKELIEST]
        self.positions.append((reference[likeliest[0]] - reference[likeliest[1]], best == likeliest[0]))
        for token in likeliest:
            logprob = logprob_of(int(token))
            if logprob is None:
                self.unknown += 1
            else:
                self.errors.append(abs(float(logprob - reference[token])))

    def largest_error(self):
        return max(self.errors)

    def report(self, who, bound):
        """Prints the agreement, and returns whether the rule holds."""
        decided = [(margin, same) for margin, same in self.positions if margin > 2 * bound]
        broken = sorted(margin for margin, same in decided if not same)
        differ = sorted(margin for margin, same in self.positions if not same)
        errors = numpy.sort(self.errors)
        print(f"{who}: differences of {len(errors)} log probabilities: root mean square {numpy.sqrt((errors**2).mean()):.4f}, "
              f"of 100 the largest {errors[-max(1, len(errors) // 100)]:.4f}, largest "
              + ", ".join(f"{error:.4f}" for error in errors[:-4:-1])
              + f" ({self.unknown} tokens beyond the {NUM_TOP} told)")
        print(f"  margin over {2 * bound:.4f}: {len(decided)} of {len(self.positions)} positions compared, "
              f"smallest margin {min((margin for margin, _ in decided), default=0):.4f}, {len(broken)} disagree"
              + "".join(f" {margin:.4f}" for margin in broken))
        print(f"  all positions: {len(self.positions) - len(differ)} agree, {len(differ)} disagree, at margins"
              + "".join(f" {margin:.4f}" for margin in differ))
        return not broken


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--cpu_isa", default="auto", help="--cpu_isa of Quire")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--texts", type=int, default=len(PROMPTS))
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of each text")
    parser.add_argument("--bound", type=float, default=0.0, help="smallest bound; default: the measured one")
    arguments = parser.parse_args()

    texts = greedy_texts(llama_library.Llama(arguments.model, CONTEXT, arguments.threads), arguments)
    with tempfile.TemporaryDirectory() as directory:
        copy = pathlib.Path(directory) / "f32.gguf"
        write_dequantised(arguments.model, copy)
        llama = llama_library.Llama(copy, CONTEXT, arguments.threads)
        references = [reference_rows(llama, tokens, num_prompt) for tokens, num_prompt, _ in texts]

        on_copy, on_file, peer = Comparison(), Comparison(), Comparison()
        for path, comparison in ((copy, on_copy), (arguments.model, on_file)):
            with quire_server(arguments, path) as port:
                for (tokens, num_prompt, _), reference in zip(texts, references):
                    for row, told in zip(reference, quire_rows(arguments, port, tokens, num_prompt)):
                        comparison.add(row, next(iter(told)), told.get)
    for (_, _, own), reference in zip(texts, references):
        for row, own_row in zip(reference, own):
            peer.add(row, int(own_row.argmax()), lambda token: own_row[token])
    bound = max(peer.largest_error(), arguments.bound)
    if bound == 0:
        sys.exit("llama.cpp says the same of both files, so nothing was measured: give --bound")
    print(f"{len(texts)} texts, {len(peer.positions)} positions; bound {bound:.4f}")
    peer.report("llama.cpp on the file", bound)
    on_copy.report("quire on the copy in F32", bound)
    if not on_file.report("quire on the file", bound):
        sys.exit(1)


if __name__ == "__main__":
    main()
