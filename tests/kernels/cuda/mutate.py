#!/usr/bin/env python3
"""Plants bugs in CUDA kernels and reports which of them the emulator's tests see.

    mutate.py --build build/release [--build build/tsan] [--build build/asan] [--only TEXT] [--again LOG] [--jobs N]
    mutate.py --list

Mutants are generated (each barrier, wait, fence, commit, arrival and __syncwarp dropped, each wait one group laxer,
each comparison of a mask or a bound moved by one or taken for true, each std::min and std::max one of its two) and
planted by name (planted_bugs.py). Each is built against the libraries of a build folder and its tests run; one that
survives there goes on to the next folder. The folders must hold the test targets, built. Exit status 1 when a mutant
survives that planted_bugs.py does not explain, or when one is seen that it calls no bug.

--only takes the mutants whose name or file contains TEXT, --again those that the output of an earlier run says
survive. --list names the mutants, after a look that every place for a planted bug is there and every excuse has its
mutant.
"""

import argparse
import collections
import concurrent.futures
import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from planted_bugs import ATTENTION_HOST, CUDA, EQUIVALENT, EXPERTS, HERE, ITEMS, PLAN, PLANTED, REFERENCE, SHARED_UNITS

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests/mutation"))
from relink import compile_words, link_line  # noqa: E402
ATTENTION_UNIT = ATTENTION_HOST
FP8_UNIT = f"{CUDA}/fp8_attention.cu"
SKIPPING_UNIT = f"{CUDA}/skipping_attention.cu"
PREFILL_UNIT = f"{CUDA}/prefill_attention.cu"
SCALE_UNIT = f"{HERE}/attention_scale_test.cu"
# Maps a kernel source to pairs: the source to compile anew, and the test that should see the kernel's bugs.
KERNELS = {
    f"{HERE}/tile_product.cuh": [(f"{HERE}/tile_product_test.cu", "cuda_tile_product_test")],
    **{f"{CUDA}/{part}.cuh": [(ATTENTION_UNIT, "cuda_paged_attention_test")]
       for part in ("paged_attention", "attn_products", "attn_softmax", "attn_wide")},
    f"{CUDA}/attn_rows.cuh": [(ATTENTION_UNIT, "cuda_paged_attention_test"),
                              (ATTENTION_UNIT, "cuda_shared_keys_test"),
                              (SCALE_UNIT, "cuda_attention_scale_test")],
    **{f"{CUDA}/{part}.cuh": [(ATTENTION_UNIT, "cuda_paged_attention_test"),
                              (ATTENTION_UNIT, "cuda_access_counter_test")]
       for part in ("attn_tiles", "attn_exchange")},
    f"{CUDA}/attn_keys.cuh": [(ATTENTION_UNIT, "cuda_paged_attention_test"),
                              (PREFILL_UNIT, "cuda_prefill_attention_test")],
    **{f"{CUDA}/{part}.cuh": [(SKIPPING_UNIT, "cuda_far_keys_test")] for part in ("attn_horizon", "attn_ranges")},
    f"{CUDA}/attn_fp8.cuh": [(FP8_UNIT, "cuda_fp8_attention_test")],
    **{f"{CUDA}/prefill_{part}.cuh": [(PREFILL_UNIT, "cuda_prefill_attention_test")]
       for part in ("attention", "fetch", "products", "shape")},
    f"{CUDA}/attn_merge.cuh": [(f"{HERE}/attn_merge_test.cu", "cuda_attn_merge_test"),
                               (ATTENTION_UNIT, "cuda_paged_attention_test"),
                               (ATTENTION_UNIT, "cuda_shared_keys_test"),
                               (SCALE_UNIT, "cuda_attention_scale_test")],
    PLAN: [(PLAN, "cuda_attention_plan_test"), (PLAN, "cuda_paged_attention_test")],
    SHARED_UNITS: [(SHARED_UNITS, "cuda_attention_plan_test"), (SHARED_UNITS, "cuda_shared_keys_test")],
    f"{CUDA}/plan_decodes.cuh": [(f"{HERE}/plan_decodes_test.cu", "cuda_plan_decodes_test")],
    **{f"{CUDA}/{name}.cuh": [(f"{CUDA}/sample.cu", "cuda_device_sampler_test")]
       for name in ("sample", "sample_block", "sample_select")},
    REFERENCE: [(f"{CUDA}/attention_reference.cu", "cuda_attention_reference_test")],
    f"{CUDA}/grouped_gemm.cuh": [(f"{HERE}/large_tensor_test.cu", "cuda_large_tensor_test"),
                                 (f"{CUDA}/expert_product.cu", "cuda_moe_test")],
    f"{CUDA}/packed_grouped_gemm.cuh": [(f"{HERE}/large_tensor_test.cu", "cuda_large_tensor_test"),
                                        (f"{CUDA}/expert_product.cu", "cuda_moe_test")],
    **{f"{CUDA}/{name}.cuh": [(f"{CUDA}/weight_product.cu", "cuda_packed_gemm_test")]
       for name in ("packed_gemm", "packed_batch_gemm", "packed_dequantize", "dequantize_weight")},
    f"{CUDA}/weight_product.cu": [(f"{CUDA}/weight_product.cu", "cuda_packed_gemm_test"),
                                  (f"{CUDA}/weight_product.cu", "cuda_bad_arguments_test"),
                                  (f"{CUDA}/weight_product.cu", "cuda_fp8_product_test")],
    f"{CUDA}/packed_weight.h": [(f"{CUDA}/pack_weight.cc", "cuda_pack_weight_test")],
    f"{CUDA}/pack_weight.cc": [(f"{CUDA}/pack_weight.cc", "cuda_pack_weight_test")],
    f"{CUDA}/cuda_weight_layout.cc": [(f"{CUDA}/cuda_weight_layout.cc", "cuda_pack_weight_test"),
                                      (f"{CUDA}/cuda_weight_layout.cc", "cuda_fp8_product_test")],
    f"{CUDA}/fp8_weight.cc": [(f"{CUDA}/fp8_weight.cc", "cuda_fp8_product_test")],
    **{f"{CUDA}/{name}": [(f"{CUDA}/fp8_product.cu", "cuda_fp8_product_test")]
       for name in ("fp8_product.cu", "quantize_tokens.cuh")},
    f"{CUDA}/moe_routing.cuh": [(f"{CUDA}/moe.cu", "cuda_moe_test")],
    f"{CUDA}/rows.cuh": [(f"{CUDA}/norm.cu", "cuda_step_ops_test")],
}
for step_op, unit in (("argmax", "argmax"), ("copy_blocks", "copy_blocks"), ("embed", "embed"),
                      ("gather_rows", "gather_rows"), ("linear_epilogue", "linear"), ("norm", "norm"),
                      ("qkv_post", "qkv_post"), ("shift_keys", "shift_keys"), ("update_table", "update_table")):
    KERNELS[f"{CUDA}/{step_op}.cuh"] = [(f"{CUDA}/{unit}.cu", "cuda_step_ops_test")]
