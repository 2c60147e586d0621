#!/usr/bin/env python3
"""Holds what quire.v1 promises (docs/stability.md): nothing that clients use is removed, renumbered or retyped.

    python3 test_stability.py [--renew]

quire_v1.txt has a line for each message, field, value of an enum and RPC. Each must stand in the protos as it is. --renew
adds the lines of what is new, and takes none away. Needs protobuf for Python, and protoc on the PATH or in $QUIRE_PROTOC.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from google.protobuf import descriptor_pb2

PROTOS = pathlib.Path(__file__).resolve().parents[2] / "proto"
KEPT = pathlib.Path(__file__).with_name("quire_v1.txt")
Field = descriptor_pb2.FieldDescriptorProto


def type_of(field: Field) -> str:
    label = Field.Label.Name(field.label).removeprefix("LABEL_").lower()
    if field.proto3_optional:
        label = "presence"
    name = field.type_name.removeprefix(".") or Field.Type.Name(field.type).removeprefix("TYPE_").lower()
    return f"{label} {name}"


def lines_of_message(message, prefix: str):
    name = f"{prefix}.{message.name}"
    yield f"message {name}"
    for field in message.field:
        one_of = field.HasField("oneof_index") and not field.proto3_optional
        group = f" of {message.oneof_decl[field.oneof_index].name}" if one_of else ""
        yield f"field {name} {field.number} {type_of(field)} {field.name}{group}"
    for nested in message.nested_type:
        yield from lines_of_message(nested, name)
    for enum in message.enum_type:
        yield from lines_of_enum(enum, name)


def lines_of_enum(enum, prefix: str):
    for value in enum.value:
        yield f"value {prefix}.{enum.name} {value.number} {value.name}"


def lines_of_service(service, prefix: str):
    for rpc in service.method:
        request, answer = (("stream " if streams else "") + name.removeprefix(".") for streams, name in (
            (rpc.client_streaming, rpc.input_type), (rpc.server_streaming, rpc.output_type)))
        yield f"rpc {prefix}.{service.name}.{rpc.name} ({request}) returns ({answer})"


def lines_today() -> set[str]:
    files = sorted(str(path.relative_to(PROTOS)) for path in (PROTOS / "quire/v1").glob("*.proto"))
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run([os.environ.get("QUIRE_PROTOC", "protoc"), f"-I{PROTOS}", f"--descriptor_set_out={out.name}", *files],
                       check=True, cwd=PROTOS)
        made = descriptor_pb2.FileDescriptorSet.FromString(out.read())
    lines = set()
    for file in made.file:
        for message in file.message_type:
            lines.update(lines_of_message(message, file.package))
        for enum in file.enum_type:
            lines.update(lines_of_enum(enum, file.package))
        for service in file.service:
            lines.update(lines_of_service(service, file.package))
    return lines


class StabilityTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.today = lines_today()
        cls.kept = set(KEPT.read_text().splitlines())

    def test_nothing_is_removed_renumbered_or_retyped(self):
        self.assertEqual(sorted(self.kept - self.today), [], "quire.v1 promises to keep these; see docs/stability.md")

    def test_what_is_new_is_kept_from_now_on(self):
        self.assertEqual(sorted(self.today - self.kept), [], "add these with test_stability.py --renew")

    def test_each_kind_of_line_is_there(self):
        lines = {"message quire.v1.GenerateRequest", "field quire.v1.StopParams 1 presence uint32 max_tokens",
                 "field quire.v1.GenerateRequest 3 optional string text of prompt",
                 "value quire.v1.FinishReason 0 FINISH_REASON_UNSPECIFIED",
                 "rpc quire.v1.InferenceService.GenerateStream (quire.v1.GenerateRequest) "
                 "returns (stream quire.v1.GenerateStreamResponse)"}
        self.assertEqual(lines - self.today, set())


if __name__ == "__main__":
    if "--renew" in sys.argv:
        before = set(KEPT.read_text().splitlines()) if KEPT.exists() else set()
        KEPT.write_text("".join(line + "\n" for line in sorted(before | lines_today())))
    else:
        unittest.main(verbosity=2)
