"""Probes get true answers, whatever other clients do to the admin port; a log that nobody reads delays nothing."""

import contextlib
import resource
import signal
import socket
import threading
import unittest

import grpc

import harness
from harness import Client, running

PROMPT = "the thing in another hour"


def connect(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=harness.DEADLINE)


def is_held(connection: socket.socket) -> bool:
    """True when the other end has neither answered nor closed."""
    connection.setblocking(False)
    try:
        connection.recv(1)
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


class UnreadLogTest(unittest.TestCase):
    CALLS = 300  # far more lines than the pipe holds

    def test_nothing_waits_for_its_reader(self):
        with running() as (server, client):
            server.stop_reading()
            for _ in range(self.CALLS):
                client.generate(PROMPT, timeout=20, max_tokens=1)
            self.assertEqual(server.get("/livez")[0], 200)
            server.signal(signal.SIGTERM)
            self.assertEqual(server.wait(), 0)  # before anything more is read

    def test_a_reader_that_comes_back_finds_every_line(self):
        with running() as (server, client):
            server.stop_reading()
            for i in range(self.CALLS):
                client.generate(PROMPT, timeout=20, max_tokens=1, request_id=f"call-{i}")
            server.go_on_reading()
            server.wait_for_log(f'request_id="call-{self.CALLS - 1}"')
            self.assertEqual(server.log().count('rpc: Generate request_id="call-'), self.CALLS)
            self.assertEqual(server.metrics()["quire_log_lines_dropped_total"], 0)

    def test_calls_that_are_refused_leave_few_lines(self):
        with running() as (server, client):
            for _ in range(200):
                with self.assertRaises(grpc.RpcError):
                    client.generate(PROMPT, temperature=-1)
            self.assertEqual(server.metrics()['quire_rpcs_total{rpc="Generate",code="INVALID_ARGUMENT"}'], 200)
            server.wait_for_log("rpc: Generate ")
            self.assertLess(server.log().count("rpc: Generate "), 200)


class AdminPortTest(unittest.TestCase):
    def assert_probed_before_any_time_out(self, server, strangers: int):
        """A probe is answered although `strangers` came first and none of them has been disconnected."""
        for _ in range(5):  # a busy machine may take longer than the time that the strangers have
            with contextlib.ExitStack() as stack:
                held = [stack.enter_context(connect(server.admin_address)) for _ in range(strangers)]
                self.assertEqual(server.get("/livez"), (200, "ok\n"))
                if is_held(held[-1]):
                    return
        self.fail("every probe waited for the strangers' time-out")

    def test_idle_connections_delay_no_probe(self):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limit)
        with running() as (server, _):
            self.assert_probed_before_any_time_out(server, 20)
            self.assert_probed_before_any_time_out(server, 1000)
            self.assertEqual(server.get("/metrics")[0], 200)

    def test_requests_that_drip_delay_no_probe(self):
        stop = threading.Event()
        with running() as (server, _):
            def drip():
                while not stop.is_set():
                    with connect(server.admin_address) as connection, contextlib.suppress(OSError):
                        connection.sendall(b"GET /livez HTTP/1.1\r\n")
                        while not stop.wait(0.2):
                            connection.sendall(b"X-Drip: drop\r\n")

            drippers = [threading.Thread(target=drip) for _ in range(8)]
            for dripper in drippers:
                dripper.start()
            try:
                for path in ("/livez", "/readyz", "/metrics"):
                    self.assertEqual(server.get(path)[0], 200)
            finally:
                stop.set()
                for dripper in drippers:
                    dripper.join()


class ListenerTest(unittest.TestCase):
    def is_answered(self, server) -> bool:
        client = Client(server.address)
        try:
            return client.health(timeout=5) in ("SERVING", "NOT_SERVING")
        except grpc.RpcError:
            return False
        finally:
            client.close()

    def test_livez_is_green_exactly_when_calls_are_answered(self):
        server = harness.Server(limits={resource.RLIMIT_NOFILE: 100}).ready()
        try:
            self.assertEqual(server.get("/livez"), (200, "ok\n"))
            self.assertTrue(self.is_answered(server))
            for connection in [connect(server.address) for _ in range(200)]:
                connection.close()
            for _ in range(harness.DEADLINE // 5):
                answered = self.is_answered(server)
                live, why = server.get("/livez")
                if answered == (live == 200):
                    break
            else:
                self.fail(f"calls are {'' if answered else 'not '}answered, and /livez says {live}: {why}")
            self.assertEqual(server.get("/readyz")[0], live)
            if not answered:
                self.assertIn("listener", why)
                self.assertIn("health: the server hangs", server.log())
        finally:
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
