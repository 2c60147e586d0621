"""The part of HPACK (RFC 7541) that raw_http2 needs: writes literals, reads everything but Huffman codes."""

# HPACK's static table (RFC 7541, appendix A), from index 1. Each line has a name, or a name and its value.
STATIC = [tuple((line + " ").split(" ")[:2]) for line in """:authority
:method GET
:method POST
:path /
:path /index.html
:scheme http
:scheme https
:status 200
:status 204
:status 206
:status 304
:status 400
:status 404
:status 500
accept-charset
accept-encoding gzip,deflate
accept-language
accept-ranges
accept
access-control-allow-origin
age
allow
authorization
cache-control
content-disposition
content-encoding
content-language
content-length
content-location
content-range
content-type
cookie
date
etag
expect
expires
from
host
if-match
if-modified-since
if-none-match
if-range
if-unmodified-since
last-modified
link
location
max-forwards
proxy-authenticate
proxy-authorization
range
referer
refresh
retry-after
server
set-cookie
strict-transport-security
transfer-encoding
user-agent
vary
via
www-authenticate""".split("\n")]


def integer(value: int, prefix: int, first: int = 0) -> bytes:
    """Encodes `value` with `prefix` bits in the first byte, whose other bits are those of `first`."""
    most = (1 << prefix) - 1
    if value < most:
        return bytes([first | value])
    out, value = bytearray([first | most]), value - most
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return integer(len(data), 7) + data


def literal(name: str | bytes, value: str | bytes, indexed: bool = False) -> bytes:
    """Encodes a header with a literal name; `indexed`: the peer keeps it in its table."""
    return (b"\x40" if indexed else b"\x00") + string(name) + string(value)


class Decoder:
    """Decodes one direction of a connection. Huffman codes stay as they are."""

    def __init__(self):
        self._table: list[tuple[str, str]] = []
        self._block, self._at = b"", 0

    def decode(self, block: bytes) -> list[tuple[str, str]]:
        self._block, self._at = block, 0
        headers = []
        while self._at < len(block):
            first = block[self._at]
            if first & 0x80:
                headers.append(self._entry(self._integer(7)))
            elif first & 0xe0 == 0x20:
                self._integer(5)  # the table's size, ignored: our table never overflows in a test
            else:
                index = self._integer(6 if first & 0x40 else 4)
                name = self._entry(index)[0] if index else self._string()
                headers.append((name, self._string()))
                if first & 0x40:
                    self._table.insert(0, headers[-1])
        return headers

    def _entry(self, index: int) -> tuple[str, str]:
        return STATIC[index - 1] if index <= len(STATIC) else self._table[index - len(STATIC) - 1]

    def _integer(self, prefix: int) -> int:
        most = (1 << prefix) - 1
        value, shift = self._next() & most, 0
        if value < most:
            return value
        while True:
            byte = self._next()
            value += (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def _string(self) -> str:
        size = self._integer(7)
        data = self._block[self._at:self._at + size]
        self._at += size
        return data.decode("latin-1")

    def _next(self) -> int:
        self._at += 1
        return self._block[self._at - 1]
