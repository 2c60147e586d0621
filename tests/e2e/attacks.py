"""Attacks that a stranger's connection may make on a server. Each is bounded in bytes and seconds and ends by itself.

An attack takes a Site, opens the connections that it needs there and returns them; the site closes them. The caller
judges how the server reacted: test_hostile runs the attacks one by one, the storm all at once.
"""

import functools
import gzip
import itertools
import os
import re
import socket
import ssl
import struct
import time

import raw_http2 as h2
from quire.v1 import inference_service_pb2, token_service_pb2
from raw_hpack import integer, literal, string
from raw_http2 import Connection, frame, header_block, message, rst_stream, settings, window_update

GENERATE = "/quire.v1.InferenceService/Generate"
GENERATE_STREAM = "/quire.v1.InferenceService/GenerateStream"
HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1{}.ServerReflection/ServerReflectionInfo"
DETOKENIZE = "/quire.v1.TokenService/Detokenize"
ATTACKER = "127.0.0.2"  # all of 127/8 is this machine: attackers and victims come from different addresses
MIB = 1 << 20
FLOOD_SECONDS, FLOOD_BYTES = 3, 48 * MIB

# Bounds on the behavior of a server under attack.
LONGEST_GAP = 5.0  # seconds between two answers of a victim, on a machine with other work
SLACK = 4  # seconds that a limit of time may be late
EXTRA_MIB = float(os.environ.get("QUIRE_E2E_EXTRA_MIB", "0"))  # on bounds: a sanitizer keeps what is freed


class Site:
    """The address to attack, the attacker's own address, and its open connections."""

    def __init__(self, address: str, context: ssl.SSLContext | None = None, source: str = ATTACKER):
        host, port = address.rsplit(":", 1)
        self.address, self.context, self.source = (host, int(port)), context, source
        self._open = []

    def connect(self, **options) -> Connection:
        connection = Connection(self.address, self.context, options.pop("source", self.source), **options)
        self._open.append(connection)
        return connection

    def socket(self, data: bytes = b"", source: str = "") -> socket.socket:
        """A bare connection, without TLS, that has sent `data`."""
        bare = socket.create_connection(self.address, h2.WAIT, (source or self.source, 0))
        self._open.append(bare)
        bare.sendall(data)
        return bare

    def close(self):
        for each in self._open:
            each.close()
        self._open.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def small_request() -> bytes:
    request = inference_service_pb2.GenerateRequest(text="the thing")
    request.stop.max_tokens = 1
    return request.SerializeToString()


def ask(connection: Connection, number: int, *headers: tuple[str, str]) -> h2.Stream:
    """The answer to a small request."""
    connection.request(number, GENERATE, *headers, body=small_request())
    return connection.answer(number)


def turned_away(server) -> dict[str, float]:
    """How often the door of a harness.Server has cut or refused something, by "what/why". All counters, also zeros."""
    counts = {}
    for name, value in server.metrics().items():
        if match := re.fullmatch(r'quire_(connections_(?:cut|refused)|streams_refused)_total{reason="(\w+)"}', name):
            counts["/".join(match.groups())] = value
    return counts


def open_stream(number: int, *more: tuple[str, str]) -> bytes:
    return frame(h2.HEADERS, h2.END_HEADERS, number, header_block(GENERATE, *more))


def stream_numbers():
    return itertools.count(1, 2)


# Floods. Each flood is an endless sequence of byte strings to send.

def resets(body: bytes = b""):
    for number in stream_numbers():
        data = frame(h2.DATA, 0, number, message(body)) if body else b""
        yield open_stream(number) + data + rst_stream(number)


def resets_with_requests():
    return resets(small_request())


def streams_without_end():
    return (open_stream(number) for number in stream_numbers())


def trailers():
    """Sends the headers of one stream again and again."""
    return itertools.repeat(open_stream(1))


def continuations(payload: bytes, count: int):
    yield frame(h2.HEADERS, 0, 1, header_block(GENERATE))
    yield from itertools.repeat(frame(h2.CONTINUATION, 0, 1, payload) * count)


def on_open_stream(piece: bytes):
    return itertools.chain([open_stream(1)], itertools.repeat(piece))


