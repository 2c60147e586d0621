#!/usr/bin/env bash
# The first ten minutes on a GPU that is lent for a quarter of an hour. What needs no quiet GPU runs side by side; what is
# timed runs alone. The order is that of what each part decides:
#
#   first       conformance of the primitives, and a server's greedy tokens beside the CPU's
#   tests       every other test of the kernels, six at a time
#   memcheck    compute-sanitizer on one case of each of four families of kernels
#   timings     decodes, prompts and linear layers, beside the ceilings of this GPU
#   server      8 of the 32 layers of an 8B model: start, streams, a prompt of 8k tokens
#
#   bench/gpu/quarter_hour.sh [--build DIR] [--out DIR] [--seconds 560] [--phase NAME]...
#
#   --build DIR    folder of the binaries (build/cuda, or the bundle that has this script)
#   --out DIR      folder for the results (build/quarter-hour): results.jsonl, summary.txt, which names what failed,
#                  logs.tgz, and the tables performance.md and gpu-status.md. They are saved after each phase, and when
#                  the run is stopped
#   --seconds N    ends after so many. Each phase has its part of them, and leaves the rest to the next
#   --phase NAME   only this phase; may be repeated
#
# A test that hangs is named, and the others of its program run without it. A phase that fails stops no other; the exit
# status is 1 when any failed, and 3 without a GPU.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

all_phases=(first tests memcheck timings server)
phases=() build=$([ -e commit ] && echo . || echo build/cuda)  # `commit` is in a bundle
out=build/quarter-hour seconds=560
usage() { sed -n '2,21p' "$0" | sed 's/^# \{0,1\}//'; exit 2; }
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || usage
  case "$1" in
    --build) build=$2 ;;
    --out) out=$2 ;;
    --seconds) [[ $2 =~ ^[1-9][0-9]*$ ]] || usage; seconds=$2 ;;
    --phase) [[ " ${all_phases[*]} " == *" $2 "* ]] || usage; phases+=("$2") ;;
    *) usage ;;
  esac
  shift 2
