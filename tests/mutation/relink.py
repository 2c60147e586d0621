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


def unit_of(build: pathlib.Path, source: str) -> Unit:
    """The unit that compiles `source`, alone or joined with others."""
    for unit in sorted(units(build), key=lambda unit: len(unit.sources)):
        if any(path.endswith(f"/{source}") for path in unit.sources):
            return unit
    sys.exit(f"{build}: does not build {source}")


def words_before_source(unit: Unit):
    """The command of a unit without the object it makes and the file it compiles."""
    words = unit.words
    return list(words[:words.index("-o")] + words[words.index("-o") + 2:words.index("-c")])


def shadow_of(unit: Unit, root: pathlib.Path, shadows: pathlib.Path) -> pathlib.Path:
    """The file to compile for a unit: of each source the copy in `shadows`, where there is one."""
    files = [shadows / pathlib.Path(source).relative_to(root) for source in unit.sources]
    files = [file if file.exists() else source for file, source in zip(files, unit.sources)]
    if [unit.file] == list(unit.sources):
        return files[0]
    joined = shadows / (unit.object.replace("/", "_") + ".cc")
    joined.write_text("".join(f'#include "{file}"\n' for file in files))
    return joined


@functools.lru_cache(maxsize=None)
def link_line(build: pathlib.Path, output: str):
    """The command that makes `output`, a library or a program, of its objects."""
    commands = subprocess.run(["ninja", "-C", str(build), "-t", "commands", "-s", output],
                              capture_output=True, text=True, check=True).stdout.strip().splitlines()
    if not commands:
        sys.exit(f"{build}: does not link {output}")
    return commands[-1]
