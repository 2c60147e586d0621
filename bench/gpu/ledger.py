"""The table of docs/gpu-status.md: the kernels that a GPU has run, and whether they have changed since.

A row's hash is that of the code that the GPU ran, or of the code here when no GPU has run the kernel. A kernel that
has changed since is marked. `report.py renew` updates the whole table.
"""

import dataclasses
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/kernels/cuda"))
from source_code import code_key, includes

DOCUMENT = ROOT / "docs/gpu-status.md"
RENEW = "python3 bench/gpu/report.py renew docs/gpu-status.md"
# Headers that do not count as source of a kernel. ops.h declares every op, so a change of one op would otherwise
# count as a change of every kernel.
LEFT_OUT = ("kernels/cuda/ops.h",)


@dataclasses.dataclass(frozen=True)
class Kernel:
    sources: tuple  # the kernel is these files and those that they include
    tests: tuple    # cuda_*_test that must have run on a GPU before the kernel counts as run there


CUDA = "kernels/cuda"


def step_op(path: str) -> Kernel:
    return Kernel((f"{CUDA}/{path}.cu", f"kernels/ops/{pathlib.Path(path).name}.cc"), ("step_ops",))


def sources(room: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{CUDA}/{room}/{name}" for name in names)


ATTENTION = sources("attention", "paged_attention.cu", "attention_plan.cc", "shared_units.cc") + (
    "kernels/ops/paged_attention.cc",)
KERNELS = {
    "primitives": Kernel(sources("device", "primitives.cuh"), ("primitives", "hopper_primitives")),
    "paged_attention": Kernel(ATTENTION, ("paged_attention",)),
    "fp8_attention": Kernel(ATTENTION + sources("attention", "fp8_attention.cu"), ("fp8_attention",)),
    "prefill_attention": Kernel(ATTENTION + sources("attention", "prefill_attention.cu"), ("prefill_attention",)),
    "shared_units": Kernel(ATTENTION, ("shared_keys",)),
    "skipping_attention": Kernel(ATTENTION + sources("attention", "skipping_attention.cu"), ("far_keys",)),
    "attn_merge": Kernel(ATTENTION, ("attn_merge", "paged_attention")),
    "attention_reference": Kernel(sources("attention", "attention_reference.cu") + ("kernels/ops/paged_attention.cc",),
                                  ("attention_reference",)),
    **{path.split("/")[-1]: step_op(path) for path in (
        "gather_rows", "norm", "attention/copy_blocks", "attention/qkv_post", "attention/shift_keys",
        "attention/update_table", "product/linear", "sample/argmax", "sample/take_tokens")},
    "embed": Kernel((f"{CUDA}/embed.cu", "kernels/ops/embed.cc"), ("step_ops", "packed_gemm")),
    "plan_decodes": Kernel(ATTENTION, ("plan_decodes",)),
    "sample": Kernel(sources("sample", "sample.cu") + ("kernels/ops/sample.cc",), ("device_sampler",)),
    "weight_product": Kernel(sources("product", "weight_product.cu"), ("packed_gemm",)),
    "fp8_product": Kernel(sources("product", "fp8_product.cu"), ("fp8_product",)),
    "fixed_rows_gemm": Kernel(sources("product", "fixed_rows_gemm.cc"), ("fixed_rows_gemm",)),
    "wgmma_grouped_gemm": Kernel(sources("product", "wgmma_grouped_gemm.cu", "expert_product.cu"), ("moe",)),
    "moe": Kernel(sources("product", "moe.cu", "expert_product.cu") + ("kernels/ops/moe.cc",), ("moe",)),
    "CudaBackend": Kernel((f"{CUDA}/cuda_backend.cc",) + sources("sample", "device_sampler.cc") + sources(
        "product", "cuda_weight_layout.cc", "fp8_support.cc", "fp8_weight.cc", "pack_weight.cc", "weight_upload.cc"),
        ("backend", "bad_arguments")),
    "CudaDevice": Kernel((f"{CUDA}/cuda_module.cc",) + sources(
        "device", "cublas_gemm.cc", "cuda_device.cc", "device.cc", "gemm_shape.cc", "tensor_map.cc"),
        ("device", "hopper_primitives")),
    "tile_product (tests)": Kernel(("tests/kernels/cuda/tile_product.cuh",), ("tile_product",)),
}
HEAD = ["kernel", "code", "last seen by a GPU"]
NEVER, CHANGED = "never", "; **changed since**"


def files_of(name: str) -> set[str]:
    return includes(KERNELS[name].sources, ROOT, LEFT_OUT)


def source_hash(name: str) -> str:
    return code_key(KERNELS[name].sources, ROOT, left_out=LEFT_OUT)[:12]


def hashes() -> dict[str, str]:
    return {name: source_hash(name) for name in KERNELS}


def last_of(lines: list[dict], types: tuple, *keys: str) -> list[dict]:
    """Returns the lines of these types. Of several lines that agree in `keys`, keeps only the last, at the place of the
    first."""
    kept = {}
    for line in lines:
        if line["type"] in types:
            kept[tuple(line.get(key) for key in keys)] = line
    return list(kept.values())


def emit_to(results):
    """A function that writes a line to `results`, a file of JSON lines, and prints it."""
    def emit(line: dict):
        print(json.dumps(line), file=results, flush=True)
        print("  ".join(f"{key} {value:.4g}" if isinstance(value, float) else str(value)
                        for key, value in line.items() if key != "type"), flush=True)
    return emit


def table(head: list[str], rows: list[list]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


# --- Lines for RESULTS


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
            # Without a GPU, GoogleTest reports a test that it never started as completed, at the start of the Unix
            # epoch.
            if test.get("result") == "SKIPPED" or test.get("timestamp", "").startswith("1970-"):
                line["skipped"] += 1
            if failures := test.get("failures"):
                line["failures"] += 1
                line["reasons"].append(f"{suite['name']}.{test['name']}: {failures[0]['failure'].splitlines()[0]}")
    failed = status != 0 or line["failures"] > 0
    ran = line["tests"] - line["skipped"]
    line["status"] = "failed" if failed else "passed" if ran > 0 else "skipped"
    return line


SANITIZER_FINDINGS = 99  # exit status of compute-sanitizer for findings, as run_all.sh sets it


def sanitizer_line(tool: str, name: str, cases: str, status: int, path: pathlib.Path) -> dict:
    """A test under a tool of compute-sanitizer. It is broken when the tool neither found something nor ran the test to
    its end: the tool does not work here, or the test fails even without it."""
    run = test_line(name, status, path)
    state, reason = "broken", f"exit status {status}"
    if status == SANITIZER_FINDINGS:
        state, reason = "failed", "findings"
    elif status == 124:
        state, reason = "timeout", "it ran out of time"
    elif run["status"] == "passed":
        state, reason = "passed", ""
    elif status == 0:
        reason = "no test ran"
    return {"type": "sanitizer", "tool": tool, "test": name, "filter": cases, "status": state, "reason": reason}


# --- The table


def sanitizer_says(lines: list[dict]) -> str:
    """The results of all tools of compute-sanitizer for some tests, in words."""
    if not lines:
        return "; not under compute-sanitizer"
    said = ""
    if clean := sorted({line["tool"] for line in lines if line["status"] == "passed"}):
        said = f"; {', '.join(clean)} clean"
    for line in lines:
        if line["status"] != "passed":
            what = line["reason"] if line["status"] == "failed" else f"no answer, {line['reason']}"
            said += f"; **{line['tool']}: {what}**"
    return said


def seen_rows(lines: list[dict]) -> dict[str, str]:
    """The result of a run on a GPU for each kernel whose tests it ran."""
    tests = {line["name"]: line for line in last_of(lines, ("test",), "name")}
    sanitizers = last_of(lines, ("sanitizer",), "tool", "test")
    devices, machines = last_of(lines, ("device",)), last_of(lines, ("machine",))
    if not machines or not all(device["gpu"] for device in devices):
        return {}
    rows = {}
    for name, kernel in KERNELS.items():
        names = [f"cuda_{test}_test" for test in kernel.tests]
        runs = [tests.get(test) for test in names]
        if any(run is None or run["status"] == "skipped" for run in runs):
            continue
        passed = sum(run["tests"] - run["failures"] - run["skipped"] for run in runs)
        failed = sum(run["failures"] for run in runs)
        rows[name] = f"{machines[-1]['date']}, {machines[-1]['gpu']}: {passed} tests passed"
        if failed or any(run["status"] == "failed" for run in runs):
            rows[name] += f", **{failed} failed**"
        rows[name] += sanitizer_says([line for line in sanitizers if line["test"] in names])
    return rows


def rows_of(document: str) -> dict[str, tuple[str, str]]:
    """Maps each kernel in a document's table to its hash and its last run."""
    return {match[1]: (match[2], match[3]) for match in
            re.finditer(r"^\| ([^|]+?) \| ([0-9a-f]{12}) \| ([^|]+?) \|$", document, re.MULTILINE)}


def renewed_rows(old: dict[str, tuple[str, str]], lines: list[dict]) -> list[list[str]]:
    """Returns a row for each kernel: from the run in `lines` if it ran the kernel, else the old row. A row is marked if
    the kernel is not the code here."""
    seen = seen_rows(lines)
    machines = last_of(lines, ("machine",))
    ran = machines[-1].get("code", {}) if machines else {}
    rows = []
    for name in KERNELS:
        now = source_hash(name)
        code, last = old.get(name, (now, NEVER))
        if name in seen and name in ran:
            code, last = ran[name], seen[name]
        if last == NEVER:
            code = now
        else:
            last = last.removesuffix(CHANGED) + (CHANGED if code != now else "")
        rows.append([name, code, last])
    return rows


def status(lines: list[dict]) -> str:
    """The table after a run, for docs/gpu-status.md."""
    return table(HEAD, renewed_rows(rows_of(DOCUMENT.read_text()), lines)) + "\n"


def renew(document: str, lines: list[dict]) -> str:
    """The document with its table updated by the run in `lines`."""
    old_table = re.compile(re.escape("| " + " | ".join(HEAD) + " |") + r"\n(\|.*\n)*")
    if not old_table.search(document):
        raise SystemExit("report.py: the document has no table with the head " + " | ".join(HEAD))
    new_table = table(HEAD, renewed_rows(rows_of(document), lines)) + "\n"
    return old_table.sub(lambda _: new_table, document, count=1)


def stale(document: str) -> tuple[list[str], bool]:
    """Returns a line for each kernel that no GPU has run in its present form, and whether the table agrees with these
    lines."""
    found = rows_of(document)
    said, honest = [], set(found) <= set(KERNELS)
    said += [f"{name}: there is no such kernel" for name in found if name not in KERNELS]
    for name in KERNELS:
        code, last = found.get(name, ("", ""))
        current = code == source_hash(name)
        if not last:
            said.append(f"{name}: no row")
        elif last == NEVER:
            said.append(f"{name}: never run on a GPU" + ("" if current else ", and the row is of older code"))
        elif not current:
            said.append(f"{name}: changed since {last.split(':')[0]}")
        honest = honest and bool(last) and (current if last == NEVER else current != last.endswith(CHANGED))
    return said, honest
