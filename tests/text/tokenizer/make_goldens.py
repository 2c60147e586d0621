#!/usr/bin/env python3
"""Makes testdata/: tiny tokenizers, and what the reference implementations say of them and of real ones.

    python3 make_goldens.py tiny                    # needs: tokenizers
    python3 make_goldens.py material TEST_MATERIAL  # needs: tokenizers; hashes of ids on real texts
    python3 make_goldens.py llama_cpp TEST_MATERIAL SMOLLM2.gguf  # needs: xllamacpp
    python3 make_goldens.py special_tokens          # needs: transformers

Everything is deterministic: the same versions write the same bytes.
"""
import glob
import itertools
import json
import os
import random
import sys
import tempfile
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


SPECIAL_TEXT = "a<x>b</s>c"
SPECIAL_TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ eos_token }}"


def special_tokenizer(ends, added=("<s>", "</s>", "<unk>")):
    """A tokenizer.json of single letters, whose post-processor puts `ends` ("", "bos", "eos") around a text."""
    vocab = {piece: i for i, piece in enumerate(["<s>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz\u0120", "<x>"])}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    bos, eos = ([{"SpecialToken": {"id": t, "type_id": 0}}] if name in ends else []
                for name, t in (("bos", "<s>"), ("eos", "</s>")))
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    template = {"type": "TemplateProcessing", "single": [*bos, text, *eos], "pair": [*bos, text, text, *eos],
                "special_tokens": {t: {"id": t, "ids": [vocab[t]], "tokens": [t]} for t in ("<s>", "</s>")}}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": vocab[t], "content": t, **flags} for t in added],
            "normalizer": None, "pre_tokenizer": level, "post_processor": template if ends else level, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocab, "merges": []}}


def sentencepiece_of(tokenizer):
    """The same tokenizer with spaces and bytes as SentencePiece has them."""
    vocab = {piece.replace("\u0120", "\u2581"): id for piece, id in tokenizer["model"]["vocab"].items()}
    steps = [{"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]
    decoders = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    after = tokenizer["post_processor"] if tokenizer["post_processor"]["type"] == "TemplateProcessing" else None
    return {**tokenizer, "normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": decoders}, "post_processor": after,
            "model": {**tokenizer["model"], "vocab": vocab, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}}


def loaded(tokenizer, config, model_type="llama"):
    """The tokenizer that transformers makes of a directory."""
    import transformers
    with tempfile.TemporaryDirectory() as directory:
        for file, value in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config),
                            ("config.json", {"model_type": model_type})):
            with open(os.path.join(directory, file), "w", encoding="utf-8") as f:
                json.dump(value, f)
        return transformers.AutoTokenizer.from_pretrained(directory)


# Classes that build a tokenizer of their own of the vocabulary, and the model_type of a model that has them.
OWN_CLASSES = {"CodeGenTokenizer": "phi", "CodeLlamaTokenizer": "llama", "CohereTokenizer": "cohere", "GPT2Tokenizer": "gpt2",
               "GPTNeoXTokenizer": "gpt_neox", "GemmaTokenizer": "gemma", "LlamaTokenizer": "llama", "Qwen2Tokenizer": "qwen2"}
OF_SENTENCEPIECE = ("CodeLlamaTokenizer", "GemmaTokenizer", "LlamaTokenizer")


def around_texts(tokenizers, names):
    """The ids before and behind a text, for OWN_CLASSES."""
    rows = []
    for (of_class, model_type), end, bos, eos in itertools.product(
            OWN_CLASSES.items(), ("", "bos", "eos", "bos eos"), (None, True, False), (None, True, False)):
        name = f"sentencepiece {end}" if of_class in OF_SENTENCEPIECE else end
        flags = {k: v for k, v in {"add_bos_token": bos, "add_eos_token": eos}.items() if v is not None}
        config = {"tokenizer_class": of_class, **flags, **names}
        tokenizer = loaded(tokenizers[name], config, model_type)
        assert type(tokenizer).__name__ == of_class, (of_class, type(tokenizer))
        text = tokenizer("a", add_special_tokens=False)["input_ids"]
        ids = tokenizer("a")["input_ids"]
        at = next(i for i in range(len(ids)) if ids[i:i + len(text)] == text)
        rows.append({"tokenizer": name, "config": config, "before": ids[:at], "behind": ids[at + len(text):]})
    return rows


