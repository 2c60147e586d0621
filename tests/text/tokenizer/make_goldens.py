#!/usr/bin/env python3
"""Makes testdata/: tiny tokenizers, and what the reference implementations say of them and of real ones.

    python3 make_goldens.py tiny                    # needs: tokenizers
    python3 make_goldens.py material TEST_MATERIAL  # needs: tokenizers; hashes of ids on real texts
    python3 make_goldens.py llama_cpp TEST_MATERIAL SMOLLM2.gguf  # needs: xllamacpp

Everything is deterministic: the same versions write the same bytes.
"""
import glob
import json
import os
import random
import sys
import unicodedata
import urllib.request

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "testdata")

# Article 1 of the Declaration of Human Rights (public domain), and some code.
CORPUS = """All human beings are born free and equal in dignity and rights. They are endowed with reason and
conscience and should act towards one another in a spirit of brotherhood.
Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et
de conscience et doivent agir les uns envers les autres dans un esprit de fraternité.
Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen
begabt und sollen einander im Geist der Brüderlichkeit begegnen.
Все люди рождаются свободными и равными в своем достоинстве и правах.
人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。
for (int i = 0; i < 100; ++i) { if (x[i] == 12345) return i; }  // we'll see, it's 3.14159
""".split("\n") * 4

GPT4_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")

TEXTS = [
    "", " ", "  ", "\n", "\t\t x", "Hello world", " Hello world ", "Hello   world\n\n  again\r\n", "it's we'll I'D don't",
    "12345 1 22 ½²³ ٣٤٥", "a\u0301e\u0301 éà ½", "人人生而自由", "人 人\u3000生", "🙂👩‍👩‍👧 𝔘𝔫𝔦", "ſ 'ſ ſ's K", "\u1100\u1161\u11a8 각",
    "<s>hi</s>", "<|user|>  tell me", "x <|user|>", "<|user|><|end|>\n a", "foo<mask> bar", "foo <mask> bar", "foobar foo bar",
    "<pad>a<pad>b", "▁a ▁▁b", "\x00\x01\x7f", "\u180e \u200b\u00a0x\u2028y\u0085z", "a.b,c;d!!", "$100 + <50%> ^~`|", "9" * 40,
    "ab" * 40, "the reason " * 12, "\u0344\u0958\u2126", "DON'T'S", "x\u0308\u0323 \u0323\u0308 q\u0307\u0323",
]


def random_texts(count, seed):
    """Short texts that mix what tokenizers find hard."""
    rng = random.Random(seed)
    atoms = (["<s>", "</s>", "<|user|>", "<|end|>", "<mask>", "<pad>", "foo", "▁", " ", "  ", "\n", "\r\n", "\t", "'s", "'LL",
              "\u00a0", "\u3000", "\u0301", "\u0323", "é", "ß", "ſ", "½", "²", "٣", "人", "自由", "ж", "\u0e33", "🙂", "\u200d",
              "\ufffd", "\u1161", "\u1100", "가", "$", "<", "=", ".", ",", "_", "-", "!?", "7", "42", "1234", "\x00", "\x85",
              "the", "and", "reason", "should", "Brüder", "a", "b", "e", "t"])
    return ["".join(rng.choice(atoms) for _ in range(rng.randrange(1, 14))) for _ in range(count)]


