"""The texts that compare_with_hf.py compares on."""
import glob
import json
import random

ATOMS = {
    "space": [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\t\t", " \n ", "\u00a0", "\u1680", "\u2003", "\u2028", "\u2029",
              "\u202f", "\u205f", "\u3000", "\x0b", "\x0c", "\x85", "\u200b", "\u200d", "\ufeff", "\u180e", "\u2060"],
    "digits": ["0", "7", "42", "365", "2048", "1234567", "3.14", "1,000", "\u00bd", "\u00b2", "\u2167", "\u0663", "\u09ed", "\u1369", "\u3007",
               "\U0001d7d8", "\u2460", "9" * 20],
    "punctuation": list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["...", "!?", "--", "\u2014", "\u2018", "\u2019", "\u201c", "\u2026", "\u3002", "\uff0c",
                    "\u060c", "\u06d4", "\u0964", "\u00bf", "\u00a7", "\u20ac", "\u2192", "\u00a9", "\u221e", "=>", "//", "/*", "*/", "#!", "```", "{{", "}}"],
    "contractions": ["'s", "'S", "'t", "'re", "'RE", "'ve", "'m", "'ll", "'LL", "'d", "'D", "\u2019s", "'\u017f", "I'm", "don't", "WE'LL"],
    "words": ["the", "The", "and", "reason", "equality", "HTML", "camelCase", "snake_case", "na\u00efve", "caf\u00e9", "Stra\u00dfe", "fa\u00e7ade",
              "\u0130stanbul", "\u01c5", "\ufb01ne", "\ufb03", "\u0444\u0438\u043b\u043e\u0441\u043e\u0444", "\u039f\u03b4\u03c5\u03c3\u03c3\u03b5\u03cd\u03c2", "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627",
              "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u0e19\u0e49\u0e33", "\u4eba\u4eba\u751f\u800c\u81ea\u7531", "\u6771\u4eac", "\u3072\u3089\u304c\u306a", "\u30ab\u30bf\u30ab\u30ca",
              "\uff76\uff9e\uff77\uff9e", "\ud55c\uad6d\uc5b4", "\u1112\u1161\u11ab", "\uff21\uff22\uff23", "\u212b", "\u2126", "\u1e9b\u0323", "\ufdfa", "\u3300", "\u32d0", "\u0958", "\u09dc", "\u0f43"],
    "marks": ["\u0301", "\u0300", "\u0323", "\u0307", "\u0327", "\u0345", "\u034f", "\u093c", "\u0e31", "\u0e49", "\u05bc", "\u064b", "\u20dd",
              "\u3099", "\ufe0f", "\u1161", "\u11a8", "\u0338"],
    "emoji": ["\U0001f642", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\U0001f1eb\U0001f1f7", "\u2764\ufe0f", "1\ufe0f\u20e3",
              "\U0001f3f4\U000e0067\U000e0062\U000e007f", "\U0001d518\U0001d52b\U0001d526"],
    "vocabulary's": ["\u2581", "\u2581\u2581", "<0x0A>", "<0xE4>", "<unk>", "<s>", "</s>", "<pad>", "\u0120", "\u010a", "\ufffd", "\x00", "\x01", "\x7f", "<",
                     "|", ">", "<|", "|>", "[INST]"],
}
# Ranges of code points. A random piece takes its characters from one range. The ranges are Latin, its
# extensions, Greek, Cyrillic, Hebrew, Arabic, Devanagari, Bengali, Tamil, Thai, Tibetan, Georgian, Hangul
# jamo, Ethiopic, kana, ideographs, Hangul, mathematical letters, emoji.
RANGES = [(0x20, 0x7f), (0xa0, 0x250), (0x370, 0x400), (0x400, 0x530), (0x590, 0x600), (0x600, 0x700), (0x900, 0x980), (0x980, 0xa00),
          (0xb80, 0xc00), (0xe00, 0xe80), (0xf00, 0x1000), (0x10a0, 0x1100), (0x1100, 0x1200), (0x1200, 0x1380), (0x3040, 0x3100),
          (0x4e00, 0xa000), (0xac00, 0xd7a4), (0x1d400, 0x1d800), (0x1f300, 0x1f700)]


def random_texts(count, added_tokens, seed=20261122):
    """Strings of 1 to 16 pieces: what is hard for a tokenizer, runs of one script, any code point, added tokens."""
    rng = random.Random(seed)
    kinds = list(ATOMS)

    def piece():
        which = rng.random()
        if which < 0.62:
            return rng.choice(ATOMS[rng.choice(kinds)])
        if which < 0.82:
            first, last = rng.choice(RANGES)
            return "".join(chr(rng.randrange(first, last)) for _ in range(rng.randrange(1, 6)))
        if which < 0.87:
            code_point = rng.randrange(0x110000 - 0x800)
            return chr(code_point + 0x800 if code_point >= 0xd800 else code_point)
        if which < 0.94 and added_tokens:
            return rng.choice(added_tokens)
        return " "

    return ["".join(piece() for _ in range(rng.randrange(1, 17))) for _ in range(count)]


def read(path):
    with open(path, "rb") as f:
        return f.read().decode("utf-8", "replace")


def of_texts(data, added_tokens, num_random):
    """(name, texts) of every corpus; the random strings hold the added tokens."""
    udhr = [read(path) for path in sorted(glob.glob(f"{data}/text/udhr/*.txt"))]
    yield "udhr", udhr
    yield "udhr, lines", [line for text in udhr for line in text.splitlines(keepends=True)]
    with open(f"{data}/bad-input/blns/blns.json", encoding="utf-8") as f:
        yield "naughty", json.load(f)
    stress = [read(f"{data}/bad-input/utf8/{name}") for name in ("UTF-8-demo.txt", "UTF-8-test.kuhn.txt")]
    yield "utf-8 stress", stress + [line for text in stress for line in text.splitlines(keepends=True)]
    yield "random", random_texts(num_random, added_tokens)


def all_of(data, tokenizer, num_random):
    """The same for a tokenizer of Hugging Face, with its added tokens."""
    added = sorted({token.content for token in tokenizer.get_added_tokens_decoder().values()})
    return of_texts(data, added, num_random)
