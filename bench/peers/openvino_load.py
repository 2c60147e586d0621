#!/usr/bin/env python3
"""Puts OpenVINO GenAI's continuous batching under the load of `quire bench`, in this process, without a network.

    pip install openvino-genai
    echo '{"concurrency": 8, "num_requests": 8, "prompt_tokens": 128, "output_tokens": 128}' |
        python3 bench/peers/openvino_load.py MODEL.gguf

Reads the model, prints "ready", then answers each line of standard input, a load in JSON, with one line of figures,
until the input ends. The loop is closed, prompts are random token ids, and decoding is greedy, to the last token. It
has its own defaults (an 8-bit KV cache, prefix caching), except 256 tokens a step, with which it is faster here than
with 512.
"""

import argparse
import json
import random
import sys
import time

import numpy
import openvino
import openvino_genai

import figures


class Load:
    def __init__(self, pipeline, shape: dict):
        self._pipeline = pipeline
        self._shape = shape
        self._random = random.Random(shape.get("seed", 1))
        self._num_sent = 0
        self._running = {}
        self._finished = []
        self._config = openvino_genai.GenerationConfig()
        self._config.max_new_tokens = self._config.min_new_tokens = shape["output_tokens"]
        self._config.ignore_eos = True
        self._config.do_sample = False

    def _send(self):
        ids = [self._random.randrange(1000, 40000) for _ in range(self._shape["prompt_tokens"])]
        self._num_sent += 1
        tensor = openvino.Tensor(numpy.array([ids], dtype=numpy.int64))
        sent = time.perf_counter()
        self._running[self._num_sent] = (self._pipeline.add_request(self._num_sent, tensor, self._config), [sent])

    def _collect(self):
        now = time.perf_counter()
        for number, (handle, times) in list(self._running.items()):
            while handle.can_read():
                for output in handle.read().values():
                    times.extend([now] * len(output.generated_ids))
            if len(times) > self._shape["output_tokens"]:
                self._finished.append(times)
                del self._running[number]
                if self._num_sent < self._shape["num_requests"]:
                    self._send()

    def run(self) -> dict:
        begin = time.perf_counter()
        for _ in range(self._shape["concurrency"]):
            self._send()
        while self._running:
            self._pipeline.step()
            self._collect()
        return figures.report(self._finished, time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache_gb", type=int, default=1)
    arguments = parser.parse_args()
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = arguments.cache_gb
    scheduler.max_num_batched_tokens = 256
    scheduler.enable_prefix_caching = True
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        arguments.model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": arguments.threads})
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(Load(pipeline, json.loads(line)).run()), flush=True)


if __name__ == "__main__":
    main()