def fnv(ids):
    """FNV-1a over the ids as little-endian 32-bit words."""
    h = 0xCBF29CE484222325
    for i in ids:
        for b in (i & 0xFFFFFFFF).to_bytes(4, "little"):
            h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def write(name, value, **kwargs):
    with open(os.path.join(HERE, name), "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, **kwargs)
        f.write("\n")


def write_rows(name, rows):
    """A row a line."""
    with open(os.path.join(HERE, name), "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n")


def tiny_tokenizers():
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    def train(tokenizer, size, **kwargs):
        trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, **kwargs)
        tokenizer.train_from_iterator(CORPUS, trainer)
        return tokenizer

    byte_alphabet = pre_tokenizers.ByteLevel.alphabet()
    made = {}

    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=True)
    made["byte_level"] = train(t, 400, initial_alphabet=byte_alphabet, special_tokens=["<s>"])
    t.add_tokens([AddedToken("  ", normalized=True), AddedToken("foo", single_word=True)])

    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(GPT4_PATTERN), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    made["split_pattern"] = train(t, 420, initial_alphabet=byte_alphabet, special_tokens=["<s>", "</s>", "<|user|>", "<|end|>"])
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])])

    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False),
                                               pre_tokenizers.Digits(individual_digits=False),
                                               pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")])
    t.decoder = decoders.ByteLevel()
    # The alphabet lacks some bytes. The tokenizer leaves such a byte out of a text, and the bytes around it
    # may merge.
    made["punctuation_nfc"] = train(t, 380, initial_alphabet=[c for c in byte_alphabet if c not in "Ģ¥Ć"], special_tokens=["<s>"])
    t.add_tokens([AddedToken("e\u0301e", normalized=True)])

    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")  # for training only: words end at spaces
    made["sentencepiece"] = train(t, 620, special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)])
    spec = json.loads(t.to_str())
    spec["pre_tokenizer"] = None
    byte_ids = range(3, 259)
    spec["added_tokens"] = [a for a in spec["added_tokens"] if a["id"] not in byte_ids]
    made["sentencepiece"] = Tokenizer.from_str(json.dumps(spec))
    t = made["sentencepiece"]
    t.add_special_tokens([AddedToken("<|user|>", rstrip=True, normalized=False), AddedToken("<mask>", lstrip=True, normalized=False),
                          AddedToken("<pad>", lstrip=True, rstrip=True, single_word=True, normalized=False)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])

    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    t.decoder = decoders.Metaspace(prepend_scheme="first")
    made["metaspace"] = train(t, 300, special_tokens=["<unk>", "<s>"])

    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "),
                                         normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")])
    t.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=200, show_progress=False, unk_token="<unk>",
                                                          special_tokens=["<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>"]))
    spec = json.loads(t.to_str())
    spec["model"]["byte_fallback"] = True
    spec["model"]["vocab"] = [[piece, round(score, 6)] for piece, score in spec["model"]["vocab"]]
    spec["added_tokens"] = spec["added_tokens"][:3]
    t = made["unigram"] = Tokenizer.from_str(json.dumps(spec))
    t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    t.add_special_tokens([AddedToken("<|user|>", rstrip=True, normalized=False)])
    t.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return made


def offsets_in_bytes(text, encoding):
    starts = [0]
    for c in text:
        starts.append(starts[-1] + len(c.encode()))
    return [[starts[a], starts[b]] for a, b in encoding.offsets]


def reference_sentencepiece(text, tokens, scores):
    """Merges by score as SentencePiece and llama.cpp do, the slow and plain way."""
    ids = {t: i for i, t in enumerate(tokens)}
    symbols = list(text)
    while True:
        best = max(((scores[ids[a + b]], -i) for i, (a, b) in enumerate(zip(symbols, symbols[1:])) if a + b in ids),
                   default=None)
        if best is None:
            break
        i = -best[1]
        symbols[i:i + 2] = [symbols[i] + symbols[i + 1]]
    out = []
    for s in symbols:
        out += [ids[s]] if s in ids else [3 + b for b in s.encode()]
    return out


