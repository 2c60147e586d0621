# Read by run_all.sh and quarter_hour.sh: the libraries of a build, the GPU, and lines of results. Wants $build, the folder
# of the binaries, and for lines $results.

die() { echo "$(basename "$0"): $*" >&2; exit 3; }

# cuBLASLt may be installed with torch instead of in the system's CUDA.
libraries=$build/lib
if ! PATH=$PATH:/sbin ldconfig -p | grep -q libcublasLt.so.13; then
  for folder in "${CUDA_HOME:-/usr/local/cuda}/lib64" \
    $(python3 -c 'import nvidia, pathlib
for root in nvidia.__path__: print(*{f.parent for f in pathlib.Path(root).rglob("libcublasLt.so.13")})' 2>/dev/null); do
    if [ -e "$folder/libcublasLt.so.13" ]; then libraries+=:$folder; break; fi
  done
fi

# Runs a command with the libraries of the build. Used only for our own binaries: other programs must not load a
# bundle's libraries.
with_libraries() { env LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$@"; }

want_gpu() {
  command -v nvidia-smi >/dev/null || die "no GPU: nvidia-smi is not on the PATH"
  nvidia-smi -L 2>/dev/null | grep -q '^GPU' || die "no GPU: nvidia-smi lists none"
}

first_of() { "$@" 2>/dev/null | head -n 1; }

machine_line() {
  local gpu driver
  IFS=, read -r gpu driver < <(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader)
  printf '{"type": "machine", "date": "%s", "gpu": "%s", "driver": "%s", "commit": "%s", "nvcc": "%s", "torch": "%s", "code": %s}\n' \
    "$(date -u +%F)" "$gpu" "${driver# }" "$(first_of cat "$build/commit" || first_of git rev-parse --short HEAD)" \
    "$(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')" \
    "$(first_of python3 -c 'import importlib.metadata as m; print(m.version("torch"))')" \
    "$(first_of cat "$build/code.json" || python3 bench/gpu/report.py code)"
}

# skip_phase NAME REASON: records a skip for the tables, so that no phase looks as if it had run.
skip_phase() {
  echo "skipped: $2"
  printf '{"type": "phase_skipped", "phase": "%s", "reason": "%s"}\n' "$1" "$2" >>"$results"
}
