"""Start, readiness, metrics, drain, end; and command lines that cannot work."""

import json
import os
import pathlib
import resource
import signal
import socket
import struct
import subprocess
import time
import unittest

import grpc

import harness
import make_tiny_model
from harness import Client, Server, Streamed, cut, running
from quire.v1 import prefix_service_pb2 as xb

PROMPT = "the thing in another hour"
CHAT = [("user", "what hour?")]
SERVICES = ["quire.v1.InferenceService", "quire.v1.TokenService", "quire.v1.ControlService", "quire.v1.TenantService",
            "quire.v1.PrefixService"]


class ReadyTest(harness.TestCase):
    def test_health_of_the_server_and_each_service(self):
        for service in ["", *SERVICES]:
            self.assertEqual(self.client.health(service), "SERVING", service)
        self.assert_status(grpc.StatusCode.NOT_FOUND, lambda: self.client.health("quire.v1.Nothing"))

    def test_reflection_lists_the_services(self):
        answer = self.client.reflected_services()
        for service in SERVICES:
            self.assertIn(service.encode(), answer)

    def test_the_start_up_line_tells_what_is_served(self):
        info = self.client.model_info()
        self.assertEqual(self.server.started("model"), info.name)
        self.assertEqual(info.architecture, "llama")
        self.assertEqual((info.num_layers, info.num_heads, info.num_kv_heads, info.head_dim), (2, 4, 2, 16))
        self.assertTrue(info.has_chat_template)
        server = self.client.server_info()
        self.assertEqual(server.isa_path, self.server.started("isa_path"))
        self.assertEqual(server.numerics, "cpu-2")
        self.assertEqual(server.num_blocks, int(self.server.started("blocks")))

    def test_admin_http(self):
        self.assertEqual(self.server.get("/livez")[0], 200)
        self.assertEqual(self.server.get("/readyz")[0], 200)
        self.assertEqual(self.server.get("/nothing")[0], 404)

    def test_metrics_move_with_the_work(self):
        before = self.server.metrics()
        self.client.generate([65 + i % 9 for i in range(50)], max_tokens=10, ignore_eos=True, salt="metrics")
        self.client.generate([65 + i % 9 for i in range(50)], max_tokens=10, ignore_eos=True, salt="metrics")
        after = self.server.metrics()

        def growth(name):
            return after[name] - before.get(name, 0)

        self.assertEqual(growth("quire_generated_tokens_total"), 20)
        self.assertEqual(growth('quire_prompt_tokens_total{source="computed"}'), 51)
        self.assertEqual(growth('quire_prompt_tokens_total{source="cached"}'), 49)
        self.assertEqual(growth('quire_sequences_finished_total{reason="length"}'), 2)
        self.assertEqual(growth("quire_time_to_first_token_seconds_count"), 2)
        self.assertEqual(growth("quire_time_per_output_token_seconds_count"), 2)
        self.assertEqual(after["quire_requests_waiting"], 0)
        blocks = sum(after[f'quire_kv_blocks{{state="{state}"}}'] for state in ("free", "cached", "held"))
        self.assertEqual(blocks, self.client.server_info().num_blocks)
        stats = self.client.stats()
        self.assertEqual(after["quire_generated_tokens_total"], stats.tokens.generated)

    def test_a_taken_port_is_an_error(self):
        for flag, address in (("listen", self.server.address), ("admin_listen", self.server.admin_address)):
            second = Server(**{flag: address})
            self.assertEqual(second.wait(), 1)
            self.assertRegex(second.log(), f"quire-server: --{flag}: {address}: cannot listen: .* --{flag} 127.0.0.1:0")


