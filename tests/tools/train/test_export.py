"""tools/train/hf_directory.py and check_twin.py: a run as a Hugging Face directory."""

import json
import pathlib
import tempfile
import unittest
from unittest import mock

import train_path

MISSING = train_path.missing("safetensors", "tokenizers", "torch")
NO_TRANSFORMERS = MISSING or train_path.missing("transformers")
if not MISSING:
    import torch

    import bpe
    import hf_directory
    from decoder import Decoder, DecoderConfig
    from history import History
    from trainer import BEST


class RunTest(unittest.TestCase):
    """A run with weights that are random, but not tiny."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_folder, self.out = pathlib.Path(folder.name) / "run", pathlib.Path(folder.name) / "model"
        self.run_folder.mkdir()
        tokenizer = bpe.train(["Once upon a time there was a cat."] * 3, 270)
        bpe.save(tokenizer, self.run_folder, max_seq_len=128)

    def export(self, **changes):
        config = DecoderConfig(vocab_size=270, d_model=48, n_heads=6, kv_n_heads=2, n_layers=3, **changes)
        torch.manual_seed(0)
        self.model = Decoder(config).eval()
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.copy_((weight * (8 if weight.ndim == 2 else 1)).bfloat16())
        hf_directory.write_config(self.run_folder, config, max_seq_len=128)
        History(self.run_folder / "history.csv")
        torch.save({"model": self.model.state_dict(), "step": 7, "validation_loss": 1.5}, self.run_folder / BEST)
        return hf_directory.export(self.run_folder, self.out)


@unittest.skipIf(MISSING, MISSING)
class ExportTest(RunTest):
    def test_what_was_exported_is_read_back(self):
        for positions in ("alibi", "rope"):
            self.assertEqual(self.export(positions=positions), {"step": 7, "validation_loss": 1.5})
            again = hf_directory.load(self.out)
            self.assertEqual(again.config, self.model.config)
            ids = torch.randint(270, (1, 40))
            with torch.no_grad():
                self.assertTrue(torch.equal(again(ids), self.model(ids)))

    def test_every_user_may_read_the_files(self):
        self.export()
        self.assertTrue(all(path.stat().st_mode & 0o044 == 0o044 for path in self.out.iterdir()))

    def test_the_config_has_llm_foundrys_fields(self):
        self.export(alibi_bias_max=4.0)
        config = json.loads((self.out / "config.json").read_text())
        self.assertEqual((config["architectures"], config["model_type"]), (["MPTForCausalLM"], "mpt"))
        self.assertEqual((config["d_model"], config["n_heads"], config["n_layers"], config["max_seq_len"]), (48, 6, 3, 128))
        attention = config["attn_config"]
        self.assertEqual((attention["attn_type"], attention["kv_n_heads"]), ("grouped_query_attention", 2))
        self.assertEqual((attention["alibi"], attention["alibi_bias_max"]), (True, 4))


@unittest.skipIf(NO_TRANSFORMERS, NO_TRANSFORMERS)
class TransformersTest(RunTest):
    def test_logits_are_those_of_the_multi_head_twin(self):
        import check_twin
        for bias_max in (8.0, 4.0):
            self.export(alibi_bias_max=bias_max)
            self.assertTrue(check_twin.agrees(hf_directory.load(self.out), length=96))

    def test_the_twin_notices_heads_in_another_order(self):
        import check_twin
        self.export()
        widened = check_twin.widened

        def interleaved(weight, config):
            query, key, value = widened(weight, config).split(config.d_model)
            turned = [rows.view(config.n_heads, config.head_dim, -1).roll(1, 0).reshape(key.shape) for rows in (key, value)]
            return torch.cat([query, *turned])

        with mock.patch.object(check_twin, "widened", interleaved):
            self.assertFalse(check_twin.agrees(hf_directory.load(self.out), length=96))

    def test_its_tokenizer_loads_and_agrees(self):
        from transformers import PreTrainedTokenizerFast
        self.export()
        theirs, ours = PreTrainedTokenizerFast.from_pretrained(self.out), bpe.load(self.out)
        for text in ("Once upon a time", "A cat \u2603.\n\nThe end", ""):
            self.assertEqual(theirs(text).input_ids, ours.encode(text).ids)
        self.assertEqual((theirs.eos_token_id, theirs.bos_token_id), (0, 0))
        self.assertEqual(theirs.decode(theirs("A cat , sat .").input_ids, skip_special_tokens=True), "A cat , sat .")


if __name__ == "__main__":
    unittest.main()
