#!/usr/bin/env python3
"""Fails on an #include that goes against the direction a request travels.

Who may include whom (a folder also sees itself, the standard library and Abseil):

  server   proto, gRPC, engine/engine.h, engine/request/, base
  client   proto, gRPC, base
  tools    engine, kernels, base
  engine   kernels/*.h, kernels/ops/, base; inside engine a folder sees those listed above it
  kernels  base; kernels/cuda/ also CUDA

At most eight files include gRPC. Run with --self-test to see the rules fail on what they forbid.
"""

import pathlib
import re
import sys

ENGINE_ORDER = ["request", "kv", "tokenizer", "weights", "frontend", "admission", "scheduler",
                "batch", "model", "sampling", "output", "convert"]
MAX_GRPC_FILES = 8
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^">]+)[">]', re.MULTILINE)
GRPC = re.compile(r"^(grpcpp|grpc)/|\.grpc\.pb\.h$")
PROTOBUF = re.compile(r"\.pb\.h$|^google/protobuf/")
CUDA = re.compile(r"^(cuda|cublas|nccl|mma\.h|cooperative_groups)")


def violation(source: str, included: str) -> str | None:
    """Why `source` (path from the root) must not include `included`, or None."""
    parts = source.split("/")
    room = parts[0]
    if GRPC.search(included) and room not in ("server", "client"):
        return "only server/ and client/ know gRPC"
    if PROTOBUF.search(included) and room not in ("server", "client"):
        return "only server/ and client/ know protobuf"
    if CUDA.search(included) and not source.startswith("kernels/cuda/"):
        return "only kernels/cuda/ includes CUDA headers"
    target = included.split("/")[0]
    if target not in ("server", "client", "tools", "engine", "kernels", "base", "tests", "bench"):
        return None
    if target == room:
        return engine_violation(parts, included.split("/")) if room == "engine" else None
    allowed = {
        "server": lambda i: i == "engine/engine.h" or i.startswith(("engine/request/", "base/")),
        "client": lambda i: i.startswith("base/"),
        "tools": lambda i: i.startswith(("engine/", "kernels/", "base/")),
        "engine": lambda i: i.startswith(("base/", "kernels/ops/")) or re.fullmatch(r"kernels/[^/]+\.h", i),
        "kernels": lambda i: i.startswith("base/"),
        "base": lambda i: False,
    }
    if room in allowed and not allowed[room](included):
        return f"{room}/ must not see {included}"
    return None


def engine_violation(source: list[str], included: list[str]) -> str | None:
    if len(source) == 2:  # engine.cc and its kind see all
        return None
    if len(included) == 2:
        return "a folder of engine/ must not see the engine itself"
    here, there = source[1], included[1]
    if here == there:
        return None
    if ENGINE_ORDER.index(there) > ENGINE_ORDER.index(here):
        return f"engine/{here} comes before engine/{there}"
    return None


def sources(root: pathlib.Path):
    for room in ("server", "client", "tools", "engine", "kernels", "base"):
        for path in sorted((root / room).rglob("*")):
            if path.suffix in (".h", ".cc", ".cu", ".cuh"):
                yield path


def check(root: pathlib.Path) -> int:
    failures, grpc_files, count = [], [], 0
    for path in sources(root):
        source = path.relative_to(root).as_posix()
        includes = INCLUDE.findall(path.read_text())
        count += 1
        if any(GRPC.search(i) for i in includes):
            grpc_files.append(source)
        for included in includes:
            if reason := violation(source, included):
                failures.append(f"{source} includes {included}: {reason}")
    if len(grpc_files) > MAX_GRPC_FILES:
        failures.append(f"{len(grpc_files)} files include gRPC, at most {MAX_GRPC_FILES}: {', '.join(grpc_files)}")
    for failure in failures:
        print(failure)
    print(f"{count} files, {len(grpc_files)} with gRPC, {len(failures)} against the table")
    return 1 if failures or count == 0 else 0


def self_test() -> int:
    forbidden = [
        ("engine/kv/block_pool.h", "engine/scheduler/scheduler.h"),
        ("engine/engine.cc", "kernels/cpu/cpu_backend.h"),
        ("engine/engine.cc", "grpcpp/grpcpp.h"),
        ("engine/output/output_processor.cc", "engine/engine.h"),
        ("kernels/cpu/norm.cc", "engine/request/request.h"),
        ("server/main.cc", "engine/scheduler/scheduler.h"),
        ("client/main.cc", "engine/engine.h"),
        ("base/json.cc", "kernels/dtype.h"),
        ("kernels/cpu/norm.cc", "cuda_runtime.h"),
    ]
    fine = [
        ("engine/scheduler/scheduler.h", "engine/kv/block_manager.h"),
        ("engine/engine.cc", "kernels/backend.h"),
        ("server/main.cc", "engine/engine.h"),
        ("server/main.cc", "grpcpp/grpcpp.h"),
        ("tools/quire_inspect.cc", "engine/weights/gguf.h"),
    ]
    wrong = [pair for pair in forbidden if violation(*pair) is None]
    wrong += [pair for pair in fine if violation(*pair) is not None]
    for source, included in wrong:
        print(f"misjudged: {source} includes {included}")
    return 1 if wrong else 0


if __name__ == "__main__":
    if "--self-test" in sys.argv:
        sys.exit(self_test())
    sys.exit(check(pathlib.Path(__file__).resolve().parents[2]))
