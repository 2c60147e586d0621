"""bench/gpu/report.py: tables out of results."""

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
            "query_lens": list(queries or [1] * len(contexts)), "block_size": 16, "head_dim": 128, "alibi": name.endswith("alibi")}


def goal(lines, start):
    found = [line for line in lines if line.startswith(f"- {start}")]
    assert len(found) == 1, (start, lines)
    return found[0]


class GoalsTest(unittest.TestCase):
    def test_the_worst_row_decides(self):
        rows = [attention("decode 64x8192 32/8 d128 bs16", share=0.95), attention("decode 64x8192 32/1 d128 bs16", share=0.84)]
        said = goal(report.goals(rows, []), "decode at 85 %")
        self.assertIn("**not met**; worst of 2: 84 % (decode 64x8192 32/1 d128 bs16)", said)
        self.assertIn(": met; worst of 1: 95 %", goal(report.goals(rows[:1], []), "decode at 85 %"))

    def test_small_batches_do_not_count_for_bandwidth_but_ragged_ones_do(self):
        small = attention("decode 1x1024 32/8 d128 bs16", share=0.2, contexts=[1024])
        ragged = attention("ragged 63x512+1x131072 32/8 d128 bs16", suite="ragged", share=0.91, contexts=[512, 131072])
        self.assertIn("met; worst of 1: 91 %", goal(report.goals([small, ragged], []), "decode at 85 %"))

    def test_alibi_is_compared_with_the_same_case_without(self):
        name = "decode 64x8192 32/8 d128 bs16"
        rows = [attention(name, median=100.0), attention(name + " alibi", median=101.5)]
        self.assertIn(": met; worst of 1: +1.5 %", goal(report.goals(rows, []), "ALiBi for at most 2 %"))
        rows[1]["median_us"] = 103.0
        self.assertIn("**not met**; worst of 1: +3.0 %", goal(report.goals(rows, []), "ALiBi for at most 2 %"))
        self.assertIn("not measured", goal(report.goals(rows, []), "ALiBi for at most 5 %"))

    def test_an_fp8_cache_is_compared_with_the_same_case_without(self):
        name = "decode 64x32768 32/8 d128 bs16"
        rows = [attention(name, median=180.0, contexts=[32768] * 64),
                attention(name + " fp8", median=100.0, share=0.8, contexts=[32768] * 64) | {"fp8": True}]
        self.assertIn(": met; worst of 1: 1.80", goal(report.goals(rows, []), "decode of 32k tokens 1.7 times as fast"))
        self.assertIn("worst of 1: 95 %", goal(report.goals(rows, []), "decode at 85 %"))
        rows[0]["median_us"] = 160.0
        self.assertIn("**not met**; worst of 1: 1.60", goal(report.goals(rows, []), "decode of 32k tokens 1.7 times as fast"))

    def test_prefill_counts_flops_at_eight_thousand_tokens(self):
        rows = [attention("prefill 1x8192@8192 32/8 d128 bs16", "prefill", 1000.0, contexts=[8192], queries=[8192], flops=3.4e11),
                attention("prefill 1x1024@1024 32/8 d128 bs16", "prefill", 1000.0, contexts=[1024], queries=[1024], flops=1e9)]
        self.assertIn(": met; worst of 1: 340", goal(report.goals(rows, []), "prefill of 8k tokens at 240"))
        self.assertIn("not measured", goal(report.goals(rows, []), "prefill of 8k tokens at 500 TFLOP/s on wgmma"))
        rows.append(attention("prefill 1x8192@8192 32/8 d128 bs16 wgmma", "prefill", 1000.0, contexts=[8192], queries=[8192],
                              flops=4.9e11) | {"wgmma": True})
        self.assertIn(": met; worst of 1: 340", goal(report.goals(rows, []), "prefill of 8k tokens at 240"))
        self.assertIn("**not met**; worst of 1: 490", goal(report.goals(rows, []), "prefill of 8k tokens at 500"))

    def test_forks_that_read_a_prefix_together_are_compared_with_those_that_do_not(self):
        name = "shared 16x4352 32/8 d128 bs16 prefix 4096"
        rows = [attention(name, "shared", contexts=[4352] * 16) | {"prefix": 4096},
                attention(name + " together", "shared", 25.0, contexts=[4352] * 16) | {"prefix": 4096}]
        self.assertIn(": met; worst of 1: 4.00 times as fast", goal(report.goals(rows, []), "16 forks of 4096 keys 3 times"))
        rows[1]["median_us"] = 40.0
        self.assertIn("**not met**; worst of 1: 2.50 times", goal(report.goals(rows, []), "16 forks of 4096 keys 3 times"))
        self.assertIn("not measured", goal(report.goals(rows[:1], []), "16 forks of 4096 keys 3 times"))

    def test_decodes_that_skip_far_keys_are_compared_with_those_that_do_not(self):
        name, aim = "skip 64x8192 32/32 d128 bs16 alibi", "64 decodes of 8192 keys with ALiBi 1.7 times"
        rows = [attention(name, "skip", contexts=[8192] * 64), attention(name + " skipping", "skip", 50.0, contexts=[8192] * 64)]
        self.assertIn(": met; worst of 1: 2.00 times as fast", goal(report.goals(rows, []), aim))
        rows[1]["median_us"] = 80.0
        self.assertIn("**not met**; worst of 1: 1.25 times", goal(report.goals(rows, []), aim))

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

    def test_predictions_have_a_column_for_each_number_of_heads(self):
        def row(case, heads, kv_heads, us):
            return attention(f"{case} {heads}/{kv_heads} d128 bs16") | {
                "type": "prediction", "predicted_us": us, "num_heads": heads, "num_kv_heads": kv_heads}
        self.assertEqual(report.predictions([row("decode 1x9", 32, 8, 561.2), row("prefill 1x9@9", 32, 8, 7.0),
                                             row("decode 1x9", 28, 4, 9.25)]),
                         "| case | 32/8 µs | 28/4 µs |\n|---|---|---|\n"
                         "| decode 1x9 d128 | 561 | 9.2 |\n| prefill 1x9@9 d128 | 7.0 | - |\n")

    def test_a_phase_that_was_skipped_is_left_out_with_its_reason(self):
        skipped = {"type": "phase_skipped", "phase": "sanitizer", "reason": "no compute-sanitizer on the PATH"}
        self.assertIn("- sanitizer: no compute-sanitizer on the PATH", report.performance([DEVICE, skipped]))
        ran = {"type": "sanitizer", "tool": "memcheck", "test": "t", "status": "passed"}
        self.assertNotIn("no compute-sanitizer", report.performance([DEVICE, skipped, ran]))  # in another part


