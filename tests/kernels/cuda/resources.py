#!/usr/bin/env python3
"""What ptxas gives each CUDA kernel: registers, spills, stack, shared memory, notes; against a table.

    resources.py            compiles the sources that changed since kernels/cuda/resources.tsv was written and
                            holds their kernels against it; exit status 1 when anything differs
    resources.py --all      all sources, changed or not, whatever the version of ptxas
    resources.py --update   writes the table; compiles what changed, or all when ptxas is another

No kernel is run, and no GPU needed: nvcc alone, for every target below, as the `cuda` preset calls it. All of
it takes 4 minutes of one core. What was compiled is kept in build/cuda_resources.

The table knows each source by a hash of its code and of what it includes from here, comments left out, and the
ptxas it was made with. A source whose hash is the table's is not compiled. One that has another hash
  - is compiled, where nvcc is; equal numbers pass, for most changes are the host's, and --update may wait;
  - without nvcc, or where ptxas has another version, is skipped, exit status 77: who has no nvcc can neither
    check nor renew the table, and it is no fault of theirs. The skip says so; a machine with nvcc will judge.

A note is what ptxas has to say of a kernel by number: C7510, C7514, C7515 (wgmma runs one after another), C7508
(setmaxnreg ignored), C7519 (a fence that the source lacks was put in). Code that is correct and fast has none.

The table also says how many calls and accesses to local memory a kernel has, and for the kernels in HOT_LOOPS what a
warp executes for each tile (sass.py). A kernel with several hot loops, such as one for each number of row tiles, has as
many numbers, by ascending products. nvdisasm reads that from the compiled code. It does not come with every toolkit, so
scripts/test.sh fetches it to NVDISASM. Where it is missing, these columns are not compared, and --update does not write
them.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import sass
from source_code import code_key

ROOT = pathlib.Path(__file__).resolve().parents[3]
TABLE = ROOT / "kernels/cuda/resources.tsv"
CACHE = ROOT / "build/cuda_resources"
NVDISASM = ROOT / "build/nvdisasm"
RENEW = "python3 tests/kernels/cuda/resources.py --update"
TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90a")
# The sources whose kernels use wgmma and TMA.
HOPPER_SOURCES = ("kernels/cuda/attention/prefill_attention.cu", "kernels/cuda/product/wgmma_grouped_gemm.cu")
# The flags of cmake/Cuda.cmake and of CMAKE_BUILD_TYPE RelWithDebInfo.
FLAGS = ("-std=c++20", "-O2", "-DNDEBUG", "--expt-relaxed-constexpr", "-Wno-deprecated-gpu-targets")
# ptxas does not know how much shared memory a launch requests. This maps a kernel to its header and to the
# number of bytes as a C++ expression, with the kernel's template arguments in braces. No other kernel uses
# such memory.
DYNAMIC_SHARED = {
    "ArgmaxKernel": ("kernels/cuda/sample/argmax.cuh", "kArgmaxSharedBytes"),
    "AttentionReferenceKernel": ("kernels/cuda/attention/attention_reference.cuh", "kReferenceSharedBytes"),
    "AttnKernel": ("kernels/cuda/attention/paged_attention.cuh", "AttnShape<{1}, 4>::kSharedBytes"),
    "Fp8AttnKernel": ("kernels/cuda/attention/fp8_attention.cuh", "AttnShape<{1}, 4, sizeof(E4M3)>::kSharedBytes"),
    "SkippingAttnKernel": ("kernels/cuda/attention/skipping_attention.cuh", "AttnShape<{1}, 4, sizeof({2})>::kSharedBytes"),
    "MoeGroupKernel": ("kernels/cuda/product/moe_routing.cuh", "kGroupSharedBytes"),
    "NormKernel": ("kernels/cuda/norm.cuh", "kBlockSumBytes"),
    "PackedBatchGemmKernel": ("kernels/cuda/product/packed_batch_gemm.cuh", "PackedBatchShape<{1}, {2}>::kSharedBytes"),
    "PackedGemmKernel": ("kernels/cuda/product/packed_gemm.cuh", "PackedGemmShape<{1}, {2}>::kSharedBytes"),
    "PackedGroupedGemmKernel": ("kernels/cuda/product/packed_grouped_gemm.cuh", "PackedGemmShape<{1}, {2}>::kSharedBytes"),
    "PlanDecodesKernel": ("kernels/cuda/attention/plan_decodes.cuh", "PlanSharedBytes(256, 264, {0})"),
    "SampleKernel": ("kernels/cuda/sample/sample_select.cuh", "kSampleSharedBytes"),
    "Fp8PrefillAttnKernel": ("kernels/cuda/attention/prefill_attention.cuh", "PrefillSharedBytes<{0}, E4M3, {1}>()"),
    "PrefillAttnKernel": ("kernels/cuda/attention/prefill_shape.cuh", "sizeof(PrefillShared<PrefillShape<{1}>>)"),
    "WgmmaGroupedGemmKernel": ("kernels/cuda/product/wgmma_grouped_gemm.cuh", "kWgmmaGemmSharedBytes"),
    "QuantizeRowsKernel": ("kernels/cuda/device/rows.cuh", "kBlockSumBytes"),
    "QkvPostKernel": ("kernels/cuda/attention/qkv_post.cuh", "kBlockSumBytes"),
}

# The kernels whose hot loops are counted.
HOT_LOOPS = ("AttnKernel", "Fp8AttnKernel", "SkippingAttnKernel", "PrefillAttnKernel", "Fp8PrefillAttnKernel",
             "PackedBatchGemmKernel", "PackedGemmKernel", "GroupedGemmKernel", "PackedGroupedGemmKernel", "WgmmaGroupedGemmKernel")
NO_NVDISASM = ("no nvdisasm, so what the kernels execute was not counted; `pip install nvidia-cuda-nvdisasm` for the python3 "
               "that runs this, or an nvdisasm on PATH, lets it be")

COLUMNS = ("registers", "stack", "spill_stores", "spill_loads", "static_shared", "dynamic_shared", "notes") + sass.KERNEL_COLUMNS + sass.COLUMNS
NONE, UNCOUNTED = "-", "?"  # in the columns of sass.py: no hot loop, and no nvdisasm to count
Resources = collections.namedtuple("Resources", COLUMNS, defaults=(NONE,) * (len(sass.KERNEL_COLUMNS) + len(sass.COLUMNS)))
Row = tuple[str, str, str]  # source, kernel, target


class Skip(Exception):
    """Says why the check cannot be made here."""


class Table:
    def __init__(self, ptxas: str = "", keys: dict[str, str] | None = None,
                 rows: dict[Row, Resources] | None = None):
        self.ptxas, self.keys, self.rows = ptxas, keys or {}, rows or {}

    @staticmethod
    def parse(text: str) -> "Table":
        table = Table()
        for line in text.splitlines():
            cells = line.split("\t")
            if line.startswith("# ptxas "):
                table.ptxas = line.split()[2]
            elif line.startswith("# source "):
                _, _, source, key = line.split()
                table.keys[source] = key
            elif cells[0] == "source":
                if tuple(cells[3:]) != COLUMNS:
                    return Table(table.ptxas)  # of before these columns, so it knows nothing of any source
            elif not line.startswith("#"):
                table.rows[tuple(cells[:3])] = Resources(*cells[3:])
        return table

    def __str__(self) -> str:
        lines = [f"# Written by {RENEW}, which says what it means.", f"# ptxas {self.ptxas}"]
        lines += [f"# source {source} {key}" for source, key in sorted(self.keys.items())]
        lines.append("\t".join(("source", "kernel", "target") + COLUMNS))
        lines += ["\t".join(row + self.rows[row]) for row in sorted(self.rows, key=order)]
        return "\n".join(lines) + "\n"


def order(row: Row):
    """Returns a sort key: by source and kernel, with numbers in names compared by value."""
    source, kernel, target = row
    return source, [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", kernel)], target


def sources() -> dict[str, tuple[str, ...]]:
    """Returns every file with kernels, and the targets for which it is compiled."""
    found = {path.relative_to(ROOT).as_posix(): TARGETS for path in sorted((ROOT / "kernels/cuda").rglob("*.cu"))}
    return found | {source: ("sm_90a",) for source in HOPPER_SOURCES}


def key_of(source: str, targets: tuple[str, ...], root: pathlib.Path = ROOT) -> str:
    return code_key([source], root, (*FLAGS, *targets))[:16]


def parse_log(log: str, target: str) -> dict[str, Resources]:
    """Returns the kernels in the output of `ptxas -v` by mangled name. Their dynamic shared memory is 0."""
    entries, notes, used, spilled = [], collections.defaultdict(collections.Counter), {}, {}
    name = None
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line):
            if match.group(2) != target:
                raise ValueError(f"compiled for {match.group(2)}, not {target}")
            name = match.group(1)
            entries.append(name)
        elif match := re.search(r"Function properties for (\S+)", line):
            name = match.group(1)
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled[name] = match.groups()
        elif match := re.search(r"Used (\d+) registers(.*)", line):
            shared = re.search(r"(\d+) bytes smem", match.group(2))
            used[name] = match.group(1), shared.group(1) if shared else "0"
        elif match := re.search(r"^ptxas (?:warning|info)\s*: \((C\d+)\)|^ptxas (warning)", line):
            # This line may come before any kernel, and names its own kernel.
            of = re.search(r"function '?(\w+)'?", line)
            notes[of.group(1) if of else name][match.group(1) or match.group(2)] += 1
    unknown = (set(notes) | set(spilled) | set(used)) - set(entries)
    if unknown or not entries or set(spilled) != set(entries) or set(used) != set(entries):
        raise ValueError(f"ptxas -v speaks otherwise than resources.py knows; kernels {entries}, others {unknown}")
    return {entry: Resources(used[entry][0], *spilled[entry], used[entry][1], "0",
                             " ".join(f"{code}x{count}" for code, count in sorted(notes[entry].items())) or "-")
            for entry in entries}


def short_name(demangled: str) -> str:
    """Returns a name such as `AttnKernel<Bf16, 128, true>` from a function's whole signature."""
    depth, end = 0, len(demangled)
    for i, char in enumerate(demangled):
        depth += {"<": 1, ">": -1}.get(char, 0)
        if char == "(" and depth == 0:
            end = i
            break
    return re.sub(r"\b(?:\w+::)+", "", demangled[:end].removeprefix("void "))


