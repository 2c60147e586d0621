"""Clients that may look odd: with the limits as they are by default, none is cut or refused."""

import time
import unittest

import attacks
import raw_http2 as h2
from attacks import GENERATE, GENERATE_STREAM, MIB, Site
from harness import Client, Server
from quire.v1 import inference_service_pb2

OK, NOT_FOUND = 0, 5


class HonestTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server().ready()
        cls.addClassCleanup(cls.server.stop)

    def setUp(self):
        self.site = Site(self.server.address)
        self.addCleanup(self.site.close)
        self.client = Client(self.server.address)
        self.addCleanup(self.client.close)

    def tearDown(self):
        counts = attacks.turned_away(self.server)
        self.assertEqual(set(counts.values()), {0}, counts)

    def assert_ok(self, connection: h2.Connection, number: int):
        stream = connection.answer(number)
        self.assertEqual((stream.status, stream.reset), (OK, None), stream.headers)

    def test_two_hundred_cancels(self):
        for _ in range(200):
            start = time.monotonic()
            call = self.client.stream("the thing", max_tokens=2000, ignore_eos=True)
            next(call)
            call.cancel()
            time.sleep(max(0.0, 1 / 40 - (time.monotonic() - start)))
        self.client.generate("the thing", max_tokens=1)

    def test_a_hundred_calls_of_one_connection_one_by_one_and_at_once(self):
        for _ in range(100):
            self.client.generate("the thing", max_tokens=1)
        connection = self.site.connect()
        connection.wait(lambda: connection.settings)
        for number in range(1, 200, 2):
            connection.request(number, GENERATE, body=attacks.small_request())
        for number in range(1, 200, 2):
            self.assert_ok(connection, number)

    def test_a_ping_after_each_answer(self):
        """So do clients that measure the path, and windows are opened as data comes.

        The small window keeps the answer from ending while this process does not run.
        """
        connection = self.site.connect(hello=h2.PREFACE + h2.settings((h2.INITIAL_WINDOW_SIZE, 200)))
        request = inference_service_pb2.GenerateRequest(text="the thing")
        request.stop.max_tokens, request.stop.ignore_eos = 300, True
        connection.request(1, GENERATE_STREAM, body=request.SerializeToString())
        stream, seen, pings, answered = connection.stream(1), 0, 0, 0
        while connection.wait(lambda: len(stream.data) > seen or stream.ended) and not stream.ended:
            opened, seen = len(stream.data) - seen, len(stream.data)
            connection.send(h2.window_update(0, opened) + h2.window_update(1, opened))
            # Only one PING is in flight at a time. Between two PINGs gRPC must have sent data, because gRPC
            # limits PINGs without data between them.
            answered = answered + 1 if connection.pongs == pings else 0
            if answered > 1:
                connection.send(h2.frame(h2.PING, 0, 0, bytes(8)))
                pings, answered = pings + 1, 0
        self.assert_ok(connection, 1)
        self.assertGreater(pings, 0)

    def test_a_reader_that_pauses(self):
        connection = self.site.connect(hello=h2.PREFACE + h2.settings((h2.INITIAL_WINDOW_SIZE, 200)))
        request = inference_service_pb2.GenerateRequest(text="the thing")
        request.stop.max_tokens, request.stop.ignore_eos = 400, True
        connection.request(1, GENERATE_STREAM, body=request.SerializeToString())
        connection.wait(lambda: False, 1)
        self.assertFalse(connection.stream(1).ended)
        connection.send(h2.window_update(1, 1 << 20))
        self.assert_ok(connection, 1)

    def test_a_large_message_in_small_frames(self):
        """Its refusal is the service's, so all of it came."""
        request = inference_service_pb2.GenerateRequest(text="a" * (4 * MIB - 100), model="another")
        connection = self.site.connect()
        connection.request(1, GENERATE)
        body = h2.message(request.SerializeToString())
        self.assertTrue(connection.send_message(1, body, piece=1024, end=True))
        self.assertEqual(connection.answer(1).status, NOT_FOUND, connection.stream(1).headers)

    def test_a_small_message_in_single_bytes(self):
        connection = self.site.connect()
        for number in (1, 3):
            connection.request(number, GENERATE)
        for number in (1, 3):
            request = inference_service_pb2.GenerateRequest(text="a" * 2000)
            request.stop.max_tokens = 1
            connection.send_message(number, h2.message(request.SerializeToString()), piece=1, end=True)
            self.assert_ok(connection, number)

    def test_forty_connections_at_once(self):
        opened = [self.site.connect() for _ in range(40)]
        for connection in opened:
            connection.request(1, GENERATE, body=attacks.small_request())
        for connection in opened:
            self.assert_ok(connection, 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
