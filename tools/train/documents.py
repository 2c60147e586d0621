"""Text files -> documents, and which of them are held out for validation. The standard library alone."""

import argparse
import dataclasses
import hashlib
import pathlib
import re
from collections.abc import Iterable

END_OF_TEXT = "<|endoftext|>"  # the usual separator, and the token between documents

# Longer texts (a book in one file) are cut at line ends, so that some of them can be held out.
MAX_CHARACTERS = 20_000


@dataclasses.dataclass(frozen=True)
class Split:
    training: list[str]
    validation: list[str]


def tidy(text: str) -> str:
    """One line a paragraph, without blank lines or spaces at line ends: sources differ in these and in nothing else."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def pieces(document: str, max_characters: int = MAX_CHARACTERS) -> list[str]:
    """The document, or where it is too long its parts, each of whole lines and about as long as allowed."""
    parts: list[str] = []
    lines: list[str] = []
    length = 0
    for line in document.split("\n"):
        if lines and length + len(line) > max_characters:
            parts.append("\n".join(lines))
            lines, length = [], 0
        lines.append(line)
        length += len(line) + 1
    return [*parts, "\n".join(lines)]


def documents_of(text: str, separator: str) -> list[str]:
    """What lies between separators, tidied; empty ones are dropped."""
    tidied = (tidy(part) for part in text.split(separator))
    return [piece for document in tidied if document for piece in pieces(document)]


def without_copies(documents: Iterable[str]) -> list[str]:
    """The first of each group that agrees in letters and digits, case aside: a copy in the held-out part would make
    the validation loss look better than it is."""
    first = {}
    for document in documents:
        first.setdefault(re.sub(r"\W+", "", document.lower()), document)
    return list(first.values())


def is_held_out(document: str, fraction: float, seed: int) -> bool:
    """By the document's own text, so that adding or reordering files moves nothing across the border."""
    digest = hashlib.sha256(f"{seed}\n{document}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def add_split_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that decide which documents there are, and which of them are held out: read_split's arguments."""
    add = parser.add_argument
    add("--data", nargs="+", type=pathlib.Path, required=True, metavar="FILE", help="UTF-8 text")
    add("--separator", default=END_OF_TEXT, help=r"between two documents; \n is a line end (%(default)s)")
    add("--held-out", type=float, default=0.02, help="share of the documents for validation (%(default)s)")
    add("--seed", type=int, default=1, help="of the split, the order, and weights where there are any (%(default)s)")


def split_of(args: argparse.Namespace) -> Split:
    return read_split(args.data, args.separator.replace("\\n", "\n"), args.held_out, args.seed)


def read_split(paths: Iterable[pathlib.Path], separator: str, held_out: float, seed: int) -> Split:
    """Documents of all files in order, a share of `held_out` of them for validation."""
    found: list[str] = []
    for path in paths:
        try:
            found += documents_of(path.read_text(encoding="utf-8"), separator)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: want UTF-8 text, got {error.reason} at byte {error.start}") from error
    split = Split([], [])
    for document in without_copies(found):
        (split.validation if is_held_out(document, held_out, seed) else split.training).append(document)
    if not split.training or not split.validation:
        raise ValueError(f"data: want documents on both sides of the split, got {len(split.training)} to train on and "
                         f"{len(split.validation)} held out; more text, another --separator or --held-out may help")
    return split
