"""HTTP/2 by hand: a client that can send frames that no library would send, and reads the answers.

Every wait has a limit. The client sends only what its caller asks for, except the acknowledgements of
SETTINGS and PING (`polite`).
"""

import dataclasses
import select
import socket
import ssl
import struct
import time

from raw_hpack import Decoder, literal

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 1, 1, 4, 8, 32
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 4, 5  # parameters of SETTINGS
PROTOCOL_ERROR, ENHANCE_YOUR_CALM = 1, 11
DEFAULT_WINDOW = 65535
WAIT = 20  # seconds for work of milliseconds


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"", length: int | None = None) -> bytes:
    """A frame. `length`, when given, is a wrong length to state in its head."""
    size = len(payload) if length is None else length
    return size.to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, payload=b"".join(struct.pack(">HI", *pair) for pair in pairs))


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", increment))


def rst_stream(stream: int, code: int = 8) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def message(body: bytes, flag: int = 0, says: int | None = None) -> bytes:
    """gRPC's five bytes and the body. `says`, when given, is a wrong length to state in the five bytes."""
    return struct.pack(">BI", flag, len(body) if says is None else says) + body


def header_block(path: str, *more: tuple[str, str]) -> bytes:
    """The headers of a gRPC request, none of which the peer keeps in its table."""
    pairs = ((":path", path), (":authority", "localhost"), ("content-type", "application/grpc"), ("te", "trailers"))
    return b"\x83\x86" + b"".join(literal(*pair) for pair in (*pairs, *more))


@dataclasses.dataclass
class Stream:
    """The answer on one stream."""

    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    data: bytes = b""
    ended: bool = False         # by END_STREAM or a reset
    reset: int | None = None    # the code
    credit: int = 0             # bytes that WINDOW_UPDATE added to the window for our data
    sent: int = 0

    @property
    def status(self) -> int | None:
        """gRPC's status, once it has arrived."""
        return int(self.headers["grpc-status"]) if "grpc-status" in self.headers else None


