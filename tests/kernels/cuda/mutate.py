#!/usr/bin/env python3
"""Plants bugs in CUDA kernels and reports which of them the emulator's tests see.

    mutate.py --build build/release [--build build/tsan] [--build build/asan] [--only TEXT] [--list]

Mutants are generated (each barrier, wait, fence, commit, arrival and __syncwarp dropped, each wait one
group laxer, each comparison of a mask or a bound moved by one or taken for true) and planted by name (PLANTED).
Each is built against the libraries of the first build folder and its test run; one that survives there goes on to
the next folder. The folders must hold the test targets, built. Survivors are listed; those in EQUIVALENT change
nothing that a test could see, and say why. Exit status 1 when any other survives.
"""

import argparse
import collections
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
HERE = "tests/kernels/cuda"
# Kernel source -> the test that is to see its bugs.
KERNELS = {
    f"{HERE}/tile_product.cuh": "cuda_tile_product_test",
    f"{HERE}/hopper_prefill.cuh": "cuda_hopper_prefill_test",
}
PREFILL = f"{HERE}/hopper_prefill.cuh"
Mutant = collections.namedtuple("Mutant", "name path text")

# (name, file, what to replace, with what): bugs that no rule generates.
PLANTED = [
    ("keys released before wgmma has read them", PREFILL,
     "    WgmmaWait<0>();\n    if (thread == 0) MbarrierArrive(&shared.keys_empty[stage]);",
     "    if (thread == 0) MbarrierArrive(&shared.keys_empty[stage]);\n    WgmmaWait<0>();"),
    ("wrong first parity", PREFILL, "(i / kPrefillStages + 1) & 1", "(i / kPrefillStages) & 1"),
    ("half the bytes expected", PREFILL, "MbarrierArriveExpect(full, kTileBytes)",
     "MbarrierArriveExpect(full, kHalfTileBytes)"),
    ("one of two arrivals missing", PREFILL, "if (thread == 0) MbarrierArrive(&shared.keys_empty",
     "if (threadIdx.x == 0) MbarrierArrive(&shared.keys_empty"),
    ("leading and stride of V swapped", PREFILL, "kHalfTileBytes, 1024)", "1024, kHalfTileBytes)"),
    ("K advances by half a step", PREFILL, "k % 4 * 32;", "k % 4 * 16;"),
    ("swizzle of Q left out", PREFILL, "((chunk % 8) ^ (row & 7)) * 16", "(chunk % 8) * 16"),
    ("another head's slope", PREFILL, "packed_row[h] % kGroup] * kLog2E", "0] * kLog2E"),
    ("block table read past the sequence", PREFILL,
     "first_block + b < num_blocks ? blocks[first_block + b] : -1", "blocks[first_block + b]"),
    ("sums not corrected for a new maximum", PREFILL, "      sums[j] *= correction[h];\n", ""),
]

# Survivors that are no bugs, by name, and why.
EQUIVALENT = {
    "FenceMbarrierInit": "the emulator's mbarriers need no fence between their init and TMA; ptxas and a GPU "
                         "are the judges",
}

DROPPED = re.compile(
    r"^\s*(?:if \([^()]*\) )?(__syncthreads|__syncwarp|CpAsyncCommit|CpAsyncWait<\w+>|NamedBarrier|FenceAsyncProxy|"
    r"FenceMbarrierInit|MbarrierInit|MbarrierWait|MbarrierArrive|MbarrierArriveExpect|WgmmaFence|WgmmaCommit|"
    r"WgmmaWait<\w+>|GridDependencyWait)\(.*\);", re.MULTILINE)
LAXER = re.compile(r"\b(CpAsyncWait|WgmmaWait)<(\d+)>")
# Comparisons that decide what is read, written or masked; loops and preprocessor lines are not among them.
COMPARISON = re.compile(r" (<|<=|>|>=) ")


def generated(path: str, text: str):
    """Mutants of one kernel by rule."""
    def line_of(position):
        return text.count("\n", 0, position) + 1

    for match in DROPPED.finditer(text):
        name = match.group(1)
        # An empty statement in its place: what it depended on stays.
        begin = match.start(1)
        yield Mutant(f"{name} dropped, line {line_of(begin)}", path, text[:begin] + ";" + text[match.end():])
    for match in LAXER.finditer(text):
        laxer = f"{match.group(1)}<{int(match.group(2)) + 1}>"
        yield Mutant(f"{laxer} for {match.group(0)}, line {line_of(match.start())}", path,
                     text[:match.start()] + laxer + text[match.end():])
    for match in COMPARISON.finditer(text):
        number = line_of(match.start())
        line = text.splitlines()[number - 1]
        if re.match(r"\s*(for|#|//|static_assert|template)", line) or "//" in line[:line.find(match.group(0))]:
            continue
        other = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}[match.group(1)]
        yield Mutant(f"'{match.group(1)}' becomes '{other}', line {number}: {line.strip()}", path,
                     text[:match.start(1)] + other + text[match.end(1):])
        # The whole comparison true: || binds weaker than any operand of it, so only inside && or alone.
        yield Mutant(f"'{match.group(1)}' always true, line {number}: {line.strip()}", path,
                     text[:match.start(1)] + f"{match.group(1)} 0 || true || 0 {match.group(1)}"
                     + text[match.end(1):])


