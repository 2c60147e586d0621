"""Every RPC of every service, as its descriptor has it, under the same attacks, each with its bound on memory. A new
RPC is in the walk by itself.
"""

import importlib
import unittest

import attacks
import raw_http2 as h2
from attacks import MIB
from google.protobuf.descriptor import FieldDescriptor
from test_hostile import CANCELLED, LINGER, OK, SLACK, UNIMPLEMENTED, AttackedTest, setUpModule, tearDownModule

PROTOS = ("control", "inference", "prefix", "session", "tenant", "token")
MESSAGE_MIB = 4       # the largest message, of the flags of AttackedTest
MOST_MIB = 8 * MESSAGE_MIB  # what one message may take
STREAMS = 24          # of one RPC, unread


def rpcs():
    """(path, method) of all RPCs that Quire's protos have; the method is None for those of gRPC's own services."""
    for proto in PROTOS:
        module = importlib.import_module(f"quire.v1.{proto}_service_pb2")
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield f"/{service.full_name}/{method.name}", method
    yield attacks.HEALTH, None
    yield "/grpc.health.v1.Health/Watch", None
    for version in ("", "alpha"):
        yield attacks.REFLECTION.format(version), None


# The test may not end the server that it walks through.
WALKED = [(path, method) for path, method in rpcs() if not path.endswith("/Drain")]


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        value, out = value >> 7, out + bytes([value & 0x7f | 0x80])
    return out + bytes([value])


def delimited(field: FieldDescriptor, body: bytes) -> bytes:
    return varint(field.number << 3 | 2) + varint(len(body)) + body


def floods(message, size: int, path=()):
    """(name, wire) for each repeated field that `message` has anywhere: `size` bytes of its smallest elements."""
    for field in message.fields:
        is_text = field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE)
        if field.label == FieldDescriptor.LABEL_REPEATED:
            if is_text:
                element = delimited(field, b"")
                wire = element * (size // len(element))
            else:
                wire = delimited(field, b"\1" * size)  # packed
            for parent in reversed(path):
                wire = delimited(parent, wire)
            yield ".".join(f.name for f in (*path, field)), wire
        if field.message_type is not None and len(path) < 4:
            yield from floods(field.message_type, size, (*path, field))


class RpcWalkTest(AttackedTest):
    def test_all_rpcs_are_walked(self):
        self.assertGreater(len(WALKED), 30)
        with self.site() as site:
            connection = site.connect()
            for number, (path, _) in zip(attacks.stream_numbers(), WALKED):
                connection.request(number, path, body=b"\xff")  # no message
                self.assertNotIn(connection.answer(number).status, (OK, UNIMPLEMENTED, None), path)

    def test_padding_changes_no_answer(self):
        padding = attacks.hidden_head(0x90, attacks.REFLECTION.format("alpha"))
        for path, _ in WALKED:
            with self.subTest(path), self.attack(f"padded {path.split('/')[-1]}") as site:
                connection = site.connect()
                connection.request(1, path, body=b"\xff")
                connection.stream(3)
                connection.send(attacks.padded(h2.HEADERS, h2.END_HEADERS, 3, h2.header_block(path), padding)
                                + attacks.padded(h2.DATA, h2.END_STREAM, 3, h2.message(b"\xff"), padding))
                plain, padded = connection.answer(1), connection.answer(3)
                self.assertIsNotNone(plain.status)
                self.assertEqual((padded.status, padded.data), (plain.status, plain.data))

    def test_unread_answers_are_given_up(self):
        for path, _ in WALKED:
            name = f"unread {path.split('/')[-1]}"
            with self.subTest(path), self.attack(name, peak_mib=16, seconds=LINGER + 3 * SLACK) as site:
                connection = site.connect(hello=attacks.SHUT)
                for number in range(1, 2 * STREAMS, 2):
                    connection.request(number, path, body=b"")
                if path.startswith("/grpc.health"):
                    continue  # gRPC's own, whose answers of a few bytes wait while the client stays
                for number in range(1, 2 * STREAMS, 2):
                    stream = connection.answer(number, LINGER + 2 * SLACK)
                    self.assertTrue(stream.ended, f"stream {number} is held for ever")

    def test_repeated_fields_are_counted_before_they_are_parsed(self):
        for path, method in WALKED:
            for name, wire in floods(method.input_type, MESSAGE_MIB * MIB - 64) if method else ():
                title = f"{method.name} {name}"
                with self.subTest(title), self.attack(title[:33], peak_mib=MOST_MIB, seconds=20) as site:
                    connection = site.connect()
                    connection.request(1, path)
                    connection.send_message(1, h2.message(wire), end=True)
                    stream = connection.answer(1)
                    self.assertTrue(stream.ended, name)
                    self.assertNotIn(stream.status, (OK, CANCELLED), name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
