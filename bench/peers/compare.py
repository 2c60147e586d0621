#!/usr/bin/env python3
"""Measures Quire beside OpenVINO GenAI and llama.cpp: one machine, the same files, the same cores, in turn.

    bench/peers/setup.sh
    python3 bench/peers/compare.py [--types q4_0,q8_0,q4_k] [--streams 8,32] [--rounds 2]
    python3 bench/peers/compare.py --quire new=build/release/bin --quire old=../old/build/release/bin

All servers of one weight type are running, but only one is under load at a time. Each round measures all of them, and
each begins with another server. Before the first round each takes the largest load twice, unmeasured. Prints a Markdown
table of medians over the rounds, with the machine's load average, because on a busy machine only ratios within a table
mean anything. Every round is written to --log as JSON lines. A --quire may have flags of the server:
'slow=build/release/bin --max_step_time 60ms'.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent


class CannotServe(Exception):
    """A server ended before it was ready. Its process has been waited for."""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port: int, seconds: float = 60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    sys.exit(f"nothing listens on port {port}")


def flags(shape: dict) -> list[str]:
    return [part for name, value in shape.items() for part in (f"--{name}", str(value))]


def last_json(command: list[str]) -> dict:
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out.strip().splitlines()[-1])


class Quire:
    def __init__(self, arguments, model, bin_and_flags: str):
        self._bin, *extra = bin_and_flags.split()
        self._port = free_port()
        self.process = subprocess.Popen(
            [f"{self._bin}/quire-server", "--model", model, "--listen", f"127.0.0.1:{self._port}", "--admin_listen",
             "127.0.0.1:0", "--threads", str(arguments.threads), "--kv_cache_mib", "256", "--log_level", "warning", *extra])

    def wait(self):
        wait_for(self._port)

    def load(self, shape: dict) -> dict:
        return last_json([f"{self._bin}/quire", "bench", "--server", f"127.0.0.1:{self._port}", "--json", "--ignore_eos",
                          "--temperature", "0", *flags(shape)])


class LlamaCpp:
    def __init__(self, arguments, model):
        self._port = free_port()
        slots = max(arguments.streams)
        context = slots * (arguments.prompt_tokens + arguments.output_tokens + 16)
        threads = str(arguments.threads)
        self.process = subprocess.Popen(
            [f"{arguments.peers}/llama/bin/llama-server", "-m", model, "-fa", "on", "-t", threads, "-tb", threads, "-np",
             str(slots), "-c", str(context), "--host", "127.0.0.1", "--port", str(self._port)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(self):
        wait_for(self._port)
        time.sleep(3)  # the server listens before it has read the model

    def load(self, shape: dict) -> dict:
        return last_json([sys.executable, str(HERE / "llama_load.py"), "--port", str(self._port), *flags(shape)])


class OpenVino:
    def __init__(self, arguments, model):
        self.process = subprocess.Popen(
            [f"{arguments.peers}/openvino/bin/python", str(HERE / "openvino_load.py"), model, "--threads",
             str(arguments.threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def wait(self):
        for line in self.process.stdout:
            if line.strip() == "ready":
                return
        # The reason is in the process's stderr, which is discarded here. Running openvino_load.py alone shows the
        # reason.
        raise CannotServe(f"OpenVINO GenAI ended with status {self.process.wait()} before it was ready")

    def load(self, shape: dict) -> dict:
        self.process.stdin.write(json.dumps(shape) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def start_all(arguments, model, servers: dict):
    """Fills `servers` with the running servers, except those that cannot serve the model."""
    for named in arguments.quire:
        name, _, bin_and_flags = named.partition("=")
        servers[name] = Quire(arguments, model, bin_and_flags)
    if "openvino" in arguments.beside:
        servers["OpenVINO GenAI"] = OpenVino(arguments, model)
    if "llama.cpp" in arguments.beside:
        servers["llama.cpp"] = LlamaCpp(arguments, model)
    for who, server in list(servers.items()):
        try:
            server.wait()
        except CannotServe as error:
            print(f"{model}: {error}", file=sys.stderr, flush=True)
            del servers[who]


def measure(arguments, weight_type: str, log) -> dict:
    """The figures of every round, by (streams, server)."""
    model = str(pathlib.Path(arguments.peers) / f"{weight_type}.gguf")
    results: dict = {}
    servers: dict = {}
    try:
        start_all(arguments, model, servers)
        largest = {"concurrency": max(arguments.streams), "num_requests": max(arguments.streams),
                   "prompt_tokens": arguments.prompt_tokens, "output_tokens": arguments.output_tokens}
        for server in servers.values():
            for warm_up in range(2):  # a server's whole cache is touched, as it is after its first minutes
                server.load({**largest, "seed": warm_up})
        for round_number in range(arguments.rounds):
            order = list(servers.items())
            order = order[round_number % len(order):] + order[:round_number % len(order)]
            for streams in arguments.streams:
                shape = {**largest, "concurrency": streams, "num_requests": streams,
                         "seed": 100 * streams + round_number}
                for who, server in order:
                    figures = server.load(shape)
                    results.setdefault((streams, who), []).append(figures)
                    log.write(json.dumps({"type": weight_type, "who": who, "streams": streams,
                                          "load_average": os.getloadavg()[0], **figures}) + "\n")
                    log.flush()
    finally:
        for server in servers.values():
            server.process.terminate()
        for server in servers.values():
            server.process.wait()
    return results


def print_rows(weight_type: str, results: dict):
    for (streams, who), rounds in sorted(results.items(), key=lambda item: item[0][0]):
        def median(*path):
            return statistics.median(pick(figures, path) for figures in rounds)

        print(f"| {weight_type.upper()} | {streams} | {who} | {median('output_tokens_per_second'):.0f} "
              f"| {1e3 * median('ttft_seconds', 'p50'):.0f} | {1e3 * median('ttft_seconds', 'p99'):.0f} "
              f"| {1e3 * median('gap_seconds', 'p99'):.0f} | {1e3 * median('gap_seconds', 'max'):.0f} |", flush=True)


def pick(figures, path):
    for key in path:
        figures = figures[key]
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="build/peers", help="folder that setup.sh made")
    parser.add_argument("--quire", action="append", help="NAME=DIRECTORY [FLAGS]; may be repeated (Quire=build/release/bin)")
    parser.add_argument("--beside", default="openvino,llama.cpp", type=lambda text: text.split(","))
    parser.add_argument("--types", default="q4_0,q8_0,q4_k", type=lambda text: text.split(","))
    parser.add_argument("--streams", default="8,32", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt_tokens", type=int, default=128)
    parser.add_argument("--output_tokens", type=int, default=128)
    parser.add_argument("--log", default="compare.jsonl")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped too
    arguments.quire = arguments.quire or ["Quire=build/release/bin"]

    print("| weights | streams | server | output tokens/s | TTFT p50 ms | p99 | gap p99 ms | longest |\n"
          "|---|---|---|---|---|---|---|---|", flush=True)
    loads = [os.getloadavg()[0]]
    with open(arguments.log, "a") as log:
        for weight_type in arguments.types:
            print_rows(weight_type, measure(arguments, weight_type, log))
            loads.append(os.getloadavg()[0])
    print(f"\nLoad average, of {os.cpu_count()} processors: " + ", ".join(f"{load:.1f}" for load in loads))


if __name__ == "__main__":
    main()
