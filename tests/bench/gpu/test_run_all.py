"""bench/gpu/run_all.sh with a GPU that is not there: nvidia-smi, compute-sanitizer and the tests are stand-ins,
the benchmark is this build's own."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BENCH = os.environ["QUIRE_GPU_BENCH"]
BUILT = pathlib.Path(os.environ["QUIRE_TESTS"])

NVIDIA_SMI = """#!/bin/bash
case "$1" in
  -L) echo "GPU 0: NVIDIA H200 (UUID: GPU-0)" ;;
  --query-gpu=compute_cap) echo 9.0 ;;
  --query-gpu=*) echo "NVIDIA H200, 600.1" ;;
  *) echo "a table" ;;
esac
"""
SANITIZER = """#!/bin/bash
echo "$@" >>"$CALLS"
"${@:5}"
[ "$2" != racecheck ] || exit 99
exit 0
"""
# A fake Nsight Compute. It starts the benchmark, and writes Nsight Compute's output for one kernel.
NCU = """#!/bin/bash
while [ "$1" != --log-file ]; do shift; done
"${@:3}" >/dev/null || exit
echo '"Section Name","Metric Name","Metric Unit","Metric Value"' >"$2"
echo '"GPU Speed Of Light Throughput","DRAM Throughput","%","93.5"' >>"$2"
"""
# A fake test program. It writes GoogleTest's output. The program fails if its name ends in bad_test.
TEST = """#!/bin/bash
for argument in "$@"; do case "$argument" in --gtest_output=json:*) json=${argument#*json:} ;; esac; done
echo '{"testsuites": [{"name": "S", "testsuite": [{"name": "t", "result": "COMPLETED", "time": "0.1s"}]}]}' >"$json"
case "$0" in *bad_test) exit 1 ;; esac
"""
TESTS = ["primitives", "hopper_primitives", "tile_product", "device", "paged_attention", "attn_merge", "step_ops",
         "attention_reference", "packed_gemm", "backend", "bad_arguments", "prefill_attention", "shared_keys",
         "far_keys", "fp8_attention", "moe", "device_sampler", "plan_decodes", "fp8_product"]


class RunAllTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.build, self.out, self.tools = (self.folder / name for name in ("build", "out", "tools"))
        for path in (self.build / "bin", self.build / "tests", self.build / "lib", self.tools):
            path.mkdir(parents=True)
        os.symlink(BENCH, self.build / "bin/quire-gpu-bench")
        for name in TESTS:
            self.script(self.build / f"tests/cuda_{name}_test", TEST)
        self.calls = self.folder / "calls"

    def script(self, path, text):
        path.write_text(text)
        path.chmod(0o755)

    def run_all(self, *arguments, gpu=True, path=None):
        if gpu:
            self.script(self.tools / "nvidia-smi", NVIDIA_SMI)
        environment = os.environ | {"PATH": path or f"{self.tools}:/usr/bin:/bin", "CALLS": str(self.calls)}
        return subprocess.run([str(ROOT / "bench/gpu/run_all.sh"), "--build", str(self.build), "--out", str(self.out),
                               *arguments], env=environment, capture_output=True, text=True)

    def lines(self, kind):
        lines = [json.loads(line) for line in (self.out / "results.jsonl").read_text().splitlines()]
        return [line for line in lines if line["type"] == kind]

    def test_without_a_gpu_it_says_so_in_one_line(self):
        run = self.run_all("--part", "1", gpu=False)
        self.assertEqual((run.returncode, run.stdout), (3, ""))
        self.assertEqual(run.stderr, "run_all.sh: no GPU: nvidia-smi is not on the PATH\n")
        self.assertFalse(self.out.exists())

    def test_the_check_starts_every_binary_without_a_gpu(self):
        listing = """#!/bin/bash
case "$*" in
  *--gtest_list_tests*) echo "Suite."; echo "  First"; echo "  Second" ;;
  *Suite.First*) echo "UNAVAILABLE: cuda: want GPU 0, got none"; exit 1 ;;
esac
"""
        for name in TESTS:
            self.script(self.build / f"tests/cuda_{name}_test", listing)
        run = self.run_all("--check", gpu=False)
        self.assertEqual(run.returncode, 0, run.stdout)
        lines = run.stdout.splitlines()
        self.assertEqual(len(lines), len(TESTS) + 1)
        self.assertIn("cuda_step_ops_test: 2 tests; Suite.First: UNAVAILABLE: cuda: want GPU 0, got none", lines)
        self.assertTrue(lines[-1].startswith("quire-gpu-bench: "))
        self.script(self.build / "tests/cuda_step_ops_test", "#!/bin/bash\necho no libabsl; exit 127\n")
        run = self.run_all("--check", gpu=False)
        self.assertEqual(run.returncode, 1)
        self.assertIn("cuda_step_ops_test does not start: no libabsl", run.stdout)

    def test_the_check_finds_a_case_for_compute_sanitizer_that_no_test_has(self):
        for name in TESTS:
            self.script(self.build / f"tests/cuda_{name}_test", "#!/bin/bash\necho Suite.; echo '  First'\n")
        self.script(self.build / "tests/cuda_moe_test", """#!/bin/bash
