"""Splits text files into documents, and holds some out for validation. Needs only the standard library."""

import argparse
import dataclasses
import hashlib
import pathlib
import re
from collections.abc import Iterable

END_OF_TEXT = "<|endoftext|>"  # the usual separator, and the token between documents

# Longer texts, such as a book in one file, are cut into documents at line ends. Some of these documents can then be
# held out.
MAX_CHARACTERS = 20_000


@dataclasses.dataclass(frozen=True)
class Split:
    training: list[str]
    validation: list[str]


def tidy(text: str) -> str:
    """Makes each paragraph one line, without blank lines or spaces at line ends. Copies of a text differ only there."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def pieces(document: str, max_characters: int = MAX_CHARACTERS) -> list[str]:
    """The document, or its parts when it is too long: each has whole lines and is about as long as allowed."""
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
    """The documents between separators, tidied. Empty ones are dropped."""
    tidied = (tidy(part) for part in text.split(separator))
    return [piece for document in tidied if document for piece in pieces(document)]


def without_copies(documents: Iterable[str]) -> list[str]:
    """Keeps the first of each group of documents that have the same letters and digits, apart from case. A copy in the
    held-out part would make the validation loss look better than it is."""
    first = {}
    for document in documents:
        first.setdefault(re.sub(r"\W+", "", document.lower()), document)
    return list(first.values())


def is_held_out(document: str, fraction: float, seed: int) -> bool:
    """Decides by the document's own text, so that adding or reordering files moves no document from one part to the
    other."""
    digest = hashlib.sha256(f"{seed}\n{document}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def add_split_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that select the documents and the held-out ones: the arguments of read_split."""
    add = parser.add_argument
    add("--data", nargs="+", type=pathlib.Path, required=True, metavar="FILE", help="text files in UTF-8")
    add("--separator", default=END_OF_TEXT, help=r"text between two documents; \n is a line end (%(default)s)")
    add("--held-out", type=float, default=0.02, help="share of the documents for validation (%(default)s)")
    add("--seed", type=int, default=1, help="seed of the split, the order, and any new weights (%(default)s)")


def split_of(args: argparse.Namespace) -> Split:
    return read_split(args.data, args.separator.replace("\\n", "\n"), args.held_out, args.seed)


def read_split(paths: Iterable[pathlib.Path], separator: str, held_out: float, seed: int) -> Split:
    """The documents of all files in order, with a share of `held_out` of them for validation."""
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
