"""The greedy tokens of models over gRPC, against those that an independent program computed."""

import functools
import json
import subprocess
import unittest

import harness
from harness import Streamed, json_lines, run_cli
from reference_llama import ReferenceLlama

STORIES = harness.REPOSITORY / "models" / "quire-stories"
BUNDLED = harness.REPOSITORY / "tests" / "engine" / "model" / "testdata" / "bundled_goldens.json"


class Goldens:
    """The tests, run once for each form of the bundled model's weights, and for other models."""

    is_gguf = False

    @classmethod
    def model(cls):
        if not cls.is_gguf:
            return STORIES
        path = harness.SCRATCH / "quire-stories.gguf"
        if not path.exists():
            subprocess.run([str(harness.BIN / "quire-convert"), str(STORIES), str(path), "--type", "f32"], check=True,
                           capture_output=True)
        return path

    @classmethod
    def golden_cases(cls):
        """Prompts with their ids, and the ids after them."""
        return [{**case, "prompt_ids": case["ids"][:case["num_prompt_tokens"]]} for case in json.loads(BUNDLED.read_text())]

    def setUp(self):
        self.cases = self.golden_cases()
        self.assertEqual(sum(len(case["ids"]) - len(case["prompt_ids"]) for case in self.cases), self.num_tokens)

    num_tokens = 217

    def options(self, case):
        # What ends a story is one of the tokens.
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
            if "text" in case:
                self.assertEqual((case["prompt"] + stream.text).strip(), case["text"].strip())

    def test_a_cached_prefix_changes_nothing(self):
        """Continues each golden from every eighth position, computed and from the cache."""
        for case in self.cases:
            for begin in range(len(case["prompt_ids"]), len(case["ids"]) - 4, 8):
                answer = self.client.generate(case["ids"][:begin], **{**self.options(case), "max_tokens": 4})
                self.assertEqual(list(answer.completions[0].token_ids), case["ids"][begin:begin + 4])
        self.assertGreater(self.client.stats().tokens.prompt_cached, self.num_tokens)

    def test_quire_generate_prints_them(self):
        case = self.cases[1]
        shown = run_cli("generate", "--server", self.server.address, "--prompt", case["prompt"], "--temperature",
                        "0", "--ignore_eos", "--max_tokens", str(self.options(case)["max_tokens"]), "--json")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        ids = [id for message in json_lines(shown.stdout) for id in message.get("token_ids", [])]
        self.assertEqual(ids, case["ids"][len(case["prompt_ids"]):])


class SafetensorsTest(Goldens, harness.TestCase):
    pass


class GgufTest(Goldens, harness.TestCase):
    is_gguf = True


class SmallChunksTest(Goldens, harness.TestCase):
    is_gguf = True
    flags = ("--max_num_batched_tokens", "7", "--max_num_seqs", "4")


class PortableTest(Goldens, harness.TestCase):
    is_gguf = True
    flags = ("--cpu_isa", "portable")


class MappedTest(Goldens, harness.TestCase):
    is_gguf = True
    flags = ("--weights", "mapped")


class LlamaTest(Goldens, harness.TestCase):
    """A model of another architecture, with rotated positions."""

    num_tokens = 212

    @classmethod
    def model(cls):
        return harness.tiny_model()

    @classmethod
    @functools.cache
    def golden_cases(cls):
        llama, cases = ReferenceLlama(cls.model()), []
        for prompt in ("the thing in another hour", "Once upon a time", "all well", "we wonder"):
            ids = llama.encode(prompt)
            answer, lead = llama.greedy(ids, 64)
            assert lead > 1e-3, f"{prompt!r}: float32 may choose another id"
            cases.append({"prompt": prompt, "prompt_ids": ids, "ids": answer})
        return cases


if harness.test_data("models/stories260K-gguf"):
    class Stories260KTest(Goldens, harness.TestCase):
        """A trained model of others, where the test material is (tests/testing/test_data.h)."""

        num_tokens = 897

        @classmethod
        def model(cls):
            return harness.test_data("models/stories260K-gguf/stories260K.f32.gguf")

        @classmethod
        def golden_cases(cls):
            # The model ends a story with <s> and never with </s>. The goldens leave the <s> out.
            return json.loads(harness.test_data("models/stories260K-gguf/golden_greedy.json").read_text())["cases"]


if __name__ == "__main__":
    unittest.main(verbosity=2)
