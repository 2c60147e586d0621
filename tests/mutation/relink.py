"""How a finished build compiles a source and links a test: what tools that change a source go by."""

import functools
import json
import pathlib
import shlex
import subprocess
import sys


@functools.lru_cache(maxsize=None)
def compile_entries(build: pathlib.Path):
    return json.loads((build / "compile_commands.json").read_text())


@functools.lru_cache(maxsize=None)
def compile_words(build: pathlib.Path, unit: str):
    """The command that compiles `unit`, and the object it makes. A unit may be one of those that a source made by
    CMake joins (CMAKE_UNITY_BUILD); what it takes is the same."""
    entries = compile_entries(build)
    joined = [e for e in entries if "/unity_" in e["file"] and f"/{unit}\"" in pathlib.Path(e["file"]).read_text()]
    for entry in [e for e in entries if e["file"].endswith(f"/{unit}")] + joined:
        words = shlex.split(entry["command"])
        words = words[1:] if words[0].endswith("ccache") else words
        return words, words[words.index("-o") + 1]
    sys.exit(f"{build}: does not build {unit}")


@functools.lru_cache(maxsize=None)
def link_line(build: pathlib.Path, output: str):
    """The command that makes `output`, a library or a program, of its objects."""
    commands = subprocess.run(["ninja", "-C", str(build), "-t", "commands", "-s", output],
                              capture_output=True, text=True, check=True).stdout.strip().splitlines()
    if not commands:
        sys.exit(f"{build}: does not link {output}")
    return commands[-1]
