"""The log: one line for each event, whatever a stranger sends, in either format, and less of it than he sent."""

import json
import re
import time
import unittest

import attacks
import harness
import raw_http2 as h2
from harness import Client, Server

FORGED = "2026-01-02T03:04:05.678Z INFO rpc: Generate caller=forged"
PLAIN = re.compile(r'[-0-9]{10}T[0-9:.]{12}Z (DEBUG|INFO|WARNING|ERROR) [a-z]+: [\x20-\x7e]*')
HEADERS = ("te", "content-type", "grpc-encoding", "grpc-timeout", "user-agent", "grpc-accept-encoding", "x-request-id",
           "authorization", "grpc-internal-encoding-request", "grpc-previous-rpc-attempts", "grpc-retry-pushback-ms")


def parsed(line: str, is_json: bool) -> str:
    """The message of a line that is as a line must be."""
    if is_json:
        fields = json.loads(line)
        assert {"time", "level", "component", "message"} <= set(fields), line
        return fields["message"]
    assert PLAIN.fullmatch(line), repr(line)
    return line


class LogTest(unittest.TestCase):
    is_json = False

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--log_format", "json" if cls.is_json else "text")
        cls.addClassCleanup(cls.server.stop)
        pattern = r'"listen":"([^"]*)"' if cls.is_json else r' listen="([^"]*)"'
        cls.address = cls.server.wait_for_log(pattern).group(1)

    def setUp(self):
        self.mark = len(self.server.log())

    def grown(self) -> str:
        """What was logged since the test began. A call of our own comes last, so what came before is written."""
        client = Client(self.address)
        client.tokenize("the")
        client.close()
        deadline = time.monotonic() + harness.DEADLINE
        while "Tokenize" not in self.server.log()[self.mark:] and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.server.log()[self.mark:]

    def test_every_line_from_the_first_on_keeps_to_the_format(self):
        self.grown()
        for line in self.server.log().splitlines():
            parsed(line, self.is_json)

    def test_no_header_makes_a_second_line(self):
        with attacks.Site(self.address) as site:
            for name in HEADERS:
                for byte in ("\n", "\r", "\x1b", "\x7f", "\x85", "\u2028"):
                    connection = site.connect()
                    connection.request(1, attacks.GENERATE, (name, f"a{byte}{FORGED}"), body=attacks.small_request())
                    connection.answer(1, seconds=0.05)
                site.close()
        for line in self.grown().splitlines():
            self.assertFalse(parsed(line, self.is_json).startswith(FORGED), line)
            self.assertNotIn("\x1b", line)

    def test_a_flood_logs_less_than_it_sends(self):
        sent, start = 0, time.monotonic()
        with attacks.Site(self.address) as site:
            for _ in range(40):
                connection = site.connect()
                for number in range(1, 101, 2):  # values that gRPC repeats in its log
                    data = h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, number,
                                    h2.header_block(attacks.GENERATE, ("te", "x" * 200), ("grpc-timeout", "y" * 50)))
                    sent += len(data)
                    connection.send(data)
                connection.answer(99, seconds=0.2)
                site.close()
        log, seconds = self.grown(), time.monotonic() - start
        self.assertLess(len(log), sent)
        self.assertLess(log.count("\n"), 10 * 4 * (seconds + 2))  # kinds of lines

    def test_cut_connections_are_counted_rather_than_listed(self):
        start = time.monotonic()
        with attacks.Site(self.address) as site:
            for _ in range(200):
                connection = site.connect()
                connection.send(h2.frame(h2.CONTINUATION, 0, 1, b"x"))  # without HEADERS before it
                connection.wait_end(5)
                site.close()
        log, seconds = self.grown(), time.monotonic() - start
        cut = log.count("connection cut")
        self.assertGreater(cut, 0)
        self.assertLessEqual(cut, 10 * (seconds + 1))


class JsonLogTest(LogTest):
    is_json = True

    def test_the_words_of_a_server_that_cannot_start_are_json(self):
        for flags in ({"listen": self.address}, {"model": harness.SCRATCH / "no-model"}):
            second = Server("--log_format", "json", **flags)
            self.assertEqual(second.wait(), 1)
            last = json.loads(second.log().splitlines()[-1])
            self.assertEqual((last["level"], last["message"]), ("ERROR", "the process ends"))
            self.assertIn("quire-server: ", last["error"])

    def test_what_is_logged_before_the_model_is_loaded_is_json_too(self):
        tokens = harness.SCRATCH / "log-tokens"
        tokens.write_text("token-of-alice-0123456789\n")
        server = Server("--log_format", "json", "--auth_token_file", str(tokens))
        self.addCleanup(server.stop)
        server.wait_for_log('"message":"ready"')
        lines = server.log().splitlines()
        self.assertIn("loaded", parsed(lines[0], True))
        for line in lines:
            parsed(line, True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
