"""Score: continuations of one prompt, compared with what Generate returns for the same tokens."""

import threading
import unittest

import grpc

import harness
from harness import json_lines, pb, run_cli


def prompt(length: int, first: int) -> list[int]:
    return [first] + [33 + (i * 7) % 60 for i in range(1, length)]


def continuations(texts_or_ids) -> list[pb.Continuation]:
    return [pb.Continuation(text=item) if isinstance(item, str)
            else pb.Continuation(token_ids=pb.TokenIds(ids=item)) for item in texts_or_ids]


class ScoreTest(harness.TestCase):
    def score(self, prompt, items, timeout: float = harness.DEADLINE, **options) -> pb.ScoreResponse:
        request = pb.ScoreRequest(continuations=continuations(items), **options)
        if isinstance(prompt, str):
            request.text = prompt
        else:
            request.token_ids.ids.extend(prompt)
        return self.client.inference.Score(request, timeout=timeout)

    def reference(self, ids: list[int], continuation: list[int]) -> list[tuple[float, bool]]:
        """For each token: its log probability, and whether it is the likeliest."""
        answer = self.client.generate(ids + continuation, max_tokens=1, prompt_logprobs=1)
        return [(position.chosen.logprob, position.top[0].token_id == position.chosen.token_id)
                for position in answer.prompt_logprobs[-len(continuation):]]

    def test_the_numbers_are_those_of_the_whole_text(self):
        ids = prompt(200, first=90)
        items = [[65], [66, 67, 68], prompt(70, first=40)]
        before = self.client.stats()
        response = self.score(ids, items)
        after = self.client.stats()
        self.assertEqual(after.tokens.prompt_computed - before.tokens.prompt_computed, 200)
        self.assertEqual(after.tokens.scored - before.tokens.scored, 74)
        self.assertGreater(after.sequences.block_copies, before.sequences.block_copies)
        self.assertEqual(after.blocks.held, before.blocks.held)
        self.assertEqual((response.usage.prompt_tokens, response.usage.completion_tokens), (200, 74))
        for score, item in zip(response.scores, items, strict=True):
            self.assertEqual([token.token_id for token in score.tokens], item)
            self.assertEqual([(token.logprob, token.is_greedy) for token in score.tokens], self.reference(ids, item))
            self.assertAlmostEqual(score.logprob, sum(token.logprob for token in score.tokens), places=9)
        again = self.score(ids, items)
        self.assertEqual(again.usage.cached_tokens, 199)
        self.assertEqual(again.scores, response.scores)

    def test_greedy_text_is_greedy(self):
        text = "the thing in another hour"
        ids = self.client.tokenize(text)
        greedy = list(self.client.generate(ids, temperature=0, max_tokens=6, ignore_eos=True,
                                           token_ids=True).completions[0].token_ids)
        other = [*greedy[:3], (greedy[3] + 1) % 250, *greedy[4:]]
        scores = self.score(ids, [greedy, other]).scores
        self.assertTrue(scores[0].is_greedy)
        self.assertFalse(scores[1].is_greedy)
        self.assertEqual([token.is_greedy for token in scores[1].tokens[:4]], [True, True, True, False])

    def test_a_text_has_the_tokens_that_follow_the_prompts(self):
        text, more = "the thing", " in another hour"
        wanted = self.client.tokenize(text + more)[len(self.client.tokenize(text)):]
        score = self.score(text, [more]).scores[0]
        self.assertEqual([token.token_id for token in score.tokens], wanted)

    def test_refusals_name_the_field(self):
        for items, field in (([], "continuations"), ([[]], "continuations[0]"), ([[65], [10**6]], "continuations[1]"),
                             ([[65]] * 65, "continuations")):
            with self.assertRaises(grpc.RpcError) as raised:
                self.score([65, 66], items)
            self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
            self.assertTrue(raised.exception.details().startswith(field), raised.exception.details())

    def test_a_dropped_call_frees_everything(self):
        # The request is long, so that it cannot end while the operating system does not run this process.
        request = pb.ScoreRequest(continuations=continuations([prompt(harness.cut(6000, 1000), first=i) for i in range(40, 40 + harness.cut(20, 6))]))
        request.token_ids.ids.extend(prompt(400, first=99))
        call = self.client.inference.Score.future(request)
        self.client.wait_until(lambda stats: stats.queue.num_running > 1, "forked")
        call.cancel()
        stats = self.client.wait_until_idle()
        self.assertLess(stats.tokens.scored, 20 * 6000)

    def test_scores_beside_generation_are_the_same(self):
        ids, items = prompt(120, first=98), [prompt(40, first=i) for i in range(40, 48)]
        alone = self.score(ids, items).scores
        threads = [threading.Thread(target=self.client.generate, args=(prompt(100, first=i),),
                                    kwargs=dict(max_tokens=60, ignore_eos=True)) for i in range(60, 66)]
        for thread in threads:
            thread.start()
        beside = self.score(ids, items, cache=pb.CacheParams(bypass_read=True)).scores
        for thread in threads:
            thread.join()
        self.assertEqual(list(beside), list(alone))

    def test_the_command(self):
        args = ("score", "--server", self.server.address, "--prompt", "the thing", "--continuation", " in", "--continuation",
                " another hour")
        shown = run_cli(*args)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        lines = shown.stdout.splitlines()
        self.assertEqual(len(lines), 3)
        self.assertTrue(lines[1].endswith("   in") and lines[2].endswith("   another hour"), shown.stdout)
        response, = json_lines(run_cli(*args, "--json", "--request_id", "by-cli").stdout)
        self.assertEqual(response["request_id"], "by-cli")
        self.assertEqual(len(response["scores"]), 2)
        self.assertIn(f"{response['scores'][0]['logprob']:.3f}", lines[1])
        self.assertEqual(run_cli(*args[:5]).returncode, 2, "nothing to score")


if __name__ == "__main__":
    unittest.main()
