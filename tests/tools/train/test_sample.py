"""tools/train/sample.py: a seed decides a text, whatever else is sampled beside it."""

import unittest

import train_path

MISSING = train_path.missing("numpy", "safetensors", "tokenizers", "torch")
if not MISSING:
    import torch

    import bpe
    import sample
    from decoder import Decoder, DecoderConfig


@unittest.skipIf(MISSING, MISSING)
class SampleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(0)
        cls.model = Decoder(DecoderConfig(vocab_size=16, d_model=16, n_heads=2, kv_n_heads=1, n_layers=1)).eval()

    def sample(self, seeds, top_p=1.0, max_tokens=40):
        return sample.sample(self.model, [0, 3, 5], seeds, max_tokens, temperature=1.0, top_p=top_p)

    def test_a_seed_gives_the_same_text_alone_and_beside_others(self):
        together = self.sample([4, 5, 6])
        self.assertEqual(together, [self.sample([seed])[0] for seed in (4, 5, 6)])
        self.assertEqual(len({tuple(text) for text in together}), 3)

    def test_a_text_ends_before_the_end_of_text(self):
        texts = self.sample(list(range(20)))
        self.assertTrue(all(bpe.END_OF_TEXT_ID not in text for text in texts))
        # One in sixteen tokens ends a text, so of twenty some must have ended and not all at once.
        self.assertGreater(len({len(text) for text in texts}), 3)

    def test_top_p_keeps_the_fewest_that_reach_it(self):
        probabilities = torch.tensor([[0.1, 0.5, 0.15, 0.25], [0.97, 0.01, 0.01, 0.01]])
        kept = sample.keep_top_p(probabilities, 0.7)
        self.assertEqual((kept > 0).tolist(), [[False, True, False, True], [True, False, False, False]])
        self.assertTrue(torch.equal(sample.keep_top_p(probabilities, 1.0)[0], probabilities[0]))

    def test_a_small_top_p_is_greedy(self):
        greedy = self.sample([1, 2, 3], top_p=1e-6, max_tokens=5)
        self.assertEqual(greedy[0], greedy[1])
        self.assertEqual(greedy[0], greedy[2])


if __name__ == "__main__":
    unittest.main()