def tiny():
    made = tiny_tokenizers()
    cases = {"texts": TEXTS + random_texts(60, seed=7), "ids": {}, "plain_ids": {}, "decoded": {}}
    for name, tokenizer in made.items():
        write(f"tiny_{name}.json", json.loads(tokenizer.to_str()), separators=(",", ":"))
        cases["ids"][name] = [" ".join(map(str, tokenizer.encode(t).ids)) for t in cases["texts"]]
        cases["decoded"][name] = [tokenizer.decode(tokenizer.encode(t).ids) for t in cases["texts"][:len(TEXTS)]]
        tokenizer.encode_special_tokens = True
        cases["plain_ids"][name] = [" ".join(map(str, tokenizer.encode(t, add_special_tokens=False).ids)) for t in cases["texts"]]
    write("tiny_cases.json", cases, indent=0)

    # The same SentencePiece vocabulary, as a GGUF file would hold it.
    vocab = made["sentencepiece"].get_vocab(with_added_tokens=False)
    tokens = sorted(vocab, key=vocab.get)
    scores = [0.0 if i < 259 else -float((i - 259) // 2) for i in range(len(tokens))]  # some equal
    pieces = [p if i >= 259 else "" for i, p in enumerate(tokens)]
    expected = [reference_sentencepiece("▁" + t.replace(" ", "▁"), pieces, scores) if t else [] for t in TEXTS]
    write("tiny_spm.json", {"tokens": tokens, "scores": scores, "texts": TEXTS,
                            "ids": [" ".join(map(str, e)) for e in expected]}, indent=0)

    texts = random_texts(80, seed=11) + [
        "\u0344", "\u1e9b\u0323", "\u0958", "\uac00\u11a8", "a\u05ae\u0300\u0315b", "\u2126\u212b",
        "a\u0305\u0301", "\u1100\u0301\u1161", "e\u0323\u0302", "\u0b47\u0300\u0b3e",  # the last four: blocked, or not
        "\ufdfa", "\u3131\u314f", "\uff76\uff9e", "x\u3300\u0301", "\u2460\u00bd", "\u1fed\u0345"]
    forms = ("NFC", "NFD", "NFKC", "NFKD")
    write_rows("normal_forms.json", [[t] + [unicodedata.normalize(form, t) for form in forms] for t in texts])


def material_texts(root):
    for path in sorted(glob.glob(f"{root}/text/udhr/*.txt")) + [f"{root}/bad-input/utf8/UTF-8-demo.txt",
                                                                f"{root}/bad-input/utf8/UTF-8-test.kuhn.txt"]:
        with open(path, "rb") as f:
            yield os.path.relpath(path, root), [f.read().decode("utf-8", "replace")]
    with open(f"{root}/bad-input/blns/blns.json", encoding="utf-8") as f:
        yield "bad-input/blns/blns.json", json.load(f)


def hashes(root, encode):
    """name of the text: [number of ids, their hash]; the ids of a list of texts each end with -1."""
    out = {}
    for name, texts in material_texts(root):
        ids = []
        for text in texts:
            ids += encode(text)
            if len(texts) > 1:
                ids.append(-1)
        out[name] = [len(ids), fnv(ids)]
    return out


def material(root):
    from tokenizers import Tokenizer
    goldens = {}
    for name in ("tokenizers/hf-json/falcon-tokenizer", "tokenizers/hf-json/gpt-neox-20b", "tokenizers/hf-json/phi-2",
                 "tokenizers/hf-json/phi-3-mini", "models/stories260K-hf"):
        tokenizer = Tokenizer.from_file(f"{root}/{name}/tokenizer.json")
        goldens[name] = hashes(root, lambda text, t=tokenizer: t.encode(text).ids)
    write("material_hashes.json", goldens, indent=0)


def llama_cpp(root, smollm2):
    import xllamacpp
    goldens = {}
    for name, path in (("smollm2-135m-instruct.gguf", smollm2),
                       ("models/stories260K-gguf/stories260K.f32.gguf", f"{root}/models/stories260K-gguf/stories260K.f32.gguf")):
        params = xllamacpp.CommonParams()
        params.model.path = path
        params.n_ctx = 512
        params.n_parallel = 1
        params.warmup = False
        server = xllamacpp.Server(params)

        def encode(text):
            body = json.dumps({"content": text, "add_special": True, "parse_special": True}).encode()
            request = urllib.request.Request(f"{server.listening_address}/tokenize", data=body,
                                             headers={"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as reply:
                return json.load(reply)["tokens"]

        goldens[name] = hashes(root, encode)
        del server
    write("llama_cpp_hashes.json", goldens, indent=0)


if __name__ == "__main__":
    {"tiny": tiny, "material": material, "llama_cpp": llama_cpp}[sys.argv[1]](*sys.argv[2:])
