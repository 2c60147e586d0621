"""GGUF files: what surrounds their prompts if they ask for BOS and EOS, and a model in parts."""

import json
import pathlib
import struct
import subprocess
import unittest

import harness
import make_tiny_model
from harness import BIN, Server, make_request, running
from make_tiny_model import BOS, EOS
from quire.v1 import control_service_pb2, prefix_service_pb2, session_service_pb2, token_service_pb2

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


# The bytes of GGUF's values of one number, by type.
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
UINT16, STRING, ARRAY = 2, 8, 9


class Head:
    """Reads the head of a GGUF file."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def number(self, form: str) -> int:
        value, = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def skip(self, kind: int):
        """Skips a value of this type."""
        if kind == STRING:
            size = self.number("<Q")
            self.at += size
        elif kind == ARRAY:
            element = self.number("<I")
            for _ in range(self.number("<Q")):
                self.skip(element)
        else:
            self.at += SIZES[kind]

    def since(self, begin: int) -> bytes:
        return self.data[begin:self.at]


def aligned(size: int) -> int:
    return -(-size // 32) * 32


def parts_of(file: pathlib.Path, name: str) -> list[pathlib.Path]:
    """Writes a GGUF file as two, with half of the tensors each, as llama-gguf-split does."""
    head = Head(file.read_bytes())
    head.at = len(b"GGUF") + 4  # after the version
    num_tensors, num_values, begin = head.number("<Q"), head.number("<Q"), head.at
    for _ in range(num_values):
        head.skip(STRING)
        head.skip(head.number("<I"))
    values, tensors = head.since(begin), []
    for _ in range(num_tensors):
        begin = head.at
        head.skip(STRING)
        num_dims = head.number("<I")
        head.at += 8 * num_dims + 4  # and the type
        tensors.append((head.since(begin), head.number("<Q")))
    data = head.data[aligned(head.at):]
    half, paths = num_tensors // 2, []
    for number, own in enumerate((tensors[:half], tensors[half:])):
        begin, end = own[0][1], tensors[half][1] if number == 0 else len(data)
        split = b"".join(struct.pack("<Q", len(key)) + key + struct.pack("<IH", UINT16, value) for key, value in (
            (b"split.no", number), (b"split.count", 2), (b"split.tensors.count", num_tensors)))
        part = b"GGUF" + struct.pack("<IQQ", 3, len(own), 3 if number else 3 + num_values)
        part += (b"" if number else values) + split
        part += b"".join(info + struct.pack("<Q", offset - begin) for info, offset in own)
        paths.append(harness.SCRATCH / f"{name}-{number + 1:05}-of-00002.gguf")
        paths[-1].write_bytes(part.ljust(aligned(len(part)), b"\0") + data[begin:end])
    return paths


class PartsTest(unittest.TestCase):
    def test_a_model_in_parts_is_served_as_the_whole_by_its_name(self):
        whole = file_of("whole", make_tiny_model.CHATML)
        first, second = parts_of(whole, "in-parts.q8")
        with running(model=whole) as (_, client):
            expected = list(client.generate(CHAT, **GREEDY).completions[0].token_ids)
        with running(model=first) as (server, client):
            listed = client.control.ListModels(control_service_pb2.ListModelsRequest(), timeout=harness.DEADLINE)
            self.assertEqual([model.name for model in listed.models], ["in-parts.q8"])
            self.assertEqual([client.model_info().name, server.started("model")], ["in-parts.q8"] * 2)
            answer = client.generate(CHAT, model="in-parts.q8", **GREEDY)
            self.assertEqual([answer.model, list(answer.completions[0].token_ids)], ["in-parts.q8", expected])
        second.unlink()
        server = Server(model=first)
        self.assertEqual(server.wait(), 1)
        self.assertIn(f"want part 2 of 2 beside it, got no file {second}", server.log())


if __name__ == "__main__":
    unittest.main(verbosity=2)
