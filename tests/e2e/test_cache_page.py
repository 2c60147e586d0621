"""The picture of the KV cache: whole, bounded, without tokens, and the same over HTTP, gRPC and the command line."""

import base64
import hashlib
import http.client
import json
import re
import unittest

import grpc

import harness
from harness import run_cli
from quire.v1 import control_service_pb2 as cb
from quire.v1 import prefix_service_pb2 as prefixes
from quire.v1 import session_service_pb2 as sessions

WORDS = "the secret garden of words that nobody may read anywhere "
NAME = "rules </script><img src=x>\x1b[2J \N{RIGHT-TO-LEFT OVERRIDE}"


class CachePageTest(harness.TestCase):
    def fetch(self, path: str, host: str | None = None, method: str = "GET"):
        connection = http.client.HTTPConnection(self.server.admin_address, timeout=harness.DEADLINE)
        connection.request(method, path, headers={"Host": host or self.server.admin_address})
        answer = connection.getresponse()
        return answer, answer.read().decode()

    def picture(self) -> dict:
        answer, text = self.fetch("/debug/cache.json")
        self.assertEqual(answer.status, 200, text)
        self.assertLessEqual(len(text), 64 << 10)
        return json.loads(text)

    def check(self, picture: dict):
        stats = self.client.stats().blocks
        self.assertEqual(picture["num_blocks"], stats.total)
        sums = [sum(column) for column in zip(*picture["cells"])]
        self.assertEqual(sum(sums[:3]), stats.total)
        for i, node in enumerate(picture["nodes"]):
            self.assertLess(node["parent"], i)
            self.assertLessEqual(node["pinned"], node["held"])
            self.assertLessEqual(node["held"], node["blocks"])

    def test_the_picture(self):
        self.check(self.picture())
        prefix = self.client.prefixes.CreatePrefix(
            prefixes.CreatePrefixRequest(text=WORDS * 8, display_name=NAME), timeout=harness.DEADLINE)
        session = self.client.sessions.CreateSession(
            sessions.CreateSessionRequest(pinned=True), timeout=harness.DEADLINE)
        self.client.generate(WORDS * 5, session=session.name, max_tokens=3)
        for i in range(3):
            self.client.generate(f" {i} and more", prefix=prefix.name, max_tokens=3)

        def is_new(picture) -> bool:
            return any(p["saved"] > 0 for p in picture["prefixes"]) and sum(c[3] for c in picture["cells"]) > prefix.num_blocks

        pictures = []

        def look(_) -> bool:  # a picture may be 250 ms old
            pictures.append(self.picture())
            return is_new(pictures[-1])

        self.client.wait_until(look, "a new picture")
        picture = pictures[-1]
        self.check(picture)
        (shown,) = picture["prefixes"]
        self.assertEqual((shown["name"], shown["display_name"]), (prefix.name, NAME))
        self.assertEqual(shown["hits"], 3)
        (pinned,) = [node for node in picture["nodes"] if NAME in node["pins"]]
        self.assertEqual(pinned["blocks"], pinned["pinned"])
        self.assertTrue([node for node in picture["nodes"] if "a session" in node["pins"]])
        below = [node for node in picture["nodes"] if node["parent"] == picture["nodes"].index(pinned)]
        self.assertTrue(below, "what follows the prefix is shown under it")

        text = json.dumps(picture)
        for word in WORDS.split():
            self.assertNotIn(word, text.replace(json.dumps(NAME)[1:-1], ""))
        self.assertNotIn("token_ids", text)

        answer = self.client.control.GetCacheMap(cb.GetCacheMapRequest(cells=4096, max_nodes=512), timeout=harness.DEADLINE)
        self.assertEqual(sum(c.free + c.cached + c.held for c in answer.cells), answer.num_blocks)
        self.assertEqual(answer.num_sessions, 1)
        for bad in (dict(cells=0), dict(cells=4097), dict(max_nodes=513)):
            self.assert_status(grpc.StatusCode.INVALID_ARGUMENT,
                               lambda bad=bad: self.client.control.GetCacheMap(cb.GetCacheMapRequest(**bad)))

        shown = run_cli("cache", "--server", self.server.address).stdout
        self.assertIn("a session", shown)
        self.assertIn("<rules </script><img src=x>?[2J ?>", shown)
        self.assertNotIn("\x1b", shown)
        top = run_cli("top", "--server", self.server.address, "--count", "2", "--interval", "100ms").stdout
        self.assertIn("PREFIX", top)
        self.assertNotIn("\x1b", top)
        self.client.prefixes.DeletePrefix(prefixes.DeletePrefixRequest(name=prefix.name), timeout=harness.DEADLINE)
        self.client.sessions.CloseSession(sessions.CloseSessionRequest(name=session.name), timeout=harness.DEADLINE)

    def test_the_page(self):
        answer, page = self.fetch("/debug/cache")
        self.assertEqual(answer.status, 200)
        policy = answer.getheader("Content-Security-Policy")
        self.assertTrue(policy.startswith("default-src 'none'; "), policy)
        for tag, source in (("script", "script-src"), ("style", "style-src")):
            (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.S)
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            self.assertIn(f"{source} 'sha256-{digest}';", policy)
        self.assertEqual(self.fetch("/debug/cache", method="HEAD")[1], "")
        # A page of another site, whose name leads to this address.
        self.assertEqual(self.fetch("/debug/cache.json", host="evil.example")[0].status, 403)


if __name__ == "__main__":
    unittest.main()
