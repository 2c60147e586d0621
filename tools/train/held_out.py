#!/usr/bin/env python3
"""Writes the documents that training held out as one text, each with the separator before it, shuffled.

    python3 tools/train/held_out.py --data stories.txt more.txt --out held_out.txt

Documents, separator, share and seed must be those of the training, so that the same documents are held out.
"""

import argparse
import pathlib
import random

from documents import read_split

END_OF_TEXT = "<|endoftext|>"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", nargs="+", type=pathlib.Path, required=True, metavar="FILE")
    add("--separator", default=END_OF_TEXT, help="(%(default)s)")
    add("--held-out", type=float, default=0.02, help="(%(default)s)")
    add("--seed", type=int, default=1, help="(%(default)s)")
    add("--out", type=pathlib.Path, required=True, metavar="FILE")
    args = parser.parse_args()

    documents = read_split(args.data, args.separator.replace("\\n", "\n"), args.held_out, args.seed).validation
    random.Random(args.seed).shuffle(documents)
    args.out.write_text(END_OF_TEXT.join(documents), encoding="utf-8")


if __name__ == "__main__":
    main()
