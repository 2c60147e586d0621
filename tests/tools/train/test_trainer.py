"""tools/train/train.py from text to weights, on a text that a tiny model learns in seconds."""

import argparse
import contextlib
import io
import json
import os
import pathlib
import random
import signal
import tempfile
import unittest
from unittest import mock

import train_path

MISSING = train_path.missing("numpy", "safetensors", "tokenizers", "torch")
if not MISSING:
    import torch

    import history
    import muon
    import train
    import trainer


def write_stories(path):
    chosen = random.Random(5)
    words = [chosen.choice(["cat", "dog", "bird"]) + " " + chosen.choice(["ran", "sat", "sang"]) for _ in range(1200)]
    stories = [f"The {one}. Then the {two}. The end of story {i}." for i, (one, two) in
               enumerate(zip(words[::2], words[1::2], strict=True))]
    path.write_text("\n<|endoftext|>\n".join(stories))


@unittest.skipIf(MISSING, MISSING)
class TrainTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        write_stories(self.folder / "stories.txt")

    def arguments(self, out, *more):
        text = (f"--data {self.folder}/stories.txt --out {self.folder}/{out} --vocab-size 300 --d-model 32 --n-heads 4 "
                "--kv-n-heads 2 --n-layers 2 --context 32 --batch-size 4 --tokens 5120 --warmup-steps 4 --log-steps 4 "
                "--validate-steps 10 --held-out 0.05 --learning-rate 0.01 --threads 1").split()
        with mock.patch("sys.argv", ["train.py", *text, *more]):
            return train.arguments()

    def train(self, *args, **kwargs):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            done = train.train(self.arguments(*args, **kwargs))
        self.printed = printed.getvalue()
        return done

    def weights(self, out, name):
        return torch.load(self.folder / out / name, weights_only=True)["model"]

    def assert_same_weights(self, ours, theirs):
        self.assertEqual(ours.keys(), theirs.keys())
        for name in ours:
            self.assertTrue(torch.equal(ours[name], theirs[name]), name)

    def test_the_loss_falls_and_the_best_weights_are_kept(self):
        self.assertTrue(self.train("run"))
        entries = history.read(self.folder / "run/history.csv")
        validated = [entry.validation_loss for entry in entries if entry.validation_loss is not None]
        self.assertEqual(entries[-1].step, 40)
        self.assertEqual([entry.step for entry in entries if entry.validation_loss is not None], [10, 20, 30, 40])
        self.assertLess(validated[-1], validated[0] - 0.5)
        self.assertAlmostEqual(torch.load(self.folder / "run/best.pt", weights_only=True)["validation_loss"],
                               min(validated), places=3)
        self.assertRegex(self.printed, r"step 40/40  0\.01 M tokens  loss \d+\.\d+  validation \d+\.\d+  "
                                       r"\d+ tokens/s  0 min left")

    def train_until(self, stop_at, out):
        step = trainer.Trainer._train_step

        def stopping(self):
            loss = step(self)
            if self.step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            return loss

        with mock.patch.object(trainer.Trainer, "_train_step", stopping):
            self.assertFalse(self.train(out))
        self.assertIn(f"stopped at step {stop_at}", self.printed)

    def test_stopped_anywhere_and_gone_on_it_ends_the_same(self):
        self.train("whole")
        for stop_at in (1, 13, 20):
            out = f"stopped{stop_at}"
            self.train_until(stop_at, out)
            self.assertTrue(self.train(out))
            self.assertIn(f"going on from step {stop_at}", self.printed)
            self.assert_same_weights(self.weights("whole", "checkpoint.pt"), self.weights(out, "checkpoint.pt"))
            self.assertEqual((self.folder / "whole/history.csv").read_text(), (self.folder / out / "history.csv").read_text())

    def test_a_run_does_not_go_on_with_other_settings(self):
        self.train("run")
        with self.assertRaisesRegex(ValueError, r"dropout 0.1 \(now 0.5\)"):
            self.train("run", "--dropout", "0.5")

    def test_the_rope_twin_has_the_same_batches_and_vocabulary(self):
        self.train("alibi")
        self.train("rope", "--positions", "rope")
        self.assertEqual((self.folder / "alibi/tokenizer.json").read_text(), (self.folder / "rope/tokenizer.json").read_text())
        self.assertFalse(json.loads((self.folder / "rope/model/config.json").read_text())["attn_config"]["alibi"])

    def test_the_learning_rate_rises_stays_and_falls(self):
        config = trainer.TrainerConfig(steps=100, learning_rate=1.0, warmup_steps=10, cooldown=0.3)
        rates = [trainer.learning_rate(config, step) for step in range(100)]
        self.assertAlmostEqual(rates[0], 0.1)
        self.assertEqual(set(rates[9:71]), {1.0})
        self.assertAlmostEqual(rates[85], 0.5)
        self.assertAlmostEqual(rates[99], 1 / 30)

    def test_a_run_may_be_made_shorter_on_its_way(self):
        self.train_until(3, "run")
        self.assertTrue(self.train("run", "--tokens", "1280"))
        self.assertEqual(history.read(self.folder / "run/history.csv")[-1].step, 10)


@unittest.skipIf(MISSING, MISSING)
class MuonTest(unittest.TestCase):
    def test_an_update_has_singular_values_near_one(self):
        torch.manual_seed(0)
        for shape in ((16, 64), (64, 16), (32, 32)):
            gradient = torch.randn(shape)
            values = torch.linalg.svdvals(muon.orthogonalize(gradient))
            # The iteration's coefficients trade exactness for speed. A singular value that was not tiny in
            # the input ends between 0.7 and 1.2.
            start = torch.linalg.svdvals(gradient / gradient.norm())
            self.assertTrue((values[start > 0.01] > 0.65).all() and (values < 1.25).all(), (shape, values))
            self.assertEqual(muon.orthogonalize(gradient).shape, torch.Size(shape))

    def test_it_keeps_the_directions(self):
        gradient = torch.diag(torch.tensor([3.0, -2.0, 1.0]))
        update = muon.orthogonalize(gradient)
        self.assertTrue(torch.equal(update.sign(), gradient.sign()))


if __name__ == "__main__":
    unittest.main()
