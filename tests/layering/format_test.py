#!/usr/bin/env python3
"""Checks that every C++ and CUDA source is as clang-format 14 with .clang-format writes it.

    python3 format_test.py        # prints the first differences; `git ls-files ... | xargs clang-format -i` mends them

Skipped, with the reason, without clang-format 14 or outside of a clone.
"""

import pathlib
import shutil
import subprocess
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ("*.cc", "*.h", "*.cu", "*.cuh")


class FormatTest(unittest.TestCase):
    def test_sources_are_formatted(self):
        program = shutil.which("clang-format-14")
        if program is None:
            self.skipTest("no clang-format-14 (Debian's package clang-format-14)")
        listed = subprocess.run(["git", "ls-files", "-z", *SOURCES], cwd=REPOSITORY, capture_output=True, text=True)
        if listed.returncode != 0:
            self.skipTest("no clone: git ls-files failed")
        files = [name for name in listed.stdout.split("\0") if name]
        self.assertGreater(len(files), 1000)
        found = subprocess.run([program, "--style=file", "--dry-run", "--Werror", "--ferror-limit=1", *files],
                               cwd=REPOSITORY, capture_output=True, text=True)
        self.assertEqual(found.returncode, 0, found.stderr[:4000])


if __name__ == "__main__":
    unittest.main(verbosity=2)
