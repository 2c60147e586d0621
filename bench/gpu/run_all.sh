#!/usr/bin/env bash
# Tests and measures the CUDA kernels on a GPU, in calls of under ten minutes each:
#
#   bench/gpu/run_all.sh --part 1     machine, build, conformance of the primitives, correctness
#   bench/gpu/run_all.sh --part 2     compute-sanitizer, benchmarks, Nsight Compute
#   bench/gpu/run_all.sh --part 3     the same shapes beside others (torch, FlashInfer where installed, CUTLASS where built)
#   bench/gpu/run_all.sh --part 4     a whole server: its tokens, its speed with an 8B model
#   bench/gpu/run_all.sh --part 5     the same with other flags, and a whole server under compute-sanitizer
#
# Without --part all of it runs, in some 40 minutes. Other options:
#   --phase NAME   only this phase; may be repeated: machine build conformance correctness sanitizer kernels ncu
#                  peers cutlass engine choices soak
#   --build DIR    folder of the binaries (build/cuda, or the bundle that has this script); one that --bundle made is not built again
#   --bundle DIR   builds for sm_90a, copies the binaries and their libraries to DIR and DIR.tar.xz, and ends. For a
#                  machine with a GPU and a glibc no older, on which nothing can be installed. Needs no GPU itself
#   --check        only starts every binary of --build and lists its tests, and ends. Needs no GPU
#   --resume       leaves out the cases of a server that results.jsonl has
#   --out DIR      folder for results.jsonl, run.log and the tables performance.md and gpu-status.md (build/gpu-run);
#                  parts add to the files there
#
# A phase that fails does not stop the others; the exit status is not 0 when any failed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

all_phases=(machine build conformance correctness sanitizer kernels ncu peers cutlass engine choices soak)
phases=() build=$([ -e commit ] && echo . || echo build/cuda)  # `commit` is in a bundle
out=build/gpu-run bundle= check= resume=
models=build/gpu-models  # of the phases engine, choices and soak, 21 GB
max_bundle_mib=40  # compressed
usage() { sed -n '2,21p' "$0" | sed 's/^# \{0,1\}//'; exit 2; }
while [ $# -gt 0 ]; do
  if [ "$1" = --check ]; then check=yes; shift; continue; fi
  if [ "$1" = --resume ]; then resume=--resume; shift; continue; fi
  [ $# -ge 2 ] || usage
  case "$1" in
    --part)
      case "$2" in
        1) phases+=(machine build conformance correctness) ;;
        2) phases+=(sanitizer kernels ncu) ;;
        3) phases+=(peers cutlass) ;;
        4) phases+=(engine) ;;
        5) phases+=(choices soak) ;;
        *) usage ;;
      esac ;;
    --phase) [[ " ${all_phases[*]} " == *" $2 "* ]] || usage; phases+=("$2") ;;
    --build) build=$2 ;;
    --bundle) bundle=${2%/} ;;
    --out) out=$2 ;;
    *) usage ;;
  esac
  shift 2
