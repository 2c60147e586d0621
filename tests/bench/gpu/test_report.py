"""bench/gpu/report.py: tables out of results, and the ledger of docs/gpu-status.md."""

import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench/gpu"))
import report

DEVICE = {"type": "device", "name": "NVIDIA H200", "gpu": True}
MACHINE = {"type": "machine", "date": "2030-01-02", "gpu": "NVIDIA H200", "driver": "600.1", "commit": "abc1234"}


def attention(name, suite="decode", median=100.0, share=0.95, contexts=(8192,) * 64, queries=None, flops=1e9):
    return {"type": "row", "suite": suite, "name": name, "median_us": median, "predicted_us": 90.0, "bytes": 1e9,
            "flops": flops, "of_ceiling": share, "plan_us": 12.0, "context_lens": list(contexts),
            "query_lens": list(queries or [1] * len(contexts)), "block_size": 16, "alibi": name.endswith("alibi")}


def goal(lines, start):
    found = [line for line in lines if line.startswith(f"- {start}")]
    assert len(found) == 1, (start, lines)
    return found[0]


class GoalsTest(unittest.TestCase):
    def test_the_worst_row_decides(self):
        rows = [attention("decode 64x8192 32/8 d128 bs16", share=0.95), attention("decode 64x8192 32/1 d128 bs16", share=0.89)]
        said = goal(report.goals(rows, []), "decode at 90 %")
        self.assertIn("**not met**; worst of 2: 89 % (decode 64x8192 32/1 d128 bs16)", said)
        self.assertIn(": met; worst of 1: 95 %", goal(report.goals(rows[:1], []), "decode at 90 %"))

    def test_small_batches_do_not_count_for_bandwidth_but_ragged_ones_do(self):
        small = attention("decode 1x1024 32/8 d128 bs16", share=0.2, contexts=[1024])
        ragged = attention("ragged 63x512+1x131072 32/8 d128 bs16", suite="ragged", share=0.91, contexts=[512, 131072])
        self.assertIn("met; worst of 1: 91 %", goal(report.goals([small, ragged], []), "decode at 90 %"))

    def test_alibi_is_compared_with_the_same_case_without(self):
        name = "decode 64x8192 32/8 d128 bs16"
        rows = [attention(name, median=100.0), attention(name + " alibi", median=101.5)]
        self.assertIn(": met; worst of 1: +1.5 %", goal(report.goals(rows, []), "ALiBi for at most 2 %"))
        rows[1]["median_us"] = 103.0
        self.assertIn("**not met**; worst of 1: +3.0 %", goal(report.goals(rows, []), "ALiBi for at most 2 %"))
        self.assertIn("not measured", goal(report.goals(rows, []), "ALiBi for at most 5 %"))

    def test_prefill_counts_flops_at_eight_thousand_tokens(self):
        rows = [attention("prefill 1x8192@8192 32/8 d128 bs16", "prefill", 1000.0, contexts=[8192], queries=[8192], flops=3.4e11),
                attention("prefill 1x1024@1024 32/8 d128 bs16", "prefill", 1000.0, contexts=[1024], queries=[1024], flops=1e9)]
        self.assertIn(": met; worst of 1: 340", goal(report.goals(rows, []), "prefill of 8k"))

    def test_every_peer_has_its_worst_row(self):
        peers = [{"peer": "flashinfer", "case": "a", "times_faster": 1.2}, {"peer": "flashinfer", "case": "b", "times_faster": 0.8}]
        self.assertIn("**not met**; worst of 2: 0.80 times as fast (b)", goal(report.goals([], peers), "no slower than flashinfer"))


class PerformanceTest(unittest.TestCase):
    def test_the_last_line_of_a_case_counts(self):
        name = "decode 64x8192 32/8 d128 bs16"
        text = report.performance([DEVICE, MACHINE, attention(name, median=111.0), attention(name, median=222.0),
                                   {"type": "skipped", "suite": "decode", "name": name, "reason": "no time"},
                                   {"type": "skipped", "suite": "decode", "name": "other", "reason": "no memory"}])
        self.assertIn("| 222 |", text)
        self.assertNotIn("| 111 |", text)
        self.assertIn("2030-01-02, driver 600.1, commit abc1234", text)
        self.assertIn("- other: no memory", text)
        self.assertNotIn("no time", text)  # it was measured in another part
        self.assertNotIn("Not a GPU", text)

    def test_the_emulators_times_are_marked(self):
        self.assertIn("Not a GPU", report.performance([DEVICE | {"name": "emulated device", "gpu": False}]))

    def test_peers_stand_side_by_side(self):
        lines = [{"type": "peer", "case": "c", "peer": "flex", "ours_us": 10.0, "peer_us": 20.0, "times_faster": 2.0},
                 {"type": "peer", "case": "c", "peer": "flashinfer", "ours_us": 10.0, "peer_us": 9.0, "times_faster": 0.9},
                 {"type": "peer_skipped", "case": "d", "peer": "flex", "reason": "too large"}]
        text = report.performance([DEVICE, *lines])
        self.assertIn("| c | 10.0 | 9.0 (0.90x) | 20.0 (2.00x) |", text)
        self.assertIn("- flex d: too large", text)

    def test_predictions_become_a_table(self):
        row = attention("decode 64x8192 32/8 d128 bs16") | {"type": "prediction", "predicted_us": 561.2}
        self.assertIn("| decode 64x8192 32/8 d128 | 1 | 0.001 | 561 |", report.predictions([row]))


