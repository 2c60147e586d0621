"""Hashes the code of a source and of its includes, to tell whether the source has changed."""

import hashlib
import pathlib
import re

EMULATOR = "kernels/cuda/emulator/"


def without_comments(text: str) -> str:
    """Returns the code without comments, one line each, so that a changed comment changes no key."""
    pattern = r'("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')|//[^\n]*|/\*.*?\*/'
    text = re.sub(pattern, lambda match: match.group(1) or " ", text, flags=re.DOTALL)
    return "\n".join(line for line in (" ".join(line.split()) for line in text.splitlines()) if line)


def includes(sources: list[str], root: pathlib.Path, left_out: tuple[str, ...] = ()) -> set[str]:
    """Returns `sources` and all files of `root` that they include, directly or not. Leaves out the emulator,
    which nvcc never compiles, and the files in `left_out`."""
    seen, waiting = set(), list(sources)
    while waiting:
        path = waiting.pop()
        if path in seen or path in left_out or path.startswith(EMULATOR) or not (root / path).is_file():
            continue
        seen.add(path)
        waiting += re.findall(r'^\s*#\s*include\s+"([^"]+)"', (root / path).read_text(), re.MULTILINE)
    return seen


def code_key(sources: list[str], root: pathlib.Path, more: tuple[str, ...] = (), left_out: tuple[str, ...] = ()) -> str:
    """Returns a SHA-256 of the code of `sources`, of the code that they include, and of `more`."""
    said = list(more)
    for path in sorted(includes(sources, root, left_out)):
        said += [path, without_comments((root / path).read_text())]
    return hashlib.sha256("\0".join(said).encode()).hexdigest()
