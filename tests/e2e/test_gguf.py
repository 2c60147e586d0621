"""What surrounds the prompts of a GGUF file that asks for BOS and EOS, whether or not its template writes BOS."""

import json
import subprocess
import unittest

import harness
import make_tiny_model
from harness import BIN, make_request, running
from make_tiny_model import BOS, EOS
from quire.v1 import prefix_service_pb2, session_service_pb2, token_service_pb2

tokens = token_service_pb2.TokenizeRequest
GREEDY = dict(temperature=0, max_tokens=8, ignore_eos=True, token_ids=True)
CHAT = [("system", "Be brief."), ("user", "the thing")]


def file_of(name: str, chat_template: str):
    """A GGUF file with add_bos_token and add_eos_token."""
    folder = harness.SCRATCH / name
    make_tiny_model.write(folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    after = tokenizer["post_processor"]
    after["single"].append({"SpecialToken": {"id": EOS, "type_id": 0}})
    after["special_tokens"][EOS] = {"id": EOS, "ids": [tokenizer["model"]["vocab"][EOS]], "tokens": [EOS]}
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": chat_template}))
    file = harness.SCRATCH / f"{name}.gguf"
    subprocess.run([BIN / "quire-convert", folder, file, "--type", "f32"], check=True, capture_output=True)
    return file


def prompts_of(client):
    """The number of prompt tokens and the answer of each kind of prompt."""
    def answered(*args, **options):
        answer = client.generate(*args, **GREEDY, **options)
        return answer.usage.prompt_tokens, list(answer.completions[0].token_ids)

    create = prefix_service_pb2.CreatePrefixRequest(chat=make_request(CHAT[:1]).chat)
    prefix = client.prefixes.CreatePrefix(create, timeout=harness.DEADLINE)
    session = client.sessions.CreateSession(session_service_pb2.CreateSessionRequest(), timeout=harness.DEADLINE)
    return {"chat": answered(CHAT), "prefix": prefix.num_tokens, "behind it": answered(CHAT[1:], prefix=prefix.name),
            "turn": answered(CHAT, session=session.name), "next": answered([("user", "on")], session=session.name),
            "text": answered("the thing")}


class GgufTest(unittest.TestCase):
    def test_a_chat_begins_with_bos_once_and_nothing_ends_with_eos(self):
        found = []
        for name, template in (("written", "{{ bos_token }}" + make_tiny_model.CHATML), ("unwritten", make_tiny_model.CHATML)):
            with running(model=file_of(name, template)) as (_, client):
                bos, eos = client.tokenize(BOS + EOS, parse_special_tokens=True, use=tokens.USE_CONTINUATION)
                plain = client.tokenize("the thing", use=tokens.USE_CONTINUATION)
                self.assertEqual(client.tokenize("the thing"), [bos, *plain])
                self.assertEqual(client.tokenize("the thing", use=tokens.USE_WHOLE), [bos, *plain, eos])
                request = token_service_pb2.ApplyChatTemplateRequest(chat=make_request(CHAT).chat)
                chat = client.tokens.ApplyChatTemplate(request, timeout=harness.DEADLINE).text
                self.assertEqual(chat.count(BOS), 1)
                ids = client.tokenize(chat, parse_special_tokens=True, use=tokens.USE_CHAT)
                self.assertEqual([ids[0], ids.count(bos), ids.count(eos)], [bos, 1, 0])
                self.assertEqual(ids[1:], client.tokenize(chat.removeprefix(BOS), parse_special_tokens=True,
                                                          use=tokens.USE_CONTINUATION))
                found.append(prompts_of(client))
                self.assertEqual(found[-1]["chat"][0], len(ids))
                self.assertEqual(found[-1]["text"][0], 1 + len(plain))
        self.assertEqual(found[0], found[1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
