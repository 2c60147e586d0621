"""Tests what is made of the output of CUTLASS's examples, with scripts in their place."""

import json
import pathlib
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[3] / "bench/gpu"))
import cutlass  # noqa: E402


def row(name: str, median: float = 100.0, suite: str = "linear") -> dict:
    return {"type": "row", "suite": suite, "name": name, "median_us": median}


class ProductsTest(unittest.TestCase):
    def test_a_mixture_is_two_products_of_grouped_tokens(self):
        program, calls = cutlass.products("moe mixtral 8/2 BF16 M=2048")
        self.assertEqual(program, "grouped")
        self.assertEqual(calls, [{"m": 28672, "k": 4096, "n": 512, "groups": 8}, {"m": 4096, "k": 14336, "n": 512, "groups": 8}])
        self.assertEqual(cutlass.products("moe mixtral 8/2 BF16 M=2048 wgmma"), (program, calls))
        program, calls = cutlass.products("moe qwen3 128/8 Q4_0 M=1")
        self.assertEqual(program, "mixed_grouped")
        self.assertEqual(calls[0], {"m": 1536, "k": 2048, "n": 1, "groups": 8, "c": 64, "mode": 1})

    def test_what_cutlass_has_no_product_for(self):
        for name in ("moe mixtral 8/2 Q4_K M=64", "linear Q4_K M=64 N=4096 K=14336", "linear qkv M=1 N=6144 K=4096"):
            self.assertIsNone(cutlass.products(name))
        self.assertEqual(cutlass.products("linear Q4_0 M=64 N=4096 K=14336"),
                         ("mixed", [{"m": 64, "n": 4096, "k": 14336, "g": 64, "mode": 1}]))


class RunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.results = self.folder / "results.jsonl"

    def program(self, name: str, script: str):
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def run_on(self, *rows: dict) -> list[dict]:
        self.results.write_text("".join(json.dumps(one) + "\n" for one in rows))
        self.assertEqual(cutlass.main(["run", str(self.folder), "--json", str(self.results)]), 0)
        return [json.loads(line) for line in self.results.read_text().splitlines()][len(rows):]

    def test_the_fastest_schedule_of_each_product_counts(self):
        self.program("grouped", 'echo "$@" >>"$0.calls"; echo "  Disposition: Passed"\n'
                                'echo "  Avg runtime : 0.25 ms"; echo "  Avg runtime : 2.0e-1 ms"')
        [line, of_wgmma] = self.run_on(row("moe mixtral 8/2 BF16 M=64", 800.0), row("norm 1x4096", suite="ops"),
                                       row("moe mixtral 8/2 BF16 M=64 wgmma", 200.0))
        self.assertEqual((line["type"], line["peer"], line["case"]), ("peer", "cutlass_grouped", "moe mixtral 8/2 BF16 M=64"))
        self.assertAlmostEqual(line["peer_us"], 400.0)
        self.assertAlmostEqual(line["times_faster"], 0.5)
        self.assertAlmostEqual(of_wgmma["times_faster"], 2.0)
        calls = (self.folder / "grouped.calls").read_text().splitlines()
        self.assertEqual(calls[0], "--iterations=20 --m=28672 --k=4096 --n=16 --groups=8")
        self.assertEqual(len(calls), 2)

    def test_a_program_that_fails_is_listed_with_its_reason(self):
        name = "linear Q4_0 M=16 N=4096 K=14336"
        for script, reason in (('echo "  Disposition: Failed"; echo "Avg runtime: 1.0 ms"', "status 0: Avg runtime: 1.0 ms"),
                               ('echo "Got cutlass error: Error Misaligned Operand" >&2; exit 1',
                                "status 1: Got cutlass error: Error Misaligned Operand"),
                               ("echo This example requires a GPU", "This example requires a GPU"),
                               ('echo "Avg runtime: 1.0 ms"', "Avg runtime: 1.0 ms"), ("", "no word")):
            self.program("mixed", script)
            [line] = self.run_on(row(name))
            self.assertEqual((line["type"], line["case"], line["reason"]), ("peer_skipped", name, reason))
        (self.folder / "mixed").unlink()
        self.assertIn("cutlass.py build makes it", self.run_on(row(name))[0]["reason"])

    def test_no_product_begins_after_the_time(self):
        self.program("mixed", 'sleep 5')
        self.results.write_text("".join(json.dumps(row(f"linear Q4_0 M={m} N=4096 K=14336")) + "\n" for m in (1, 2)))
        cutlass.main(["run", str(self.folder), "--json", str(self.results), "--seconds", "0.3"])
        reasons = [json.loads(line)["reason"] for line in self.results.read_text().splitlines()[2:]]
        self.assertEqual(reasons, ["no result within 0 s", "the 0.3 s are over"])


if __name__ == "__main__":
    unittest.main()
