"""The tokenizers that compare_with_hf.py compares: files of real models, and small ones that it trains with the pipeline
of each supported family."""
import dataclasses
import glob
import json
import os
import typing

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import corpora


@dataclasses.dataclass
class Vocabulary:
    name: str
    model: str  # what our side opens
    make: typing.Callable  # () -> Tokenizer, theirs
    tokenizer: Tokenizer = None
    missing_bytes: frozenset = frozenset()  # of a byte-level vocabulary in a GGUF file

    def load(self):
        self.tokenizer = self.make()
        if self.model.endswith(".gguf") and isinstance(self.tokenizer.decoder, decoders.ByteLevel):
            tokens = self.tokenizer.get_vocab()
            self.missing_bytes = frozenset(b for b, c in byte_letters().items() if c not in tokens)
        return self

    def steps(self):
        """The names of its normalizers and pre-tokenizers, somewhere in a text."""
        return f"{self.tokenizer.normalizer} {self.tokenizer.pre_tokenizer}"


def byte_letters():
    """GPT-2's printable stand-in of each byte."""
    printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(rest)}


def of_file(name, path, theirs=None):
    return Vocabulary(name, path, lambda: Tokenizer.from_file(theirs or path))


class Gguf:
    """The metadata of a GGUF file that its tokenizer is made of."""

    def __init__(self, path):
        import gguf

        self.fields = gguf.GGUFReader(path).fields
        self.tokens, self.types = self.texts("tokens"), self.numbers("token_type")

    def texts(self, key):
        field = self.fields["tokenizer.ggml." + key]
        return [bytes(field.parts[i]).decode() for i in field.data]

    def numbers(self, key):
        field = self.fields["tokenizer.ggml." + key]
        return [field.parts[i][0].item() for i in field.data]

    def get(self, key, default):
        return self.numbers(key)[0] if "tokenizer.ggml." + key in self.fields else default


def byte_level_of_gguf(path, pre_tokenizer):
    """Byte-level BPE over the tokens and merges of the file; llama.cpp has no normalizer for it."""
    file = Gguf(path)
    t = Tokenizer(models.BPE({token: i for i, token in enumerate(file.tokens)}, [tuple(m.split(" ")) for m in file.texts("merges")]))
    t.pre_tokenizer, t.decoder = pre_tokenizer, decoders.ByteLevel()
    t.add_special_tokens([AddedToken(c, normalized=False) for c, kind in zip(file.tokens, file.types) if kind in (2, 3)])
    t.add_tokens([AddedToken(c, normalized=False) for c, kind in zip(file.tokens, file.types) if kind == 4])
    return t


def phi3_of_gguf(path, tokenizer_json):
    """The model's own tokenizer.json, but with the BOS that the file asks for, and "</s>" special, as llama.cpp has it."""
    file = Gguf(path)
    with open(tokenizer_json, encoding="utf-8") as f:
        spec = json.load(f)
    for token in spec["added_tokens"]:
        token["special"] = token["special"] or token["content"] == "</s>"
    t = Tokenizer.from_str(json.dumps(spec))
    if file.get("add_bos_token", True):
        bos = file.get("bos_token_id", 1)
        t.post_processor = processors.TemplateProcessing(single=f"{file.tokens[bos]} $A", special_tokens=[(file.tokens[bos], bos)])
    return t


# The split patterns of each model family, as in the tokenizer.json of its models.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
# The patterns of names in llama.cpp's tokenizer.ggml.pre.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
GGUF_DEFAULT = [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]
GGUF_FALCON = [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]
CHAT = ["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"]


def splits(*patterns):
    """Patterns one after the other, as llama.cpp applies them: on the text, never on the byte alphabet."""
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
                                   + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level(texts, pre_tokenizer, normalizer=None, specials=CHAT, size=2000, **model):
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer, t.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer is not None:
        t.normalizer = normalizer
    t.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def sentencepiece_bpe(texts, normalizer, pre_tokenizer, decoder, size=2000):
    """Merges with byte fallback, as Llama 2, Mistral, Phi-3 and Gemma have them."""
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")  # for training only
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=specials))
    spec = json.loads(t.to_str())
    spec["pre_tokenizer"] = None
    spec["added_tokens"] = [a for a in spec["added_tokens"] if a["id"] < 3]
    t = Tokenizer.from_str(json.dumps(spec))
    if pre_tokenizer is not None:
        t.pre_tokenizer = pre_tokenizer
    t.decoder = decoder
    t.add_special_tokens([AddedToken(c, normalized=False, rstrip=i % 2 == 1) for i, c in enumerate(CHAT)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t


def to_spaces(strip):
    return decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
                             + ([decoders.Strip(" ", 1, 0)] if strip else []))


def llama3(texts):
    t = byte_level(texts, splits(LLAMA3), ignore_merges=True)
    begin = t.token_to_id(CHAT[0])
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single=f"{CHAT[0]} $A", special_tokens=[(CHAT[0], begin)])])
    return t


def families():
    """family -> what trains its tokenizer on texts."""
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    falcon = pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), plain, pre_tokenizers.Digits(individual_digits=False),
                                      pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")])
    marker = normalizers.Replace(" ", "\u2581")
    return {
        "GPT-2": lambda texts: byte_level(texts, plain),
        "GPT-2, prefix space": lambda texts: byte_level(texts, pre_tokenizers.ByteLevel(add_prefix_space=True)),
        "GPT-NeoX, MPT": lambda texts: byte_level(texts, plain, normalizers.NFC()),
        "Falcon": lambda texts: byte_level(texts, falcon),
        "SmolLM2, Refact": lambda texts: byte_level(texts, digits),
        "BLOOM": lambda texts: byte_level(texts, splits(BLOOM)),
        "Qwen 2, 2.5, 3": lambda texts: byte_level(texts, splits(QWEN2), normalizers.NFC()),
        "Mistral (Tekken)": lambda texts: byte_level(texts, splits(TEKKEN), ignore_merges=True),
        "Llama 3": llama3,
        "Llama 2, Mistral, Mixtral, Phi-3": lambda texts: sentencepiece_bpe(
            texts, normalizers.Sequence([normalizers.Prepend("\u2581"), marker]), None, to_spaces(True)),
        "Llama 2 (not legacy)": lambda texts: sentencepiece_bpe(
            texts, None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), to_spaces(True)),
        "Gemma 3": lambda texts: sentencepiece_bpe(
            texts, marker, pre_tokenizers.Split(" ", "merged_with_previous"), to_spaces(False)),
    }


