"""Servers that are killed under their streams: each answer is that of an undisturbed server, to the byte.

QUIRE_RESUME_ROUNDS is the number of kills; CI takes a few.
"""

import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
import unittest

import grpc

import harness
import resuming
from harness import Client, Server, make_request, pb
from quire.v1 import session_service_pb2 as sb
from test_sessions import Conversation, SessionCalls

ROUNDS = int(os.environ.get("QUIRE_RESUME_ROUNDS", 4))
NUM_STREAMS = 16
NUM_TOKENS = 300
TRIES = 30  # a restart takes seconds on a machine that is busy


def requests() -> list[pb.GenerateRequest]:
    """Greedy and sampled ones, with one sample and with two, some with penalties, stop strings and echo."""
    all = []
    for i in range(NUM_STREAMS):
        options = {"max_tokens": NUM_TOKENS, "min_tokens": 200, "ignore_eos": i % 4 == 0, "seed": 100 + i,
                   "temperature": 0.0 if i % 2 == 0 else 0.9, "n": 2 if i % 8 == 3 else 1}
        if i % 3 == 1:
            options |= {"repetition_penalty": 1.2, "presence_penalty": 0.3, "penalty_last_n": 40}
        if i % 4 == 1:
            options |= {"stop": ["the ", "q"], "echo": True}
        all.append(make_request([65 + (7 * i + 3 * j) % 26 for j in range(10 + i)], **options))
    return all


class Answer(threading.Thread):
    """Reads one stream, and resumes it when it breaks."""

    def __init__(self, address: str, request: pb.GenerateRequest):
        super().__init__()
        self.client = Client(address, options=resuming.CHANNEL_OPTIONS)
        self.request, self.error, self.has_begun = request, None, False
        self.texts = [""] * (request.sampling.n or 1)
        self.ids = [[] for _ in self.texts]
        self.ends: list = [None] * len(self.texts)
        self.start()

    def run(self):
        try:
            for message in resuming.stream(self.client.channel, self.request, timeout=harness.DEADLINE,
                                           tries=TRIES):
                self.has_begun = True
                self.texts[message.index] += message.text_delta
                self.ids[message.index] += message.token_ids
                if message.finish_reason:
                    assert self.ends[message.index] is None, "a second end"
                    self.ends[message.index] = (message.finish_reason, str(message.stop))
        except Exception as error:  # shown by the test
            self.error = error
        finally:
            self.client.close()

    def result(self):
        self.join()
        if self.error is not None:
            raise self.error
        return self.texts, self.ids, self.ends


