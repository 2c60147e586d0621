#!/usr/bin/env python3
"""Fails when a test uses port 8100, the server's default: a server that the user runs may have it, or another test's.

A test lets the system choose a port (port 0), or only reads the number as text.
"""

import pathlib
import re
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
PORT = re.compile(r"(?<!\w)8100(?!\w)")
# Files in which the number is text, or a port of a container's own network.
TEXT = {"client/connection_test.cc", "server/config/server_config_test.cc", "server/door/request_head_test.cc",
        "deploy/containers.py", "e2e/test_docs.py", "layering/ports_test.py"}


class PortsTest(unittest.TestCase):
    def test_no_test_uses_the_default_port(self):
        sources = [path for pattern in ("*.cc", "*.h", "*.cu", "*.py", "*.sh") for path in TESTS.rglob(pattern)]
        self.assertGreater(len(sources), 300)
        using = {path.relative_to(TESTS).as_posix() for path in sources if PORT.search(path.read_text())}
        self.assertEqual(using, TEXT)


if __name__ == "__main__":
    unittest.main(verbosity=2)