FLOODS = {
    "ping": lambda: itertools.repeat(frame(h2.PING, 0, 0, bytes(8)) * 100),
    "ping ack": lambda: itertools.repeat(frame(h2.PING, h2.ACK, 0, bytes(8)) * 100),
    "settings": lambda: itertools.repeat(settings((h2.INITIAL_WINDOW_SIZE, 1), (h2.INITIAL_WINDOW_SIZE, 2)) * 50),
    "settings ack": lambda: itertools.repeat(frame(h2.SETTINGS, h2.ACK) * 100),
    "empty data": lambda: on_open_stream(frame(h2.DATA, 0, 1) * 100),
    "priority": lambda: itertools.repeat(frame(h2.PRIORITY, 0, 1, bytes(4) + b"\x10") * 100),
    "window update": lambda: itertools.repeat(window_update(0, 1) * 100),
    "window update of a stream": lambda: on_open_stream(window_update(1, 1) * 100),
    "unknown frames": lambda: itertools.repeat(frame(0xfa) * 100),
    "reset of one stream": lambda: on_open_stream(rst_stream(1) * 100),
    "trailers": trailers,
    "continuation, small": lambda: continuations(literal("a", "b", indexed=True), 200),
    "continuation, whole frames": lambda: continuations(literal("a", "b", indexed=True) * 3000, 1),
    "continuation, empty": lambda: continuations(b"", 200),
    "rapid reset": resets,
    "rapid reset with requests": resets_with_requests,
    "streams without end": streams_without_end,
}


def flood(site: Site, name: str, **options) -> Connection:
    """Sends until the connection is cut, and no longer than the limits above."""
    connection = site.connect(**options)
    connection.wait(lambda: connection.settings, 1)  # later, its acknowledgement would come between the frames below
    deadline = time.monotonic() + FLOOD_SECONDS
    for piece in FLOODS[name]():
        if not connection.send(piece, FLOOD_SECONDS) or connection.sent > FLOOD_BYTES or time.monotonic() > deadline:
            break
    connection.wait_end(max(0.0, deadline - time.monotonic()))
    return connection


# Connections.

def sockets_at_once(site: Site, count: int, sources: int = 0) -> list[socket.socket]:
    """Holds as many connections open as the server takes, from the site's address or from this many addresses."""
    held = []
    for i in range(count):
        try:
            held.append(site.socket(source=f"127.0.1.{i % sources + 1}" if sources else ""))
        except OSError:
            pass  # refused, or full
    return held


def connections_come_and_go(site: Site, count: int, pause: float = 0.0):
    """Makes connections one after the other, and closes each after its preface."""
    for _ in range(count):
        try:
            with socket.create_connection(site.address, h2.WAIT, (site.source, 0)) as bare:
                bare.sendall(h2.PREFACE)
        except OSError:
            pass
        time.sleep(pause)


