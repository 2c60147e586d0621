#!/usr/bin/env bash
# Builds Quire and serves the small bundled model, models/quire-stories, on 127.0.0.1:8100.
#
#   ./scripts/serve.sh [quire-server flags]                                      --model PATH serves another model
#   ./scripts/serve.sh --model "$(scripts/get_model.sh smollm2-135m-instruct)"   a small chat model, fetched once
#
# Installs missing Debian packages (as root or with sudo).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/packages.sh

quire_install "${QUIRE_BUILD_PACKAGES[@]}"
# A unity build compiles everything in half the time, and one changed file in more.
[ -f build/release/build.ninja ] || cmake --preset release -DQUIRE_BUILD_TESTS=OFF -DCMAKE_UNITY_BUILD=ON >/dev/null
echo "building..." >&2
cmake --build build/release --target quire-server quire quire-inspect quire-convert quire-sim

# Every flag can be set by an environment variable, so QUIRE_MODEL or QUIRE_CONFIG may already name the model.
[ -z "${QUIRE_MODEL:-}${QUIRE_CONFIG:-}" ] || exec build/release/bin/quire-server "$@"
for argument in "$@"; do
  case "$argument" in
    --model | --model=* | --config | --config=* | --help | -h | --version) exec build/release/bin/quire-server "$@" ;;
  esac
done
cat >&2 <<TEXT
when it is ready, in another terminal:
  build/release/bin/quire generate --prompt "Once upon a time" --temperature 0.7
TEXT
exec build/release/bin/quire-server --model models/quire-stories "$@"
