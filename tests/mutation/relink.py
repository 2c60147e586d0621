"""How a finished build compiles a source and links a test: what tools that change a source go by."""

import dataclasses
import functools
import json
import pathlib
import re
import shlex
import subprocess
import sys


@dataclasses.dataclass(frozen=True)
class Unit:
    """What a build compiles at once: one source, or sources that CMake joined (CMAKE_UNITY_BUILD)."""

    file: str
    sources: tuple[str, ...]  # absolute paths
    words: tuple[str, ...]  # the command, without ccache
    object: str  # the file that the command makes, seen from the build folder


@functools.lru_cache(maxsize=None)
def units(build: pathlib.Path) -> tuple[Unit, ...]:
    """All units of the build."""
    found = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        words = words[1:] if words[0].endswith("ccache") else words
        sources = [entry["file"]]
        if pathlib.Path(entry["file"]).name.startswith("unity_"):
            sources = re.findall(r'^#include "(/.*)"$', pathlib.Path(entry["file"]).read_text(), re.M)
        found.append(Unit(entry["file"], tuple(sources), tuple(words), words[words.index("-o") + 1]))
    return tuple(found)


def compile_words(build: pathlib.Path, source: str):
    """The command that compiles `source`, alone or joined with others, and the object it makes."""
    for unit in sorted(units(build), key=lambda unit: len(unit.sources)):
        if any(path.endswith(f"/{source}") for path in unit.sources):
            return list(unit.words), unit.object
    sys.exit(f"{build}: does not build {source}")


@functools.lru_cache(maxsize=None)
def link_line(build: pathlib.Path, output: str):
    """The command that makes `output`, a library or a program, of its objects."""
    commands = subprocess.run(["ninja", "-C", str(build), "-t", "commands", "-s", output],
                              capture_output=True, text=True, check=True).stdout.strip().splitlines()
    if not commands:
        sys.exit(f"{build}: does not link {output}")
    return commands[-1]