class NcuTest(unittest.TestCase):
    HEAD = '"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name"\n'

    def line(self, text, status=0):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "ncu.csv"
            if text is not None:
                path.write_text(text)
            return report.ncu_line("AttnKernel", "decode 1x1 32/8 d128 bs16", status, path)

    def test_metrics_become_a_row(self):
        line = self.line("==PROF== Connected to process 1\n" + self.HEAD +
                         '"0","AttnKernel","GPU Speed Of Light Throughput","Memory Throughput","%","91.25",""\n'
                         '"0","AttnKernel","GPU Speed Of Light Throughput","Duration","us","1,234.5",""\n'
                         '"0","AttnKernel","GPU Speed Of Light Throughput","","","","SOLBottleneck"\n'
                         '"0","AttnKernel","Memory Workload Analysis","Memory Throughput","Tbyte/second","4.1",""\n')
        self.assertEqual((line["status"], len(line["metrics"])), ("passed", 3))
        self.assertIn("| AttnKernel | decode 1x1 32/8 d128 bs16 | 1,234.5 us | 91.25 % | - |", report.performance([DEVICE, line]))

    def test_what_gave_no_metrics_is_left_out_with_its_reason(self):
        for text, status, state, reason in (
                ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", 1, "skipped", "ERR_NVGPUCTRPERM - The"),
                ("==ERROR== No kernels were profiled.\n", 0, "failed", "No kernels were profiled."),
                (self.HEAD, 0, "failed", "no metrics, exit status 0"), (None, 124, "failed", "no metrics, exit status 124")):
            line = self.line(text, status)
            self.assertEqual(line["status"], state)
            self.assertIn(f"- ncu AttnKernel decode 1x1 32/8 d128 bs16: {reason}", report.performance([DEVICE, line]))


if __name__ == "__main__":
    unittest.main()
