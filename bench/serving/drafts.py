#!/usr/bin/env python3
"""Drafts beside none: two servers of one model, to which the same load goes in turn.

    python3 bench/serving/drafts.py MODEL... [--build build/release] [--rounds 11] [--streams 1,4,8,16,32]

Prints, for each number of streams, the median, least and largest ratio of the rounds' output tokens per second, the
default over --max_draft_tokens 0, and the median of those per second of the server's CPU time. The order turns with each
round. All connections stay on this machine. Needs Debian's python3-grpcio, and the targets quire, quire-server and
quire_e2e_python.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "bench/storm"))
from storm import find_modules  # noqa: E402

TOKENS = 128  # of a prompt, and of an answer


def counter(server, name: str) -> int:
    return int(server.metrics().get(f"quire_{name}_tokens_total", 0))


def cpu_seconds(server) -> float:
    fields = pathlib.Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(build: pathlib.Path, server, streams: int, num_requests: int, seed: int) -> tuple[float, float]:
    """Output tokens per second, and per second of CPU time."""
    began = cpu_seconds(server)
    done = subprocess.run(
        [build / "bin/quire", "bench", "--server", server.address, "--concurrency", str(streams),
         "--num_requests", str(num_requests), "--prompt_tokens", str(TOKENS), "--output_tokens", str(TOKENS),
         "--ignore_eos", "--temperature", "0", "--seed", str(seed), "--json"], check=True, stdout=subprocess.PIPE)
    rate = json.loads(done.stdout.splitlines()[-1])["output_tokens_per_second"]
    return rate, num_requests * TOKENS / (cpu_seconds(server) - began)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=pathlib.Path, metavar="MODEL")
    parser.add_argument("--build", type=pathlib.Path, default=REPOSITORY / "build/release", help="build folder")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=2, help="of each load, about (default 2)")
    parser.add_argument("--streams", default="1,4,8,16,32")
    arguments = parser.parse_args()
    find_modules(arguments.build)
    import harness
    print("| model | streams | tokens/s without | with | ratio | by CPU time | drafted | accepted |")
    print("|---|---|---|---|---|---|---|---|")
    for model in arguments.models:
        servers = [harness.Server("--threads", "2", "--kv_cache_mib", "256", *flags, model=model).ready()
                   for flags in (("--max_draft_tokens", "0"), ())]
        for streams in map(int, arguments.streams.split(",")):
            warm_up = [load(arguments.build, server, streams, 2 * streams, 0)[0] for server in servers]
            num_requests = streams * max(1, round(min(warm_up) * arguments.seconds / TOKENS / streams))
            before = [counter(servers[1], name) for name in ("drafted", "accepted")]
            rounds = []
            for number in range(arguments.rounds):
                of = {k: load(arguments.build, servers[k], streams, num_requests, 1000 * streams + number + 1)
                      for k in ((0, 1) if number % 2 else (1, 0))}
                rounds.append((of[0][0], of[1][0], of[1][0] / of[0][0], of[1][1] / of[0][1]))
            drafted, accepted = (counter(servers[1], name) - old for name, old in zip(("drafted", "accepted"), before))
            without, with_drafts, ratios, by_cpu = zip(*rounds)
            print(f"| {model.stem} | {streams} | {statistics.median(without):,.0f} | {statistics.median(with_drafts):,.0f} | "
                  f"{statistics.median(ratios):.3f} ({min(ratios):.3f}, {max(ratios):.3f}) | {statistics.median(by_cpu):.3f} | "
                  f"{drafted:,} | {accepted:,} |", flush=True)
        for server in servers:
            server.stop()


if __name__ == "__main__":
    main()
