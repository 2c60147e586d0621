#!/usr/bin/env python3
"""Writes case_table.cc: the letters outside ASCII that str.upper() and str.lower() change."""


def mapped(convert):
    for c in range(0x80, 0x110000):
        if not 0xD800 <= c < 0xE000 and convert(chr(c)) != chr(c):
            yield c, convert(chr(c))


def ranges(convert):
    """(first, last, stride, delta) of the letters that map to one letter."""
    points = [(c, ord(to) - c) for c, to in mapped(convert) if len(to) == 1]
    i = 0
    while i < len(points):
        best = (i, 1)
        for stride in (1, 2):
            j = i
            while j + 1 < len(points) and points[j + 1] == (points[j][0] + stride, points[j][1]):
                j += 1
            if j > best[0]:
                best = (j, stride)
        yield points[i][0], points[best[0]][0], best[1], points[i][1]
        i = best[0] + 1


def print_table(name, rows):
    print(f"const std::vector<CaseRange>& {name}() {{")
    print("  static const auto* const kTable = new std::vector<CaseRange>{")
    for i in range(0, len(rows), 3):
        print("      " + " ".join("{0x%x, 0x%x, %d, %d}," % row for row in rows[i : i + 3]))
    print("  };\n  return *kTable;\n}\n")


print("// Written by make_case_table.py; do not edit.\n")
print('#include "text/jinja/case_table.h"\n')
print("namespace quire::jinja {\n// clang-format off\n")
print_table("UpperRanges", list(ranges(str.upper)))
print_table("LowerRanges", list(ranges(str.lower)))
print("const std::vector<CaseSpecial>& UpperSpecials() {")
print("  static const auto* const kTable = new std::vector<CaseSpecial>{")
rows = ["{0x%x, U\"%s\"}," % (c, "".join("\\x%x" % ord(t) if i == 0 else '" U"\\x%x' % ord(t) for i, t in enumerate(to)))
        for c, to in mapped(str.upper) if len(to) > 1]
for i in range(0, len(rows), 3):
    print("      " + " ".join(rows[i : i + 3]))
print("  };\n  return *kTable;\n}\n")
print("// clang-format on\n}  // namespace quire::jinja")
