#!/usr/bin/env python3
"""Turns what bench/gpu/run_all.sh has written into the tables of the docs.

    python3 bench/gpu/report.py tables RESULTS.jsonl --out FOLDER    performance.md and gpu-status.md
    python3 bench/gpu/report.py test NAME STATUS GTEST.json          one line for RESULTS, of a test's run
    python3 bench/gpu/report.py predictions PREDICTIONS.jsonl        what quire-gpu-bench --predict wrote, as a table
    python3 bench/gpu/report.py stale docs/gpu-status.md             rows whose sources are not those of the last run

RESULTS holds a JSON object a line; of lines for the same thing the last counts, so runs may be repeated in parts.
"""

import argparse
import hashlib
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CUDA = "kernels/cuda"
# A row of docs/gpu-status.md: its sources, and the tests that must have passed on a GPU for it to have been seen.
KERNELS = {
    "primitives": (["primitives.cuh", "primitives_ptx.cuh", "element_types.h"],
                   ["primitives", "hopper_primitives", "tile_product"]),
    "attention": (["attn_decode.cuh", "attn_merge.cuh", "paged_attention.cu", "attention_plan.cc", "attention_items.h"],
                  ["paged_attention", "attn_merge"]),
    "attention_reference": (["attention_reference.cuh", "attention_reference.cu"], ["attention_reference"]),
    "step ops": (["argmax.cuh", "copy_blocks.cuh", "embed.cuh", "gather_rows.cuh", "linear_epilogue.cuh", "norm.cuh",
                  "qkv_post.cuh", "rows.cuh"], ["step_ops"]),
    "CudaBackend": (["cuda_backend.cc"], ["backend"]),
    "CudaDevice": (["cuda_device.cc", "cublas_gemm.cc", "tensor_map.cc"], ["device", "hopper_primitives"]),
}
NEVER = "never"

# What the kernels are to reach (share of the read ceiling; cost of ALiBi; FLOP/s).
DECODE_SHARE, DECODE_TOKENS = 0.90, 256 * 1024
ALIBI_COST = {"decode": 0.02, "ragged": 0.02, "prefill": 0.05}
PREFILL_FLOPS, PREFILL_TOKENS = 330e12, 8192


def source_hash(name: str) -> str:
    digest = hashlib.sha256()
    for path in KERNELS[name][0]:
        digest.update((ROOT / CUDA / path).read_bytes())
    return digest.hexdigest()[:12]