case "$*" in *--gtest_filter=*Many*) ;; *) echo "Suite."; echo "  First" ;; esac
""")
        run = self.run_all("--check", gpu=False)
        self.assertEqual(run.returncode, 1)
        self.assertEqual([line for line in run.stdout.splitlines() if "has no test" in line],
                         ["cuda_moe_test has no test for memcheck: Orders/*ManyChoices*/0",
                          "cuda_moe_test has no test for racecheck: Orders/CudaMoeTest.ManyChoices*/0"])

    def test_every_case_for_compute_sanitizer_is_a_test_of_this_build(self):
        script = (ROOT / "bench/gpu/run_all.sh").read_text()
        cases = re.findall(r'"(?:memcheck|racecheck|synccheck) (cuda_\w+_test) ([^"]+)"', script)
        self.assertGreater(len(cases), 20)
        for name, cases_of in set(cases):
            listed = subprocess.run([str(BUILT / name), "--gtest_list_tests", f"--gtest_filter={cases_of}"],
                                    capture_output=True, text=True).stdout
            self.assertRegex(listed, r"(?m)^  \w", (name, cases_of))

    def test_a_bundle_goes_where_nothing_else_is(self):
        run = self.run_all("--bundle", str(self.build), gpu=False)
        self.assertEqual(run.returncode, 3)
        self.assertIn("want a new folder or an older bundle", run.stderr)
        self.assertTrue((self.build / "bin").exists())

    def test_a_driver_without_a_gpu_is_no_gpu(self):
        self.script(self.tools / "nvidia-smi", "#!/bin/bash\nexit 9\n")
        run = self.run_all("--part", "2", gpu=False)
        self.assertEqual((run.returncode, run.stderr), (3, "run_all.sh: no GPU: nvidia-smi lists none\n"))

    def test_unknown_parts_and_phases_are_errors_of_use(self):
        for arguments in (("--part", "6"), ("--phase", "all"), ("--part",), ("--fast", "1")):
            self.assertEqual(self.run_all(*arguments).returncode, 2, arguments)

    def test_the_first_part_runs_every_test_once(self):
        run = self.run_all("--part", "1")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        machine = self.lines("machine")[0]
        self.assertEqual((machine["gpu"], machine["driver"]), ("NVIDIA H200", "600.1"))
        self.assertIn("is a bundle", run.stdout)
        self.assertEqual(sorted(line["name"] for line in self.lines("test")), sorted(f"cuda_{name}_test" for name in TESTS))
        self.assertRegex((self.out / "gpu-status.md").read_text(), r"\| attention_reference \| \w{12} \| \d{4}-.*1 tests passed")

    def test_a_test_that_fails_does_not_stop_the_others_but_is_told(self):
        self.script(self.build / "tests/cuda_bad_test", TEST)
        run = self.run_all("--phase", "correctness", "--phase", "machine")
        self.assertEqual(run.returncode, 1)
        self.assertIn("failed: correctness", run.stdout)
        self.assertEqual({line["name"]: line["status"] for line in self.lines("test")}["cuda_bad_test"], "failed")
        self.assertEqual({line["name"]: line["status"] for line in self.lines("test")}["cuda_step_ops_test"], "passed")
        self.assertEqual(len(self.lines("machine")), 1)

    def test_tests_that_find_no_gpu_fail_their_phase_but_for_hoppers(self):
        never = TEST.replace('"time"', '"timestamp": "1970-01-01T00:00:00Z", "time"')
        self.script(self.build / "tests/cuda_hopper_primitives_test", never)
        self.assertEqual(self.run_all("--phase", "conformance").returncode, 0)
        self.script(self.build / "tests/cuda_device_test", never)
        run = self.run_all("--phase", "conformance")
        self.assertEqual(run.returncode, 1)
        self.assertIn("failed: conformance", run.stdout)

    def test_the_sanitizers_findings_fail_their_phase(self):
        self.script(self.tools / "compute-sanitizer", SANITIZER)
        run = self.run_all("--phase", "sanitizer")
        self.assertEqual(run.returncode, 1)
        states = {(line["tool"], line["status"]) for line in self.lines("sanitizer")}
        self.assertEqual(states, {("memcheck", "passed"), ("racecheck", "failed"), ("synccheck", "passed")})
        calls = self.calls.read_text().splitlines()
        self.assertTrue(calls[0].startswith(f"--tool memcheck --error-exitcode 99 {self.build}/tests/cuda_primitives_test "
                                            "--gtest_brief=1 --gtest_filter=* "), calls[0])
        self.assertFalse([call for call in calls if "racecheck" in call and "hopper" in call])

    def test_a_sanitizer_that_says_nothing_fails_its_phase(self):
        for broken in ("exit 1", "exit 0", "exit 124"):  # the second runs no test
            shutil.rmtree(self.out, ignore_errors=True)
            self.script(self.tools / "compute-sanitizer", f"#!/bin/bash\n{broken}\n")
            run = self.run_all("--phase", "machine", "--phase", "sanitizer")
            self.assertIn("failed: sanitizer", run.stdout, broken)
            self.assertEqual({line["status"] for line in self.lines("sanitizer")},
                             {"timeout" if broken == "exit 124" else "broken"})

    def test_nsight_compute_looks_at_attention_and_packed_weights(self):
        self.script(self.tools / "ncu", NCU)
        run = self.run_all("--phase", "ncu")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertEqual([(line["kernel"], line["case"].split()[0]) for line in self.lines("ncu")],
                         [("AttnKernel", "decode"), ("AttnMergeKernel", "decode"), ("Fp8AttnKernel", "decode"),
                          ("AttnKernel", "prefill"), ("Fp8AttnKernel", "prefill"),
                          ("PrefillAttnKernel", "prefill"), ("Fp8PrefillAttnKernel", "prefill"),
                          ("WgmmaGroupedGemmKernel", "moe"), ("PackedGemmKernel", "linear"),
                          ("PackedBatchGemmKernel", "linear")])
        self.assertIn("| 93.5 % |", (self.out / "performance.md").read_text())
        self.script(self.tools / "ncu", "#!/bin/bash\nexit 1\n")
        self.assertIn("failed: ncu", self.run_all("--phase", "ncu").stdout)

    def test_without_nsight_compute_its_phase_says_so(self):
        run = self.run_all("--phase", "ncu")
        if shutil.which("ncu", path="/usr/bin:/bin") is None:
            self.assertEqual(run.returncode, 0)
            self.assertIn("- ncu: no ncu on the PATH", (self.out / "performance.md").read_text())

    def test_without_compute_sanitizer_its_phase_says_so(self):
        run = self.run_all("--phase", "sanitizer")
        if shutil.which("compute-sanitizer", path="/usr/bin:/bin") is None:
            self.assertEqual(run.returncode, 0)
            self.assertIn("skipped: no compute-sanitizer", run.stdout)

    def test_without_a_server_its_phases_say_so(self):
        for phase in ("engine", "choices", "soak"):
            run = self.run_all("--phase", phase)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            self.assertIn(f"- {phase}: no quire-server in {self.build}", (self.out / "performance.md").read_text())

    def test_the_engines_phases_measure_their_parts(self):
        """With a script in the place of Python, which keeps the arguments of engine.py."""
        self.script(self.build / "bin/quire-server", "")
        python = shutil.which("python3")
        self.script(self.tools / "python3", f"""#!/bin/bash
