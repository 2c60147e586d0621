#!/usr/bin/env python3
"""Plants bugs in CUDA kernels and reports which of them the emulator's tests see.

    mutate.py --build build/release [--build build/tsan] [--build build/asan] [--only TEXT] [--jobs N] [--list]

Mutants are generated (each barrier, wait, fence, commit, arrival and __syncwarp dropped, each wait one
group laxer, each comparison of a mask or a bound moved by one or taken for true) and planted by name (PLANTED).
Each is built against the libraries of the first build folder and its tests run; one that survives there goes on to
the next folder. The folders must hold the test targets, built. Survivors are listed; those in EQUIVALENT change
nothing that a test could see, and say why. Exit status 1 when any other survives.
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
HERE = "tests/kernels/cuda"
CUDA = "kernels/cuda"
# Kernel source -> what to compile anew and the test that is to see its bugs, one pair after another.
KERNELS = {
    f"{HERE}/tile_product.cuh": [(f"{HERE}/tile_product_test.cu", "cuda_tile_product_test")],
    f"{HERE}/hopper_prefill.cuh": [(f"{HERE}/hopper_prefill_test.cu", "cuda_hopper_prefill_test")],
    f"{CUDA}/attn_decode.cuh": [(f"{CUDA}/paged_attention.cu", "cuda_paged_attention_test")],
    f"{CUDA}/attn_merge.cuh": [(f"{HERE}/attn_merge_test.cu", "cuda_attn_merge_test"),
                               (f"{CUDA}/paged_attention.cu", "cuda_paged_attention_test")],
    f"{CUDA}/attention_plan.cc": [(f"{CUDA}/attention_plan.cc", "cuda_attention_plan_test")],
    f"{CUDA}/attention_reference.cuh": [(f"{CUDA}/attention_reference.cu", "cuda_attention_reference_test")],
    f"{CUDA}/rows.cuh": [(f"{CUDA}/norm.cu", "cuda_step_ops_test")],
}
for step_op, unit in (("argmax", "argmax"), ("copy_blocks", "copy_blocks"), ("embed", "embed"),
                      ("gather_rows", "gather_rows"), ("linear_epilogue", "linear"), ("norm", "norm"),
                      ("qkv_post", "qkv_post")):
    KERNELS[f"{CUDA}/{step_op}.cuh"] = [(f"{CUDA}/{unit}.cu", "cuda_step_ops_test")]
ATTENTION = f"{CUDA}/attn_decode.cuh"
MERGE = f"{CUDA}/attn_merge.cuh"
PLAN = f"{CUDA}/attention_plan.cc"
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
    ("swizzle left out where K is read", ATTENTION, "SwizzledChunk<kChunks>(row, k * 2 + lane / 8 % 2)",
     "(k * 2 + lane / 8 % 2)"),
    ("swizzle left out where V is read", ATTENTION, "SwizzledChunk<kChunks>(row, c + lane / 16)", "(c + lane / 16)"),
    ("swizzle left out where tiles are written", ATTENTION, "SwizzledChunk<kChunks>(row, chunk) * 8", "chunk * 8"),
    ("the next stage's tile", ATTENTION, "k_stages + step % kStages * Shape::kTileElements;\n      const",
     "k_stages + (step + 1) % kStages * Shape::kTileElements;\n      const"),
    ("a stage filled that is still read", ATTENTION, "if (step + kStages - 1 < num_tiles) load(step + kStages - 1);",
     "if (step + kStages - 1 < num_tiles) load(step + kStages - 1 + (step == 1));"),
    ("tiles at the ends not masked", ATTENTION, "if (masked) {", "if (false) {"),
    ("K taken for V", ATTENTION, "head_kv + p.value_offset + from", "head_kv + from"),
    ("another sequence's block table", ATTENTION, "int64_t{item.seq} * p.max_blocks", "int64_t{0}"),
    ("another kv head's keys", ATTENTION, "p.kv + item.kv_head * p.head_stride", "p.kv"),
    ("block table read past the sequence", ATTENTION, "if (valid) {", "if (key >= 0) {"),
    ("keys past the end not zero-filled", ATTENTION, "CpAsync<16>(v_tile + to, head_kv + p.value_offset + from, valid)",
     "CpAsync<16>(v_tile + to, head_kv + p.value_offset + from, true)"),
    ("32 bits for a place in the cache", ATTENTION,
     "table[key >> p.log2_block_size] * p.block_stride + slot * kHeadDim",
     "static_cast<int>(table[key >> p.log2_block_size] * p.block_stride) + slot * kHeadDim"),
    ("the first head's slope", ATTENTION, "p.slopes[head]", "p.slopes[0]"),
    ("slopes of the group, not of the head", ATTENTION, "p.slopes[head]", "p.slopes[row - query * p.group]"),
    ("slopes not in base 2", ATTENTION, "p.slopes[head] * kLog2E", "p.slopes[head]"),
    ("bias by the position of the key alone", ATTENTION, "static_cast<float>(distance);",
     "static_cast<float>(lane_key + n * 8 + i % 2);"),
    ("bias before the soft cap", ATTENTION, "float x = s[n][i] * p.scale;",
     "float x = (s[n][i] + (p.soft_cap > 0.0f ? slope[i / 2] * static_cast<float>(distance) : 0.0f)) * p.scale;"),
    ("row maximum of two lanes in four", ATTENTION, "        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));\n", ""),
    ("row sum of two lanes in four", ATTENTION, "      sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);\n", ""),
    ("sums not corrected for a new maximum", ATTENTION, "        sum[h] *= rescale[h];\n", ""),
    ("output not corrected for a new maximum", ATTENTION, "o[c][i] *= rescale[i / 2];", ";"),
    ("NaN where a row has seen no key", ATTENTION, "maximum[h] == -INFINITY ? 0.0f : maximum[h];", "maximum[h];"),
    ("warps added without their weights", ATTENTION, "total.x += weight[w] * x.x;", "total.x += x.x;"),
    ("a sink in each part", ATTENTION, "item.partial < 0 && p.sinks != nullptr", "p.sinks != nullptr"),
    ("a sink not in base 2", ATTENTION, "p.sinks[head] * kLog2E;", "p.sinks[head];"),
    ("log-sum-exp in base e", ATTENTION, "maximum[h] + Log2(sum[h])", "maximum[h] + 0.6931472f * Log2(sum[h])"),
    ("log-sum-exp without the maximum", ATTENTION, "maximum[h] + Log2(sum[h])", "Log2(sum[h])"),
    ("parts merged without their weights", MERGE, "o.x += weight * x.x;", "o.x += x.x * inverse;"),
    ("merge without the sink", MERGE, "p.sinks != nullptr ? Exp2(p.sinks[head] * kLog2E - maximum) : 0.0f", "0.0f"),
    ("merge of the first head's sink", MERGE, "p.sinks[head] * kLog2E - maximum", "p.sinks[0] * kLog2E - maximum"),
    ("merged rows of another head", MERGE, "(merge.first_row + row) % p.group", "row % p.group"),
]

# Survivors that are no bugs: texts that the file and the mutant's name all hold, and why.
EQUIVALENT = [
    (("FenceMbarrierInit",), "the emulator's mbarriers need no fence between their init and TMA; ptxas and a GPU "
                             "are the judges"),
    (("GridDependencyWait",), "the emulator runs one kernel after another; a GPU is the judge"),
    (("attn_decode", "if (step < num_tiles) load(step);"), "loads of keys that no row sees, zeros"),
    (("attn_decode", "if (step + kStages - 1 < num_tiles)"), "loads of keys that no row sees, zeros"),
    (("attn_decode", "const bool masked ="), "a mask where none is needed"),
    (("attn_decode", "tile_begin + kKeys - 1 > first_position"), "a mask where none is needed"),
    (("attn_decode", "last_position - tile_begin >= p.window"), "a mask where none is needed"),
    (("qkv_post", "'>' becomes '>='", "x > p.clip"), "a number that equals the limit becomes the limit"),
    (("qkv_post", "'<' becomes '<='", "x < -p.clip"), "a number that equals the limit becomes the limit"),
    (("argmax", "'<' becomes '<='", "b.index < a.index"), "a candidate and itself"),
    (("argmax", "lane < blockDim.x / kWarpLanes"), "shared memory past the warps' is NaN, which never wins"),
    (("rows", "struct alignas"), "a stricter alignment of vectors that have it"),
]


def reason_of(mutant):
    text = f"{mutant.path} {mutant.name}"
    return next((why for texts, why in EQUIVALENT if all(part in text for part in texts)), None)


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


def compile_words(build: pathlib.Path, unit: str):
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if entry["file"].endswith(f"/{unit}"):
            words = shlex.split(entry["command"])
            return words[1:] if words[0].endswith("ccache") else words
    sys.exit(f"{build}: does not build {unit}")


def link_line(build: pathlib.Path, target: str):
    commands = subprocess.run(["ninja", "-C", str(build), "-t", "commands", "-s", f"tests/{target}"],
                              capture_output=True, text=True, check=True).stdout.strip().splitlines()
    if not commands:
        sys.exit(f"{build}: does not link tests/{target}")
    return commands[-1]


def run_test(build: pathlib.Path, mutant: Mutant, unit: str, target: str, scratch: pathlib.Path) -> str:
    """What one test in `build` says of the mutant; '' when it passes."""
    shadow = scratch / mutant.path
    shadow.parent.mkdir(parents=True, exist_ok=True)
    shadow.write_text(mutant.text)
    words = compile_words(build, unit)
    # The shadow comes first on the include path; the unit itself is a copy, so that it looks there.
    source = shadow
    if unit != mutant.path:
        source = scratch / pathlib.Path(unit).name
        source.write_text((ROOT / unit).read_text())
    output = words[words.index("-o") + 1]
    words = [words[0], f"-I{scratch}"] + words[1:] + ["-O1"]
    words[words.index("-o") + 1] = str(scratch / "unit.o")
    words[words.index("-c") + 1] = str(source)
    if "-MF" in words:
        words[words.index("-MF") + 1] = str(scratch / "unit.d")
    compiled = subprocess.run(words, cwd=build, capture_output=True, text=True)
    if compiled.returncode != 0:
        return "not C++"
    line = link_line(build, target)
    # A unit of a library comes before it, and is taken instead of what the library has.
    line = line.replace(output, "") if output in line else line
    line = re.sub(rf"-o tests/{target}\b", f"{scratch}/unit.o -o {scratch}/test", line)
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


def verdict(builds, mutant: Mutant):
    """The first build that sees the mutant and what it says; ('', '') when none does."""
    for build in builds:
        for unit, target in KERNELS[mutant.path]:
            with tempfile.TemporaryDirectory() as folder:
                said = run_test(build, mutant, unit, target, pathlib.Path(folder))
            if said:
                return build.name, said
    return "", ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", action="append", type=pathlib.Path, default=[])
    parser.add_argument("--only", default="", help="mutants whose name or file contains this")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="name the mutants and stop")
    args = parser.parse_args()
    chosen = [m for m in mutants() if args.only in m.name or args.only in m.path]
    if args.list:
        for mutant in chosen:
            print(f"{pathlib.Path(mutant.path).name}: {mutant.name}")
        return 0
    builds = [build.resolve() for build in args.build]
    survivors = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for mutant, (build, said) in zip(chosen, pool.map(lambda m: verdict(builds, m), chosen)):
            why = reason_of(mutant)
            survivors += not said and why is None
            seen = f"{build}: {said}" if said else f"no difference: {why}" if why else "SURVIVES"
            print(f"{pathlib.Path(mutant.path).name:22} {mutant.name:88.88} {seen}", flush=True)
    print(f"{len(chosen)} mutants, {survivors} survive unexplained")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