done
[ ${#phases[@]} -gt 0 ] || phases=("${all_phases[@]}")
build=$(realpath -m "$build")

# The most seconds that each phase may take. The phases of one --part take at most 580 together.
declare -A limit=([machine]=20 [build]=380 [conformance]=60 [correctness]=120 [sanitizer]=160 [kernels]=365 [ncu]=55 [peers]=440
  [cutlass]=120 [engine]=570 [choices]=335 [soak]=245)
most_of_a_test=40  # seconds, so that one which hangs leaves time for the others

conformance_tests=(cuda_primitives_test cuda_hopper_primitives_test cuda_tile_product_test cuda_device_test)
# The test cases for compute-sanitizer, which are small. The Hopper primitives and the kernels on wgmma have no
# racecheck, because racecheck does not follow TMA.
sanitizer_cases=(
  "memcheck cuda_primitives_test *" "racecheck cuda_primitives_test *" "synccheck cuda_primitives_test *"
  "memcheck cuda_hopper_primitives_test *" "synccheck cuda_hopper_primitives_test *"
  "memcheck cuda_paged_attention_test Cases/*/0:Cases/*/1:Cases/*/9:Cases/*/10"
  "racecheck cuda_paged_attention_test Cases/*/0:Cases/*/10"
  "synccheck cuda_paged_attention_test Cases/*/0:Cases/*/10"
  "memcheck cuda_fp8_attention_test *EveryNumber*" "racecheck cuda_fp8_attention_test *EveryNumber*-*/4"
  "synccheck cuda_fp8_attention_test *EveryNumber*/4"
  "memcheck cuda_prefill_attention_test Cases/*/0" "synccheck cuda_prefill_attention_test Cases/*/0"
  "memcheck cuda_shared_keys_test Cases/*/0" "racecheck cuda_shared_keys_test Cases/*/0"
  "memcheck cuda_far_keys_test *OtherKernels*:*DrawnRanges*" "racecheck cuda_far_keys_test *DrawnRanges*"
  "memcheck cuda_attn_merge_test Orders/*/0" "racecheck cuda_attn_merge_test Orders/*/0"
  "memcheck cuda_step_ops_test Orders/*/0" "racecheck cuda_step_ops_test Orders/*/0"
  "memcheck cuda_attention_reference_test *AgreesWithDoubles*"
  "memcheck cuda_moe_test Orders/*ManyChoices*/0" "racecheck cuda_moe_test Orders/CudaMoeTest.ManyChoices*/0"
  "memcheck cuda_moe_test Orders/CudaMoeTest.Wgmma*/0" "synccheck cuda_moe_test Orders/CudaMoeTest.Wgmma*/0"
  "memcheck cuda_device_sampler_test *DrawsAndWeighs*" "racecheck cuda_device_sampler_test *DrawsAndWeighs*"
  "memcheck cuda_plan_decodes_test *ThePlansOfTheHost*" "memcheck cuda_fp8_product_test Orders/QuantizeTokens*/0"
  "memcheck cuda_packed_gemm_test Orders/*Stacked*/0" "racecheck cuda_packed_gemm_test Orders/*Stacked*/0")
# Each entry is a kernel, a suite and a case. Nsight Compute examines the kernel's first launch in that case.
ncu_cases=(
  "AttnKernel decode decode 64x8192 32/8 d128 bs16" "AttnMergeKernel decode decode 1x131072 32/8 d128 bs16"
  "Fp8AttnKernel decode decode 64x8192 32/8 d128 bs16 fp8"
  "AttnKernel prefill prefill 1x8192@8192 32/8 d128 bs16" "Fp8AttnKernel prefill prefill 1x8192@8192 32/8 d128 bs16 fp8"
  "PrefillAttnKernel prefill prefill 1x8192@8192 32/8 d128 bs16 wgmma"
  "Fp8PrefillAttnKernel prefill prefill 1x8192@8192 32/8 d128 bs16 wgmma fp8"
  "WgmmaGroupedGemmKernel linear moe mixtral 8/2 BF16 M=8192 wgmma"
  "PackedGemmKernel linear linear Q4_K M=1 N=4096 K=14336"
  "PackedBatchGemmKernel linear linear Q4_K M=64 N=4096 K=14336")

source bench/gpu/common.sh
# The server and the client need gRPC, without which the last three phases are skipped.
compile() {
  local server=OFF targets=(quire-gpu-bench quire-random-model cuda_tests)
  command -v cmake >/dev/null && command -v ninja >/dev/null || { echo "no cmake or ninja"; return 1; }
  if command -v grpc_cpp_plugin >/dev/null; then
    server=ON
    targets+=(quire-server quire quire-cuda)
  fi
  cmake --preset cuda -B "$build" -DQUIRE_BUILD_SERVER=$server "$@" &&
    cmake --build "$build" --target "${targets[@]}" -- -j "$(nproc)"
}

if [ -n "$bundle" ]; then
  [ ! -e "$bundle" ] || [ -e "$bundle/commit" ] || die "$bundle: want a new folder or an older bundle"
  compile -DQUIRE_CUDA_ARCHITECTURES=90a-real || die "the build failed"
  python3 bench/gpu/cutlass.py build "$build/cutlass" || echo "run_all.sh: the bundle has no programs of CUTLASS"
  rm -rf "$bundle"
  mkdir -p "$bundle/bin" "$bundle/tests" "$bundle/lib/quire"
  # What quarter_hour.sh reads, under the names of the repository.
  for path in bench/gpu models/quire-stories; do
    mkdir -p "$bundle/$(dirname "$path")" && cp -r "$path" "$bundle/$path" || die "no $path"
  done
  cp "$build"/bin/{quire-gpu-bench,quire-random-model,quire-server,quire} "$bundle/bin/" &&
    cp "$build/lib/quire/libquire-cuda.so" "$bundle/lib/quire/" && cp "$build"/tests/cuda_*_test "$bundle/tests/" ||
    die "no binaries"
  [ ! -d "$build/cutlass" ] || cp -r "$build/cutlass" "$bundle/cutlass"
  strip "$bundle"/bin/* "$bundle"/tests/* "$bundle"/lib/quire/* $(find "$bundle/cutlass" -type f 2>/dev/null)
  # Leaves out the libraries that every system has, and cuBLAS, which is large and comes with CUDA.
  ldd "$bundle"/bin/* "$bundle"/tests/* "$bundle"/lib/quire/* | awk '$3 ~ /^\// {print $3}' | sort -u |
    grep -Ev '/(libc|libm|libdl|librt|libpthread|libcublas[A-Za-z]*)\.so' |
    xargs -r cp -L -t "$bundle/lib/"
  git rev-parse --short HEAD >"$bundle/commit"
  python3 bench/gpu/report.py code >"$bundle/code.json" || die "no hashes of the kernels"
  # The tests have the same kernels, which a dictionary as long as the bundle finds again.
  tar -C "$(dirname "$bundle")" -c "$(basename "$bundle")" | xz --lzma2=preset=3,dict=256MiB >"$bundle.tar.xz" ||
    die "no $bundle.tar.xz"
  bytes=$(stat -c %s "$bundle.tar.xz")
  echo "$bundle: $(find "$bundle/tests" -type f | wc -l) tests, $(du -sm "$bundle" | cut -f1) MiB, $((bytes >> 20)) MiB in $bundle.tar.xz"
  [ "$bytes" -le $((max_bundle_mib << 20)) ] || die "the bundle: want at most $max_bundle_mib MiB compressed, got $((bytes >> 20))"
  exit 0
fi

has_server() { [ -x "$build/bin/quire-server" ]; }
# Starts every binary of the build, lists its tests, and runs the first test. Without a GPU, that test prints the
# reason why it is skipped.
if [ -n "$check" ]; then
  failed=0
  for path in "$build"/tests/cuda_*_test; do
    name=$(basename "$path")
    if ! listed=$(with_libraries "$path" --gtest_list_tests 2>&1) || ! count=$(grep -c '^  ' <<<"$listed"); then
      echo "$name does not start: $(tail -n 1 <<<"$listed")"
      failed=1
      continue
    fi
    first=$(awk '/^[^ ]/ {suite = $1} /^  / {print suite $1; exit}' <<<"$listed")
    said=$(with_libraries "$path" --gtest_filter="$first" 2>&1 | grep -m 1 -Eo '(FAILED_PRECONDITION|UNAVAILABLE|NOT_FOUND): .*|OK \]|FAILED')
    echo "$name: $count tests; $first: ${said:-no word}"
  done
  for one in "${sanitizer_cases[@]}"; do
    read -r tool name filter <<<"$one"
    [ -x "$build/tests/$name" ] || continue
    listed=$(with_libraries "$build/tests/$name" --gtest_list_tests --gtest_filter="$filter" 2>/dev/null)
    if ! grep -q '^  ' <<<"$listed"; then
      echo "$name has no test for $tool: $filter"
      failed=1
    fi
  done
  said=$(with_libraries "$build/bin/quire-gpu-bench" --suite merge --filter none 2>&1 | tail -n 1)
  echo "quire-gpu-bench: $said"
  if has_server; then
    # The server finds its module. Without a GPU, the module says so.
    said=$(with_libraries timeout 20 "$build/bin/quire-server" --model models/quire-stories --backend cuda \
      --listen 127.0.0.1:0 --admin_listen '' 2>&1 | grep -m 1 -E '^quire-server:|server: ready')
    echo "${said:-quire-server: no word}"
    [[ $said == *"want GPU"* || $said == *"server: ready"* ]] || failed=1
    with_libraries "$build/bin/quire" --help >/dev/null || { echo "quire does not start"; failed=1; }
  fi
  exit "$failed"
fi

want_gpu
mkdir -p "$out"
results=$out/results.jsonl log=$out/run.log
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# within SECONDS COMMAND...: runs one of our own for so long at most, and not beyond the end of its phase.
within() { with_libraries timeout -k 15 "$(($1 < $(left) ? $1 : $(left)))" "${@:2}"; }
ours() { within "$(left)" "$@"; }
left() { echo $((deadline > SECONDS ? deadline - SECONDS : 1)); }
phase_machine() {
  machine_line | tee -a "$results"
  nvidia-smi
}

phase_build() {
  if [ -d "$build/lib" ]; then echo "$build is a bundle"; return 0; fi
  export -f compile
  build=$build timeout "$(left)" bash -c compile
}

# run_tests NAME...: runs test programs side by side.
run_tests() {
  python3 bench/gpu/run_tests.py --build "$build" --libraries "$libraries" --json "$results" --logs "$out/tests" --at_once 6 \
    --most_seconds "$most_of_a_test" --seconds "$(left)" "$@"
}

phase_conformance() { run_tests "${conformance_tests[@]}"; }

phase_correctness() {
  local path name names=()
  for path in "$build"/tests/cuda_*_test; do
    name=$(basename "$path")
    [[ " ${conformance_tests[*]} " == *" $name "* ]] || names+=("$name")
  done
  run_tests "${names[@]}"
}

# The phase fails unless every test runs to its end without a finding. An absence of findings is not enough, because
# a tool that does not work reports none.
phase_sanitizer() {
  local failed=0 one tool name filter line json=$scratch/sanitizer.json
  command -v compute-sanitizer >/dev/null || { skip_phase sanitizer "no compute-sanitizer on the PATH"; return 0; }
  for one in "${sanitizer_cases[@]}"; do
    read -r tool name filter <<<"$one"
    if [ "$(left)" -le 5 ]; then
      skip_phase "sanitizer ($tool of $name)" "no time was left"
      continue
    fi
    rm -f "$json"
    within "$most_of_a_test" compute-sanitizer --tool "$tool" --error-exitcode 99 "$build/tests/$name" --gtest_brief=1 \
      --gtest_filter="$filter" --gtest_output="json:$json"
    line=$(python3 bench/gpu/report.py sanitizer "$tool" "$name" "$filter" $? "$json")
    tee -a "$results" <<<"$line"
    [[ $line == *'"status": "passed"'* ]] || failed=1
  done
  return "$failed"
}

# A process for each suite, so that one that faults or hangs leaves the others.
phase_kernels() {
  local failed=0 suites=(decode ragged mixed shared skip merge prefill ops linear) i seconds
  for i in "${!suites[@]}"; do
    seconds=$(($(left) * 2 / (${#suites[@]} - i + 1)))
    within "$seconds" "$build/bin/quire-gpu-bench" --suite "${suites[i]}" --seconds "$((seconds * 9 / 10))" \
      --json "$results" || failed=1
  done
  return "$failed"
}

phase_ncu() {
  local failed=0 one kernel suite filter line said=$scratch/ncu.csv
  command -v ncu >/dev/null || { skip_phase ncu "no ncu on the PATH"; return 0; }
  for one in "${ncu_cases[@]}"; do
    read -r kernel suite filter <<<"$one"
    # Only compute capability 9.0 has wgmma.
    [[ $filter != *wgmma || $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader) == 9.0* ]] || continue
    rm -f "$said"
    ours ncu --clock-control none --section SpeedOfLight --section MemoryWorkloadAnalysis --kernel-name "$kernel" \
      --launch-count 1 --kill yes --csv --log-file "$said" \
      "$build/bin/quire-gpu-bench" --suite "$suite" --filter "$filter" --repeats 1
    line=$(python3 bench/gpu/report.py ncu "$kernel" "$filter" $? "$said")
    tee -a "$results" <<<"$line"
    [[ $line != *'"status": "failed"'* ]] || failed=1
  done
  return "$failed"
}

# compare_with SECONDS PEERS
compare_with() {
  timeout -k 15 "$(left)" python3 bench/gpu/peers.py --bench "$build/bin/quire-gpu-bench" --libraries "$libraries" \
    --json "$results" --seconds "$1" --peers "$2"
}

# flex_attention runs last, because it compiles for seconds at each shape and would use up the time of the other
# peers.
phase_peers() {
  local failed=0
  compare_with "$(($(left) * 6 / 10))" flashinfer,flashinfer_cuda_cores,sdpa_flash,sdpa_cudnn,sdpa_efficient || failed=1
  compare_with "$(($(left) * 9 / 10))" flex || failed=1
  return "$failed"
}

phase_cutlass() {
  [ -d "$build/cutlass" ] || { skip_phase cutlass "no $build/cutlass: bench/gpu/cutlass.py build makes it"; return 0; }
  timeout -k 15 "$(left)" python3 bench/gpu/cutlass.py run "$build/cutlass" --json "$results" \
    --seconds "$(($(left) * 9 / 10))"
}

# measure_server PHASE PARTS
measure_server() {
  has_server || { skip_phase "$1" "no quire-server in $build"; return 0; }
  timeout -k 15 "$(left)" python3 bench/gpu/engine.py --bin "$build/bin" --libraries "$libraries" --json "$results" \
    --only "$2" --seconds "$(($(left) * 9 / 10))" --work "$models" $resume
}

phase_engine() { measure_server engine tokens,bf16,q4_k; }
phase_choices() { measure_server choices choices; }
phase_soak() { measure_server soak soak; }

failures=()
for name in "${phases[@]}"; do
  begin=$SECONDS
  deadline=$((SECONDS + limit[$name]))
  echo "== $name"
  "phase_$name" 2>&1 | tee -a "$log"
  status=${PIPESTATUS[0]}
  echo "-- $name: status $status, $((SECONDS - begin)) s" | tee -a "$log"
  [ "$status" -eq 0 ] || failures+=("$name")
done
[ -s "$results" ] && python3 bench/gpu/report.py tables "$results" --out "$out" && echo "tables: $out/performance.md $out/gpu-status.md"
[ ${#failures[@]} -eq 0 ] || { echo "failed: ${failures[*]}"; exit 1; }
