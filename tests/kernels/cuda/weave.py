"""Weaves mutants of a source into one copy, each behind a switch.

A mutant is the whole text of a changed source. It stands in the copy beside the text that it replaces: as an
expression, `(BUG ? (new) : (old))`, as a statement, `if (BUG) { new } else { old }`, or, where a declaration changes,
as the rest of the block. The old text stays whole, so other mutants may stand inside it.
"""

import collections
import os
import re

# Text to replace by a switch: text[begin:end] stays between head and tail.
Place = collections.namedtuple("Place", "begin end head tail")

OPEN, CLOSE = "([{", ")]}"
NOT_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n\\]|\\.)*|\"(?:\\.|[^\"\\\n])*\"|(?<!\w)'(?:\\.|[^'\\\n])'",
                      re.DOTALL | re.MULTILINE)
STATEMENT = re.compile(r"(?:if|else|for|while|do|switch|case|template|static_assert)\b")
ELSE = re.compile(r"\s*else\b")
GOES_ON = re.compile(r"\s*(?:else\b|while\b|[),;.(])")
OF_SCOPE = re.compile(r"(?:template\s*<.*?>\s*)?(?:inline\s+)?(?:namespace|struct|class|enum|union)\b", re.DOTALL)
OF_BLOCK = re.compile(r"(?:[)\]]|\b(?:else|do|const|noexcept|mutable)|->\s*[\w:<>]+)$")
DECLARATION = re.compile(
    r"(?:const|constexpr|static|auto|using|bool|int|unsigned|float|double|struct|u?int\d+_t|size_t|std::\w+)\b"
    r"|[A-Z][\w:]*(?:<[^;=()]*>)?[ &*]+\w+\s*[=;({\[]")


class Source:
    """A source and its brackets."""

    def __init__(self, text: str):
        self.text = text
        # Comments, words in quotes and directives are blank.
        self.code = NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
        self.pairs, self.kinds = {}, {}  # opening to closing bracket, and what a brace begins
        opened = []
        for i, char in enumerate(self.code):
            if char in OPEN:
                if char == "{":
                    self.kinds[i] = self._kind(i, next((o for o in reversed(opened) if self.code[o] == "{"), None))
                opened.append(i)
            elif char in CLOSE and opened:
                self.pairs[opened.pop()] = i
        self.openings = {closing: opening for opening, closing in self.pairs.items()}

    def _kind(self, brace: int, parent) -> str:
        before = self.code[:brace].rstrip()
        statement = before[max(before.rfind(char) for char in ";{}") + 1:].lstrip()
        if OF_SCOPE.match(statement):
            return "scope"
        if OF_BLOCK.search(before):
            return "block"
        if before.endswith((";", "{", "}")):
            return self.kinds.get(parent, "scope")
        return "init"

    def around(self, begin: int, end: int, kinds=None):
        """The closest brackets around text, of braces of `kinds` if given; None if there are none."""
        pairs = [(o, c) for o, c in self.pairs.items()
                 if o < begin and end <= c and (kinds is None or self.kinds.get(o) in kinds)]
        return max(pairs, default=None)

    def marks(self, begin: int, end: int):
        """Positions of text that are not in brackets inside it, brackets themselves included."""
        i = begin
        while i < end:
            yield i
            i = self.pairs.get(i, i)
            yield i
            i += 1

    def trimmed(self, begin: int, end: int):
        """The text without what is blank at its ends."""
        code = self.code[begin:end]
        return begin + len(code) - len(code.lstrip()), begin + len(code.rstrip()) if code.strip() else end

    def expression(self, begin: int, end: int, with_choice: bool):
        """Where the expression stands that holds the text, or None if that is none. With choice, parts of a
        conditional expression are not expressions by themselves."""
        around = self.around(begin, end)
        if not around:
            return None
        left, right, marks = around[0] + 1, around[1], list(self.marks(around[0] + 1, around[1]))
        # Half of a bracket's text takes the whole bracket along.
        for o in marks:
            close = self.pairs.get(o, o)
            if o < begin <= close:
                begin = o
            if o < end <= close:
                end = close + 1
        for i in marks:
            char, two = self.code[i], self.code[i - 1:i + 1]
            divides = (char in ",;" or char == "}" and self._ends_block(i)
                       or char in "?:" and not with_choice and two != "::" and self.code[i + 1] != ":"
                       or char == "=" and self.code[i + 1] != "=" and two not in ("==", "!=", "<=", ">="))
            if not divides:
                continue
            if i < begin:
                left = i + 1
            elif i < end:
                if char in ",;}=":
                    return None
            else:
                right = i
                if char == "=":
                    return None
                break
        for word in re.finditer(r"\breturn\b", self.code[left:begin]):
            left += word.end()
            break
        first, last = self.trimmed(left, right)
        return None if first == last or STATEMENT.match(self.code[first:last]) else (first, last)

    def _ends_block(self, closing: int) -> bool:
        return self.kinds.get(self.openings.get(closing)) == "block"

    def statements(self, begin: int, end: int):
        """Where each of the statements begins that hold the text, where the last ends, and where their block ends;
        None outside of functions."""
        around = self.around(begin, end, ("block",))
        if not around:
            return None
        left, right = [around[0] + 1], around[1]
        for i in self.marks(around[0] + 1, around[1]):
            ends = (self.code[i] == ";" and not ELSE.match(self.code, i + 1)
                    or self.code[i] == "}" and self._ends_block(i) and not GOES_ON.match(self.code, i + 1))
            if ends and i < begin:
                left = [i + 1]
            elif ends and i + 1 >= end:
                right = i + 1
                break
            elif ends:
                left.append(i + 1)
        if not self.code[left[0]:right].strip():  # between the last statement and the end of the block
            before = len(self.code[:left[0]].rstrip())
            return self.statements(before - 1, before) if before > around[0] + 1 else None
        return ([self.trimmed(at, right)[0] for at in left], self.trimmed(left[0], right)[1],
                self.trimmed(left[0], around[1])[1])


