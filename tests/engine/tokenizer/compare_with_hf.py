#!/usr/bin/env python3
"""Counts where our tokenizers give what Hugging Face's `tokenizers` gives: ids with special tokens, ids without,
and the text decoded again.

    compare_with_hf.py ENCODE_LINES DATA [--random 100000] [--only NAME]... [--show 3]

ENCODE_LINES is the program of that name, built; DATA holds tokenizers/, text/ and bad-input/. Needs `tokenizers`,
`gguf` for the files of that format, `sentencepiece` for its Unigram. Prints a table: vocabulary, corpus, strings, how many are equal in each of the three; below a
vocabulary's last row why others differ, and below each row the first that have no reason. Exit status 1 when there is one. Deterministic: the random
strings come from a seed.
"""
import argparse
import collections
import json
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


def reason(vocabulary, kind, text, theirs):
    """Why the two may differ on this text; None when they should not. Python's Unicode is that of our libraries (14)."""
    if kind == "text" and "\ufffd" in theirs:
        # Of byte tokens that are not UTF-8 together Hugging Face makes one U+FFFD each, whatever is among them; we keep
        # the characters, as SentencePiece and llama.cpp do, and a stream could not take them back.
        return "byte tokens that are no text"
    if vocabulary.missing_bytes & set(text.encode()):
        # Hugging Face leaves the byte out before merging, so that its neighbours may merge over it; llama.cpp behind.
        return "a byte without a token"
    steps = vocabulary.steps()
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        if form in steps and getattr(normalizers, form)().normalize_str(text) != unicodedata.normalize(form, text):
            return "a character newer than their normalizer's tables"
    if "StripAccents" in steps:
        if any(unicodedata.category(c)[0] == "M" and normalizers.StripAccents().normalize_str(c) == c for c in text):
            return "a mark newer than their normalizer's tables"
    if "Punctuation" in steps:
        if any(unicodedata.category(c)[0] == "P" and len(PUNCTUATION.pre_tokenize_str("a" + c)) == 1 for c in text):
            return "punctuation newer than their Punctuation's table"
    if any(unicodedata.category(c) == "Cn" and IS_ASSIGNED.pre_tokenize_str(c) for c in text):
        return "a character newer than our regex library's tables"
    return None


def compare(program, vocabulary, texts):
    """Counts of equal results, counts of reasons, and what has none: (kind, text, ours, theirs)."""
    equal, reasons, differences = collections.Counter(), collections.Counter(), []
    step = 20000
    for start in range(0, len(texts), step):
        chunk = texts[start:start + step]
        for text, a, b in zip(chunk, ours(program, vocabulary.model, chunk), reference(vocabulary.tokenizer, chunk)):
            for kind in ("ids", "plain_ids", "text"):
                if a[kind] == b[kind]:
                    equal[kind] += 1
                elif why := reason(vocabulary, kind, text, b["text"]):
                    reasons[f"{kind}: {why}"] += 1
                else:
                    differences.append((kind, text, a[kind], b[kind]))
    return equal, reasons, differences


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
    args = parser.parse_args()

    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        print(f"| {'vocabulary':32} | {'corpus':14} | strings |     ids |   plain | decoded |")
        for vocabulary in vocabularies.all_of(args.data, scratch):
            if args.only and vocabulary.name not in args.only:
                continue
            vocabulary = vocabulary.load()
            num_texts, num_equal, why_not = 0, collections.Counter(), collections.Counter()
            for corpus, texts in corpora.all_of(args.data, vocabulary.tokenizer, args.random):
                equal, reasons, differences = compare(args.encode_lines, vocabulary, texts)
                show(vocabulary.name, corpus, len(texts), equal)
                for kind, text, a, b in differences[:args.show]:
                    print(f"    {kind}: {text!r}\n      ours   {a!r}\n      theirs {b!r}")
                failed += len(differences)
                num_texts += len(texts)
                num_equal += equal
                why_not += reasons
            show(vocabulary.name, "all", num_texts, num_equal)
            for why, count in sorted(why_not.items()):
                print(f"    {count} {why}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
