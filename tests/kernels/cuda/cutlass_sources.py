"""CUTLASS's sources for tests, which skip where these cannot be downloaded."""

import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "bench/gpu"))
import cutlass  # noqa: E402


def fetch(folder: pathlib.Path) -> pathlib.Path:
    """Downloads CUTLASS into `folder`, which exists, and returns the folder of its sources."""
    try:
        return cutlass.fetch(folder)
    except subprocess.CalledProcessError as error:
        raise unittest.SkipTest(f"CUTLASS {cutlass.VERSION} could not be downloaded: {error}") from error
