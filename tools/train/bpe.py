"""Makes a byte-level BPE vocabulary, as a tokenizer.json that transformers and Quire read."""

import json
import pathlib
from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from documents import END_OF_TEXT

END_OF_TEXT_ID = 0


def train(documents: Iterable[str], vocab_size: int) -> Tokenizer:
    """GPT-2's scheme: its word pattern, 256 bytes as letters, merges. Id 0 ends a text. A prompt starts with it, as
    every document in training does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=[AddedToken(END_OF_TEXT, special=True)],
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A", pair=f"{END_OF_TEXT} $A {END_OF_TEXT} $B",
        special_tokens=[(END_OF_TEXT, END_OF_TEXT_ID)])
    return tokenizer


def save(tokenizer: Tokenizer, folder: pathlib.Path, max_seq_len: int) -> None:
    """Writes tokenizer.json, and beside it the settings that transformers needs."""
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "unk_token": END_OF_TEXT}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_seq_len,
              "clean_up_tokenization_spaces": False, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "special_tokens_map.json").write_text(json.dumps(special, indent=2) + "\n")


def load(folder: pathlib.Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def encode(tokenizer: Tokenizer, documents: Iterable[str]) -> list[list[int]]:
    """The ids of each document, without special tokens."""
    return [encoding.ids for encoding in tokenizer.encode_batch(list(documents), add_special_tokens=False)]