KERNELS[f"{CUDA}/embed.cuh"] += [(f"{CUDA}/embed.cu", "cuda_packed_gemm_test"),
                                 (f"{CUDA}/embed.cu", "cuda_fp8_product_test"),
                                 (f"{CUDA}/embed.cu", "cuda_large_tensor_test")]
# Maps host code, in which only the bugs of planted_bugs.py are planted, to the same pairs.
HOST_CODE = {
    EXPERTS: [(EXPERTS, "cuda_moe_test")],
    ITEMS: [(ATTENTION_UNIT, "cuda_paged_attention_test")],
    ATTENTION_HOST: [(ATTENTION_UNIT, "cuda_attention_path_test"), (ATTENTION_UNIT, "cuda_attention_scale_test"),
                     (ATTENTION_UNIT, "cuda_fp8_attention_test"), (ATTENTION_UNIT, "cuda_far_keys_test")],
}
TESTS = {**KERNELS, **HOST_CODE}
# Attention kernels of these head_dims are compiled with the mutant. The other kernels come from the library,
# because compiling all of them takes minutes. So no mutant has a bug that concerns only another head_dim.
MUTATED_HEAD_DIMS = ("64", "80", "128")


class Mutant(collections.namedtuple("Mutant", "name path text")):
    def __str__(self) -> str:
        return f"{pathlib.Path(self.path).stem}: {self.name}"


def reason_of(mutant: Mutant):
    """Returns why the mutant is not a bug, or None if it is one."""
    text = f"{mutant.path} {mutant.name}"
    return next((why for texts, why in EQUIVALENT if all(part in text for part in texts)), None)


DROPPED = re.compile(
    r"^\s*(?:if \([^()]*\) )?(__syncthreads|__syncwarp|CpAsyncCommit|CpAsyncWait<[^<>]+>|NamedBarrier|FenceAsyncProxy|"
    r"FenceMbarrierInit|MbarrierInit|MbarrierWait|MbarrierArrive|MbarrierArriveExpect|WgmmaFence|WgmmaCommit|"
    r"WgmmaWait<[^<>]+>|GridDependencyWait)\(.*\);", re.MULTILINE)
