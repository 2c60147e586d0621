#!/usr/bin/env python3
"""Draws the loss curve of a run of train.py.

    python3 tools/train/plot_loss.py models/quire-stories/history.csv --svg models/quire-stories/loss.svg
"""

import argparse
import pathlib

import svg
from history import Entry, read

MAX_POINTS = 150  # of the training loss, so that the picture stays small


def thinned(entries: list[Entry]) -> list[tuple[float, float]]:
    """Points (tokens in millions, training loss). Each is the mean of several entries, so that there are few points."""
    group = -(-len(entries) // MAX_POINTS)
    groups = [entries[i : i + group] for i in range(0, len(entries), group)]
    return [(some[-1].tokens / 1e6, sum(entry.train_loss for entry in some) / len(some)) for some in groups]


def chart(entries: list[Entry]) -> svg.Chart:
    validation = [(entry.tokens / 1e6, entry.validation_loss) for entry in entries if entry.validation_loss is not None]
    return svg.Chart("Loss", "million tokens trained on", "nats per token", [
        svg.Line("training, with dropout", thinned(entries), faint=True),
        svg.Line(f"held-out documents: {min(loss for _, loss in validation):.3f} at best", validation)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("history", type=pathlib.Path, metavar="CSV")
    parser.add_argument("--svg", type=pathlib.Path, required=True, metavar="FILE")
    args = parser.parse_args()
    args.svg.write_text(svg.render(chart(read(args.history))))


if __name__ == "__main__":
    main()
