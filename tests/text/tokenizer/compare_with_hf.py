#!/usr/bin/env python3
"""Counts where our tokenizers give what Hugging Face's `tokenizers` gives: ids with special tokens, ids without,
and the text decoded again.

    compare_with_hf.py ENCODE_LINES DATA [--random 100000] [--only NAME]... [--show 3] [--show-explained]

ENCODE_LINES is the program of that name, built; DATA holds tokenizers/, text/ and bad-input/. Needs `tokenizers`,
`gguf` for the files of that format, `sentencepiece` for its Unigram, and the utf8proc that ours is linked with. Prints a table: vocabulary, corpus,
strings, how many are equal in each of the three; below a vocabulary's last row why others differ, and below each row the first that have no reason.
A reason names characters; it is one where the two agree on the text without them. Exit status 1 when a text has none. Deterministic: the random strings
come from a seed.
"""
import argparse
import collections
import ctypes
import ctypes.util
import json
import re
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

import corpora
import vocabularies


def ours(program, model, texts):
    """What encode_lines prints of every text."""
    with tempfile.TemporaryFile("w+") as lines, tempfile.TemporaryFile("w+") as out:
        for text in texts:
            lines.write(json.dumps(text) + "\n")
        lines.seek(0)
        subprocess.run([program, model], stdin=lines, stdout=out, check=True)
        out.seek(0)
        return [json.loads(line) for line in out]


def reference(tokenizer, texts):
    tokenizer.encode_special_tokens = False
    encoded = tokenizer.encode_batch(texts)
    ids = [e.ids for e in encoded]
    decoded = tokenizer.decode_batch(ids, skip_special_tokens=False)
    tokenizer.encode_special_tokens = True
    plain = tokenizer.encode_batch(texts, add_special_tokens=False)
    return [{"ids": i, "plain_ids": p.ids, "text": t} for i, p, t in zip(ids, plain, decoded)]


IS_ASSIGNED = pre_tokenizers.Split(Regex(r"\p{Cn}"), "removed")
PUNCTUATION = pre_tokenizers.Punctuation("isolated")


def suspects(vocabulary, utf8proc):
    """reason -> whether a character may be one. Python's Unicode is that of our regex library (14)."""
    made, steps = {}, vocabulary.steps()
    if vocabulary.missing_bytes:
        # Hugging Face drops a byte without a token before merging, so that the bytes around it may merge.
        # llama.cpp drops the byte after merging.
        made["a byte without a token"] = lambda c: bool(vocabulary.missing_bytes & set(c.encode()))
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        if re.search(rf"\b{form}\b", steps):
            theirs, ours = getattr(normalizers, form)().normalize_str, utf8proc.form(form)
            # The character stands between marks of the highest and the lowest combining class, so that a
            # combining class of its own changes the result too.
            made["a character newer than their normalizer's tables"] = (
                lambda c, theirs=theirs, ours=ours: c != "\0" and theirs(f"a\u0345{c}\u0334") != ours(f"a\u0345{c}\u0334"))
    if "StripAccents" in steps:
        made["a mark newer than their normalizer's tables"] = (
            lambda c: utf8proc.category(c)[0] == "M" and normalizers.StripAccents().normalize_str(c) == c)
    if "Punctuation" in steps:
        made["punctuation newer than their Punctuation's table"] = (
            lambda c: unicodedata.category(c)[0] == "P" and len(PUNCTUATION.pre_tokenize_str("a" + c)) == 1)
    if "Regex(" in steps or "use_regex=True" in steps:
        made["a character newer than our regex library's tables"] = (
            lambda c: unicodedata.category(c) == "Cn" and bool(IS_ASSIGNED.pre_tokenize_str(c)))
    return made


class Utf8proc:
    """The library that our normalizers use."""

    def __init__(self):
        self.functions = ctypes.CDLL(ctypes.util.find_library("utf8proc"))
        self.functions.utf8proc_category_string.restype = ctypes.c_char_p

    def category(self, c):
        return self.functions.utf8proc_category_string(ord(c)).decode()

    def form(self, name):
        function = getattr(self.functions, "utf8proc_" + name)
        function.restype = ctypes.c_char_p
        return lambda text: function(text.encode()).decode()


