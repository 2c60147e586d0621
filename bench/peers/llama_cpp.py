#!/usr/bin/env python3
"""llama.cpp's native server under the load of `quire bench`, for a comparison on one machine.

    pip install xllamacpp
    python3 bench/peers/llama_cpp.py serve MODEL.gguf --parallel 16 --context 8192 --threads 2 --port 8190
    python3 bench/peers/llama_cpp.py load --port 8190 --concurrency 16 --num_requests 64 \
        --prompt_tokens 128 --output_tokens 128

`serve` runs until it is killed, and prints the build's ISA line. `load` streams completions over HTTP on
loopback, closed loop, prompts of random token ids, greedy, to the last token; it prints one JSON object
with the names that `quire bench --json` uses.
"""

import argparse
import asyncio
import json
import random
import time


def serve(arguments):
    import xllamacpp

    print(xllamacpp.get_system_info(), flush=True)
    params = xllamacpp.CommonParams()
    params.model.path = arguments.model
    params.n_parallel = arguments.parallel
    params.n_ctx = arguments.context * arguments.parallel
    params.cont_batching = True
    params.cpuparams.n_threads = arguments.threads
    params.cpuparams_batch.n_threads = arguments.threads
    params.n_gpu_layers = 0
    params.hostnames = ["127.0.0.1"]
    params.port = arguments.port
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    while True:
        time.sleep(3600)


async def one_request(port: int, prompt: list[int], output_tokens: int) -> list[float]:
    """Arrival times of the tokens; index 0 is the request's own start."""
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
    ttft = [times[1] - times[0] for times in results]
    tpot = [(times[-1] - times[1]) / (len(times) - 2) for times in results if len(times) > 2]
    generated = sum(len(times) - 1 for times in results)
    return {"wall_seconds": seconds, "num_ok": len(results), "output_tokens": generated,
            "output_tokens_per_second": generated / seconds,
            "ttft_seconds": percentiles(ttft), "tpot_seconds": percentiles(tpot)}


def percentiles(values: list[float]) -> dict:
    ordered = sorted(values)
    return {f"p{p}": ordered[min(len(ordered) - 1, int(p / 100 * len(ordered)))] for p in (50, 90, 99)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("serve")
    command.add_argument("model")
    command.add_argument("--parallel", type=int, default=1)
    command.add_argument("--context", type=int, default=2048, help="tokens a slot")
    command.add_argument("--threads", type=int, default=2)
    command.add_argument("--port", type=int, default=8190)
    command.set_defaults(run=serve)
    command = commands.add_parser("load")
    command.add_argument("--port", type=int, default=8190)
    command.add_argument("--concurrency", type=int, default=1)
    command.add_argument("--num_requests", type=int, default=8)
    command.add_argument("--prompt_tokens", type=int, default=128)
    command.add_argument("--output_tokens", type=int, default=128)
    command.add_argument("--seed", type=int, default=1)
    command.set_defaults(run=lambda arguments: print(json.dumps(asyncio.run(load(arguments)))))
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
