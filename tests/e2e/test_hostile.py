"""Connections that no honest client makes, each with its bounds: what the server holds for them, what it holds after,
and what another client sees meanwhile.

Plain, under TLS, and with tokens of which the attacker has none. A table of what was measured is printed at the end.
QUIRE_E2E_EXTRA_MIB is added to every bound on memory: for a server under a sanitizer, which keeps what is freed.
"""

import contextlib
import dataclasses
import ssl
import time
import unittest

import attacks
import harness
import raw_http2 as h2
from attacks import EXTRA_MIB, GENERATE, LONGEST_GAP, MIB, SLACK, Site
from certificates import make_authority, make_certificate, path, server_tls
from harness import Server
from process_memory import ProcessMemory
from victim import Victim

TOKEN = "the-only-token-0123456789"
HANDSHAKE, MESSAGE, LINGER = 2, 2, 1  # seconds, of the flags below
UNFINISHED_MIB = 16
PER_ADDRESS = 32
OPEN_CALLS = 256
LIMITS = ("--handshake_timeout", f"{HANDSHAKE}s", "--message_timeout", f"{MESSAGE}s", "--stalled_stream_timeout",
          f"{LINGER}s", "--max_connections", "64", "--max_connections_per_address", str(PER_ADDRESS),
          "--max_unfinished_mib", str(UNFINISHED_MIB), "--max_concurrent_streams", "128", "--max_header_bytes", "16384",
          "--max_message_bytes", str(4 * MIB), "--max_open_calls", str(OPEN_CALLS),
          "--kv_cache_mib", "8")  # its pages stay in memory once they have been used
OK, CANCELLED, INVALID_ARGUMENT, DEADLINE_EXCEEDED, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 0, 1, 3, 4, 7, 8
UNIMPLEMENTED, INTERNAL, UNAUTHENTICATED = 12, 13, 16

CUT_FOR = {"ping": "pings", "settings": "settings", "continuation, small": "headers", "continuation, empty": "headers",
           "continuation, whole frames": "headers", "reset of one stream": "resets", "rapid reset": "resets",
           "rapid reset with requests": "resets"}  # the other floods: "frames"
SERVING = h2.message(b"\x08\x01")
rows: list[str] = []  # of the table


def setUpModule():
    make_authority("authority")
    make_certificate("server", "authority")
    (harness.SCRATCH / "tokens").write_text(TOKEN + "\n")


def tearDownModule():
    print("\n".join(["", f"{'':9}{'attack':34}{'s':>6}{'peak MiB':>10}{'after':>7}{'answers':>9}{'gap ms':>8}", *rows]),
          flush=True)


def cut(flood: str) -> dict[str, int]:
    """What a flood is counted as."""
    return {f"connections_cut/{CUT_FOR.get(flood, 'frames')}": 1}


@dataclasses.dataclass
class Bounds:
    peak_mib: float = 12  # above what it had before
    after_mib: float = 48  # above what it had before the first attack
    seconds: float = 10