class SurroundingsTest(unittest.TestCase):
    """What the server finds when it starts: limits, signals, closed descriptors."""

    def test_too_few_descriptors_are_named_with_the_cure(self):
        refused = Server(limits={resource.RLIMIT_NOFILE: 63})
        self.assertEqual(refused.wait(), 1)
        self.assertRegex(refused.log(), "file descriptors: want a limit of at least 64, .* got 63; .*ulimit -n")
        server = Server(limits={resource.RLIMIT_NOFILE: 64}).ready()
        self.assertEqual(server.stop(), 0)

    def test_too_little_memory_for_its_threads_is_named_with_the_cure(self):
        refused = Server("--threads", "4", limits={resource.RLIMIT_AS: 300 << 20})
        self.assertEqual(refused.wait(), 1)
        self.assertRegex(refused.log(), r"(?m)^quire-server: .*(start a thread.*ulimit -v|memory)")

    def test_signals_that_mean_nothing_end_nothing(self):
        with running() as (server, client):
            for number in (signal.SIGXFSZ, signal.SIGALRM, signal.SIGVTALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE,
                           signal.SIGIO, signal.SIGPWR):
                server.signal(number)
            self.assertEqual(client.generate(PROMPT, max_tokens=3, ignore_eos=True).usage.completion_tokens, 3)

    def test_a_file_at_the_limit_of_its_size_ends_nothing(self):
        folder = harness.SCRATCH / "full-file"
        with running("--kv_disk_dir", str(folder), limits={resource.RLIMIT_FSIZE: 4096}) as (server, client):
            for i in range(20):  # a name of every prefix is written to one file
                try:
                    request = xb.CreatePrefixRequest(text=f"{i} " + PROMPT * 10, display_name="x" * 60)
                    client.prefixes.CreatePrefix(request, timeout=harness.DEADLINE)
                except grpc.RpcError as error:
                    self.assertNotEqual(error.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
            self.assertEqual(client.generate(PROMPT, max_tokens=3, ignore_eos=True).usage.completion_tokens, 3)

    def test_closed_descriptors_are_not_given_to_files_of_the_state(self):
        folder = harness.SCRATCH / "closed-descriptors"
        command = [str(harness.BIN / "quire-server"), "--model", str(harness.tiny_model()), "--listen", "127.0.0.1:0",
                   "--admin_listen=", "--threads", "1", "--kv_cache_mib", "16", "--kv_disk_dir", str(folder)]
        process = subprocess.Popen(command, env=harness.child_environment(),
                                   preexec_fn=lambda: [os.close(number) for number in range(3)])
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        deadline = time.monotonic() + harness.DEADLINE
        while not (folder.is_dir() and any(folder.rglob("*"))) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertTrue(any(folder.rglob("*")))
        # A library that opens a descriptor before main() may have 0, from which nobody reads.
        self.assertEqual([os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (1, 2)], ["/dev/null"] * 2)


class DrainTest(unittest.TestCase):
    # With log-probabilities, an answer of so many tokens is much larger than a connection's buffers, so its stream
    # cannot end before the client reads it. On an emulated GPU, the answer takes seconds.
    LONG = cut(5000, 200)

    def test_sigterm_lets_what_runs_finish_and_refuses_the_new(self):
        with running() as (server, client):
            slow = Client(server.address, options=harness.NARROW)
            call = slow.stream(PROMPT, seed=1, max_tokens=self.LONG, ignore_eos=True, top_logprobs=20)
            next(call)
            late = Client(server.address)
            self.assertEqual(late.health(), "SERVING")  # connected before the drain
            server.signal(signal.SIGTERM)
            server.wait_for_log("draining")
            with self.assertRaises(grpc.RpcError) as refused:
                late.generate(PROMPT, max_tokens=1)
            self.assertEqual(refused.exception.code(), grpc.StatusCode.UNAVAILABLE)
            self.assertEqual(late.health(), "NOT_SERVING")
            self.assertEqual(server.get("/readyz")[0], 503)
            self.assertEqual(server.get("/livez")[0], 200)
            self.assertEqual(Streamed(call).usage.completion_tokens, self.LONG)
            late.close()
            slow.close()
            self.assertEqual(server.wait(), 0)

    def test_drain_delay_serves_those_who_have_not_heard(self):
        with running("--drain_delay", "6s") as (server, client):
            server.signal(signal.SIGTERM)
            server.wait_for_log("leaving service")
            self.assertEqual(client.health(), "NOT_SERVING")
            self.assertEqual(server.get("/readyz")[0], 503)
            self.assertEqual(server.get("/livez")[0], 200)
            late = Client(server.address)
            answer = late.generate(PROMPT, max_tokens=3, ignore_eos=True)
            self.assertEqual(answer.usage.completion_tokens, 3)
            self.assertNotIn("draining", server.log())  # so the delay let the request in
            late.close()
            server.wait_for_log("draining")
            self.assertEqual(server.wait(), 0)

    def test_a_second_signal_ends_the_drain_delay(self):
        with running("--drain_delay", "10m") as (server, _):
            server.signal(signal.SIGTERM)
            server.wait_for_log("leaving service")
            server.signal(signal.SIGTERM)
            self.assertEqual(server.wait(), 1)

    def test_what_outlasts_the_drain_timeout_is_cancelled(self):
        with running("--drain_timeout", "200ms") as (server, client):
            slow = Client(server.address, options=harness.NARROW)
            call = slow.stream(PROMPT, seed=1, max_tokens=30000, ignore_eos=True, top_logprobs=20)
            next(call)  # and then reads no more, so that the stream cannot finish
            server.signal(signal.SIGTERM)
            self.assertEqual(server.wait(), 0)
            self.assertIn("cancelling what still runs", server.log())
            slow.close()

    def test_drain_by_rpc_refuses_but_stays(self):
        with running() as (server, client):
            slow = Client(server.address, options=harness.NARROW)
            call = slow.stream(PROMPT, seed=1, max_tokens=self.LONG, ignore_eos=True, top_logprobs=20)
            next(call)
            self.assertEqual(client.drain().num_running, 1)
            with self.assertRaises(grpc.RpcError) as refused:
                client.generate(PROMPT, max_tokens=1)
            self.assertEqual(refused.exception.code(), grpc.StatusCode.UNAVAILABLE)
            self.assertEqual(client.health("quire.v1.InferenceService"), "NOT_SERVING")
            self.assertTrue(client.stats().draining)
            self.assertEqual(Streamed(call).usage.completion_tokens, self.LONG)
            slow.close()
            client.drain()  # a second call changes nothing
            self.assertTrue(client.stats().draining)
            self.assertEqual(server.stop(), 0)

    def test_an_idle_server_ends_at_once(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            server = Server().ready()
            server.signal(number)
            self.assertEqual(server.wait(), 0)


class ConnectionAgeTest(unittest.TestCase):
    """gRPC changes an age by up to a tenth, either way."""

    def test_calls_survive_the_ageing_of_their_connection(self):
        with running("--max_connection_age", "200ms") as (server, _):
            connections = []
            client = Client(server.address)
            client.channel.subscribe(lambda state: connections.append(state))
            slow = client.stream(PROMPT, seed=1, max_tokens=5000, ignore_eos=True, top_logprobs=20)
            next(slow)
            deadline = time.monotonic() + harness.DEADLINE
            while connections.count(grpc.ChannelConnectivity.READY) < 4:
                self.assertLess(time.monotonic(), deadline, connections)
                answer = client.generate(PROMPT, max_tokens=2, ignore_eos=True)
                self.assertEqual(answer.usage.completion_tokens, 2)
            self.assertEqual(Streamed(slow).usage.completion_tokens, 5000)
            client.close()

    def test_the_grace_cuts_what_outlasts_it(self):
        with running("--max_connection_age", "100ms", "--max_connection_age_grace", "100ms") as (server, client):
            slow = client.stream(PROMPT, seed=1, max_tokens=30000, ignore_eos=True, top_logprobs=20)
            next(slow)  # and then reads no more, so that the stream cannot finish
            client.wait_until_idle()
            with self.assertRaises(grpc.RpcError) as cut:
                Streamed(slow)
            self.assertEqual(cut.exception.code(), grpc.StatusCode.UNAVAILABLE)


class ChatTemplateTest(unittest.TestCase):
    """A model whose own template cannot be read, and --chat_template."""

    def setUp(self):
        self.model = harness.SCRATCH / "unreadable-template"
        make_tiny_model.write(self.model)
        path = self.model / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": "{% for %}"}))

    def test_without_it_conversations_alone_are_refused(self):
        with running(model=self.model) as (server, client):
            self.assertFalse(client.model_info().has_chat_template)
            self.assertIn("--chat_template replaces it", server.log())
            with self.assertRaises(grpc.RpcError) as caught:
                client.generate(CHAT)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
            self.assertRegex(caught.exception.details(), "^chat: this model's chat template cannot be used: .*line 1:")
            self.assertEqual(client.generate(PROMPT, max_tokens=3, ignore_eos=True).usage.completion_tokens, 3)

    def test_it_replaces_the_models(self):
        file = harness.SCRATCH / "chat.jinja"
        file.write_text("{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}[assistant]")
        with running("--chat_template", str(file), model=self.model) as (_, client):
            self.assertTrue(client.model_info().has_chat_template)
            options = dict(max_tokens=8, ignore_eos=True, token_ids=True, temperature=0)
            ids = client.tokenize("<s>[user] what hour?[assistant]", parse_special_tokens=True, add_special_tokens=False)
            by_chat, by_ids = client.generate(CHAT, **options), client.generate(ids, **options)
            self.assertEqual(by_chat.usage.prompt_tokens, len(ids))
            self.assertEqual(by_chat.completions[0].token_ids, by_ids.completions[0].token_ids)


class BadStartTest(unittest.TestCase):
    def refused(self, *flags, status, **kwargs):
        server = Server(*flags, **kwargs)
        self.assertEqual(server.wait(), status, server.log())
        lines = server.log().strip().splitlines()
        self.assertTrue(lines[-1].startswith("quire-server: "), server.log())
        return lines[-1]

    def test_bad_flags_are_named(self):
        self.assertIn("--max_num_seqs", self.refused("--max_num_seq", "4", status=2))
        self.assertIn("--threads", self.refused("--threads", "many", status=2))
        self.assertIn("--listen", self.refused(status=2, listen="nowhere"))
        self.assertIn("QUIRE_MAX_QUEUE", self.refused(status=2, QUIRE_MAX_QUEUE="x"))

    def test_a_file_that_is_no_model(self):
        scratch = harness.SCRATCH
        self.assertIn("/nowhere/at/all", self.refused(model=pathlib.Path("/nowhere/at/all"), status=1))
        text = scratch / "text.gguf"
        text.write_text("hello")
        self.assertIn("text.gguf", self.refused(model=text, status=1))
        truncated = scratch / "truncated"
        truncated.mkdir(exist_ok=True)
        for file in harness.tiny_model().iterdir():
            data = file.read_bytes()
            (truncated / file.name).write_bytes(data[: len(data) // 2] if file.suffix == ".safetensors" else data)
        self.assertIn("safetensors", self.refused(model=truncated, status=1))
        absurd = scratch / "absurd.gguf"
        absurd.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60))
        self.assertIn("absurd.gguf", self.refused(model=absurd, status=1))

    def test_a_chat_template_that_cannot_be_used(self):
        """It is asked for, so the server does not start without it."""
        broken, absent = harness.SCRATCH / "broken.jinja", harness.SCRATCH / "absent.jinja"
        broken.write_text("{% for %}")
        line = self.refused("--chat_template", str(broken), status=1)
        self.assertIn(f"chat_template: {broken}: line 1:", line)
        self.assertIn(f"{absent}: ", self.refused("--chat_template", str(absent), status=1))

    def test_a_cache_that_memory_cannot_hold(self):
        total = int(pathlib.Path("/proc/meminfo").read_text().split()[1]) >> 10
        line = self.refused("--kv_cache_mib", str(total), status=1)
        self.assertRegex(line, rf"kv_cache_mib: want at most \d+, .*got {total}; lower it")

    def test_a_cache_shorter_than_a_context_is_warned_of(self):
        with running("--kv_cache_mib", "1", "--block_size", "16") as (server, client):
            info = client.server_info()
            tokens, context = info.num_blocks * info.block_size, client.model_info().max_model_len
            self.assertLess(tokens, context)
            self.assertRegex(server.log(), rf"less than one context.*cache_tokens={tokens} max_model_len={context}")

    def test_a_port_that_another_process_holds(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.assertIn(str(port), self.refused(status=1, listen=f"127.0.0.1:{port}"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
