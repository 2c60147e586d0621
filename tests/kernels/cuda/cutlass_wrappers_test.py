"""Compares the machine code of our primitives, whose PTX no emulator runs, with that of CUTLASS's wrappers for the same
instructions (cutlass/wrappers.cu)."""

import pathlib
import re
import tempfile
import unittest

import cutlass_sources
import resources
import sass

PAIRS = "tests/kernels/cuda/cutlass/wrappers.cu"
# The instructions of primitives. Those around them, such as the loads of operands, may differ.
OF_PRIMITIVES = re.compile(r"HGMMA|WARPGROUP|USETMAXREG|UTMALDG|SYNCS|FENCE|MEMBAR|HMMA|LDSM|LDGSTS|DEPBAR|BAR\.|ACQBULK|"
                           r"PREEXIT|NANOSLEEP")
# Registers, predicates, constants and labels have other names in other functions.
NAMES = ((r"\bU?R\d+", "R"), (r"\+URZ", ""), (r"\bU?P\d+", "P"), (r"c\[0x0\]\[0x[0-9a-f]+\]", "c"), (r"`\(\S+?\)", "L"))


def instructions(lines: list[str]) -> list[str]:
    """The instructions of primitives in a function, without the names of registers."""
    found = []
    for line in lines:
        if match := sass.INSTRUCTION.search(line):
            text = "".join(part or "" for part in match.groups())
            for name, any_name in NAMES:
                text = re.sub(name, any_name, text)
            if OF_PRIMITIVES.search(text):
                found.append(re.sub(r"\s+", " ", text).strip())
    return found


def as_meant(name: str, theirs: list[str]) -> list[str]:
    """What CUTLASS's instructions would be without what ours leave out on purpose."""
    if name == "mbarrier_wait":
        # Theirs sleeps when it has waited in vain, and looks again. Ours waits again at once.
        return [text for text in theirs if not text.startswith("@!P ")]
    if name.startswith("tma_"):
        # Theirs says how long L2 is to keep the box.
        return [text.replace(", desc[R]", "") for text in theirs]
    return theirs


class InstructionsTest(unittest.TestCase):
    def test_registers_have_no_name_and_modifiers_count(self):
        code = ("        /*0010*/                   LDSM.16.MT88.4 R8, [R3+UR4] ;", ".L_x_1:",
                "        /*0020*/                   IADD3 R8, R9, R10, RZ ;",
                "        /*0030*/              @!P0 SYNCS.ARRIVE.TRANS64 RZ, [R2+URZ], R5 ;")
        found = ["LDSM.16.MT88.4 R, [R+R]", "@!P SYNCS.ARRIVE.TRANS64 RZ, [R], R"]
        self.assertEqual(instructions(list(code)), found)
        self.assertNotEqual(instructions([line.replace("MT88", "M88") for line in code]), found)

    def test_only_meant_differences_are_left_out(self):
        wait = ["SYNCS.TRYWAIT P, [R], R", "@!P NANOSLEEP.SYNCS 0x989680"]
        self.assertEqual(as_meant("mbarrier_wait", wait), wait[:1])
        self.assertEqual(as_meant("mbarrier_arrive", wait), wait)
        self.assertEqual(as_meant("tma_3", ["UTMALDG.3D [R], [R], desc[R]"]), ["UTMALDG.3D [R], [R]"])


class WrappersTest(unittest.TestCase):
    """Compiles the pairs for sm_90a."""

    def test_primitives_are_the_instructions_of_cutlass(self):
        compiler = resources.Compiler(1)
        if not compiler.nvcc or not compiler.nvdisasm:
            self.skipTest("no nvcc" if not compiler.nvcc else "no nvdisasm")
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            source = cutlass_sources.fetch(folder)
            code = folder / "wrappers.cubin"
            resources.run([compiler.nvcc, *resources.FLAGS, "-w", f"-I{resources.ROOT}", f"-I{source}/include", "-cubin",
                           "-arch=sm_90a", "-o", str(code), PAIRS])
            functions = sass.functions(resources.run([compiler.nvdisasm, "-c", str(code)]))
        names = sorted(name.removeprefix("ours_") for name in functions if name.startswith("ours_"))
        self.assertEqual(sorted(functions), sorted(f"{whose}_{name}" for whose in ("ours", "theirs") for name in names))
        self.assertGreaterEqual(len(names), 28)
        for name in names:
            with self.subTest(name):
                ours, theirs = (instructions(functions[f"{whose}_{name}"]) for whose in ("ours", "theirs"))
                self.assertTrue(ours)
                self.assertEqual(ours, as_meant(name, theirs))


if __name__ == "__main__":
    unittest.main(verbosity=2)
