#!/usr/bin/env python3
"""Draws what compare.py has logged: output tokens per second, and the p99 of the time to the first token, by streams.

    python3 bench/peers/compare.py --types q4_0 --beside openvino --streams 1,2,4,8,16,32 --rounds 3 --log peers.jsonl
    python3 bench/peers/plot.py peers.jsonl --type q4_0 --to docs/pictures
"""

import argparse
import json
import pathlib
import statistics
import sys
from collections import defaultdict

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tools/train"))
import svg


def medians(rows: list[dict], pick) -> list[svg.Line]:
    """One line for each server: the medians over the rounds."""
    found = defaultdict(lambda: defaultdict(list))
    for row in rows:
        found[row["who"]][row["streams"]].append(pick(row))
    return [svg.Line(who, [(streams, statistics.median(some)) for streams, some in sorted(by_streams.items())])
            for who, by_streams in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=pathlib.Path)
    parser.add_argument("--type", default="q4_0", help="weight type (default q4_0)")
    parser.add_argument("--to", type=pathlib.Path, required=True, metavar="FOLDER")
    args = parser.parse_args()
    rows = [row for row in map(json.loads, args.log.read_text().splitlines()) if row["type"] == args.type]
    charts = {
        "tokens-per-second.svg": svg.Chart("Output tokens per second, of all streams", "streams at once", "tokens/s",
                                           medians(rows, lambda row: row["output_tokens_per_second"])),
        "first-token.svg": svg.Chart("Time to the first token, 99th percentile", "streams at once", "ms",
                                     medians(rows, lambda row: 1e3 * row["ttft_seconds"]["p99"]))}
    for name, chart in charts.items():
        (args.to / name).write_text(svg.render(chart))


if __name__ == "__main__":
    main()
