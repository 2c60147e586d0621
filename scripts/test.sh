#!/usr/bin/env bash
# Builds Quire and runs every test that needs no GPU.
#
#   ./scripts/test.sh             everything: release, planted bugs, sanitizers, thread-safety analysis, fuzzers
#   ./scripts/test.sh --ci        what fits each commit: as everything, but a twelfth of the planted bugs, a quarter of the
#                                 tests on the emulated GPU, and one of three for sanitizers: either half of the tests and
#                                 fuzzers under ASan, or TSan. The commit's id chooses. Sanitizers run no emulated GPU.
#   ./scripts/test.sh --quick     the release build and its tests only
#   ./scripts/test.sh --image     the release build and the tests of the container image, by buildah and podman, as root
#   ./scripts/test.sh --mutation  the release build, and a check that its tests notice each planted bug
#   ./scripts/test.sh --sanitizers  the sanitizer builds and all their tests, without the fuzzers
#   ./scripts/test.sh --fuzz SECONDS  the ASan build's fuzz targets, each for so long
#
# Installs missing Debian/Ubuntu packages (as root or with sudo) and fetches the chat model once. Ends with the skips and
# their reasons, a table of stage times, and "N passed, N failed, N skipped"; exit status 0 only when nothing failed.
set -uo pipefail
cd "$(dirname "$0")/.."
source scripts/packages.sh

run=all
case "${1:-}" in
  --ci) run=ci ;;
  --quick) run=quick ;;
  --image) run=image ;;
  --mutation) run=mutation ;;
  --sanitizers) run=sanitizers ;;
  --fuzz) run=fuzz seconds=${2:?want the seconds of each target} ;;
  "") ;;
  *) sed -n '2,15p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;;
esac

results=build/test-results
rm -rf "$results"
mkdir -p "$results"
jobs=$(nproc)

# stage NAME COMMAND...: runs the command, keeps its log, and records its wall time, CPU time and status. After a
# failure, prints the end of the log.
stage() {
  local name=$1 status TIMEFORMAT='%R %U %S'
  shift
  echo "== $name"
  { time "$@" >"$results/$name.log" 2>&1; } 2>"$results/$name.time"
  status=$?
  awk -v name="$name" -v status="$status" -v OFS='\t' \
    '{ print name, int($1 + 0.5), int($2 + $3 + 0.5), status }' "$results/$name.time" >>"$results/stages.tsv"
  if [ "$status" -ne 0 ]; then
    echo "-- $name failed with status $status; the end of its log:"
    tail -n 60 "$results/$name.log"
  fi
  return "$status"
}

# build PRESET [TARGET]: configures a preset and builds everything, or one target.
build() { cmake --preset "$1" && cmake --build --preset "$1" ${2:+--target "$2"} -- -j "$jobs"; }

# run_tests NAME PRESET [ctest arguments]: runs every ctest entry. Each GoogleTest binary writes its cases as XML. The
# cases of Python tests are counted from their output, so ctest must keep more of it than its default of 1 KiB.
run_tests() {
  local xml=$PWD/$results/$1 preset=$2
  shift 2
  mkdir -p "$xml"
  GTEST_OUTPUT="xml:$xml/" ctest --test-dir "build/$preset" -j "$jobs" --output-on-failure \
    --test-output-size-passed 1048576 --output-junit "$xml/ctest.junit.xml" "$@"
}

# run_quarter K: runs all release tests but those on the emulated GPU, and of these the K-th quarter, K from 1 to 4.
run_quarter() {
  run_tests release "$release" -LE deploy -E "^cuda_|$emulated_e2e"
  local status=$?
  GTEST_TOTAL_SHARDS=4 GTEST_SHARD_INDEX=$(($1 - 1)) run_tests emulated "$release" -R '^cuda_' || status=1
  run_tests emulated-e2e "$release" -R "$emulated_e2e" -I "$1,,4" || status=1
  return "$status"
}
emulated_e2e='^e2e_(cuda_|backend)'

# run_asan [HALF]: runs the tests that a sanitizer can run in the time, or those of a half of the folders.
run_asan() { run_tests asan "$asan" -LE 'slow|release|deploy' ${1:+-L "^$1\$"}; }

# run_tsan: runs the tests that are about threads.
run_tsan() { run_tests tsan "$tsan" -L threads; }

