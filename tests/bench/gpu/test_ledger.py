"""bench/gpu/ledger.py: what docs/gpu-status.md says of each kernel, and when it is stale."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench/gpu"))
import ledger
import report

DEVICE = {"type": "device", "name": "NVIDIA H200", "gpu": True}
MACHINE = {"type": "machine", "date": "2030-01-02", "gpu": "NVIDIA H200", "driver": "600.1", "commit": "abc1234",
           "code": ledger.hashes()}
SEEN = "2030-01-02, NVIDIA H200: 3 tests passed; not under compute-sanitizer"


def run_of(tests=(), device=DEVICE, more=()):
    """The lines of a run in which every test passes but those of `tests`."""
    lines = [MACHINE, device, *more]
    for name in {test for kernel in ledger.KERNELS.values() for test in kernel.tests}:
        lines.append({"type": "test", "name": f"cuda_{name}_test", "status": "passed", "tests": 3, "failures": 0,
                      "skipped": 0} | dict(tests).get(name, {}))
    return lines


def document(**rows):
    """A document with a fresh table, but for the rows given as (hash, last seen)."""
    found = {name: (ledger.source_hash(name), ledger.NEVER) for name in ledger.KERNELS} | rows
    return "before\n\n" + ledger.table(ledger.HEAD, [[name, *row] for name, row in found.items()]) + "\n\nafter\n"


class TestLineTest(unittest.TestCase):
    def line(self, results, status=0):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "test.json"
            if results is not None:
                path.write_text(json.dumps({"testsuites": [{"name": "S", "testsuite": results}]}))
            return ledger.test_line("cuda_x_test", status, path)

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


class SanitizerLineTest(unittest.TestCase):
    def line(self, status, results=None):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "test.json"
            if results is not None:
                path.write_text(json.dumps({"testsuites": [{"name": "S", "testsuite": results}]}))
            line = ledger.sanitizer_line("memcheck", "cuda_backend_test", "*", status, path)
            return line["status"], line["reason"]

    def test_only_a_test_that_ran_to_its_end_is_clean(self):
        ran = [{"name": "a", "result": "COMPLETED", "time": "0.5s"}]
        self.assertEqual(self.line(0, ran), ("passed", ""))
        self.assertEqual(self.line(99, ran), ("failed", "findings"))
        self.assertEqual(self.line(124), ("timeout", "it ran out of time"))
        self.assertEqual(self.line(1, ran), ("broken", "exit status 1"))
        self.assertEqual(self.line(0), ("broken", "no test ran"))
        self.assertEqual(self.line(0, [{"name": "a", "result": "SKIPPED"}]), ("broken", "no test ran"))


class SeenTest(unittest.TestCase):
    def seen(self, tests=(), device=DEVICE, more=()):
        return ledger.seen_rows(run_of(tests, device, more))

    def test_a_row_says_who_saw_it_and_when(self):
        self.assertEqual(self.seen()["attention_reference"], SEEN)
        self.assertEqual(set(self.seen()), set(ledger.KERNELS))

    def test_what_was_skipped_or_emulated_was_not_seen(self):
        self.assertNotIn("CudaBackend", self.seen({"backend": {"status": "skipped"}}))
        self.assertEqual(self.seen(device=DEVICE | {"gpu": False}), {})

    def test_failures_findings_and_silence_are_named(self):
        sanitizer = [{"type": "sanitizer", "tool": tool, "test": "cuda_step_ops_test", "status": status, "reason": reason}
                     for tool, status, reason in (("memcheck", "passed", ""), ("racecheck", "failed", "findings"),
                                                  ("synccheck", "timeout", "it ran out of time"),
                                                  ("initcheck", "broken", "exit status 1"))]
        seen = self.seen({"step_ops": {"status": "failed", "failures": 1}}, more=sanitizer)
        self.assertEqual(seen["norm"], "2030-01-02, NVIDIA H200: 2 tests passed, **1 failed**; memcheck clean; "
                         "**racecheck: findings**; **synccheck: no answer, it ran out of time**; "
                         "**initcheck: no answer, exit status 1**")


class TableTest(unittest.TestCase):
    def said(self, text):
        said, honest = ledger.stale(text)
        return {line.partition(": ")[0]: line for line in said}, honest

    def test_kernels_that_changed_must_be_marked(self):
        old = "0" * 12
        said, honest = self.said(document(norm=(old, SEEN + ledger.CHANGED), embed=(ledger.source_hash("embed"), SEEN)))
        self.assertTrue(honest)
        self.assertEqual(said["norm"], "norm: changed since 2030-01-02, NVIDIA H200")
        self.assertEqual(said["qkv_post"], "qkv_post: never run on a GPU")
        self.assertNotIn("embed", said)
        for row in ((old, SEEN), (old, ledger.NEVER), (ledger.source_hash("norm"), SEEN + ledger.CHANGED)):
            self.assertFalse(self.said(document(norm=row))[1], row)

    def test_rows_are_those_of_the_kernels(self):
        said, honest = self.said(document(gone=("0" * 12, ledger.NEVER)))
        self.assertEqual((said["gone"], honest), ("gone: there is no such kernel", False))
        said, honest = self.said(document().replace("| norm |", "| morn |"))
        self.assertEqual((said["norm"], honest), ("norm: no row", False))

    def test_renewing_makes_it_honest_and_keeps_what_was_seen(self):
        stale = document(gone=("0" * 12, ledger.NEVER), norm=("0" * 12, SEEN), embed=("0" * 12, ledger.NEVER))
        renewed = ledger.renew(stale, [])
        self.assertTrue(self.said(renewed)[1])
        rows = ledger.rows_of(renewed)
        self.assertEqual(rows["norm"], ("0" * 12, SEEN + ledger.CHANGED))
        self.assertEqual(rows["embed"], (ledger.source_hash("embed"), ledger.NEVER))
        self.assertEqual(ledger.renew(renewed, []), renewed)
        self.assertTrue(renewed.startswith("before\n\n| kernel |") and renewed.endswith("|\n\nafter\n"))
        # A mark is removed when the code is again the code that a GPU ran, or when a GPU has run the new
        # code.
        back = document(norm=(ledger.source_hash("norm"), SEEN + ledger.CHANGED))
        self.assertEqual(ledger.rows_of(ledger.renew(back, []))["norm"][1], SEEN)
        self.assertEqual(ledger.rows_of(ledger.renew(stale, run_of()))["norm"], (ledger.source_hash("norm"), SEEN))

    def test_a_run_of_older_code_is_marked(self):
        old = "0" * 12
        machine = MACHINE | {"code": MACHINE["code"] | {"norm": old}}
        rows = ledger.rows_of(ledger.renew(document(), run_of(more=[machine])))
        self.assertEqual(rows["norm"], (old, SEEN + ledger.CHANGED))
        self.assertEqual(rows["argmax"], (ledger.source_hash("argmax"), SEEN))

    def test_a_run_that_does_not_say_which_code_it_had_counts_for_nothing(self):
        machine = {key: value for key, value in MACHINE.items() if key != "code"}
        rows = ledger.rows_of(ledger.renew(document(), run_of(more=[machine])))
        self.assertEqual({last for _, last in rows.values()}, {ledger.NEVER})

    def test_the_command_fails_where_the_table_hides_a_change(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said:
            path = pathlib.Path(folder) / "status.md"
            path.write_text(document(norm=("0" * 12, SEEN)))
            self.assertEqual(report.main(["stale", str(path)]), 1)
            self.assertIn(ledger.RENEW, said.getvalue())
            self.assertEqual(report.main(["renew", str(path)]), 0)
            self.assertEqual(report.main(["stale", str(path)]), 0)


class KernelsTest(unittest.TestCase):
    def test_every_kernel_is_in_the_ledger(self):
        listed = set().union(*map(ledger.files_of, ledger.KERNELS))
        there = {path.relative_to(ROOT).as_posix() for folder in ("kernels/cuda", "tests/kernels/cuda")
                 for path in (ROOT / folder).rglob("*.cuh")}
        there |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "kernels/cuda").rglob("*.c[cu]")
                  if path.parent.name != "emulator"}
        self.assertEqual(there - listed, set())

    def test_sources_and_tests_are_there(self):
        here = ROOT / "tests/kernels/cuda"
        for name, kernel in ledger.KERNELS.items():
            for path in kernel.sources:
                self.assertTrue((ROOT / path).is_file(), (name, path))
            for test in kernel.tests:
                self.assertTrue([*here.glob(f"{test}_test.c[cu]"), *here.glob(f"cuda_{test}_test.cu")], (name, test))

    def test_what_a_kernel_includes_and_what_launches_it_are_part_of_it(self):
        self.assertLessEqual({"kernels/cuda/norm.cuh", "kernels/cuda/device/rows.cuh", "kernels/cuda/device/row_launch.h",
                              "kernels/cuda/device/primitives_ptx.cuh", "kernels/cuda/device/launch.h", "kernels/ops/norm.h",
                              "kernels/ops/norm.cc"}, ledger.files_of("norm"))
        self.assertLessEqual({"kernels/cuda/attention/paged_attention.cuh", "kernels/cuda/attention/attention_plan.h",
                              "kernels/cuda/attention/paged_attention.h"}, ledger.files_of("paged_attention"))
        self.assertNotIn("kernels/ops/embed.h", ledger.files_of("norm"))


if __name__ == "__main__":
    unittest.main()
