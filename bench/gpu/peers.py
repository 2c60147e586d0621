#!/usr/bin/env python3
"""Measures Quire's attention beside other implementations on one GPU: the same shapes, in turn.

    python3 bench/gpu/peers.py --bench build/cuda/bin/quire-gpu-bench --json results.jsonl
        [--filter TEXT] [--peers NAME,...] [--rounds N] [--repeats N] [--seconds N]

For each case, a round is `--repeats` samples of ours and of each peer, A B C A B C; the medians over all rounds
are compared. Peers: torch's SDPA (FlashAttention-2, cuDNN, memory-efficient), flex_attention, FlashInfer. A peer that
is not installed, or that cannot do a case, is listed with the reason. On both sides, a sample is one replay of a CUDA
graph after other memory has been read. Peers without a paged cache get keys and values in one piece, which is easier.
Only times are compared: each side has random numbers of its own.
"""

import argparse
import importlib
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from ledger import emit_to

FLUSH_BYTES = 256 << 20  # read before each sample, as in the benchmark
BLOCK_SIZE = 16          # of the compared cases; our own rows show how much other sizes differ


class CannotDo(Exception):
    """The reason why a peer has no time for a case."""


class Ours:
    """quire-gpu-bench --serve, which keeps its last case prepared."""

    def __init__(self, bench: str, repeats: int, environment: dict):
        self.process = subprocess.Popen([bench, "--serve", "--repeats", str(repeats)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=environment)

    def sample(self, case: dict) -> float:
        self.process.stdin.write(case["name"] + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"peers.py: the benchmark ended with status {self.process.wait()}")
        row = json.loads(line)
        if row["type"] != "row":
            raise CannotDo(row["reason"])
        return row["median_us"]

    def close(self):
        self.process.communicate()


class TorchPeer:
    """A peer that runs under torch. `prepare` returns a function that enqueues the case once."""

    def __init__(self):
        self.torch = importlib.import_module("torch")
        if not self.torch.cuda.is_available():
            raise CannotDo("torch sees no GPU")
        self.flush = self.torch.ones(FLUSH_BYTES // 4, dtype=self.torch.int32, device="cuda")

    def prepare(self, case: dict):
        raise NotImplementedError

    def open(self, case: dict, repeats: int):
        """Returns a function that takes one round's samples and returns their median in microseconds."""
        torch = self.torch
        run = self.prepare(case)
        for _ in range(3):  # compiles, chooses, allocates
            out = run()
        torch.cuda.synchronize()
        if torch.isnan(out).any():
            raise CannotDo("its output has NaN")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()

        def sample() -> float:
            times = []
            for _ in range(repeats):
                self.flush.sum()
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                graph.replay()
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end) * 1e3)
            return statistics.median(times)
        return sample

    def dense(self, case: dict):
        """Query, keys and values of a batch whose sequences have equal lengths."""
        query_len, context_len = uniform_lengths(case)
        batch, torch = len(case["query_lens"]), self.torch
        make = lambda heads, length: torch.randn(batch, heads, length, case["head_dim"], dtype=torch.bfloat16,
                                                 device="cuda")
        return (make(case["num_heads"], query_len), make(case["num_kv_heads"], context_len),
                make(case["num_kv_heads"], context_len))

    def slopes(self, case: dict):
        return self.torch.tensor(alibi_slopes(case["num_heads"]), dtype=self.torch.float32, device="cuda")


def uniform_lengths(case: dict) -> tuple[int, int]:
    if len(set(case["query_lens"])) > 1 or len(set(case["context_lens"])) > 1:
        raise CannotDo("it takes sequences of one length")
    return case["query_lens"][0], case["context_lens"][0]


def alibi_slopes(num_heads: int) -> list[float]:
    """As kernels/alibi_slopes.h."""
    power = 1 << int(math.log2(num_heads))
    ladder = [2.0 ** (-8.0 * (h + 1) / power) for h in range(power)]
    return ladder + [2.0 ** (-4.0 * (2 * k + 1) / power) for k in range(num_heads - power)]