LAXER = re.compile(r"\b(CpAsyncWait|WgmmaWait)<([^<>]+)>")
# Comparisons that decide which elements are read, written or masked. generated() leaves out loop conditions
# and preprocessor lines.
COMPARISON = re.compile(r" (<|<=|>|>=) ")
BOUND = re.compile(r"std::(min|max)(?:<(\w+)>)?\(")


def two_arguments(text: str, begin: int):
    """Returns the two arguments of a call whose first argument begins at `begin`, and the position where the call
    ends."""
    depth, comma = 0, None
    for i in range(begin, len(text)):
        if text[i] in "([{":
            depth += 1
        elif text[i] == "," and depth == 0:
            comma = i
        elif text[i] in ")]}":
            depth -= 1
            if depth < 0:
                return text[begin:comma], text[comma + 1:i], i + 1
    raise ValueError("a call without an end")


def generated(path: str, text: str):
    """Yields the mutants of one kernel that the rules make."""
    def line_of(position):
        number = text.count("\n", 0, position) + 1
        return number, text.splitlines()[number - 1].strip()

    for match in DROPPED.finditer(text):
        name = match.group(1)
        # Replaces the call with an empty statement, so that an `if` before it stays.
        begin = match.start(1)
        yield Mutant(f"{name} dropped, line {line_of(begin)[0]}", path, text[:begin] + ";" + text[match.end():])
    for match in LAXER.finditer(text):
        laxer = f"{match.group(1)}<{match.group(2)} + 1>"
        yield Mutant(f"{laxer} for {match.group(0)}, line {line_of(match.start())[0]}", path,
                     text[:match.start()] + laxer + text[match.end():])
    for match in COMPARISON.finditer(text):
        number, line = line_of(match.start())
        before = text[text.rfind("\n", 0, match.start()) + 1:match.start()]
        in_words = "//" in before or before.count('"') % 2 == 1
        if in_words or re.match(r"(for|#|static_assert|template)", line):
            continue
        other = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}[match.group(1)]
        left, right = before.split()[-1].lstrip("(!"), text[match.end():].split(None, 1)[0].rstrip(");,")
        compared = f"{left}{match.group(0)}{right}"
        yield Mutant(f"'{compared}' becomes '{other}', line {number}: {line}", path,
                     text[:match.start(1)] + other + text[match.end(1):])
        # Makes the whole condition true. || binds weaker than comparisons and &&, so this works where the
        # comparison stands alone or inside &&.
        yield Mutant(f"'{compared}' always true, line {number}: {line}", path,
                     text[:match.start(1)] + f"{match.group(1)} 0 || true || 0 {match.group(1)}"
                     + text[match.end(1):])
    for match in BOUND.finditer(text):
        number, line = line_of(match.start())
        first, second, end = two_arguments(text, match.end())
        for argument, place in ((first, "first"), (second, "second")):
            kept = f"({argument.strip()})"
            if match.group(2):
                kept = f"static_cast<{match.group(2)}>{kept}"
            yield Mutant(f"std::{match.group(1)} is its {place}, line {number}: {line}", path,
                         text[:match.start()] + kept + text[end:])


def mutants():
    """Returns all mutants, each once."""
    found = {}
    for name, path, old, new in PLANTED:
        text = (ROOT / path).read_text()
        if text.count(old) < 1:
            sys.exit(f"planted bug '{name}': its place is gone from {path}")
        found.setdefault((path, text.replace(old, new, 1)), name)
    for path in KERNELS:
        for mutant in generated(path, (ROOT / path).read_text()):
            found.setdefault((path, mutant.text), mutant.name)
    order = list(TESTS)
    return [Mutant(name, path, text) for (path, text), name in sorted(found.items(),
                                                                    key=lambda item: order.index(item[0][0]))]


