"""Many clients, full queues: every client is served, or told at once when to come back."""

import threading
import unittest

import grpc
from google.rpc import error_details_pb2

import harness
from harness import Client, Streamed, details

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
        with self.assertRaises(grpc.RpcError) as refused:
            self.client.generate(PROMPT, seed=1, max_tokens=length)
        self.assertEqual(refused.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
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
