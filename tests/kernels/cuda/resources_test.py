"""Tests resources.py, the rules for the contents of its table, and that the table matches the sources."""

import os
import pathlib
import re
import tempfile
import unittest

import resources
import sass
from resources import Resources, Table
from source_code import includes

LOG = """\
ptxas info    : (C7519) warpgroup.arrive is injected in around line 83 by compiler to allow use of registers in GMMA \
in function '_ZN5quire5SecondILi2EEEv'
ptxas info    : (C7519) warpgroup.arrive is injected in around line 94 by compiler to allow use of registers in GMMA \
in function '_ZN5quire5SecondILi2EEEv'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN5quire5First' for 'sm_80'
ptxas info    : Function properties for _ZN5quire5First
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 8 bytes cumulative stack size, 64 bytes smem, 496 bytes cmem[0]
ptxas info    : Compile time = 1794.715 ms
ptxas info    : Compiling entry function '_ZN5quire5SecondILi2EEEv' for 'sm_80'
ptxas info    : Function properties for _ZN5quire5SecondILi2EEEv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to something
ptxas info    : Used 40 registers, used 0 barriers
"""
ROW = ("kernels/cuda/a.cu", "Kernel<Bf16, 128>", "sm_80")
FOUND = Resources("255", "8", "4", "12", "64", "1024", "C7519x2")


class LogTest(unittest.TestCase):
    def test_a_kernel_has_its_own_numbers_and_notes(self):
        kernels = resources.parse_log(LOG, "sm_80")
        self.assertEqual(kernels["_ZN5quire5First"], Resources("255", "8", "4", "12", "64", "0", "-"))
        self.assertEqual(kernels["_ZN5quire5SecondILi2EEEv"],
                         Resources("40", "0", "0", "0", "0", "0", "C7510x1 C7519x2"))

    def test_a_log_of_another_form_is_an_error(self):
        for wrong in ("", LOG.replace("sm_80", "sm_90"), LOG.replace("Used 40 registers", "Took 40 registers"),
                      LOG.replace("Function properties for _ZN5quire5First", "Function properties for helper")):
            with self.assertRaises(ValueError):
                resources.parse_log(wrong, "sm_80")

    def test_names_lose_namespaces_and_parameters(self):
        for name, short in {
            "void quire::a::Kernel<quire::a::Bf16, 128, true>(quire::a::Params<quire::a::Bf16>)":
                "Kernel<Bf16, 128, true>",
            "quire::a::Kernel(quire::a::Params)": "Kernel",
            "void a::Kernel<(a::Kind)1>(int)": "Kernel<(Kind)1>",
        }.items():
            self.assertEqual(resources.short_name(name), short)


# Block 1 is the loop. It has a branch to the mask, which is out of line, and leaves the loop by a call.
SASS = """\
\t.section\t.text._ZN5quire10AttnKernelILi1EEEv,"ax",@progbits
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/               @P0 BRA `(.L_x_9) ;
.L_x_1:
        /*0020*/              @!P1 BRA `(.L_x_2) ;
        /*0030*/                   LDGSTS.E.BYPASS.128 [R7], [R4.64], P0 ;
.L_x_2:
        /*0040*/                   LDSM.16.M88.4 R4, [R5] ;
        /*0050*/                   HMMA.16816.F32.BF16 R28, R120, R126, R28 ;
        /*0060*/               @P2 BRA P4, `(.L_x_4) ;
.L_x_3:
        /*0070*/                   HMMA.16816.F32.BF16 R28, R120, R126, R28 ;
        /*0080*/               @P3 CALL.REL.NOINC `(.L_x_9) ;
        /*0090*/                   BRA `(.L_x_1) ;
.L_x_9:
        /*00a0*/                   EXIT ;
.L_x_4:
        /*00b0*/                   LDL R3, [R1] ;
        /*00c0*/                   CALL.REL.NOINC `($_slowpath) ;
        /*00d0*/                   BRA `(.L_x_3) ;
"""