class Sdpa(TorchPeer):
    """torch's scaled_dot_product_attention with one backend."""

    backend = ""

    def prepare(self, case: dict):
        attention = importlib.import_module("torch.nn.attention")
        bias = importlib.import_module("torch.nn.attention.bias")
        sdpa = self.torch.nn.functional.scaled_dot_product_attention
        if case["alibi"]:
            raise CannotDo("it has no ALiBi but as a matrix of the scores' size")
        query, key, value = self.dense(case)
        query_len, context_len = uniform_lengths(case)
        options = {"enable_gqa": case["num_heads"] != case["num_kv_heads"]}
        if query_len == context_len:
            options["is_causal"] = True
        elif query_len > 1:
            options["attn_mask"] = bias.causal_lower_right(query_len, context_len)
        backend = getattr(attention.SDPBackend, self.backend)

        def run():
            with attention.sdpa_kernel(backend):
                return sdpa(query, key, value, **options)
        return run


class SdpaFlash(Sdpa):
    backend = "FLASH_ATTENTION"


class SdpaCudnn(Sdpa):
    backend = "CUDNN_ATTENTION"


class SdpaEfficient(Sdpa):
    backend = "EFFICIENT_ATTENTION"


class Flex(TorchPeer):
    """flex_attention, compiled: causal as a mask of blocks, ALiBi as a function of the score."""

    def prepare(self, case: dict):
        flex = importlib.import_module("torch.nn.attention.flex_attention")
        query, key, value = self.dense(case)
        query_len, context_len = uniform_lengths(case)
        offset = context_len - query_len
        mask = flex.create_block_mask(lambda b, h, q, k: q + offset >= k, None, None, query_len, context_len,
                                      device="cuda")
        score = None
        if case["alibi"]:
            slopes = self.slopes(case)
            score = lambda s, b, h, q, k: s + slopes[h] * (k - q - offset)
        self.torch._dynamo.reset()  # otherwise it stops compiling after a few shapes
        compiled = self.torch.compile(flex.flex_attention, dynamic=False)
        gqa = case["num_heads"] != case["num_kv_heads"]
        return lambda: compiled(query, key, value, score_mod=score, block_mask=mask, enable_gqa=gqa)


class FlashInfer(TorchPeer):
    """FlashInfer's paged wrappers: decode's for decodes, where prefill's is slower, and prefill's for the rest."""

    tensor_cores = True  # in decodes

    def __init__(self):
        self.flashinfer = importlib.import_module("flashinfer")
        super().__init__()

    def prepare(self, case: dict):
        torch, device = self.torch, "cuda"
        decodes = max(case["query_lens"]) == 1
        if not decodes and not self.tensor_cores:
            raise CannotDo("only its decodes go without tensor cores")
        blocks = [-(-length // case["block_size"]) for length in case["context_lens"]]
        starts = torch.tensor([sum(blocks[:i]) for i in range(len(blocks) + 1)], dtype=torch.int32, device=device)
        indices = torch.randperm(sum(blocks), dtype=torch.int64, device=device).to(torch.int32)
        last = torch.tensor([(length - 1) % case["block_size"] + 1 for length in case["context_lens"]],
                            dtype=torch.int32, device=device)
        # The same layout as our own cache.
        cache = torch.randn(sum(blocks), 2, case["num_kv_heads"], case["block_size"], case["head_dim"],
                            dtype=torch.bfloat16, device=device)
        query = torch.randn(sum(case["query_lens"]), case["num_heads"], case["head_dim"], dtype=torch.bfloat16,
                            device=device)
        workspace = torch.zeros(512 << 20, dtype=torch.uint8, device=device)
        shape = (case["num_heads"], case["num_kv_heads"], case["head_dim"], case["block_size"])
        options = {"pos_encoding_mode": "ALIBI" if case["alibi"] else "NONE", "q_data_type": torch.bfloat16,
                   "kv_data_type": torch.bfloat16}
        if decodes:
            wrapper = self.flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND",
                                                                         use_tensor_cores=self.tensor_cores)
            wrapper.plan(starts, indices, last, *shape, **options)
        else:
            wrapper = self.flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
            lengths = case["query_lens"]
            query_starts = torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)], dtype=torch.int32,
                                        device=device)
            wrapper.plan(query_starts, starts, indices, last, *shape, causal=True, **options)
        return lambda: wrapper.run(query, cache)


