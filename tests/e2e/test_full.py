"""A server without room for more connections: who is let in, and who makes way."""

import resource
import time
import unittest

import attacks
import raw_http2 as h2
from attacks import EXTRA_MIB, LONGEST_GAP, SLACK, Site
from harness import Client, Server
from process_memory import ProcessMemory
from victim import Victim

HANDSHAKE = 2  # seconds, of the flags below
OK = 0


class FewFilesTest(unittest.TestCase):
    """More sockets than the server may have files."""

    def test_the_listener_outlives_them(self):
        server = Server("--handshake_timeout", f"{HANDSHAKE}s", limits={resource.RLIMIT_NOFILE: 100})
        self.addCleanup(server.stop)
        server.ready()
        memory = ProcessMemory(server.pid)
        files, level = memory.open_files(), memory.resident_mib()
        victim = Victim(server.address)
        self.addCleanup(victim.close)
        victim.wait_for_answers(1)
        for _ in range(3):
            with Site(server.address) as site:
                attacks.sockets_at_once(site, 200)
        report = victim.wait_for_answers(20)
        self.assertEqual((report.wrong, report.errors), (0, []))
        self.assertLess(report.longest_gap, LONGEST_GAP)
        with Site(server.address) as site:  # 40 addresses: no limit by address helps
            attacks.sockets_at_once(site, 400, sources=40)
            time.sleep(HANDSHAKE)
        client = Client(server.address)
        self.addCleanup(client.close)
        self.assertEqual(len(client.generate("a", timeout=HANDSHAKE + SLACK, max_tokens=1).completions), 1)
        deadline = time.monotonic() + SLACK
        while memory.open_files() > files + 6 and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertLessEqual(memory.open_files(), files + 6)  # connections of victim and client
        self.assertLess(memory.resident_mib() - level, 40 + EXTRA_MIB)


class FullTest(unittest.TestCase):
    """A full server ends connections without calls to let others in; who may not come in ends nobody's."""

    PLACES, EACH = 8, 4

    def setUp(self):
        self.server = Server("--max_connections", str(self.PLACES), "--max_connections_per_address", str(self.EACH),
                             "--handshake_timeout", f"{4 * HANDSHAKE}s").ready()
        self.addCleanup(self.server.stop)
        self.site = Site(self.server.address)
        self.addCleanup(self.site.close)
        self.honest = [self.site.connect(source=f"127.0.3.{i + 1}") for i in range(self.PLACES - self.EACH)]
        for connection in self.honest:
            self.assert_answered(connection, 1)

    def assert_answered(self, connection: h2.Connection, number: int):
        self.assertEqual(attacks.ask(connection, number).status, OK)

    def assert_honest_live(self):
        for connection in self.honest:
            self.assert_answered(connection, 3)

    def test_who_has_had_his_share_ends_nobodys(self):
        taken = [self.site.connect() for _ in range(self.EACH)]
        for connection in taken:
            self.assert_answered(connection, 1)
        attacks.connections_come_and_go(self.site, 40, pause=0.01)
        self.assert_honest_live()

    def test_who_says_nothing_ends_nobodys(self):
        attacks.sockets_at_once(self.site, 40, sources=40)
        time.sleep(1)
        self.assert_honest_live()

    def test_who_comes_in_takes_a_place_of_the_address_that_has_most(self):
        taken = [self.site.connect(source="127.0.1.1") for _ in range(self.EACH)]
        for connection in taken:
            self.assert_answered(connection, 1)
        self.assert_answered(self.site.connect(), 1)
        self.assertTrue(taken[0].wait_end(SLACK))
        self.assertEqual(taken[0].goaway[0], 0, taken[0].goaway)  # no fault of its own
        self.assert_honest_live()


if __name__ == "__main__":
    unittest.main(verbosity=2)