class SassTest(unittest.TestCase):
    def loops(self, text):
        (lines,) = sass.functions(text).values()
        return sass.hot_loops(sass.blocks_of(lines))

    def loop(self, text=SASS):
        (loop,) = self.loops(text)
        return loop

    def test_the_way_of_an_unmasked_tile_counts_and_calls_anywhere_in_the_loop(self):
        self.assertEqual(self.loop(), sass.HotLoop(tile_instructions=8, tile_branches=4, tile_hmma=2, tile_ldsm=1,
                                                   tile_ldgsts=1, loop_calls=1, loop_local=1))

    def test_a_kernel_without_products_in_a_loop_has_none(self):
        self.assertEqual(self.loops(SASS.replace("HMMA", "FFMA")), [])
        with self.assertRaisesRegex(ValueError, "products"):
            resources.cells([])

    def test_each_loop_of_a_loop_over_items_is_hot_and_the_one_with_more_products_comes_last(self):
        begin, body = SASS.split(".L_x_1:\n")
        item = ".L_x_20:\n        /*0018*/                   MOV R2, R3 ;\n"
        more = re.sub(r"L_x_(\d)", r"L_x_1\1", ".L_x_1:\n" + body)
        more = more.replace("/*0030*/", "/*0028*/ HMMA.16816.F32.BF16 R28, R120, R126, R28 ;\n        /*0030*/")
        # After the first loop comes the second one, and after that the next item.
        again = "@P6 BRA `(.L_x_20) ;\n        /*00a8*/ EXIT ;"
        items = begin + item + more.replace("EXIT ;", "BRA `(.L_x_1) ;") + ".L_x_1:\n" + body.replace("EXIT ;", again)
        few, many = self.loops(items)
        self.assertEqual(few, self.loop())
        self.assertEqual(many, few._replace(tile_instructions=9, tile_hmma=3))
        self.assertEqual(resources.cells([few, many])[:3], ["8/9", "4/4", "2/3"])

    def test_a_loop_inside_is_an_error(self):
        turn = "        /*0048*/               @P5 BRA `(.L_x_2) ;\n"
        with self.assertRaisesRegex(ValueError, "another loop"):
            self.loop(SASS.replace("        /*0050*/", turn + "        /*0050*/"))

    def test_products_of_wgmma_count(self):
        self.assertEqual(self.loop(SASS.replace("HMMA.16816", "HGMMA.64x128x16")), self.loop())

    def test_a_loop_that_waits_for_an_mbarrier_counts_once(self):
        wait = (".L_x_5:\n        /*0048*/                   YIELD ;\n"
                "        /*004a*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P5, [R3], R4 ;\n"
                "        /*004c*/              @!P5 BRA `(.L_x_5) ;\n")
        waited = self.loop(SASS.replace("        /*0050*/", wait + "        /*0050*/"))
        self.assertEqual(waited, self.loop()._replace(tile_instructions=11, tile_branches=5))

    def test_calls_and_local_memory_of_a_whole_kernel_count(self):
        def whole(text):
            (lines,) = sass.functions(text).values()
            return sass.whole(sass.blocks_of(lines))

        self.assertEqual(whole(SASS), sass.Whole(calls=1, local=1))
        first = "        /*0000*/                   MOV"
        self.assertEqual(whole(SASS.replace(first, "        /*0000*/ STL [R1], R2 ;\n        /*0008*/ CALL.ABS R2 ;\n" + first)),
                         sass.Whole(calls=2, local=2))

    def test_a_jump_through_a_table_goes_to_each_of_its_targets(self):
        jump = 'BRX R4 -0x40 (*"BRANCH_TARGETS .L_x_3,.L_x_4,.L_x_9"*)'
        self.assertEqual(self.loop(SASS.replace("@P2 BRA P4, `(.L_x_4)", jump)), self.loop())
        masked = self.loop(SASS.replace("@P2 BRA P4, `(.L_x_4)", jump.replace(".L_x_3,", "")))
        self.assertEqual(masked.tile_instructions, self.loop().tile_instructions + 3)

    def test_an_unknown_jump_is_an_error(self):
        for jump in ("BRX R4", "JMX R4"):
            with self.assertRaisesRegex(ValueError, jump[:3]):
                self.loop(SASS.replace("LDSM.16.M88.4 R4, [R5]", jump))


class KeyTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("kernels/cuda/a.cu", '#include "kernels/cuda/a.cuh"\n#include <vector>\nint a;\n')
        self.write("kernels/cuda/a.cuh", '#pragma once\n  #include "base/b.h"\n#include "kernels/cuda/emulator/e.h"\n')
        self.write("kernels/cuda/emulator/e.h", "int e;\n")
        self.write("base/b.h", 'const char* b = "http://b";  // why\n')
        self.before = self.key()

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def key(self, targets=("sm_80",)):
        return resources.key_of("kernels/cuda/a.cu", targets, self.root)

    def test_code_of_what_is_included_counts(self):
        self.write("base/b.h", 'const char* b = "http://c";  // why\n')
        self.assertNotEqual(self.key(), self.before)

    def test_targets_count(self):
        self.assertNotEqual(self.key(("sm_80", "sm_90a")), self.before)

    def test_comments_and_the_emulator_do_not(self):
        self.write("base/b.h", '/* a\n "b */const  char* b = "http://b";\n\n')
        self.write("kernels/cuda/emulator/e.h", "int f;\n")
        self.assertEqual(self.key(), self.before)

    def test_every_include_of_a_real_source_is_found(self):
        found = includes(["kernels/cuda/attention/paged_attention.cu"], resources.ROOT)
        self.assertLessEqual({"kernels/cuda/attention/paged_attention.cuh", "kernels/cuda/attention/attention_items.h",
                              "kernels/cuda/device/primitives_ptx.cuh", "kernels/ops/paged_attention.h"}, found)


class TableFormTest(unittest.TestCase):
    def test_what_is_written_is_read(self):
        table = Table("13.0.88", {ROW[0]: "0123"}, {ROW: FOUND})
        read = Table.parse(str(table))
        self.assertEqual((read.ptxas, read.keys, read.rows), (table.ptxas, table.keys, table.rows))

    def test_a_table_with_other_columns_knows_no_source(self):
        text = str(Table("13.0.88", {ROW[0]: "0123"}, {ROW: FOUND}))
        read = Table.parse(text.replace("\tcalls\t", "\tshouts\t"))
        self.assertEqual((read.ptxas, read.keys, read.rows), ("13.0.88", {}, {}))

    def test_numbers_in_names_sort_by_value(self):
        rows = {(ROW[0], f"Kernel<{n}>", "sm_80"): FOUND for n in (128, 64, 112)}
        self.assertEqual(re.findall(r"<(\d+)>", str(Table("13", {}, rows))), ["64", "112", "128"])

    def test_each_difference_is_a_line(self):
        other = (ROW[0], "Other", "sm_80")
        self.assertEqual(resources.differences({ROW: FOUND}, {ROW: FOUND}), [])
        changed, = resources.differences({ROW: FOUND}, {ROW: FOUND._replace(registers="253", notes="-")})
        self.assertIn("registers 255 -> 253, notes C7519x2 -> -", changed)
        counted = FOUND._replace(tile_branches="4")
        self.assertEqual(resources.differences({ROW: counted}, {ROW: FOUND._replace(tile_branches="?")}), [])
        more, = resources.differences({ROW: counted}, {ROW: FOUND._replace(tile_branches="5")})
        self.assertIn("tile_branches 4 -> 5", more)
        new, = resources.differences({ROW: FOUND}, {ROW: FOUND, other: FOUND})
        self.assertIn("is not in the table", new)
        gone, = resources.differences({ROW: FOUND, other: FOUND}, {ROW: FOUND})
        self.assertIn("no longer in the source", gone)


