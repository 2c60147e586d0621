#!/usr/bin/env python3
"""One tenant floods a server, and another of equal share goes on: what the second one feels.

    python3 bench/serving/flood.py [--build build/release]

Prints, for each load of the first tenant, the longest gap between two tokens of a stream of the second that ran
already, and the time to the first token of its new requests. All connections stay on this machine. Needs Debian's
python3-grpcio, and the targets quire-server and quire_e2e_python.
"""

import argparse
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time

import grpc

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "bench/storm"))
from storm import find_modules  # noqa: E402

TOKENS = ("heavy-token-0123456789", "light-token-0123456789")
ANSWER = 32  # tokens of each request of the light tenant
TIMEOUT = 600  # seconds


def prompt(seed: int, length: int) -> list[int]:
    """Ids that no other seed shares."""
    draw = random.Random(seed)
    return [draw.randrange(300, 2000) for _ in range(length)]


class Server:
    def __init__(self, folder: pathlib.Path):
        callers = folder / "callers"
        callers.write_text("".join(f"{token}\n" for token in TOKENS))  # each a tenant of its own
        self.server = harness.Server("--auth_token_file", str(callers), "--kv_cache_mib", "128", "--threads", "2",
                                     model=REPOSITORY / "models/quire-stories").ready()
        self.heavy, self.light = (harness.Client(self.server.address, token=token) for token in TOKENS)

    def score(self, seed: int):
        request = pb.ScoreRequest(token_ids=dict(ids=[5, 6, 7]))
        for k in range(20):
            request.continuations.add().token_ids.ids.extend(prompt(1000 * seed + k, 1900))
        self.heavy.inference.Score(request, timeout=TIMEOUT, metadata=self.heavy.metadata)

    def write(self, seed: int):
        self.heavy.generate(prompt(seed, 900), timeout=TIMEOUT, max_tokens=1000, ignore_eos=True)

    def close(self):
        self.heavy.close()
        self.light.close()
        self.server.stop()


def times_of(client, seed: int, num_tokens: int) -> list[float]:
    """The seconds from the call to each message of a stream."""
    began = time.monotonic()
    return [time.monotonic() - began
            for _ in client.stream(prompt(seed, 20), max_tokens=num_tokens, ignore_eos=True)]


def run(name: str, work, num_calls: int, seconds: float):
    with tempfile.TemporaryDirectory() as folder:
        server = Server(pathlib.Path(folder))
        refused = []

        def load(seed: int):
            try:
                work(server, seed)
            except grpc.RpcError as error:
                refused.append(error.code().name)

        stop, gaps = threading.Event(), []

        def stream():
            for seed in range(10**6, 2 * 10**6):
                times = times_of(server.light, seed, 400)
                gaps.extend(after - before for before, after in zip(times, times[1:]))
                if stop.is_set():
                    return

        times_of(server.light, 1, ANSWER)
        running = threading.Thread(target=stream)
        running.start()
        time.sleep(1)
        began, calls = time.monotonic(), [threading.Thread(target=load, args=(i,)) for i in range(num_calls)]
        for call in calls:
            call.start()
        firsts = []
        while time.monotonic() - began < seconds and (not calls or any(call.is_alive() for call in calls)):
            firsts.append(times_of(server.light, 100 + len(firsts), ANSWER)[0])
            time.sleep(0.1)
        left = sum(call.is_alive() for call in calls)
        stop.set()
        running.join()
        print(f"{name:<44} {max(gaps):7.3f} {max(firsts):7.3f} {statistics.median(firsts):7.3f} {len(firsts):5}"
              f" {num_calls - left - len(refused):3} of {num_calls}" + (f", refused {set(refused)}" if refused else ""),
              flush=True)
        server.heavy.close()  # ends the calls that are left
        for call in calls:
            call.join()
        server.close()


def main():
    global harness, pb
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=REPOSITORY / "build/release", help="build folder")
    parser.add_argument("--seconds", type=float, default=60, help="of each load (default 60)")
    arguments = parser.parse_args()
    find_modules(arguments.build)
    import harness
    from harness import pb
    print(f"{'load of the other tenant':<44} {'gap s':>7} {'first':>7} {'median':>7} {'asked':>5} ended")
    run("none", None, 0, 10)
    run("4 scores of 20 x 1,900 ids", Server.score, 4, arguments.seconds)
    run("30 scores of 20 x 1,900 ids", Server.score, 30, arguments.seconds)
    run("80 prompts of 900 ids, 1,000 tokens each", Server.write, 80, arguments.seconds)


if __name__ == "__main__":
    main()
