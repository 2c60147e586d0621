"""The code of a source and of its includes, which tells whether the source has changed."""

import hashlib
import pathlib
import re

EMULATOR = "kernels/cuda/emulator/"


def without_comments(text: str) -> str:
    """The code alone, a line each, so that words about it change no key."""
    pattern = r'("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')|//[^\n]*|/\*.*?\*/'
    text = re.sub(pattern, lambda match: match.group(1) or " ", text, flags=re.DOTALL)
    return "\n".join(line for line in (" ".join(line.split()) for line in text.splitlines()) if line)


def includes(sources: list[str], root: pathlib.Path, left_out: tuple[str, ...] = ()) -> set[str]:
    """`sources` and what they include from `root`, by whatever way; not the emulator, which nvcc never sees, nor
    what is left out."""
    seen, waiting = set(), list(sources)
    while waiting:
        path = waiting.pop()
        if path in seen or path in left_out or path.startswith(EMULATOR) or not (root / path).is_file():
            continue
        seen.add(path)
        waiting += re.findall(r'^\s*#\s*include\s+"([^"]+)"', (root / path).read_text(), re.MULTILINE)
    return seen


def code_key(sources: list[str], root: pathlib.Path, more: tuple[str, ...] = (), left_out: tuple[str, ...] = ()) -> str:
    """A SHA-256 over the code of `sources` and of what they include, and `more`."""
    said = list(more)
    for path in sorted(includes(sources, root, left_out)):
        said += [path, without_comments((root / path).read_text())]
    return hashlib.sha256("\0".join(said).encode()).hexdigest()
