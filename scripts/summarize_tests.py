#!/usr/bin/env python3
"""Sums up a run of scripts/test.sh: skips with reasons, stage times, the closing line.

usage: summarize_tests.py RESULTS   (stages.tsv, and a folder of XML for each preset)
Exit status 0 only when a test ran and nothing failed.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter


def gtest_cases(path: pathlib.Path):
    """(name, outcome, skip reason) of each case in a GoogleTest XML file."""
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None:
            yield name, "failed", ""
        elif skipped is not None or case.get("result") == "skipped":
            message = (skipped.get("message") if skipped is not None else "") or ""
            yield name, "skipped", message.strip().splitlines()[-1] if message.strip() else "no reason given"
        elif case.get("status") == "run":
            yield name, "passed", ""


def unittest_cases(name: str, output: str, has_failed: bool):
    """The cases of a Python unittest file, of which only the skipped ones have names. None without its last lines."""
    ran = re.search(r"^Ran (\d+) tests? in .*\n\n(?:OK|FAILED)(?: \((.*)\))?$", output, re.MULTILINE)
    if ran is None:
        return None
    counts = {key: int(number) for key, number in re.findall(r"(\w[\w ]*)=(\d+)", ran.group(2) or "")}
    # A test with a docstring has two lines, and the reason stands on the second.
    found = re.findall(r"^(\S+ \(\S+\))(?:\n.*)?? \.\.\. skipped ['\"](.*)['\"]$", output, re.MULTILINE)
    num_skipped = counts.get("skipped", 0)
    skips = (found + [(name, "no reason given")] * num_skipped)[:num_skipped]
    failed = max(sum(counts.get(key, 0) for key in ("failures", "errors", "unexpected successes")), int(has_failed))
    # The tests of a class or module that is skipped as a whole are not among those that ran.
    whole = sum(test.startswith(("setUpClass ", "setUpModule ")) for test, _ in skips)
    passed = max(int(ran.group(1)) - (num_skipped - whole) - failed, 0)
    return [*((test, "skipped", reason) for test, reason in skips),
            *((f"{name}#{i}", "failed", "") for i in range(failed)),
            *((f"{name}#{i}", "passed", "") for i in range(passed))]


def ctest_cases(path: pathlib.Path, known: set[str]):
    """Entries of ctest that are not GoogleTest binaries, or whose binary died before it wrote its XML."""
    for case in ElementTree.parse(path).iter("testcase"):
        name, status = case.get("name"), case.get("status")
        output = case.findtext("system-out") or ""
        # The second entry of a binary has no XML of its name.
        if name in known or re.search(r"^\[=+\] \d+ tests? from .* ran\.", output, re.MULTILINE):
            continue
        cases = unittest_cases(name, output, status == "fail")
        if cases is not None:
            yield from cases
        else:
            outcome = {"run": "passed", "fail": "failed"}.get(status, "skipped")
            yield name, outcome, "" if outcome != "skipped" else status


def main() -> int:
    results = pathlib.Path(sys.argv[1])
    totals, skips, failures = Counter(), [], []
    for preset in sorted(path for path in results.iterdir() if path.is_dir() and path.name != "corpus"):
        known, cases = set(), []
        for path in sorted(preset.glob("*.xml")):
            if path.name == "ctest.junit.xml":
                continue
            known.add(path.stem)
            cases += gtest_cases(path)
        junit = preset / "ctest.junit.xml"
        if junit.exists():
            cases += ctest_cases(junit, known)
        counts = Counter(outcome for _, outcome, _ in cases)
        print(f"{preset.name}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped ")
        totals.update(counts)
        skips += [(preset.name, name, reason) for name, outcome, reason in cases if outcome == "skipped"]
        failures += [(preset.name, name) for name, outcome, _ in cases if outcome == "failed"]

    stages = [line.split("\t") for line in (results / "stages.tsv").read_text().splitlines()]
    failed_stages = [name for name, _, _, status in stages if status != "0" and not name.startswith("test-")]
    print("\nskipped:" if skips else "\nnothing was skipped")
    for preset, name, reason in skips:
        print(f"  {preset} {name}: {reason}")
    if failures or failed_stages:
        print("\nfailed:")
        for preset, name in failures:
            print(f"  {preset} {name}")
        for name in failed_stages:
            print(f"  stage {name}")
    print("\nstage                     seconds   of CPU")
    for name, seconds, cpu, _ in [*stages, ("total", *(sum(int(s[i]) for s in stages) for i in (1, 2)), "")]:
        print(f"{name:24} {seconds:>8} {cpu:>8}")
    print()
    failed_tests = any(status != "0" for *_, status in stages)
    failed = max(totals["failed"] + len(failed_stages), 1 if failed_tests else 0)
    print(f"{totals['passed']} passed, {failed} failed, {totals['skipped']} skipped")
    return 0 if failed == 0 and totals["passed"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
