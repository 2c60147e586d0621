#!/usr/bin/env python3
"""Plants bugs in CUDA kernels and reports which of them the emulator's tests see.

    mutate.py --build build/ci [--build build/asan] [--only TEXT] [--class asynchrony] [--again LOG] [--rest LOG]
              [--alone] [--jobs N]
    mutate.py --list

Mutants are generated (each barrier, wait, fence, commit, arrival and __syncwarp dropped, each wait one group laxer,
each comparison of a mask or a bound moved by one or taken for true, each std::min and std::max one of its two) and
planted by name (planted_bugs.py). Most are woven into a few copies of their sources, each behind a switch (weave.py),
so that a unit is compiled once for up to 60 of them. A constant of a class or a template argument that changes gets a
copy of its own; --alone gives one to every mutant. The copies are linked with the libraries of a build folder, and
each mutant runs its tests until one fails: first those that saw others or are short. A mutant that survives there goes
on to the next folder. The folders must hold the test targets, built. Exit status 1 when a mutant survives that
planted_bugs.py does not explain, or when one is seen that it calls no bug.

--only takes the mutants whose name or file contains TEXT, and may be given more than once. --class asynchrony takes
those in which host and device, or two launches, do not keep their order. --again takes those that the output of an
earlier run says survive, --rest those that it does not have. --list names the mutants, after a look that every planted
bug has one place and every excuse has its mutant.
"""

import argparse
import collections
import concurrent.futures
import pathlib
import re
import resource
import sys
import tempfile
import time