class KillTest(unittest.TestCase):
    def start(self, *flags, **options) -> Server:
        server = Server(*flags, **options)
        self.addCleanup(lambda: server.poll() is None and server.stop())
        return server.ready()

    def test_text_equals_an_undisturbed_run(self):
        server = self.start()
        address = server.address
        want = [Answer(address, request).result() for request in requests()]
        draw = random.Random(15)
        num_resumed, num_streams = 0, 0
        for round in range(ROUNDS):
            answers = [Answer(address, request) for request in requests()]
            kill_at = draw.uniform(0.02, 0.7) * NUM_STREAMS * NUM_TOKENS
            # A stream that has not begun has nothing to go on with.
            while (not all(answer.has_begun for answer in answers)
                   or sum(len(ids) for answer in answers for ids in answer.ids) < kill_at):
                self.assertTrue(any(answer.is_alive() for answer in answers))
                time.sleep(0.002)
            server.signal(signal.SIGKILL)
            server.wait()
            server = self.start(listen=address)
            got = [answer.result() for answer in answers]
            for i, (one, other) in enumerate(zip(got, want)):
                self.assertEqual(one, other, f"round {round}, stream {i}")
            resumed = server.metrics()['quire_resumes_total{result="resumed"}']
            num_resumed += int(resumed)
            num_streams += len(got)
        # On a busy machine all streams of a round may have ended before the kill.
        self.assertGreater(num_resumed, 0)
        print(f"{ROUNDS} of {ROUNDS} kills: {num_streams} streams, {num_resumed} of them resumed, all texts equal")
        self.assertEqual(server.stop(), 0)

    def test_quire_goes_on_by_itself(self):
        for _ in range(1 + ROUNDS // 10):
            self.kill_under_quire()

    def kill_under_quire(self):
        server = self.start()
        address = server.address
        arguments = ("--server", address, "--token_ids", "70,71,72,73", "--max_tokens", "400", "--ignore_eos",
                     "--seed", "5", "--resume_tries", str(TRIES))
        undisturbed = harness.run_cli("generate", *arguments)
        self.assertEqual(undisturbed.returncode, 0, undisturbed.stderr)
        # The client is slow, and the server waits for it, so the kill finds a stream.
        window = ("--json", "--logprobs", "20")
        process = subprocess.Popen([str(harness.BIN / "quire"), "generate", *arguments, *window],
                                   stdout=subprocess.PIPE, text=True, env=harness.child_environment())
        self.addCleanup(process.wait)
        self.addCleanup(process.stdout.close)
        messages = [json.loads(process.stdout.readline()) for _ in range(5)]
        server.signal(signal.SIGKILL)
        server.wait()
        server = self.start(listen=address)
        messages += harness.json_lines(process.stdout.read())
        self.assertEqual(process.wait(), 0)
        self.assertEqual("".join(message.get("text_delta", "") for message in messages) + "\n",
                         undisturbed.stdout)
        self.assertEqual(sum(len(message.get("logprobs", ())) for message in messages), 400)
        self.assertEqual(server.stop(), 0)


class Proxy:
    """A way to a server that can be cut."""

    hides_cuts = False  # the server does not notice that its client is gone

    def __init__(self, address: str):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        host, port = address.rsplit(":", 1)
        self._server = host, int(port)
        self._clients: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            self._clients += [client, server]
            for one, other in ((client, server), (server, client)):
                self._threads.append(threading.Thread(target=self._pump, args=(one, other, one is client)))
                self._threads[-1].start()

    def _pump(self, one: socket.socket, other: socket.socket, is_client: bool):
        try:
            while part := one.recv(1 << 16):
                try:
                    other.sendall(part)
                except OSError:
                    if is_client:
                        break  # else what the server still sends is dropped
        except OSError:
            pass
        if not (is_client and self.hides_cuts):
            self._shut(other)

    @staticmethod
    def _shut(end: socket.socket):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is shut already

    def cut(self):
        for client in self._clients[::2]:
            self._shut(client)

    def close(self):
        self.hides_cuts = False
        self._shut(self.listener)
        for end in self._clients:
            self._shut(end)
        for thread in self._threads:
            thread.join()
        for end in (self.listener, *self._clients):
            end.close()


QUESTIONS = ("one?", "two?", "three?")


class ChatTest(unittest.TestCase):
    """`quire chat` without a terminal: each answer is that of an undisturbed server, to the token."""

    FLAGS = ("--max_tokens", "300", "--ignore_eos", "--seed", "5", "--json", "--logprobs", "20")

    @classmethod
    def setUpClass(cls):
        with harness.running() as (server, _):
            shown = harness.run_cli("chat", "--server", server.address, *cls.FLAGS, text="\n".join(QUESTIONS))
            assert shown.returncode == 0, shown.stderr
        cls.want = []
        for message in harness.json_lines(shown.stdout):
            if not cls.want or "timings" in cls.want[-1][-1]:
                cls.want.append([])
            cls.want[-1].append(message)
        cls.want = [cls.ids_of(answer) for answer in cls.want]

    @staticmethod
    def ids_of(messages) -> list[int]:
        return [id for message in messages for id in message.get("token_ids", [])]

    def start(self, *flags, **options) -> Server:
        server = Server(*flags, **options)
        self.addCleanup(lambda: server.poll() is None and server.stop())
        return server.ready()

    def begin(self, server: str):
        self.chat = subprocess.Popen(
            [str(harness.BIN / "quire"), "chat", "--server", server, "--resume_tries", str(TRIES), *self.FLAGS],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=harness.child_environment())
        for end in (self.chat.stdin, self.chat.stdout, self.chat.stderr):
            self.addCleanup(end.close)
        self.addCleanup(self.chat.wait)
        self.addCleanup(self.chat.kill)

    def ask(self, question: str, num_messages: int | None = None) -> list[dict]:
        """The messages of the answer, or the first ones."""
        self.chat.stdin.write(question + "\n")
        self.chat.stdin.flush()
        return self.read(num_messages)

    def read(self, num_messages: int | None = None) -> list[dict]:
        messages = []
        while len(messages) != num_messages and not (messages and "timings" in messages[-1]):
            line = self.chat.stdout.readline()
            self.assertTrue(line, "the end of quire chat" if self.chat.poll() is None else self.chat.stderr.read())
            messages.append(json.loads(line))
        return messages

    def finish(self):
        self.chat.stdin.close()
        self.assertEqual(self.chat.wait(), 0)
        self.assertEqual(self.chat.stderr.read(), "")

    def wait_until_known(self, server: Server, num_turns: int):
        """What the session has is asked for after each turn."""
        deadline = time.monotonic() + harness.DEADLINE
        while server.metrics()['quire_rpcs_total{rpc="GetSession",code="OK"}'] < num_turns:
            self.assertLess(time.monotonic(), deadline)

    def go_on(self, cut) -> list[list[int]]:
        """Three questions. The connection is cut while the second is answered."""
        answers = [self.ask(QUESTIONS[0])]
        answers.append(self.ask(QUESTIONS[1], num_messages=5))
        cut()
        answers[1] += self.read()
        answers.append(self.ask(QUESTIONS[2]))
        self.finish()
        return [self.ids_of(answer) for answer in answers]

    def test_a_server_that_is_killed_in_an_answer(self):
        first = self.start()
        self.begin(first.address)

        def replace():
            first.signal(signal.SIGKILL)
            first.wait()
            self.second = self.start(listen=first.address)

        self.assertEqual(self.go_on(replace), self.want)
        metrics = self.second.metrics()
        self.assertEqual(metrics['quire_resumes_total{result="resumed"}'], 1)
        self.assertEqual(metrics['quire_session_turns_total{result="ok"}'], 2)
        self.assertEqual(metrics["quire_sessions"], 0)

    def test_a_server_that_is_killed_between_two_questions(self):
        first = self.start()
        self.begin(first.address)
        got = [self.ask(QUESTIONS[0])]
        self.wait_until_known(first, 1)
        first.signal(signal.SIGKILL)
        first.wait()
        self.chat.stdin.write(QUESTIONS[1] + "\n")  # nobody is there yet
        self.chat.stdin.flush()
        time.sleep(0.2)
        second = self.start(listen=first.address)
        got += [self.read(), self.ask(QUESTIONS[2])]
        self.finish()
        self.assertEqual([self.ids_of(answer) for answer in got], self.want)
        self.assertEqual(second.metrics()['quire_session_turns_total{result="ok"}'], 2)

    def test_a_server_at_another_address(self):
        servers = self.start(), self.start()
        self.begin("ipv4:" + ",".join(server.address for server in servers))

        def kill():
            servers[0].signal(signal.SIGKILL)
            servers[0].wait()

        self.assertEqual(self.go_on(kill), self.want)
        self.assertEqual(servers[1].metrics()['quire_resumes_total{result="resumed"}'], 1)

    def test_a_connection_that_is_cut(self):
        for hides_cuts in (False, True):
            with self.subTest(hides_cuts=hides_cuts), harness.running() as (server, _):
                proxy = Proxy(server.address)
                proxy.hides_cuts = hides_cuts
                self.begin(proxy.address)
                self.assertEqual(self.go_on(proxy.cut), self.want)
                self.assertGreaterEqual(server.metrics()['quire_resumes_total{result="resumed"}'], 1)
                proxy.close()


class TurnTest(harness.TestCase):
    """Turns that are resumed in Converse and by quire generate."""

    def test_a_turn_of_converse_goes_on_to_the_byte(self):
        calls = SessionCalls(self.client)
        for options in (dict(temperature=0), dict(temperature=1, seed=11)):
            name = calls.create().name
            calls.turn(name, [70] * 9, max_tokens=8, ignore_eos=True)
            turn = make_request([66, 67, 68], max_tokens=200, ignore_eos=True, resumable=True, **options)
            before, begun = self.cut(calls, name, turn)
            whole = self.answer(Conversation(self.client, dict(open=name), dict(turn=turn)))
            self.assertEqual((whole[0].model_digest != "", whole[0].numerics != ""), (True, True))
            again = calls.create(content=before.content)  # as on a new server
            for session in (before, again):
                resumed = self.resumed(turn, begun, session)
                rest = self.answer(Conversation(self.client, dict(open=session.name), dict(turn=resumed)))
                self.assertEqual(self.whole_of(begun + rest), self.whole_of(whole))
            # The turn is part of the session now, and is not done twice.
            error = self.assert_status(grpc.StatusCode.ABORTED, lambda: self.client.inference.Generate(
                self.resumed(turn, begun, before, in_session=True), timeout=harness.DEADLINE))
            self.assertIn("etag", error.details())
            for session in (name, again.name, before.name):
                calls.close(session)

    def cut(self, calls: SessionCalls, name: str, turn: pb.GenerateRequest) -> tuple[sb.Session, list]:
        """Cuts the turn in a fork of the session. Returns the fork as it was before, and the deltas that came."""
        for _ in range(TRIES):
            (fork,) = calls.fork(name)
            before = calls.get(fork.name, content=True)
            talk = Conversation(self.client, dict(open=fork.name), dict(turn=turn))
            begun = self.answer(talk, num_deltas=6)
            talk.call.cancel()
            self.client.wait_until(lambda _: not calls.get(fork.name).in_turn, "cancelled")
            if calls.get(fork.name).etag == before.etag:
                return before, begun
            calls.close(fork.name)  # the turn had ended before the server saw the cut
        self.fail("no turn was cut before its end")

    @staticmethod
    def whole_of(deltas) -> tuple[str, list[int]]:
        return ("".join(delta.text_delta for delta in deltas), [id for delta in deltas for id in delta.token_ids])

    @staticmethod
    def answer(talk: Conversation, num_deltas: int | None = None) -> list:
        talk.next()  # the session
        deltas = []
        while len(deltas) != num_deltas:
            message = talk.next()
            if message.WhichOneof("message") == "end":
                talk.half_close()
                assert message.end.status.code == 0, message.end.status
                break
            deltas.append(message.delta)
        return deltas

    @staticmethod
    def resumed(turn, begun, session: sb.Session, in_session=False) -> pb.GenerateRequest:
        request = pb.GenerateRequest()
        request.CopyFrom(turn)
        request.sampling.seed = begun[0].seed
        request.resume_token_ids.add().ids.extend(id for delta in begun for id in delta.token_ids)
        request.resume_text_bytes.append(sum(len(delta.text_delta.encode()) for delta in begun))
        request.resume_model_digest, request.resume_numerics = begun[0].model_digest, begun[0].numerics
        request.session_etag = session.etag
        if in_session:
            request.session_name = session.name
        return request

    def test_quire_generate_goes_on_with_a_turn(self):
        calls, proxy = SessionCalls(self.client), Proxy(self.server.address)
        self.addCleanup(proxy.close)
        names = [calls.create().name for _ in range(2)]
        arguments = ("--token_ids", "70,71,72", "--max_tokens", "400", "--ignore_eos", "--seed", "5", "--json",
                     "--logprobs", "20", "--resume_tries", str(TRIES))
        whole = harness.run_cli("generate", "--session", names[0], "--server", self.server.address, *arguments)
        process = subprocess.Popen([str(harness.BIN / "quire"), "generate", "--session", names[1], "--server",
                                    proxy.address, *arguments], stdout=subprocess.PIPE, text=True,
                                   env=harness.child_environment())
        self.addCleanup(process.wait)
        self.addCleanup(process.stdout.close)
        messages = [json.loads(process.stdout.readline()) for _ in range(5)]
        proxy.cut()
        messages += harness.json_lines(process.stdout.read())
        self.assertEqual(process.wait(), 0)
        self.assertEqual(ChatTest.ids_of(messages), ChatTest.ids_of(harness.json_lines(whole.stdout)))
        self.assertEqual({calls.get(name).num_tokens for name in names}, {403})
        for name in names:
            calls.close(name)


class RefusalTest(harness.TestCase):
    flags = ("--max_model_len", "128")

    def first_message(self, **options):
        call = self.client.stream([65, 66, 67], max_tokens=8, resumable=True, ignore_eos=True, **options)
        messages = list(call)
        return messages[0], messages[1:]

    def resume(self, **changes):
        first, _ = self.first_message(seed=9)
        request = make_request([65, 66, 67], max_tokens=8, ignore_eos=True, seed=9, temperature=1.0)
        request.resume_token_ids.add()
        request.resume_text_bytes.append(0)
        request.resume_model_digest = first.model_digest
        request.resume_numerics = first.numerics
        for name, value in changes.items():
            setattr(request, name, value)
        return self.client.inference.Generate(request, timeout=harness.DEADLINE)

    def test_the_first_message_has_what_a_resume_needs(self):
        info = self.client.server_info()
        self.assertRegex(info.model_digest, "^[0-9a-f]{64}$")
        self.assertTrue(info.answer_numerics.startswith(info.numerics + ",kv="))
        first, rest = self.first_message(seed=9)
        self.assertEqual((first.seed, first.model_digest, first.numerics),
                         (9, info.model_digest, info.answer_numerics))
        self.assertEqual(len(first.token_ids) + sum(len(message.token_ids) for message in rest), 8)
        self.assertFalse(any(message.model_digest for message in rest))
        answer = self.client.generate([65], max_tokens=1)
        self.assertEqual((answer.model_digest, answer.numerics), (info.model_digest, info.answer_numerics))

    def test_what_was_resolved_is_sent_back_and_served(self):
        context = self.client.model_info().max_model_len
        prompt, bound = [65] * (context - 20), 1000
        first = next(self.client.stream(prompt, max_tokens=bound, resumable=True, ignore_eos=True, seed=9,
                                        temperature=0.7))
        self.assertEqual(first.resolved.max_tokens, 20)
        request = make_request(prompt, max_tokens=bound, ignore_eos=True, token_ids=True)
        request.resume_token_ids.add()
        request.resume_text_bytes.append(0)
        request.resume_model_digest, request.resume_numerics = first.model_digest, first.numerics
        request.resume_resolved.CopyFrom(first.resolved)
        served = self.client.inference.Generate(request, timeout=harness.DEADLINE).completions[0]
        whole = self.client.generate(prompt, max_tokens=bound, ignore_eos=True, token_ids=True, seed=9,
                                     temperature=0.7).completions[0]
        self.assertEqual((served.token_ids, served.text), (whole.token_ids, whole.text))
        request.resume_resolved.max_tokens = 21
        error = self.assert_status(grpc.StatusCode.FAILED_PRECONDITION,
                                   lambda: self.client.inference.Generate(request, timeout=harness.DEADLINE))
        self.assertIn("ran with 21 tokens", error.details())
        self.assertIn("leaves 20", error.details())

    def test_nothing_given_begins_anew(self):
        self.assertEqual(len(self.resume().completions), 1)

    def test_another_model_or_arithmetic(self):
        mismatches = lambda: self.server.metrics()['quire_resumes_total{result="mismatch"}']
        before = mismatches()
        for name in ("resume_model_digest", "resume_numerics"):
            error = self.assert_status(grpc.StatusCode.FAILED_PRECONDITION, lambda: self.resume(**{name: "other"}))
            self.assertIn(name, error.details())
        self.assertEqual(mismatches() - before, 2)

    def test_no_entries_for_the_other_fields(self):
        request = make_request([65], seed=9)
        request.resume_numerics = "cpu-2"
        error = self.assert_status(grpc.StatusCode.INVALID_ARGUMENT,
                                   lambda: self.client.inference.Generate(request, timeout=harness.DEADLINE))
        self.assertIn("resume_token_ids", error.details())


if __name__ == "__main__":
    unittest.main()
