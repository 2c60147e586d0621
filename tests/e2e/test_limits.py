"""Many clients, full queues: every client is served, or told at once when to come back."""

import threading
import unittest

import grpc
from google.rpc import error_details_pb2

import harness
from harness import Client, Streamed, details, pb

PROMPT = "the thing in another hour"
LONG = dict(seed=1, max_tokens=30000, ignore_eos=True)


class ManyClientsTest(harness.TestCase):
    # The KV cache has room for eight of the 64 requests.
    flags = ("--kv_cache_mib", "1", "--max_num_seqs", "64", "--max_model_len", "2048")

    def test_64_clients_at_once(self):
        results, errors = {}, []
        start = threading.Barrier(64)

        def work(seed):
            client = Client(self.server.address)
            try:
                start.wait(harness.DEADLINE)
                call = client.stream(PROMPT, seed=seed, max_tokens=150, ignore_eos=True, token_ids=True)
                if seed % 8 == 7:  # some disconnect half way
                    next(call)
                    call.cancel()
                else:
                    results[seed] = Streamed(call)
            except Exception as error:  # noqa: BLE001: shown below, with its thread's number
                errors.append((seed, error))
            finally:
                client.close()

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(harness.DEADLINE)
        self.assertEqual(errors, [])
        self.assertEqual(len(results), 56)
        self.assertTrue(all(len(result.ids) == 150 for result in results.values()))
        self.client.wait_until_idle()
        self.assertGreater(self.client.stats().sequences.preemptions, 0)
        for seed in (0, 30, 60):
            alone = Streamed(self.client.stream(PROMPT, seed=seed, max_tokens=150, ignore_eos=True, token_ids=True))
            self.assertEqual(results[seed].ids, alone.ids)


class FullQueueTest(harness.TestCase):
    flags = ("--max_num_seqs", "1", "--max_queue", "2")

    def test_a_full_queue_refuses_at_once_and_says_when_to_retry(self):
        running = self.client.stream(PROMPT, **LONG)
        next(running)
        waiting = [self.client.stream(PROMPT, **LONG) for _ in range(2)]
        self.client.wait_until(lambda s: s.queue.num_waiting == 2, "two waiting")
        for call in (lambda: self.client.generate(PROMPT, **LONG), lambda: list(self.client.stream(PROMPT, **LONG))):
            error = self.assert_status(grpc.StatusCode.RESOURCE_EXHAUSTED, call)
            retry = details(error, error_details_pb2.RetryInfo)
            self.assertGreater(retry.retry_delay.ToTimedelta().total_seconds(), 0)
        self.assertGreaterEqual(self.client.stats().sequences.requests_rejected, 2)
        for call in (running, *waiting):
            call.cancel()
        self.client.wait_until_idle()
        self.client.generate(PROMPT, max_tokens=1)  # there is room again


