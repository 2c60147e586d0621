#!/usr/bin/env python3
"""Plants bugs in engine, server and CPU kernels and fails when their tests do not see one.

    mutate.py --build build/release [--only TEXT] [--class CLASS] [--part K/N] [--jobs N]
    mutate.py --list

All bugs of planted_bugs.py are woven into copies of their sources, each behind a switch that QUIRE_PLANTED_BUG turns
on. The copies are compiled once, as the build folder compiles the sources, and its tests, which must be built, are
linked anew with them. Each bug then runs only the test that is named for it, with a short time-out. Exit status 1
when a bug lives, or when a test fails without one.

--only takes the bugs whose id, words or file contain TEXT, and --class those of a class, such as asynchrony. --part
takes the K-th of N parts of about equal size, K from 1 to N; a part has the bugs of neighbouring files, so that little
is compiled for it. --list names the bugs, after a look that the place of each is there once; every place that is not is
named.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import time

import switch
from planted_bugs import BUGS
from relink import Unit, link_line, shadow_of, units, words_before_source

ROOT = pathlib.Path(__file__).resolve().parents[2]
Place = collections.namedtuple("Place", "begin end bug")
Outcome = collections.namedtuple("Outcome", "seen said cpu")


def place_of(bug, text: str):
    """Where the bug's text stands, and '' or what is wrong with it."""
    before, old = bug.old if isinstance(bug.old, tuple) else ("", bug.old)
    count = text.count(before) if before else text.count(old)
    begin = text.find(old, text.find(before) + len(before))
    if count == 0 or begin < 0:
        return None, f"its place is gone: {before or old!r}" + (f", then {old!r}" if before else "")
    if count > 1:
        return None, f"its place is there {count} times: {before or old!r}"
    return Place(begin, begin + len(old), bug), ""


def woven():
    """Each source with all its bugs, by path; ends the program when one has no place, or the id of another."""
    counts = collections.Counter(bug.id for bug in BUGS)
    texts, wrong = {}, [f"{id}: {count} bugs have this id" for id, count in counts.items() if count > 1]
    for path in dict.fromkeys(bug.path for bug in BUGS):
        file = ROOT / path
        text = file.read_text() if file.exists() else ""
        places = []
        for bug in (bug for bug in BUGS if bug.path == path):
            place, complaint = place_of(bug, text)
            if complaint:
                wrong.append(f"{bug.id} ({bug.says}): {path}: {complaint}")
            else:
                places.append(place)
        places.sort()
        for a, b in zip(places, places[1:]):
            if a.end > b.begin:
                wrong.append(f"{a.bug.id} and {b.bug.id}: {path}: one place for two")
        for begin, end, bug in reversed(places):
            text = text[:begin] + re.sub(r"\bBUG\b", switch.is_on(BUGS.index(bug) + 1), bug.new) + text[end:]
        texts[path] = text
    if wrong:
        sys.exit("\n".join(wrong + [f"{len(wrong)} faults: mend tests/mutation/planted_bugs.py"]))
    return texts


def units_of(build: pathlib.Path, paths):
    """Units of ours to compile anew: those with a source of `paths`, and those that include one."""
    deps = subprocess.run(["ninja", "-C", str(build), "-t", "deps"], capture_output=True, text=True, check=True).stdout
    files = {str(ROOT / path) for path in paths}
    including = set()
    for record in deps.split("\n\n"):
        target, *included = record.split("\n")
        if any(os.path.normpath(build / line.strip()) in files for line in included):
            including.add(target.split(":")[0])
    not_ours = tuple(f"{ROOT}/{folder}/" for folder in ("build", "tests", "bench"))
    return [unit for unit in units(build)
            if not unit.sources[0].startswith(not_ours) and (unit.object in including or files.intersection(unit.sources))]


