"""The switch that turns one planted bug of a program on, and the run of a test with it."""

import collections
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

HEADER = "planted_bug.h"
SWITCH = """#pragma once
namespace quire {
extern const int planted_bug;
}
"""
SWITCH_SOURCE = """#include <cstdlib>
namespace quire {
extern const int planted_bug;
const int planted_bug = std::getenv("QUIRE_PLANTED_BUG") ? std::atoi(std::getenv("QUIRE_PLANTED_BUG")) : 0;
}
"""
# A test with a bug may take three times as long as without the bug, plus this number of seconds.
TIME_OUT = 10
# With a fixed seed, RapidCheck draws the same inputs in each run. A bug that is seen needs no shorter example.
RANDOM = {"RC_PARAMS": "seed=1 noshrink=1"}

Run = collections.namedtuple("Run", "status late said cpu")


def is_on(bug: int) -> str:
    """The condition that the bug of this number, from 1 on, is switched on."""
    return f"(::quire::planted_bug == {bug})"


def write_switch(folder: pathlib.Path):
    """Writes HEADER, and the source of the switch beside it."""
    (folder / HEADER).write_text(SWITCH)
    (folder / "planted_bug.cc").write_text(SWITCH_SOURCE)


def compile(build: pathlib.Path, words, file: pathlib.Path, made: pathlib.Path):
    """Compiles a file, which may hold bugs, as `words` say."""
    made.parent.mkdir(parents=True, exist_ok=True)
    ccache = [shutil.which("ccache")] if shutil.which("ccache") else []
    # The direct mode of ccache looks only at the headers that an earlier compilation read. It would not see that
    # a copy with bugs now comes before one of them.
    environment = dict(os.environ, CCACHE_NODIRECT="1")
    return subprocess.run(ccache + list(words) + ["-o", str(made), "-c", str(file)], cwd=build, env=environment,
                          capture_output=True, text=True)


def run_test(command, folder: pathlib.Path, bug: int, limit: float, **environment: str) -> Run:
    """A test with one bug switched on, or none if that is 0, ended after `limit` seconds."""
    environment = dict(os.environ, **RANDOM, **environment, QUIRE_PLANTED_BUG=str(bug))
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
        deadline, late = time.monotonic() + limit, False
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline and not late:
                process.kill()
                late = True
            time.sleep(0.005)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        said = output.read()
    return Run(process.returncode, late, said, usage.ru_utime + usage.ru_stime)