class CheckTest(unittest.TestCase):
    """Tests check() with a table of its own and a fake compiler, whose results each test sets."""

    class Compiler:
        def __init__(self, rows, nvcc="nvcc", ptxas="13.0.88"):
            self.found, self.nvcc, self.ptxas, self.compiled = rows, nvcc, ptxas, None

        def rows(self, keys):
            self.compiled = set(keys)
            return {row: r for row, r in self.found.items() if row[0] in keys}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(setattr, resources, "TABLE", resources.TABLE)
        resources.TABLE = pathlib.Path(folder.name) / "resources.tsv"
        self.keys = {source: resources.key_of(source, targets) for source, targets in resources.sources().items()}
        self.source = next(iter(self.keys))
        self.row = (self.source, "Kernel", "sm_80")
        self.write(self.keys)

    def write(self, keys):
        resources.TABLE.write_text(str(Table("13.0.88", keys, {self.row: FOUND})))

    def test_nothing_is_compiled_where_nothing_changed(self):
        compiler = self.Compiler({}, nvcc=None, ptxas="")
        self.assertEqual(resources.check(compiler)[0], [])
        self.assertIsNone(compiler.compiled)

    def test_what_changed_is_compiled_and_held_against_the_table(self):
        self.write(self.keys | {self.source: "older"})
        same = self.Compiler({self.row: FOUND})
        found, said = resources.check(same)
        self.assertEqual(found, [])
        self.assertIn("older hashes", said)
        self.assertEqual(same.compiled, {self.source})
        (worse,), _ = resources.check(self.Compiler({self.row: FOUND._replace(spill_stores="8")}))
        self.assertIn("spill_stores 4 -> 8", worse)

    def test_a_hot_loop_that_could_not_be_counted_is_named_with_the_cure(self):
        self.write(self.keys | {self.source: "older"})
        compiler = self.Compiler({self.row: FOUND._replace(tile_branches="?")})
        found, said = resources.check(compiler)
        self.assertEqual(found, [])
        self.assertIn("pip install nvidia-cuda-nvdisasm", said)
        before = resources.TABLE.read_text()
        with self.assertRaisesRegex(resources.Skip, "no nvdisasm"):
            resources.update(compiler)
        self.assertEqual(resources.TABLE.read_text(), before)

    def test_rows_of_a_source_that_is_gone_differ(self):
        table = Table.parse(resources.TABLE.read_text())
        table.rows["kernels/cuda/gone.cu", "Gone", "sm_80"] = FOUND
        resources.TABLE.write_text(str(table))
        (gone,), _ = resources.check(self.Compiler({}))
        self.assertIn("no longer in the source", gone)

    def test_all_compiles_all_and_with_another_ptxas_only_tells(self):
        compiler = self.Compiler({self.row: FOUND})
        self.assertEqual(resources.check(compiler, everything=True)[0], [])
        self.assertEqual(compiler.compiled, self.keys.keys())
        with self.assertRaisesRegex(resources.Skip, "registers 255 -> 200"):
            resources.check(self.Compiler({self.row: FOUND._replace(registers="200")}, ptxas="13.1.0"), everything=True)

    def test_a_change_is_skipped_without_nvcc_or_with_another_ptxas(self):
        self.write(self.keys | {self.source: "older"})
        for compiler in (self.Compiler({}, nvcc=None), self.Compiler({}, ptxas="13.1.0")):
            with self.assertRaisesRegex(resources.Skip, pathlib.Path(self.source).name):
                resources.check(compiler)
            self.assertIsNone(compiler.compiled)


