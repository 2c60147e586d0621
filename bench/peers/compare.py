#!/usr/bin/env python3
"""Quire beside llama.cpp's native server: one machine, one file, the same cores, turn and turn about.

    python3 bench/peers/compare.py MODEL.gguf --bin build/release/bin [--cpu_isa avx2] [--rounds 3]

Both servers stay up; only one is under load at a time. Needs the PyPI package xllamacpp. Prints a Markdown
table of medians over the rounds; every round's figures go to --log as JSON lines.
"""

import argparse
import json
import pathlib
import socket
import statistics
import subprocess
import sys
import time

PEER = pathlib.Path(__file__).parent / "llama_cpp.py"


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


def load_command(arguments, who: str, ports: dict, streams: int, prompt: int, output: int, requests: int) -> list[str]:
    shape = ["--concurrency", str(streams), "--num_requests", str(requests),
             "--prompt_tokens", str(prompt), "--output_tokens", str(output)]
    if who == "quire":
        return [f"{arguments.bin}/quire", "bench", "--server", f"127.0.0.1:{ports[who]}", "--json", "--ignore_eos",
                "--temperature", "0", *shape]
    return [sys.executable, str(PEER), "load", "--port", str(ports[who]), *shape]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--cpu_isa", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", default="1,8,16,32")
    parser.add_argument("--prompt_tokens", type=int, default=128)
    parser.add_argument("--output_tokens", type=int, default=128)
    parser.add_argument("--log", default="compare.jsonl")
    arguments = parser.parse_args()
    streams = [int(n) for n in arguments.streams.split(",")]

    ports = {"quire": free_port(), "llama.cpp": free_port()}
    context = arguments.prompt_tokens + arguments.output_tokens + 16
    servers = [
        subprocess.Popen([f"{arguments.bin}/quire-server", "--model", arguments.model, "--listen",
                          f"127.0.0.1:{ports['quire']}", "--admin_listen", "127.0.0.1:0", "--threads",
                          str(arguments.threads), "--cpu_isa", arguments.cpu_isa, "--kv_cache_mib", "1024",
                          "--log_level", "warning"]),
        subprocess.Popen([sys.executable, str(PEER), "serve", arguments.model, "--parallel", str(max(streams)),
                          "--context", str(context), "--threads", str(arguments.threads), "--port",
                          str(ports["llama.cpp"])], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL),
    ]
    results: dict = {}
    try:
        for port in ports.values():
            wait_for(port)
        time.sleep(3)
        with open(arguments.log, "a") as log:
            for _ in range(arguments.rounds):
                for n in streams:
                    for who in ports:
                        command = load_command(arguments, who, ports, n, arguments.prompt_tokens,
                                               arguments.output_tokens, max(2, n))
                        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                        figures = json.loads(out.strip().splitlines()[-1])
                        results.setdefault((n, who), []).append(figures)
                        log.write(json.dumps({"who": who, "streams": n, **figures}) + "\n")
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait()

    print("| streams | server | output tokens/s | TTFT p50 / p99 ms | TPOT p50 / p99 ms |\n|---|---|---|---|---|")
    for (n, who), rounds in results.items():
        median = lambda *path: statistics.median(pick(r, path) for r in rounds)
        print(f"| {n} | {who} | {median('output_tokens_per_second'):.0f} "
              f"| {1e3 * median('ttft_seconds', 'p50'):.0f} / {1e3 * median('ttft_seconds', 'p99'):.0f} "
              f"| {1e3 * median('tpot_seconds', 'p50'):.2f} / {1e3 * median('tpot_seconds', 'p99'):.2f} |")


def pick(figures, path):
    for key in path:
        figures = figures[key]
    return figures


if __name__ == "__main__":
    main()
