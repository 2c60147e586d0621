"""A client that repeats one greedy request, in a process of its own, and reports what it sees while others attack.

    python3 victim.py ADDRESS [--ca FILE] [--token TOKEN]

It answers each line of its standard input with one line: a Report as JSON, of the time since the last one.
It ends with its input.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import threading
import time

import grpc

import harness
from harness import Client, Streamed

PROMPT = "the thing in another hour"
OPTIONS = dict(temperature=0.0, max_tokens=8, ignore_eos=True, token_ids=True)
PATIENCE = 15  # seconds for an answer that takes milliseconds
PAUSE = 0.01   # seconds between two requests
RENEW = 8      # answers on one connection; then one more comes through a new connection beside it


@dataclasses.dataclass
class Report:
    answers: int = 0
    wrong: int = 0             # answers that differ from the first
    errors: list[str] = dataclasses.field(default_factory=list)
    longest_gap: float = 0.0   # seconds from one answer to the next

    def __add__(self, other: "Report") -> "Report":
        return Report(self.answers + other.answers, self.wrong + other.wrong, self.errors + other.errors,
                      max(self.longest_gap, other.longest_gap))


class Victim:
    """The process, as a test uses it."""

    def __init__(self, address: str, ca: str = "", token: str = ""):
        command = [sys.executable, __file__, address, "--ca", ca, "--token", token]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def report(self) -> Report:
        """The report of the time since the last one."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Report(**json.loads(self._process.stdout.readline()))

    def wait_for_answers(self, count: int) -> Report:
        """The sum of its reports until it had this many answers."""
        total, deadline = Report(), time.monotonic() + harness.DEADLINE
        while total.answers < count and time.monotonic() < deadline:
            time.sleep(0.02)
            total = total + self.report()
        return total

    def close(self):
        self._process.stdin.close()
        self._process.wait(harness.DEADLINE)
        self._process.stdout.close()


class Loop:
    """The loop that the process runs."""

    def __init__(self, connect):
        self._connect = connect
        self._first: list[int] | None = None
        self._mu = threading.Lock()
        self._report, self._last_answer = Report(), time.monotonic()

    def run(self):
        client = self._connect()
        for turn in range(sys.maxsize):
            fresh = self._connect() if turn % RENEW == 0 else None
            self._ask(fresh or client, streamed=turn % 2 == 1)
            if fresh:
                fresh.close()
            time.sleep(PAUSE)

    def take_report(self) -> Report:
        with self._mu:
            report, self._report = self._report, Report()
            report.longest_gap = max(report.longest_gap, time.monotonic() - self._last_answer)
            return report

    def _ask(self, client: Client, streamed: bool):
        try:
            if streamed:
                ids = Streamed(client.stream(PROMPT, timeout=PATIENCE, **OPTIONS)).ids
            else:
                ids = list(client.generate(PROMPT, timeout=PATIENCE, **OPTIONS).completions[0].token_ids)
        except grpc.RpcError as error:
            with self._mu:
                self._report.errors.append(f"{error.code().name}: {error.details()}")
            return
        with self._mu:
            self._first = self._first or ids
            self._report.answers += 1
            self._report.wrong += ids != self._first
            now = time.monotonic()
            self._report.longest_gap = max(self._report.longest_gap, now - self._last_answer)
            self._last_answer = now


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("address")
    parser.add_argument("--ca", default="", help="PEM file of the authority; empty: no TLS")
    parser.add_argument("--token", default="")
    args = parser.parse_args()
    credentials = grpc.ssl_channel_credentials(pathlib.Path(args.ca).read_bytes()) if args.ca else None
    loop = Loop(lambda: Client(args.address, token=args.token, credentials=credentials))
    threading.Thread(target=loop.run, daemon=True).start()
    for _ in sys.stdin:
        print(json.dumps(dataclasses.asdict(loop.take_report())), flush=True)


if __name__ == "__main__":
    main()