def reasons_of(program, vocabulary, utf8proc, texts):
    """text -> why the two differ on it: the characters without which they do not. None where there are no such."""
    made = suspects(vocabulary, utf8proc)
    shortened = []  # text, reason, text without its characters
    for text in texts:
        found = {reason: {c for c in set(text) if may_be(c)} for reason, may_be in made.items()}
        found = {reason: characters for reason, characters in found.items() if characters}
        if len(found) > 1:
            found[" and ".join(found)] = set().union(*found.values())
        shortened += [(text, reason, "".join(c for c in text if c not in characters)) for reason, characters in found.items()]
    without = [text for _, _, text in shortened]
    why = dict.fromkeys(texts)
    for (text, reason, _), a, b in zip(shortened, ours(program, vocabulary.model, without), reference(vocabulary.tokenizer, without)):
        if why[text] is None and a == b:
            why[text] = reason
    return why


def compare(program, vocabulary, utf8proc, texts):
    """Counts of equal results, (kind, reason) -> texts, and what has none: (kind, text, ours, theirs)."""
    equal, different = collections.Counter(), []
    step = 20000
    for start in range(0, len(texts), step):
        chunk = texts[start:start + step]
        for text, a, b in zip(chunk, ours(program, vocabulary.model, chunk), reference(vocabulary.tokenizer, chunk)):
            for kind in ("ids", "plain_ids", "text"):
                if a[kind] == b[kind]:
                    equal[kind] += 1
                else:
                    different.append((kind, text, a[kind], b[kind]))
    explained, unexplained = collections.defaultdict(list), []
    why = reasons_of(program, vocabulary, utf8proc, list(dict.fromkeys(text for _, text, _, _ in different)))
    for kind, text, a, b in different:
        if kind == "text" and "\ufffd" in b:
            # If a run of byte tokens is not valid UTF-8, Hugging Face turns each byte into one U+FFFD, even
            # the bytes of whole characters. We keep whole characters, as SentencePiece and llama.cpp do,
            # because a stream cannot take back characters that it has sent.
            explained[kind, "byte tokens that are no text"].append(text)
        elif why[text]:
            explained[kind, why[text]].append(text)
        else:
            unexplained.append((kind, text, a, b))
    return equal, explained, unexplained


def show(vocabulary, corpus, num_texts, equal):
    counts = " | ".join(f"{equal[kind]:7}" for kind in ("ids", "plain_ids", "text"))
    print(f"| {vocabulary:32} | {corpus:14} | {num_texts:7} | {counts} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("encode_lines")
    parser.add_argument("data")
    parser.add_argument("--random", type=int, default=100000)
    parser.add_argument("--only", action="append", default=[], help="a vocabulary; may be given again")
    parser.add_argument("--show", type=int, default=3, help="unexplained differences to print of each row")
    parser.add_argument("--show-explained", action="store_true", help="the texts of each reason too")
    args = parser.parse_args()

    failed, utf8proc = 0, Utf8proc()
    with tempfile.TemporaryDirectory() as scratch:
        print(f"| {'vocabulary':32} | {'corpus':14} | strings |     ids |   plain | decoded |")
        for vocabulary in vocabularies.all_of(args.data, scratch):
            if args.only and vocabulary.name not in args.only:
                continue
            vocabulary = vocabulary.load()
            num_texts, num_equal, why_not = 0, collections.Counter(), collections.defaultdict(list)
            for corpus, texts in corpora.all_of(args.data, vocabulary.tokenizer, args.random):
                equal, explained, differences = compare(args.encode_lines, vocabulary, utf8proc, texts)
                show(vocabulary.name, corpus, len(texts), equal)
                for kind, text, a, b in differences[:args.show]:
                    print(f"    {kind}: {text!r}\n      ours   {a!r}\n      theirs {b!r}")
                failed += len(differences)
                num_texts += len(texts)
                num_equal += equal
                for why, of_these in explained.items():
                    why_not[why] += of_these
            show(vocabulary.name, "all", num_texts, num_equal)
            for (kind, why), of_these in sorted(why_not.items()):
                print(f"    {len(of_these)} {kind}: {why}")
                for text in of_these if args.show_explained and kind != "plain_ids" else []:
                    print(f"      {ascii(text)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
