"""Cached tokens are not computed again, to the token, and are shared only with those who may see them."""

import concurrent.futures
import threading
import unittest

import harness
from harness import Client, Streamed, cut

GREEDY = dict(temperature=0, max_tokens=8, ignore_eos=True, token_ids=True)


def prompt(length: int, first: int = 33) -> list[int]:
    return [first] + [33 + (i * 7) % 60 for i in range(1, length)]


class CacheTest(harness.TestCase):
    def computed(self) -> int:
        return self.client.stats().tokens.prompt_computed

    def test_two_clients_one_prompt(self):
        """The second request computes one token: the one whose logits give the first token of its answer."""
        length = cut(2000, 300)
        ids = prompt(length, first=90)
        before = self.computed()
        first = self.client.generate(ids, **GREEDY)
        between = self.computed()
        self.assertEqual(first.usage.cached_tokens, 0)
        self.assertEqual(between - before, length)
        other = Client(self.server.address)
        second = other.generate(ids, **GREEDY)
        other.close()
        self.assertEqual(second.usage.cached_tokens, length - 1)
        self.assertEqual(self.computed() - between, length - second.usage.cached_tokens)
        self.assertEqual(second.completions[0].token_ids, first.completions[0].token_ids)

    def test_a_hit_to_any_token(self):
        """Prompts that first differ from a cached one at each position of two blocks, or at every fourth."""
        ids = prompt(80, first=91)
        self.client.generate(ids, **GREEDY)
        for shared in range(40, 73, cut(1, 4)):
            branch = ids[:shared] + [100 + shared % 20] * 10
            before = self.computed()
            answer = self.client.generate(branch, **GREEDY)
            self.assertEqual(answer.usage.cached_tokens, shared, "the hit is to the token")
            self.assertEqual(self.computed() - before, len(branch) - shared)
            plain = self.client.generate(branch, **GREEDY, bypass_read=True)
            self.assertEqual(plain.usage.cached_tokens, 0)
            self.assertEqual(answer.completions[0].token_ids, plain.completions[0].token_ids)

    def test_what_was_generated_is_cached_too(self):
        """The next turn of a conversation computes only the new question."""
        ids = prompt(50, first=92)
        answer = list(self.client.generate(ids, **GREEDY).completions[0].token_ids)
        turn = ids + answer + [70, 71, 72]
        usage = self.client.generate(turn, **GREEDY).usage
        # The last token of the answer was never an input of the model, so it has no K and V yet.
        self.assertEqual(usage.cached_tokens, len(ids) + len(answer) - 1)

    def test_a_flush_forgets_everything(self):
        ids = prompt(100, first=97)
        first = self.client.generate(ids, **GREEDY)
        self.client.wait_until(lambda stats: stats.blocks.cached >= 7, "cached")
        self.assertGreaterEqual(self.client.flush(), 7)
        self.assertEqual(self.client.stats().blocks.cached, 0)
        second = self.client.generate(ids, **GREEDY)
        self.assertEqual(second.usage.cached_tokens, 0)
        self.assertEqual(second.completions[0].token_ids, first.completions[0].token_ids)
        self.assertEqual(self.client.generate(ids, **GREEDY).usage.cached_tokens, 99)

    def test_salt_and_tenant_are_walls(self):
        ids = prompt(100, first=93)
        self.client.generate(ids, **GREEDY, salt="one")
        for options, cached in [(dict(salt="one"), 99), (dict(salt="two"), 0), (dict(), 0),
                                (dict(salt="one", tenant="t"), 0), (dict(tenant="one"), 0),
                                (dict(salt="one", tenant="t"), 99)]:
            usage = self.client.generate(ids, **GREEDY, **options).usage
            self.assertEqual(usage.cached_tokens, cached, options)

    def test_bypass_write_leaves_nothing(self):
        ids = prompt(100, first=94)
        self.client.generate(ids, **GREEDY, bypass_write=True)
        self.assertEqual(self.client.generate(ids, **GREEDY).usage.cached_tokens, 0)

    def test_samples_share_the_prompt(self):
        length = cut(1000, 300)
        ids = prompt(length, first=95)
        before = self.client.stats()
        stream = Streamed(self.client.stream(ids, n=8, seed=1, max_tokens=4, ignore_eos=True))
        after = self.client.stats()
        self.assertEqual(len(stream.samples), 8)
        self.assertEqual(after.tokens.prompt_computed - before.tokens.prompt_computed, length)
        self.assertEqual(stream.usage.prompt_tokens, length)


class BatchTest(harness.TestCase):
    NUM_REQUESTS, NUM_TOKENS = cut(32, 8), cut(60, 30)
    flags = ("--max_num_batched_tokens", "64", "--max_num_seqs", str(NUM_REQUESTS))

    def test_a_request_alone_equals_itself_among_others(self):
        def ask(seed, results):
            results[seed] = Streamed(self.client.stream(prompt(40 + 13 * seed, first=60 + seed), seed=seed,
                                                        max_tokens=self.NUM_TOKENS, ignore_eos=True, token_ids=True,
                                                        top_logprobs=2, bypass_read=True))

        alone, together = {}, {}
        for seed in range(self.NUM_REQUESTS):
            ask(seed, alone)
        before = self.client.stats().sequences.steps
        threads = [threading.Thread(target=ask, args=(seed, together)) for seed in range(self.NUM_REQUESTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(harness.DEADLINE)
        self.assertLess(self.client.stats().sequences.steps - before, self.NUM_REQUESTS * self.NUM_TOKENS,
                        "they ran side by side")
        for seed in range(self.NUM_REQUESTS):
            self.assertEqual(alone[seed].ids, together[seed].ids)
            self.assertEqual([p.SerializeToString() for p in alone[seed].samples[0].logprobs],
                             [p.SerializeToString() for p in together[seed].samples[0].logprobs])


class PreemptionTest(harness.TestCase):
    flags = ("--kv_cache_mib", "1", "--max_num_seqs", "8", "--max_model_len", "2048")

    def test_what_was_preempted_comes_out_the_same(self):
        """The prompts of eight requests fit into the cache together, and their answers do not."""
        info = self.client.server_info()
        room = info.num_blocks * info.block_size // 8
        num_given, num_generated = cut(10, room // 2), cut(600, room // 2 + 24)

        def answers(seeds) -> dict[int, Streamed]:
            calls = {seed: self.client.stream(prompt(num_given, first=60 + seed), seed=seed, max_tokens=num_generated,
                                              ignore_eos=True, token_ids=True) for seed in seeds}
            with concurrent.futures.ThreadPoolExecutor(len(calls)) as readers:
                return dict(zip(calls, readers.map(Streamed, calls.values())))

        fits = cut(1, 4)  # so many answers at a time
        whole = {}
        for first in range(0, 8, fits):
            whole |= answers(range(first, first + fits))
        self.assertEqual(self.client.stats().sequences.preemptions, 0)
        together = answers(range(8))
        stats = self.client.stats()
        self.assertGreater(stats.sequences.preemptions, 0)
        self.assertGreater(stats.tokens.recomputed, 0)
        for seed, answer in together.items():
            self.assertEqual(answer.ids, whole[seed].ids)
        self.assertEqual(sum(t.usage.num_preemptions for t in together.values()), stats.sequences.preemptions)
        self.assertEqual(sum(t.usage.recomputed_tokens for t in together.values()), stats.tokens.recomputed)


if __name__ == "__main__":
    unittest.main(verbosity=2)
