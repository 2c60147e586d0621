#!/usr/bin/env python3
"""Measures how long CUTLASS's own example programs take for products of our benchmark, on compute capability 9.0.

    cutlass.py build FOLDER                               downloads CUTLASS (pip, 6 MB) and compiles three examples with
                                                          nvcc, in some minutes; needs no GPU; keeps those in FOLDER
    cutlass.py run FOLDER --json results.jsonl [--seconds N]

`run` reads our times from results.jsonl, the rows of the suite "linear", and appends lines like those of peers.py.
Each program compares its result with a reference first, then repeats the product without reading other memory in
between, which is easier than our way. A program that has several schedules counts with its fastest. Of a mixture,
CUTLASS's time is that of its two products alone: ours also has the routing, the activation and the weighted sum.
"""

import argparse
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from ledger import emit_to, last_of

VERSION = "4.2.0.0"  # of the Python package nvidia-cutlass
WHEEL_SHA256 = "f9599ada45c7bcb6bf53f7d3f0a7d154183e53451c01bfa59eecd37dd4a693f6"
# Programs, each with its source among the examples and what is replaced there. Tiles of the grouped product are for
# 8-bit inputs, and have half of the depth for bf16.
PROGRAMS = {
    "grouped": ("57_hopper_grouped_gemm/57_hopper_grouped_gemm.cu",
                (("cutlass::float_e4m3_t", "cutlass::bfloat16_t"), ("cutlass::float_e5m2_t", "cutlass::bfloat16_t"),
                 ("using ElementC = cutlass::half_t", "using ElementC = cutlass::bfloat16_t"),
                 ("FP8FastAccum", ""), ("_128,_128>;", "_128,_64>;"))),
    "mixed_grouped": ("69_hopper_mixed_dtype_grouped_gemm/69_hopper_int4_bf16_grouped_gemm.cu", ()),
    "mixed": ("55_hopper_mixed_dtype_gemm/55_hopper_int4_bf16_gemm.cu", ()),
}
SCALED = 64  # weights of a scale in the mixed products, the fewest that these take; Q4_0 has 32
# The mixtures of the benchmark: experts, chosen experts, hidden size, inner size.
MIXTURES = {"mixtral 8/2": (8, 2, 4096, 14336), "qwen3 128/8": (128, 8, 2048, 768)}
ITERATIONS = 20


class CannotDo(Exception):
    """The reason why a program has no time for a case."""


