#!/usr/bin/env python3
"""Fails on an #include that goes against the direction a request travels.

Who may include whom (a folder also sees itself, the standard library and Abseil):

  server   proto, engine/engine.h, engine/request/, text/chat_message.h, text/tokenizer/input_kind.h, base
  client   proto, gRPC, base
  tools    convert, engine, files, text, kernels, base
  convert  engine, files, text, kernels/quant/, base
  engine   files, text, kernels/*.h, kernels/ops/, kernels/quant/, base
  files    kernels/quant/, base
  text     base
  kernels  base; kernels/cuda/ also CUDA; kernels/quant/ nothing else of kernels

Inside engine/, server/ and text/ a folder sees those listed before it; the files of engine/ and server/
themselves see all of them.

At most four files include gRPC: in server/grpc/ the server, what carries its calls, and its logs; and the client.
"""

import pathlib
import re
import sys

ORDER = {
    "engine": ["request", "kv", "disk", "frontend", "admission", "sharing", "scheduler", "batch", "model", "runner",
               "output", "load", "step"],
    "server": ["identity", "config", "door", "call", "service", "gpu", "health", "http", "grpc"],
    "text": ["tokenizer", "jinja"],
}
ROOMS = ("server", "client", "tools", "convert", "engine", "files", "text", "kernels", "base")
MAX_GRPC_FILES = 4
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^">]+)[">]', re.MULTILINE)
GRPC = re.compile(r"^(grpcpp|grpc)/(?!.*\.pb\.h$)|\.grpc\.pb\.h$")
PROTOBUF = re.compile(r"\.pb\.h$|^google/protobuf/")
CUDA = re.compile(r"^(cuda|cublas|nccl|mma\.h|cooperative_groups)")


def violation(source: str, included: str) -> str | None:
    """Why `source` (path from the root) must not include `included`, or None."""
    parts = source.split("/")
    room = parts[0]
    if GRPC.search(included) and not source.startswith(("server/grpc/", "client/")):
        return "only server/grpc/ and client/ know gRPC"
    if PROTOBUF.search(included) and room not in ("server", "client"):
        return "only server/ and client/ know protobuf"
    if CUDA.search(included) and not source.startswith("kernels/cuda/"):
        return "only kernels/cuda/ includes CUDA headers"
    target = included.split("/")[0]
    if target not in ROOMS + ("tests", "bench"):
        return None
    if source.startswith("kernels/quant/") and not included.startswith(("kernels/quant/", "base/")):
        return "kernels/quant/ sees base/ alone"
    if target == room:
        return violation_of_order(parts, included.split("/")) if room in ORDER else None
    def starts(*prefixes):
        return lambda i: i.startswith(prefixes)

    allowed = {
        "server": lambda i: i in ("engine/engine.h", "text/chat_message.h", "text/tokenizer/input_kind.h")
        or i.startswith(("engine/request/", "base/")),
        "client": starts("base/"),
        "tools": starts("convert/", "engine/", "files/", "text/", "kernels/", "base/"),
        "convert": starts("engine/", "files/", "text/", "kernels/quant/", "base/"),
        "engine": lambda i: i.startswith(("files/", "text/", "kernels/ops/", "kernels/quant/", "base/"))
        or re.fullmatch(r"kernels/[^/]+\.h", i),
        "files": starts("kernels/quant/", "base/"),
        "text": starts("base/"),
        "kernels": starts("base/"),
        "base": starts(),
    }
    if room in allowed and not allowed[room](included):
        return f"{room}/ must not see {included}"
    return None


def violation_of_order(source: list[str], included: list[str]) -> str | None:
    """As violation(), of two files of one room whose folders have an order."""
    room, order = source[0], ORDER[source[0]]
    if len(source) == 2:
        return None
    if len(included) == 2:
        return f"a folder of {room}/ must not see the files above it"
    here, there = source[1], included[1]
    if here != there and order.index(there) > order.index(here):
        return f"{room}/{here} comes before {room}/{there}"
    return None


def sources(root: pathlib.Path):
    for room in ROOMS:
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
        ("server/service/token_service.cc", "quire/v1/token_service.grpc.pb.h"),
        ("engine/output/output_processor.cc", "engine/engine.h"),
        ("kernels/cpu/norm.cc", "engine/request/request.h"),
        ("server/main.cc", "engine/scheduler/scheduler.h"),
        ("client/main.cc", "engine/engine.h"),
        ("base/json.cc", "kernels/dtype.h"),
        ("text/tokenizer/tokenizer.h", "engine/request/request.h"),
        ("text/tokenizer/tokenizer.h", "text/jinja/value.h"),
        ("files/gguf.h", "kernels/tensor_view.h"),
        ("engine/model/model.h", "convert/converter.h"),
        ("kernels/quant/weight_view.h", "kernels/dtype.h"),
        ("server/door/door.h", "server/grpc/grpc_server.h"),
        ("server/http/admin_server.h", "server/stop_signals.h"),
        ("server/main.cc", "text/tokenizer/tokenizer.h"),
        ("kernels/cpu/norm.cc", "cuda_runtime.h"),
    ]
    fine = [
        ("engine/scheduler/scheduler.h", "engine/kv/block_manager.h"),
        ("engine/engine.cc", "kernels/backend.h"),
        ("server/main.cc", "engine/engine.h"),
        ("server/service/proto_conversion.cc", "text/chat_message.h"),
        ("engine/frontend/frontend.h", "text/tokenizer/tokenizer.h"),
        ("files/ggml_types.h", "kernels/quant/weight_view.h"),
        ("convert/converter.cc", "engine/model/model_config.h"),
        ("server/grpc/grpc_calls.cc", "grpcpp/support/slice.h"),
        ("server/service/reflection_service.cc", "grpc/health/v1/health.pb.h"),
        ("tools/quire_inspect.cc", "files/gguf.h"),
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