def with_normalizer():
    """name -> a function that makes a tokenizer of bytes after that normalizer."""
    made = {
        "NFC": normalizers.NFC(), "NFD": normalizers.NFD(), "NFKC": normalizers.NFKC(), "NFKD": normalizers.NFKD(),
        "Lowercase": normalizers.Lowercase(), "StripAccents": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
        "Nmt": normalizers.Nmt(), "Strip": normalizers.Strip(),
        "Replace, Prepend": normalizers.Sequence([normalizers.Replace(Regex(r"\s{2,}"), " "), normalizers.Prepend(">")])}
    return {name: lambda texts, normalizer=normalizer: byte_level(
        texts[:1], pre_tokenizers.ByteLevel(add_prefix_space=False), normalizer, size=300) for name, normalizer in made.items()}


def unigram(texts):
    """By the trainer of tokenizers."""
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    t.decoder = decoders.Metaspace(prepend_scheme="always")
    t.train_from_iterator(texts, trainers.UnigramTrainer(
        vocab_size=3000, show_progress=False, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>"))
    return t


def sentencepiece_unigram(texts, scratch, byte_fallback, split_words):
    """By SentencePiece's trainer, with its compiled character map."""
    import sentencepiece

    lines, prefix = os.path.join(scratch, "lines.txt"), os.path.join(scratch, "spm")
    with open(lines, "w", encoding="utf-8") as f:
        f.write("\n".join(line for text in texts for line in text.splitlines() if line.strip()))
    sentencepiece.SentencePieceTrainer.train(
        input=lines, model_prefix=prefix, vocab_size=4000, model_type="unigram", byte_fallback=byte_fallback,
        character_coverage=0.99, minloglevel=2, num_threads=1)
    spm = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
    vocab = [(spm.id_to_piece(i), spm.get_score(i)) for i in range(spm.get_piece_size())]
    t = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=byte_fallback))
    t.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap_of(prefix + ".model")),
                                         normalizers.Replace(Regex(" {2,}"), " ")])
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="always")
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace]) if split_words else metaspace
    t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    t.add_special_tokens([AddedToken(c, normalized=False) for c in ["<unk>", "<s>", "</s>"] + CHAT])
    return t


def unigrams(scratch):
    """name -> what trains it on texts."""
    made = {"trained by tokenizers": unigram}
    for byte_fallback in (False, True):
        for split_words in (False, True):
            name = "SentencePiece" + ", bytes" * byte_fallback + ", words" * split_words
            made[name] = lambda texts, b=byte_fallback, s=split_words: sentencepiece_unigram(texts, scratch, b, s)
    return made


def charsmap_of(path):
    """NormalizerSpec.precompiled_charsmap (field 2) of ModelProto.normalizer_spec (field 3)."""
    def fields(data):
        at = 0
        def varint():
            nonlocal at
            value = shift = 0
            while True:
                byte = data[at]
                at += 1
                value |= (byte & 0x7f) << shift
                shift += 7
                if byte < 0x80:
                    return value
        while at < len(data):
            key = varint()
            if key & 7 == 2:
                length = varint()
                yield key >> 3, data[at:at + length]
                at += length
            elif key & 7 == 0:
                yield key >> 3, varint()
            else:
                at += {1: 8, 5: 4}[key & 7]
    with open(path, "rb") as f:
        spec = next(value for number, value in fields(f.read()) if number == 3)
    return next(value for number, value in fields(spec) if number == 2)


def all_of(data, scratch):
    hf, gguf = f"{data}/tokenizers/hf-json", f"{data}/tokenizers/gguf-vocab"
    for name in sorted(os.listdir(hf)):
        if os.path.isdir(f"{hf}/{name}"):
            yield of_file(name, f"{hf}/{name}/tokenizer.json")
    yield of_file("stories260K", f"{data}/models/stories260K-hf/tokenizer.json")
    for name, pre_tokenizer in (("falcon", splits(*GGUF_FALCON)), ("gpt-2", splits(GPT2)), ("gpt-neox", splits(*GGUF_DEFAULT)),
                                ("mpt", splits(GPT2))):
        file = f"{gguf}/ggml-vocab-{name}.gguf"
        yield Vocabulary(f"{name}.gguf", file, lambda file=file, pre=pre_tokenizer: byte_level_of_gguf(file, pre))
    file = f"{gguf}/ggml-vocab-phi-3.gguf"
    yield Vocabulary("phi-3.gguf", file, lambda: phi3_of_gguf(file, f"{hf}/phi-3-mini/tokenizer.json"))

    path = os.path.join(scratch, "tokenizer.json")

    def trained(train):
        train([corpora.read(text) for text in sorted(glob.glob(f"{data}/text/udhr/*.txt"))]).save(path)
        return Tokenizer.from_file(path)

    for group, made in (("", families()), ("Unigram, ", unigrams(scratch)), ("bytes, ", with_normalizer())):
        for name, train in made.items():
            yield Vocabulary(group + name, path, lambda train=train: trained(train))