def mutants():
    for path in KERNELS:
        yield from generated(path, (ROOT / path).read_text())
    for name, path, old, new in PLANTED:
        text = (ROOT / path).read_text()
        if text.count(old) < 1:
            sys.exit(f"planted bug '{name}': its place is gone from {path}")
        yield Mutant(name, path, text.replace(old, new, 1))


def commands(build: pathlib.Path, target: str):
    """How `build` compiles and links the test, as (compile words, link line)."""
    source = f"{target.removeprefix('cuda_').removesuffix('_test')}_test.cu"
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if entry["file"].endswith(f"{HERE}/{source}"):
            words = shlex.split(entry["command"])
            break
    else:
        sys.exit(f"{build}: does not build {source}")
    link = subprocess.run(["ninja", "-C", str(build), "-t", "commands", "-s", target], capture_output=True,
                          text=True, check=True).stdout.strip().splitlines()[-1]
    return words, link


def verdict(build: pathlib.Path, mutant: Mutant, scratch: pathlib.Path) -> str:
    """What the test in `build` says of the mutant; '' when it passes."""
    target = KERNELS[mutant.path]
    compile_words, link = commands(build, target)
    shadow = scratch / mutant.path
    shadow.parent.mkdir(parents=True, exist_ok=True)
    shadow.write_text(mutant.text)
    test = scratch / pathlib.Path(compile_words[-1]).name
    test.write_text(pathlib.Path(compile_words[compile_words.index("-c") + 1]).read_text())
    output = compile_words[compile_words.index("-o") + 1]
    if compile_words[0].endswith("ccache"):
        compile_words = compile_words[1:]
    # The shadow comes first on the include path; the test itself is a copy, so that it looks there.
    words = [compile_words[0], f"-I{scratch}"] + compile_words[1:]
    words[words.index("-o") + 1] = str(scratch / "test.o")
    words[words.index("-c") + 1] = str(test)
    if "-MF" in words:
        words[words.index("-MF") + 1] = str(scratch / "test.d")
    compiled = subprocess.run(words, cwd=build, capture_output=True, text=True)
    if compiled.returncode != 0:
        return "not C++"
    line = link.replace(output, str(scratch / "test.o"))
    line = re.sub(rf"-o tests/{target}\b", f"-o {scratch}/test", line)
    subprocess.run(line, cwd=build, shell=True, capture_output=True, check=True)
    try:
        run = subprocess.run([str(scratch / "test"), "--gtest_brief=1"], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "runs for ever"
    if run.returncode == 0:
        return ""
    said = run.stdout + run.stderr
    for kind in ("data race", "AddressSanitizer", "runtime error"):
        if kind in said:
            return kind
    fault = re.search(r"emulator: (.*?):? block", said)
    return fault.group(1) if fault else "wrong result" if run.returncode == 1 else f"status {run.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", action="append", type=pathlib.Path, default=[])
    parser.add_argument("--only", default="", help="mutants whose name or file contains this")
    parser.add_argument("--list", action="store_true", help="name the mutants and stop")
    args = parser.parse_args()
    chosen = [m for m in mutants() if args.only in m.name or args.only in m.path]
    if args.list:
        for mutant in chosen:
            print(f"{pathlib.Path(mutant.path).name}: {mutant.name}")
        return 0
    survivors = []
    for mutant in chosen:
        with tempfile.TemporaryDirectory() as folder:
            for build in args.build:
                said = verdict(build.resolve(), mutant, pathlib.Path(folder))
                if said:
                    break
        why = next((reason for name, reason in EQUIVALENT.items() if name in mutant.name), None)
        if not said and why is None:
            survivors.append(mutant)
        seen = f"{build.name}: {said}" if said else f"no difference: {why}" if why else "SURVIVES"
        print(f"{pathlib.Path(mutant.path).name:22} {mutant.name:88.88} {seen}", flush=True)
    print(f"{len(chosen)} mutants, {len(survivors)} survive unexplained")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
