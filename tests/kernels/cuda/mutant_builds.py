"""Compiles mutants, many in one copy of their sources or each in its own, and runs tests with them."""

import collections
import concurrent.futures
import functools
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import switch
import weave
from planted_bugs import ATTENTION_HOST
from relink import link_line, shadow_of, unit_of, words_before_source

ROOT = pathlib.Path(__file__).resolve().parents[3]
# Attention kernels of these head_dims are compiled with the mutant. The other kernels come from the library,
# because compiling all of them takes minutes. So no mutant has a bug that concerns only another head_dim.
MUTATED_HEAD_DIMS = ("64", "80", "128")
MOST_IN_A_COPY = 60


def with_few_instances(text: str) -> str:
    """Changes the attention's unit so that the library provides the kernels of most head_dims."""
    head_dims = re.findall(r"kInstance<T, (\d+)>", text)
    others = [dim for dim in dict.fromkeys(head_dims) if dim not in MUTATED_HEAD_DIMS]
    if not others or len(others) == len(set(head_dims)):
        sys.exit(f"{ATTENTION_HOST}: its instances are not those expected")
    declared = "".join(f"extern template __global__ void AttnKernel<{element}, {dim}, false>(AttnParams<{element}>);\n"
                       for dim in others for element in ("Bf16", "F16"))
    return text.replace("namespace {\n", declared + "namespace {\n", 1)


@functools.lru_cache(maxsize=None)
def source_of(path: str) -> weave.Source:
    return weave.Source((ROOT / path).read_text())


class Program:
    """A test program, and which of its tests a mutant should meet first."""

    def __init__(self, path: pathlib.Path, without: pathlib.Path):
        """`without` is the program to run without a mutant: the same one, if it has a switch."""
        self.path = path
        run, seconds = self._without_a_mutant(without)
        self.limit = switch.TIME_OUT + 3 * seconds
        # Milliseconds of each test. One that takes none that are counted takes one.
        self.times = {name: int(time) + 1 for name, time in re.findall(r"^\[       OK \] ([\w./]+).* \((\d+) ms\)$",
                                                                      run.said, re.MULTILINE)}
        self.seen = collections.Counter()  # tests that saw a mutant

    @staticmethod
    @functools.lru_cache(maxsize=None)
    def _without_a_mutant(program: pathlib.Path):
        begin = time.monotonic()
        run = switch.run_test([program], pathlib.Path.cwd(), 0, 600)
        if run.status != 0:
            sys.exit(f"{program} fails without a mutant:\n{run.said}")
        return run, time.monotonic() - begin

    def filters(self):
        """Divides the tests into filters, to be tried in turn: some that take a 25th of the time of all, then a fifth
        of it, then all others. Tests that saw most mutants come first, then the shortest."""
        order = sorted(self.times, key=lambda name: (-self.seen[name], self.times[name]))
        filters, before = [], []
        for share in (1 / 25, 1 / 5):
            left, chosen = sum(self.times.values()) * share, []
            for name in order:
                if name not in before and self.times[name] <= left:
                    chosen.append(name)
                    left -= self.times[name]
            filters.append(":".join(chosen))
            before += chosen
        return filters + ["" if len(before) == len(order) else "-" + ":".join(before)]

    def run(self, bug: int, test_filter: str) -> str:
        """Returns the complaint of the tests with one bug switched on, or '' if they pass."""
        run = switch.run_test([self.path, f"--gtest_filter={test_filter}", "--gtest_fail_fast"], pathlib.Path.cwd(),
                              bug, self.limit, TSAN_OPTIONS="halt_on_error=1")
        if run.status == 0:
            return ""
        self.seen.update(re.findall(r"^\[ RUN      \] ([\w./]+)", run.said, re.MULTILINE)[-1:])
        if run.late:
            return "runs for ever"
        for kind in ("data race", "AddressSanitizer", "runtime error"):
            if kind in run.said:
                return kind
        fault = re.search(r"emulator: (deadlock|[^\n]*?)(?:: block| at |$)", run.said, re.MULTILINE)
        return fault.group(1) if fault else "wrong result" if run.status == 1 else f"status {run.status}"


class Copy:
    """A unit of a build folder with changed sources, and the tests that are linked with it."""

    def __init__(self, build: pathlib.Path, unit: str, folder: pathlib.Path):
        self.build, self.unit, self.folder = build, unit, folder
        self.programs = {}  # by the name of the test
        self.lock = threading.Lock()

    def compile(self, texts, option="-O1"):
        """Compiles the unit with the texts in place of sources of these paths."""
        for path, text in texts.items():
            shadow = self.folder / path
            shadow.parent.mkdir(parents=True, exist_ok=True)
            shadow.write_text(text)
        switch.write_switch(self.folder)
        # The unit is compiled from a copy, so that it includes the changed sources.
        source = self.folder / self.unit
        text = texts.get(self.unit) or (ROOT / self.unit).read_text()
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(with_few_instances(text) if self.unit == ATTENTION_HOST else text)
        unit = unit_of(self.build, self.unit)
        words = words_before_source(unit)
        if "-MF" in words:
            words[words.index("-MF") + 1] = str(self.folder / "unit.d")
        # -w: a warning must not stop a mutant. A sanitizer build keeps its -O0, because any other level takes
        # minutes.
        words = ([words[0], f"-I{self.folder}"] + words[1:] + ["-include", str(self.folder / switch.HEADER), "-w"]
                 + ([] if "-O0" in words and option.startswith("-O") else [option]))
        return switch.compile(self.build, words, shadow_of(unit, ROOT, self.folder), self.folder / "unit.o")

    def program(self, target: str, has_switch: bool) -> Program:
        """A test with the copy, linked and run without a mutant."""
        with self.lock:
            if target not in self.programs:
                path = self._link(target)
                self.programs[target] = Program(path, path if has_switch else self.build / "tests" / target)
        return self.programs[target]

    def _link(self, target: str) -> pathlib.Path:
        program = self.folder / target
        unit = unit_of(self.build, self.unit)
        object = self.folder / "planted_bug.o"
        if not object.exists():
            switch.compile(self.build, [unit.words[0], "-O1", "-fPIC"], self.folder / "planted_bug.cc", object)
        # Leaves out the test's own object. The copy comes first, so that the linker prefers it to the library.
        line = link_line(self.build, f"tests/{target}").replace(f" {unit.object} ", " ")
        line = re.sub(rf"-o tests/{target}\b", f"-Wl,-z,muldefs {self.folder}/unit.o {object} -o {program}", line)
        subprocess.run(line, cwd=self.build, shell=True, capture_output=True, check=True)
        return program


