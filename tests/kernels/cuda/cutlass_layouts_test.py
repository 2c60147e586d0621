"""Compares the layouts of Quire's kernels and of their emulator with those of CuTe (cutlass/layouts.cc)."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import cutlass_sources

ROOT = pathlib.Path(__file__).resolve().parents[3]

OURS = ("tests/kernels/cuda/cutlass/quire_layouts.cc", "kernels/cuda/emulator/warp_tile.cc")
CUTES = "tests/kernels/cuda/cutlass/layouts.cc"


def cuda_headers() -> pathlib.Path | None:
    homes = [pathlib.Path(home) for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    return next((home / "include" for home in homes if (home / "include/cccl/cuda/std").is_dir()), None)


class LayoutsTest(unittest.TestCase):
    def test_they_are_cutes(self):
        headers = cuda_headers()
        if headers is None:
            self.skipTest("no headers of CUDA 13, which CuTe needs")
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            source = cutlass_sources.fetch(folder)
            compiler = ["g++", "-O1", "-w", "-ffunction-sections", "-c", f"-I{ROOT}"]
            of_cute = [f"-I{source}/include", f"-I{headers}/cccl", f"-I{headers}"]
            for path in OURS:
                subprocess.run([*compiler, "-std=c++20", ROOT / path, "-o", folder / f"{pathlib.Path(path).stem}.o"],
                               check=True)
            subprocess.run([*compiler, "-std=c++17", *of_cute, ROOT / CUTES, "-o", folder / "layouts.o"], check=True)
            subprocess.run(["g++", "-Wl,--gc-sections", *folder.glob("*.o"), "-o", folder / "layouts"], check=True)
            run = subprocess.run([folder / "layouts"], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stdout)
        comparisons = int(re.search(r"(\d+) comparisons, 0 differ", run.stdout).group(1))
        self.assertGreater(comparisons, 300000)


if __name__ == "__main__":
    unittest.main(verbosity=2)
