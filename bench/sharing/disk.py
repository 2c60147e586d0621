#!/usr/bin/env python3
"""Times prompts whose K and V are on disk beside prompts that are computed, and what writing costs the streams.

    python3 bench/sharing/disk.py [--build build/release] [--model models/quire-stories] [--rounds 5] [--cold]

After a restart: each round draws new prompts, which one server computes and writes to disk. Another server then reads
them, and a third without a disk computes them. Each of the two is new and has answered one short prompt.

After an eviction: a server with a disk computes a prompt, and reads others until its small cache has no room for this
one. Then it gets the prompt again, and a server without a disk computes it. Times are from the call to the first token,
as a client sees them. Every other round takes the two servers in the other order.

Streams: a server with a disk, one without, and another one without as a control take the same load in turn. All
connections stay on this machine, and the directory is removed at the end.
"""

import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import random
import shutil
import statistics
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "bench/storm"))
from storm import find_modules  # noqa: E402

GREEDY = dict(temperature=0, ignore_eos=True)
FLAGS = ("--threads", "2", "--kv_cache_mib", "1024")
SMALL = ("--kv_cache_mib", "192")  # of 22.5 KiB a token: 8,738 tokens; a fetch takes half of them at most


def drawn(draw: random.Random, num_tokens: int) -> list[int]:
    return [draw.randrange(100, 4000) for _ in range(num_tokens)]


class Disk:
    """A directory, and the servers that keep K and V in it."""

    def __init__(self, arguments: argparse.Namespace):
        self.model, self.folder = arguments.model, pathlib.Path(tempfile.mkdtemp(dir=arguments.directory))

    @contextlib.contextmanager
    def server(self, has_disk: bool, *flags: str):
        """Yields a new server that has answered a short prompt, and a client of it."""
        if has_disk:
            flags = (*flags, "--kv_disk_dir", str(self.folder / "state"), "--kv_disk_mib", "8192")
        with running(*FLAGS, *flags, model=self.model) as (server, client):
            client.generate(drawn(random.Random(), 20), max_tokens=2, **GREEDY)
            yield server, client

    def wait_until_written(self, server):
        """Waits until the server writes no more blocks. Tells of those that it left out."""
        def size():
            return sum(path.stat().st_size for path in (self.folder / "state").iterdir())
        before, after = -1, size()
        while before != after:
            time.sleep(0.3)
            before, after = after, size()
        if dropped := server.metrics()["quire_kv_disk_dropped_total"]:
            print(f"{dropped:.0f} blocks were not written")

    def forget_pages(self):
        """The next reads come from the device."""
        for path in (self.folder / "state").iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def first_token(client, prompt: list[int]):
    """The seconds until the first token, and the tokens that were computed and that came from disk."""
    began = time.monotonic()
    stream = client.stream(prompt, max_tokens=1, **GREEDY)
    messages = [next(stream)]
    took = time.monotonic() - began
    messages += stream
    usage = messages[-1].usage
    return took, usage.prompt_tokens - usage.cached_tokens, usage.disk_tokens


def in_turn(round: int) -> tuple[bool, bool]:
    return (True, False) if round % 2 == 0 else (False, True)


class FirstTokens:
    """Times by length of prompt, with a disk and without."""

    def __init__(self, title: str):
        self.title, self.found = title, {}

    def take(self, has_disk: bool, client, prompt: list[int]):
        both = self.found.setdefault(len(prompt), {True: [], False: []})
        both[has_disk].append(first_token(client, prompt))

    def report(self):
        print(f"{self.title:<16} {'from disk':>9} {'computed':>8} {'TTFT ms, median (least, most)':>30} "
              f"{'without disk':>30} {'ratio':>6}")
        for length, both in sorted(self.found.items()):
            times = {has_disk: [1000 * took for took, _, _ in both[has_disk]] for has_disk in both}
            ratio = statistics.median(alone / read for read, alone in zip(times[True], times[False]))
            shown = [f"{statistics.median(t):.1f} ({min(t):.1f}, {max(t):.1f})" for t in (times[True], times[False])]
            computed, read = (statistics.median(column) for column in list(zip(*both[True]))[1:])
            print(f"{length:>16} {read:>9.0f} {computed:>8.0f} {shown[0]:>30} {shown[1]:>30} {ratio:>6.1f}", flush=True)