def fetch(folder: pathlib.Path) -> pathlib.Path:
    """Downloads CUTLASS into `folder`, which exists, and returns the folder of its sources."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"nvidia-cutlass=={VERSION} --hash=sha256:{WHEEL_SHA256}\n")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes",
                    "--target", folder, "--requirement", wanted], check=True)
    return folder / "cutlass_library/source"


def build(folder: pathlib.Path):
    folder.mkdir(parents=True, exist_ok=True)
    missing = {name: how for name, how in PROGRAMS.items() if not (folder / name).exists()}
    if not missing:
        return
    nvcc = "nvcc" if "CUDA_HOME" not in os.environ else f"{os.environ['CUDA_HOME']}/bin/nvcc"
    search = os.environ["PATH"] + ":/usr/local/cuda/bin"
    with tempfile.TemporaryDirectory() as scratch:
        root = fetch(pathlib.Path(scratch))
        for name, (source, replaced) in missing.items():
            path = root / "examples" / source
            text = path.read_text()
            for old, new in replaced:
                if old not in text:
                    sys.exit(f"cutlass.py: {source}: want {old}")
                text = text.replace(old, new)
            path.write_text(text)
            print(f"compiling {source}", flush=True)
            subprocess.run([nvcc, "-O3", "-DNDEBUG", "-std=c++17", "-arch=sm_90a", "--expt-relaxed-constexpr", "-w",
                            f"-I{root}/include", f"-I{root}/tools/util/include", f"-I{root}/examples/common", path,
                            "-o", folder / name, "-lcuda"], check=True, env=os.environ | {"PATH": search})


def milliseconds(program: pathlib.Path, seconds: float, **options: int) -> float:
    """The least of the average times that a program prints."""
    command = [program, f"--iterations={ITERATIONS}", *(f"--{name}={value}" for name, value in options.items())]
    if not program.exists():
        raise CannotDo(f"no program {program.name}: cutlass.py build makes it")
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise CannotDo(f"no result within {seconds:.0f} s") from None
    times = [float(time) for time in re.findall(r"Avg runtime *: ([0-9.e+-]+) ms", run.stdout)]
    said = [line.strip() for line in (run.stdout + run.stderr).splitlines() if line.strip()]
    if run.returncode != 0 or "Disposition: Failed" in run.stdout:
        raise CannotDo(f"status {run.returncode}: {said[-1] if said else 'no word'}")
    if not times or "Disposition: Passed" not in run.stdout:
        raise CannotDo(said[-1] if said else "no word")
    return min(times)


def products(name: str) -> tuple[str, list[dict]] | None:
    """The program for a row of the benchmark and its calls, or None if CUTLASS has no such product here."""
    if (match := re.fullmatch(r"moe (.+) (BF16|Q4_0) M=(\d+)( wgmma)?", name)) and match[1] in MIXTURES:
        experts, chosen, hidden, inner = MIXTURES[match[1]]
        pairs = int(match[3]) * chosen  # of a token and an expert, equally many for each expert
        groups = min(experts, pairs)
        shared = {"n": math.ceil(pairs / groups), "groups": groups}
        calls = [{"m": 2 * inner, "k": hidden} | shared, {"m": hidden, "k": inner} | shared]
        if match[2] == "BF16":
            return "grouped", calls
        return "mixed_grouped", [call | {"c": SCALED, "mode": 1} for call in calls]
    if match := re.fullmatch(r"linear Q4_0 M=(\d+) N=(\d+) K=(\d+)", name):
        m, n, k = (int(size) for size in match.groups())
        return "mixed", [{"m": m, "n": n, "k": k, "g": SCALED, "mode": 1}]
    return None


def compare(folder: pathlib.Path, rows: list[dict], seconds: float, emit):
    deadline = time.monotonic() + (seconds or math.inf)
    known = {}  # the time of each call, which rows of ours may share
    for row in rows:
        found = products(row["name"])
        if found is None:
            continue
        program, calls = found
        try:
            times = []
            for call in calls:
                key = program, tuple(call.items())
                if key not in known:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise CannotDo(f"the {seconds:g} s are over")
                    known[key] = milliseconds(folder / program, min(left, 60), **call)
                times.append(known[key])
        except CannotDo as error:
            emit({"type": "peer_skipped", "peer": f"cutlass_{program}", "case": row["name"], "reason": str(error)})
            continue
        theirs = sum(times) * 1e3
        emit({"type": "peer", "case": row["name"], "peer": f"cutlass_{program}", "ours_us": row["median_us"],
              "peer_us": theirs, "times_faster": theirs / row["median_us"], "rounds": 1})


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["build", "run"])
    parser.add_argument("folder", type=pathlib.Path, help="folder of the programs")
    parser.add_argument("--json", type=pathlib.Path, help="file of results, to which lines are appended")
    parser.add_argument("--seconds", type=float, default=0, help="begin no product after this time; 0: no limit")
    options = parser.parse_args(arguments)
    if options.command == "build":
        build(options.folder)
        return 0
    if options.json is None:
        parser.error("want --json")
    lines = [json.loads(line) for line in options.json.read_text().splitlines()] if options.json.exists() else []
    rows = last_of(lines, ("row",), "suite", "name")
    with open(options.json, "a") as results:
        compare(options.folder, [row for row in rows if row["suite"] == "linear"], options.seconds, emit_to(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
