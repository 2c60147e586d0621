"""What one warp executes for each tile of a kernel's hot loop, read from the text of `nvdisasm -c`.

The hot loop is the smallest loop that has matrix products (HMMA). Of the ways through it, the one of an unmasked tile
counts: it executes every product and every load, and of the ways that do so it is the shortest.
"""

import collections
import dataclasses
import re

Loop = collections.namedtuple("Loop", "instructions branches hmma ldsm ldgsts calls local")


@dataclasses.dataclass
class Block:
    """Instructions that run one after another. A branch or an exit ends a block, a label begins one."""
    opcodes: list[str] = dataclasses.field(default_factory=list)
    successors: list[int] = dataclasses.field(default_factory=list)


INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
LABEL = re.compile(r"^(\.L_x_\d+):")
NEVER_FALLS_THROUGH = ("BRA", "EXIT", "RET", "BRX", "JMP", "JMX")


def functions(text: str) -> dict[str, list[str]]:
    """Returns the lines of each function by its mangled name."""
    found = {}
    lines = []
    for line in text.splitlines():
        if match := re.match(r"\s*\.section\s+\.text\.(\w+)", line):
            lines = found.setdefault(match.group(1), [])
        lines.append(line)
    return found


def blocks_of(lines: list[str]) -> list[Block]:
    """Returns the blocks of a function in the order of their addresses."""
    blocks, labels, targets = [Block()], {}, {}
    for line in lines:
        if match := LABEL.match(line):
            if blocks[-1].opcodes:
                blocks.append(Block())
            labels[match.group(1)] = len(blocks) - 1
        elif match := INSTRUCTION.search(line):
            predicate, opcode, operands = match.groups()
            kind = opcode.split(".")[0]
            blocks[-1].opcodes.append(opcode)
            if kind not in NEVER_FALLS_THROUGH:
                continue
            here = len(blocks) - 1
            if kind == "BRA":
                # An operand before the label is a further predicate.
                targets[here] = re.search(r"`\((\.L_x_\d+)\)", operands).group(1)
                predicate = predicate or re.match(r"\s*!?U?P\w+,", operands)
            elif kind in ("BRX", "JMP", "JMX"):
                raise ValueError(f"a jump that sass.py does not know: {line.strip()}")
            blocks.append(Block())
            if predicate:
                blocks[here].successors.append(here + 1)
    for i, block in enumerate(blocks):
        last = block.opcodes[-1].split(".")[0] if block.opcodes else ""
        if last not in NEVER_FALLS_THROUGH and i + 1 < len(blocks):
            block.successors.append(i + 1)
        if i in targets:
            block.successors.append(labels[targets[i]])
    return blocks


def count(blocks: list[Block], of: set[int] | list[int], *kinds: str) -> int:
    return sum(opcode.split(".")[0] in kinds for i in of for opcode in blocks[i].opcodes)


def loops(blocks: list[Block]) -> dict[int, set[int]]:
    """Returns the blocks of each loop by the block in which the loop begins."""
    before = collections.defaultdict(list)
    for i, block in enumerate(blocks):
        for successor in block.successors:
            before[successor].append(i)
    found = collections.defaultdict(set)
    for i, block in enumerate(blocks):
        for head in block.successors:
            if head > i:
                continue
            body, left = {head}, [i]
            while left:
                at = left.pop()
                if at not in body:
                    body.add(at)
                    left += before[at]
            found[head] |= body
    return found


def hot_loop(blocks: list[Block]) -> Loop | None:
    """Returns the counts of the hot loop, or None if no loop has matrix products."""
    with_products = [(len(body), head) for head, body in loops(blocks).items() if count(blocks, body, "HMMA")]
    if not with_products:
        return None
    _, head = min(with_products)
    body = loops(blocks)[head]
    best = {}  # for each block, the best way from there to the end of the loop

    def better(way: list[int]):
        return count(blocks, way, "HMMA", "LDSM", "LDGSTS"), -sum(len(blocks[i].opcodes) for i in way)

    def way_from(at: int) -> list[int] | None:
        if at not in best:
            best[at] = "open"
            ways = [[at] for successor in blocks[at].successors if successor == head]
            for successor in blocks[at].successors:
                if successor in body and successor != head and (rest := way_from(successor)):
                    ways.append([at] + rest)
            best[at] = max(ways, key=better) if ways else None
        if best[at] == "open":
            raise ValueError("a loop inside the hot loop: its turns cannot be counted")
        return best[at]

    way = way_from(head)
    return Loop(sum(len(blocks[i].opcodes) for i in way), count(blocks, way, "BRA"), count(blocks, way, "HMMA"),
                count(blocks, way, "LDSM"), count(blocks, way, "LDGSTS"), count(blocks, body, "CALL"),
                count(blocks, body, "LDL", "STL"))


def hot_loops(text: str) -> dict[str, Loop]:
    """Returns the counts of every kernel that has a hot loop, by its mangled name."""
    found = {name: hot_loop(blocks_of(lines)) for name, lines in functions(text).items()}
    return {name: loop for name, loop in found.items() if loop is not None}
