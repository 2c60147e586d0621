"""A cancelled request stops, in any state, and its memory is free."""

import threading
import unittest

import grpc

import harness
from harness import Client, Streamed, cut

PROMPT = "the thing in another hour"
LONG = dict(seed=1, max_tokens=30000, ignore_eos=True)


def wait_until_stalled(client: Client):
    """Waits until every running request is stalled: the count of generated tokens is the same at 50 looks."""
    last, same = -1, 0

    def settled(stats):
        nonlocal last, same
        same = same + 1 if stats.tokens.generated == last else 0
        last = stats.tokens.generated
        return same >= 50

    client.wait_until(settled, "stalled")


class CancelTest(harness.TestCase):
    # The KV cache has room for many long requests, but only two requests run at once.
    flags = ("--max_num_seqs", "2", "--stalled_stream_timeout", "300s")

    def setUp(self):
        self.num_whole = 0  # requests of the test that run to their own end
        self.before = self.client.stats().sequences

    def tearDown(self):
        super().tearDown()
        after = self.client.stats().sequences
        self.assertEqual(after.finished_length - self.before.finished_length, self.num_whole)
        self.assertEqual(after.finished_stop, self.before.finished_stop)

    def start_two(self):
        """Takes both seats with long streams, and returns once both run."""
        calls = [self.client.stream(PROMPT, **LONG, request_id=f"holds-{i}") for i in range(2)]
        for call in calls:
            next(call)
        return calls

    def test_while_it_decodes(self):
        call = self.client.stream(PROMPT, **LONG)
        next(call)
        call.cancel()
        stats = self.client.wait_until_idle()
        self.assertGreater(stats.sequences.finished_abort, 0)

    def test_while_it_waits(self):
        holding = self.start_two()
        waiting = self.client.stream(PROMPT, **LONG)
        self.client.wait_until(lambda s: s.queue.num_waiting == 1, "one waiting")
        waiting.cancel()
        self.client.wait_until(lambda s: s.queue.num_waiting == 0, "none waiting")
        self.assertEqual(self.client.stats().queue.num_running, 2)
        for call in holding:
            call.cancel()

    def test_while_it_prefills(self):
        """A prompt of 30,000 tokens takes many steps; the cancel comes before the first token."""
        for i in range(5):  # this process may not run for as long as the prompt takes
            before = self.client.stats()
            call = self.client.stream([65 + k % 20 for k in range(30000)], max_tokens=1, salt=f"prefill {i}")
            self.client.wait_until(lambda s: s.tokens.prompt_computed > before.tokens.prompt_computed, "computing")
            call.cancel()
            after = self.client.wait_until_idle()
            if after.tokens.prompt_computed - before.tokens.prompt_computed < 30000:
                self.assertEqual(after.tokens.generated, before.tokens.generated)
                return
        self.fail("each prompt was computed to its end")

    def test_before_it_is_admitted(self):
        """Requests are cancelled as soon as they were sent, many times: whatever their state, nothing is left."""
        for _ in range(200):
            self.client.stream(PROMPT, **LONG).cancel()

    def test_while_its_reader_does_not_read(self):
        slow = Client(self.server.address, options=harness.NARROW)
        call = slow.stream(PROMPT, **LONG, top_logprobs=20)
        first = self.client.wait_until(lambda s: s.queue.num_running == 1 and s.blocks.held > 1, "running")
        # The stream stalls when its send buffer and the buffers of the connection are full. Then no step
        # runs.
        wait_until_stalled(self.client)
        self.assertGreater(self.client.stats().blocks.held, 0)
        call.cancel()
        self.client.wait_until_idle()
        slow.close()
        self.assertGreater(first.blocks.held, 0)

    def test_all_samples_of_one_request(self):
        call = self.client.stream(PROMPT, **LONG, n=2)
        seen = set()
        while seen != {0, 1}:
            seen.add(next(call).index)
        call.cancel()

    def test_a_closed_connection(self):
        gone = Client(self.server.address)
        call = gone.stream(PROMPT, **LONG)
        next(call)
        gone.close()
        self.client.wait_until_idle()

    def test_unary_requests_too(self):
        future = self.client.inference.Generate.future(harness.make_request(PROMPT, **LONG))  # no deadline
        self.client.wait_until(lambda s: s.queue.num_running == 1, "running")
        future.cancel()
        self.client.wait_until_idle()

    def test_past_its_deadline(self):
        for call in (lambda: self.client.generate(PROMPT, timeout=0.2, **LONG),
                     lambda: list(self.client.stream(PROMPT, timeout=0.2, **LONG))):
            self.assert_status(grpc.StatusCode.DEADLINE_EXCEEDED, call)
            self.client.wait_until_idle()

    def test_past_its_deadline_while_it_waits(self):
        holding = self.start_two()
        self.assert_status(grpc.StatusCode.DEADLINE_EXCEEDED,
                           lambda: self.client.generate(PROMPT, timeout=0.2, **LONG))
        self.client.wait_until(lambda s: s.queue.num_waiting == 0, "none waiting")
        for call in holding:
            call.cancel()

    def test_abort_ends_it_with_cancelled(self):
        for wait in (False, True):
            with self.subTest(while_it_waits=wait):
                holding = self.start_two() if wait else []
                call = self.client.stream(PROMPT, **LONG, request_id="to-abort")
                if wait:
                    self.client.wait_until(lambda s: s.queue.num_waiting == 1, "waiting")
                else:
                    next(call)
                self.client.abort("to-abort")
                self.assert_status(grpc.StatusCode.CANCELLED, lambda: list(call))
                for held in holding:
                    held.cancel()
                self.client.wait_until_idle()
        self.assert_status(grpc.StatusCode.NOT_FOUND, lambda: self.client.abort("to-abort"))

    def test_one_of_several_stops_alone(self):
        self.num_whole = 2
        length = cut(1000, 200)
        keep = self.client.stream(PROMPT, seed=5, max_tokens=length, ignore_eos=True, token_ids=True)
        drop = self.client.stream(PROMPT, **LONG)
        next(keep), next(drop)
        drop.cancel()
        kept = Streamed(keep)
        alone = self.client.generate(PROMPT, seed=5, max_tokens=length, ignore_eos=True, token_ids=True)
        # The first message of `keep` was read above.
        self.assertEqual(kept.ids, list(alone.completions[0].token_ids)[length - len(kept.ids):])
        self.assertGreater(len(kept.ids), length * 0.6)