@functools.lru_cache(maxsize=None)
def time_limit(build: pathlib.Path, target: str) -> float:
    """Returns a test's time limit in seconds: 20 s plus ten times its time without a mutant."""
    begin = time.monotonic()
    run = subprocess.run([build / "tests" / target, "--gtest_brief=1"], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{build}: tests/{target} fails without a mutant:\n{run.stdout}{run.stderr}")
    return 20 + 10 * (time.monotonic() - begin)


def with_few_instances(text: str) -> str:
    """Changes the attention's unit so that the library provides the kernels of most head_dims."""
    head_dims = re.findall(r"kInstance<T, (\d+)>", text)
    others = [dim for dim in head_dims if dim not in MUTATED_HEAD_DIMS]
    if not others or len(others) == len(head_dims):
        sys.exit(f"{ATTENTION_UNIT}: its instances are not those expected")
    declared = "".join(f"extern template __global__ void AttnKernel<{element}, {dim}, false>(AttnParams<{element}>);\n"
                       for dim in others for element in ("Bf16", "F16"))
    return text.replace("namespace {\n", declared + "namespace {\n", 1)


def run_test(build: pathlib.Path, mutant: Mutant, unit: str, target: str, scratch: pathlib.Path) -> str:
    """Returns the complaint of one test in `build` about the mutant, or '' if the test passes."""
    shadow = scratch / mutant.path
    shadow.parent.mkdir(parents=True, exist_ok=True)
    shadow.write_text(mutant.text)
    words, output = compile_words(build, unit)
    # The mutant's folder comes first on the include path. The unit is compiled from a copy, so that it
    # includes the mutant.
    source = shadow
    if unit != mutant.path or unit == ATTENTION_UNIT:
        text = mutant.text if unit == mutant.path else (ROOT / unit).read_text()
        source = scratch / pathlib.Path(unit).name
        source.write_text(with_few_instances(text) if unit == ATTENTION_UNIT else text)
    # -w: a warning must not stop a mutant. A sanitizer build keeps its -O0, because any other level takes
    # minutes.
    words = [words[0], f"-I{scratch}"] + words[1:] + ["-w"] + ([] if "-O0" in words else ["-O1"])
    words[words.index("-o") + 1] = str(scratch / "unit.o")
    words[words.index("-c") + 1] = str(source)
    if "-MF" in words:
        words[words.index("-MF") + 1] = str(scratch / "unit.d")
    compiled = subprocess.run(words, cwd=build, capture_output=True, text=True)
    if compiled.returncode != 0:
        return "not C++"
    # Leaves out the test's own object. The mutant comes first, so that the linker prefers it to the library.
    line = link_line(build, f"tests/{target}").replace(f" {output} ", " ")
    line = re.sub(rf"-o tests/{target}\b", f"-Wl,-z,muldefs {scratch}/unit.o -o {scratch}/test", line)
    subprocess.run(line, cwd=build, shell=True, capture_output=True, check=True)
    environment = dict(os.environ, TSAN_OPTIONS="halt_on_error=1")
    try:
        run = subprocess.run([str(scratch / "test"), "--gtest_brief=1", "--gtest_fail_fast"], capture_output=True,
                             text=True, errors="replace", timeout=time_limit(build, target), env=environment)
    except subprocess.TimeoutExpired:
        return "runs for ever"
    if run.returncode == 0:
        return ""
    said = run.stdout + run.stderr
    for kind in ("data race", "AddressSanitizer", "runtime error"):
        if kind in said:
            return kind
    fault = re.search(r"emulator: (deadlock|[^\n]*?)(?:: block| at |$)", said, re.MULTILINE)
    return fault.group(1) if fault else "wrong result" if run.returncode == 1 else f"status {run.returncode}"


def verdict(builds, mutant: Mutant):
    """Returns the first build that sees the mutant, and its complaint, or ('', '') if none does."""
    for build in builds:
        for unit, target in TESTS[mutant.path]:
            with tempfile.TemporaryDirectory() as folder:
                said = run_test(build, mutant, unit, target, pathlib.Path(folder))
            if said:
                return build.name, said
    return "", ""


def report(mutant: Mutant, build: str, said: str):
    """Returns the column of the table to which the mutant belongs, and the line about it."""
    why = reason_of(mutant)
    if said == "not C++":
        return "not C++", said
    if said and why:
        return "survive", f"{build}: {said}: SEEN, and yet excused: {why}"
    if said:
        return "seen", f"{build}: {said}"
    return ("no bug", f"no bug: {why}") if why else ("survive", "SURVIVES")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", action="append", type=pathlib.Path, default=[])
    parser.add_argument("--only", default="")
    parser.add_argument("--again", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    all_mutants = mutants()
    for texts, why in EQUIVALENT:
        if not any(all(part in f"{m.path} {m.name}" for part in texts) for m in all_mutants):
            sys.exit(f"no mutant is excused by {texts}: {why}")
    chosen = [m for m in all_mutants if args.only in m.name or args.only in m.path]
    if args.again:
        survivors = args.again.read_text().splitlines()
        chosen = [m for m in chosen if f"{m}: SURVIVES" in survivors]
    if args.list:
        print(*chosen, sep="\n")
        return 0
    builds = [build.resolve() for build in args.build]
    table = collections.defaultdict(collections.Counter)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for mutant, (build, said) in zip(chosen, pool.map(lambda m: verdict(builds, m), chosen)):
            column, line = report(mutant, build, said)
            table[pathlib.Path(mutant.path).stem][column] += 1
            print(f"{mutant}: {line}", flush=True)
    for kernel, columns in table.items():
        print(f"{kernel}: {columns.total()} mutants,", ", ".join(f"{n} {column}" for column, n in columns.items()))
    return 1 if any(columns["survive"] for columns in table.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