def places(source: Source, changed: str, on: str):
    """Yields the places where a mutant can stand, the smallest first."""
    text = source.text
    begin = len(os.path.commonprefix([text, changed]))
    same = len(os.path.commonprefix([text[begin:][::-1], changed[begin:][::-1]]))
    end, more = len(text) - same, len(changed) - len(text)
    if begin < end and not source.code[begin:end].strip():
        return

    def new(first, last):
        return changed[first:last + more]

    for with_choice in (False, True):
        span = source.expression(begin, end, with_choice)
        if span and new(*span).strip() and not new(*span).rstrip().endswith(";"):
            yield Place(*span, f"\n({on} ? ({new(*span)}) : (\n", "\n))\n")
    # Text left out may also be seen to begin earlier: where `; a()` goes, `a();` goes too.
    earlier = len(os.path.commonprefix([text[:begin][::-1], text[:end][::-1]])) if begin - end == more else 0
    found = [source.statements(*source.trimmed(begin - shift, end - shift)) for shift in {0, earlier}]
    if not all(found):
        return
    begins, last, block_end = min(found, key=lambda statements: statements[1] - statements[0][0])
    first = begins[0]
    # A variable that a changed statement declares must live as long as the block, too: it may have a destructor.
    if not any(DECLARATION.match(at) for at in [new(first, last), *(source.code[at:last] for at in begins)]):
        yield Place(first, last, f"\nif ({on}) {{ {new(first, last)} }} else {{\n", "\n}\n")
    yield Place(first, block_end, f"\nif ({on}) {{ {new(first, block_end)} }} else {{\n", "\n}\n")


def overlap(a: Place, b: Place) -> bool:
    """Whether two places cannot both stand in a copy: they share text, and neither holds the other."""
    return a.begin < b.begin < a.end < b.end or b.begin < a.begin < b.end < a.end


def woven(text: str, chosen):
    """The text with a switch at each place of `chosen`, which maps mutants to places, and for each mutant the lines
    that its switch adds."""
    # Where places meet, the outer begins first and ends last.
    order = sorted(chosen, key=lambda mutant: (chosen[mutant].begin, -chosen[mutant].end))
    events = []
    for rank, mutant in enumerate(order):
        place = chosen[mutant]
        events += [(place.begin, 1, rank, place.head, mutant), (place.end, 0, -rank, place.tail, mutant)]
    out, line, at, lines = [], 1, 0, collections.defaultdict(list)
    for position, _, _, added, mutant in sorted(events):
        line += text.count("\n", at, position)
        out += [text[at:position], added]
        lines[mutant].append((line, line + added.count("\n")))
        line += added.count("\n")
        at = position
    return "".join(out + [text[at:]]), lines


def on_line(lines, line: int):
    """The mutants that add to a line."""
    # The first and last lines of what a switch adds hold text of others too.
    return [mutant for mutant, added in lines.items() if any(first < line < last for first, last in added)]