# fuzz SECONDS TARGET: runs a fuzz target, from the seeds in the tree and the inputs that earlier runs kept in
# build/fuzz-corpus.
fuzz() {
  local name output status
  name=$(basename "$2")
  mkdir -p "build/fuzz-corpus/$name"
  if [ ! -d "tests/fuzz_seeds/$name" ]; then echo "$name: no seeds: want tests/fuzz_seeds/$name"; return 1; fi
  output=$("$2" -max_total_time="$1" -timeout=10 -rss_limit_mb=4096 -print_final_stats=0 \
    -artifact_prefix="$results/" "build/fuzz-corpus/$name" "tests/fuzz_seeds/$name" 2>&1)
  status=$?
  printf '== %s\n%s\n' "$2" "$output"
  return "$status"
}

# fuzz_all PRESET SECONDS: runs each fuzz target of a build.
fuzz_all() {
  export -f fuzz
  export results
  find "build/$1/fuzz" -maxdepth 1 -type f -executable -print0 | sort -z |
    xargs -0 -P "$jobs" -n 1 bash -c 'fuzz "$@"' fuzz "$2"
}

# Fetches the chat model for the tokenizer tests. Without the model these tests report that they are skipped.
fetch_model() { scripts/get_model.sh smollm2-135m-instruct || echo "not fetched"; }

# Fetches nvdisasm, where nvcc is, for cuda_resources_test. Without nvdisasm, the test reports that it did not count.
fetch_nvdisasm() {
  local PATH="$PATH:${CUDA_HOME:-/usr/local/cuda}/bin"
  if ! command -v nvcc || command -v nvdisasm || [ -d build/nvdisasm ]; then return; fi
  python3 -m pip install --target build/nvdisasm nvidia-cuda-nvdisasm==13.5.37 || echo "not fetched"
}

stage packages quire_install "${QUIRE_BUILD_PACKAGES[@]}" "${QUIRE_TEST_PACKAGES[@]}"
stage fetch-model fetch_model
stage fetch-nvdisasm fetch_nvdisasm
# The preset `ci` is `release` with joined sources: quicker to build once, slower to build again after a change.
release=release asan=asan tsan=tsan part=1/1 half=
case $run in
  all) release=ci ;;
  ci)
    release=ci asan=asan-host tsan=tsan-host
    commit=$(git rev-parse HEAD 2>/dev/null || echo 0)
    number=$((16#${commit:0:6}))
    part=$((number % 12 + 1))/12
    quarter=$((number / 12 % 4 + 1))
    # Each choice has digits of its own in the number, so that every combination has its turn.
    case $((number / 48 % 3)) in
      0) half=half_1 tsan= ;;
      1) half=half_2 tsan= ;;
      2) asan= ;;
    esac
    ;;
esac
mutate=(python3 tests/mutation/mutate.py --build "build/$release" --part "$part" --jobs "$jobs")
if [ "$run" = mutation ]; then
  stage build-release build "$release" && exec "${mutate[@]}"
  exit 1
fi
if [ "$run" = fuzz ]; then
  stage build-asan build "$asan" fuzzers && stage run-fuzz fuzz_all "$asan" "$seconds"
  exit
fi
[ "$run" != image ] || stage image-packages quire_install "${QUIRE_IMAGE_PACKAGES[@]}"
if [ "$run" != sanitizers ] && stage build-release build "$release"; then
  case $run in
    image) stage test-image run_tests release "$release" -L deploy ;;
    quick) stage test-release run_tests release "$release" -LE deploy ;;
    all) stage test-release run_tests release "$release" -LE deploy; stage mutation "${mutate[@]}" ;;
    ci) stage test-release run_quarter "$quarter"; stage mutation "${mutate[@]}" ;;
  esac
fi
if [ "$run" = all ] || [ "$run" = ci ] || [ "$run" = sanitizers ]; then
  export UBSAN_OPTIONS=print_stacktrace=1
  export TSAN_OPTIONS="suppressions=$PWD/tests/server/tsan.supp halt_on_error=1"
  # One clang build has ASan, UBSan, the thread-safety analysis, and the coverage instrumentation that guides the
  # fuzzers.
  if [ -n "$asan" ]; then
    stage build-asan build "$asan" $half && stage test-asan run_asan $half &&
      { [ "$run" = sanitizers ] || stage run-fuzz fuzz_all "$asan" 10; }
  fi
  if [ -n "$tsan" ]; then
    stage build-tsan build "$tsan" thread_tests && stage test-tsan run_tsan
  fi
fi

exec python3 scripts/summarize_tests.py "$results"
