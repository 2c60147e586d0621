#!/usr/bin/env python3
"""Two tenants and a third share one server's cache: create, share, fork, beam, expire, restart.

    python3 bench/sharing/tenants.py [--build build/release] [--model models/quire-stories]

Prints what GetStats says after each step, and exits with 1 when a number is not what sharing promises. Takes about
80 s, 60 of them for a prefix to expire. All connections stay on this machine. Needs Debian's python3-grpcio, and the
targets quire-server and quire_e2e_python.
"""

import argparse
import hashlib
import pathlib
import shutil
import signal
import sys
import tempfile
import time

import grpc

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "bench/storm"))
from storm import find_modules  # noqa: E402

OPERATOR = "olga"
TENANTS = ("alice", "bob", "carol")  # alice owns the prefix, bob may use it, carol may not
RULES = " ".join(["Once upon a time there was a little fox who wanted to see the sea."] * 12)
GREEDY = dict(temperature=0, max_tokens=8, ignore_eos=True)
NUM_FORKS, BEAM_WIDTH = 8, 8


def token_of(name: str) -> str:
    return f"{name}-token-0123456789"


class Story:
    """The steps, and what the server counts after each of them."""

    def __init__(self, model: pathlib.Path, folder: pathlib.Path):
        self.model, self.folder, self.wrong = model, folder, []
        callers = folder / "callers"
        callers.write_text("".join(
            f"token:{hashlib.sha256(token_of(name).encode()).hexdigest()} name={name}"
            f"{' roles=operator' if name == OPERATOR else ''}\n" for name in (*TENANTS, OPERATOR)))
        self.flags = ("--auth_token_file", str(callers), "--kv_disk_dir", str(folder / "state"))
        self.start()
        print(f"{'step':<58} {'held':>5} {'pinned':>6} {'cached':>6} {'free':>5} {'computed':>8} {'hits':>6}")

    def start(self):
        self.server = Server(*self.flags, model=self.model).ready()
        self.clients = {name: Client(self.server.address, token=token_of(name)) for name in (*TENANTS, OPERATOR)}
        self.computed = self.hit = 0

    def kill(self):
        self.server.signal(signal.SIGKILL)
        self.server.wait()

    def call(self, tenant: str, service: str, method: str, request):
        client = self.clients[tenant]
        return getattr(getattr(client, service), method)(request, timeout=60, metadata=client.metadata)

    def generate(self, tenant: str, prompt, **options):
        return self.clients[tenant].generate(prompt, **{**GREEDY, **options})

    def report(self, step: str):
        """Prints a line, and returns (blocks, tokens computed since the last line, tokens found in the cache)."""
        stats = self.clients[OPERATOR].stats()
        blocks, tokens = stats.blocks, stats.tokens
        computed, self.computed = tokens.prompt_computed - self.computed, tokens.prompt_computed
        hit, self.hit = tokens.prompt_cached - self.hit, tokens.prompt_cached
        print(f"{step:<58} {blocks.held:>5} {blocks.pinned:>6} {blocks.cached:>6} {blocks.free:>5} {computed:>8} {hit:>6}",
              flush=True)
        return blocks, computed, hit

    def expect(self, promise: str, holds: bool):
        if not holds:
            self.wrong.append(promise)

    def create(self):
        request = prefixes.CreatePrefixRequest(text=RULES, display_name="rules", allowed_tenants=["bob"])
        request.ttl.FromSeconds(600)
        self.prefix = self.call("alice", "prefixes", "CreatePrefix", request)
        blocks, computed, _ = self.report(f"alice creates a prefix of {self.prefix.num_tokens} tokens")
        self.expect("a prefix is computed once", computed == self.prefix.num_tokens)
        self.expect("all its blocks are pinned", blocks.pinned == self.prefix.num_blocks == blocks.held)

    def share(self):
        usage = self.generate("bob", " The fox", prefix=self.prefix.name).usage
        _, computed, _ = self.report("bob, who may use it, generates behind it")
        self.expect("bob finds the whole prefix", usage.prefix_tokens == self.prefix.num_tokens)
        self.expect("bob computes what follows it", computed <= 16)
        try:
            self.generate("carol", " The fox", prefix=self.prefix.name)
            self.expect("carol does not see the prefix", False)
        except grpc.RpcError as error:
            self.expect("carol gets NOT_FOUND", error.code() == grpc.StatusCode.NOT_FOUND)
        self.report("carol, who may not, is told that there is none")
        usage = self.generate("carol", RULES + " The fox").usage
        self.report("carol sends the same text without the name")
        self.expect("nothing of other tenants is found by carol", usage.cached_tokens == 0)

    def fork(self):
        session = self.call("alice", "sessions", "CreateSession",
                            sessions.CreateSessionRequest(prefix_name=self.prefix.name))
        self.generate("alice", " The fox", session=session.name)
        self.report("alice opens a session on it and takes a turn")
        request = sessions.ForkSessionRequest(name=session.name, count=NUM_FORKS)
        children = self.call("alice", "sessions", "ForkSession", request).sessions
        self.report(f"alice forks it into {NUM_FORKS}")
        for number, child in enumerate(children):
            self.generate("alice", f" Then came friend {number}.", session=child.name)
        _, computed, hit = self.report("each fork takes a turn of its own")
        self.expect("a fork computes its own turn only", computed <= NUM_FORKS * 40)
        self.expect("forks find the conversation", hit >= NUM_FORKS * self.prefix.num_tokens)
        for name in (session.name, *(child.name for child in children)):
            self.call("alice", "sessions", "CloseSession", sessions.CloseSessionRequest(name=name))

    def beam(self):
        request = make_request(" The fox", prefix=self.prefix.name, max_tokens=32)
        request.sampling.beam.width = BEAM_WIDTH
        client = self.clients["bob"]
        answer = client.inference.Generate(request, timeout=60, metadata=client.metadata)
        block_size = self.clients[OPERATOR].server_info().block_size
        steps = answer.usage.completion_tokens // BEAM_WIDTH - 1
        # A cache without sharing is copied whole, for each beam and step.
        whole = sum(BEAM_WIDTH * -(-(answer.usage.prompt_tokens + i) // block_size) for i in range(1, steps + 1))
        self.report(f"bob searches with {BEAM_WIDTH} beams: {answer.usage.block_copies} blocks copied, not {whole}")
        self.expect("beams share the prefix", answer.usage.prefix_tokens == self.prefix.num_tokens)

    def expire(self):
        request = prefixes.CreatePrefixRequest(text="A short one." * 20)
        request.ttl.FromSeconds(60)
        began = time.monotonic()
        short = self.call("bob", "prefixes", "CreatePrefix", request)
        before, _, _ = self.report(f"bob creates one of {short.num_tokens} tokens for 60 s")
        time.sleep(max(0.0, began + 61 - time.monotonic()))
        after, _, _ = self.report("61 s later")
        self.expect("an expired prefix frees its blocks", before.pinned - after.pinned == short.num_blocks)

    def restart(self):
        self.kill()
        self.start()
        self.report("kill -9, and a new server")
        usage = self.generate("bob", " The fox", prefix=self.prefix.name).usage
        self.report("bob generates behind the prefix of before")
        self.expect("the prefix outlives the server", usage.prompt_tokens > self.prefix.num_tokens)
        warm = self.call("alice", "prefixes", "WarmPrefix", prefixes.WarmPrefixRequest(name=self.prefix.name))
        usage = self.generate("bob", " The sea", prefix=self.prefix.name).usage
        blocks, computed, _ = self.report("and once more")
        self.expect("a warm prefix is pinned again", blocks.pinned == warm.num_blocks)
        self.expect("a warm prefix is found", computed <= 16 and usage.cached_tokens >= warm.num_tokens - 16)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=REPOSITORY / "build/release", help="build folder")
    parser.add_argument("--model", type=pathlib.Path, default=REPOSITORY / "models/quire-stories")
    arguments = parser.parse_args()
    find_modules(arguments.build)
    global Client, Server, make_request, prefixes, sessions
    from harness import Client, Server, make_request
    from quire.v1 import prefix_service_pb2 as prefixes
    from quire.v1 import session_service_pb2 as sessions

    folder = pathlib.Path(tempfile.mkdtemp())
    story = Story(arguments.model, folder)
    try:
        for step in (story.create, story.share, story.fork, story.beam, story.expire, story.restart):
            step()
    finally:
        story.server.stop()
        shutil.rmtree(folder)
    for promise in story.wrong:
        print(f"broken: {promise}")
    return 1 if story.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
