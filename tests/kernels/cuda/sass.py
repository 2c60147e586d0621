"""Counts what one warp executes for each tile in the hot loops of a kernel, and the calls and the accesses to local memory of
the whole kernel, from the text that `nvdisasm -c` prints.

A hot loop has matrix products (HMMA, or HGMMA of wgmma), and no smaller loop with products is inside. There are several ways through
it. The way of an unmasked tile counts: it executes every product and every load, and among the ways that do so it is the shortest.
"""

import collections
import dataclasses
import re

COLUMNS = ("tile_instructions", "tile_branches", "tile_hmma", "tile_ldsm", "tile_ldgsts", "loop_calls", "loop_local")
# The first five count the way of an unmasked tile. The last two count calls, and loads and stores of local memory,
# anywhere in the loop.
HotLoop = collections.namedtuple("HotLoop", COLUMNS)
KERNEL_COLUMNS = ("calls", "local")
# Calls, and loads and stores of local memory, anywhere in the kernel and in what only it calls.
Whole = collections.namedtuple("Whole", KERNEL_COLUMNS)
LOCAL = ("LDL", "STL")

INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
LABEL = re.compile(r"^(\.L_x_\d+):")
# After these, the next instruction runs only if they have a predicate.
LEAVES = ("BRA", "BRX", "EXIT", "RET")
PRODUCTS = ("HMMA", "HGMMA")
UNKNOWN = ("JMP", "JMX")


@dataclasses.dataclass
class Block:
    """Instructions that run one after another, without their operands, and the blocks that may run next."""
    opcodes: list[str] = dataclasses.field(default_factory=list)
    successors: list[int] = dataclasses.field(default_factory=list)

    def count(self, *opcodes: str) -> int:
        return sum(opcode in opcodes for opcode in self.opcodes)


def functions(text: str) -> dict[str, list[str]]:
    """Returns the lines of each function by its mangled name."""
    found, lines = {}, []
    for line in text.splitlines():
        if match := re.match(r"\s*\.section\s+\.text\.(\w+)", line):
            lines = found.setdefault(match.group(1), [])
        lines.append(line)
    return found


def blocks_of(lines: list[str]) -> list[Block]:
    """Returns the blocks of a function in the order of their addresses."""
    blocks, labels, targets = [Block()], {}, collections.defaultdict(list)
    ended = False  # whether the last block ends with a branch
    for line in lines:
        label, instruction = LABEL.match(line), INSTRUCTION.search(line)
        if (label and blocks[-1].opcodes) or (instruction and ended):
            blocks.append(Block())
            ended = False
        here = len(blocks) - 1
        if label:
            labels[label.group(1)] = here
        if not instruction:
            continue
        predicate, opcode, operands = instruction.groups()
        opcode = opcode.split(".")[0]
        target = re.search(r"`\((\.L_x_\d+)\)", operands)
        if opcode == "CALL" and target:
            opcode = "BRA"  # ptxas leaves some loops by a call of what follows them, which never returns
        table = re.search(r"BRANCH_TARGETS ([^\"]+)", operands)
        if opcode in UNKNOWN or (opcode == "BRX" and not table):
            raise ValueError(f"sass.py does not know where this goes: {line.strip()}")
        blocks[here].opcodes.append(opcode)
        if opcode in LEAVES:
            ended = True
            if predicate or re.match(r"\s*!?U?P\w+,", operands):
                blocks[here].successors.append(here + 1)
        if opcode == "BRA":
            targets[here].append(target.group(1))
        if opcode == "BRX":
            targets[here] += table.group(1).split(",")
    for i, block in enumerate(blocks):
        if i in targets:
            block.successors += [labels[target] for target in dict.fromkeys(targets[i])]
        elif block.opcodes and block.opcodes[-1] not in LEAVES and i + 1 < len(blocks):
            block.successors.append(i + 1)
    return blocks


def whole(blocks: list[Block]) -> Whole:
    """Returns the counts of a whole kernel."""
    return Whole(sum(block.count("CALL") for block in blocks), sum(block.count(*LOCAL) for block in blocks))


def loops(blocks: list[Block]) -> dict[int, set[int]]:
    """Returns the blocks of each loop by the block in which the loop begins. Code out of line that goes back into a
    loop counts as a loop, too. It contains the loop into which it goes, so it is never hot."""
    before = collections.defaultdict(list)
    for i, block in enumerate(blocks):
        for successor in block.successors:
            before[successor].append(i)
    found = collections.defaultdict(set)
    for last, block in enumerate(blocks):
        for head in block.successors:
            if head > last:
                continue
            body, left = {head}, [last]
            while left:
                at = left.pop()
                if at not in body:
                    body.add(at)
                    left += before[at]
            found[head] |= body
    return found


def hot_loops(blocks: list[Block]) -> list[HotLoop]:
    """Returns the counts of each hot loop, by ascending number of products, and of loops with as many, the one with more
    loads of matrices first. Raises ValueError if a hot loop contains
    another loop, because the turns of that are not known. A loop that waits for an mbarrier (SYNCS) counts as if it did
    not go back."""
    all_loops = loops(blocks)
    waits = {(last, first) for first, body in all_loops.items() for last in body
             if first in blocks[last].successors and any(blocks[i].count("SYNCS") for i in body)
             and not any(blocks[i].count(*PRODUCTS) for i in body)}
    with_products = {head: body for head, body in all_loops.items() if any(blocks[i].count(*PRODUCTS) for i in body)}
    return sorted((count_loop(blocks, waits, head, body) for head, body in with_products.items()
                   if not any(other < body for other in with_products.values())), key=lambda loop: (loop.tile_hmma, -loop.tile_ldsm))


def count_loop(blocks: list[Block], waits: set[tuple[int, int]], head: int, body: set[int]) -> HotLoop:
    """Returns the counts of one loop. `waits` are the ways from the end of a loop that waits to its begin."""
    def count(way, *opcodes: str) -> int:
        return sum(blocks[i].count(*opcodes) for i in way)

    def length(way) -> int:
        return sum(len(blocks[i].opcodes) for i in way)

    ways = {}  # the best way from a block to the end of the loop; None if there is none, or not yet

    def best_way(at: int, passed: tuple[int, ...] = ()) -> list[int] | None:
        if at in passed:
            raise ValueError("a hot loop contains another loop")
        if at not in ways:
            found = [[at]] if head in blocks[at].successors else []
            for successor in blocks[at].successors:
                if successor in body and successor != head and (at, successor) not in waits and (rest := best_way(successor, passed + (at,))):
                    found.append([at] + rest)
            ways[at] = max(found, key=lambda way: (count(way, *PRODUCTS, "LDSM", "LDGSTS"), -length(way)), default=None)
        return ways[at]

    way = best_way(head)
    return HotLoop(length(way), count(way, "BRA", "BRX"), count(way, *PRODUCTS), count(way, "LDSM"), count(way, "LDGSTS"),
                   count(body, "CALL"), count(body, *LOCAL))