def client_hello(context: ssl.SSLContext) -> bytes:
    outgoing = ssl.MemoryBIO()
    handshake = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    try:
        handshake.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def half_handshakes(site: Site, count: int) -> list[socket.socket]:
    """TLS handshakes that stop: after nothing, a first byte, half a hello, all of it."""
    hello = client_hello(ssl.create_default_context())
    parts = (b"", hello[:1], hello[:len(hello) // 2], hello)
    return [site.socket(parts[i % len(parts)]) for i in range(count)]


def slow_preface(site: Site, seconds: float) -> Connection:
    """Sends one byte at a time, until the server closes the connection."""
    connection = site.connect(hello=b"")
    pause = seconds / len(h2.PREFACE)
    for byte in h2.PREFACE:
        if not connection.send(bytes([byte])) or connection.wait_end(pause):
            break
    return connection


def closed_within(sockets: list[socket.socket], seconds: float) -> int:
    """The number of connections that the server closes in that time."""
    deadline, closed = time.monotonic() + seconds, 0
    for each in sockets:
        each.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            while each.recv(4096):
                pass
            closed += 1
        except TimeoutError:
            pass
        except OSError:
            closed += 1
    return closed


# Messages.

def half_messages(site: Site, connections: int, streams: int, size: int, part: float = 15 / 16,
                  seconds: float = 4, piece: int = 16384) -> list[Connection]:
    """Sends the fraction `part` of a message on each stream, then nothing more."""
    opened = [site.connect() for _ in range(connections)]
    left = {}
    for connection in opened:
        for number in itertools.islice(stream_numbers(), streams):
            connection.request(number, GENERATE)
            left[connection, number] = message(b"\n" * int(size * part), says=size)
    deadline = time.monotonic() + seconds
    while left and time.monotonic() < deadline:
        moved = 0
        for (connection, number), data in list(left.items()):
            done = connection.send_some(number, data[:8 * piece], piece)
            moved += done
            left[connection, number] = data[done:]
            if connection.ended or connection.stream(number).ended or done == len(data):
                del left[connection, number]
        if not moved:
            for connection in opened:
                connection.wait(lambda: False, 0.02)
    return opened


def calls_without_a_message(site: Site, connections: int, streams: int):
    """Begins calls, and sends nothing but their headers."""
    headers = b"".join(map(open_stream, itertools.islice(stream_numbers(), streams)))
    for _ in range(connections):
        site.connect().send(headers)


def never_whole(site: Site) -> Connection:
    """Sends only headers, one byte, and nine tenths of a message, on streams 1, 3 and 5."""
    connection = site.connect()
    for number, part in ((1, b""), (3, b"\0"), (5, message(bytes(90), says=100))):
        connection.request(number, GENERATE)
        connection.send_message(number, part)
    return connection


def says_300_mib(site: Site) -> Connection:
    """Sends a message whose prefix states 300 MiB, and as much of it as the server takes, up to 16 MiB."""
    connection = site.connect()
    connection.request(1, GENERATE)
    connection.send_message(1, message(bytes(16 * MIB), says=300 * MIB), seconds=2)
    return connection


def compressed(site: Site, encoding: str | None, mib: int = 64) -> Connection:
    """Sends this many MiB, compressed to about a thousandth. Without an encoding only the flag marks the message."""
    connection = site.connect()
    body = gzip.compress(b"\n" * (mib * MIB), 1 if mib < 4 else 6)
    connection.request(1, GENERATE, *((("grpc-encoding", encoding),) if encoding else ()))
    connection.send_message(1, message(body, flag=1), end=True, seconds=3)
    connection.answer(1, 3)
    return connection


# Answers that the client does not read. The client's flow-control windows stay closed.

SHUT = h2.PREFACE + settings((h2.INITIAL_WINDOW_SIZE, 0))


def unread_answers(site: Site, token_id: int, count: int, streams: int, *headers: tuple[str, str]) -> Connection:
    connection = site.connect(hello=SHUT)
    body = token_service_pb2.DetokenizeRequest(token_ids=[token_id] * count).SerializeToString()
    for number in itertools.islice(stream_numbers(), streams):
        connection.request(number, DETOKENIZE, *headers, body=body)
    return connection


def unread_streams(site: Site, streams: int, *headers: tuple[str, str]) -> Connection:
    connection = site.connect(hello=SHUT)
    request = inference_service_pb2.GenerateRequest(text="the thing")
    request.stop.max_tokens, request.stop.ignore_eos = 2000, True
    for number in itertools.islice(stream_numbers(), streams):
        connection.request(number, GENERATE_STREAM, *headers, body=request.SerializeToString())
    return connection


# Frames that break a rule of RFC 9113. Each name begins with the section of the rule. The frames are sent
# after the connection's first bytes, and begin with the HEADERS of stream 1 where they need an open stream.

# A length of padding that is an HPACK field too, so that a reader who takes padding for headers goes on.
PADDING_THAT_IS_HPACK = (0x82, 0x84, 0x86, 0x87, 0x90)
LIST_SERVICES = b"\x3a\x00"  # a ServerReflectionRequest; of a HealthCheckRequest it is an unknown field


def padded(kind: int, flags: int, number: int, payload: bytes, padding: bytes) -> bytes:
    return frame(kind, flags | h2.PADDED, number, bytes([len(padding)]) + payload + padding)


def padded_health_check(connection: Connection, number: int, padding: bytes) -> h2.Stream:
    """The answer to a health check whose frames are padded; the headers have a priority too."""
    priority = b"\0\0\0\0\x10"
    flags = h2.END_HEADERS | h2.HAS_PRIORITY
    connection.stream(number)
    connection.send(padded(h2.HEADERS, flags, number, priority + header_block(HEALTH), padding)
                    + padded(h2.DATA, h2.END_STREAM, number, message(LIST_SERVICES), padding))
    return connection.answer(number)


def hidden_head(size: int, path: str) -> bytes:
    """Padding of `size` bytes that is a header block, in which the last path is `path`."""
    hidden = literal(":path", path)
    return hidden + literal("x", "a" * (size - len(hidden) - len(literal("x", ""))))


def hidden_heads(site: Site):
    for size, version in itertools.product(PADDING_THAT_IS_HPACK, ("", "alpha")):
        padded_health_check(site.connect(), 1, hidden_head(size, REFLECTION.format(version)))


def unread_reflection(site: Site, streams: int, name_bytes: int, *headers: tuple[str, str]) -> Connection:
    """Asks for a file with a name of `name_bytes` on each stream, and opens no window for the answers."""
    connection = site.connect(hello=SHUT)
    size, length = name_bytes, b""  # a varint of protobuf
    while size >= 0x80:
        size, length = size >> 7, length + bytes([size & 0x7f | 0x80])
    request = b"\x1a" + length + bytes([size]) + b"n" * name_bytes
    for number, version in zip(range(1, 2 * streams, 2), itertools.cycle(("", "alpha"))):
        connection.request(number, REFLECTION.format(version), *headers)
        connection.send_message(number, message(request), seconds=2)
    return connection


BAD_FRAMES = {
    "4.2 a frame of 16 MiB": frame(h2.DATA, 0, 1, bytes(100), length=(1 << 24) - 1),
    "4.2 a frame beyond the limit": open_stream(1) + frame(h2.DATA, 0, 1, bytes(1 << 18)),
    "4.3 a block that is not HPACK": frame(h2.HEADERS, h2.END_HEADERS, 1, b"\xff" * 64),
    "5.1 data on an idle stream": frame(h2.DATA, 0, 7, bytes(5)),
    "5.1 reset of an idle stream": rst_stream(9),
    "5.1.1 an even stream": open_stream(2),
    "5.1.1 a stream number that falls": open_stream(5) + open_stream(3),
    "5.1 headers on a closed stream": open_stream(1) + rst_stream(1) + open_stream(1),
    "6.1 data on stream 0": frame(h2.DATA, 0, 0, bytes(5)),
    "6.1 padding longer than the frame": open_stream(1) + frame(h2.DATA, h2.PADDED, 1, b"\xff" + bytes(10)),
    "6.2 headers on stream 0": open_stream(0),
    "6.2 a frame inside a header block": (frame(h2.HEADERS, 0, 1, header_block(GENERATE))
                                          + frame(h2.PING, 0, 0, bytes(8))),
    "6.2 a block goes on elsewhere": (frame(h2.HEADERS, 0, 1, header_block(GENERATE))
                                      + frame(h2.CONTINUATION, h2.END_HEADERS, 3, literal("a", "b"))),
    "6.3 priority of four bytes": frame(h2.PRIORITY, 0, 1, bytes(4)),
    "6.4 reset of three bytes": open_stream(1) + frame(h2.RST_STREAM, 0, 1, bytes(3)),
    "6.5 settings of five bytes": frame(h2.SETTINGS, payload=bytes(5)),
    "6.5 settings on a stream": frame(h2.SETTINGS, 0, 1),
    "6.5 settings acknowledged with words": frame(h2.SETTINGS, h2.ACK, 0, bytes(6)),
    "6.5.2 a window beyond 2^31": settings((h2.INITIAL_WINDOW_SIZE, 1 << 31)),
    "6.5.2 frames of 100 bytes": settings((h2.MAX_FRAME_SIZE, 100)),
    "6.6 a client's push": frame(h2.PUSH_PROMISE, h2.END_HEADERS, 1, struct.pack(">I", 2) + header_block(GENERATE)),
    "6.7 ping of seven bytes": frame(h2.PING, 0, 0, bytes(7)),
    "6.8 goaway on a stream": frame(h2.GOAWAY, 0, 1, bytes(8)),
    "6.9 window update of 0": window_update(0, 0),
    "6.9.1 a window that overflows": window_update(0, (1 << 31) - 1) * 3,
    "6.10 continuation of nothing": frame(h2.CONTINUATION, h2.END_HEADERS, 1, literal("a", "b")),
}

_BASE = header_block(GENERATE)

# Unusual header blocks, sent on the streams 1, 3, ... Some of them are legal.
HEADER_BLOCKS = {
    "a table of 4 GiB": [b"\x3f" + b"\xe1\xff\xff\xff\x0f" + _BASE],
    "a size update at the end": [_BASE + b"\x20"],
    "size updates without end": [b"\x20\x3f\xe1\x1f" * 3000 + _BASE],
    "an integer without end": [_BASE + b"\x7f" + b"\x80" * 4000],
    "an integer beyond 64 bits": [_BASE + b"\x00\x7f" + b"\xff" * 20 + b"\x01"],
    "index 0": [_BASE + b"\x80"],
    "an index beyond the table": [_BASE + integer(5000, 7, 0x80)],
    "a name longer than its block": [_BASE + b"\x00" + integer(1 << 20, 7) + b"a"],
    "Huffman: 12,000 bytes of zeros": [_BASE + b"\x00" + string("a") + integer(12000, 7, 0x80) + bytes(12000)],
    "Huffman: the end symbol": [_BASE + b"\x00" + string("a") + b"\x84\xff\xff\xff\xff"],
    # One entry fills the whole HPACK table. Each byte after it refers to the entry: 16 KiB decode to 48 MB.
    "one entry 12,000 times": [_BASE + literal("a", "b" * 4000, indexed=True) + b"\xbe" * 12000],
    "the same on 32 streams": [_BASE + literal("a", "b" * 4000, indexed=True)] + [_BASE + b"\xbe" * 12000] * 31,
    "2,000 names": [_BASE + b"".join(literal(f"{i:x}", "") for i in range(2000))],
    "no path": [b"\x83\x86" + literal("te", "trailers")],
    "two paths": [_BASE + literal(":path", GENERATE)],
    "names in capitals, empty, with zeros": [_BASE + literal("Aa", "b") + literal("", "") + literal("a\0", "\0\r\n")],
    "one block of 60 KiB": [_BASE + literal("a", "b" * 60000)],
}


def send_block(connection: Connection, number: int, block: bytes):
    """Sends a header block in as many frames as it needs."""
    pieces = [block[at:at + 16384] for at in range(0, len(block), 16384)]
    for i, piece in enumerate(pieces):
        last = h2.END_HEADERS if i == len(pieces) - 1 else 0
        connection.stream(number)
        connection.send(frame(h2.CONTINUATION if i else h2.HEADERS, last, number, piece))


def header_blocks(site: Site, name: str) -> Connection:
    connection = site.connect()
    for number, block in zip(stream_numbers(), HEADER_BLOCKS[name]):
        send_block(connection, number, block)
    return connection


def answers_or_ended(connection: Connection, number: int = 1001, seconds: float = 5) -> bool:
    """True when a connection is not stuck, whatever was done to it: it has ended, or an empty call is answered."""
    connection.request(number, GENERATE, body=b"")
    stream = connection.answer(number, seconds)
    return connection.ended or stream.ended


# Bytes that are not HTTP/2 at all.
OTHER_PROTOCOLS = {
    "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an upgrade": b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
                  b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
    "a preface gone wrong": b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n" + bytes(100),
    "frames without a preface": frame(h2.SETTINGS) + open_stream(1),
    "zeros": bytes(2000),
    "a proxy's line": b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n" + h2.PREFACE,
}


def other_protocols(site: Site):
    for data in OTHER_PROTOCOLS.values():
        site.socket(data)
        site.connect(hello=data).wait_end(1)


def bad_frames(site: Site):
    for frames in BAD_FRAMES.values():
        connection = site.connect()
        connection.send(frames)
        answers_or_ended(connection, seconds=1)


def odd_header_blocks(site: Site):
    for name in HEADER_BLOCKS:
        answers_or_ended(header_blocks(site, name), seconds=1)


def hold(attack, seconds: float):
    """Leaves its connections open for this long."""
    def held(site: Site):
        attack(site)
        time.sleep(seconds)

    return held


# All attacks, for tests that run them at once.
EVERY = {
    **{f"flood: {name}": functools.partial(flood, name=name) for name in FLOODS},
    **{f"unread flood: {name}": functools.partial(flood, name=name, polite=False) for name in ("ping", "rapid reset")},
    "sockets that come and go": lambda site: connections_come_and_go(site, 200),
    "silent sockets": hold(lambda site: sockets_at_once(site, 100), 3),
    "half handshakes": hold(lambda site: half_handshakes(site, 100), 3),
    "slow preface": lambda site: slow_preface(site, 10),
    "calls without a message": hold(lambda site: calls_without_a_message(site, connections=32, streams=128), 3),
    "half messages": hold(lambda site: half_messages(site, connections=6, streams=16, size=4 * MIB), 3),
    "messages in single bytes": lambda site: half_messages(site, connections=2, streams=16, size=4000, piece=1),
    "messages that never arrive": hold(never_whole, 3),
    "a message of 300 MiB": says_300_mib,
    "gzip": lambda site: compressed(site, "gzip"),
    "a compressed flag": lambda site: compressed(site, None),
    "answers that nobody reads": hold(lambda site: unread_answers(site, 262, 200_000, 8), 3),
    "streams that nobody reads": hold(lambda site: unread_streams(site, 16), 3),
    "bad frames": bad_frames,
    "odd header blocks": odd_header_blocks,
    "hidden heads": hidden_heads,
    "unread reflection": lambda site: unread_reflection(site, 64, 500),
    "other protocols": other_protocols,
}
