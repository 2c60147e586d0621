"""The totals of scripts/test.sh, from what unittest, GoogleTest and ctest print."""

import contextlib
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock
from xml.sax import saxutils

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import summarize_tests  # noqa: E402: the path comes first

SUITE = '''
import unittest

class Some(unittest.TestCase):
    def test_passes(self): pass
    def test_with_subtests(self):
        for i in range(3):
            with self.subTest(i=i): self.assertTrue(True)
    def test_is_skipped(self): self.skipTest("no 'go'")
    def test_is_documented_and_skipped(self):
        """A line about it."""
        self.skipTest("no nvcc")

class Whole(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise unittest.SkipTest("no model")
    def test_a(self): pass
    def test_b(self): pass

@unittest.skip("no torch")
class Marked(unittest.TestCase):
    def test_c(self): pass

unittest.main(verbosity=%d)
'''
FAILING = '''
import unittest

class Some(unittest.TestCase):
    def test_passes(self): pass
    def test_fails(self): self.fail()
    def test_raises(self): raise ValueError

unittest.main(verbosity=2)
'''
GTEST = """<testsuites><testsuite name="A">
<testcase name="Runs" status="run" result="completed" classname="A"/>
<testcase name="Skips" status="run" result="skipped" classname="A"><skipped message="a.cc:3&#x0A;no file"/></testcase>
<testcase name="Off" status="notrun" result="suppressed" classname="A"/>
</testsuite></testsuites>"""


def printed(suite: str) -> str:
    done = subprocess.run([sys.executable, "-c", suite], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout


class SummaryTest(unittest.TestCase):
    def summarized(self, entries: dict[str, tuple[str, str]], stages: str = "test-release\t5\t9\t0\n") -> tuple[int, str]:
        """Exit status and output for entries of ctest: name to status and output. a_test has written GTEST."""
        with tempfile.TemporaryDirectory() as scratch:
            results = pathlib.Path(scratch)
            (results / "release").mkdir()
            (results / "release" / "a_test.xml").write_text(GTEST)
            cases = "".join(f'<testcase name="{name}" status="{status}"><system-out>{saxutils.escape(output)}'
                            "</system-out></testcase>" for name, (status, output) in entries.items())
            (results / "release" / "ctest.junit.xml").write_text(f"<testsuite>{cases}</testsuite>")
            (results / "stages.tsv").write_text(stages)
            out = io.StringIO()
            with contextlib.redirect_stdout(out), mock.patch.object(sys, "argv", ["summarize_tests.py", str(results)]):
                status = summarize_tests.main()
            return status, out.getvalue()

    def test_every_skip_counts_and_has_its_reason(self):
        status, out = self.summarized({"python_test": ("run", printed(SUITE % 2))})
        self.assertEqual(status, 0)
        for reason in ("no file", "no 'go'", "no nvcc", "no model", "no torch"):
            self.assertIn(f": {reason}\n", out)
        self.assertTrue(out.endswith("3 passed, 0 failed, 5 skipped\n"), out)

    def test_skips_count_without_their_reasons(self):
        out = self.summarized({"python_test": ("run", printed(SUITE % 1))})[1]
        self.assertEqual(out.count("python_test: no reason given"), 4)
        self.assertIn(" 5 skipped\n", out)

    def test_failures_count(self):
        status, out = self.summarized({"python_test": ("fail", printed(FAILING))}, "test-release\t5\t9\t8\n")
        self.assertEqual(status, 1)
        self.assertTrue(out.endswith("2 passed, 2 failed, 1 skipped\n"), out)

    def test_a_binary_counts_by_its_file(self):
        ran = "[==========] 2 tests from 1 test suite ran. (3 ms total)\n"
        out = self.summarized({"a_test": ("run", ran), "a_test_other_libm": ("run", ran)})[1]
        self.assertTrue(out.endswith("1 passed, 0 failed, 1 skipped\n"), out)
        out = self.summarized({"a_test": ("run", ran), "b_test": ("fail", "[ RUN      ] B.Crashes\n")},
                              "test-release\t5\t9\t8\n")[1]
        self.assertTrue(out.endswith("1 passed, 1 failed, 1 skipped\n"), out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
