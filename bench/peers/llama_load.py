#!/usr/bin/env python3
"""Puts llama.cpp's server under the load of `quire bench`, for a comparison on one machine.

    llama-server -m MODEL.gguf -np 16 -c 8192 --port 8190 &
    python3 bench/peers/llama_load.py --port 8190 --concurrency 16 --num_requests 64 \\
        --prompt_tokens 128 --output_tokens 128

Streams completions over HTTP on loopback, in a closed loop, from prompts of random token ids, greedily, to the last
token. Prints one JSON object with the names that `quire bench --json` uses.
"""

import argparse
import asyncio
import json
import random
import time

import figures


async def one_request(port: int, prompt: list[int], output_tokens: int) -> list[float]:
    """Arrival times of the tokens; index 0 is the time when the request was sent."""
    body = json.dumps({"prompt": prompt, "n_predict": output_tokens, "temperature": 0, "ignore_eos": True,
                       "stream": True, "cache_prompt": False}).encode()
    times = [time.perf_counter()]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{status!r} {await reader.read(2000)!r}")
    while line := await reader.readline():
        if line.startswith(b"data: ") and b'"stop":false' in line:
            times.append(time.perf_counter())
    writer.close()
    return times


async def load(arguments) -> dict:
    generator = random.Random(arguments.seed)
    prompts = [[generator.randrange(1000, 40000) for _ in range(arguments.prompt_tokens)]
               for _ in range(arguments.num_requests)]
    waiting, results = list(prompts), []

    async def stream():
        while waiting:
            results.append(await one_request(arguments.port, waiting.pop(), arguments.output_tokens))

    begin = time.perf_counter()
    await asyncio.gather(*(stream() for _ in range(arguments.concurrency)))
    seconds = time.perf_counter() - begin
    return figures.report(results, seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8190)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--num_requests", type=int, default=8)
    parser.add_argument("--prompt_tokens", type=int, default=128)
    parser.add_argument("--output_tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    print(json.dumps(asyncio.run(load(parser.parse_args()))))


if __name__ == "__main__":
    main()