from planted_bugs import ASYNCHRONY, ATTENTION_HOST, CUDA, EQUIVALENT, EXPERTS, FIXED_ROWS, GROW, HERE, ITEMS, PLAN, PLANTED, PREFILL, REFERENCE, SHARED_UNITS, STAGED_TILES, WGMMA_GROUPED

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests/mutation"))
from mutant_builds import Mutants  # noqa: E402
ATTENTION_UNIT = ATTENTION_HOST
ATTENTION, PRODUCT, SAMPLE, DEVICE = (f"{CUDA}/{room}" for room in ("attention", "product", "sample", "device"))
FP8_UNIT = f"{ATTENTION}/fp8_attention.cu"
SKIPPING_UNIT = f"{ATTENTION}/skipping_attention.cu"
PREFILL_UNIT = f"{ATTENTION}/prefill_attention.cu"
WGMMA_UNIT = f"{PRODUCT}/wgmma_grouped_gemm.cu"
SCALE_UNIT = f"{HERE}/attention_scale_test.cu"
# Maps a kernel source to pairs: the source to compile anew, and the test that should see the kernel's bugs.
KERNELS = {
    f"{HERE}/tile_product.cuh": [(f"{HERE}/tile_product_test.cu", "cuda_tile_product_test")],
    **{f"{ATTENTION}/{part}.cuh": [(ATTENTION_UNIT, "cuda_paged_attention_test")]
       for part in ("paged_attention", "attn_products", "attn_softmax")},
    f"{ATTENTION}/attn_wide.cuh": [(ATTENTION_UNIT, "cuda_paged_attention_test"), (FP8_UNIT, "cuda_fp8_attention_test"),
                                   (SCALE_UNIT, "cuda_attention_scale_test")],
    f"{ATTENTION}/attn_rows.cuh": [(ATTENTION_UNIT, "cuda_paged_attention_test"),
                                   (ATTENTION_UNIT, "cuda_shared_keys_test"),
                                   (SCALE_UNIT, "cuda_attention_scale_test")],
    **{f"{ATTENTION}/{part}.cuh": [(ATTENTION_UNIT, "cuda_paged_attention_test"),
                                   (ATTENTION_UNIT, "cuda_access_counter_test")]
       for part in ("attn_tiles", "attn_exchange")},
    f"{ATTENTION}/attn_keys.cuh": [(ATTENTION_UNIT, "cuda_paged_attention_test"),
                                   (PREFILL_UNIT, "cuda_prefill_attention_test")],
    **{f"{ATTENTION}/{part}.cuh": [(SKIPPING_UNIT, "cuda_far_keys_test")] for part in ("attn_horizon", "attn_ranges")},
    **{f"{ATTENTION}/{part}.cuh": [(FP8_UNIT, "cuda_fp8_attention_test")] for part in ("attn_fp8", "widen_fp8")},
    f"{ATTENTION}/fp8_tiles.cuh": [(FP8_UNIT, "cuda_fp8_attention_test"), (FP8_UNIT, "cuda_access_counter_test"),
                                   (PREFILL_UNIT, "cuda_prefill_attention_test")],
    **{f"{ATTENTION}/prefill_{part}.cuh": [(PREFILL_UNIT, "cuda_prefill_attention_test")]
       for part in ("fetch", "products", "shape", "widen")},
    STAGED_TILES: [(PREFILL_UNIT, "cuda_prefill_attention_test"), (WGMMA_UNIT, "cuda_moe_test")],
    PREFILL: [(PREFILL_UNIT, "cuda_prefill_attention_test"), (PREFILL_UNIT, "cuda_attention_scale_test")],
    f"{ATTENTION}/attn_merge.cuh": [(f"{HERE}/attn_merge_test.cu", "cuda_attn_merge_test"),
                                    (ATTENTION_UNIT, "cuda_paged_attention_test"),
                                    (ATTENTION_UNIT, "cuda_shared_keys_test"),
                                    (SCALE_UNIT, "cuda_attention_scale_test")],
    PLAN: [(PLAN, "cuda_attention_plan_test"), (PLAN, "cuda_plan_decodes_test"), (PLAN, "cuda_paged_attention_test")],
    SHARED_UNITS: [(SHARED_UNITS, "cuda_attention_plan_test"), (SHARED_UNITS, "cuda_shared_keys_test")],
    f"{ATTENTION}/plan_decodes.cuh": [(f"{HERE}/plan_decodes_test.cu", "cuda_plan_decodes_test")],
    **{f"{SAMPLE}/{name}.cuh": [(f"{SAMPLE}/sample.cu", "cuda_device_sampler_test")]
       for name in ("sample", "sample_block", "sample_select")},
    REFERENCE: [(f"{ATTENTION}/attention_reference.cu", "cuda_attention_reference_test")],
    f"{PRODUCT}/grouped_gemm.cuh": [(f"{HERE}/large_tensor_test.cu", "cuda_large_tensor_test"),
                                    (f"{PRODUCT}/expert_product.cu", "cuda_moe_test")],
    WGMMA_GROUPED: [(f"{HERE}/large_tensor_test.cu", "cuda_large_tensor_test"), (WGMMA_UNIT, "cuda_moe_test")],
    f"{PRODUCT}/packed_grouped_gemm.cuh": [(f"{HERE}/large_tensor_test.cu", "cuda_large_tensor_test"),
                                           (f"{PRODUCT}/expert_product.cu", "cuda_moe_test")],
    **{f"{PRODUCT}/{name}.cuh": [(f"{PRODUCT}/weight_product.cu", "cuda_packed_gemm_test")]
       for name in ("packed_gemm", "packed_batch_gemm", "packed_dequantize", "dequantize_weight")},
    f"{PRODUCT}/weight_product.cu": [(f"{PRODUCT}/weight_product.cu", "cuda_packed_gemm_test"),
                                     (f"{PRODUCT}/weight_product.cu", "cuda_bad_arguments_test"),
                                     (f"{PRODUCT}/weight_product.cu", "cuda_fixed_rows_gemm_test"),
                                     (f"{PRODUCT}/weight_product.cu", "cuda_fp8_product_test")],
    f"{PRODUCT}/packed_weight.h": [(f"{PRODUCT}/pack_weight.cc", "cuda_pack_weight_test")],
    f"{PRODUCT}/pack_weight.cc": [(f"{PRODUCT}/pack_weight.cc", "cuda_pack_weight_test")],
    f"{PRODUCT}/cuda_weight_layout.cc": [(f"{PRODUCT}/cuda_weight_layout.cc", "cuda_pack_weight_test"),
                                         (f"{PRODUCT}/cuda_weight_layout.cc", "cuda_fp8_product_test")],
    f"{PRODUCT}/fp8_weight.cc": [(f"{PRODUCT}/fp8_weight.cc", "cuda_fp8_product_test")],
    **{f"{PRODUCT}/{name}": [(f"{PRODUCT}/fp8_product.cu", "cuda_fp8_product_test")]
       for name in ("fp8_product.cu", "quantize_tokens.cuh")},
    f"{PRODUCT}/linear_epilogue.cuh": [(f"{PRODUCT}/linear.cu", "cuda_step_ops_test")],
    f"{PRODUCT}/moe_routing.cuh": [(f"{PRODUCT}/moe.cu", "cuda_moe_test")],
    f"{DEVICE}/rows.cuh": [(f"{CUDA}/norm.cu", "cuda_step_ops_test"),
                           (f"{SAMPLE}/sample.cu", "cuda_device_sampler_test")],
}
for step_op in ("embed", "gather_rows", "norm", "attention/copy_blocks", "attention/qkv_post", "attention/shift_keys",
                "attention/update_table", "sample/argmax", "sample/take_tokens"):
    KERNELS[f"{CUDA}/{step_op}.cuh"] = [(f"{CUDA}/{step_op}.cu", "cuda_step_ops_test")]
