"""tools/train/decoder.py: the tokens that a position may see, and how heads share."""

import unittest

import train_path

MISSING = train_path.missing("torch")
if not MISSING:
    import torch

    import alibi
    import decoder
    from decoder import Decoder, DecoderConfig


def config(**changes):
    return DecoderConfig(**{"vocab_size": 64, "d_model": 32, "n_heads": 4, "kv_n_heads": 2, "n_layers": 2, **changes})


@unittest.skipIf(MISSING, MISSING)
class DecoderTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.ids = torch.randint(64, (2, 24))

    @staticmethod
    def model(**changes):
        # With weights of the usual size, attention scores are near zero and positions hardly matter. So the
        # weights are made larger.
        model = Decoder(config(**changes)).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim == 2:
                    weight.mul_(8)
        return model

    def test_no_position_sees_what_comes_after_it(self):
        changed = self.ids.clone()
        changed[:, 12:] = (changed[:, 12:] + 1) % 64
        for positions in ("alibi", "rope"):
            model = self.model(positions=positions)
            before, after = model(self.ids), model(changed)
            self.assertTrue(torch.equal(before[:, :12], after[:, :12]), positions)
            self.assertGreater((before[:, 12:] - after[:, 12:]).abs().min(dim=-1).values.max().item(), 0)

    def test_every_position_sees_the_first(self):
        changed = self.ids.clone()
        changed[:, 0] = (changed[:, 0] + 1) % 64
        for positions in ("alibi", "rope"):
            model = self.model(positions=positions)
            differences = (model(self.ids) - model(changed)).abs().amax(dim=(0, 2))
            self.assertTrue((differences > 0).all(), positions)

    def test_attention_is_the_formula(self):
        model = self.model()
        attention = model.transformer.blocks[0].attn
        x = torch.randn(1, 10, 32)
        positions = decoder.Positions(decoder.attention_bias(model.config, 10, x.device), None)
        projected = x[0].double() @ attention.Wqkv.weight.double().T
        out = torch.zeros(10, 32, dtype=torch.float64)
        for head, slope in enumerate(alibi.slopes(4)):
            kv_head = head // 2
            query = projected[:, 8 * head : 8 * head + 8]
            key = projected[:, 32 + 8 * kv_head : 32 + 8 * kv_head + 8]
            value = projected[:, 48 + 8 * kv_head : 48 + 8 * kv_head + 8]
            for i in range(10):
                distances = torch.arange(i, -1, -1, dtype=torch.float64)
                weights = (query[i] @ key[: i + 1].T / 8**0.5 - slope * distances).softmax(-1)
                out[i, 8 * head : 8 * head + 8] = weights @ value[: i + 1]
        wanted = out @ attention.out_proj.weight.double().T
        # Bounds the rounding of two matrix products of up to 32 terms and a softmax, in float32.
        bound = 32 * 2.0**-24 * 8 * wanted.abs().max().item()
        self.assertLess((attention(x, positions)[0].double() - wanted).abs().max().item(), bound)

    def test_rope_turns_by_distance_alone(self):
        rope = config(positions="rope", d_model=32, n_heads=4)
        cos, sin = decoder.rotation(rope, 40, torch.device("cpu"))
        query, key = torch.randn(8), torch.randn(8)

        def score(i, j):
            return torch.dot(decoder.rotate(query, cos[i], sin[i]), decoder.rotate(key, cos[j], sin[j])).item()

        self.assertAlmostEqual(score(7, 3), score(36, 32), places=4)
        self.assertNotAlmostEqual(score(7, 3), score(7, 4), places=4)
        self.assertAlmostEqual(score(5, 5), torch.dot(query, key).item(), places=4)

    def test_the_twin_differs_in_positions_alone(self):
        shapes = [{name: tuple(weight.shape) for name, weight in self.model(positions=positions).state_dict().items()}
                  for positions in ("alibi", "rope")]
        self.assertEqual(*shapes)

    def test_tensors_have_llm_foundrys_names(self):
        names = set(self.model().state_dict())
        block = {f"transformer.blocks.1.{part}.weight" for part in
                 ("norm_1", "attn.Wqkv", "attn.out_proj", "norm_2", "ffn.up_proj", "ffn.down_proj")}
        self.assertLessEqual(block | {"transformer.wte.weight", "transformer.norm_f.weight"}, names)
        self.assertEqual(len(names), 2 * 6 + 2)

    def test_a_shape_that_does_not_divide_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "kv_n_heads"):
            config(kv_n_heads=3)
        with self.assertRaisesRegex(ValueError, "positions"):
            config(positions="learned")


if __name__ == "__main__":
    unittest.main()
