"""Streams an answer, and resumes it where its connection broke: the texts add up to that of an undisturbed stream."""
import random
import time

import grpc
from google.rpc import error_details_pb2, status_pb2
from quire.v1 import inference_service_pb2 as pb
from quire.v1 import inference_service_pb2_grpc as rpc

TRIES = 5  # in a row without a new token
# A server that restarts is found again soon; by default gRPC waits for up to two minutes.
CHANNEL_OPTIONS = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000)]


def stream(channel, request, timeout=None, tries=TRIES, **call_options):
    """The messages of an answer. Those of one sample make up its text, however often the stream breaks. `timeout`, in
    seconds, is for the whole answer."""
    generate_stream = rpc.InferenceServiceStub(channel).GenerateStream
    given, request = request, pb.GenerateRequest()
    request.CopyFrom(given)
    deadline = None if timeout is None else time.monotonic() + timeout
    request.output.resumable = True
    samples = [{"ids": [], "bytes": 0, "ended": False} for _ in range(request.sampling.n or 1)]
    vain = 0
    while True:
        any_message, last_words = False, []
        left = None if deadline is None else deadline - time.monotonic()
        try:
            for message in generate_stream(request, timeout=left, **call_options):
                any_message = True
                if message.model_digest and not request.resume_model_digest:  # the first message of the first stream
                    request.sampling.seed = message.seed - message.index
                    request.resume_model_digest = message.model_digest
                    request.resume_numerics = message.numerics
                    if message.HasField("resolved"):  # not of an older server
                        request.resume_resolved.CopyFrom(message.resolved)
                # The last words of a sample that was cut short have text that was held back, which a resumed stream
                # sends in its own time.
                if message.finish_reason == pb.FINISH_REASON_ABORT:
                    last_words.append(message)
                    continue
                sample = samples[message.index]
                sample["ids"] += message.token_ids
                sample["bytes"] += len(message.text_delta.encode())
                vain = 0 if message.token_ids else vain
                if sample["ended"]:  # its end is sent again
                    message.ClearField("finish_reason")
                    message.ClearField("stop")
                sample["ended"] = sample["ended"] or message.finish_reason != 0
                yield message
            yield from last_words
            return
        except grpc.RpcError as error:
            broke = error.code() == grpc.StatusCode.UNAVAILABLE
            busy = not any_message and error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED,
                                                        grpc.StatusCode.ALREADY_EXISTS,
                                                        grpc.StatusCode.ABORTED)  # a session is still in its turn
            delay = (retry_delay(error) or min(5, 0.1 * 2 ** vain)) * random.uniform(0.8, 1.2)
            too_late = deadline is not None and time.monotonic() + delay >= deadline
            if not request.resume_model_digest or not (broke or busy) or vain == tries or too_late:
                yield from last_words
                raise
        connecting = grpc.channel_ready_future(channel)  # without it, no thread connects while this one sleeps
        time.sleep(delay)
        connecting.cancel()
        vain += 1
        del request.resume_token_ids[:]
        del request.resume_text_bytes[:]
        for sample in samples:
            request.resume_token_ids.add().ids.extend(sample["ids"])
            request.resume_text_bytes.append(sample["bytes"])


def retry_delay(error) -> float:
    """The seconds that the server asked to wait; 0: it did not."""
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    for detail in status_pb2.Status.FromString(details).details:
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            return retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    return 0
