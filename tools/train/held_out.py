#!/usr/bin/env python3
"""Writes the documents that training held out as one text, each with the separator before it, shuffled.

    python3 tools/train/held_out.py --data stories.txt more.txt --out held_out.txt

Documents, separator, share and seed must be those of the training, so that the same documents are held out.
"""

import argparse
import pathlib
import random

from documents import END_OF_TEXT, add_split_flags, split_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_split_flags(parser)
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="FILE")
    args = parser.parse_args()

    documents = split_of(args).validation
    random.Random(args.seed).shuffle(documents)
    args.out.write_text(END_OF_TEXT.join(documents), encoding="utf-8")


if __name__ == "__main__":
    main()
