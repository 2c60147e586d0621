#!/usr/bin/env python3
"""Drafts beside none: servers of one model with one compute thread each, under the same load at the same time.

    python3 bench/serving/drafts.py MODEL... [--build build/release] [--rounds 11] [--streams 1,4,8,16,32]

Prints, for each number of streams, the median, least and largest ratio of the rounds' output tokens per second of the
server's CPU time, the default over --max_draft_tokens 0, and the same of a second server without drafts as control. All
run together, so what slows the machine slows each of them. Each round has new servers, because the pages that a process
gets make it faster or slower for life. All connections stay on this machine. Needs Debian's python3-grpcio, and the
targets quire, quire-server and quire_e2e_python.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "bench/storm"))
from storm import find_modules  # noqa: E402

TOKENS = 128  # of a prompt, and of an answer
WITHOUT = ("--max_draft_tokens", "0")


def counter(server, name: str) -> int:
    return int(server.metrics().get(f"quire_{name}_tokens_total", 0))


def load(build: pathlib.Path, servers, streams: int, num_requests: int, seed: int) -> list[float]:
    """Loads all servers at once. Returns the output tokens of each per second of its CPU time."""
    began = [server.cpu_seconds() for server in servers]
    clients = [subprocess.Popen(
        [build / "bin/quire", "bench", "--server", server.address, "--concurrency", str(streams),
         "--num_requests", str(num_requests), "--prompt_tokens", str(TOKENS), "--output_tokens", str(TOKENS),
         "--ignore_eos", "--temperature", "0", "--seed", str(seed), "--json"], stdout=subprocess.DEVNULL) for server in servers]
    if any(client.wait() for client in clients):
        sys.exit("quire bench failed")
    return [num_requests * TOKENS / (server.cpu_seconds() - old) for server, old in zip(servers, began)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=pathlib.Path, metavar="MODEL")
    parser.add_argument("--build", type=pathlib.Path, default=REPOSITORY / "build/release", help="build folder")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=2, help="CPU seconds of each load, about (default 2)")
    parser.add_argument("--streams", default="1,4,8,16,32")
    arguments = parser.parse_args()
    find_modules(arguments.build)
    import harness
    print("| model | streams | tokens a CPU second without | with | ratio | control | drafted | accepted |")
    print("|---|---|---|---|---|---|---|---|")
    for model in arguments.models:
        for streams in map(int, arguments.streams.split(",")):
            rounds, drafted, accepted, num_requests = [], 0, 0, 0
            for number in range(arguments.rounds):
                servers = [harness.Server("--threads", "1", "--kv_cache_mib", "256", *flags, model=model).ready()
                           for flags in (WITHOUT, (), WITHOUT)]
                warm_up = load(arguments.build, servers, streams, 2 * streams, 0)
                num_requests = num_requests or streams * max(1, round(min(warm_up) * arguments.seconds / TOKENS / streams))
                before = [counter(servers[1], name) for name in ("drafted", "accepted")]
                rounds.append(load(arguments.build, servers, streams, num_requests, 1000 * streams + number + 1))
                drafted += counter(servers[1], "drafted") - before[0]
                accepted += counter(servers[1], "accepted") - before[1]
                for server in servers:
                    server.stop()
            without, with_drafts, control = zip(*rounds)
            ratios = [[a / b for a, b in zip(rates, without)] for rates in (with_drafts, control)]
            print(f"| {model.stem} | {streams} | {statistics.median(without):,.0f} | {statistics.median(with_drafts):,.0f} | "
                  + " | ".join(f"{statistics.median(r):.3f} ({min(r):.3f}, {max(r):.3f})" for r in ratios)
                  + f" | {drafted:,} | {accepted:,} |", flush=True)


if __name__ == "__main__":
    main()
