"""A trained model's greedy text over gRPC, against tokens that an independent program computed."""

import json
import unittest

import harness
from harness import Streamed, json_lines, run_cli


class Goldens:
    """The tests, run once for each form of the same weights."""

    relative: str

    @classmethod
    def model(cls):
        path = harness.test_data(cls.relative)
        if path is None:
            raise unittest.SkipTest(f"test material absent: {cls.relative}")
        return path

    def setUp(self):
        path = harness.test_data("models/stories260K-hf/golden_greedy.json")
        self.cases = json.loads(path.read_text())["cases"]
        self.assertEqual(sum(len(case["ids"]) - len(case["prompt_ids"]) for case in self.cases), 897)

    def options(self, case):
        # The model ends a story with <s> and never with </s>. The goldens leave the <s> out.
        return dict(max_tokens=len(case["ids"]) - len(case["prompt_ids"]), temperature=0, ignore_eos=True,
                    token_ids=True)

    def test_all_tokens_streamed_unary_and_side_by_side(self):
        for case in self.cases:
            self.assertEqual(self.client.tokenize(case["prompt"]), case["prompt_ids"])
        calls = [self.client.stream(case["prompt"], **self.options(case)) for case in self.cases]
        for case, call in zip(self.cases, calls):
            wanted = case["ids"][len(case["prompt_ids"]):]
            stream = Streamed(call)
            self.assertEqual(stream.ids, wanted)
            self.assertEqual(stream.usage.prompt_tokens, len(case["prompt_ids"]))
            unary = self.client.generate(case["prompt_ids"], **self.options(case)).completions[0]
            self.assertEqual(list(unary.token_ids), wanted)
            self.assertEqual(unary.text, stream.text)
            self.assertEqual((case["prompt"] + stream.text).strip(), case["text"].strip())

    def test_a_cached_prefix_changes_nothing(self):
        """Continues each golden from every eighth position, computed and from the cache."""
        for case in self.cases:
            for begin in range(len(case["prompt_ids"]), len(case["ids"]) - 4, 8):
                answer = self.client.generate(case["ids"][:begin], **{**self.options(case), "max_tokens": 4})
                self.assertEqual(list(answer.completions[0].token_ids), case["ids"][begin:begin + 4])
        self.assertGreater(self.client.stats().tokens.prompt_cached, 1000)

    def test_quire_generate_prints_them(self):
        case = self.cases[1]
        shown = run_cli("generate", "--server", self.server.address, "--prompt", case["prompt"], "--temperature",
                        "0", "--ignore_eos", "--max_tokens", "252", "--json")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        ids = [id for message in json_lines(shown.stdout) for id in message.get("token_ids", [])]
        self.assertEqual(ids, case["ids"][len(case["prompt_ids"]):])


class GgufTest(Goldens, harness.TestCase):
    relative = "models/stories260K-gguf/stories260K.f32.gguf"


class SafetensorsTest(Goldens, harness.TestCase):
    relative = "models/stories260K-hf"


class SmallChunksTest(Goldens, harness.TestCase):
    relative = "models/stories260K-gguf/stories260K.f32.gguf"
    flags = ("--max_num_batched_tokens", "7", "--max_num_seqs", "4")


class PortableTest(Goldens, harness.TestCase):
    relative = "models/stories260K-gguf/stories260K.f32.gguf"
    flags = ("--cpu_isa", "portable")


class MappedTest(Goldens, harness.TestCase):
    relative = "models/stories260K-gguf/stories260K.f32.gguf"
    flags = ("--weights", "mapped")


if __name__ == "__main__":
    unittest.main(verbosity=2)
