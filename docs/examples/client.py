"""Streams one answer, and resumes it if the connection breaks.

Usage: client.py 127.0.0.1:8100 "Once upon a time" (set-up: README.md beside this)
"""
import sys

import grpc
import resuming
from quire.v1 import inference_service_pb2 as pb

with grpc.insecure_channel(sys.argv[1], resuming.CHANNEL_OPTIONS) as channel:
    request = pb.GenerateRequest(text=sys.argv[2])
    request.stop.max_tokens = 64
    request.sampling.temperature = 0.7
    for message in resuming.stream(channel, request, timeout=60):
        print(message.text_delta, end="", flush=True)
    print(f"\n{message.usage.completion_tokens} tokens, {message.usage.cached_tokens} of the prompt cached")
