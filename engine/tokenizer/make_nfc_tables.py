#!/usr/bin/env python3
"""Writes nfc_tables.inc: what NFC needs to know of Unicode, from Python's unicodedata.

    python3 make_nfc_tables.py > nfc_tables.inc
"""
import sys
import unicodedata

ALL = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
HANGUL = range(0xAC00, 0xAC00 + 11172)


def ranges(values):
    """(first, last, value) of neighbours that share a value."""
    out = []
    for c, v in values:
        if out and out[-1][1] == c - 1 and out[-1][2] == v:
            out[-1][1] = c
        else:
            out.append([c, c, v])
    return out


def canonical(c):
    parts = unicodedata.decomposition(chr(c)).split()
    if not parts or parts[0].startswith("<"):
        return None
    return [int(p, 16) for p in parts]


def table(name, kind, rows):
    print(f"constexpr {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        item = " {" + ", ".join(f"0x{v:X}" for v in row) + "},"
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")


print(f"// Made by make_nfc_tables.py from Unicode {unicodedata.unidata_version}; not edited by hand.")
print("// clang-format off")
print("// First code point, last, canonical combining class (of those above 0).")
table("kCombiningClasses", "CombiningClassRange",
      ranges((c, unicodedata.combining(chr(c))) for c in ALL if unicodedata.combining(chr(c))))
print("// Code point, its canonical decomposition one level down (0: a single character). Without Hangul.")
pairs = {c: canonical(c) for c in ALL if c not in HANGUL and canonical(c)}
table("kDecompositions", "Decomposition", [(c, p[0], p[1] if len(p) > 1 else 0) for c, p in pairs.items()])
print("// First, second, their primary composite, in order of (first, second).")
composites = sorted((p[0], p[1], c) for c, p in pairs.items()
                    if len(p) == 2 and unicodedata.normalize("NFC", chr(c)) == chr(c))
table("kCompositions", "Composition", composites)
print("// First and last of the characters that NFC may change: a text without them is in NFC.")
seconds = {p[1] for p in pairs.values() if len(p) == 2} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
maybe = [(c, 1) for c in ALL if unicodedata.combining(chr(c)) or c in seconds
         or unicodedata.normalize("NFC", chr(c)) != chr(c)]
table("kMayChange", "CodePointRange", [(a, b) for a, b, _ in ranges(maybe)])
