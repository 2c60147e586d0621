#!/usr/bin/env python3
"""Measures a served model's perplexity on a long text, by position, for several cache windows, and the blocks held.

    python3 bench/streaming/perplexity.py MODEL TEXT --bin build/release/bin --tokens 50000 \\
        --window 16+496 --window 0+512 --restart 512 --out docs/evidence/streaming/quire-stories

A window is SINKS+WINDOW tokens, in whole blocks of 16. The text is sent to the server as one prompt, and the answer
has its log-probabilities. No text is equally hard throughout, so --restart gives a baseline: pieces of that many
tokens, each a prompt of its own, all of which is kept. Meanwhile the server is asked how many blocks are held. Writes
OUT.json, OUT.svg (perplexity) and OUT-memory.svg (tokens of the blocks held).
"""

import argparse
import contextlib
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "peers"))
sys.path.insert(0, str(HERE.parents[2] / "tools/train"))
import svg
from compare import free_port, wait_for

BLOCK_SIZE = 16


@contextlib.contextmanager
def served(arguments):
    """Returns the server's address."""
    port = free_port()
    process = subprocess.Popen(
        [f"{arguments.bin}/quire-server", "--model", arguments.model, "--listen", f"127.0.0.1:{port}", "--admin_listen",
         f"127.0.0.1:{free_port()}", "--block_size", str(BLOCK_SIZE), "--max_num_seqs", "1", *arguments.server_flag],
        stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def client(arguments, command: str, address: str, *flags: str) -> list[dict]:
    done = subprocess.run([f"{arguments.bin}/quire", command, "--server", address, "--json", *flags],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def stats(arguments, address: str) -> tuple[int, int]:
    """Prompt tokens computed since the server's start, and tokens of the blocks held now."""
    message = client(arguments, "stats", address)[0]
    return int(message["tokens"].get("prompt_computed", 0)), int(message["blocks"].get("held", 0)) * BLOCK_SIZE


def losses_of(arguments, address: str, text: bytes, flags: list[str]) -> list[float]:
    """Loss of each token of the text, in nats. The first token has none: NaN."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(text)
        file.flush()
        messages = client(arguments, "generate", address, "--prompt_file", file.name, "--max_tokens", "1",
                          "--prompt_logprobs", "0", *flags)
    return [math.nan] + [-position["chosen"].get("logprob", 0.0)
                         for message in messages for position in message.get("prompt_logprobs", [])]


def measure(arguments, address: str, pieces: list[bytes], flags: list[str]) -> dict:
    """Sends each piece as a prompt. Returns the losses of the pieces, and pairs of (tokens computed, tokens held)."""
    held, over = [], threading.Event()
    before, _ = stats(arguments, address)

    def watch():
        while not over.wait(arguments.interval):
            computed, tokens = stats(arguments, address)
            held.append((computed - before, tokens))

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.monotonic()
    losses = [loss for piece in pieces for loss in losses_of(arguments, address, piece, flags)]
    seconds = time.monotonic() - begin
    over.set()
    watcher.join()
    return {"losses": losses, "seconds": seconds,
            "held": [(computed, tokens) for computed, tokens in held if 0 < computed and 0 < tokens]}


def perplexity(losses: list[float]) -> float:
    known = [loss for loss in losses if not math.isnan(loss)]
    return math.exp(sum(known) / len(known))


def perplexities(losses: list[float], bucket: int) -> list[tuple[int, float]]:
    """(tokens so far, perplexity of this bucket) for each whole bucket."""
    return [(end, perplexity(losses[end - bucket:end])) for end in range(bucket, len(losses) + 1, bucket)]


def write(arguments, results: dict):
    out = arguments.out
    out.parent.mkdir(parents=True, exist_ok=True)
    by_name = {name: perplexities(result["losses"], arguments.bucket) for name, result in results.items()}
    numbers = {name: {"tokens": len(result["losses"]), "seconds": round(result["seconds"], 1),
                      "most_tokens_held": max(tokens for _, tokens in result["held"]),
                      "perplexity": round(perplexity(result["losses"]), 3),
                      f"perplexity_by_{arguments.bucket}": [round(value, 3) for _, value in by_name[name]]}
               for name, result in results.items()}
    out.with_suffix(".json").write_text(json.dumps(numbers, indent=1) + "\n")
    out.with_suffix(".svg").write_text(svg.render(svg.Chart(
        f"{arguments.name}: perplexity of {arguments.tokens:,} tokens in one stream", "tokens", "perplexity",
        [svg.Line(name, points) for name, points in by_name.items()], log_y=True)))
    out.with_name(out.name + "-memory.svg").write_text(svg.render(svg.Chart(
        f"{arguments.name}: tokens of the cache blocks that the stream holds", "tokens", "tokens held",
        [svg.Line(name, result["held"]) for name, result in results.items()])))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model")
    add("text", type=pathlib.Path)
    add("--bin", default="build/release/bin")
    add("--tokens", type=int, default=50_000, help="tokens of the text to use (%(default)s)")
    add("--window", action="append", default=[], metavar="SINKS+WINDOW", help="a cache window; may be repeated")
    add("--restart", type=int, default=0, metavar="TOKENS", help="also measure pieces of this many tokens, without a window")
    add("--bucket", type=int, default=1000, help="tokens per reported number (%(default)s)")
    add("--interval", type=float, default=0.25, help="seconds between two readings of the memory (%(default)s)")
    add("--server-flag", action="append", default=[], metavar="FLAG",
        help="flag of the server, such as --server-flag=--threads=1; may be repeated")
    add("--out", type=pathlib.Path, required=True, metavar="PATH", help="path of the results, without an ending")
    arguments = parser.parse_args()
    arguments.name = arguments.out.name

    runs = []
    for sinks, window in (shape.split("+") for shape in arguments.window):
        name = f"{sinks} sinks, window of {window}" if int(sinks) else f"window of {window}"
        runs.append((name, arguments.tokens, ["--sink_tokens", sinks, "--window_tokens", window]))
    if arguments.restart:
        runs.append((f"all kept, begun anew every {arguments.restart}", arguments.restart, []))
    results = {}
    with served(arguments) as address:
        tokens = client(arguments, "tokenize", address, "--text_file", str(arguments.text),
                        "--add_special_tokens", "--parse_special_tokens")[0]["tokens"]
        ends = [int(token.get("end", 0)) for token in tokens[:arguments.tokens]]
        text = arguments.text.read_bytes()
        for name, length, flags in runs:
            cuts = [0] + [ends[min(i, len(ends)) - 1] for i in range(length, len(ends) + length, length)]
            pieces = [text[begin:end] for begin, end in zip(cuts, cuts[1:])]
            results[name] = measure(arguments, address, pieces, flags)
            print(f"{name}: {len(results[name]['losses'])} tokens in {results[name]['seconds']:.1f} s", flush=True)
    write(arguments, results)


if __name__ == "__main__":
    main()