class Mutants:
    """Mutants and the copies of sources that hold them, in one build folder."""

    def __init__(self, build: pathlib.Path, mutants, tests, alone: bool, folder: pathlib.Path):
        """`mutants` maps numbers from 1 on to mutants, and `tests` their paths to units and tests."""
        self.build, self.mutants, self.tests, self.folder = build, mutants, tests, folder
        self.weaver = concurrent.futures.ThreadPoolExecutor(1)
        self.units = {}
        for unit in dict.fromkeys(unit for mutant in mutants.values() for unit, _ in tests[mutant.path]):
            of_unit = {number: mutant for number, mutant in mutants.items()
                       if not alone and unit in (of for of, _ in tests[mutant.path])}
            self.units[unit] = self.weaver.submit(WovenUnit, build, unit, of_unit, folder / str(len(self.units)))

    def verdict(self, number: int) -> str:
        """Returns the complaint of the first test that sees the mutant, or '' if none does."""
        mutant = self.mutants[number]
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            alone, programs = {}, []
            for unit, target in self.tests[mutant.path]:
                copy = self.units[unit].result().copies.get(number) or alone.get(unit)
                if copy is None:
                    copy = alone[unit] = Copy(self.build, unit, pathlib.Path(folder) / str(len(alone)))
                    if copy.compile({mutant.path: mutant.text}).returncode != 0:
                        return "not C++"
                programs.append(copy.program(target, unit not in alone))
            for filters in zip(*(program.filters() for program in programs)):
                for program, test_filter in zip(programs, filters):
                    said = test_filter and program.run(number, test_filter)
                    if said:
                        return said
        return ""


class WovenUnit:
    """The copies of one unit that hold mutants. Some mutants no copy can hold together with others."""

    def __init__(self, build: pathlib.Path, unit: str, mutants, folder: pathlib.Path):
        """`mutants` maps numbers from 1 on to mutants."""
        self.mutants, self.copies = mutants, {}
        # The places where each mutant may still stand.
        self.places = {number: list(weave.places(source_of(mutant.path), mutant.text, switch.is_on(number)))
                       for number, mutant in mutants.items()}
        made = 0
        while any(self.places.values()):
            copy, made = Copy(build, unit, folder / str(made)), made + 1
            for number in self._fill(copy):
                self.copies[number] = copy
                del self.places[number]

    def _fill(self, copy: Copy):
        """Puts as many mutants into the copy as it can hold, and returns them. Strikes out places that do not
        compile."""
        while chosen := self._fitting():
            texts, lines = {}, {}
            for path in dict.fromkeys(self.mutants[number].path for number in chosen):
                of_path = {number: place for number, place in chosen.items() if self.mutants[number].path == path}
                texts[path], lines[path] = weave.woven(source_of(path).text, of_path)
            shutil.rmtree(copy.folder, ignore_errors=True)
            # Looks for errors first, which takes a third of the time.
            compiled = copy.compile(texts, "-fsyntax-only")
            if compiled.returncode == 0:
                compiled = copy.compile(texts, "-O2")
            if compiled.returncode == 0:
                return chosen
            wrong = self._wrong(copy, compiled.stderr, lines)
            for number in wrong:
                self.places[number].pop(0)
            if not wrong:  # nobody knows which, so each gets a copy of its own
                self.places.update((number, []) for number in chosen)
        return {}

    def _fitting(self):
        """For mutants that can stand in one copy, their first places."""
        chosen = {}
        for number, places in self.places.items():
            others = (chosen[other] for other in chosen if self.mutants[other].path == self.mutants[number].path)
            if places and len(chosen) < MOST_IN_A_COPY and not any(weave.overlap(places[0], other) for other in others):
                chosen[number] = places[0]
        return chosen

    @staticmethod
    def _wrong(copy: Copy, said: str, lines):
        """The mutants at which errors point, or else those that other messages name."""
        found = {True: set(), False: set()}
        for file, line, error in re.findall(r"^([^\s:]+):(\d+):(?:\d+:)?\s*(error:)?", said, re.MULTILINE):
            for path in lines:
                if pathlib.Path(file) == copy.folder / path:
                    found[bool(error)].update(weave.on_line(lines[path], int(line)))
        return found[True] or found[False]
