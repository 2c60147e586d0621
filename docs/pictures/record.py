#!/usr/bin/env python3
"""Writes the pictures of a terminal: real commands on models/quire-stories, and what they print.

    python3 docs/pictures/record.py tour    tour.svg: the README's recording
    python3 docs/pictures/record.py top     top.svg: the screen of quire top under a load

The commands are those of build/release/bin, or of --bin FOLDER. The ports 8100, 8101, 8200 and 8201 must be free. A command
that fails ends the recording, so all that a picture claims has happened.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import signal
import struct
import subprocess
import tempfile
import termios
import time
from xml.sax import saxutils

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COLUMNS = 80
CHARACTER, LINE, MARGIN = 7.8, 17, 12  # pixels
PAPER = "#1e1e1e"
COLORS = {"output": "#e0e0e0", "typed": "#ffffff", "dim": "#8a8a8a", "heading": "#ffffff", "note": "#7ec699"}
TYPING = 0.8  # seconds from a command's appearance to its answer, beside those that the answer takes
LONGEST_WAIT = 3.0  # seconds of an answer that are shown

# A line that begins with a space goes on with the command before it.
TOUR = """\
# The same request gives the same tokens, alone or among others.
ASK='quire generate --echo --seed 3 --temperature .7 --max_tokens 14 --prompt'
$ASK 'Once upon a time' | tee alone
quire bench --concurrency 16 --duration 3s --output_tokens 400 >load 2>&1 &
sleep 1.5; quire stats | grep now
$ASK 'Once upon a time' | cmp - alone && echo equal
# A prefix is kept by name. Requests that name it compute only what follows.
P=$(quire prefix create --prompt_file rules.txt --display_name rules --ttl 2h)
quire generate --prefix $P --prompt ' One day' --max_tokens 8 --stats 2>&1
# A session forks at any of its tokens, and copies nothing.
S=$(quire session create)
quire generate --session $S --prompt 'Tom had a dog' --seed 5 \\
  --temperature .7 --max_tokens 14
for FORK in $(quire session fork $S --at_token 7 --count 2); do
  quire generate --session $FORK --temperature .7 --max_tokens 12; done
# The server (process $FIRST) is killed in an answer, which goes on at another.
LONG='quire generate --prompt Today --seed 3 --ignore_eos --max_tokens 1900'
$LONG >whole
$LONG --server ipv4:127.0.0.1:8100,127.0.0.1:8200 >resumed &
until [ -s resumed ]; do :; done; sleep .1; kill -9 $FIRST; wc -c resumed
wait $!; wc -c resumed; cmp whole resumed && echo equal
"""
RULES = "Lily lived in a small house near the forest. Every day she went out to play with her friends.\n" * 6

# Owner, name and time of each prefix, and the tenants that use it, each with its number of requests at once.
PREFIXES = [("acme", "support-prompt", "42m", {"acme": 4, "beta": 3}), ("gamma", "contract-2026", "14m", {"gamma": 2}),
            ("acme", "house-rules", "83m", {"gamma": 2})]
CALLERS = {"acme": "", "beta": "tokens_per_minute=600000", "gamma": "", "watcher": "roles=operator"}


class Terminal:
    """bash on a terminal, in a folder of its own, with `programs` before the PATH's."""

    def __init__(self, folder: pathlib.Path, programs: pathlib.Path, rows: int = 24):
        self.folder = folder
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, COLUMNS, 0, 0))
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "TERM": "xterm"}
        self._bash = subprocess.Popen(["bash", "--norc"], stdin=subprocess.PIPE, stdout=theirs, stderr=theirs, cwd=folder,
                                      env=environment, start_new_session=True)
        os.close(theirs)

    def run(self, command: str) -> str:
        """What the command prints. Fails if its status is not 0."""
        self._bash.stdin.write(f"{command}\nprintf '\\001%d\\002' $?\n".encode())
        self._bash.stdin.flush()
        seen = b""
        while not (end := re.search(rb"\x01(\d+)\x02", seen)):
            seen += os.read(self._ours, 65536)
        text = seen[:end.start()].decode().replace("\r", "")
        assert end.group(1) == b"0", f"{command}\n{text}"
        return text

    def close(self):
        """Ends what the shell has started, too."""
        os.killpg(self._bash.pid, signal.SIGTERM)
        self._bash.stdin.close()
        self._bash.wait()
        os.close(self._ours)


@contextlib.contextmanager
def terminal(programs: pathlib.Path):
    with tempfile.TemporaryDirectory(prefix="quire-record-") as scratch:
        folder = pathlib.Path(scratch)
        (folder / "rules.txt").write_text(RULES)
        shell = Terminal(folder, programs)
        try:
            yield shell
        finally:
            shell.close()