class AttackedTest(unittest.TestCase):
    """One server and one victim for the class. Here without TLS and tokens."""

    mode = "plain"
    flags: tuple[str, ...] = ()
    token = ""  # the victim's
    ca = ""

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*LIMITS, *cls.more_flags())
        cls.addClassCleanup(cls.stop)
        cls.server.ready()
        cls.memory = ProcessMemory(cls.server.pid)
        cls.victim = Victim(cls.server.address, cls.ca, cls.token)
        cls.addClassCleanup(cls.victim.close)
        assert cls.victim.wait_for_answers(30).wrong == 0
        cls.level = cls.memory.resident_mib()
        cls.connections = cls.open_connections()

    @classmethod
    def open_connections(cls) -> float:
        return cls.server.metrics()["quire_connections"]

    @classmethod
    def stop(cls):
        status = cls.server.stop()
        assert status == 0, f"the server ended with {status}:\n{cls.server.log()[-4000:]}"

    @classmethod
    def more_flags(cls) -> list[str]:
        return []

    def context(self) -> ssl.SSLContext | None:
        """For an attacker's connections."""
        return None

    def owner_headers(self) -> tuple[tuple[str, str], ...]:
        """For requests of one who may call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def site(self) -> Site:
        return Site(self.server.address, self.context())

    @contextlib.contextmanager
    def attack(self, name: str, counts: dict[str, int] | None = None, **bounds: float):
        """A site to attack, whose connections close with it. `counts`: how often the server must at least have turned
        it away, by "what/why".
        """
        allowed = Bounds(**bounds)
        # An address may have so many connections, and a busy server still counts those of the attack before.
        deadline = time.monotonic() + 8
        while self.open_connections() > self.connections and time.monotonic() < deadline:
            time.sleep(0.05)
        before = attacks.turned_away(self.server)
        self.victim.report()
        self.memory.forget_peak()
        resident, start = self.memory.resident_mib(), time.monotonic()
        try:
            with self.site() as site:
                yield site
        finally:
            seconds, peak = time.monotonic() - start, self.memory.peak_mib() - resident
            report = self.victim.wait_for_answers(1)
            after = self.settled(allowed.after_mib + EXTRA_MIB)
            rows.append(f"{self.mode:9}{name:34}{seconds:6.1f}{peak:10.1f}{after:7.1f}{report.answers:9}"
                        f"{1000 * report.longest_gap:8.0f}")
        counted = {key: value - before[key] for key, value in attacks.turned_away(self.server).items()
                   if value != before[key]}
        self.assertEqual((report.wrong, report.errors), (0, []), name)
        self.assertGreater(report.answers, 0, name)
        self.assertLess(report.longest_gap, LONGEST_GAP, name)
        self.assertLess(peak, allowed.peak_mib + EXTRA_MIB, name)
        self.assertLess(after, allowed.after_mib + EXTRA_MIB, name)
        self.assertLess(seconds, allowed.seconds, name)
        for key, least in (counts or {}).items():
            self.assertGreaterEqual(counted.get(key, 0), least, f"{name}: {key} of {counted}")

    def settled(self, bound: float, seconds: float = 8) -> float:
        """MiB above the level before the first attack, once they are below `bound`, or after so many seconds."""
        deadline = time.monotonic() + seconds
        while (above := self.memory.resident_mib() - self.level) >= bound and time.monotonic() < deadline:
            time.sleep(0.1)
        if above >= bound:
            type(self).level += above  # one attack fails for it, not all that follow
        return above

    def refusal(self, code: int) -> int:
        """The status that a stranger gets: UNAUTHENTICATED if the server wants a token, otherwise `code`."""
        return UNAUTHENTICATED if self.token else code

    def assert_answered(self, connection: h2.Connection, number: int):
        """The connection still serves."""
        self.assertEqual(attacks.ask(connection, number, *self.owner_headers()).status, OK)


class HostileTest(AttackedTest):
    def test_floods_are_cut(self):
        for name in attacks.FLOODS:
            # gRPC may end the connection of these floods itself, and then it sends no GOAWAY.
            wordless = name in ("trailers", "streams without end")
            with self.subTest(name), self.attack(name, {} if wordless else cut(name)) as site:
                connection = attacks.flood(site, name)
                self.assertTrue(connection.ended, f"{name}: not cut after {connection.sent} bytes")
                if connection.goaway is None:
                    self.assertTrue(wordless, f"{name}: cut without a word")
                else:
                    # In the flood "trailers", the server may refuse the stream: at once if it wants a token,
                    # or when the message timeout has passed. Further HEADERS of this stream are then a
                    # protocol error.
                    errors = (h2.ENHANCE_YOUR_CALM, *[h2.PROTOCOL_ERROR] * (name == "trailers"))
                    self.assertIn(connection.goaway[0], errors, (name, connection.goaway))
                    self.assertTrue(connection.goaway[1], f"{name}: without a reason")

    def test_floods_of_a_client_that_reads_nothing_are_cut(self):
        for name in ("ping", "settings", "rapid reset"):
            with self.subTest(name), self.attack(f"{name}, unread", cut(name)) as site:
                self.assertTrue(attacks.flood(site, name, polite=False).ended, name)

    def test_bad_frames_hold_nothing(self):
        with self.attack("bad frames") as site:
            for name, frames in attacks.BAD_FRAMES.items():
                with self.subTest(name):
                    connection = site.connect()
                    connection.send(frames)
                    self.assertTrue(attacks.answers_or_ended(connection), f"{name}: neither answered nor ended")
                    connection.close()

    def test_odd_header_blocks_hold_nothing(self):
        with self.attack("header blocks", seconds=20) as site:
            for name in attacks.HEADER_BLOCKS:
                with self.subTest(name):
                    connection = attacks.header_blocks(site, name)
                    self.assertTrue(attacks.answers_or_ended(connection), f"{name}: neither answered nor ended")
                    connection.close()

    def test_padding_is_no_header(self):
        with self.attack("hidden heads", seconds=20) as site:
            connection = site.connect()
            paddings = [bytes(size) for size in (0, 8, 32, 255)]
            for size in attacks.PADDING_THAT_IS_HPACK:
                paddings += [attacks.hidden_head(size, attacks.REFLECTION.format(version)) for version in ("", "alpha")]
            for number, padding in zip(attacks.stream_numbers(), paddings):
                stream = attacks.padded_health_check(connection, number, padding)
                self.assertEqual((stream.status, stream.data), (OK, SERVING), padding)
            self.assertFalse(connection.ended)
            # The window that padding takes is given back: more padding than a connection has window.
            first = 2 * len(paddings) + 1
            for number in range(first, first + 2 * 300, 2):
                self.assertEqual(attacks.padded_health_check(connection, number, bytes(255)).status, OK)
            self.assert_answered(connection, 9001)

    def test_reflection_that_nobody_reads_is_given_up(self):
        # Its answers repeat the question, so a long one is refused, and short ones are held for LINGER seconds. The
        # owner of the token is no operator.
        for name_bytes, status, peak in ((400, CANCELLED, 12), (3 * MIB, INVALID_ARGUMENT, 48)):
            with self.attack(f"unread reflection, {name_bytes}", peak_mib=peak, seconds=30) as site:
                connection = attacks.unread_reflection(site, 64, name_bytes, *self.owner_headers())
                for number in range(1, 128, 2):
                    stream = connection.answer(number, LINGER + 2 * SLACK)
                    self.assertEqual(stream.status, PERMISSION_DENIED if self.token else status, number)

    def test_other_protocols_are_turned_away(self):
        with self.attack("other protocols") as site:
            opened = []
            for data in attacks.OTHER_PROTOCOLS.values():
                opened.append(site.socket(data))
            self.assertEqual(attacks.closed_within(opened, HANDSHAKE + SLACK), len(opened))
            for name, data in attacks.OTHER_PROTOCOLS.items():
                self.assertTrue(site.connect(hello=data).wait_end(HANDSHAKE + SLACK), name)

    def test_many_connections_of_one_address_leave_room_for_others(self):
        with self.attack("200 connections", {"connections_refused/address": 200 - PER_ADDRESS}) as site:
            held = attacks.sockets_at_once(site, 200)
            self.assertEqual(attacks.closed_within(held, HANDSHAKE + SLACK), len(held))
        with self.attack("300 come and go") as site:
            attacks.connections_come_and_go(site, 300)

    def test_what_never_arrives_is_given_up(self):
        late = "streams_refused/headers" if self.token else "streams_refused/timeout"
        with self.attack("silence", {"connections_refused/hello": 17, late: 3}) as site:
            start = time.monotonic()
            unfinished = attacks.never_whole(site)
            silent = attacks.half_handshakes(site, 16) + [site.socket(h2.PREFACE[:10])]
            slow = attacks.slow_preface(site, 4 * HANDSHAKE)
            self.assertTrue(slow.ended, "a preface a byte at a time")
            self.assertLess(time.monotonic() - start, HANDSHAKE + SLACK)
            self.assertEqual(attacks.closed_within(silent, SLACK), len(silent))
            for number in (1, 3, 5):
                self.assertEqual(unfinished.answer(number, SLACK).status, self.refusal(DEADLINE_EXCEEDED), number)
            self.assertFalse(unfinished.ended)
            self.assert_answered(unfinished, 7)

    def test_calls_without_a_message_are_few(self):
        # Opens 24 x 128 calls. The server may keep OPEN_CALLS of them, plus one call of each connection.
        why = "headers" if self.token else "streams"
        with self.attack("calls without a message", {f"streams_refused/{why}": 24 * 127 - OPEN_CALLS}, peak_mib=28) as site:
            attacks.calls_without_a_message(site, connections=24, streams=128)
            time.sleep(1)  # until the server has read them all

    def test_half_messages_are_counted_and_given_up(self):
        # Sends 96 unfinished messages of 15/16 MiB. The server may hold UNFINISHED_MIB in all, and a quarter
        # of that for one connection.
        refused = {"streams_refused/headers": 96} if self.token else {"streams_refused/unfinished": 80}
        with self.attack("half messages", refused, peak_mib=3 * UNFINISHED_MIB) as site:
            opened = attacks.half_messages(site, connections=6, streams=16, size=MIB)
            for connection in opened:
                for number in range(1, 32, 2):
                    status = connection.answer(number, MESSAGE + SLACK).status
                    refusals = (self.refusal(RESOURCE_EXHAUSTED), self.refusal(DEADLINE_EXCEEDED))
                    self.assertIn(status, refusals)
                self.assertFalse(connection.ended)
                self.assert_answered(connection, 101)

    def test_messages_in_single_bytes_cost_what_they_hold(self):
        with self.attack("single bytes") as site:
            attacks.half_messages(site, connections=2, streams=16, size=4000, piece=1)

    def test_a_message_too_large_is_refused_by_its_prefix(self):
        why = "headers" if self.token else "message_size"
        with self.attack("300 MiB, says the prefix", {f"streams_refused/{why}": 1}) as site:
            connection = attacks.says_300_mib(site)
            self.assertEqual(connection.answer(1, 5).status, self.refusal(RESOURCE_EXHAUSTED))
            self.assertLess(connection.sent, 4 * MIB)
            self.assert_answered(connection, 3)

    def test_nothing_is_inflated(self):
        for encoding in ("gzip", "deflate", "br", None):
            with self.subTest(encoding), self.attack(f"64 MiB in 64 KiB, {encoding}") as site:
                connection = attacks.compressed(site, encoding)
                wanted = UNIMPLEMENTED if encoding else self.refusal(INTERNAL)
                self.assertEqual(connection.stream(1).status, wanted)
                self.assert_answered(connection, 3)

    def test_answers_that_nobody_reads_are_given_up(self):
        # The client asks for eight answers of 4 MB and reads none. It can make the server hold them for
        # LINGER seconds.
        with self.attack("unread answers", peak_mib=128, seconds=20) as site:
            connection = attacks.unread_answers(site, 262, 1_000_000, 8, *self.owner_headers())
            for number in range(1, 16, 2):
                stream = connection.answer(number, LINGER + 2 * SLACK)
                self.assertTrue(stream.ended or connection.ended, f"stream {number} is held for ever")

    def test_streams_that_nobody_reads_are_given_up(self):
        with self.attack("unread streams", peak_mib=48, seconds=20) as site:
            connection = attacks.unread_streams(site, 32, *self.owner_headers())
            for number in range(1, 64, 2):
                stream = connection.answer(number, LINGER + 2 * SLACK)
                self.assertTrue(stream.ended or connection.ended, f"stream {number} is held for ever")


class HostileTlsTest(HostileTest):
    mode = "TLS"

    @classmethod
    def setUpClass(cls):
        cls.ca = path("authority.pem")
        super().setUpClass()

    @classmethod
    def more_flags(cls) -> list[str]:
        return server_tls()

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=path("authority.pem"))
        context.set_alpn_protocols(["h2"])
        return context


class HostileTokenTest(HostileTest):
    """Who attacks has no token; what is said to him, is said before his message is taken in."""

    mode = "token"
    token = TOKEN

    @classmethod
    def more_flags(cls) -> list[str]:
        return ["--auth_token_file", str(harness.SCRATCH / "tokens")]

    def test_a_stranger_is_told_before_his_message(self):
        with self.attack("no token", {"streams_refused/headers": 4}) as site:
            connection = site.connect()
            for number, header in enumerate((None, "", "Bearer", f"Bearer {TOKEN}x")):
                more = () if header is None else (("authorization", header),)
                connection.request(2 * number + 1, GENERATE, *more)
                self.assertEqual(connection.answer(2 * number + 1, MESSAGE / 2).status, UNAUTHENTICATED, header)
            self.assert_answered(connection, 9)


if __name__ == "__main__":
    unittest.main(verbosity=2)
