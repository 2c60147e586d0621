"""The protos as each language's generator takes them, without an option on its command line."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from google.protobuf import descriptor_pb2

PROTOS = pathlib.Path(__file__).resolve().parents[2] / "proto"
FILES = sorted(str(path.relative_to(PROTOS)) for path in (PROTOS / "quire/v1").glob("*.proto"))


class LanguagesTest(unittest.TestCase):
    def generate(self, language: str) -> dict[str, str]:
        """The files made, by path."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        subprocess.run([os.environ["QUIRE_PROTOC"], f"-I{PROTOS}", f"--{language}_out={folder.name}", *FILES],
                       check=True, cwd=PROTOS)
        return {str(path.relative_to(folder.name)): path.read_text(errors="replace")
                for path in pathlib.Path(folder.name).rglob("*") if path.is_file()}

    def test_there_are_protos(self):
        self.assertIn("quire/v1/inference_service.proto", FILES)

    def test_java_has_a_file_for_each_message(self):
        self.assertIn("package quire.v1;", self.generate("java")["quire/v1/GenerateRequest.java"])

    def test_csharp_has_its_namespace(self):
        for name, text in self.generate("csharp").items():
            self.assertIn("namespace Quire.V1 {", text, name)

    def test_php_has_its_namespace(self):
        self.assertIn("namespace Quire\\V1;", self.generate("php")["Quire/V1/GenerateRequest.php"])

    def test_ruby_has_its_module(self):
        self.assertIn("module Quire\n  module V1", self.generate("ruby")["quire/v1/inference_service_pb.rb"])

    def test_objective_c_has_its_prefix(self):
        self.assertIn("@interface QREGenerateRequest", "".join(self.generate("objc").values()))

    def test_go_has_one_package(self):
        with tempfile.NamedTemporaryFile() as out:
            subprocess.run([os.environ["QUIRE_PROTOC"], f"-I{PROTOS}", f"--descriptor_set_out={out.name}", *FILES],
                           check=True, cwd=PROTOS)
            read = descriptor_pb2.FileDescriptorSet.FromString(out.read()).file
        self.assertEqual({file.name: file.options.go_package for file in read},
                         dict.fromkeys(FILES, "quire/v1;quirev1"))
        if shutil.which("protoc-gen-go") is None:  # Debian's protoc does not have it
            return
        made = self.generate("go")
        self.assertEqual(len(made), len(FILES))
        for name, text in made.items():
            self.assertEqual(str(pathlib.Path(name).parent), "quire/v1")
            self.assertIn("package quirev1\n", text, name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