def demangle(names: list[str]) -> dict[str, str]:
    run = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return {name: short_name(line) for name, line in zip(names, run.stdout.splitlines())}


def dynamic_shared(kernels: list[str]) -> dict[str, str]:
    """Returns each kernel's bytes by its short name, from a program that includes the kernels' headers."""
    lines = []
    for kernel in kernels:
        base, _, arguments = kernel.partition("<")
        _, expression = DYNAMIC_SHARED.get(base, ("", "0"))
        expression = expression.format(*arguments.rstrip(">").split(", "))
        lines.append(f'  std::printf("%lld\\n", static_cast<long long>({expression}));')
    headers = sorted({header for header, _ in DYNAMIC_SHARED.values()})
    text = "\n".join(["#include <cstdio>", *(f'#include "{header}"' for header in headers),
                      "using namespace quire::kernels;", "using namespace quire::kernels::cuda;",
                      "int main() {", *lines, "}"])
    with tempfile.TemporaryDirectory() as folder:
        probe = pathlib.Path(folder) / "probe"
        # The linker drops the kernels themselves, which would not link without the emulator.
        run(["g++", "-std=c++20", f"-I{ROOT}", "-x", "c++", "-", "-ffunction-sections", "-Wl,--gc-sections", "-o",
             str(probe)], input=text)
        return dict(zip(kernels, run([str(probe)]).split()))