def special_tokens():
    """What transformers makes of tokenizer_config.json: what surrounds a text, what is hidden, what templates see.

    The classes of `cases` take tokenizer.json as it is. Those of `around` take only its vocabulary, merges and
    post-processor."""
    import transformers
    tokenizers = {name: special_tokenizer(name) for name in ("", "bos", "eos", "bos eos")}
    tokenizers |= {f"sentencepiece {name}": sentencepiece_of(of_name) for name, of_name in tokenizers.items()}
    tokenizers["eos is plain"] = special_tokenizer("bos", added=("<s>",))
    unmarked = tokenizers["none is special"] = special_tokenizer("bos")
    for token in unmarked["added_tokens"]:
        token["special"] = False
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    of_all = [None, "PreTrainedTokenizerFast", "LlamaTokenizer", "TokenizersBackend"]
    cases = []
    for name, of_class, bos, eos, given in itertools.product(
            ("", "bos", "eos", "bos eos"), of_all, (None, True, False), (None, True, False), (names, {k: None for k in names}, {})):
        config = {"tokenizer_class": of_class, "add_bos_token": bos, "add_eos_token": eos}
        cases.append((name, {**{k: v for k, v in config.items() if v is not None}, **given}))
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    decoder = {str(i): {"content": t, **flags, "special": True} for i, t in ((0, "<s>"), (1, "</s>"), (30, "<x>"))}
    plain = {**decoder, "30": {**decoder["30"], "special": False}}
    for more in ({"pad_token": "<x>"}, {"pad_token": "<nowhere>"}, {"additional_special_tokens": ["<x>"]},
                 {"extra_special_tokens": ["<x>"]}, {"extra_special_tokens": {"image_token": "<x>"}},
                 {"additional_special_tokens": ["<x>"], "extra_special_tokens": ["a"]},
                 {"additional_special_tokens": ["<x>"], "extra_special_tokens": {"image_token": "a"}}, {"image_token": "<x>"},
                 {"added_tokens_decoder": decoder}, {"added_tokens_decoder": plain},
                 {"added_tokens_decoder": plain, "pad_token": "<x>"},
                 {"bos_token": {"__type": "AddedToken", "content": "<s>", **flags, "special": True}}):
        for name in ("bos", "eos is plain", "none is special"):
            cases.append((name, {"tokenizer_class": "PreTrainedTokenizerFast", **names, **more}))
    rows = []
    for name, config in cases:
        tokenizer = loaded(tokenizers[name], config)
        ids = tokenizer(SPECIAL_TEXT)["input_ids"]
        tokenizer.chat_template = SPECIAL_TEMPLATE
        messages = [{"role": "user", "content": "a"}]
        rows.append({"tokenizer": name, "config": config, "ids": ids,
                     "shown": tokenizer.decode(ids, skip_special_tokens=True),
                     "names": {k: str(v) for k, v in tokenizer.special_tokens_map.items()},
                     "chat": tokenizer.apply_chat_template(messages, tokenize=False),
                     "chat_ids": tokenizer.apply_chat_template(messages)["input_ids"]})
    with open(os.path.join(HERE, "special_tokens.json"), "w", encoding="utf-8") as f:
        f.write(json.dumps({"transformers": transformers.__version__, "text": SPECIAL_TEXT, "tokenizers": tokenizers})[:-1])
        for key, of_key in (("cases", rows), ("around", around_texts(tokenizers, names))):
            f.write(f', "{key}": [\n' + ",\n".join(json.dumps(row) for row in of_key) + "\n]")
        f.write("}\n")


if __name__ == "__main__":
    {"tiny": tiny, "material": material, "llama_cpp": llama_cpp, "special_tokens": special_tokens}[sys.argv[1]](*sys.argv[2:])
