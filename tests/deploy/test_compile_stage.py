"""The Dockerfile's first stage copies all that the build needs: CMake configures a folder that holds these copies alone.
Configuring fails when a source that CMake names is absent."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


class CompileStage(unittest.TestCase):
    def test_what_it_copies_is_enough(self):
        dockerfile = (REPOSITORY / "deploy/docker/Dockerfile").read_text()
        stage = dockerfile.split(" AS build\n")[1].split("\nFROM ")[0]
        copies = [line.split() for line in re.findall(r"^COPY (.*)$", stage, re.MULTILINE)]
        self.assertGreater(len(copies), 5)
        configures = [line.split() for line in re.findall(r"cmake --preset [^\\&\n]*", stage)]
        self.assertEqual([preset for _, _, preset, *_ in configures], ["release", "cuda"])
        if shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin") is None:
            configures.pop()
        ignore = (REPOSITORY / ".dockerignore").read_text().splitlines()
        sent = [line[1:] for line in ignore if line.startswith("!")]
        with tempfile.TemporaryDirectory() as folder:
            for *sources, target in copies:
                for source in sources:
                    self.assertTrue(any(f"{source.strip('/')}/".startswith(f"{name}/") for name in sent),
                                    f".dockerignore leaves out {source}")
                    place = pathlib.Path(folder, target)
                    if (REPOSITORY / source).is_dir():
                        shutil.copytree(REPOSITORY / source, place)
                    else:
                        place.mkdir(parents=True, exist_ok=True)
                        shutil.copy(REPOSITORY / source, place)
            for pattern in ignore:
                if not pattern.startswith(("!", "#")) and pattern != "*":
                    for path in pathlib.Path(folder).glob(pattern):
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
            for configure in configures:
                done = subprocess.run(configure, cwd=folder, capture_output=True, text=True, timeout=120)
                self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
