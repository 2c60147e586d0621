"""tools/train/perplexity_by_position.py: each position's loss is its own."""

import math
import unittest

import train_path

MISSING = train_path.missing("numpy", "safetensors", "tokenizers", "torch")
if not MISSING:
    import torch

    import perplexity_by_position


@unittest.skipIf(MISSING, MISSING)
class PerplexityTest(unittest.TestCase):
    def test_a_position_counts_the_token_after_it(self):
        # The model gives the right next token the probability 1/2, 1/4, 1/8 or 1/16, by its position. The
        # nine other tokens share the rest equally.
        chances = [0.5, 0.25, 0.125, 0.0625]

        def model(ids):
            logits = torch.full((1, ids.shape[1], 10), -math.inf)
            for position, chance in enumerate(chances):
                logits[0, position, :] = math.log((1 - chance) / 9)
                logits[0, position, (int(ids[0, position]) + 1) % 10] = math.log(chance)
            return logits

        counting = torch.tensor([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])
        losses = perplexity_by_position.losses_by_position(model, counting)
        for loss, chance in zip(losses.tolist(), chances, strict=True):
            self.assertAlmostEqual(loss, -math.log(chance), places=5)

    def test_a_bucket_is_the_exponential_of_its_mean(self):
        losses = torch.tensor([0.0, 2.0, 1.0, 1.0, 3.0], dtype=torch.float64)
        got = perplexity_by_position.perplexities(losses, 2)
        for value, wanted in zip(got, [math.e, math.e, math.e**3], strict=True):
            self.assertAlmostEqual(value, wanted)


if __name__ == "__main__":
    unittest.main()
