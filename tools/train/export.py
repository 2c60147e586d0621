#!/usr/bin/env python3
"""Writes the best weights of a run of train.py, also of one still going, as a Hugging Face directory.

    python3 tools/train/export.py --run build/stories --out models/quire-stories
"""

import argparse
import pathlib

import hf_directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=pathlib.Path, required=True, metavar="DIR", help="the --out of train.py")
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="folder for the model")
    args = parser.parse_args()
    best = hf_directory.export(args.run, args.out)
    size = sum(path.stat().st_size for path in args.out.iterdir() if path.is_file())
    print(f"{args.out}: step {best['step']}, validation loss {best['validation_loss']:.4f}, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