class TestLineTest(unittest.TestCase):
    def line(self, results, status=0):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "test.json"
            if results is not None:
                path.write_text(json.dumps({"testsuites": [{"name": "S", "testsuite": results}]}))
            return report.test_line("cuda_x_test", status, path)

    def test_counts(self):
        passed, skipped = {"name": "a", "result": "COMPLETED", "time": "0.5s"}, {"name": "b", "result": "SKIPPED", "time": "0s"}
        failed = {"name": "c", "result": "COMPLETED", "time": "1s", "failures": [{"failure": "x.cc:1\nmore"}]}
        self.assertEqual(self.line([passed, skipped])["status"], "passed")
        self.assertEqual(self.line([skipped])["status"], "skipped")
        line = self.line([passed, failed], 1)
        self.assertEqual((line["status"], line["tests"], line["failures"], line["seconds"]), ("failed", 2, 1, 1.5))
        self.assertEqual(line["reasons"], ["S.c: x.cc:1"])

    def test_a_test_that_never_began_has_not_passed(self):
        never = {"name": "a", "status": "RUN", "result": "COMPLETED", "timestamp": "1970-01-01T00:00:00Z", "time": "0s"}
        self.assertEqual(self.line([never])["status"], "skipped")
        self.assertEqual(self.line([never | {"timestamp": "2030-01-02T03:04:05Z"}])["status"], "passed")

    def test_a_crash_and_a_timeout_are_failures(self):
        self.assertEqual(self.line(None, 139)["status"], "failed")
        self.assertEqual(self.line(None, 124)["reasons"], ["it ran out of time"])
        self.assertEqual(self.line([{"name": "a", "result": "COMPLETED"}], 1)["status"], "failed")


class StatusTest(unittest.TestCase):
    def rows(self, tests, device=DEVICE, extra=()):
        lines = [MACHINE, device, *extra]
        for name in {test for _, names in report.KERNELS.values() for test in names}:
            lines.append({"type": "test", "name": f"cuda_{name}_test", "status": "passed", "tests": 3, "failures": 0,
                          "skipped": 0} | tests.get(name, {}))
        return {row[0]: row for row in report.status_rows(lines)}

    def test_a_row_says_who_saw_these_sources_and_when(self):
        self.assertEqual(self.rows({})["attention_reference"],
                         ["attention_reference", report.source_hash("attention_reference"),
                          "2030-01-02, NVIDIA H200: 3 tests passed"])

    def test_what_was_skipped_or_emulated_was_never_seen(self):
        self.assertEqual(self.rows({"backend": {"status": "skipped"}})["CudaBackend"][2], report.NEVER)
        self.assertEqual(self.rows({}, DEVICE | {"gpu": False})["CudaBackend"][2], report.NEVER)

    def test_failures_and_findings_are_named(self):
        sanitizer = [{"type": "sanitizer", "tool": "memcheck", "test": "cuda_backend_test", "status": "passed"},
                     {"type": "sanitizer", "tool": "racecheck", "test": "cuda_backend_test", "status": "failed"}]
        seen = self.rows({"backend": {"status": "failed", "failures": 1}}, extra=sanitizer)["CudaBackend"][2]
        self.assertIn("2 tests passed, **1 failed**; memcheck clean; **racecheck: findings**", seen)

    def test_stale_rows_are_found(self):
        fresh = report.source_hash("attention")
        document = f"| attention | {fresh} | 2030-01-02, NVIDIA H200: 3 tests passed |\n" \
                   f"| primitives | {'0' * 12} | 2030-01-02, NVIDIA H200: 3 tests passed |\n" \
                   "| CudaBackend | - | never |\n"
        said = report.stale(document)
        self.assertIn("primitives: changed since 2030-01-02, NVIDIA H200", said)
        self.assertIn("CudaBackend: never run on a GPU", said)
        self.assertIn("step ops: no row", said)
        self.assertFalse([line for line in said if line.startswith("attention:")])

    def test_the_ledger_has_a_row_for_every_kernel_and_every_kernel_is_in_it(self):
        said = report.stale((ROOT / "docs/gpu-status.md").read_text())
        self.assertEqual([line for line in said if line.endswith("no row")], [])
        listed = {source for sources, _ in report.KERNELS.values() for source in sources}
        kernels = {path.name for path in (ROOT / report.CUDA).glob("*.cuh")}
        self.assertEqual(kernels - listed, set())
        tests = {path.name.rsplit("_test.", 1)[0].removeprefix("cuda_") for path in (ROOT / "tests/kernels/cuda").glob("*_test.cu")}
        for _, names in report.KERNELS.values():
            self.assertEqual(set(names) - tests, set())


if __name__ == "__main__":
    unittest.main()
