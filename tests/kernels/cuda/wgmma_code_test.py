"""Tests wgmma_code.py, and holds the kernels with wgmma against its rules."""

import unittest

import resources
import sass
import wgmma_code

# A product of 64 columns with its operand in R4..R7 and its sums in R24..R55, and a loop that waits for it.
CODE = """\
        /*0000*/                   USETMAXREG.DEALLOC.CTAPOOL 0x38 ;
.L_x_1:
        /*0010*/                   HGMMA.64x64x16.F32.BF16 R24, R4, gdesc[UR4].tnspB, R24, gsb0 ;
        /*0020*/                   IADD3 R8, R9, R10, RZ ;
        /*0030*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0040*/                   FADD R24, R24, R55 ;
        /*0050*/               @P0 BRA `(.L_x_1) ;
        /*0060*/                   EXIT ;
"""


def function(text: str) -> wgmma_code.Function:
    return wgmma_code.Function(text.splitlines())


class RulesTest(unittest.TestCase):
    def test_after_the_wait_the_sums_may_be_used(self):
        self.assertEqual(wgmma_code.num_products(function(CODE)), 1)
        self.assertEqual(wgmma_code.hazards(function(CODE)), [])

    def test_before_it_neither_the_sums_nor_the_operand_may_be_touched(self):
        for wrong in ("FADD R8, R24, R9", "MOV R55, R9", "MOV R7, R9", "LDS.128 R4, [R9]", "LDS.64 R22, [R9.64]",
                      "STS [R9], R30"):
            is_fine = wrong.startswith("LDS.64")  # R22 and R23
            [*found] = wgmma_code.hazards(function(CODE.replace("IADD3 R8, R9, R10, RZ", wrong)))
            self.assertEqual(len(found), 0 if is_fine else 1, wrong)
        reads_operand = CODE.replace("IADD3 R8, R9, R10, RZ", "FADD R8, R4, R9")
        self.assertEqual(wgmma_code.hazards(function(reads_operand)), [])

    def test_a_wait_that_leaves_a_group_in_flight_is_none_for_it(self):
        self.assertTrue(wgmma_code.hazards(function(CODE.replace("gsb0, 0x0", "gsb0, 0x1"))))

    def test_a_loop_carries_what_is_in_flight(self):
        carried = CODE.replace("FADD R24, R24, R55", "NOP").replace("gsb0, 0x0", "gsb0, 0x1")
        carried = carried.replace("R24, R4, gdesc", "R24, R4, gdesc", 1).replace("IADD3 R8, R9, R10, RZ", "NOP")
        self.assertEqual(wgmma_code.hazards(function(carried)), [])
        before = carried.replace(".L_x_1:\n", ".L_x_1:\n        /*0008*/                   MOV R5, R9 ;\n")
        self.assertEqual(len(wgmma_code.hazards(function(before))), 1)

    def test_registers_after_setmaxnreg(self):
        self.assertEqual(wgmma_code.most_registers(function(CODE)), [(56, 56)])
        self.assertEqual(wgmma_code.most_registers(function(CODE.replace("R9, R10", "R9, R56"))), [(56, 57)])
        self.assertEqual(wgmma_code.most_registers(function(CODE.replace("IADD3 R8", "LDS.128 R54"))), [(56, 58)])


class KernelsTest(unittest.TestCase):
    """Compiles the sources with wgmma for sm_90a, unless resources.py has."""

    def test_no_kernel_breaks_a_rule(self):
        compiler = resources.Compiler(1)
        if not compiler.nvcc or not compiler.nvdisasm:
            self.skipTest("no nvcc" if not compiler.nvcc else "no nvdisasm")
        num_kernels = num_products = 0
        for source in resources.HOPPER_SOURCES:
            log = compiler.compile(source, "sm_90a", resources.key_of(source, ("sm_90a",)))
            code = resources.run([compiler.nvdisasm, "-c", str(log.with_suffix(".cubin"))])
            for name, lines in sass.functions(code).items():
                kernel = wgmma_code.Function(lines)
                num_kernels += 1
                num_products += wgmma_code.num_products(kernel)
                self.assertEqual(wgmma_code.hazards(kernel), [], name)
                limits = wgmma_code.most_registers(kernel)
                self.assertEqual([limit for limit, _ in limits], [224, 56], name)
                for limit, used in limits:
                    self.assertLessEqual(used, limit, name)
        self.assertGreaterEqual(num_kernels, 16)
        self.assertGreaterEqual(num_products, 20 * num_kernels)


if __name__ == "__main__":
    unittest.main(verbosity=2)
