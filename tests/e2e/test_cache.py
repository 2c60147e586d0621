"""Cached tokens are not computed again, to the token, and are shared only with those who may see them."""

import threading
import unittest

import harness
from harness import Client, Streamed

GREEDY = dict(temperature=0, max_tokens=8, ignore_eos=True, token_ids=True)


def prompt(length: int, first: int = 33) -> list[int]:
    return [first] + [33 + (i * 7) % 60 for i in range(1, length)]


class CacheTest(harness.TestCase):
    def computed(self) -> int:
        return self.client.stats().tokens.prompt_computed

    def test_two_clients_one_prompt(self):
        """The second request computes one token: the one whose logits give the first token of its answer."""
        ids = prompt(2000, first=90)
        before = self.computed()
        first = self.client.generate(ids, **GREEDY)
        between = self.computed()
        self.assertEqual(first.usage.cached_tokens, 0)
        self.assertEqual(between - before, 2000)
        other = Client(self.server.address)
        second = other.generate(ids, **GREEDY)
        other.close()
        self.assertEqual(second.usage.cached_tokens, 1999)
        self.assertEqual(self.computed() - between, 2000 - second.usage.cached_tokens)
        self.assertEqual(second.completions[0].token_ids, first.completions[0].token_ids)

    def test_a_hit_to_any_token(self):
        """Prompts that first differ from a cached one at each position of two blocks."""
        ids = prompt(80, first=91)
        self.client.generate(ids, **GREEDY)
        for shared in range(40, 73):
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
        ids = prompt(1000, first=95)
        before = self.client.stats()
        stream = Streamed(self.client.stream(ids, n=8, seed=1, max_tokens=4, ignore_eos=True))
        after = self.client.stats()
        self.assertEqual(len(stream.samples), 8)
        self.assertEqual(after.tokens.prompt_computed - before.tokens.prompt_computed, 1000)
        self.assertEqual(stream.usage.prompt_tokens, 1000)


class BatchTest(harness.TestCase):
    flags = ("--max_num_batched_tokens", "64", "--max_num_seqs", "32")

    def test_a_request_alone_equals_itself_among_others(self):
        def ask(seed, results):
            results[seed] = Streamed(self.client.stream(prompt(40 + 13 * seed, first=60 + seed), seed=seed,
                                                        max_tokens=60, ignore_eos=True, token_ids=True,
                                                        top_logprobs=2, bypass_read=True))

        alone, together = {}, {}
        for seed in range(32):
            ask(seed, alone)
        before = self.client.stats().sequences.steps
        threads = [threading.Thread(target=ask, args=(seed, together)) for seed in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(harness.DEADLINE)
        self.assertLess(self.client.stats().sequences.steps - before, 32 * 60, "they ran side by side")
        for seed in range(32):
            self.assertEqual(alone[seed].ids, together[seed].ids)
            self.assertEqual([p.SerializeToString() for p in alone[seed].samples[0].logprobs],
                             [p.SerializeToString() for p in together[seed].samples[0].logprobs])


class PreemptionTest(harness.TestCase):
    # The KV cache of 1 MiB has 128 blocks of 16 tokens, at 512 bytes per token in f32. The requests need
    # more.
    flags = ("--kv_cache_mib", "1", "--max_num_seqs", "8", "--max_model_len", "2048")

    def test_what_was_preempted_comes_out_the_same(self):
        options = dict(max_tokens=600, ignore_eos=True, token_ids=True)
        alone = {seed: Streamed(self.client.stream([65] * 10, seed=seed, **options)) for seed in range(8)}
        self.assertEqual(self.client.stats().sequences.preemptions, 0)
        calls = {seed: self.client.stream([65] * 10, seed=seed, **options) for seed in range(8)}
        together = {seed: None for seed in calls}

        def read(seed):
            together[seed] = Streamed(calls[seed])

        threads = [threading.Thread(target=read, args=(seed,)) for seed in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(harness.DEADLINE)
        stats = self.client.stats()
        self.assertGreater(stats.sequences.preemptions, 0)
        self.assertGreater(stats.tokens.recomputed, 0)
        for seed in calls:
            self.assertEqual(together[seed].ids, alone[seed].ids)
        self.assertEqual(sum(t.usage.num_preemptions for t in together.values()), stats.sequences.preemptions)
        self.assertEqual(sum(t.usage.recomputed_tokens for t in together.values()), stats.tokens.recomputed)


if __name__ == "__main__":
    unittest.main(verbosity=2)
