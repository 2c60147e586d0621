"""K and V on disk: a server that is stopped or killed leaves blocks with which the next one answers the same.

QUIRE_KV_DISK_ROUNDS is the number of kills; CI takes a few.
"""

import json
import os
import pathlib
import random
import shutil
import signal
import tempfile
import threading
import unittest

import grpc

import make_tiny_model
from harness import REPOSITORY, Client, Server

ROUNDS = int(os.environ.get("QUIRE_KV_DISK_ROUNDS", 3))
NUM_CALLERS = 3
NUM_PROMPTS = 20
GREEDY = dict(temperature=0, max_tokens=8, ignore_eos=True, token_ids=True)


def prompt_of(number: int) -> list[int]:
    """Up to 300 tokens; prompts with the same quotient begin alike."""
    begin, end = random.Random(number // 4), random.Random(number)
    return [33 + begin.randrange(60) for _ in range(150)] + [33 + end.randrange(60) for _ in range(end.randrange(150))]


class Caller(threading.Thread):
    """Sends prompts until the server is gone, and notes the answers."""

    def __init__(self, address: str, draw: random.Random):
        super().__init__()
        self.client, self.draw = Client(address), draw
        self.answers: list[tuple[int, list[int]]] = []
        self.disk_tokens = 0
        self.error = None
        self.start()

    def run(self):
        try:
            while True:
                number = self.draw.randrange(NUM_PROMPTS)
                answer = self.client.generate(prompt_of(number), **GREEDY)
                self.answers.append((number, list(answer.completions[0].token_ids)))
                self.disk_tokens += answer.usage.disk_tokens
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                self.error = error
        finally:
            self.client.close()


class KvDiskTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="quire-state-"))
        self.addCleanup(shutil.rmtree, self.directory)

    def start(self, *flags: str) -> Server:
        server = Server("--kv_disk_dir", str(self.directory), "--kv_disk_mib", "16", *flags)
        self.addCleanup(lambda: server.poll() is None and server.stop())
        return server.ready()

    def test_a_prompt_of_an_earlier_server_is_read(self):
        answers = []
        for want in (0, 288):
            server = self.start()
            client = Client(server.address)
            answer = client.generate([33 + i % 60 for i in range(300)], **GREEDY)
            self.assertEqual(answer.usage.disk_tokens, want)
            self.assertEqual(answer.usage.cached_tokens, want)
            answers.append(list(answer.completions[0].token_ids))
            metrics = server.metrics()
            self.assertEqual(metrics["quire_kv_disk_hits_total"], want / 16)
            self.assertEqual(metrics["quire_kv_disk_errors_total"], 0)
            client.close()
            self.assertEqual(server.stop(), 0)
        self.assertEqual(*answers)
        for path in self.directory.iterdir():
            self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        server = self.start("--kv_dtype", "f16")
        client = Client(server.address)
        self.assertEqual(client.generate([33 + i % 60 for i in range(300)], **GREEDY).usage.cached_tokens, 0)
        client.close()

    def test_answers_are_the_same_after_kills(self):
        draw = random.Random(7)
        plain = Server().ready()
        client = Client(plain.address)
        want = [list(client.generate(prompt_of(n), **GREEDY).completions[0].token_ids) for n in range(NUM_PROMPTS)]
        client.close()
        plain.stop()
        num_answers = disk_tokens = 0
        for round in range(ROUNDS + 1):
            # Few blocks, so that some are evicted and come back.
            server = self.start("--kv_cache_mib", "1", "--max_model_len", "512", "--max_num_seqs", "4")
            callers = [Caller(server.address, random.Random(100 * round + i)) for i in range(NUM_CALLERS)]
            kill_at = draw.randrange(3, 60)
            while sum(len(caller.answers) for caller in callers) < kill_at and callers[0].is_alive():
                callers[0].join(draw.uniform(0, 0.01))
            server.signal(signal.SIGKILL)
            server.wait()
            for caller in callers:
                caller.join()
                self.assertIsNone(caller.error)
                for number, answer in caller.answers:
                    self.assertEqual(answer, want[number])
                num_answers += len(caller.answers)
                disk_tokens += caller.disk_tokens
        self.assertGreater(disk_tokens, 0)
        print(f"{ROUNDS} kills: {num_answers} answers, all the same, {disk_tokens} tokens read from disk")

    def assert_refused(self, says: str, *flags: str, status: int = 1, model: pathlib.Path | None = None):
        server = Server(*flags, model=model)
        self.assertEqual(server.wait(), status)
        self.assertIn(says, server.log())

    def test_what_cannot_be_kept_is_refused_with_the_cure(self):
        self.assert_refused("name it with --kv_disk_dir", "--kv_disk_mib", "16")
        windows = self.directory / "windows"
        make_tiny_model.write_mistral(windows)
        self.assert_refused("blocks of such a model are not kept on disk: leave it out", "--kv_disk_dir",
                            str(self.directory / "state of windows"), "--kv_disk_mib", "16", model=windows)
        # A block of 256 tokens is 384 KiB, and four of them are the least.
        large = ("--kv_disk_dir", str(self.directory / "state"), "--block_size", "256", "--kv_disk_mib")
        stories = REPOSITORY / "models/quire-stories"
        self.assert_refused("want at least 2, for 4 blocks of 393216 bytes, got 1 MiB", *large, "1", model=stories)
        self.assertEqual(Server(*large, "2", model=stories).ready().stop(), 0)

    def test_sizes_out_of_range_are_refused(self):
        most = 64 << 20
        for flag, least in (("--kv_disk_mib", 0), ("--prefix_disk_mib", 1)):
            for value in (least - 1, most + 1, "many", ""):
                says = f'{flag}: want an integer {least}..{most}, got "{value}"'
                self.assert_refused(says, "--kv_disk_dir", str(self.directory), flag, str(value), status=2)
        # The largest is more than any disk has, and takes nothing of it.
        self.start("--kv_disk_mib", str(most))

    def test_a_path_that_is_no_directory_is_refused(self):
        file, link = self.directory / "file", self.directory / "link"
        file.touch()
        link.symlink_to(self.directory)
        for path, says in ((file, "cannot open: Not a directory"), (link, "cannot open: Not a directory"),
                           (self.directory / "none" / "none", "cannot create: No such file or directory")):
            self.assert_refused(f"{path}: {says}", "--kv_disk_dir", str(path), "--kv_disk_mib", "16")


if __name__ == "__main__":
    unittest.main()
