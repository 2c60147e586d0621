#!/usr/bin/env python3
"""Drafts beside none: two servers of one model, to which the same load goes in turn.

    python3 bench/serving/drafts.py MODEL... [--build build/release] [--rounds 11] [--streams 1,4,8,16,32]

Prints, for each number of streams, the median, least and largest ratio of the rounds' output tokens per second: the
default over --max_draft_tokens 0. The order turns with each round. All connections stay on this machine.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import tempfile
import urllib.request

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TOKENS = 128  # of a prompt, and of an answer


class Server:
    def __init__(self, build: pathlib.Path, model: pathlib.Path, *flags: str):
        self.log = tempfile.NamedTemporaryFile(mode="r")
        self.process = subprocess.Popen(
            [build / "bin/quire-server", "--model", model, "--listen", "127.0.0.1:0", "--admin_listen", "127.0.0.1:0",
             "--kv_cache_mib", "256", *flags], stderr=open(self.log.name, "w"), stdout=subprocess.DEVNULL)

    def field(self, name: str) -> str:
        while self.process.poll() is None:
            ready = re.search(rf" server: ready .*\b{name}=\"?([^\s\"]*)", pathlib.Path(self.log.name).read_text())
            if ready:
                return ready[1]
        raise SystemExit(pathlib.Path(self.log.name).read_text())

    def counter(self, name: str) -> int:
        with urllib.request.urlopen(f"http://{self.field('admin')}/metrics") as response:
            found = re.search(rf"^quire_{name}_tokens_total (\S+)", response.read().decode(), re.MULTILINE)
            return int(float(found[1])) if found else 0

    def stop(self):
        self.process.terminate()
        self.process.wait()


def rate(build: pathlib.Path, server: Server, streams: int, seed: int) -> float:
    """Output tokens per second; about 2,000 tokens at one stream, and more at many."""
    done = subprocess.run(
        [build / "bin/quire", "bench", "--server", server.field("listen"), "--concurrency", str(streams),
         "--num_requests", str(max(4, streams)), "--prompt_tokens", str(TOKENS), "--output_tokens", str(TOKENS),
         "--ignore_eos", "--temperature", "0", "--seed", str(seed), "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout.splitlines()[-1])["output_tokens_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=pathlib.Path, metavar="MODEL")
    parser.add_argument("--build", type=pathlib.Path, default=REPOSITORY / "build/release", help="build folder")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--streams", default="1,4,8,16,32")
    arguments = parser.parse_args()
    print("| model | streams | tokens/s without | with | ratio | drafted | accepted |\n|---|---|---|---|---|---|---|")
    for model in arguments.models:
        servers = [Server(arguments.build, model, "--max_draft_tokens", "0"), Server(arguments.build, model)]
        for streams in map(int, arguments.streams.split(",")):
            before = [servers[1].counter(name) for name in ("drafted", "accepted")]
            rates, ratios = ([], []), []
            for round_number in range(-1, arguments.rounds):  # the first warms up
                order = (0, 1) if round_number % 2 else (1, 0)
                of = {k: rate(arguments.build, servers[k], streams, 1000 * streams + round_number + 1) for k in order}
                if round_number >= 0:
                    ratios.append(of[1] / of[0])
                    for k in order:
                        rates[k].append(of[k])
            drafted, accepted = (servers[1].counter(name) - old for name, old in zip(("drafted", "accepted"), before))
            print(f"| {model.stem} | {streams} | {statistics.median(rates[0]):,.0f} | {statistics.median(rates[1]):,.0f} | "
                  f"{statistics.median(ratios):.3f} ({min(ratios):.3f}, {max(ratios):.3f}) | {drafted:,} | {accepted:,} |",
                  flush=True)
        for server in servers:
            server.stop()


if __name__ == "__main__":
    main()
