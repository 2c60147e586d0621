"""tools/train/bpe.py: a vocabulary that gives every text back."""

import json
import pathlib
import tempfile
import unittest

import train_path

MISSING = train_path.missing("tokenizers")
if not MISSING:
    import bpe
    import documents

STORIES = [f"Once upon a time, there was a cat number {i}. The cat said, \"Hello!\"\nThe end." for i in range(50)]


@unittest.skipIf(MISSING, MISSING)
class BpeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tokenizer = bpe.train(STORIES, 320)

    def test_every_text_comes_back(self):
        for text in (STORIES[0], "  two  spaces\n\n\tand a tab ", "caf\u00e9 \u2603 \U0001f431 \u0000", "<|endoftex"):
            self.assertEqual(self.tokenizer.decode(self.tokenizer.encode(text).ids), text)

    def test_the_vocabulary_has_all_bytes_and_at_most_the_size_asked_for(self):
        self.assertEqual(self.tokenizer.get_vocab_size(), 320)
        (ids,) = bpe.encode(self.tokenizer, ["\u2603"])
        self.assertEqual(len(ids), 3)

    def test_a_prompt_starts_with_the_end_of_text_as_documents_do(self):
        self.assertEqual(self.tokenizer.token_to_id(documents.END_OF_TEXT), bpe.END_OF_TEXT_ID)
        ids = self.tokenizer.encode("Once").ids
        self.assertEqual(ids[0], bpe.END_OF_TEXT_ID)
        self.assertEqual(bpe.encode(self.tokenizer, ["Once"]), [ids[1:]])

    def test_saved_and_loaded_it_is_the_same(self):
        with tempfile.TemporaryDirectory() as name:
            bpe.save(self.tokenizer, pathlib.Path(name), max_seq_len=2048)
            self.assertEqual(bpe.load(pathlib.Path(name)).to_str(), self.tokenizer.to_str())
            config = json.loads((pathlib.Path(name) / "tokenizer_config.json").read_text())
            self.assertEqual((config["eos_token"], config["model_max_length"]), (documents.END_OF_TEXT, 2048))

    def test_training_again_gives_the_same(self):
        self.assertEqual(bpe.train(STORIES, 320).to_str(), self.tokenizer.to_str())


if __name__ == "__main__":
    unittest.main()
