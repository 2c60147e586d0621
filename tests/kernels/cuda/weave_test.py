"""Tests where weave.py puts the switches of mutants, and that what it makes compiles and does what it should."""

import shutil
import subprocess
import tempfile
import unittest

from weave import Source, on_line, overlap, places, woven

FUNCTION = """#include <algorithm>
namespace q {
struct Pair { int a; int b; };
int F(int n) {
  const int most = std::min(n, 9);  // a; comment {
  int sum = 0;
  for (int i = 0; i < most; ++i) {
    if (i > 2 && i < 6) sum += i;
    else sum += 30;
  }
  constexpr int kTwo = 2;
  const Pair pair{.a = n > 4 ? sum : -1, .b = kTwo};
  sum += pair.a;
  if constexpr (kTwo < 3) sum += 1000;
  return sum * pair.b;
}
}
"""
HEAD = "#include <cstdio>\n#include <cstdlib>\nint planted_bug;\n"
MAIN = """
int main(int, char** args) {
  planted_bug = std::atoi(args[1]);
  std::printf("%d", q::F(12));
}
"""
# The text to replace, and its replacement.
MUTANTS = [
    ("i < most", "i <= most"),
    ("i > 2 &&", "i > 0 || true || 0 > 2 &&"),
    ("sum += 30", "sum += 10"),
    ("    if (i > 2 && i < 6) sum += i;\n    else sum += 30;\n", ""),
    ("std::min(n, 9)", "(n)"),
    ("n > 4 ? sum", "n > 12 ? sum"),
    ("kTwo = 2", "kTwo = 5"),
    ("kTwo < 3", "kTwo < 2"),
    ("  sum += pair.a;\n", ""),
    ("    else sum += 30;\n", "    else sum += 30;\n    sum += 3;\n"),
    ("return sum *", "return sum +"),
    ("pair.b;", "pair.a;"),
]


def changed(old: str, new: str) -> str:
    assert FUNCTION.count(old) == 1, old
    return FUNCTION.replace(old, new)


def places_of(old: str, new: str):
    return list(places(Source(FUNCTION), changed(old, new), "BUG"))


def span(place) -> str:
    return FUNCTION[place.begin:place.end]


class PlacesTest(unittest.TestCase):
    def test_the_smallest_expression_comes_first(self):
        self.assertEqual([span(place) for place in places_of("i < 6", "i <= 6")][:1], ["i > 2 && i < 6"])
        self.assertEqual(span(places_of("n > 4", "n >= 4")[0]), "n > 4")
        self.assertEqual(span(places_of("n > 4", "n >= 4")[1]), "n > 4 ? sum : -1")
        self.assertEqual(span(places_of("std::min(n, 9)", "n")[0]), "std::min(n, 9)")

    def test_an_expression_to_return_is_without_the_word(self):
        self.assertEqual(span(places_of("sum * pair", "sum - pair")[0]), "sum * pair.b")

    def test_a_statement_that_goes_is_that_statement(self):
        self.assertEqual(span(places_of("  sum += pair.a;\n", "")[0]), "sum += pair.a;")

    def test_what_is_added_at_the_end_of_a_block_takes_the_statement_before_along(self):
        added = places_of("    else sum += 30;\n", "    else sum += 30;\n    ++sum;\n")
        self.assertEqual({span(place) for place in added}, {"if (i > 2 && i < 6) sum += i;\n    else sum += 30;"})

    def test_a_chain_of_ifs_is_one_statement(self):
        self.assertEqual(span(places_of("sum += 30;", ";")[-2]),
                         "if (i > 2 && i < 6) sum += i;\n    else sum += 30;")

    def test_a_declaration_takes_the_rest_of_the_block_along(self):
        last = places_of("kTwo = 2", "kTwo = 5")[-1]
        self.assertTrue(span(last).startswith("constexpr int kTwo") and span(last).endswith("pair.b;"))
        self.assertNotIn("constexpr int kTwo = 2;", [span(place) for place in places_of("kTwo = 2", "kTwo = 5")])

    def test_a_statement_that_becomes_a_declaration_takes_the_rest_of_the_block_along(self):
        found = places_of("sum += pair.a;", "const AtItsEnd wait;")
        self.assertTrue(found and all(span(place).endswith("pair.b;") for place in found))

    def test_arguments_that_change_together_are_no_expression(self):
        self.assertFalse(any(span(place) == "n, 9" for place in places_of("n, 9", "9, n")))

    def test_directives_comments_and_names_of_types_have_none(self):
        self.assertEqual(places_of("<algorithm>", "<bit>"), [])
        self.assertEqual(places_of("a; comment", "a comment"), [])
        self.assertEqual(places_of("namespace q", "namespace r"), [])

    def test_places_overlap_where_neither_holds_the_other(self):
        place = places_of("sum += 30;", ";")[-2]
        at = place.begin
        for begin, end, wanted in ((at, place.end, False), (at + 1, place.end - 1, False), (place.end, place.end + 1, False),
                                   (at - 1, at, False), (at - 1, at + 1, True), (place.end - 1, place.end + 1, True)):
            self.assertEqual(overlap(place, place._replace(begin=begin, end=end)), wanted, (begin - at, end - at))


class WovenTest(unittest.TestCase):
    def test_lines_are_those_of_the_switch(self):
        text, lines = woven(FUNCTION, {1: places_of("i < 6", "i <= 6")[0]})
        own = [number for number, line in enumerate(text.splitlines(), 1) if "BUG" in line]
        self.assertEqual(len(own), 1)
        self.assertEqual([number for number in range(1, 40) if on_line(lines, number)], [*own, own[0] + 2])

    @unittest.skipUnless(shutil.which("c++"), "no compiler")
    def test_each_switch_does_what_its_mutant_does(self):
        for which in range(3):
            # Any of its places must do: takes the first of each, then the second, then the third.
            chosen, expected = {}, {0: self.value(FUNCTION)}
            for number, mutant in enumerate(MUTANTS, 1):
                found = list(places(Source(FUNCTION), changed(*mutant), f"(planted_bug == {number})"))
                # A constant's last place alone compiles.
                place = found[-1 if mutant[0].startswith("kTwo") else min(which, len(found) - 1)]
                if not any(overlap(place, other) for other in chosen.values()):
                    chosen[number] = place
                    expected[number] = self.value(changed(*mutant))
            self.assertGreaterEqual(len(chosen), 8)
            text, _ = woven(FUNCTION, chosen)
            for number, value in expected.items():
                self.assertEqual(self.value(text, number), value, (which, number))
            self.assertNotIn(expected[0], [value for number, value in expected.items() if number])

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.programs = {}

    def value(self, text: str, bug: int = 0) -> str:
        if text not in self.programs:
            program = f"{self.folder.name}/{len(self.programs)}"
            built = subprocess.run(["c++", "-std=c++20", "-w", "-x", "c++", "-o", program, "-"],
                                   input=HEAD + text + MAIN, capture_output=True, text=True)
            self.assertEqual(built.returncode, 0, built.stderr + text)
            self.programs[text] = program
        return subprocess.run([self.programs[text], str(bug)], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    unittest.main()
