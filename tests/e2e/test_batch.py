"""GenerateBatch: the answers are those of Generate, whatever the bound and the room of the server."""

import json
import unittest

import grpc

import harness
from harness import json_lines, pb, run_cli

PROMPTS = [[40 + i] + [33 + (i * 11 + k * 7) % 60 for k in range(1, 5 + i % 9)] for i in range(24)]


def request(i: int, max_tokens: int = 6, **options) -> pb.GenerateRequest:
    made = pb.GenerateRequest(sampling=pb.SamplingParams(seed=i), output=pb.OutputOptions(token_ids=True),
                              stop=pb.StopParams(max_tokens=max_tokens, ignore_eos=True), **options)
    made.token_ids.ids.extend(PROMPTS[i % len(PROMPTS)])
    return made


class BatchTest(harness.TestCase):
    def batch(self, requests, client=None, **options):
        call = (client or self.client).inference.GenerateBatch(
            pb.GenerateBatchRequest(requests=requests, **options), timeout=harness.DEADLINE)
        return {answer.index: answer for answer in call}

    def expect_the_same(self, answers, requests):
        self.assertEqual(sorted(answers), list(range(len(requests))))
        for index, answer in answers.items():
            alone = self.client.inference.Generate(requests[index], timeout=harness.DEADLINE)
            self.assertEqual(list(answer.response.completions[0].token_ids), list(alone.completions[0].token_ids))
            self.assertEqual(answer.response.completions[0].text, alone.completions[0].text)
            self.assertEqual((answer.response.model_digest, answer.response.numerics), (alone.model_digest, alone.numerics))

    def test_the_answers_are_those_of_generate(self):
        requests = [request(i) for i in range(len(PROMPTS))]
        self.expect_the_same(self.batch(requests, max_in_flight=5), requests)

    def test_a_server_without_room_answers_all_the_same(self):
        requests = [request(i, max_tokens=60 if i == 0 else 3) for i in range(len(PROMPTS))]
        with harness.running("--max_queue", "1", "--max_num_seqs", "2") as (_, client):
            self.expect_the_same(self.batch(requests, client, max_in_flight=16), requests)

    def test_a_failure_leaves_the_others(self):
        requests = [request(0), pb.GenerateRequest(text=""), request(2)]
        requests[0].stop.min_tokens = requests[0].stop.max_tokens = 10**6
        answers = self.batch(requests)
        self.assertEqual(answers[0].error.code, grpc.StatusCode.INVALID_ARGUMENT.value[0])
        self.assertTrue(answers[0].error.message.startswith("stop.min_tokens"), answers[0].error)
        self.assertTrue(answers[2].HasField("response"))

    def test_a_dropped_call_frees_everything(self):
        call = self.client.inference.GenerateBatch(pb.GenerateBatchRequest(
            requests=[request(0, max_tokens=1), *(request(i, max_tokens=2000) for i in range(1, 12))]))
        self.assertEqual(next(call).index, 0)
        call.cancel()
        self.client.wait_until_idle()

    def test_the_command_answers_a_line_a_line(self):
        lines = [json.dumps({"token_ids": {"ids": PROMPTS[0]}, "sampling": {"seed": "0"}}),
                 "",
                 json.dumps({"token_ids": {"ids": PROMPTS[1]}, "sampling": {"seed": "1"}}),
                 json.dumps({"text": "a", "sampling": {"top_p": 2}})]
        shown = run_cli("batch", "--server", self.server.address, "--max_tokens", "6", "--ignore_eos", "--json",
                        text="\n".join(lines))
        self.assertEqual(shown.returncode, 1, shown.stderr)
        self.assertIn("3 of 3 answered, 1 failed", shown.stderr)
        answers = {line["index"]: line for line in json_lines(shown.stdout)}
        self.assertEqual(sorted(answers), [0, 1, 2])
        for i in (0, 1):
            alone = self.client.inference.Generate(request(i), timeout=harness.DEADLINE)
            self.assertEqual(answers[i]["response"]["completions"][0]["token_ids"],
                             list(alone.completions[0].token_ids))
        self.assertTrue(answers[2]["error"]["message"].startswith("sampling.top_p"), answers[2])

    def test_the_command_names_the_line_that_is_wrong(self):
        shown = run_cli("batch", "--server", self.server.address, text='{"text": "a"}\n{"txt": "b"}\n')
        self.assertEqual(shown.returncode, 2)
        self.assertIn("line 2: ", shown.stderr)
        self.assertEqual(run_cli("batch", "--server", self.server.address, text="\n").returncode, 2)


if __name__ == "__main__":
    unittest.main()
