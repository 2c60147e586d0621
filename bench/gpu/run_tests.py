#!/usr/bin/env python3
"""Runs test programs of the CUDA kernels side by side, for bench/gpu/run_all.sh and quarter_hour.sh.

    run_tests.py --build build/cuda --json results.jsonl --logs FOLDER [--libraries FOLDERS] [--at_once 6]
        [--most_seconds 40] [--seconds 120] NAME...

Each test program writes its log to FOLDER/NAME.log and one line of results. A program that runs out of time is stopped.
The test in which it hung is named in the results, and the program runs again without that test. Exit status 1 when a
program fails, hangs, or finds no GPU.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import ledger

TIMED_OUT = 124  # as of timeout(1)
# Only compute capability 9.0 has what these programs test, so they may skip all of it on another GPU.
MAY_SKIP = ("hopper", "prefill")


def hung_in(log: pathlib.Path) -> str | None:
    """The test that a program began last and did not end, by its log."""
    last = None
    for line in log.read_text(errors="replace").splitlines():
        if found := re.match(r"\[ (RUN|      OK|  FAILED|  SKIPPED) +\] (\S+)", line):
            last = found[2] if found[1] == "RUN" else None
    return last


def run_program(command: list[str], environment: dict, seconds: float, log: pathlib.Path) -> int:
    """The exit status, TIMED_OUT after so many seconds."""
    with log.open("a") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, env=environment)
        try:
            return process.wait(max(seconds, 1.0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return TIMED_OUT


def run_test(options, name: str) -> dict:
    """The line of results of one program."""
    json_file, log = (options.logs / f"{name}{end}" for end in (".json", ".log"))
    log.write_text("")
    hung: list[str] = []
    while True:
        json_file.unlink(missing_ok=True)
        command = [str(options.build / "tests" / name), "--gtest_brief=0", f"--gtest_output=json:{json_file}"]
        if hung:
            command.append("--gtest_filter=-" + ":".join(hung))
        left = options.deadline - time.monotonic()
        status = TIMED_OUT if left <= 0 else run_program(
            command, options.environment, min(options.most_seconds, left), log)
        culprit = hung_in(log) if status == TIMED_OUT and left > 0 else None
        if culprit is None or culprit in hung:
            break
        hung.append(culprit)
    line = ledger.test_line(name, status, json_file)
    if left <= 0 and not hung:
        line["reasons"] = ["no time was left for it"]
    elif line["tests"] == 0 and status != TIMED_OUT and (crashed := hung_in(log)):
        line["reasons"].append(f"{crashed}: the program ended in it")
    if hung:
        line["status"] = "failed"
        line["failures"] += len(hung)
        line["reasons"] = [f"{test}: it ran out of time" for test in hung] + line["reasons"]
    return line


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--json", type=pathlib.Path, required=True)
    parser.add_argument("--logs", type=pathlib.Path, required=True)
    parser.add_argument("--libraries", default="", help="folders for LD_LIBRARY_PATH of the programs")
    parser.add_argument("--at_once", type=int, default=1)
    parser.add_argument("--most_seconds", type=float, default=40.0, help="of a program")
    parser.add_argument("--seconds", type=float, default=3600.0, help="of all programs together")
    parser.add_argument("names", nargs="+")
    options = parser.parse_args(arguments)
    options.environment = dict(os.environ)
    if options.libraries:
        options.environment["LD_LIBRARY_PATH"] = ":".join(
            filter(None, (options.libraries, os.environ.get("LD_LIBRARY_PATH"))))
    options.deadline = time.monotonic() + options.seconds
    options.logs.mkdir(parents=True, exist_ok=True)
    failed = False
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool, options.json.open("a") as results:
        for run in concurrent.futures.as_completed([pool.submit(run_test, options, name) for name in options.names]):
            line = run.result()
            for file in (results, sys.stdout):
                print(json.dumps(line), file=file, flush=True)
            may_skip = line["status"] == "skipped" and any(part in line["name"] for part in MAY_SKIP)
            failed |= line["status"] != "passed" and not may_skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
