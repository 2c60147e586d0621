"""Checks the code of kernels with wgmma and setmaxnreg, from the text that `nvdisasm -c` prints: that nothing touches the
registers of a product in flight, and that no thread uses more registers than setmaxnreg leaves it.

A wgmma (HGMMA) reads the registers of its operand and writes its accumulators until WARPGROUP.DEPBAR has waited for
its group. Neither the emulator nor ptxas reports an instruction in between that touches them.
"""

import collections
import re
import typing

import sass

PRODUCT = re.compile(r"HGMMA\.64x(\d+)x\d+\S* R(\d+), (?:R(\d+)|gdesc)\S*")
WAIT = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x([0-9a-f]+)")
LIMIT = re.compile(r"USETMAXREG\.(?:DEALLOC|TRY_ALLOC)\S* .*?0x([0-9a-f]+)")
WIDTHS = ((".128", 4), (".64", 2))
# These read their first register, and all others write it.
READERS = ("ST", "SYNCS", "RED", "BAR", "BRA", "UTMA", "ATOM", "R2UR")
REGISTERS_OF_A = 4

# The products of one group, or of the one that is not committed yet.
Group = collections.namedtuple("Group", ("accumulators", "operands"), defaults=(frozenset(), frozenset()))


class Instruction(typing.NamedTuple):
    address: str
    has_predicate: bool
    text: str  # opcode and operands, without the predicate


class Function:
    """The instructions of a function, and for each those that may run next."""

    def __init__(self, lines: list[str]):
        self.instructions, labels = [], {}
        for line in lines:
            if label := sass.LABEL.match(line):
                labels[label.group(1)] = len(self.instructions)
            elif label := re.match(r"^(\$\S+):", line):
                labels[label.group(1)] = len(self.instructions)
            if found := sass.INSTRUCTION.search(line):
                predicate, opcode, operands = found.groups()
                address = re.search(r"/\*([0-9a-f]{4,})\*/", line).group(1)
                self.instructions.append(Instruction(address, bool(predicate), opcode + operands.rstrip()))
        self.next = [self._next(i, labels) for i in range(len(self.instructions))]

    def _next(self, i: int, labels: dict[str, int]) -> list[int]:
        _, has_predicate, text = self.instructions[i]
        opcode = text.split()[0].split(".")[0]
        target = re.search(r"`\((\S+?)\)", text)
        goes = opcode in ("BRA", "CALL") and target
        after = [labels[target.group(1)]] if goes else []
        if opcode == "BRX":
            after = [labels[label] for label in re.search(r"BRANCH_TARGETS ([^\"]+)", text).group(1).split(",")]
        falls = opcode not in sass.LEAVES or has_predicate or re.match(r"\S+\s+!?U?P\w+,", text)
        # `BRA.U UP0, ...`, `BRA.DIV` and `BRA.U.ANY` may go on as well.
        falls = falls or text.startswith(("BRA.", "BRA !"))
        return after + ([i + 1] if falls and i + 1 < len(self.instructions) else [])


def registers_of(text: str) -> set[int]:
    """Returns the general registers that an instruction names, with those behind them in wide operands."""
    if product := PRODUCT.match(text):
        columns, first, operand = (int(number or -1) for number in product.groups())
        return {*range(first, first + columns // 2), *(range(operand, operand + REGISTERS_OF_A) if operand >= 0 else ())}
    width = next((count for suffix, count in WIDTHS if suffix in text.split()[0]), 1)
    found = set()
    for number, is_pair in re.findall(r"\bR(\d+)(\.64)?", text):
        found |= set(range(int(number), int(number) + (2 if is_pair else width)))
    return found


def written(text: str) -> set[int]:
    """Returns the registers that an instruction writes, other than a product's."""
    first = re.match(r"(\S+)\s+(?:P\w+,\s*)*R(\d+)\b", text)
    if not first or first.group(1).startswith(READERS):
        return set()
    width = next((count for suffix, count in WIDTHS if suffix in first.group(1)), 1)
    return set(range(int(first.group(2)), int(first.group(2)) + width))


def step(state: tuple[Group, ...], text: str) -> tuple[tuple[Group, ...], str]:
    """Returns what is in flight after an instruction, and what is wrong with it. The last group is not committed."""
    if product := PRODUCT.match(text):
        columns, first, operand = (int(number or -1) for number in product.groups())
        accumulators = frozenset(range(first, first + columns // 2))
        operands = frozenset(range(operand, operand + REGISTERS_OF_A) if operand >= 0 else ())
        wrong = ""
        if any(accumulators & group.operands or operands & group.accumulators for group in state):
            wrong = "uses registers of another product in flight"
        state = (*state[:-1], Group(state[-1].accumulators | accumulators, state[-1].operands | operands))
        return (*state, Group()) if "gsb0" in text else state, wrong
    if wait := WAIT.match(text):
        left = int(wait.group(1), 16)
        committed = state[:-1]
        return (*committed[max(len(committed) - left, 0):], state[-1]), ""
    touched, changed = registers_of(text), written(text)
    if any(touched & group.accumulators or changed & group.operands for group in state):
        return state, "touches registers of a product in flight"
    return state, ""


def hazards(function: Function) -> list[str]:
    """Returns a line for each instruction that touches registers of a product in flight, on any way through the
    function."""
    seen, waiting, found = set(), [(0, (Group(),))], set()
    while waiting:
        at, state = waiting.pop()
        if (at, state) in seen:
            continue
        seen.add((at, state))
        after, wrong = step(state, function.instructions[at].text)
        if wrong:
            found.add(f"{function.instructions[at].address}: {function.instructions[at].text} {wrong}")
        waiting += [(successor, after) for successor in function.next[at]]
    return sorted(found)


def most_registers(function: Function) -> list[tuple[int, int]]:
    """Returns the limit of each setmaxnreg, and the largest number of a register, plus one, that is used after it."""
    found = []
    for i, instruction in enumerate(function.instructions):
        if not (limit := LIMIT.match(instruction.text)):
            continue
        seen, waiting, most = set(), list(function.next[i]), 0
        while waiting:
            at = waiting.pop()
            text = function.instructions[at].text
            if at in seen or LIMIT.match(text):
                continue
            seen.add(at)
            most = max(most, *(number + 1 for number in registers_of(text)), 0)
            waiting += function.next[at]
        found.append((int(limit.group(1), 16), most))
    return found


def num_products(function: Function) -> int:
    return sum(bool(PRODUCT.match(instruction.text)) for instruction in function.instructions)
