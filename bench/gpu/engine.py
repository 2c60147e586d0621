#!/usr/bin/env python3
"""Measures a whole server on a GPU, with random weights of an 8B Llama in bf16 and Q4_K, and checks it.

    python3 bench/gpu/engine.py --bin build/cuda/bin --json results.jsonl [--only NAME,...] [--seconds N]
        [--backend NAME] [--size full|tiny] [--layers N] [--work FOLDER] [--resume]

--only chooses among these, which run in this order:
  tokens   greedy answers of the bundled model and of a small random one with heads of 128, in f32, in bf16, over a cache
           of fp8 and on wgmma, beside those of the CPU in f32: log-probabilities must differ by no more than the
           roundings allow, and where answers part, the two tokens must be nearly as likely
  bf16     speed: start, 1 to 256 streams, prompts of 8k tokens, a cached prefix of 8k, 16 forks of 4k
  q4_k     the same with packed weights
  choices  what flags change, in bf16: --cuda_experiments shared_prefix and wgmma_attention, --kv_dtype fp8,
           --deterministic; with the last, requests get the same tokens alone as among others
  soak     two layers under compute-sanitizer's memcheck, while clients send, cancel and go

A case of speed is one run of `quire bench`. It is a line with the measured time and the least time that the bytes or
the FLOPs of the case allow: the weights and the keys and values that a step reads, at the read bandwidth that
quire-gpu-bench measured (from --json, else 4.3 TB/s), or the FLOPs of a prompt at the ceiling of the GEMMs (else
780 TFLOP/s). After a case that fails, the next one begins on a new server.
"""

import argparse
import concurrent.futures
import contextlib
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import typing
import urllib.request

from report import read_lines

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUNDLED = ROOT / "models/quire-stories"
READ_BYTES_PER_SECOND, FLOPS_PER_SECOND = 4.3e12, 780e12  # of an H200, where this run has not measured them
# Milliseconds that were predicted for an H200, by model and case (docs/evidence/gpu-predictions.md).
PREDICTED_MS = {
    "bf16": {"start": 6000, "decode 1": 4.1, "decode 16": 4.3, "decode 64": 4.7, "decode 64 top_p": 4.8, "decode 256": 6.9,
             "prompt 8192": 225, "prompt 8192 cached": 5.5, "forks 16x4096": 6.5},
    "q4_k": {"decode 1": 1.4, "decode 16": 2.5, "decode 64": 5.0, "decode 64 top_p": 5.1, "decode 256": 11,
             "prompt 8192": 235, "prompt 8192 cached": 3.5, "forks 16x4096": 4.9},
    "bf16 --cuda_experiments shared_prefix": {"forks 16x4096": 4.6},
    "bf16 --kv_dtype fp8": {"decode 64": 4.5, "forks 16x4096": 5.5},
    "bf16 --cuda_experiments wgmma_attention": {"prompt 8192": 205},
    "bf16 --deterministic": {"decode 1": 4.8, "decode 64": 5.4, "prompt 8192": 420}}
MOST_SECONDS_TO_START = 120
ALONE_AND_AMONG_OTHERS = "alone and among others"  # the case that only --deterministic promises

BITS = {"bf16": (16, 16), "q4_k": (4.5, 6.5625)}  # of a weight of the layers, and of the head, which is Q6_K

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
         "rope_theta": 500000.0, "max_position_embeddings": 32768, "tie_word_embeddings": False,
         "torch_dtype": "bfloat16"}