done
[ ${#phases[@]} -gt 0 ] || phases=("${all_phases[@]}")
build=$(realpath -m "$build") out=$(realpath -m "$out")
# The end of each phase, in hundredths of the time.
declare -A end=([first]=11 [tests]=24 [memcheck]=34 [timings]=70 [server]=100)
conformance_tests=(cuda_device_test cuda_primitives_test cuda_hopper_primitives_test cuda_tile_product_test)
# The tests that say most come first.
first_tests=(cuda_paged_attention_test cuda_prefill_attention_test cuda_packed_gemm_test cuda_engine_test cuda_moe_test
  cuda_fp8_attention_test)
memcheck_cases=("cuda_paged_attention_test Cases/*/0:Cases/*/10" "cuda_prefill_attention_test Cases/*/0"
  "cuda_moe_test Orders/CudaMoeTest.Wgmma*/0" "cuda_packed_gemm_test Orders/*Stacked*/0")

source bench/gpu/common.sh
want_gpu
logs=$out/logs results=$out/results.jsonl summary=$out/summary.txt
mkdir -p "$logs"
# At most 16 MiB of each log is kept: its end.
save() {
  local log
  for log in "$logs"/*; do
    [ "$(stat -c %s "$log")" -le $((16 << 20)) ] || { tail -c $((16 << 20)) "$log" >"$log.end" && mv "$log.end" "$log"; }
  done
  tar -C "$out" -czf "$out/logs.tgz" logs
  [ ! -s "$results" ] || python3 bench/gpu/report.py tables "$results" --out "$out"
}
trap 'save; rm -rf "$logs"' EXIT
trap 'exit 1' TERM INT

deadline=$seconds
left() { echo $((deadline > SECONDS ? deadline - SECONDS : 1)); }
say() { echo "$*" | tee -a "$summary"; }
# run_tests MOST NAME...: programs of tests, each for MOST of 560 parts of the time at most.
run_tests() {
  python3 bench/gpu/run_tests.py --build "$build" --libraries "$libraries" --json "$results" --logs "$logs" --at_once 6 \
    --most_seconds "$(($1 * seconds / 560 + 1))" --seconds "$(left)" "${@:2}"
}
has_server() { [ -x "$build/bin/quire-server" ] || { skip_phase "$1" "no quire-server in $build"; return 1; }; }
# measure_server NAME ARGUMENTS...
measure_server() {
  timeout -k 5 "$(left)" python3 bench/gpu/engine.py --bin "$build/bin" --libraries "$libraries" --json "$results" \
    --seconds "$(($(left) * 9 / 10))" --work build/gpu-models "${@:2}" >"$logs/$1" 2>&1 && return
  say "$1: $(tail -n 1 "$logs/$1")"
  return 1
}

phase_first() {
  local tokens= failed=0
  if has_server tokens; then
    measure_server tokens --only tokens &
    tokens=$!
  fi
  run_tests 25 "${conformance_tests[@]}" || failed=1
  [ -z "$tokens" ] || wait "$tokens" || failed=1
  return "$failed"
}

phase_tests() {
  local path name names=()
  for name in "${first_tests[@]}"; do [ ! -x "$build/tests/$name" ] || names+=("$name"); done
  for path in "$build"/tests/cuda_*_test; do
    name=$(basename "$path")
    [[ " ${conformance_tests[*]} ${first_tests[*]} " == *" $name "* ]] || names+=("$name")
  done
  run_tests 45 "${names[@]}"
}

memcheck() { # NAME FILTER
  local json=$logs/memcheck_$1.json line
  with_libraries timeout -k 5 "$(left)" compute-sanitizer --tool memcheck --error-exitcode 99 "$build/tests/$1" \
    --gtest_filter="$2" --gtest_output="json:$json" >"$logs/memcheck_$1.log" 2>&1
  line=$(python3 bench/gpu/report.py sanitizer memcheck "$1" "$2" $? "$json")
  tee -a "$results" <<<"$line"
  [[ $line == *'"status": "passed"'* ]]
}
phase_memcheck() {
  local failed=0 one name filter running=()
  command -v compute-sanitizer >/dev/null || { skip_phase memcheck "no compute-sanitizer on the PATH"; return 0; }
  for one in "${memcheck_cases[@]}"; do
    read -r name filter <<<"$one"
    memcheck "$name" "$filter" &
    running+=($!)
  done
  for one in "${running[@]}"; do wait "$one" || failed=1; done
  return "$failed"
}

# bench SECONDS ARGUMENTS...: a process of its own, so that one that faults leaves the others.
bench() {
  with_libraries timeout -k 5 "$1" "$build/bin/quire-gpu-bench" --seconds "$(($1 * 9 / 10))" --json "$results" "${@:2}" 2>&1 |
    tee -a "$logs/bench"
  return "${PIPESTATUS[0]}"
}
phase_timings() {
  local failed=0
  bench "$(($(left) * 6 / 10 + 1))" --suite decode,prefill --filter "32/8 d128" || failed=1
  bench "$(left)" --suite linear || failed=1
  return "$failed"
}

phase_server() { ! has_server server || measure_server server --only bf16 --layers 8; }

failures=()
machine_line | tee -a "$results"
for name in "${phases[@]}"; do
  begin=$SECONDS
  deadline=$((seconds * ${end[$name]} / 100))
  if [ "$(left)" -le 1 ]; then skip_phase "$name" "no time was left"; failures+=("$name"); continue; fi
  echo "== $name, $(left) s"
  "phase_$name" || failures+=("$name")
  say "$name: $([[ " ${failures[*]-} " == *" $name "* ]] && echo failed || echo passed), $((SECONDS - begin)) s"
  save >/dev/null
done
python3 bench/gpu/report.py failures "$results" | tee -a "$summary"
[ ${#failures[@]} -eq 0 ]
