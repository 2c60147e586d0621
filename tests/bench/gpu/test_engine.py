"""bench/gpu/engine.py on the CPU, with a tiny model: every case runs, and its line has what the tables need."""

import json
import os
import pathlib
import signal
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


class AgreeTest(unittest.TestCase):
    def test_answers_may_part_where_two_tokens_are_nearly_as_likely(self):
        def answer(*tokens):
            return [{"chosen": {"token_id": token}, "top": [{"token_id": id, "logprob": logprob} for id, logprob in
                                                          ((7, -1.0), (8, -1.003), (9, -2.0))]} for token in tokens]
        bound = 0.001
        self.assertTrue(engine.agree(answer(7, 7), answer(7, 7), bound))
        self.assertFalse(engine.agree(answer(7, 7), answer(7), bound))
        self.assertTrue(engine.agree(answer(7, 7), answer(8, 9), bound))
        self.assertFalse(engine.agree(answer(7, 7), answer(9, 7), bound))
        self.assertFalse(engine.agree(answer(7, 7), answer(6, 7), bound))
        self.assertFalse(engine.agree(answer(7, 7), answer(8, 7), bound / 2))

    def test_the_bound_is_that_of_roundings(self):
        self.assertTrue(0 < engine.logit_bound() < 0.01)


class EngineTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def command(self, *arguments, bin=BIN):
        return [sys.executable, str(ROOT / "bench/gpu/engine.py"), "--bin", str(bin), "--json",
                str(self.folder / "results.jsonl"), "--work", str(self.folder), "--backend", "cpu", "--size", "tiny",
                "--soak_seconds", "2", *arguments]

    def run_engine(self, *arguments, bin=BIN, path=os.environ["PATH"]):
        return subprocess.run(self.command(*arguments, bin=bin), capture_output=True, text=True,
                              env=os.environ | {"PATH": path})

    def script(self, path, text):
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/bash\n" + text)
        path.chmod(0o755)

    def programs(self, client="exec {bin}/quire \"$@\"\n"):
        """A folder with a server that leaves its process id in the file `pid`, and this client."""
        bin = self.folder / "bin"
        self.script(bin / "quire-server", f'echo $$ >{self.folder}/pid\nexec {BIN}/quire-server "$@"\n')
        self.script(bin / "quire", client.format(bin=BIN, folder=self.folder))
        os.symlink(BIN / "quire-random-model", bin / "quire-random-model")
        return bin

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
                              ("--deterministic", ["decode"] * 3 + ["prompt"] * 2 + ["alone"])):
            self.assertEqual([line["case"].split()[0] for line in lines if line["model"] == f"bf16 {flags}"],
                             ["start", *starts])
        tokens = next(line for line in lines if line["model"] == "quire-stories")
        self.assertEqual((tokens["equal"], tokens["of"]), (4, 4))
        self.assertGreater(next(line for line in lines if line["model"] == "soak")["requests"], 0)
        said = report.performance(lines)
        self.assertIn("### A whole server", said)
        self.assertIn("- the CPU's greedy tokens in f32: met; 4 of 4 answers.", said)
        self.assertIn("- with --deterministic, the same tokens alone as among others: met; 16 of 16 answers.", said)
        self.assertIn("- a bf16 step of 64 streams at 85 % of its bound: not measured.", said)
        self.assertRegex(said, r"\| q4_k \| forks 4x64 \| [0-9.]+ \| - \| 0.00 \| \d+ % \| \d+ \| - \|")

    def test_a_server_that_does_not_start_is_told(self):
        run = self.run_engine("--backend", "tpu", "--only", "bf16")
        self.assertEqual(run.returncode, 1)
        (line,) = self.lines()
        self.assertEqual(line["type"], "engine_failed")
        self.assertIn("backend: want auto, cpu, cuda or cuda:n, got tpu", line["reason"])

    def test_after_a_case_that_fails_the_next_has_a_new_server(self):
        bin = self.programs("""
if [[ "$*" == *"--concurrency 1"* && ! -e {folder}/died ]]; then
  touch {folder}/died
  kill -9 "$(cat {folder}/pid)"
  exit 1
fi
exec {bin}/quire "$@"
""")
        self.assertEqual(self.run_engine("--only", "bf16", bin=bin).returncode, 1)
        self.assertEqual([(line["type"], line["case"]) for line in self.lines()][:3],
                         [("engine", "start"), ("engine_failed", "decode 1"), ("engine", "decode 4")])
        self.assertEqual(len(self.lines()), 7)

    def test_cases_of_an_earlier_run_are_left_out_where_that_is_asked(self):
        self.assertEqual(self.run_engine("--only", "bf16").returncode, 0)
        path = self.folder / "results.jsonl"
        path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "prompt 64\"" not in line))
        self.assertEqual(self.run_engine("--only", "bf16", "--resume").returncode, 0)
        self.assertEqual([line["case"] for line in self.lines()][-2:], ["forks 4x64", "prompt 64"])

    def test_its_end_is_the_servers(self):
        run = subprocess.Popen(self.command("--only", "bf16", bin=self.programs()), stdout=subprocess.PIPE, text=True)
        while '"start"' not in run.stdout.readline():
            self.assertIsNone(run.poll())
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=30)
        self.assertEqual(run.returncode, 128 + signal.SIGTERM)
        self.assertFalse(pathlib.Path("/proc", (self.folder / "pid").read_text().strip()).exists())

    def test_the_server_alone_is_asked_to_end(self):
        self.script(self.folder / "tools/compute-sanitizer", """trap 'exit 77' TERM
"${@:5}"
""")
        run = self.run_engine("--only", "soak", path=f"{self.folder}/tools:{os.environ['PATH']}")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)

    def test_without_time_the_cases_are_listed(self):
        self.assertEqual(self.run_engine("--seconds", "0", "--only", "bf16").returncode, 1)
        self.assertEqual({line["reason"] for line in self.lines() if line["type"] == "engine_failed"}, {"no time is left"})


if __name__ == "__main__":
    unittest.main()
