"""bench/gpu/engine.py on the CPU, with a tiny model: every case runs, and its line has what the tables need."""

import json
import math
import os
import pathlib
import signal
import struct
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


class AnswersTest(unittest.TestCase):
    def test_their_difference_is_that_of_log_probabilities_up_to_where_they_part(self):
        def answer(*tokens, off=0.0):
            likely = {7: -1.0, 8: -1.25, 9: -2.0}
            return [{"chosen": {"token_id": token, "logprob": likely.get(token, -9) + off},
                     "top": [{"token_id": id, "logprob": logprob + off} for id, logprob in likely.items()]} for token in tokens]
        self.assertEqual(engine.difference(answer(7, 7), answer(7, 7)), 0.0)
        self.assertEqual(engine.difference(answer(7, 7), answer(7, 7, off=0.125)), 0.125)
        self.assertEqual(engine.difference(answer(7, 7), answer(7, 7, off=-0.125)), 0.125)
        self.assertEqual(engine.difference(answer(7, 7, 7), answer(7, 8, 9)), 0.25)  # what comes after is not compared
        self.assertEqual(engine.difference(answer(7, 7), answer(9, 7)), 1.0)
        self.assertEqual(engine.difference(answer(7, 7), answer(7, 8, off=0.5)), 0.5)
        self.assertEqual(engine.difference(answer(7, 7), answer(6, 7)), math.inf)
        self.assertEqual(engine.difference(answer(7, 7), answer(7)), math.inf)
        zero = [{"chosen": {}, "top": [{}, {"token_id": 7, "logprob": -16.0}]}]  # as JSON of protos has it
        self.assertEqual(engine.difference(zero, zero), 0.0)
        self.assertEqual(engine.difference(zero, answer(7)), 16.0)

    def test_margins_are_those_of_roundings(self):
        margins = [engine.margin(engine.BUNDLED_MODEL, *way[1:]) for way in engine.WAYS.values()]
        for got, want in zip(margins, (1.286e-4, 0.2633, 1.578, 0.2633), strict=True):
            self.assertAlmostEqual(got / want, 1.0, places=2)
        margins = [engine.margin(engine.RANDOM_MODEL, *way[1:]) for way in engine.WAYS.values()]
        for got, want in zip(margins, (2.255e-5, 0.03266, 0.1876, 0.03266), strict=True):
            self.assertAlmostEqual(got / want, 1.0, places=2)

    def test_the_bundled_model_is_as_margins_have_it(self):
        folder = ROOT / "models/quire-stories"
        config = json.loads((folder / "config.json").read_text())
        model = engine.BUNDLED_MODEL
        self.assertEqual(model.layers, config["n_layers"])
        self.assertEqual(model.longest_row, config["d_model"] * config["expansion_ratio"])
        data = (folder / "model.safetensors").read_bytes()
        size = int.from_bytes(data[:8], "little")
        tensors = json.loads(data[8:8 + size])

        def values(name):
            begin, end = (8 + size + offset for offset in tensors[name]["data_offsets"])
            return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(begin, end, 2)]  # from bf16

        norm, head = values("transformer.norm_f.weight"), values("transformer.wte.weight")
        squares = sum((weight * norm[i % len(norm)])**2 for i, weight in enumerate(head))
        self.assertAlmostEqual(model.head_norm, (squares / config["vocab_size"])**0.5, places=2)


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
        for flags, starts in (("--cuda_experiments shared_prefix", ["forks"]), ("--kv_dtype fp8", ["decode"] * 3 + ["forks"]),
                              ("--deterministic", ["decode"] * 3 + ["prompt"] * 2 + ["alone"])):
            self.assertEqual([line["case"].split()[0] for line in lines if line["model"] == f"bf16 {flags}"],
                             ["start", *starts])
        for model in ("quire-stories", "random"):
            tokens = next(line for line in lines if line["model"] == model)
            self.assertEqual((tokens["equal"], tokens["of"], tokens["largest_difference"]), (5, 5, 0.0))
        self.assertGreater(next(line for line in lines if line["model"] == "soak")["requests"], 0)
        said = report.performance(lines)
        self.assertIn("### A whole server", said)
        self.assertRegex(said, "- quire-stories, the CPU's greedy answers in f32: met; 5 of 5 answers, the largest "
                               "difference 0 of 0.00013")
        self.assertIn("- with --deterministic, the same tokens alone as among others: met; 16 of 16 answers.", said)
        self.assertIn("- a bf16 step of 64 streams at 85 % of its bound: not measured.", said)
        self.assertRegex(said, r"\| q4_k \| forks 4x64 \| [0-9.]+ \| - \| 0.00 \| \d+ % \| \d+ \| - \|")

    def test_every_way_to_answer_agrees_with_the_cpu_on_the_emulated_device(self):
        if not (BIN.parent / "lib/quire/libquire-cuda-emulated.so").exists():
            self.skipTest("no emulated device in this build")
        run = self.run_engine("--backend", "cuda-emulated", "--only", "tokens")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        lines = self.lines()
        self.assertEqual({(line["model"], line["case"]) for line in lines},
                         {(model, f"the CPU's greedy answers in {way}") for model in ("quire-stories", "random") for way in engine.WAYS})
        for line in lines:
            self.assertEqual(line["equal"], line["of"])
            self.assertGreater(line["largest_difference"], 0.0)

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
