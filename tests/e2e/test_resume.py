"""Servers that are killed under their streams: each answer is that of an undisturbed server, to the byte.

QUIRE_RESUME_ROUNDS is the number of kills; CI takes a few.
"""

import json
import os
import random
import signal
import subprocess
import threading
import time
import unittest

import grpc

import harness
import resuming
from harness import Client, Server, make_request, pb

ROUNDS = int(os.environ.get("QUIRE_RESUME_ROUNDS", 4))
NUM_STREAMS = 16
NUM_TOKENS = 300
TRIES = 30  # a restart takes seconds on a machine that is busy


def requests() -> list[pb.GenerateRequest]:
    """Greedy and sampled ones, with one sample and with two, some with penalties, stop strings and echo."""
    all = []
    for i in range(NUM_STREAMS):
        options = {"max_tokens": NUM_TOKENS, "min_tokens": 200, "ignore_eos": i % 4 == 0, "seed": 100 + i,
                   "temperature": 0.0 if i % 2 == 0 else 0.9, "n": 2 if i % 8 == 3 else 1}
        if i % 3 == 1:
            options |= {"repetition_penalty": 1.2, "presence_penalty": 0.3, "penalty_last_n": 40}
        if i % 4 == 1:
            options |= {"stop": ["the ", "q"], "echo": True}
        all.append(make_request([65 + (7 * i + 3 * j) % 26 for j in range(10 + i)], **options))
    return all


class Answer(threading.Thread):
    """Reads one stream, and resumes it when it breaks."""

    def __init__(self, address: str, request: pb.GenerateRequest):
        super().__init__()
        self.client = Client(address, options=resuming.CHANNEL_OPTIONS)
        self.request, self.error, self.has_begun = request, None, False
        self.texts = [""] * (request.sampling.n or 1)
        self.ids = [[] for _ in self.texts]
        self.ends: list = [None] * len(self.texts)
        self.start()

    def run(self):
        try:
            for message in resuming.stream(self.client.channel, self.request, timeout=harness.DEADLINE,
                                           tries=TRIES):
                self.has_begun = True
                self.texts[message.index] += message.text_delta
                self.ids[message.index] += message.token_ids
                if message.finish_reason:
                    assert self.ends[message.index] is None, "a second end"
                    self.ends[message.index] = (message.finish_reason, str(message.stop))
        except Exception as error:  # shown by the test
            self.error = error
        finally:
            self.client.close()

    def result(self):
        self.join()
        if self.error is not None:
            raise self.error
        return self.texts, self.ids, self.ends