class SourcesTest(unittest.TestCase):
    def test_flags_are_those_of_the_build(self):
        text = (resources.ROOT / "cmake/Cuda.cmake").read_text()
        flags = re.search(r'set\(CMAKE_CUDA_FLAGS "\$\{CMAKE_CUDA_FLAGS\} (.*)"\)', text).group(1).split()
        standard = re.search(r"set\(CMAKE_CUDA20_STANDARD_COMPILE_OPTION (\S+)\)", text).group(1)
        # CMAKE_CUDA_FLAGS_RELWITHDEBINFO also has -g, which concerns host code only.
        self.assertEqual({*flags, standard, "-O2", "-DNDEBUG"}, set(resources.FLAGS))

    def test_dynamic_shared_memory_of_every_launch_is_known(self):
        launches = {}
        for source in resources.sources():
            text = (resources.ROOT / source).read_text()
            launches |= dict(reversed(launch) for launch in
                             re.findall(r"\.shared_bytes = (\w+)\},\s*&(\w+)", text))
        self.assertGreaterEqual(len(launches), 4)
        # Leaves out the kernels whose launches compute the bytes: those of attention, from their instances, the kernels with
        # packed weights, from their shapes, and PlanDecodesKernel, from the number of sequences.
        computed = ("AttnKernel", "Fp8AttnKernel", "Fp8PrefillAttnKernel", "PackedBatchGemmKernel", "PackedGemmKernel", "PackedGroupedGemmKernel",
                    "PlanDecodesKernel", "PrefillAttnKernel", "SkippingAttnKernel")
        known = {kernel: expression for kernel, (_, expression) in resources.DYNAMIC_SHARED.items()
                 if kernel not in computed}
        self.assertEqual(launches, known)


# The bytes of 16 rows and 64 columns of each type, with a quarter of the header, and the most instructions that a warp may
# execute for such a byte. With four instructions a cycle, an H200 executes 0.215 while it reads a byte at 4.3 TB/s and
# 1.755 GHz.
PACKED_TYPES = {"3": ("Q4_0", 576, 0.25), "4": ("Q4_1", 640, 0.23), "5": ("Q5_0", 704, 0.25),
                "6": ("Q5_1", 768, 0.25), "7": ("Q8_0", 1088, 0.15),
                "8": ("Q4_K", 592, 0.27), "9": ("Q5_K", 720, 0.25), "10": ("Q6_K", 840, 0.23),
                "12": ("F8_E4M3_SCALED", 1088, 0.17)}