class SmallCacheTest(harness.TestCase):
    flags = ("--kv_cache_mib", "1", "--max_model_len", "8192")

    def test_what_can_never_fit_is_refused_with_the_numbers(self):
        info = self.client.server_info()
        room = info.num_blocks * info.block_size
        self.assertLess(room, 8192)
        for options in (dict(max_tokens=room), dict(max_tokens=room // 2, n=4)):
            error = self.assert_status(grpc.StatusCode.INVALID_ARGUMENT,
                                       lambda: self.client.generate([65] * 10, ignore_eos=True, **options))
            self.assertIn(str(room), error.details())
            violation = details(error, error_details_pb2.BadRequest).field_violations[0]
            self.assertEqual(violation.field, "stop.max_tokens")

    def test_the_longest_that_fits_ends(self):
        info = self.client.server_info()
        room = info.num_blocks * info.block_size
        answer = self.client.generate([65] * 10, max_tokens=room - 10 - info.block_size, ignore_eos=True, seed=1)
        self.assertEqual(answer.usage.completion_tokens, room - 10 - info.block_size)


class EndlessTest(harness.TestCase):
    flags = ("--max_model_len", "128")

    def test_a_cache_window_goes_on_past_the_served_context_in_bounded_memory(self):
        options = dict(seed=1, ignore_eos=True, token_ids=True, sink_tokens=4, window_tokens=64)
        length = harness.cut(1000, 250)
        ids = list(self.client.generate(PROMPT, max_tokens=length, **options).completions[0].token_ids)
        self.assertEqual(len(ids), length)
        call = self.client.stream(PROMPT, **options)  # without an end
        read = []
        for message in call:
            read += message.token_ids
            self.assertLessEqual(self.client.stats().blocks.held, (16 + 2 * 64) // 16)
            if len(read) > length * 0.9:
                break
        call.cancel()
        self.client.wait_until_idle()
        common = min(len(read), length)
        self.assertEqual(read[:common], ids[:common])


class BoundTest(harness.TestCase):
    flags = ("--max_model_len", "128")

    def test_more_tokens_than_the_context_leaves_is_a_bound(self):
        prompt = [65] * 100
        answer = self.client.generate(prompt, max_tokens=1000, ignore_eos=True, token_ids=True).completions[0]
        self.assertEqual((len(answer.token_ids), answer.finish_reason), (28, pb.FINISH_REASON_LENGTH))
        stream = list(self.client.stream(prompt, max_tokens=1000, ignore_eos=True, seed=3, temperature=0.5))
        self.assertEqual([message.HasField("resolved") for message in stream],
                         [i == 0 for i in range(len(stream))])
        resolved = stream[0].resolved
        self.assertEqual((resolved.max_tokens, resolved.sampling.temperature, resolved.sampling.seed), (28, 0.5, 3))
        batch = pb.GenerateBatchRequest(requests=[harness.make_request(prompt, max_tokens=1000, ignore_eos=True)])
        answer, = self.client.inference.GenerateBatch(batch)
        self.assertEqual(answer.response.usage.completion_tokens, 28)
        for options in (dict(min_tokens=29), dict(min_tokens=29, max_tokens=1000)):
            error = self.assert_status(grpc.StatusCode.INVALID_ARGUMENT,
                                       lambda: self.client.generate(prompt, **options))
            self.assertIn("stop.min_tokens: want at most 28", error.details())
        self.assert_status(grpc.StatusCode.INVALID_ARGUMENT, lambda: self.client.generate([65] * 128, max_tokens=1000))


class AnswerSizeTest(harness.TestCase):
    flags = ("--max_answer_mib", "1")
    # At least 190 bytes a token of each sample, 1.2 MB in all.
    large = dict(n=16, max_tokens=400, top_logprobs=20, seed=1)

    def test_an_answer_that_grows_beyond_it_ends_and_a_stream_does_not(self):
        uncertain = dict(self.large, ignore_eos=True, stop=["a text that never comes"])
        error = self.assert_status(grpc.StatusCode.RESOURCE_EXHAUSTED,
                                   lambda: self.client.generate(PROMPT, request_id="large", **uncertain))
        self.assertIn("max_answer_mib", error.details())
        self.assertIn("stream this", error.details())
        self.assertIsNone(details(error, error_details_pb2.RetryInfo))
        self.server.wait_for_log('rpc: Generate request_id="large".*code="RESOURCE_EXHAUSTED"')
        batch = pb.GenerateBatchRequest(requests=[harness.make_request(PROMPT, **uncertain),
                                                  harness.make_request(PROMPT, max_tokens=1)])
        answers = {answer.index: answer for answer in self.client.inference.GenerateBatch(batch)}
        self.assertEqual(answers[0].error.code, grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
        self.assertEqual(answers[1].response.usage.completion_tokens, 1)
        messages = list(self.client.stream(PROMPT, **uncertain))
        self.assertGreater(sum(message.ByteSize() for message in messages), 1 << 20)
        self.assertEqual(messages[-1].usage.completion_tokens, 16 * 400)
        # The count is that of the message, but for some bytes.
        fits = self.client.generate(PROMPT, **dict(uncertain, n=10))
        self.assertLess(fits.ByteSize(), 1 << 20)
        self.assertGreater(fits.ByteSize(), 750_000)

    def test_what_is_certain_to_exceed_it_is_refused_before_the_work(self):
        self.client.generate(PROMPT, max_tokens=1)
        before = self.client.stats().sequences.steps
        for field, call in (
                ("stop.max_tokens", lambda: self.client.generate(PROMPT, **dict(self.large, max_tokens=450,
                                                                                ignore_eos=True))),
                ("stop.min_tokens", lambda: self.client.generate(PROMPT, **dict(self.large, max_tokens=450,
                                                                                min_tokens=450))),
                ("output.prompt_logprobs", lambda: self.client.generate([65] * 8000, prompt_logprobs=20,
                                                                        max_tokens=1))):
            error = self.assert_status(grpc.StatusCode.INVALID_ARGUMENT, call)
            self.assertIn("max_answer_mib", error.details())
            self.assertEqual(details(error, error_details_pb2.BadRequest).field_violations[0].field, field)
        self.assertEqual(self.client.stats().sequences.steps, before)

    def test_many_tokens_of_a_text(self):
        self.client.tokenize("a" * 1000)
        error = self.assert_status(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: self.client.tokenize("aq" * 200_000))
        self.assertIn("max_answer_mib", error.details())


class StreamsTest(harness.TestCase):
    flags = ("--max_concurrent_streams", "1")

    def test_a_connection_has_no_more_calls_than_it_may(self):
        call = self.client.stream(PROMPT, **LONG)
        next(call)
        # gRPC's client holds the second call back until the first has ended. The second call's deadline
        # passes before that.
        self.assert_status(grpc.StatusCode.DEADLINE_EXCEEDED,
                           lambda: self.client.generate(PROMPT, timeout=0.5, max_tokens=1))
        other = Client(self.server.address)
        other.generate(PROMPT, max_tokens=1)
        other.close()
        call.cancel()
        self.client.generate(PROMPT, max_tokens=1)


class MessageSizeTest(harness.TestCase):
    flags = ("--max_prompt_bytes", "2000", "--max_message_bytes", "4096")

    def test_a_text_beyond_the_limit_is_refused(self):
        error = self.assert_status(grpc.StatusCode.INVALID_ARGUMENT,
                                   lambda: self.client.generate("a" * 2001, max_tokens=1))
        self.assertIn("2000", error.details())
        self.client.generate("a" * 2000, max_tokens=1)

    def test_a_message_beyond_the_limit_is_refused(self):
        self.assert_status(grpc.StatusCode.RESOURCE_EXHAUSTED,
                           lambda: self.client.generate("a" * 5000, max_tokens=1))


if __name__ == "__main__":
    unittest.main(verbosity=2)
