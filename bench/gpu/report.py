#!/usr/bin/env python3
"""Turns the results of bench/gpu/run_all.sh into the tables of the docs.

    report.py tables RESULTS.jsonl --out FOLDER         performance.md and gpu-status.md
    report.py failures RESULTS.jsonl                    what failed or did not run, and why
    report.py predictions PREDICTIONS.jsonl             the output of quire-gpu-bench --predict, as a table
    report.py stale docs/gpu-status.md                  kernels that no GPU has run in their present form; exit status
                                                        1 where the document's table does not show that
    report.py renew docs/gpu-status.md [RESULTS.jsonl]  writes that table anew, with the run of RESULTS
    report.py code                                      a hash of each kernel's code, which a run keeps

    One line for RESULTS, of a run whose exit status is STATUS:
    report.py sanitizer TOOL NAME FILTER STATUS GTEST.json   of a test under compute-sanitizer
    report.py ncu KERNEL CASE STATUS NCU.csv                 of a kernel under Nsight Compute

RESULTS has one JSON object on each line. Of lines for the same thing the last counts, so parts may be repeated.
"""

import argparse
import csv
import json
import pathlib
import re
import sys

import ledger
from ledger import last_of, table

# The performance targets of the kernels: share of the read ceiling, cost of ALiBi, FLOP/s.
DECODE_SHARE, DECODE_TOKENS = 0.85, 256 * 1024
ALIBI_COST = {"decode": 0.02, "ragged": 0.02, "prefill": 0.05}
# And of a whole server: share of the bound of a step and of the time, seconds.
ENGINE_STREAMS, STEP_SHARE, PACKED_SHARE, BUSY_SHARE, READY_SECONDS = (1, 16, 64), 0.85, 0.75, 0.95, 10
PREFILL_FLOPS, WGMMA_FLOPS, PREFILL_TOKENS = 240e12, 500e12, 8192
SHARED_TIMES, FORKS, FORK_PREFIX = 3.0, 16, 4096
# How many times as fast decodes of these keys are that skip far ones.
SKIP_TIMES, SKIP_SEQS, SKIP_TOKENS = 1.7, 64, 8192
# How many times as fast a decode is with a cache of half the bytes, at 32k tokens.
FP8_TIMES, FP8_TOKENS = 1.7, 32768


