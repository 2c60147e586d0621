"""bench/gpu/engine.py on the CPU, with a tiny model: every case runs, and its line has what the tables need."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(os.environ["QUIRE_BIN"])
sys.path.insert(0, str(ROOT / "bench/gpu"))
import engine
import report


class BoundTest(unittest.TestCase):
    def test_an_8b_llama(self):
        config = engine.SHAPES["full"]
        self.assertEqual(engine.parameters(config), 8030261248 - 128256 * 4096 - 65 * 4096)  # without embedding and norms
        self.assertEqual(engine.kv_bytes_per_token(config), 128 << 10)
        self.assertAlmostEqual(engine.weight_bytes(config, "bf16") / 1e9, 15.01, places=2)
        self.assertAlmostEqual(engine.weight_bytes(config, "q4_k") / 1e9, 4.36, places=2)
        # 2 FLOP for each weight of the layers and token, 512 for each head's score of the half that is seen.
        self.assertAlmostEqual(engine.prompt_flops(config, 8192) / 1e12, 114.3 + 17.6, places=1)
        self.assertAlmostEqual(engine.step_bound(15e9, 64 * 1024 * (128 << 10), 4.3e12) * 1e3, 5.49, places=2)

    def test_ceilings_are_those_of_the_run(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "results.jsonl"
            self.assertEqual(engine.ceilings(path), (4.3e12, 780e12))
            rows = [{"type": "row", "suite": "ceilings", "name": "read 4 GiB", "median_us": 1000.0, "bytes": 4e9, "flops": 0},
                    {"type": "row", "suite": "ceilings", "name": "gemm", "median_us": 1000.0, "bytes": 1e6, "flops": 7e11}]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            self.assertEqual(engine.ceilings(path), (4e12, 7e14))


class EngineTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_engine(self, *arguments):
        return subprocess.run([sys.executable, str(ROOT / "bench/gpu/engine.py"), "--bin", str(BIN), "--json",
                               str(self.folder / "results.jsonl"), "--work", str(self.folder), "--backend", "cpu", "--size",
                               "tiny", "--soak_seconds", "2", *arguments], capture_output=True, text=True)

    def lines(self):
        return [json.loads(line) for line in (self.folder / "results.jsonl").read_text().splitlines()]

    def test_every_case_runs_and_ends_in_a_table(self):
        run = self.run_engine()
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        lines = self.lines()
        self.assertEqual({line["type"] for line in lines}, {"engine"})
        cases = ["start", "decode 1", "decode 4", "decode 1 top_p", "prompt 64", "prompt 64 cached", "forks 4x64"]
        for model in ("bf16", "q4_k"):
            self.assertEqual([line["case"] for line in lines if line["model"] == model], cases)
        for flags, starts in (("--cuda_shared_prefix", ["forks"]), ("--kv_dtype fp8", ["decode"] * 3 + ["forks"]),
                              ("--deterministic", ["decode"] * 3 + ["prompt"] * 2)):
            self.assertEqual([line["case"].split()[0] for line in lines if line["model"] == f"bf16 {flags}"],
                             ["start", *starts])
        tokens = next(line for line in lines if line["model"] == "quire-stories")
        self.assertEqual((tokens["equal"], tokens["of"]), (4, 4))
        self.assertGreater(next(line for line in lines if line["model"] == "soak")["requests"], 0)
        said = report.performance(lines)
        self.assertIn("### A whole server", said)
        self.assertIn("- the CPU's greedy tokens in f32: met; 4 of 4 answers.", said)
        self.assertIn("- a bf16 step of 64 streams at 85 % of its bound: not measured.", said)
        self.assertRegex(said, r"\| q4_k \| forks 4x64 \| [0-9.]+ \| 0.00 \| \d+ % \| \d+ \| - \|")

    def test_a_server_that_does_not_start_is_told(self):
        run = self.run_engine("--backend", "tpu", "--only", "bf16")
        self.assertEqual(run.returncode, 1)
        (line,) = self.lines()
        self.assertEqual(line["type"], "engine_failed")
        self.assertIn("backend: want auto, cpu, cuda or cuda:n, got tpu", line["reason"])

    def test_without_time_the_cases_are_listed(self):
        self.assertEqual(self.run_engine("--seconds", "0", "--only", "bf16").returncode, 1)
        self.assertEqual({line["reason"] for line in self.lines() if line["type"] == "engine_failed"}, {"no time is left"})


if __name__ == "__main__":
    unittest.main()