class KillTest(unittest.TestCase):
    def start(self, *flags, **options) -> Server:
        server = Server(*flags, **options)
        self.addCleanup(lambda: server.poll() is None and server.stop())
        return server.ready()

    def test_text_equals_an_undisturbed_run(self):
        server = self.start()
        address = server.address
        want = [Answer(address, request).result() for request in requests()]
        draw = random.Random(15)
        num_resumed, num_streams = 0, 0
        for round in range(ROUNDS):
            answers = [Answer(address, request) for request in requests()]
            kill_at = draw.uniform(0.02, 0.7) * NUM_STREAMS * NUM_TOKENS
            # A stream that has not begun has nothing to go on with.
            while (not all(answer.has_begun for answer in answers)
                   or sum(len(ids) for answer in answers for ids in answer.ids) < kill_at):
                self.assertTrue(any(answer.is_alive() for answer in answers))
                time.sleep(0.002)
            server.signal(signal.SIGKILL)
            server.wait()
            server = self.start(listen=address)
            got = [answer.result() for answer in answers]
            for i, (one, other) in enumerate(zip(got, want)):
                self.assertEqual(one, other, f"round {round}, stream {i}")
            resumed = server.metrics()['quire_resumes_total{result="resumed"}']
            num_resumed += int(resumed)
            num_streams += len(got)
        # On a busy machine all streams of a round may have ended before the kill.
        self.assertGreater(num_resumed, 0)
        print(f"{ROUNDS} of {ROUNDS} kills: {num_streams} streams, {num_resumed} of them resumed, all texts equal")
        self.assertEqual(server.stop(), 0)

    def test_quire_goes_on_by_itself(self):
        for _ in range(1 + ROUNDS // 10):
            self.kill_under_quire()

    def kill_under_quire(self):
        server = self.start()
        address = server.address
        arguments = ("--server", address, "--token_ids", "70,71,72,73", "--max_tokens", "400", "--ignore_eos",
                     "--seed", "5", "--resume_tries", str(TRIES))
        undisturbed = harness.run_cli("generate", *arguments)
        self.assertEqual(undisturbed.returncode, 0, undisturbed.stderr)
        # The client is slow, and the server waits for it, so the kill finds a stream.
        window = ("--json", "--logprobs", "20")
        process = subprocess.Popen([str(harness.BIN / "quire"), "generate", *arguments, *window],
                                   stdout=subprocess.PIPE, text=True, env=harness.child_environment())
        self.addCleanup(process.wait)
        self.addCleanup(process.stdout.close)
        messages = [json.loads(process.stdout.readline()) for _ in range(5)]
        server.signal(signal.SIGKILL)
        server.wait()
        server = self.start(listen=address)
        messages += harness.json_lines(process.stdout.read())
        self.assertEqual(process.wait(), 0)
        self.assertEqual("".join(message.get("text_delta", "") for message in messages) + "\n",
                         undisturbed.stdout)
        self.assertEqual(sum(len(message.get("logprobs", ())) for message in messages), 400)
        self.assertEqual(server.stop(), 0)


class RefusalTest(harness.TestCase):
    flags = ("--max_model_len", "128")

    def first_message(self, **options):
        call = self.client.stream([65, 66, 67], max_tokens=8, resumable=True, ignore_eos=True, **options)
        messages = list(call)
        return messages[0], messages[1:]

    def resume(self, **changes):
        first, _ = self.first_message(seed=9)
        request = make_request([65, 66, 67], max_tokens=8, ignore_eos=True, seed=9, temperature=1.0)
        request.resume_token_ids.add()
        request.resume_text_bytes.append(0)
        request.resume_model_digest = first.model_digest
        request.resume_numerics = first.numerics
        for name, value in changes.items():
            setattr(request, name, value)
        return self.client.inference.Generate(request, timeout=harness.DEADLINE)

    def test_the_first_message_has_what_a_resume_needs(self):
        info = self.client.server_info()
        self.assertRegex(info.model_digest, "^[0-9a-f]{64}$")
        self.assertTrue(info.answer_numerics.startswith(info.numerics + ",kv="))
        first, rest = self.first_message(seed=9)
        self.assertEqual((first.seed, first.model_digest, first.numerics),
                         (9, info.model_digest, info.answer_numerics))
        self.assertEqual(len(first.token_ids) + sum(len(message.token_ids) for message in rest), 8)
        self.assertFalse(any(message.model_digest for message in rest))
        answer = self.client.generate([65], max_tokens=1)
        self.assertEqual((answer.model_digest, answer.numerics), (info.model_digest, info.answer_numerics))

    def test_what_was_resolved_is_sent_back_and_served(self):
        context = self.client.model_info().max_model_len
        prompt, bound = [65] * (context - 20), 1000
        first = next(self.client.stream(prompt, max_tokens=bound, resumable=True, ignore_eos=True, seed=9,
                                        temperature=0.7))
        self.assertEqual(first.resolved.max_tokens, 20)
        request = make_request(prompt, max_tokens=bound, ignore_eos=True, token_ids=True)
        request.resume_token_ids.add()
        request.resume_text_bytes.append(0)
        request.resume_model_digest, request.resume_numerics = first.model_digest, first.numerics
        request.resume_resolved.CopyFrom(first.resolved)
        served = self.client.inference.Generate(request, timeout=harness.DEADLINE).completions[0]
        whole = self.client.generate(prompt, max_tokens=bound, ignore_eos=True, token_ids=True, seed=9,
                                     temperature=0.7).completions[0]
        self.assertEqual((served.token_ids, served.text), (whole.token_ids, whole.text))
        request.resume_resolved.max_tokens = 21
        error = self.assert_status(grpc.StatusCode.FAILED_PRECONDITION,
                                   lambda: self.client.inference.Generate(request, timeout=harness.DEADLINE))
        self.assertIn("ran with 21 tokens", error.details())
        self.assertIn("leaves 20", error.details())

    def test_nothing_given_begins_anew(self):
        self.assertEqual(len(self.resume().completions), 1)

    def test_another_model_or_arithmetic(self):
        for name in ("resume_model_digest", "resume_numerics"):
            error = self.assert_status(grpc.StatusCode.FAILED_PRECONDITION, lambda: self.resume(**{name: "other"}))
            self.assertIn(name, error.details())
        self.assertEqual(self.server.metrics()['quire_resumes_total{result="mismatch"}'], 2)

    def test_no_entries_for_the_other_fields(self):
        request = make_request([65], seed=9)
        request.resume_numerics = "cpu-2"
        error = self.assert_status(grpc.StatusCode.INVALID_ARGUMENT,
                                   lambda: self.client.inference.Generate(request, timeout=harness.DEADLINE))
        self.assertIn("resume_token_ids", error.details())


if __name__ == "__main__":
    unittest.main()