KERNELS[f"{CUDA}/embed.cuh"] += [(f"{CUDA}/embed.cu", "cuda_packed_gemm_test"),
                                 (f"{CUDA}/embed.cu", "cuda_fp8_product_test"),
                                 (f"{CUDA}/embed.cu", "cuda_large_tensor_test")]
# Maps host code, in which only the bugs of planted_bugs.py are planted, to the same pairs.
HOST_CODE = {
    EXPERTS: [(EXPERTS, "cuda_moe_test")],
    ITEMS: [(ATTENTION_UNIT, "cuda_paged_attention_test")],
    FIXED_ROWS: [(FIXED_ROWS, "cuda_fp8_product_test"), (FIXED_ROWS, "cuda_fixed_rows_gemm_test")],
    GROW: [(ATTENTION_UNIT, "cuda_attention_path_test")],
    ATTENTION_HOST: [(ATTENTION_UNIT, "cuda_attention_path_test"), (ATTENTION_UNIT, "cuda_attention_scale_test"),
                     (ATTENTION_UNIT, "cuda_fp8_attention_test"), (ATTENTION_UNIT, "cuda_far_keys_test"),
                     (ATTENTION_UNIT, "cuda_prefill_attention_test")],
}
TESTS = {**KERNELS, **HOST_CODE}


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
        if text.count(old) != 1:
            sys.exit(f"planted bug '{name}': {path} has {text.count(old)} places for it, want one")
        found.setdefault((path, text.replace(old, new)), name)
    for path in KERNELS:
        for mutant in generated(path, (ROOT / path).read_text()):
            found.setdefault((path, mutant.text), mutant.name)
    order = list(TESTS)
    return [Mutant(name, path, text) for (path, text), name in sorted(found.items(),
                                                                    key=lambda item: order.index(item[0][0]))]


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
    parser.add_argument("--only", action="append")
    parser.add_argument("--class", dest="kind", choices=["asynchrony"])
    parser.add_argument("--again", type=pathlib.Path)
    parser.add_argument("--rest", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    all_mutants = mutants()
    for texts, why in EQUIVALENT:
        if not any(all(part in f"{m.path} {m.name}" for part in texts) for m in all_mutants):
            sys.exit(f"no mutant is excused by {texts}: {why}")
    chosen = [m for m in all_mutants if any(text in m.name or text in m.path for text in args.only or [""])]
    if args.kind:
        planted = {(path, name) for name, path, *_ in ASYNCHRONY}
        chosen = [m for m in chosen if (m.path, m.name) in planted]
    if args.again:
        survivors = args.again.read_text().splitlines()
        chosen = [m for m in chosen if f"{m}: SURVIVES" in survivors]
    if args.rest:
        done = args.rest.read_text()
        chosen = [m for m in chosen if f"{m}: " not in done]
    if args.list:
        print(*chosen, sep="\n")
        return 0
    begin, table = time.monotonic(), collections.defaultdict(collections.Counter)

    def say(mutant: Mutant, build: str, said: str):
        column, line = report(mutant, build, said)
        table[pathlib.Path(mutant.path).stem][column] += 1
        print(f"{mutant}: {line}", flush=True)

    left = {number: mutant for number, mutant in enumerate(all_mutants, 1) if mutant in chosen}
    for build in args.build:
        with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            mutants_here = Mutants(build.resolve(), left, TESTS, args.alone, pathlib.Path(folder))
            unseen = {}
            for (number, mutant), said in zip(left.items(), pool.map(mutants_here.verdict, left)):
                if said:
                    say(mutant, build.name, said)
                elif build == args.build[-1]:
                    say(mutant, "", "")
                else:
                    unseen[number] = mutant
        left = unseen
    for kernel, columns in table.items():
        print(f"{kernel}: {columns.total()} mutants,", ", ".join(f"{n} {column}" for column, n in columns.items()))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{len(chosen)} mutants in {time.monotonic() - begin:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of CPU")
    return 1 if any(columns["survive"] for columns in table.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