class ResourcesTest(unittest.TestCase):
    """Tests the rules for the contents of the checked-in table."""

    @classmethod
    def setUpClass(cls):
        cls.rows = Table.parse(resources.TABLE.read_text()).rows

    def test_every_target_has_every_kernel(self):
        kernels = {target: {row[:2] for row in self.rows if row[2] == target and row[0] not in resources.HOPPER_SOURCES}
                   for target in resources.TARGETS}
        self.assertGreater(len(kernels["sm_80"]), 0)
        for target in resources.TARGETS:
            self.assertEqual(kernels[target], kernels["sm_80"])

    def test_attention_has_few_kernels(self):
        for target in resources.TARGETS:
            instances = [row for row in self.rows if row[2] == target and row[0].endswith("/paged_attention.cu")]
            self.assertGreater(len(instances), 0)
            self.assertLessEqual(len(instances), 24)

    def test_nothing_spills_but_what_is_known_to(self):
        # At head_dim 256, the output and the query alone take 192 of AttnKernel's 255 registers. ptxas keeps
        # AttnMergeKernel within 40 registers, so that threads can fill an sm_86.
        known = re.compile(r"AttnKernel<\w+, 256, false> sm_\w+|Fp8AttnKernel<\w+, 256> sm_\w+|(Fp8)?PrefillAttnKernel<\w+, 256> sm_90a|AttnMergeKernel<\w+> sm_8[69]")
        spilling = {f"{kernel} {target}" for (_, kernel, target), r in self.rows.items()
                    if (r.stack, r.spill_stores, r.spill_loads, r.local) != ("0", "0", "0", "0")}
        self.assertEqual({at for at in spilling if not known.fullmatch(at)}, set())

    def test_ptxas_has_nothing_to_note(self):
        self.assertEqual([row for row, r in self.rows.items() if r.notes != "-"], [])

    def test_blocks_of_attention_fit_in_a_multiprocessor(self):
        # There are 64 K registers, enough for two blocks, as AttnKernel's __launch_bounds__ requires. The
        # shared memory is enough for two blocks on sm_90a and for one elsewhere. `shared` has the KiB of a
        # multiprocessor and the number of blocks that must fit. The system takes one KiB for each block.
        shared = {"sm_80": (164, 1), "sm_86": (100, 1), "sm_89": (100, 1), "sm_90a": (228, 2)}
        attention = {row: r for row, r in self.rows.items() if row[1].startswith("AttnKernel<")}
        self.assertGreater(len(attention), 0)
        for (_, kernel, target), r in attention.items():
            self.assertLessEqual(2 * 128 * int(r.registers), 64 << 10, (kernel, target))
            kib, blocks = shared[target]
            self.assertGreater(int(r.dynamic_shared), 0, (kernel, target))
            self.assertLessEqual(blocks * (int(r.dynamic_shared) + 1024), kib << 10, (kernel, target))

    def test_attention_executes_no_idle_work(self):
        # At head_dim 128, the most instructions that a warp may execute for a tile of 64 keys and 1, 2 and 4 row tiles, and
        # for one of 32 keys and 8 row tiles.
        most = (450, 650, 850, 850)
        tiles = {row: r for row, r in self.rows.items() if row[1].startswith("AttnKernel<")}
        self.assertGreater(len(tiles), 0)
        for (_, kernel, target), r in tiles.items():
            _, head_dim, listed = kernel.rstrip(">").split(", ")
            wide = listed == "false" and head_dim != "256"  # HasWideItems
            self.check_loops(r, int(head_dim), most, (kernel, target), wide)

    def test_attention_that_skips_far_keys_executes_little_more(self):
        # Instructions at head_dim 128. The limits of a tile (AttnKernel) are 450, 650 and 850.
        most = {"Bf16": (420, 530, 740), "F16": (420, 530, 740), "E4M3": (650, 1000, 1750)}
        skipping = {row: r for row, r in self.rows.items() if row[1].startswith("SkippingAttnKernel<")}
        self.assertEqual(len(skipping), 16 * len(resources.TARGETS))
        for (_, kernel, target), r in skipping.items():
            _, head_dim, cache = kernel.rstrip(">").split(", ")
            self.assertLessEqual(2 * 128 * int(r.registers), 64 << 10, (kernel, target))
            self.check_loops(r, int(head_dim), most[cache], (kernel, target))

    def check_loops(self, r, head_dim, most, kernel, wide=False, widens=False):
        """Checks the loops of a kernel for 1, 2, 4 and, if `wide`, 8 row tiles, and at head_dim 128 that they have at most
        `most` instructions. If `widens`, that for 8 row tiles has a branch more, to NaN, and the most loads of matrices."""
        loops = [sass.HotLoop(*map(int, loop)) for loop in zip(*(getattr(r, column).split("/") for column in sass.COLUMNS))]
        row_tiles = (1, 2, 4) if head_dim <= 128 else (2, 4)
        keys = 64 if head_dim <= 128 else 32
        # A product has 16 rows, 8 keys and 16 elements, or 8 columns and 16 keys. A warp takes row_tiles / 4 of the keys.
        products = [tiles * 2 * keys // 8 * head_dim // 16 // 4 for tiles in row_tiles]
        if wide:
            products.append(8 * 2 * (keys if head_dim <= 64 else keys // 2) // 8 * head_dim // 16 // 4)
        self.assertEqual([loop.tile_hmma for loop in loops], products, kernel)
        if head_dim == 128:
            for loop, limit in zip(loops, most):
                self.assertLessEqual(loop.tile_instructions, limit, kernel)
        most_loads = max(loop.tile_ldsm for loop in loops)
        for loop in loops:
            # On all but sm_90a, ptxas leaves the loop by two branches instead of one.
            branches = (3 if kernel[1] == "sm_90a" else 4) + (widens and wide and loop.tile_ldsm == most_loads)
            self.assertLessEqual(loop.tile_branches, branches, kernel)
            self.assertEqual(loop.loop_calls, 0, kernel)
            if head_dim != 256:
                self.assertEqual(loop.loop_local, 0, kernel)

    def test_attention_over_an_fp8_cache_fits_in_a_multiprocessor_and_executes_no_idle_work(self):
        # A tile has half the bytes of a 16-bit one. So two blocks fit everywhere, and a decode's tile of 64 keys of 128
        # arrives within 885 cycles at an H200's 4.3 TB/s.
        shared = {"sm_80": 164, "sm_86": 100, "sm_89": 100, "sm_90a": 228}
        most = (650, 1000, 950, 1750)  # instructions at head_dim 128; the third loop is that of wide items
        attention = {row: r for row, r in self.rows.items() if row[1].startswith("Fp8AttnKernel<")}
        self.assertEqual(len(attention), 6 * len(resources.TARGETS))
        for (_, kernel, target), r in attention.items():
            self.assertLessEqual(2 * 128 * int(r.registers), 64 << 10, (kernel, target))
            blocks = 2 if "256" not in kernel or target in ("sm_80", "sm_90a") else 1
            self.assertLessEqual(blocks * (int(r.dynamic_shared) + 1024), shared[target] << 10, (kernel, target))
            _, head_dim = kernel.rstrip(">").split(", ")
            self.check_loops(r, int(head_dim), most, (kernel, target), wide=head_dim != "256", widens=True)

    def test_prefill_on_wgmma_fits_in_a_multiprocessor_and_executes_no_idle_work(self):
        # setmaxnreg shares the registers with which a block starts among a warpgroup that fetches and two that multiply.
        text = (resources.ROOT / "kernels/cuda/attention/prefill_attention.cuh").read_text()
        (fetch,), (multiply,) = re.findall(r"ShrinkRegisters<(\d+)>", text), re.findall(r"GrowRegisters<(\d+)>", text)
        prefill = {row[1]: r for row, r in self.rows.items() if row[1].startswith(("PrefillAttnKernel<", "Fp8PrefillAttnKernel<"))}
        self.assertEqual(len(prefill), 12)
        for kernel, r in prefill.items():
            self.assertLessEqual(int(fetch) + 2 * int(multiply), 3 * int(r.registers), kernel)
            self.assertLessEqual(int(r.dynamic_shared) + 1024, 228 << 10, kernel)
            self.assertEqual(r.loop_calls, "0", kernel)
            if not kernel.endswith(" 256>"):
                self.assertEqual(r.loop_local, "0", kernel)
            # For a tile of 128 keys; at head_dim 256 of 64 keys. The tensor cores take 1024 cycles for both.
            self.assertLessEqual(int(r.tile_instructions), 640, kernel)

    def test_the_packed_gemm_executes_few_instructions_for_a_byte(self):
        # A warp has two tiles in a turn of its loop.
        packed = {row: r for row, r in self.rows.items() if row[1].startswith("PackedGemmKernel<")}
        self.assertEqual(len(packed), len(resources.TARGETS) * 2 * 2 * len(PACKED_TYPES))
        for (_, kernel, target), r in packed.items():
            element, of_type, token_tiles = re.match(r"PackedGemmKernel<(\w+), \(WeightType\)(\d+), (\d)>", kernel).groups()
            _, tile_bytes, most = PACKED_TYPES[of_type]
            if (element, target, token_tiles) == ("Bf16", "sm_90a", "1"):
                self.assertLessEqual(int(r.tile_instructions), most * 2 * tile_bytes, (kernel, target))
            self.assertEqual(r.tile_hmma, str(8 * int(token_tiles)), (kernel, target))
            # Before sm_90a, __syncwarp is a call for a warp whose lanes have diverged; others branch past it.
            self.assertEqual((r.loop_calls, r.loop_local), ("0" if target == "sm_90a" else "1", "0"), (kernel, target))
            # A block has 256 threads and must fit everywhere. The system takes one KiB for it.
            self.assertLessEqual(256 * int(r.registers), 64 << 10, (kernel, target))
            self.assertLessEqual(int(r.dynamic_shared) + 1024, 100 << 10, (kernel, target))

    def test_the_packed_batch_gemm_adds_the_products_and_little_else_for_more_tokens(self):
        # Beside the instructions of the packed GEMM, eight products and two loads for each eight tokens. The others are
        # for addresses. Tensor cores need 13 cycles of an H200 for these products, 62 % of what they can do, and four
        # schedulers issue 52 instructions in this time.
        packed = {row: r for row, r in self.rows.items() if row[1].startswith("PackedBatchGemmKernel<")}
        self.assertEqual(len(packed), len(resources.TARGETS) * 2 * 2 * len(PACKED_TYPES))
        for (_, kernel, target), r in packed.items():
            element, of_type, token_tiles = re.match(r"PackedBatchGemmKernel<(\w+), \(WeightType\)(\d+), (\d)>",
                                                     kernel).groups()
            _, tile_bytes, most = PACKED_TYPES[of_type]
            if (element, target) == ("Bf16", "sm_90a"):
                self.assertLessEqual(int(r.tile_instructions), most * 2 * tile_bytes + 12 * int(token_tiles), kernel)
            self.assertEqual(r.tile_hmma, str(8 * int(token_tiles)), (kernel, target))
            self.assertEqual((r.loop_calls, r.loop_local), ("0", "0"), (kernel, target))
            self.assertLessEqual(256 * int(r.registers), 64 << 10, (kernel, target))
            self.assertLessEqual(int(r.dynamic_shared) + 1024, 100 << 10, (kernel, target))

    def test_the_packed_grouped_gemm_fits_every_target(self):
        packed = {row: r for row, r in self.rows.items() if row[1].startswith("PackedGroupedGemmKernel<")}
        self.assertEqual(len(packed), len(resources.TARGETS) * 2 * 2 * 2 * 9)  # elements, tiles, gated or not, types
        for (_, kernel, target), r in packed.items():
            token_tiles = int(re.fullmatch(r".*, (\d), (?:true|false)>", kernel).group(1))
            # Its loop is that of PackedGemmKernel.
            self.assertEqual(r.tile_hmma, str(8 * token_tiles), (kernel, target))
            self.assertEqual((r.loop_calls, r.loop_local), ("0" if target == "sm_90a" else "1", "0"), (kernel, target))
            self.assertLessEqual(256 * int(r.registers), 64 << 10, (kernel, target))
            self.assertLessEqual(int(r.dynamic_shared) + 1024, 100 << 10, (kernel, target))

    def test_the_grouped_gemm_executes_few_instructions_for_a_product(self):
        grouped = {row: r for row, r in self.rows.items() if row[1].startswith("GroupedGemmKernel<")}
        self.assertEqual(len(grouped), len(resources.TARGETS) * 2 * 4 * 2)  # elements, tiles, gated or not
        for (_, kernel, target), r in grouped.items():
            row_tiles, weight_rows = (int(size) for size in kernel.split(", ")[1:3])
            # A warp has at most four tiles of rows, and four steps of 16 in depth.
            self.assertEqual(int(r.tile_hmma), 4 * min(row_tiles, 4) * weight_rows // 8, (kernel, target))
            self.assertEqual((r.loop_calls, r.loop_local), ("0", "0"), (kernel, target))
            if row_tiles == 8:
                most = {32: 4.5, 64: 3.5}[weight_rows]  # for a product
                self.assertLessEqual(int(r.tile_instructions), most * int(r.tile_hmma), (kernel, target))

    def test_the_table_is_that_of_the_sources(self):
        try:
            found, said = resources.check(resources.Compiler(os.cpu_count()))
        except resources.Skip as skip:
            self.skipTest(str(skip))
        self.assertEqual(found, [], f"{said}; if this is meant: {resources.RENEW}")
        if resources.NO_NVDISASM in said:
            self.skipTest(f"registers are those of the table, but: {resources.NO_NVDISASM}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