def read_lines(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def number(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


# --- Nsight Compute


def ncu_line(kernel: str, case: str, status: int, path: pathlib.Path) -> dict:
    """The metrics of one launch, from the output of `ncu --csv`. Its status is "skipped" when the system does not let
    us read the GPU's counters."""
    text = path.read_text() if path.exists() else ""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    metrics = {f"{row['Section Name']}: {row['Metric Name']}": f"{row['Metric Value']} {row['Metric Unit']}".strip()
               for row in csv.DictReader(lines) if row.get("Metric Name")}
    line = {"type": "ncu", "kernel": kernel, "case": case, "status": "passed", "reason": "", "metrics": metrics}
    if not metrics:
        said = [said for said in text.splitlines() if said.startswith("==ERROR==")]
        line["reason"] = said[0].removeprefix("==ERROR== ") if said else f"no metrics, exit status {status}"
        line["status"] = "skipped" if "ERR_NVGPUCTRPERM" in text else "failed"
    return line


NCU_COLUMNS = {"duration": "GPU Speed Of Light Throughput: Duration",
               "memory": "GPU Speed Of Light Throughput: Memory Throughput",
               "DRAM": "GPU Speed Of Light Throughput: DRAM Throughput",
               "SM": "GPU Speed Of Light Throughput: Compute (SM) Throughput",
               "L2 hits": "Memory Workload Analysis: L2 Hit Rate"}


def ncu_table(lines: list[dict]) -> str:
    return table(["kernel", "case", *NCU_COLUMNS],
                 [[line["kernel"], line["case"], *(line["metrics"].get(name, "-") for name in NCU_COLUMNS.values())]
                  for line in lines])


# --- docs/performance.md


def shape_key(row: dict) -> str:
    """The case without the fields in which its variants differ."""
    return re.sub(r" bs\d+| alibi", "", row["name"])


def attention_table(rows: list[dict], suites: tuple) -> str:
    """One row for each case and block size, with ALiBi in a column beside."""
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
    decodes = [row for row in attention if not row.get("fp8") and
               (row["suite"] == "ragged" or
                (row["suite"] == "decode" and sum(row["context_lens"]) >= DECODE_TOKENS))]
    judge(f"decode at {percent(DECODE_SHARE)} of the measured read bandwidth",
          [(row["of_ceiling"], row["name"], percent(row["of_ceiling"])) for row in decodes], lambda v: v >= DECODE_SHARE)
    plain = {(shape_key(row), row["block_size"]): row for row in attention if not row["alibi"]}
    for suites, limit in ((("decode", "ragged"), ALIBI_COST["decode"]), (("prefill",), ALIBI_COST["prefill"])):
        costs = []
        for row in attention:
            base = plain.get((shape_key(row), row["block_size"]))
            if row["alibi"] and row["suite"] in suites and base:
                cost = row["median_us"] / base["median_us"] - 1
                costs.append((-cost, row["name"], f"{100 * cost:+.1f} %"))
        judge(f"ALiBi for at most {percent(limit)} in {' and '.join(suites)}", costs, lambda v, most=limit: -v <= most)
    faster = []
    for row in attention:
        base = plain.get((shape_key(row).removesuffix(" fp8"), row["block_size"]))
        if row.get("fp8") and row["suite"] == "decode" and max(row["context_lens"]) == FP8_TOKENS and base and \
                sum(row["context_lens"]) >= DECODE_TOKENS:
            times = base["median_us"] / row["median_us"]
            faster.append((times, row["name"], f"{times:.2f}"))
    judge(f"decode of 32k tokens {FP8_TIMES} times as fast with an fp8 cache", faster, lambda v: v >= FP8_TIMES)
    for wgmma, aim in ((False, PREFILL_FLOPS), (True, WGMMA_FLOPS)):
        prefills = [(row["flops"] / row["median_us"] * 1e6, row["name"]) for row in attention
                    if row["suite"] == "prefill" and row["query_lens"] == [PREFILL_TOKENS] and not row["alibi"]
                    and row.get("wgmma", False) == wgmma and not row.get("fp8") and row["head_dim"] == 128]
        judge(f"prefill of 8k tokens at {aim / 1e12:.0f} TFLOP/s{' on wgmma' if wgmma else ''}",
              [(f, name, f"{f / 1e12:.0f}") for f, name in prefills], lambda v, least=aim: v >= least)
    forks = {row["name"]: row for row in rows if row["suite"] == "shared"}
    judge(f"{FORKS} forks of {FORK_PREFIX} keys {SHARED_TIMES:.0f} times as fast together",
          [(row["median_us"] / forks[name + " together"]["median_us"], name,
            f"{row['median_us'] / forks[name + ' together']['median_us']:.2f} times as fast")
           for name, row in forks.items() if name + " together" in forks
           and len(row["context_lens"]) == FORKS and row["prefix"] == FORK_PREFIX], lambda v: v >= SHARED_TIMES)
    skip = {row["name"]: row for row in rows if row["suite"] == "skip"}
    judge(f"{SKIP_SEQS} decodes of {SKIP_TOKENS} keys with ALiBi {SKIP_TIMES} times as fast without far ones",
          [(row["median_us"] / skip[name + " skipping"]["median_us"], name,
            f"{row['median_us'] / skip[name + ' skipping']['median_us']:.2f} times as fast")
           for name, row in skip.items() if name + " skipping" in skip
           and row["context_lens"] == [SKIP_TOKENS] * SKIP_SEQS], lambda v: v >= SKIP_TIMES)
    for peer in sorted({line["peer"] for line in peers}):
        judge(f"no slower than {peer}", [(line["times_faster"], line["case"], f"{line['times_faster']:.2f} times as fast")
                                         for line in peers if line["peer"] == peer], lambda v: v >= 1.0)
    return lines


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def engine_table(lines: list[dict]) -> str:
    timed = [line for line in lines if "seconds" in line]
    return table(["model", "case", "ms", "predicted (before)", "bound ms", "of bound", "tokens/s", "GPU busy"],
                 [[line["model"], line["case"], milliseconds(line["seconds"]),
                   milliseconds(line["predicted_seconds"]) if "predicted_seconds" in line else "-",
                   milliseconds(line["bound_seconds"]) if "bound_seconds" in line else "-",
                   percent(line["of_bound"]) if "of_bound" in line else "-",
                   f"{line['tokens_per_second']:.0f}" if "tokens_per_second" in line else "-",
                   percent(line["busy"]) if line.get("busy") is not None else "-"] for line in timed])


def engine_goals(lines: list[dict]) -> list[str]:
    """One line for each aim of a whole server: met or not, and what was measured."""
    measured = {(line["model"], line["case"]): line for line in lines}
    said = []

    def judge(aim: str, model: str, case: str, value, met, text):
        line = measured.get((model, case))
        if line is None or value(line) is None:
            said.append(f"- {aim}: not measured.")
        else:
            said.append(f"- {aim}: {'met' if met(value(line)) else '**not met**'}; {text(value(line))}.")

    for streams in ENGINE_STREAMS:
        judge(f"a bf16 step of {streams} streams at {percent(STEP_SHARE)} of its bound", "bf16", f"decode {streams}",
              lambda line: line["of_bound"], lambda v: v >= STEP_SHARE, percent)
    judge(f"packed weights at {percent(PACKED_SHARE)} of their bytes' bound, one stream", "q4_k", "decode 1",
          lambda line: line["of_bound"], lambda v: v >= PACKED_SHARE, percent)
    judge(f"the GPU busy for {percent(BUSY_SHARE)} of the time, 64 streams", "bf16", "decode 64",
          lambda line: line.get("busy"), lambda v: v >= BUSY_SHARE, percent)
    judge(f"ready {READY_SECONDS} s after the start, 16 GB of weights in the page cache", "bf16", "start",
          lambda line: line["seconds"], lambda v: v <= READY_SECONDS, lambda v: f"{v:.1f} s")
    compared = [key for key, line in measured.items() if "margin" in line]
    for model, case in compared or [("", "the CPU's greedy answers")]:
        judge(f"{model}, {case}".removeprefix(", "), model, case,
              lambda line: (line["equal"], line["of"], line["largest_difference"], line["margin"]), lambda v: v[0] == v[1],
              lambda v: f"{v[0]} of {v[1]} answers, the largest difference {v[2]:.2g} of {v[3]:.2g}")
    judge("with --deterministic, the same tokens alone as among others", "bf16 --deterministic", "alone and among others",
          lambda line: (line["equal"], line["of"]), lambda v: v[0] == v[1], lambda v: f"{v[0]} of {v[1]} answers")
    return said


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


def wrote(line: dict) -> str:
    """The phase that wrote a line, if it is one that may be skipped."""
    if line["type"] != "engine":
        return line["type"]
    return "soak" if line["model"] == "soak" else "choices" if "--" in line["model"] else "engine"


def performance(lines: list[dict]) -> str:
    rows = last_of(lines, ("row",), "suite", "name")
    peers = last_of(lines, ("peer",), "case", "peer")
    skipped = last_of(lines, ("skipped", "failed", "peer_skipped", "engine_failed"), "suite", "name", "peer", "model",
                      "case")
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
    for name, suites in (("Decode", ("decode", "ragged")), ("Mixed steps", ("mixed",)),
                         ("Shared prefixes", ("shared",)), ("Prefill", ("prefill",))):
        if by_suite(*suites):
            parts += [f"### {name}", attention_table(rows, suites)]
    if others := by_suite("skip", "merge", "ops", "linear"):
        parts += ["### The rest of a step",
                  table(["case", "median µs", "predicted (before)", "of ceiling"],
                        [[row["name"], number(row["median_us"]), number(row["predicted_us"]),
                          percent(row["of_ceiling"])] for row in others])]
    if peers:
        parts += ["### Beside others", peer_table(peers)]
    if engine := last_of(lines, ("engine",), "model", "case"):
        parts += ["### A whole server", "\n".join(engine_goals(engine)), engine_table(engine)]
    profiles = last_of(lines, ("ncu",), "kernel", "case")
    if profiled := [line for line in profiles if line["metrics"]]:
        parts += ["### By Nsight Compute", ncu_table(profiled)]
    measured |= {(line["model"], line["case"]) for line in lines if line["type"] == "engine"}
    of = lambda line: (line["model"], line["case"]) if "model" in line else (line.get("suite"), line.get("name"))
    left_out = [line for line in skipped if of(line) not in measured]
    left_out += [line | {"peer": f"ncu {line['kernel']}"} for line in profiles if not line["metrics"]]
    left_out += [line | {"name": line["phase"]} for line in last_of(lines, ("phase_skipped",), "phase")
                 if not any(wrote(other) == line["phase"] for other in lines)]
    if left_out:
        parts += ["### Left out",
                  "\n".join(f"- {line.get('peer') or line.get('model', '')} {line.get('name') or line.get('case')}: "
                            f"{line['reason']}".replace("-  ", "- ") for line in left_out)]
    return "\n\n".join(parts) + "\n"


# --- What failed


def failures(lines: list[dict]) -> list[str]:
    """One line for each test, case and phase that failed or did not run: its name and the reason."""
    said = []
    for line in last_of(lines, ("test",), "name"):
        if line["status"] != "passed":
            said.append(f"{line['name']}: {'; '.join(line['reasons']) or line['status']}")
    for line in last_of(lines, ("sanitizer",), "tool", "test", "filter"):
        if line["status"] != "passed":
            said.append(f"{line['tool']} {line['test']} {line['filter']}: {line['reason']}")
    for line in last_of(lines, ("engine", "engine_failed"), "model", "case"):
        if line["type"] == "engine_failed":
            said.append(f"{line.get('model', 'server')} {line['case']}: {line['reason']}")
        elif line.get("equal") != line.get("of"):
            said.append(f"{line['model']} {line['case']}: {line['equal']} of {line['of']} are equal")
    for line in last_of(lines, ("failed",), "suite", "name"):
        said.append(f"{line['suite']} {line['name']}: {line['reason']}")
    for line in last_of(lines, ("phase_skipped",), "phase"):
        said.append(f"{line['phase']}: {line['reason']}")
    return said


# --- Predictions


def predictions(lines: list[dict]) -> str:
    """One row for each case, one column for each number of heads. Block size and ALiBi do not change a prediction."""
    rows = [line for line in lines if line["type"] == "prediction" and line["block_size"] == 16 and not line["alibi"]]
    heads = list(dict.fromkeys(f"{row['num_heads']}/{row['num_kv_heads']}" for row in rows))
    cases: dict = {}
    for row in rows:
        case, _, shape = shape_key(row).partition(f" {row['num_heads']}/{row['num_kv_heads']} ")
        cases.setdefault((case, shape), {})[f"{row['num_heads']}/{row['num_kv_heads']}"] = number(row["predicted_us"])
    return table(["case", *(f"{name} µs" for name in heads)],
                 [[f"{case} {shape}", *(times.get(name, "-") for name in heads)]
                  for (case, shape), times in cases.items()]) + "\n"


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")

    def add(name: str, *texts: str):
        command = commands.add_parser(name)
        for text in texts:
            command.add_argument(text)
        command.add_argument("status", type=int)
        command.add_argument("path", type=pathlib.Path)

    add("sanitizer", "tool", "name", "filter")
    add("ncu", "kernel", "case")
    command = commands.add_parser("tables")
    command.add_argument("results", type=pathlib.Path)
    command.add_argument("--out", type=pathlib.Path, required=True)
    command = commands.add_parser("failures")
    command.add_argument("results", type=pathlib.Path)
    command = commands.add_parser("predictions")
    command.add_argument("results", type=pathlib.Path)
    command = commands.add_parser("stale")
    command.add_argument("document", type=pathlib.Path)
    commands.add_parser("code")
    command = commands.add_parser("renew")
    command.add_argument("document", type=pathlib.Path)
    command.add_argument("results", type=pathlib.Path, nargs="?")
    options = parser.parse_args(arguments)
    if options.command == "tables":
        lines = read_lines(options.results)
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "performance.md").write_text(performance(lines))
        (options.out / "gpu-status.md").write_text(ledger.status(lines))
    elif options.command == "sanitizer":
        print(json.dumps(ledger.sanitizer_line(options.tool, options.name, options.filter, options.status,
                                               options.path)))
    elif options.command == "ncu":
        print(json.dumps(ncu_line(options.kernel, options.case, options.status, options.path)))
    elif options.command == "failures":
        print("\n".join(failures(read_lines(options.results)) or ["nothing failed"]))
    elif options.command == "predictions":
        print(predictions(read_lines(options.results)), end="")
    elif options.command == "code":
        print(json.dumps(ledger.hashes()))
    elif options.command == "renew":
        lines = read_lines(options.results) if options.results else []
        options.document.write_text(ledger.renew(options.document.read_text(), lines))
    else:
        said, honest = ledger.stale(options.document.read_text())
        print("\n".join(said) or "a GPU has run every kernel as it is")
        if not honest:
            print(f"The table does not say so: {ledger.RENEW}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