class StalledReaderTest(harness.TestCase):
    flags = ("--stalled_stream_timeout", "300s", "--max_num_seqs", "4")

    def test_a_reader_that_never_reads_keeps_nobody_from_finishing(self):
        options = dict(max_tokens=3000, ignore_eos=True, token_ids=True, top_logprobs=20)
        deaf = Client(self.server.address, options=harness.NARROW)
        self.addCleanup(deaf.close)
        stalled = [deaf.stream(PROMPT, seed=seed, **options) for seed in range(3)]
        self.client.wait_until(lambda s: s.queue.num_running == 3, "running")
        wait_until_stalled(self.client)
        self.assertLess(self.client.stats().tokens.generated, 3 * 3000)
        answers = {}

        def ask(seed):
            answers[seed] = Streamed(self.client.stream(PROMPT, seed=seed, max_tokens=500, ignore_eos=True))

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(harness.DEADLINE)
        self.assertEqual(sorted(answers), list(range(8)))
        self.assertTrue(all(answer.usage.completion_tokens == 500 for answer in answers.values()))
        # The stalled readers read at last, and no token is missing.
        for seed, call in enumerate(stalled):
            late = Streamed(call)
            self.assertEqual(len(late.ids), 3000)
            alone = self.client.generate(PROMPT, seed=seed, **{**options, "max_tokens": 1000})
            self.assertEqual(late.ids[:1000], list(alone.completions[0].token_ids))


class StalledTimeoutTest(harness.TestCase):
    flags = ("--stalled_stream_timeout", "2s")

    def setUp(self):
        self.aborted = self.client.stats().sequences.finished_abort
        self.deaf = Client(self.server.address, options=harness.NARROW)
        self.addCleanup(self.deaf.close)
        self.call = self.deaf.stream(PROMPT, **LONG, top_logprobs=20)
        self.client.wait_until(lambda s: s.sequences.finished_abort > self.aborted, "ended")

    def test_a_reader_that_wakes_up_is_told_why_it_was_ended(self):
        error = self.assert_status(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: list(self.call))
        self.assertIn("reader", error.details())

    def test_one_that_does_not_is_cut_off(self):
        self.server.wait_for_log(r"rpc: GenerateStream .*RESOURCE_EXHAUSTED")
        self.client.wait_until_idle()


if __name__ == "__main__":
    unittest.main(verbosity=2)
