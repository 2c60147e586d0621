"""bench/gpu/peers.py without torch: turns, skips, merging, and the real benchmark as its partner."""

import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "bench/gpu"))
import peers

BENCH = os.environ["QUIRE_GPU_BENCH"]
CASE = {"name": "decode 2x32 4/2 d64 bs16", "num_heads": 4, "query_lens": [1, 1], "context_lens": [32, 32]}


class FakeOurs:
    def __init__(self, turns, times):
        self.turns, self.times = turns, iter(times)

    def sample(self, case):
        self.turns.append("ours")
        return next(self.times)


class FakePeer:
    def __init__(self, name="fake", turns=None, times=(), refuses=None):
        self.name, self.turns, self.times, self.refuses = name, turns, list(times), refuses

    def open(self, case, repeats):
        if self.refuses:
            raise peers.CannotDo(self.refuses)
        times = iter(self.times)

        def sample():
            self.turns.append(self.name)
            return next(times)
        return sample


def compare(ours, others, rounds):
    lines = []
    peers.compare(CASE, ours, others, rounds, 1, lines.append)
    return lines


class CompareTest(unittest.TestCase):
    def test_takes_turns_and_compares_medians(self):
        turns = []
        lines = compare(FakeOurs(turns, [10.0, 30.0, 20.0]),
                        {"a": FakePeer("a", turns, [50.0, 40.0, 1.0]), "b": FakePeer("b", turns, [5.0, 10.0, 15.0])}, 3)
        self.assertEqual(turns, ["ours", "a", "b"] * 3)
        self.assertEqual([(line["peer"], line["ours_us"], line["peer_us"], line["times_faster"]) for line in lines],
                         [("a", 20.0, 40.0, 2.0), ("b", 20.0, 10.0, 0.5)])

    def test_says_why_a_peer_has_no_time(self):
        turns = []
        lines = compare(FakeOurs(turns, [10.0]), {"a": FakePeer(refuses="no ALiBi"), "b": FakePeer("b", turns, [5.0])}, 1)
        self.assertEqual(lines[0], {"type": "peer_skipped", "peer": "a", "case": CASE["name"],
                                    "reason": "CannotDo: no ALiBi"})
        self.assertEqual((lines[1]["type"], lines[1]["peer"]), ("peer", "b"))

    def test_drops_a_peer_that_fails_half_way_and_goes_on_with_the_others(self):
        turns = []
        lines = compare(FakeOurs(turns, [10.0] * 3), {"a": FakePeer("a", turns, [5.0]),
                                                      "b": FakePeer("b", turns, [5.0] * 3)}, 3)
        self.assertEqual([(line["type"], line["peer"]) for line in lines], [("peer_skipped", "a"), ("peer", "b")])

    def test_measures_nothing_of_ours_without_a_peer(self):
        turns = []
        compare(FakeOurs(turns, []), {"a": FakePeer(refuses="no")}, 3)
        self.assertEqual(turns, [])

    def test_says_what_keeps_ours_from_a_case(self):
        ours = mock.Mock()
        ours.sample.side_effect = peers.CannotDo("no memory")
        lines = compare(ours, {"a": FakePeer("a", [], [5.0])}, 2)
        self.assertEqual([(line["peer"], line["reason"]) for line in lines], [("ours", "no memory")])


class PartsTest(unittest.TestCase):
    def test_slopes_are_the_ladders_of_alibi(self):
        self.assertEqual(peers.alibi_slopes(8), [2.0 ** -h for h in range(1, 9)])
        self.assertEqual(peers.alibi_slopes(12), [2.0 ** -h for h in range(1, 9)] +
                         [2.0 ** -0.5, 2.0 ** -1.5, 2.0 ** -2.5, 2.0 ** -3.5])

    def test_lengths_that_differ_are_refused(self):
        self.assertEqual(peers.uniform_lengths(CASE), (1, 32))
        with self.assertRaises(peers.CannotDo):
            peers.uniform_lengths(CASE | {"context_lens": [32, 64]})

    def test_a_peer_that_cannot_be_imported_is_listed(self):
        lines = []
        with mock.patch.object(peers.importlib, "import_module", side_effect=ImportError("No module named 'torch'")):
            self.assertEqual(peers.make_peers(list(peers.PEERS), lines.append), {})
        self.assertEqual([line["peer"] for line in lines], list(peers.PEERS))
        self.assertEqual(lines[0]["reason"], "ImportError: No module named 'torch'")

    def test_flashinfer_decodes_with_and_without_tensor_cores(self):
        case = {"block_size": 16, "num_kv_heads": 2, "head_dim": 64, "alibi": False} | CASE
        for kind, tensor_cores in ((peers.FlashInfer, True), (peers.FlashInferCudaCores, False)):
            peer = kind.__new__(kind)
            peer.torch, peer.flashinfer = mock.MagicMock(), mock.MagicMock()
            peer.prepare(case)
            wrapper = peer.flashinfer.BatchDecodeWithPagedKVCacheWrapper
            self.assertEqual(wrapper.call_args.kwargs, {"use_tensor_cores": tensor_cores})
        with self.assertRaises(peers.CannotDo):
            peer.prepare(case | {"query_lens": [32, 32]})

    def test_unknown_peers_are_an_error_of_use(self):
        with self.assertRaises(SystemExit) as end, contextlib.redirect_stderr(io.StringIO()) as said:
            peers.main(["--bench", BENCH, "--json", "/dev/null", "--peers", "flex,vllm"])
        self.assertEqual(end.exception.code, 2)
        self.assertIn("got vllm", said.getvalue())

    def test_our_libraries_go_before_those_of_the_environment(self):
        with mock.patch.dict(os.environ, {"LD_LIBRARY_PATH": "/b"}):
            self.assertEqual(peers.environment_with("/a")["LD_LIBRARY_PATH"], "/a:/b")
            self.assertEqual(peers.environment_with("")["LD_LIBRARY_PATH"], "/b")


class WithTheBenchmarkTest(unittest.TestCase):
    def run_main(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "results.jsonl"
            with contextlib.redirect_stdout(io.StringIO()):
                status = peers.main(["--bench", BENCH, "--json", str(path), *arguments])
            return status, [json.loads(line) for line in path.read_text().splitlines()]

    def test_every_case_of_the_benchmark_meets_the_peer(self):
        class Peer(FakePeer):
            def __init__(self):
                super().__init__("flex", [], [7.0, 9.0])
        with mock.patch.dict(peers.PEERS, {"flex": Peer}):
            status, lines = self.run_main("--peers", "flex", "--rounds", "2", "--repeats", "1", "--filter", "decode")
        self.assertEqual(status, 0)
        self.assertEqual({line["type"] for line in lines}, {"peer"})
        self.assertEqual(len({line["case"] for line in lines}), len(lines))
        self.assertGreaterEqual(len(lines), 2)
        for line in lines:
            self.assertRegex(line["case"], "^decode .* bs16")
            self.assertEqual(line["peer_us"], 8.0)
            self.assertGreater(line["ours_us"], 0)
            self.assertAlmostEqual(line["times_faster"], 8.0 / line["ours_us"])

    def test_no_case_begins_after_the_time(self):
        with mock.patch.dict(peers.PEERS, {"flex": FakePeer}):
            _, lines = self.run_main("--peers", "flex", "--seconds", "1e-9")
        self.assertGreater(len(lines), 0)
        self.assertEqual({(line["type"], line["reason"]) for line in lines}, {("peer_skipped", "the 1e-09 s are over")})


if __name__ == "__main__":
    unittest.main()