SHAPES = {
    "full": LLAMA | {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
                     "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
    "tiny": LLAMA | {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
                     "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
}
# Numbers of streams; tokens of a prompt, of an answer, of the long prompt, of the prefix of forks.
LOADS = {"full": {"streams": (1, 16, 64, 256), "prompt": 128, "answer": 256, "long": 8192, "fork": 4096, "forks": 16},
         "tiny": {"streams": (1, 4), "prompt": 16, "answer": 32, "long": 64, "fork": 64, "forks": 4}}


def shape(options) -> dict:
    return SHAPES[options.size] | ({"num_hidden_layers": options.layers} if options.layers else {})


def parameters(config: dict) -> int:
    """Weights that a token is multiplied by: those of the layers and of the head."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"] + 2 * config["num_key_value_heads"]
    attention = hidden * config["head_dim"] * (heads + config["num_attention_heads"])
    layer = attention + 3 * hidden * config["intermediate_size"]
    return config["num_hidden_layers"] * layer + config["vocab_size"] * hidden


def weight_bytes(config: dict, type_name: str) -> float:
    """Bytes that a decode step reads of the weights."""
    layers, head = BITS[type_name]
    weights_of_head = config["vocab_size"] * config["hidden_size"]
    return ((parameters(config) - weights_of_head) * layers + weights_of_head * head) / 8


def kv_bytes_per_token(config: dict) -> int:
    return 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]


def prompt_flops(config: dict, tokens: int) -> float:
    """The products of a prompt's tokens with the layers' weights, of queries with keys, and of weights with values."""
    layers = parameters(config) - config["vocab_size"] * config["hidden_size"]
    scores = config["num_hidden_layers"] * config["num_attention_heads"] * tokens * tokens / 2
    return 2 * layers * tokens + 4 * config["head_dim"] * scores


def step_bound(weight_bytes: float, kv_bytes: float, bandwidth: float) -> float:
    """The least seconds of a decode step, which reads the weights once and the keys and values of every stream."""
    return (weight_bytes + kv_bytes) / bandwidth


def ceilings(results: pathlib.Path) -> tuple[float, float]:
    """Bytes and FLOPs a second, as this run's ceilings were measured."""
    bandwidth, flops = READ_BYTES_PER_SECOND, FLOPS_PER_SECOND
    if results.exists():
        rows = [row for row in read_lines(results) if row.get("type") == "row" and row.get("suite") == "ceilings"]
        reads = [row["bytes"] / row["median_us"] * 1e6 for row in rows if "read" in row["name"]]
        gemms = [row["flops"] / row["median_us"] * 1e6 for row in rows if row["flops"] > row["bytes"]]
        bandwidth, flops = max(reads, default=bandwidth), max(gemms, default=flops)
    return bandwidth, flops


class Server:
    """A quire-server on free ports of loopback. `prefix` is the command that runs it, such as a sanitizer."""

    def __init__(self, options, model, *flags, prefix=()):
        begin = time.monotonic()
        self.process = subprocess.Popen(
            [*prefix, str(options.bin / "quire-server"), "--model", str(model), "--listen", "127.0.0.1:0",
             "--admin_listen", "127.0.0.1:0", *flags], stderr=subprocess.PIPE, text=True, env=options.environment,
            start_new_session=True)
        self.lines: list[str] = []
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        try:
            if not self.ready.wait(options.most_seconds_to_start) or self.process.poll() is not None:
                raise self._not_started()
        except SystemExit:
            self._kill()
            raise
        self.seconds_to_start = time.monotonic() - begin
        said = next((line for line in self.lines if "server: ready" in line), None)
        if said is None:
            raise self._not_started()
        self.address, self.admin = (re.search(f' {name}="([^"]*)"', said)[1] for name in ("listen", "admin"))

    def _not_started(self) -> RuntimeError:
        self._kill()
        self.reader.join(5)
        return RuntimeError("the server did not start: " + (self.lines[-1].strip() if self.lines else "no word"))

    def _kill(self):
        """Ends the server and the command that runs it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def _servers(self):
        """Yields the processes of the server. The command that runs it, such as a sanitizer, is none of them."""
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                name, fields = re.match(r"\d+ \((.*)\) (.*)", stat.read_text(), re.DOTALL).groups()
                if name == "quire-server" and int(fields.split()[2]) == self.process.pid:  # its group
                    yield int(stat.parent.name)

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            if "server: ready" in line:
                self.ready.set()
        self.ready.set()

    def busy(self) -> float | None:
        """The share of time in which the GPU computed, lately; None where nothing measures it."""
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=5) as answer:
            found = re.search(r"^quire_gpu_busy_ratio\S* (\S+)$", answer.read().decode(), re.MULTILINE)
        return float(found[1]) if found else None

    def stop(self, seconds: float = 10) -> int:
        """Asks the server to end, and kills it after `seconds`. Returns the exit status."""
        for server in self._servers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._kill()
            return self.process.wait()


@contextlib.contextmanager
def serving(options, model, *flags, prefix=()):
    server = Server(options, model, "--backend", options.backend, *flags, prefix=prefix)
    try:
        yield server
    finally:
        server.stop()


def quire(options, *arguments, timeout=300) -> list[dict]:
    """The lines of JSON that a command of the client prints."""
    done = subprocess.run([str(options.bin / "quire"), *arguments, "--json"], capture_output=True, text=True,
                          timeout=timeout, env=options.environment)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no word"]
        raise RuntimeError(f"quire {arguments[0]}: status {done.returncode}: {said[-1]}")
    try:
        return [json.loads(line) for line in done.stdout.splitlines()]
    except ValueError as error:
        raise RuntimeError(f"quire {arguments[0]}: {error}") from error


class Speed:
    """The cases of one model on one server."""

    def __init__(self, options, name: str, server: Server):
        self.options, self.name, self.server = options, name, server
        self.config, self.load = shape(options), LOADS[options.size]
        self.weight_bytes = weight_bytes(self.config, name)
        self.bandwidth, self.flops = ceilings(options.json)

    def bench(self, *flags) -> tuple[dict, float | None]:
        """The result of one load, and the median share of time in which the GPU was busy meanwhile."""
        shares, stop = [], threading.Event()

        def watch():
            while not stop.wait(1.0):
                if (share := self.server.busy()) is not None:
                    shares.append(share)
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            result = quire(self.options, "bench", "--server", self.server.address, "--temperature", "0", "--ignore_eos",
                           *flags)[-1]
        finally:
            stop.set()
            watcher.join()
        return result, statistics.median(shares) if shares else None

    def line(self, case: str, seconds: float, bound: float, **more) -> dict:
        return {"type": "engine", "model": self.name, "case": case, "seconds": seconds, "bound_seconds": bound,
                "of_bound": bound / max(seconds, 1e-9), **more}

    def cases(self):
        """Yields the name of each case and a function that measures it."""
        load = self.load
        for streams in load["streams"]:
            yield f"decode {streams}", lambda streams=streams: self.decode(
                f"decode {streams}", streams, load["prompt"], "--num_requests", str(2 * streams))
        streams = load["streams"][-2]
        yield f"decode {streams} top_p", lambda: self.decode(
            f"decode {streams} top_p", streams, load["prompt"], "--num_requests", str(2 * streams), "--temperature", "0.8",
            "--top_p", "0.95")
        yield f"prompt {load['long']}", lambda: self.prompt(f"prompt {load['long']}", 0)
        yield f"prompt {load['long']} cached", lambda: self.prompt(f"prompt {load['long']} cached", load["long"])
        yield f"forks {load['forks']}x{load['fork']}", lambda: self.decode(
            f"forks {load['forks']}x{load['fork']}", load["forks"], load["fork"] + 16, "--num_requests",
            str(2 * load["forks"]), "--shared_prefix_tokens", str(load["fork"]), "--warmup", "1")
        yield ALONE_AND_AMONG_OTHERS, lambda: self.repeat(4 * load["forks"])

    def decode(self, case: str, streams: int, prompt: int, *flags) -> dict:
        result, busy = self.bench("--concurrency", str(streams), "--prompt_tokens", str(prompt), "--output_tokens",
                                  str(self.load["answer"]), *flags)
        context = prompt + self.load["answer"] / 2
        bound = step_bound(self.weight_bytes, streams * context * kv_bytes_per_token(self.config), self.bandwidth)
        return self.line(case, result["tpot_seconds"]["p50"], bound, busy=busy,
                         tokens_per_second=result["output_tokens_per_second"])

    def prompt(self, case: str, shared: int) -> dict:
        """The time to the first token, of a prompt of which `shared` tokens are cached."""
        computed = 16 if shared else self.load["long"]
        flags = ("--shared_prefix_tokens", str(shared), "--warmup", "1") if shared else ()
        result, busy = self.bench("--num_requests", "5", "--prompt_tokens", str(shared + computed), "--output_tokens",
                                  "1", *flags)
        bound = max(prompt_flops(self.config, computed) / self.flops,
                    step_bound(self.weight_bytes, shared * kv_bytes_per_token(self.config), self.bandwidth))
        return self.line(case, result["ttft_seconds"]["p50"], bound, busy=busy)


    def repeat(self, num_requests: int) -> dict:
        """Counts the requests that get the same tokens alone as all at a time. They are drawn, so one bit may change them."""
        requests = self.options.work / "requests.jsonl"
        requests.write_text("".join(json.dumps({"text": "Once upon a time " * (n % 40) + str(n)}) + "\n"
                                    for n in range(num_requests)))

        def answers(at_once: int) -> dict:
            lines = quire(self.options, "batch", str(requests), "--server", self.server.address, "--max_in_flight",
                          str(at_once), "--seed", "1", "--max_tokens", str(self.load["answer"] // 4), "--ignore_eos",
                          "--bypass_cache_read")
            return {line["index"]: line["response"]["completions"][0]["token_ids"] for line in lines}

        alone, together = answers(1), answers(num_requests)
        return {"type": "engine", "case": ALONE_AND_AMONG_OTHERS, "of": num_requests,
                "equal": sum(alone[n] == together[n] for n in range(num_requests))}


def make_model(options, name: str, config: dict) -> pathlib.Path:
    path = options.work / f"{name}.gguf"
    if not path.exists():
        (options.work / f"{name}.json").write_text(json.dumps(config))
        unfinished = path.with_suffix(".unfinished")
        subprocess.run([str(options.bin / "quire-random-model"), str(options.work / f"{name}.json"), str(BUNDLED),
                        str(unfinished), "--type", name.split("-")[0]], check=True, env=options.environment, timeout=300)
        unfinished.rename(path)
    return path


def done_before(options, title: str) -> set:
    """The cases of a model that are left out, because the results have them."""
    if not options.resume or not options.json.exists():
        return set()
    return {line["case"] for line in read_lines(options.json) if line["type"] == "engine" and line["model"] == title}


def measure(options, name: str, write, flags=(), wanted=lambda case: case != ALONE_AND_AMONG_OTHERS):
    """The cases of a model that are wanted, on a server with these flags, which join the name of the model."""
    layers = (f"{options.layers}-layers",) if options.layers else ()
    model = make_model(options, "-".join((name, *layers)), shape(options))
    title = " ".join((name, *layers, *flags))
    subprocess.run(["cat", str(model)], stdout=subprocess.DEVNULL, check=True)  # into the page cache
    done = done_before(options, title)

    def report(line: dict):
        predicted = PREDICTED_MS.get(title, {}).get(line["case"]) if options.size == "full" else None
        write(line | {"model": title} | ({"predicted_seconds": predicted / 1e3} if predicted else {}))

    failed = True
    while failed:
        failed = False
        with serving(options, model, *options.server_flags, *flags) as server:
            if "start" not in done:
                report({"type": "engine", "case": "start", "seconds": server.seconds_to_start,
                        "bytes": model.stat().st_size})
                done.add("start")
            for case, run in Speed(options, name, server).cases():
                if case in done or not wanted(case):
                    continue
                done.add(case)
                if time.monotonic() > options.deadline:
                    report({"type": "engine_failed", "case": case, "reason": "no time is left"})
                    continue
                try:
                    report(run())
                except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                    report({"type": "engine_failed", "case": case, "reason": str(error)})
                    failed = True
                    break


# Flags, and the start of the names of the cases on which they bear.
CHOICES = ((("--cuda_experiments", "shared_prefix"), ("forks",)), (("--kv_dtype", "fp8"), ("decode", "forks")),
           (("--cuda_experiments", "wgmma_attention"), ("prompt",)), (("--deterministic",), ("decode", "prompt", "alone")))


def measure_choices(options, write):
    for flags, cases in CHOICES:
        if "wgmma_attention" in flags and options.size == "tiny":  # a CPU and an emulated device refuse it or are slow
            continue
        try:
            measure(options, "bf16", write, flags, lambda case, cases=cases: case.startswith(cases))
        except RuntimeError as error:
            write({"type": "engine_failed", "model": " ".join(("bf16", *flags)), "case": "all", "reason": str(error)})


PROMPTS = ("Once upon a time", "The dog", "One day, a girl named Lily went to", "They saw a big red ball. \"Look!\"")
RANDOM_DEVIATION = 0.02  # of the matrices of quire-random-model; its norms multiply by 1
# A model with heads of 128, eight of them on a KV head. Attention on wgmma has none for the bundled model's 32. Norms
# of queries and keys make their scores 1 in the mean, so that the answers depend on attention.
GROUPED = LLAMA | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 4096, "hidden_size": 512,
                   "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16,
                   "num_key_value_heads": 2, "head_dim": 128}
AT_ONCE = 3  # servers


class Compared(typing.NamedTuple):
    """A model whose answers are compared with the CPU's."""
    name: str
    layers: int
    longest_row: int  # of a weight
    head_norm: float  # the root mean square of the lengths of the head's rows, times the last norm's weights


BUNDLED_MODEL = Compared("quire-stories", 6, 1024, 2.2)
RANDOM_MODEL = Compared("random", GROUPED["num_hidden_layers"], GROUPED["num_attention_heads"] * GROUPED["head_dim"],
                        RANDOM_DEVIATION * GROUPED["hidden_size"] ** 0.5)
# How the answers are computed: the flags of a server, the rounding of its activations, and that of keys and values.
WAYS = {"f32": (("--dtype", "f32", "--kv_dtype", "f32"), None, 0.0),
        "bf16": (("--dtype", "bf16"), 2.0**-8, 0.0),
        "bf16, fp8 cache": (("--dtype", "bf16", "--kv_dtype", "fp8"), 2.0**-8, 2.0**-4),
        "bf16, wgmma": (("--dtype", "bf16", "--cuda_experiments", "wgmma_attention"), 2.0**-8, 0.0)}


def margin(model: Compared, rounding: float | None, of_cache: float) -> float:
    """How far a difference of two logits may be from that of the CPU.

    Roundings add up as independent errors do: 14 in each layer and four more, as cuda_decoder_test.cc counts them, and
    of keys and values in a cache of fp8. In f32, where nothing else is rounded, a sum has as many as a row is long. The
    deviation of a rounding is its largest error by the root of 3. The last norm makes the elements of the hidden state
    1 in the mean, so that a logit is off by the relative error times the length of its row of the head. Of the
    difference of two, four deviations are allowed."""
    rounding = 2.0**-24 * model.longest_row**0.5 if rounding is None else rounding
    relative = ((14 * model.layers + 4) * rounding**2 + 2 * model.layers * of_cache**2) ** 0.5
    return 4 * (2 / 3)**0.5 * model.head_norm * relative


def likelihood(token: dict) -> tuple[int, float]:
    """The id of a token and its log-probability. JSON of protos leaves out zeros."""
    return token.get("token_id", 0), token.get("logprob", 0.0)


def difference(ours: list[dict], theirs: list[dict]) -> float:
    """The largest difference between the log-probabilities of two greedy answers, up to where they part: there, what the
    first finds between the two tokens. After that they answer different prompts."""
    if len(ours) != len(theirs):
        return math.inf
    largest = 0.0
    for a, b in zip(ours, theirs):
        (token, logprob), (other, logprob_of_other) = likelihood(a["chosen"]), likelihood(b["chosen"])
        if token != other:
            found = dict(map(likelihood, a["top"]))
            return max(largest, logprob - found.get(other, -math.inf))
        largest = max(largest, abs(logprob - logprob_of_other))
    return largest


def greedy_answers(options, requests: pathlib.Path, model: pathlib.Path, backend: str, flags: tuple) -> list[list[dict]]:
    """The tokens of the answers to requests that are asked at once, each token with those most likely."""
    # The servers share the GPU, and start soon.
    small = ("--max_num_seqs", "16", "--max_num_batched_tokens", "512", "--kv_cache_mib", "256")
    server = Server(options, model, "--backend", backend, *small, *options.server_flags, *flags)
    try:
        lines = quire(options, "batch", str(requests), "--server", server.address, "--temperature", "0", "--max_tokens",
                      "4" if options.size == "tiny" else "64", "--logprobs", "8", "--ignore_eos")
        answers = {line["index"]: line["response"]["completions"][0]["logprobs"] for line in lines}
        return [answers[n] for n in sorted(answers)]
    finally:
        server.stop()


def compare_tokens(options, write):
    """Counts, for each model and each way, the answers that agree with the CPU's in f32."""
    models = {BUNDLED_MODEL: BUNDLED, RANDOM_MODEL: make_model(options, "bf16-grouped", GROUPED)}
    ways = {name: WAYS[name] for name in WAYS if name == "f32" or options.backend != "cpu"}
    in_f32, *_ = WAYS["f32"]
    requests = options.work / "prompts.jsonl"
    prompts = (*PROMPTS, " ".join(PROMPTS * (3 if options.size == "tiny" else 12)))
    requests.write_text("".join(json.dumps({"text": prompt}) + "\n" for prompt in prompts))
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        wanted = {model: pool.submit(greedy_answers, options, requests, path, "cpu", in_f32) for model, path in models.items()}
        given = {}
        for (name, (flags, rounding, of_cache)), (model, path) in itertools.product(ways.items(), models.items()):
            # The kernels over fp8 have no heads of 32.
            if rounding is not None and (of_cache == 0.0 or model == RANDOM_MODEL):
                flags = (*flags, "--strict")  # no plain kernel may answer
            given[pool.submit(greedy_answers, options, requests, path, options.backend, flags)] = model, name
        for answers in concurrent.futures.as_completed(given):
            model, name = given[answers]
            case = {"model": model.name, "case": f"the CPU's greedy answers in {name}"}
            try:
                differences = [difference(*pair) for pair in zip(wanted[model].result(), answers.result(), strict=True)]
            except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                write({"type": "engine_failed", **case, "reason": str(error)})
                continue
            limit = margin(model, *ways[name][1:])
            write({"type": "engine", **case, "equal": sum(found <= limit for found in differences),
                   "of": len(differences), "largest_difference": max(differences), "margin": limit})


def soak(options, write):
    """Fails if the sanitizer has a finding, or if the server does not end with status 0."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None and options.backend.startswith("cuda") and options.size == "full":
        write({"type": "phase_skipped", "phase": "soak", "reason": "no compute-sanitizer on the PATH"})
        return
    prefix = (sanitizer, "--tool", "memcheck", "--error-exitcode", "99") if sanitizer else ()
    model = make_model(options, "bf16-two-layers", SHAPES[options.size] | {"num_hidden_layers": 2})
    # A sanitizer is slow, and the warm-up meets every size of a step.
    small = ("--max_num_seqs", "8", "--max_num_batched_tokens", "256") if options.size == "full" else ()
    server = Server(options, model, "--backend", options.backend, *options.server_flags, *small, prefix=prefix)
    try:
        result = quire(options, "bench", "--server", server.address, "--duration", f"{options.soak_seconds}s",
                       "--concurrency", "8", "--prompt_tokens", "16..150", "--output_tokens", "4..40", "--cancel_rate",
                       "0.2", "--shared_prefix_tokens", "32", "--shared_prefix_fraction", "0.5",
                       timeout=options.soak_seconds + 120)[-1]
    finally:
        status = server.stop(60)
    if status != 0:
        raise RuntimeError(f"exit status {status}: {server.lines[-1].strip()}")
    write({"type": "engine", "model": "soak", "case": f"{options.soak_seconds} s under memcheck",
           "requests": result["num_ok"]})


PARTS = {"tokens": compare_tokens, "bf16": lambda options, write: measure(options, "bf16", write),
         "q4_k": lambda options, write: measure(options, "q4_k", write), "choices": measure_choices, "soak": soak}


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--json", type=pathlib.Path, required=True)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--soak_seconds", type=int, default=100)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--size", choices=SHAPES, default="full")
    parser.add_argument("--layers", type=int, help="of the models whose speed is measured, instead of all")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/gpu-models"))
    parser.add_argument("--libraries", default="", help="folders for LD_LIBRARY_PATH")
    parser.add_argument("--resume", action="store_true", help="leave out the cases of speed that --json has")
    options = parser.parse_args(arguments)
    options.deadline = time.monotonic() + options.seconds
    options.most_seconds_to_start = MOST_SECONDS_TO_START
    options.environment = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    if options.libraries:
        options.environment["LD_LIBRARY_PATH"] = ":".join(
            filter(None, (options.libraries, os.environ.get("LD_LIBRARY_PATH"))))
    options.server_flags = ("--log_level", "info")
    if options.size == "tiny":  # an emulated device and a busy machine are slow
        options.server_flags += ("--max_num_batched_tokens", "64", "--max_num_seqs", "16", "--kv_cache_mib", "32",
                                 "--max_model_len", "256")
    options.work.mkdir(parents=True, exist_ok=True)
    # Ends the server, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    failed = []

    def write(line: dict):
        print(json.dumps(line), flush=True)
        with options.json.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if line["type"] == "engine_failed" or line.get("equal") != line.get("of"):
            failed.append(line)

    for name in options.only.split(","):
        try:
            PARTS[name](options, write)
        except (RuntimeError, subprocess.SubprocessError, OSError) as error:
            write({"type": "engine_failed", "model": name, "case": "all", "reason": str(error)})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
