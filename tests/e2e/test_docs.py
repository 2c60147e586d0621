"""The docs: their commands run as printed, their links lead somewhere, and they name all services and folders.

A fence of sh or Python runs unless the line before it is a comment "<!-- not run: REASON -->". Its files are in a folder
like a clone of the repository, where build/release/bin has the commands, and "quire" asks the test's server. A command
that would go on without end gets Ctrl-C.
"""

import os
import pathlib
import re
import subprocess
import sys
import unittest

import harness
from harness import REPOSITORY
from quire.v1 import prefix_service_pb2


def pages(*patterns: str):
    return sorted(page for pattern in patterns for page in REPOSITORY.glob(pattern))


RUN = pages("*.md", "docs/*.md", "docs/examples/*.md", "deploy/*.md")
LINKED = pages("*.md", "docs/**/*.md", "deploy/*.md", "*/*/README.md")
FENCE = re.compile(r"(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?^```(?P<language>sh|python)\n(?P<code>.*?)^```$",
                   re.MULTILINE | re.DOTALL)
# The reader's own things: a template for the bundled model, files, and packages that are installed.
CHAT_TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"
FILES = {"requests.jsonl": '{"text": "Once upon a time"}\n', "rules.txt": "Nobody parks here."}
PRELUDE = 'set -euo pipefail; sudo() { [ "$1" = apt-get ]; }\n'

WRAPPER = """#!/bin/sh
case "$*" in
  top | "stats --watch" | generate*--ignore_eos*--window_tokens*)
    timeout --signal=INT 2 {quire} "$@" --server {address}
    [ $? = 124 ] ;;
  *) exec {quire} "$@" --server {address} ;;
esac
"""


def runnable():
    """The fences that run: their place and match."""
    for path in RUN:
        text = path.read_text()
        for fence in FENCE.finditer(text):
            if not fence["reason"]:
                line = text.count("\n", 0, fence.start("language")) + 1
                yield f"{path.relative_to(REPOSITORY)}:{line}", fence


class CommandsTest(harness.TestCase):

    @classmethod
    def model(cls):
        return REPOSITORY / "models" / "quire-stories"

    @classmethod
    def setUpClass(cls):
        template = harness.SCRATCH / "template.jinja"
        template.write_text(CHAT_TEMPLATE)
        cls.flags = ("--chat_template", str(template))
        super().setUpClass()
        cls.root = harness.SCRATCH / "clone"
        programs = cls.root / "build" / "release" / "bin"
        programs.mkdir(parents=True)
        for entry in REPOSITORY.iterdir():
            if entry.name != "build":
                (cls.root / entry.name).symlink_to(entry)
        for program in harness.BIN.iterdir():
            if program.name != "quire":
                (programs / program.name).symlink_to(program)
        (programs / "quire").write_text(WRAPPER.format(quire=harness.BIN / "quire", address=cls.server.address))
        (programs / "quire").chmod(0o755)
        for folder in (cls.root, programs):
            for name, text in FILES.items():
                (folder / name).write_text(text)
        cls.environment = harness.child_environment(
            PATH=f"{programs}:{os.environ['PATH']}", PYTHONPATH=os.environ["PYTHONPATH"], PYTHONDONTWRITEBYTECODE="1")

    def run_fence(self, fence) -> str:
        code = fence["code"].replace("127.0.0.1:8100", self.server.address)
        command = (["bash", "-c", PRELUDE + code] if fence["language"] == "sh"
                   else [sys.executable, "-c", code, self.server.address, "Once upon a time"])
        done = subprocess.run(command, cwd=self.root, env=self.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.DEADLINE)
        self.assertEqual(done.returncode, 0, f"{code}\n{done.stdout}")
        return done.stdout

    def test_every_fence_runs_as_printed(self):
        places = []
        for place, fence in runnable():
            places.append(place)
            with self.subTest(place):
                self.assertNotEqual(self.run_fence(fence), "")
        self.assertGreaterEqual(len(places), 5, places)
        for prefix in self.client.prefixes.ListPrefixes(prefix_service_pb2.ListPrefixesRequest()).prefixes:
            self.client.prefixes.DeletePrefix(prefix_service_pb2.DeletePrefixRequest(name=prefix.name))


def prose(page: pathlib.Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: pathlib.Path) -> set[str]:
    """The names that GitHub gives to headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)}


class PagesTest(unittest.TestCase):

    def test_every_link_leads_somewhere(self):
        num_links = 0
        for page in LINKED:
            for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", prose(page)):
                if not target.startswith(("https:", "http:")):
                    num_links += 1
                    with self.subTest(page=str(page.relative_to(REPOSITORY)), link=f"{target}#{anchor}"):
                        path = page.parent / target if target else page
                        self.assertTrue(path.exists())
                        if anchor and path.suffix == ".md":
                            self.assertIn(anchor, anchors(path))
        self.assertGreater(num_links, 100)

    def test_every_path_is_there(self):
        rooms = {entry.name for entry in REPOSITORY.iterdir() if entry.is_dir()}
        num_paths = 0
        for page in LINKED:
            for path in re.findall(r"`([\w./-]+/[\w./-]*)`", prose(page)):
                # A name in capitals stands for many, and build/ is made.
                if path.split("/")[0] in rooms - {"build"} and not re.search(r"[A-Z]{2}", path.replace("README", "")):
                    num_paths += 1
                    with self.subTest(page=str(page.relative_to(REPOSITORY)), path=path):
                        self.assertTrue((REPOSITORY / path).exists())
        self.assertGreater(num_paths, 100)

    def test_the_architecture_names_every_folder(self):
        text = (REPOSITORY / "docs" / "architecture.md").read_text()
        for room in ("engine", "server", "text"):
            for folder in sorted((REPOSITORY / room).iterdir()):
                if folder.is_dir():
                    with self.subTest(folder=f"{room}/{folder.name}"):
                        self.assertRegex(text, rf"\b{folder.name}/")

    def test_every_service_is_introduced(self):
        texts = {name: (REPOSITORY / name).read_text() for name in ("README.md", "docs/glossary.md")}
        services = [service for proto in (REPOSITORY / "proto" / "quire" / "v1").glob("*.proto")
                    for service in re.findall(r"^service (\w+)", proto.read_text(), re.MULTILINE)]
        self.assertGreaterEqual(len(services), 6)
        for service in services:
            for name, text in texts.items():
                with self.subTest(service=service, page=name):
                    self.assertIn(f"`{service}`", text)

    def test_every_program_that_a_readme_names_is_built(self):
        models = {model.name for model in (REPOSITORY / "models").iterdir()}
        for readme, script in (("README.md", "scripts/serve.sh"), ("deploy/README.md", "deploy/docker/Dockerfile")):
            with self.subTest(readme):
                named = set(re.findall(r"\bquire-\w+", (REPOSITORY / readme).read_text())) - models
                targets = re.search(r"--build build/release --target ([\w -]+)", (REPOSITORY / script).read_text())[1]
                self.assertGreaterEqual(len(named), 3)
                self.assertLessEqual(named, set(targets.split()), f"{script} does not build them")


if __name__ == "__main__":
    unittest.main()