class PlantedBuild:
    """The tests of a build folder, linked with the bugs; what that makes is in its folder `mutation`."""

    def __init__(self, build: pathlib.Path, bugs, jobs: int):
        self.build, self.scratch = build, build / "mutation"
        paths = {bug.path for bug in bugs}
        texts = {path: text for path, text in woven().items() if path in paths}
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()
        (self.scratch / "lib").symlink_to(build / "lib")  # where a test looks for the modules that it opens
        for path, text in texts.items():
            shadow = self.scratch / "source" / path
            shadow.parent.mkdir(parents=True, exist_ok=True)
            shadow.write_text(text)
        switch.write_switch(self.scratch / "source")
        chosen = units_of(build, texts)
        if not chosen:
            sys.exit(f"{build}: compiles none of {', '.join(texts)}")
        self.objects = {unit.object for unit in chosen}
        self._compile([chosen[0].words[0], "-O1", "-fPIC"], self.scratch / "source/planted_bug.cc", "planted_bug.o")
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self._compile_unit, chosen))

    def _compile_unit(self, unit: Unit):
        words = words_before_source(unit)
        # The copies with bugs come first on the include path. Warnings are off, so that no warning rejects a
        # bug.
        self._compile([words[0], f"-I{self.scratch / 'source'}", "-include", switch.HEADER] + words[1:]
                      + ["-w", "-O2", "-g0"], shadow_of(unit, ROOT, self.scratch / "source"), unit.object)

    def _compile(self, words, file: pathlib.Path, output: str):
        compiled = switch.compile(self.build, words, file, self.scratch / output)
        if compiled.returncode != 0:
            sys.exit(f"{file}: does not compile with its bugs:\n{compiled.stderr}")

    def _relink(self, output: str, replaced) -> str:
        """Makes `output` in the scratch folder, of what it is made of but for those replaced."""
        made = self.scratch / output
        made.parent.mkdir(parents=True, exist_ok=True)
        words = [f"mutation/{word}" if word == output or word in replaced else word
                 for word in link_line(self.build, output).split()]
        extra = " mutation/planted_bug.o" if output.startswith("tests/") else ""
        line = " ".join(words).replace(f"-o mutation/{output}", f"{extra} -o mutation/{output}")
        subprocess.run(line, cwd=self.build, shell=True, check=True)
        return output

    def _libraries_of(self, binary: str) -> set[str]:
        words = link_line(self.build, f"tests/{binary}").split()
        return {word for word in words if word.endswith(".a") and not word.startswith("/")}

    def make_libraries(self, binaries):
        """Makes the libraries that have an object with bugs anew, before a binary is linked with them."""
        self.libraries = {library for library in set().union(*map(self._libraries_of, binaries))
                          if self.objects.intersection(link_line(self.build, library).split())}
        for library in self.libraries:
            self._relink(library, self.objects)

    def link(self, binary: str):
        self._relink(f"tests/{binary}", self._libraries_of(binary) & self.libraries)

    def run(self, binary: str, test_filter: str, bug: int, limit: float) -> Outcome:
        """The test with one bug switched on; 0: none."""
        command = [self.scratch / "tests" / binary, f"--gtest_filter={test_filter}", "--gtest_fail_fast"]
        status, late, said, cpu = switch.run_test(command, ROOT, bug, limit)
        if status == 0:
            ran = re.search(r"\[  PASSED  \] (\d+) test", said)
            return Outcome(False, "passes" if ran and ran.group(1) != "0" else "runs no test", cpu)
        failed = re.search(r"\[  FAILED  \] ([\w./]+)", said)
        began = re.findall(r"\[ RUN      \] ([\w./]+)", said)
        name = failed.group(1) if failed else began[-1] if began else binary
        how = f"not over after {limit:.0f} s" if late else "fails" if failed else f"dies ({status})"
        return Outcome(True, f"{name} {how}", cpu)


def part_of(bugs, k: int, n: int):
    """The bugs of part k of n."""
    ordered = sorted(bugs, key=lambda bug: bug.path)
    return ordered[len(ordered) * (k - 1) // n:len(ordered) * k // n]


def part(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r}: want K/N with K from 1 to N")
    return int(match[1]), int(match[2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--class", dest="kind", choices=sorted({bug.kind for bug in BUGS if bug.kind}))
    parser.add_argument("--part", type=part, default=(1, 1), metavar="K/N")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    chosen = [bug for bug in BUGS if args.only in f"{bug.id}: {bug.says} {bug.path}"]
    chosen = [bug for bug in chosen if args.kind in (None, bug.kind)]
    chosen = part_of(chosen, *args.part)
    if args.list or not args.build:
        woven()
        print(*(f"{bug.id}: {bug.says} ({bug.path}; {bug.test})" for bug in chosen), sep="\n")
        return 0

    begin = time.monotonic()
    planted = PlantedBuild(args.build.resolve(), chosen, args.jobs)
    filters = collections.defaultdict(dict)  # by binary, in order
    for bug in chosen:
        binary, _, test_filter = bug.test.partition(":")
        filters[binary][test_filter or "*"] = None
    pool = concurrent.futures.ThreadPoolExecutor(args.jobs)
    planted.make_libraries(filters)
    list(pool.map(planted.link, filters))
    built = resource.getrusage(resource.RUSAGE_CHILDREN)
    built_cpu = built.ru_utime + built.ru_stime
    print(f"built in {time.monotonic() - begin:.0f} s, {built_cpu:.0f} s of CPU", flush=True)

    def without_a_bug(binary):
        begin, tests = time.monotonic(), filters[binary]
        outcome = planted.run(binary, "*" if "*" in tests else ":".join(tests), 0, 600)
        return outcome, switch.TIME_OUT + 3 * (time.monotonic() - begin)

    limits, cpu, wrong = {}, 0.0, []
    for binary, (without, limit) in zip(filters, pool.map(without_a_bug, filters)):
        limits[binary] = limit
        cpu += without.cpu
        if without.seen or without.said == "runs no test":
            wrong.append(f"{binary} without a bug: {without.said}")

    def verdict(bug):
        binary, _, test_filter = bug.test.partition(":")
        return planted.run(binary, test_filter or "*", BUGS.index(bug) + 1, limits[binary])

    for bug, outcome in zip(chosen, pool.map(verdict, chosen)):
        cpu += outcome.cpu
        print(f"{bug.id}: {bug.says}: {outcome.said if outcome.seen else 'LIVES'} ({bug.test.split(':')[0]}, "
              f"{outcome.cpu:.1f} s)", flush=True)
        if not outcome.seen:
            wrong.append(f"{bug.id} lives: {bug.says} ({bug.path}); {bug.test} {outcome.said}")
    print(f"{len(chosen)} bugs; {built_cpu + cpu:.0f} s of CPU, {cpu:.0f} of them tests")
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