case "$1" in *engine.py) echo "$@" >>"$CALLS" ;; *) exec {python} "$@" ;; esac
""")
        for part in ("4", "5"):
            run = self.run_all("--part", part)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        engine, choices, soak = self.calls.read_text().splitlines()
        self.assertIn("--only choices ", choices)
        self.assertIn("--only tokens,bf16,q4_k ", engine)
        self.assertIn("--only soak ", soak)

    def test_benchmarks_and_peers_end_in_tables(self):
        run = self.run_all("--phase", "kernels", "--phase", "peers")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertGreater(len(self.lines("row")), 20)
        table = (self.out / "performance.md").read_text()
        self.assertIn("Not a GPU", table)  # it is the emulator's
        self.assertIn("| decode 3x70 4/2 d64 | 16 |", table)
        self.assertLessEqual({"sdpa_flash", "flex", "flashinfer", "flashinfer_cuda_cores"},
                             {line["peer"] for line in self.lines("peer_skipped")})
        self.assertIn("-- kernels: status 0", (self.out / "run.log").read_text())

    def test_programs_of_cutlass_run_where_they_are(self):
        self.run_all("--phase", "cutlass")
        [line] = self.lines("phase_skipped")
        self.assertIn("cutlass.py build makes it", line["reason"])
        (self.build / "cutlass").mkdir()
        self.script(self.build / "cutlass/mixed", "#!/bin/sh\necho Disposition: Passed\necho Avg runtime: 0.5 ms\n")
        with open(self.out / "results.jsonl", "a") as results:
            print(json.dumps({"type": "row", "suite": "linear", "name": "linear Q4_0 M=16 N=8 K=64", "median_us": 1000.0,
                              "predicted_us": 900.0, "of_ceiling": 0.5}), file=results)
        run = self.run_all("--phase", "cutlass")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertEqual([line["times_faster"] for line in self.lines("peer")], [0.5])
        self.assertIn("no slower than cutlass_mixed: **not met**", (self.out / "performance.md").read_text())


if __name__ == "__main__":
    unittest.main()