def run(command: list[str], **options) -> str:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}")
    return done.stdout


def cells(loops: list[sass.HotLoop]) -> list[str]:
    """Returns the columns of sass.py: in each the numbers of all hot loops, such as `382/503/710`."""
    if not loops:
        raise ValueError("no loop has matrix products")
    return ["/".join(map(str, column)) for column in zip(*loops)]


class Compiler:
    """Finds nvcc where cmake/Cuda.cmake looks for it, and the ptxas beside it."""

    def __init__(self, jobs: int, afresh: bool = False):
        self.jobs, self.afresh = jobs, afresh
        homes = [home for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
        places = [None] + [f"{home}/bin" for home in homes]  # None: PATH
        self.nvcc = next(filter(None, (shutil.which("nvcc", path=place) for place in places)), None)
        self.ptxas = ""
        if self.nvcc:
            said = run([str(pathlib.Path(self.nvcc).resolve().with_name("ptxas")), "--version"])
            self.ptxas = re.search(r"\bV(\d+\.\d+\.\d+)", said).group(1)
        # The wheel nvidia-cuda-nvdisasm has no command on PATH.
        wheels = [str(home) for path in (NVDISASM, *sys.path) for home in pathlib.Path(path).glob("nvidia/cu*/bin")]
        self.nvdisasm = next(filter(None, (shutil.which("nvdisasm", path=place) for place in places + wheels)), None)

    def compile(self, source: str, target: str, key: str) -> pathlib.Path:
        """Compiles `source`. Returns the file with what ptxas prints about it. The code is beside it, as .cubin."""
        kept = CACHE / f"{pathlib.Path(source).stem}-{target}-{key}-{self.ptxas}.log"
        if self.afresh or not kept.exists() or not kept.with_suffix(".cubin").exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            # Renames complete files into place, because a test may be killed while it writes.
            partial = kept.with_suffix(f".{os.getpid()}")
            said = run([self.nvcc, *FLAGS, f"-I{ROOT}", "-cubin", f"-arch={target}", "-Xptxas", "-v", "-o", str(partial),
                        source])
            partial.rename(kept.with_suffix(".cubin"))
            partial.write_text(said)
            partial.rename(kept)
        return kept

    def kernels(self, source: str, target: str, key: str) -> dict[str, Resources]:
        """Returns the kernels of `source` by mangled name. Their dynamic shared memory is 0."""
        log = self.compile(source, target, key)
        found = parse_log(log.read_text(), target)
        hot = {name for name in found if any(f"{len(kernel)}{kernel}I" in name for kernel in HOT_LOOPS)}
        code = sass.functions(run([self.nvdisasm, "-c", str(log.with_suffix(".cubin"))])) if self.nvdisasm else {}

        def counts(name: str) -> dict[str, str]:
            columns = sass.KERNEL_COLUMNS + (sass.COLUMNS if name in hot else ())
            if not self.nvdisasm:
                return dict.fromkeys(columns, UNCOUNTED)
            blocks = sass.blocks_of(code[name])
            return dict(zip(columns, [*map(str, sass.whole(blocks)), *(cells(sass.hot_loops(blocks)) if name in hot else ())]))

        return {name: kernel._replace(**counts(name)) for name, kernel in found.items()}

    def rows(self, keys: dict[str, str]) -> dict[Row, Resources]:
        """Returns the resources of every kernel of these sources."""
        wanted = [(source, target) for source in keys for target in sources()[source]]
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            compiled = list(pool.map(lambda of: self.kernels(*of, keys[of[0]]), wanted))
        found = [(source, target, kernels) for (source, target), kernels in zip(wanted, compiled)]
        names = demangle(sorted({name for *_, kernels in found for name in kernels}))
        shared = dynamic_shared(sorted(set(names.values())))
        return {(source, names[name], target): resources._replace(dynamic_shared=shared[names[name]])
                for source, target, kernels in found for name, resources in kernels.items()}


def differences(old: dict[Row, Resources], new: dict[Row, Resources]) -> list[str]:
    """Returns a line for each kernel whose resources differ from the table."""
    lines = []
    for row in sorted(old.keys() | new.keys(), key=order):
        before, after = old.get(row), new.get(row)
        if before and after:
            after = Resources(*(a if b == UNCOUNTED else b for a, b in zip(before, after)))
        if before == after:
            continue
        if before is None or after is None:
            said = "is not in the table" if before is None else "is in the table and no longer in the source"
        else:
            said = ", ".join(f"{column} {a} -> {b}" for column, a, b in zip(COLUMNS, before, after) if a != b)
        lines.append(f"{row[2]:7} {row[1]:40} {said}")
    return lines


def check(compiler: Compiler, everything: bool = False) -> tuple[list[str], str]:
    """Returns the differences from the table, and a line about what was compared. Raises Skip if the differences
    cannot be found."""
    table = Table.parse(TABLE.read_text())
    keys = {source: key_of(source, targets) for source, targets in sources().items()}
    changed = {source: key for source, key in keys.items() if everything or table.keys.get(source) != key}
    names = ", ".join(pathlib.Path(source).name for source in changed)
    if changed and not compiler.nvcc:
        raise Skip(f"no nvcc to compile what changed since resources.tsv was written: {names}")
    another = f"ptxas is {compiler.ptxas}, resources.tsv of {table.ptxas}" if compiler.ptxas != table.ptxas else ""
    if changed and another and not everything:
        raise Skip(f"{another}, and there are changes: {names}")
    new = compiler.rows(changed) if changed else {}
    unchanged = keys.keys() - changed.keys()
    found = differences({row: r for row, r in table.rows.items() if row[0] not in unchanged}, new)
    if changed and found and another:
        raise Skip("\n".join([*found, f"{another}, so the numbers may differ"]))
    said = (f"{len(new)} kernels of {len(changed)} sources compiled, {len(found)} differ; "
            f"{len(unchanged)} sources are those of the table")
    if any(UNCOUNTED in r for r in new.values()):
        said += f"\n{NO_NVDISASM}"
    if changed and not found and not everything:
        said += f"\nresources.tsv has older hashes of {names}; to spare others the compiling: {RENEW}"
    return found, said


def update(compiler: Compiler) -> None:
    if not compiler.nvcc:
        raise Skip("no nvcc")
    table = Table.parse(TABLE.read_text() if TABLE.exists() else "")
    keys = {source: key_of(source, targets) for source, targets in sources().items()}
    changed = {source: key for source, key in keys.items()
               if compiler.ptxas != table.ptxas or table.keys.get(source) != key}
    kept = {row: r for row, r in table.rows.items() if row[0] in keys and row[0] not in changed}
    new = kept | (compiler.rows(changed) if changed else {})
    if any(UNCOUNTED in r for r in new.values()):
        raise Skip(NO_NVDISASM)
    for line in differences(table.rows, new):
        print(line)
    TABLE.write_text(str(Table(compiler.ptxas, keys, new)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="compile every source")
    parser.add_argument("--update", action="store_true", help="write the table")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at once")
    args = parser.parse_args()
    try:
        compiler = Compiler(args.jobs, afresh=args.all)
        if args.update:
            update(compiler)
            return 0
        found, said = check(compiler, args.all)
    except Skip as skip:
        print(f"skipped: {skip}")
        return 77
    if found:
        said = "\n".join([*found, said, f"if this is meant: {RENEW}"])
    print(said)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