def serve(shell: Terminal, port: int, *flags: str):
    """Starts a server whose process id is $FIRST on port 8100, and $SECOND on another one."""
    name = "FIRST" if port == 8100 else "SECOND"
    shell.run(f"quire-server --model {ROOT}/models/quire-stories --listen 127.0.0.1:{port} --admin_listen "
              f"127.0.0.1:{port + 1} {' '.join(flags)} 2>{port}.log & {name}=$!; disown; "
              f"until quire health --server 127.0.0.1:{port} >/dev/null 2>&1; do kill -0 ${name} || exit; sleep 0.1; done")


def spans(text: str) -> list[list[tuple[str, str]]]:
    """The rows of a terminal that shows `text`: of each, pieces with their styles."""
    rows, style = [[]], "output"
    for piece in re.split(r"(\x1b\[[0-9;]*m|\n)", text):
        if piece == "\n":
            rows.append([])
        elif piece.startswith("\x1b["):
            style = "dim" if piece == "\x1b[2m" else "output"
        while piece and not piece.startswith(("\x1b", "\n")):
            left = COLUMNS - sum(len(shown) for _, shown in rows[-1])
            if left == 0:
                rows.append([])
                left = COLUMNS
            rows[-1].append((style, piece[:left]))
            piece = piece[left:]
    return rows if rows[-1] else rows[:-1]


def render(title: str, rows: list[tuple[float, list[tuple[str, str]]]]) -> str:
    """An SVG of rows that appear after so many seconds; at once where animations are not wanted."""
    width, height = round(COLUMNS * CHARACTER + 2 * MARGIN), len(rows) * LINE + 2 * MARGIN
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
           'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13">', f"<title>{title}</title>",
           "<style>@keyframes a{to{opacity:1}}@media(prefers-reduced-motion:no-preference)"
           "{.a{opacity:0;animation:a 1ms forwards}}</style>" if any(at for at, _ in rows) else "",
           f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>']
    for number, (at, row) in enumerate(rows):
        column = 0
        appears = f' class="a" style="animation-delay:{at:.1f}s"' if at else ""
        for style, text in row:
            if text.strip():
                out.append(f'<text x="{MARGIN + column * CHARACTER:.1f}" y="{MARGIN + (number + 1) * LINE - 5}" '
                           f'fill="{COLORS[style]}" textLength="{len(text) * CHARACTER:.1f}" lengthAdjust="spacing" '
                           f'xml:space="preserve"{appears}>{saxutils.escape(text)}</text>')
            column += len(text)
    return "\n".join(line for line in [*out, "</svg>"] if line) + "\n"



def tour(shell: Terminal) -> str:
    serve(shell, 8100)
    serve(shell, 8200)
    rows, now = [], 0.0
    for command in re.sub(r"\n(?= )", "\0", TOUR).splitlines():
        command = command.replace("\0", "\n")
        if command.startswith("# "):
            if rows:
                rows.append((now, []))
            rows.append((now, [("note", command)]))
            continue
        for number, line in enumerate(command.splitlines()):
            assert len(line) <= COLUMNS - 2, line
            rows.append((now, [("dim", "> " if number else "$ "), ("typed", line)]))
        begun = time.monotonic()
        text = shell.run(command)
        now += TYPING + min(time.monotonic() - begun, LONGEST_WAIT)
        rows += [(now, row) for row in spans(text)]
        now += TYPING if text else 0
    return render("Quire in a terminal", rows)


def top(shell: Terminal) -> str:
    lines = [f"token:{hashlib.sha256(name.encode()).hexdigest()} name={name} {more}\n" for name, more in CALLERS.items()]
    (shell.folder / "callers").write_text("".join(lines))
    shell.run("export QUIRE_TOKEN=watcher")
    serve(shell, 8100, "--kv_cache_mib", "24", "--auth_token_file", "callers")
    for number, (owner, name, ttl, users) in enumerate(PREFIXES):
        (shell.folder / name).write_text(RULES[:len(RULES) // (number + 1)])
        prefix = shell.run(f"QUIRE_TOKEN={owner} quire prefix create --prompt_file {name} --display_name {name} --ttl {ttl} "
                           "--allow '*'").strip()
        for tenant, requests in users.items():
            shell.run(f"QUIRE_TOKEN={tenant} quire bench --prefix {prefix} --concurrency {requests} --duration 1m "
                      f"--prompt_tokens 8..64 --output_tokens 100..300 --seed {number} >/dev/null 2>&1 &")
    screens = shell.run("quire top --interval 500ms --count 16").split("\x1b[H")
    last = re.sub(r"\x1b\[\??\d*[A-Za-z]", "", screens[-1]).rstrip("\n")
    rows = [(0, [("heading" if line.startswith(("PREFIX ", "TENANT ")) else "output", line)]) for line in last.split("\n")]
    return render("The screen of quire top", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pictures = {"top": top, "tour": tour}
    parser.add_argument("picture", choices=pictures)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin", metavar="FOLDER")
    given = parser.parse_args()
    with terminal(given.bin.resolve()) as shell:
        picture = pictures[given.picture](shell)
    (HERE / f"{given.picture}.svg").write_text(picture)


if __name__ == "__main__":
    main()