def measure_restarts(disk: Disk, arguments: argparse.Namespace):
    draw, found = random.Random(time.time()), FirstTokens("after a restart")
    for round in range(arguments.rounds):
        prompts = [drawn(draw, length) for length in draw.sample(arguments.lengths, len(arguments.lengths))]
        with disk.server(has_disk=True) as (server, client):
            for prompt in prompts:
                client.generate(prompt, max_tokens=1, **GREEDY)
            disk.wait_until_written(server)
        for has_disk in in_turn(round):
            with disk.server(has_disk) as (_, client):
                if has_disk and arguments.cold:
                    disk.forget_pages()
                for prompt in prompts:
                    found.take(has_disk, client, prompt)
    found.report()


def measure_evictions(disk: Disk, arguments: argparse.Namespace):
    draw, found = random.Random(time.time()), FirstTokens("after eviction")
    fillers = [drawn(draw, max(arguments.lengths)) for _ in range(4)]  # more than the cache has room for
    with disk.server(True, *SMALL) as (server, on_disk), disk.server(False, *SMALL) as (_, alone):
        clients = {True: on_disk, False: alone}

        def fill(prompts: list[list[int]]):
            for prompt in prompts:
                on_disk.generate(prompt, max_tokens=1, **GREEDY)
                disk.wait_until_written(server)  # before it is evicted

        fill(fillers)
        for round in range(arguments.rounds):
            for length in arguments.lengths:
                prompt = drawn(draw, length)
                fill([prompt, *fillers])
                if arguments.cold:
                    disk.forget_pages()
                for has_disk in in_turn(round):
                    found.take(has_disk, clients[has_disk], prompt)
    found.report()


def tokens_per_second(client, draw: random.Random, num_streams: int, num_tokens: int) -> float:
    prompts = [drawn(draw, 16) for _ in range(num_streams)]
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(num_streams) as threads:
        for answer in threads.map(lambda prompt: client.generate(prompt, max_tokens=num_tokens, **GREEDY), prompts):
            assert answer.usage.completion_tokens == num_tokens
    return num_streams * num_tokens / (time.monotonic() - began)


def measure_streams(disk: Disk, arguments: argparse.Namespace):
    draw = random.Random(time.time())
    print(f"{'streams':>7} {'server':<10} {'tokens/s':>8} {'ratio, median (least, most)':>30} {'CPU ms a token':>14}")
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(disk.server(name == "with disk"))
                   for name in ("without", "with disk", "control")}
        for num_streams in arguments.streams:
            num_tokens = 2 * arguments.rounds * num_streams * arguments.tokens
            written = servers["with disk"][0].metrics()["quire_kv_disk_bytes"]
            rates, cpu = {name: [] for name in servers}, dict.fromkeys(servers, 0.0)
            for _ in range(2 * arguments.rounds):
                for name in draw.sample(list(servers), len(servers)):
                    server, client = servers[name]
                    cpu[name] -= server.cpu_seconds()
                    rates[name].append(tokens_per_second(client, draw, num_streams, arguments.tokens))
                    cpu[name] += server.cpu_seconds()
            for name in servers:
                ratios = [one / without for one, without in zip(rates[name], rates["without"])]
                shown = f"{statistics.median(ratios):.3f} ({min(ratios):.3f}, {max(ratios):.3f})"
                print(f"{num_streams:>7} {name:<10} {statistics.median(rates[name]):>8.0f} {shown:>30} "
                      f"{1000 * cpu[name] / num_tokens:>14.3f}", flush=True)
            metrics = servers["with disk"][0].metrics()
            print(f"        {(metrics['quire_kv_disk_bytes'] - written) / num_tokens:.0f} bytes a token were written, "
                  f"{metrics['quire_kv_disk_dropped_total']:.0f} blocks were not")


PARTS = {"restart": measure_restarts, "eviction": measure_evictions, "streams": measure_streams}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=REPOSITORY / "build/release", help="build folder")
    parser.add_argument("--model", type=pathlib.Path, default=REPOSITORY / "models/quire-stories")
    parser.add_argument("--directory", type=pathlib.Path, help="where the blocks are kept")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="*", default=[40, 128, 1024, 2048, 3500], help="of prompts")
    parser.add_argument("--only", choices=PARTS, help="measures this part alone")
    parser.add_argument("--cold", action="store_true", help="the page cache has nothing of the files")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 32], help="numbers of streams")
    parser.add_argument("--tokens", type=int, default=100, help="of each stream")
    arguments = parser.parse_args()
    find_modules(arguments.build)
    global running
    from harness import running

    disk = Disk(arguments)
    try:
        for part, measure in PARTS.items():
            if arguments.only in (None, part):
                measure(disk, arguments)
    finally:
        shutil.rmtree(disk.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