class FlashInferCudaCores(FlashInfer):
    """FlashInfer's decode kernel without tensor cores, for few query heads per KV head."""

    tensor_cores = False


PEERS = {"sdpa_flash": SdpaFlash, "sdpa_cudnn": SdpaCudnn, "sdpa_efficient": SdpaEfficient, "flex": Flex,
         "flashinfer": FlashInfer, "flashinfer_cuda_cores": FlashInferCudaCores}


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def make_peers(names: list[str], emit) -> dict:
    peers = {}
    for name in names:
        try:
            peers[name] = PEERS[name]()
        except Exception as error:  # an import of another project may raise anything
            emit({"type": "peer_skipped", "peer": name, "case": "all", "reason": first_line(error)})
    return peers


def environment_with(libraries: str) -> dict:
    """The environment of our binary only: torch has libraries of its own."""
    paths = [path for path in (libraries, os.environ.get("LD_LIBRARY_PATH", "")) if path]
    return os.environ | ({"LD_LIBRARY_PATH": ":".join(paths)} if paths else {})


def read_cases(bench: str, text: str, environment: dict) -> list[dict]:
    """Returns the cases to compare. The benchmark lists them, and needs no GPU to do so. Peers have none of shared blocks,
    with keys skipped, of one layer of several, or with launches apart."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "cases.jsonl"
        subprocess.run([bench, "--predict", "--json", str(path)], check=True, stdout=subprocess.DEVNULL,
                       env=environment)
        cases = [json.loads(line) for line in path.read_text().splitlines()]
    return [case for case in cases if case["block_size"] == BLOCK_SIZE and text in case["name"] and not case["fp8"]
            and not case["prefix"] and not case["skips"] and case["layers"] == 1 and not case["apart"]]


def compare(case: dict, ours, peers: dict, rounds: int, repeats: int, emit):
    """Measures one case: ours, then each peer, `rounds` times."""
    def skip(name: str, reason: str):
        emit({"type": "peer_skipped", "peer": name, "case": case["name"], "reason": reason})

    samplers = {}
    for name, peer in peers.items():
        try:
            samplers[name] = peer.open(case, repeats)
        except Exception as error:
            skip(name, first_line(error))
    times: dict = {"ours": []} | {name: [] for name in samplers}
    for _ in range(rounds):
        if not samplers:
            return
        try:
            times["ours"].append(ours.sample(case))
        except CannotDo as error:
            return skip("ours", str(error))
        for name in list(samplers):
            try:
                times[name].append(samplers[name]())
            except Exception as error:
                skip(name, first_line(error))
                del samplers[name]
    mine = statistics.median(times["ours"])
    for name in samplers:
        theirs = statistics.median(times[name])
        emit({"type": "peer", "case": case["name"], "peer": name, "ours_us": mine, "peer_us": theirs,
              "times_faster": theirs / mine, "rounds": rounds})


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="path of quire-gpu-bench")
    parser.add_argument("--json", required=True, help="file to which result lines are appended")
    parser.add_argument("--libraries", default="", help="folders of the benchmark's libraries, as in LD_LIBRARY_PATH")
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0, help="begin no case after this time; 0: no limit")
    options = parser.parse_args(arguments)
    names = options.peers.split(",")
    if unknown := [name for name in names if name not in PEERS]:
        parser.error(f"want peers of {','.join(PEERS)}, got {','.join(unknown)}")

    begin = time.monotonic()
    environment = environment_with(options.libraries)
    with open(options.json, "a") as results:
        emit = emit_to(results)
        peers = make_peers(names, emit)
        if not peers:
            return 0
        ours = Ours(options.bench, options.repeats, environment)
        for case in read_cases(options.bench, options.filter, environment):
            if options.seconds and time.monotonic() - begin > options.seconds:
                emit({"type": "peer_skipped", "peer": "all", "case": case["name"],
                      "reason": f"the {options.seconds:g} s are over"})
                continue
            compare(case, ours, peers, options.rounds, options.repeats, emit)
            if "torch" in sys.modules:
                sys.modules["torch"].cuda.empty_cache()
        ours.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
