"""bench/gpu/quarter_hour.sh with a GPU that is not there: nvidia-smi and the tests are stand-ins, one of them hangs, a
tool is missing, and the benchmark is this build's own."""

import json
import os
import pathlib
import re
import signal
import subprocess
import tarfile
import tempfile
import unittest

from test_run_all import BENCH, BUILT, NVIDIA_SMI, ROOT, SANITIZER, TEST, TESTS

# A program of three tests. The second hangs unless the filter leaves it out.
HANGING = """#!/bin/bash
json= filter=
for argument in "$@"; do
  case "$argument" in --gtest_output=json:*) json=${argument#*json:} ;; --gtest_filter=*) filter=${argument#*=} ;; esac
done
echo "[ RUN      ] S.First"
echo "[       OK ] S.First (0 ms)"
if [ "$filter" != -S.Hangs/0 ]; then echo "[ RUN      ] S.Hangs/0"; sleep 1000; fi
echo "[ RUN      ] S.Last"
echo "[       OK ] S.Last (0 ms)"
echo '{"testsuites": [{"name": "S", "testsuite": [{"name": "First", "result": "COMPLETED", "time": "0.1s"},
  {"name": "Last", "result": "COMPLETED", "time": "0.1s"}]}]}' >"$json"
"""
CRASHING = """#!/bin/bash
echo "[ RUN      ] S.Crashes"
kill -SEGV $$
"""
ENGINE = """#!/bin/bash
case "$*" in *--only*tokens*) [ ! -e "$FAIL" ] || { echo "no cuBLASLt"; exit 1; } ;; esac
"""


class QuarterHourTest(unittest.TestCase):
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
        self.script(self.tools / "nvidia-smi", NVIDIA_SMI)
        self.environment = os.environ | {"PATH": f"{self.tools}:/usr/bin:/bin", "CALLS": str(self.folder / "calls"),
                                         "FAIL": str(self.folder / "fail")}

    def script(self, path, text):
        path.write_text(text)
        path.chmod(0o755)

    def command(self, *arguments):
        return [str(ROOT / "bench/gpu/quarter_hour.sh"), "--build", str(self.build), "--out", str(self.out), *arguments]

    def run_it(self, *arguments):
        return subprocess.run(self.command(*arguments), env=self.environment, capture_output=True, text=True)

    def lines(self, kind):
        lines = [json.loads(line) for line in (self.out / "results.jsonl").read_text().splitlines()]
        return [line for line in lines if line["type"] == kind]

    def test_a_whole_run_with_a_test_that_hangs_and_a_missing_tool_twice(self):
        self.script(self.build / "tests/cuda_device_test", HANGING)
        self.script(self.build / "tests/cuda_moe_test", CRASHING)
        for _ in range(2):  # the second into the same folder
            run = self.run_it("--seconds", "120")
            self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
            found = {line["name"]: line for line in self.lines("test")}
            self.assertEqual(set(found), {f"cuda_{name}_test" for name in TESTS})
            hung = found["cuda_device_test"]
            self.assertEqual((hung["status"], hung["tests"], hung["reasons"]),
                             ("failed", 2, ["S.Hangs/0: it ran out of time"]))
            self.assertIn("S.Crashes: the program ended in it", found["cuda_moe_test"]["reasons"])
            others = {line["status"] for name, line in found.items() if name not in ("cuda_device_test", "cuda_moe_test")}
            self.assertEqual(others, {"passed"})
            self.assertGreater(len(self.lines("row")), 3)
            summary = (self.out / "summary.txt").read_text()
            for said in ("first: failed", "tests: failed", "memcheck: passed", "timings: passed",
                         "cuda_device_test: S.Hangs/0: it ran out of time", "memcheck: no compute-sanitizer on the PATH",
                         "tokens: no quire-server in", "server: no quire-server in"):
                self.assertIn(said, summary)
            self.assertEqual(sorted(path.name for path in self.out.iterdir()),
                             ["gpu-status.md", "logs.tgz", "performance.md", "results.jsonl", "summary.txt"])
            with tarfile.open(self.out / "logs.tgz") as logs:
                self.assertIn("logs/cuda_device_test.log", logs.getnames())

    def test_memcheck_runs_four_families(self):
        self.script(self.tools / "compute-sanitizer", SANITIZER.replace("racecheck", "memcheck"))
        run = self.run_it("--phase", "memcheck")
        self.assertEqual(run.returncode, 1)
        self.assertEqual([line["status"] for line in self.lines("sanitizer")], ["failed"] * 4)
        self.assertIn("memcheck cuda_moe_test Orders/CudaMoeTest.Wgmma*/0: findings", (self.out / "summary.txt").read_text())

    def test_every_case_for_memcheck_is_a_test_of_this_build(self):
        cases = re.search(r"memcheck_cases=\((.*?)\)", (ROOT / "bench/gpu/quarter_hour.sh").read_text(), re.DOTALL)[1]
        found = re.findall(r'"(cuda_\w+_test) ([^"]+)"', cases)
        self.assertEqual(len(found), 4)
        for name, filter_of in found:
            listed = subprocess.run([str(BUILT / name), "--gtest_list_tests", f"--gtest_filter={filter_of}"],
                                    capture_output=True, text=True).stdout
            self.assertRegex(listed, r"(?m)^  \w", (name, filter_of))

    def test_a_run_that_is_stopped_keeps_what_it_has(self):
        self.script(self.build / "tests/cuda_paged_attention_test", HANGING)
        process = subprocess.Popen(self.command("--phase", "first", "--phase", "tests"), env=self.environment,
                                   stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            if "cuda_step_ops_test" in line:
                break
        process.send_signal(signal.SIGTERM)
        process.communicate()
        self.assertEqual(process.returncode, 1)
        self.assertIn("cuda_step_ops_test", {line["name"] for line in self.lines("test")})
        with tarfile.open(self.out / "logs.tgz") as logs:
            self.assertIn("logs/cuda_paged_attention_test.log", logs.getnames())

    def test_the_servers_phases_run_beside_the_tests(self):
        self.script(self.build / "bin/quire-server", "")
        python = subprocess.run(["which", "python3"], capture_output=True, text=True, check=True).stdout.strip()
        self.script(self.tools / "python3", f"""#!/bin/bash
case "$1" in *engine.py) echo "$@" >>"$CALLS"; {ENGINE.splitlines()[1]} ;; *) exec {python} "$@" ;; esac
""")
        self.assertEqual(self.run_it("--phase", "first", "--phase", "server").returncode, 0)
        tokens, server = (self.folder / "calls").read_text().splitlines()
        self.assertIn("--only tokens", tokens)
        self.assertIn("--only bf16 --layers 8", server)
        (self.folder / "fail").touch()
        run = self.run_it("--phase", "first")
        self.assertEqual(run.returncode, 1)
        self.assertIn("tokens: no cuBLASLt", (self.out / "summary.txt").read_text())

    def test_without_a_gpu_it_says_so_in_one_line(self):
        (self.tools / "nvidia-smi").unlink()
        run = self.run_it()
        self.assertEqual((run.returncode, run.stdout), (3, ""))
        self.assertEqual(run.stderr, "quarter_hour.sh: no GPU: nvidia-smi is not on the PATH\n")

    def test_unknown_phases_and_flags_are_errors_of_use(self):
        for arguments in (("--phase", "all"), ("--phase",), ("--fast", "1"), ("--seconds", "0"), ("--seconds", "x")):
            self.assertEqual(self.run_it(*arguments).returncode, 2, arguments)


if __name__ == "__main__":
    unittest.main()
