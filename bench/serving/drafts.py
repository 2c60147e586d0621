#!/usr/bin/env python3
"""Drafts beside none: servers of one model with one compute thread each, under the same short loads in turn.

    python3 bench/serving/drafts.py MODEL... [--build build/release] [--rounds 11] [--streams 1,4,8,16,32]

Prints, for each number of streams, the median, least and largest ratio of the rounds' output tokens per second of the
server's CPU time, the default over --max_draft_tokens 0, and the same of a second server without drafts as control.
"rows more" are the guesses that were wrong, over the output tokens: each token takes one row with and without drafts, so
this is all the work that drafts add to a step. The loads of a round go to the servers forth and back, so what slows the
machine for longer than a load slows each of them. Each round has new servers with large pages, because the small pages
that a process gets make it faster or slower for life. All connections stay on this machine. Needs Debian's
python3-grpcio, and the targets quire, quire-server and quire_e2e_python.
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


def load(build: pathlib.Path, server, streams: int, num_requests: int, seed: int) -> float:
    """Loads a server. Returns the seconds of CPU time that it took."""
    began = server.cpu_seconds()
    subprocess.run(
        [build / "bin/quire", "bench", "--server", server.address, "--concurrency", str(streams),
         "--num_requests", str(num_requests), "--prompt_tokens", str(TOKENS), "--output_tokens", str(TOKENS),
         "--ignore_eos", "--temperature", "0", "--seed", str(seed)], stdout=subprocess.DEVNULL, check=True)
    return server.cpu_seconds() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=pathlib.Path, metavar="MODEL")
    parser.add_argument("--build", type=pathlib.Path, default=REPOSITORY / "build/release", help="build folder")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--loads", type=int, default=4, help="loads of a server in a round (default 4)")
    parser.add_argument("--streams", default="1,4,8,16,32")
    arguments = parser.parse_args()
    find_modules(arguments.build)
    import harness
    print("| model | streams | tokens a CPU second without | with | ratio | control | drafted | accepted | rows more |")
    print("|---|---|---|---|---|---|---|---|---|")
    for model in arguments.models:
        for streams in map(int, arguments.streams.split(",")):
            num_requests = max(streams, 8)
            tokens = arguments.loads * num_requests * TOKENS  # of a server in a round
            rounds, drafted, accepted = [], 0, 0
            for number in range(arguments.rounds):
                servers = [harness.Server("--threads", "1", "--kv_cache_mib", "256", *flags, model=model,
                                          GLIBC_TUNABLES="glibc.malloc.hugetlb=1").ready()
                           for flags in (WITHOUT, (), WITHOUT)]
                for server in servers:
                    load(arguments.build, server, streams, num_requests, 0)
                before = [counter(servers[1], name) for name in ("drafted", "accepted")]
                seconds = [0.0] * len(servers)
                for turn in range(arguments.loads):
                    order = range(len(servers)) if turn % 2 == 0 else reversed(range(len(servers)))
                    for i in order:
                        seed = 1 + turn + arguments.loads * (number + arguments.rounds * streams)
                        seconds[i] += load(arguments.build, servers[i], streams, num_requests, seed)
                rounds.append([tokens / taken for taken in seconds])
                drafted += counter(servers[1], "drafted") - before[0]
                accepted += counter(servers[1], "accepted") - before[1]
                for server in servers:
                    server.stop()
            without, with_drafts, control = zip(*rounds)
            ratios = [[a / b for a, b in zip(rates, without)] for rates in (with_drafts, control)]
            print(f"| {model.stem} | {streams} | {statistics.median(without):,.0f} | {statistics.median(with_drafts):,.0f} | "
                  + " | ".join(f"{statistics.median(r):.3f} ({min(r):.3f}, {max(r):.3f})" for r in ratios)
                  + f" | {drafted:,} | {accepted:,} | {(drafted - accepted) / (arguments.rounds * tokens):.2%} |", flush=True)


if __name__ == "__main__":
    main()
