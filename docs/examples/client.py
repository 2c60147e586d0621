"""Streams one answer. Usage: client.py 127.0.0.1:8100 "Once upon a time" (set-up: README.md beside this)"""
import sys

import grpc
from quire.v1 import inference_service_pb2 as pb
from quire.v1 import inference_service_pb2_grpc as rpc

with grpc.insecure_channel(sys.argv[1]) as channel:
    request = pb.GenerateRequest(text=sys.argv[2])
    request.stop.max_tokens = 64
    request.sampling.temperature = 0.7
    for message in rpc.InferenceServiceStub(channel).GenerateStream(request, timeout=60):
        print(message.text_delta, end="", flush=True)
    print(f"\n{message.usage.completion_tokens} tokens, {message.usage.cached_tokens} of the prompt cached")