class Connection:
    """One TCP or TLS connection. `hello` are its first bytes."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext | None = None, source: str = "",
                 hello: bytes = PREFACE + frame(SETTINGS), polite: bool = True):
        self.polite = polite
        self.sent = 0
        self.ended = False
        self.goaway: tuple[int, str] | None = None  # code and debug data
        self.settings: dict[int, int] = {}
        self.acks = self.pings = 0                  # of our SETTINGS; the server's own
        self.pongs = 0                              # acknowledgements of our PINGs
        self.streams: dict[int, Stream] = {}
        self._credit = self._spent = 0
        self._out, self._buffer = bytearray(), bytearray()
        self._block, self._decoder = b"", Decoder()
        self._socket = socket.create_connection(address, WAIT, (source, 0) if source else None)
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname="localhost")
        self._socket.setblocking(False)
        self.send(hello)

    def close(self):
        self._socket.close()

    def stream(self, number: int) -> Stream:
        return self.streams.setdefault(number, Stream())

    def send(self, data: bytes, seconds: float = WAIT) -> bool:
        """Sends all of `data`, and reads meanwhile, so that neither side waits for the other. False: it could not."""
        self._out += data
        deadline = time.monotonic() + seconds
        while True:
            self._receive()
            self._flush()
            if not self._out or self.ended or time.monotonic() > deadline:
                return not self._out
            select.select([self._socket], [self._socket], [], 0.1)

    def wait(self, condition, seconds: float = WAIT) -> bool:
        """Reads until condition() holds, the connection has ended or `seconds` have passed. True when it holds."""
        deadline = time.monotonic() + seconds
        while not condition() and not self.ended and time.monotonic() < deadline:
            if not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
                select.select([self._socket], [], [], min(0.2, max(0.0, deadline - time.monotonic())))
            self._receive()
        return condition()

    def wait_end(self, seconds: float = WAIT) -> bool:
        return self.wait(lambda: self.ended, seconds)

    def request(self, number: int, path: str, *more: tuple[str, str], body: bytes | None = None):
        """Sends the headers of a request, and with a `body` the whole request."""
        self.stream(number)
        self.send(frame(HEADERS, END_HEADERS, number, header_block(path, *more)))
        if body is not None:
            self.send_message(number, message(body), end=True)

    def answer(self, number: int, seconds: float = WAIT) -> Stream:
        """Returns the stream when it has ended, or what has arrived of it."""
        stream = self.stream(number)
        self.wait(lambda: stream.ended, seconds)
        return stream

    def room(self, number: int) -> int:
        """The number of bytes that flow control lets us send on a stream now."""
        stream = self.stream(number)
        initial = self.settings.get(INITIAL_WINDOW_SIZE, DEFAULT_WINDOW)
        return min(initial + stream.credit - stream.sent, DEFAULT_WINDOW + self._credit - self._spent)

    def send_some(self, number: int, data: bytes, piece: int = 16384, end: bool = False) -> int:
        """Sends as much as flow control allows, in frames of `piece` bytes, and returns that number."""
        stream, done = self.stream(number), 0
        while done < len(data) and not self.ended and not stream.ended:
            count = min(piece, len(data) - done, self.room(number))
            if count <= 0:
                break
            last = end and done + count == len(data)
            self.send(frame(DATA, END_STREAM if last else 0, number, data[done:done + count]))
            done += count
            stream.sent += count
            self._spent += count
        return done

    def send_message(self, number: int, data: bytes, piece: int = 16384, end: bool = False,
                     seconds: float = WAIT) -> bool:
        """Sends all of `data` on a stream, as windows open. False when the stream or the time ended first."""
        stream, done, deadline = self.stream(number), 0, time.monotonic() + seconds

        def over() -> bool:
            return self.ended or stream.ended or time.monotonic() > deadline

        while done < len(data) and not over():
            done += self.send_some(number, data[done:], piece, end)
            if done < len(data):
                self.wait(lambda: self.room(number) > 0 or over(), 1)
        return done == len(data)

    def _flush(self):
        try:
            while self._out and not self.ended:
                count = self._socket.send(self._out[:1 << 16])
                del self._out[:count]
                self.sent += count
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:
            self._receive()  # frames that were sent before the end
            self.ended = True

    def _receive(self):
        while not self.ended:
            try:
                data = self._socket.recv(1 << 16)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError:
                data = b""
            if not data:
                self.ended = True
            self._buffer += data
        while len(self._buffer) >= 9:
            size = int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < 9 + size:
                break
            kind, flags = self._buffer[3:5]
            number = int.from_bytes(self._buffer[5:9], "big")
            payload = bytes(self._buffer[9:9 + size])
            del self._buffer[:9 + size]
            self._on_frame(kind, flags, number, payload)

    def _on_frame(self, kind: int, flags: int, number: int, payload: bytes):
        reply = b""
        if kind == SETTINGS:
            if flags & ACK:
                self.acks += 1
            else:
                self.settings.update(struct.iter_unpack(">HI", payload))
                reply = frame(SETTINGS, ACK)
        elif kind == PING and flags & ACK:
            self.pongs += 1
        elif kind == PING:
            self.pings += 1
            reply = frame(PING, ACK, 0, payload)
        elif kind == WINDOW_UPDATE:
            (increment,) = struct.unpack(">I", payload)
            if number == 0:
                self._credit += increment
            else:
                self.stream(number).credit += increment
        elif kind == GOAWAY:
            self.goaway = (int.from_bytes(payload[4:8], "big"), payload[8:].decode(errors="replace"))
        elif kind in (HEADERS, CONTINUATION):
            self._block += payload
            if flags & END_HEADERS:
                self.stream(number).headers.update(self._decoder.decode(self._block))
                self._block = b""
        elif kind == DATA:
            self.stream(number).data += payload
        elif kind == RST_STREAM:
            self.stream(number).reset = int.from_bytes(payload, "big")
            self.stream(number).ended = True
        if kind in (HEADERS, DATA) and flags & END_STREAM:
            self.stream(number).ended = True
        if self.polite:
            self._out += reply
            self._flush()