def read_lines(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def last_of(lines: list[dict], types: tuple, *keys: str) -> list[dict]:
    """The lines of these types, the last of those that agree in `keys`, in the order of the first."""
    kept = {}
    for line in lines:
        if line["type"] in types:
            kept[tuple(line.get(key) for key in keys)] = line
    return list(kept.values())


def table(head: list[str], rows: list[list]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def number(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


# --- A test's run


def test_line(name: str, status: int, path: pathlib.Path) -> dict:
    line = {"type": "test", "name": name, "exit_status": status, "tests": 0, "failures": 0, "skipped": 0,
            "seconds": 0.0, "reasons": []}
    try:
        run = json.loads(path.read_text())
    except (OSError, ValueError):
        run = {"testsuites": []}
        line["reasons"].append("it left no result" if status != 124 else "it ran out of time")
    for suite in run["testsuites"]:
        for test in suite["testsuite"]:
            line["tests"] += 1
            line["seconds"] += float(test.get("time", "0s").rstrip("s"))
            # GoogleTest calls a test that it never began, because there is no GPU, completed, at the epoch.
            if test.get("result") == "SKIPPED" or test.get("timestamp", "").startswith("1970-"):
                line["skipped"] += 1
            if failures := test.get("failures"):
                line["failures"] += 1
                line["reasons"].append(f"{suite['name']}.{test['name']}: {failures[0]['failure'].splitlines()[0]}")
    failed = status != 0 or line["failures"] > 0
    ran = line["tests"] - line["skipped"]
    line["status"] = "failed" if failed else "passed" if ran > 0 else "skipped"
    return line


# --- docs/performance.md


def shape_key(row: dict) -> str:
    """The case without what its variants differ by."""
    return re.sub(r" bs\d+| alibi", "", row["name"])


def attention_table(rows: list[dict], suites: tuple) -> str:
    """A row a case and block size, ALiBi beside it."""
    chosen = [row for row in rows if row["suite"] in suites]
    plain = {(shape_key(row), row["block_size"]): row for row in chosen if not row["alibi"]}
    alibi = {(shape_key(row), row["block_size"]): row for row in chosen if row["alibi"]}
    lines = []
    for key, row in plain.items():
        with_alibi = alibi.get(key)
        seconds = row["median_us"] * 1e-6
        lines.append([key[0], key[1], number(row["median_us"]), number(row["predicted_us"]),
                      f"{row['bytes'] / seconds / 1e12:.2f}", number(row["flops"] / seconds / 1e12),
                      percent(row["of_ceiling"]), number(row["plan_us"]),
                      f"{100 * (with_alibi['median_us'] / row['median_us'] - 1):+.1f} %" if with_alibi else "-"])
    return table(["case", "block", "median µs", "predicted (before)", "TB/s", "TFLOP/s", "of ceiling", "plan µs",
                  "ALiBi"], lines)


def goals(rows: list[dict], peers: list[dict]) -> list[str]:
    """One line for each aim: met or not, and the worst row."""
    lines = []

    def judge(aim: str, values: list[tuple], met):
        if not values:
            lines.append(f"- {aim}: not measured.")
            return
        worst = min(values)
        text = "met" if all(met(value) for value, _, _ in values) else "**not met**"
        lines.append(f"- {aim}: {text}; worst of {len(values)}: {worst[2]} ({worst[1]}).")

    attention = [row for row in rows if row["suite"] in ALIBI_COST]
    decodes = [row for row in attention
               if row["suite"] == "ragged" or
               (row["suite"] == "decode" and sum(row["context_lens"]) >= DECODE_TOKENS)]
    judge("decode at 90 % of the measured read bandwidth", [(row["of_ceiling"], row["name"], percent(row["of_ceiling"]))
                                                           for row in decodes], lambda v: v >= DECODE_SHARE)
    plain = {(shape_key(row), row["block_size"]): row for row in attention if not row["alibi"]}
    for suites, limit in ((("decode", "ragged"), ALIBI_COST["decode"]), (("prefill",), ALIBI_COST["prefill"])):
        costs = []
        for row in attention:
            base = plain.get((shape_key(row), row["block_size"]))
            if row["alibi"] and row["suite"] in suites and base:
                cost = row["median_us"] / base["median_us"] - 1
                costs.append((-cost, row["name"], f"{100 * cost:+.1f} %"))
        judge(f"ALiBi for at most {percent(limit)} in {' and '.join(suites)}", costs, lambda v, most=limit: -v <= most)
    prefills = [(row["flops"] / row["median_us"] * 1e6, row["name"]) for row in attention
                if row["suite"] == "prefill" and row["query_lens"] == [PREFILL_TOKENS] and not row["alibi"]]
    judge("prefill of 8k tokens at 330 TFLOP/s", [(f, name, f"{f / 1e12:.0f}") for f, name in prefills],
          lambda v: v >= PREFILL_FLOPS)
    for peer in sorted({line["peer"] for line in peers}):
        judge(f"no slower than {peer}", [(line["times_faster"], line["case"], f"{line['times_faster']:.2f} times as fast")
                                         for line in peers if line["peer"] == peer], lambda v: v >= 1.0)
    return lines


def peer_table(peers: list[dict]) -> str:
    names = sorted({line["peer"] for line in peers})
    cases: dict = {}
    for line in peers:
        cases.setdefault(line["case"], {})[line["peer"]] = line
    rows = []
    for case, lines in cases.items():
        ours = [line["ours_us"] for line in lines.values()]
        rows.append([case, number(ours[-1])] +
                    [f"{number(lines[name]['peer_us'])} ({lines[name]['times_faster']:.2f}x)" if name in lines else "-"
                     for name in names])
    return table(["case", "Quire µs"] + [f"{name} µs (ours faster)" for name in names], rows)


def performance(lines: list[dict]) -> str:
    rows = last_of(lines, ("row",), "suite", "name")
    peers = last_of(lines, ("peer",), "case", "peer")
    skipped = last_of(lines, ("skipped", "failed", "peer_skipped"), "suite", "name", "peer", "case")
    measured = {(row["suite"], row["name"]) for row in rows}
    devices, machines = last_of(lines, ("device",)), last_of(lines, ("machine",))
    title = devices[-1]["name"] if devices else "a GPU"
    parts = [f"## {title}"]
    if devices and not devices[-1]["gpu"]:
        parts.append("**Not a GPU: the emulator, whose times say nothing.**")
    if machines:
        machine = machines[-1]
        parts.append(f"{machine['date']}, driver {machine['driver']}, commit {machine['commit']}; `bench/gpu/run_all.sh`: "
                     "medians of CUDA graph replays, each after other memory was read past the L2.")
    by_suite = lambda *suites: [row for row in rows if row["suite"] in suites]
    if ceilings := by_suite("ceilings"):
        parts.append(table(["ceiling", "median µs", "GB/s", "TFLOP/s"],
                           [[row["name"], number(row["median_us"]), number(row["bytes"] / row["median_us"] / 1e3),
                             number(row["flops"] / row["median_us"] / 1e6)] for row in ceilings]))
    parts.append("\n".join(goals(rows, peers)))
    for name, suites in (("Decode", ("decode", "ragged")), ("Prefill", ("prefill",))):
        if by_suite(*suites):
            parts += [f"### {name}", attention_table(rows, suites)]
    if others := by_suite("merge", "ops", "linear"):
        parts += ["### The rest of a step",
                  table(["case", "median µs", "predicted (before)", "of ceiling"],
                        [[row["name"], number(row["median_us"]), number(row["predicted_us"]),
                          percent(row["of_ceiling"])] for row in others])]
    if peers:
        parts += ["### Beside others", peer_table(peers)]
    left_out = [line for line in skipped if (line.get("suite"), line.get("name")) not in measured]
    if left_out:
        parts += ["### Left out",
                  "\n".join(f"- {line.get('peer', '')} {line.get('name') or line.get('case')}: {line['reason']}".replace(
                      "-  ", "- ") for line in left_out)]
    return "\n\n".join(parts) + "\n"


# --- docs/gpu-status.md


def status_rows(lines: list[dict]) -> list[list[str]]:
    tests = {line["name"]: line for line in last_of(lines, ("test",), "name")}
    sanitizers = last_of(lines, ("sanitizer",), "tool", "test")
    devices, machines = last_of(lines, ("device",)), last_of(lines, ("machine",))
    on_gpu = bool(machines) and all(device["gpu"] for device in devices)
    rows = []
    for name, (_, test_names) in KERNELS.items():
        runs = [tests.get(f"cuda_{test}_test") for test in test_names]
        if not on_gpu or any(run is None or run["status"] == "skipped" for run in runs):
            rows.append([name, "-", NEVER])
            continue
        passed = sum(run["tests"] - run["failures"] - run["skipped"] for run in runs)
        failed = sum(run["failures"] for run in runs)
        seen = f"{machines[-1]['date']}, {machines[-1]['gpu']}: {passed} tests passed"
        if failed or any(run["status"] == "failed" for run in runs):
            seen += f", **{failed} failed**"
        checked = [line for line in sanitizers if line["test"] in [f"cuda_{test}_test" for test in test_names]]
        if clean := sorted({line["tool"] for line in checked if line["status"] == "passed"}):
            seen += f"; {', '.join(clean)} clean"
        if dirty := sorted({line["tool"] for line in checked if line["status"] == "failed"}):
            seen += f"; **{', '.join(dirty)}: findings**"
        rows.append([name, source_hash(name), seen])
    return rows


def status(lines: list[dict]) -> str:
    return table(["code", "sources", "last seen by a GPU"], status_rows(lines)) + "\n"


def stale(document: str) -> list[str]:
    """What to say of rows of the document's table that are not of these sources."""
    found = {match[1]: (match[2], match[3]) for match in
             re.finditer(r"^\| ([^|]+?) \| ([0-9a-f]{12}|-) \| ([^|]+?) \|$", document, re.MULTILINE)}
    said = []
    for name in KERNELS:
        if name not in found:
            said.append(f"{name}: no row")
        elif found[name][1] == NEVER:
            said.append(f"{name}: never run on a GPU")
        elif found[name][0] != source_hash(name):
            said.append(f"{name}: changed since {found[name][1].split(':')[0]}")
    return said


# --- Predictions


def predictions(lines: list[dict]) -> str:
    rows = [line for line in lines if line["type"] == "prediction" and line["block_size"] == 16 and not line["alibi"]]
    return table(["case", "GB", "TFLOP", "predicted µs"],
                 [[shape_key(row), f"{row['bytes'] / 1e9:.3g}", f"{row['flops'] / 1e12:.3g}",
                   number(row["predicted_us"])] for row in rows]) + "\n"


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    command = commands.add_parser("tables")
    command.add_argument("results", type=pathlib.Path)
    command.add_argument("--out", type=pathlib.Path, required=True)
    command = commands.add_parser("test")
    command.add_argument("name")
    command.add_argument("status", type=int)
    command.add_argument("gtest", type=pathlib.Path)
    command = commands.add_parser("predictions")
    command.add_argument("results", type=pathlib.Path)
    command = commands.add_parser("stale")
    command.add_argument("document", type=pathlib.Path)
    options = parser.parse_args(arguments)
    if options.command == "tables":
        lines = read_lines(options.results)
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "performance.md").write_text(performance(lines))
        (options.out / "gpu-status.md").write_text(status(lines))
    elif options.command == "test":
        print(json.dumps(test_line(options.name, options.status, options.gtest)))
    elif options.command == "predictions":
        print(predictions(read_lines(options.results)), end="")
    else:
        print("\n".join(stale(options.document.read_text())) or "every row is of the sources here")
    return 0


if __name__ == "__main__":
    sys.exit(main())
