"""TLS, client certificates, bearer tokens, and what an address that strangers reach does not serve."""

import hashlib
import signal
import socket
import ssl
import time
import unittest

import grpc
from google.rpc import error_details_pb2

import harness
import raw_http2
from certificates import credentials, make_authority, make_certificate, path, server_tls
from harness import Client, details, run_cli, running

PROMPT = "the thing in another hour"
LONG = dict(seed=1, max_tokens=30000, ignore_eos=True)
TOKENS = ["first-token-0123456789", "second-token-0123456789"]
OPERATOR = "operators-token-0123456789"


def token_line(token: str, fields: str) -> str:
    return f"token:{hashlib.sha256(token.encode()).hexdigest()} {fields}\n"


def setUpModule():
    make_authority("authority")
    make_authority("stranger")
    make_certificate("server", "authority")
    make_certificate("alice", "authority")
    make_certificate("bob", "authority")
    make_certificate("mallory", "stranger")
    make_certificate("nameless", "authority", named=False)
    (harness.SCRATCH / "tokens").write_text("# who may call\n" + "\n".join(TOKENS) + "\n")
    (harness.SCRATCH / "identities").write_text(
        "\n".join(TOKENS) + "\n" + token_line(OPERATOR, "name=olga roles=operator"))


class SecurityTest(unittest.TestCase):
    def assert_refused(self, code: grpc.StatusCode, call):
        with self.assertRaises(grpc.RpcError) as caught:
            call()
        self.assertEqual(caught.exception.code(), code, caught.exception.details())

    def client(self, *args, **kwargs) -> Client:
        client = Client(*args, **kwargs)
        self.addCleanup(client.close)
        return client

    def test_tls(self):
        with running(*server_tls()) as (server, _):
            trusted = self.client(server.address, credentials=credentials())
            self.assertEqual(trusted.generate(PROMPT, max_tokens=3, ignore_eos=True).usage.completion_tokens, 3)
            self.assertEqual(trusted.health(), "SERVING")
            plain = self.client(server.address)
            self.assert_refused(grpc.StatusCode.UNAVAILABLE, lambda: plain.generate(PROMPT, max_tokens=1))
            wary = self.client(server.address, credentials=credentials(authority="stranger"))
            self.assert_refused(grpc.StatusCode.UNAVAILABLE, lambda: wary.generate(PROMPT, max_tokens=1))
            shown = run_cli("generate", "--server", server.address, "--tls_ca", path("authority.pem"), "--prompt",
                            PROMPT, "--max_tokens", "3")
            self.assertEqual(shown.returncode, 0, shown.stderr)
            shown = run_cli("health", "--server", server.address)
            self.assertEqual(shown.returncode, 1)
            self.assertIn("--tls_ca", shown.stderr)
            self.assertEqual(run_cli("health", "--admin", server.admin_address).stdout, "SERVING\n")

    def test_client_certificates(self):
        with running(*server_tls("--tls_client_ca", "authority.pem")) as (server, _):
            alice = self.client(server.address, credentials=credentials("alice"))
            bob = self.client(server.address, credentials=credentials("bob"))
            self.assertEqual(alice.generate(PROMPT, max_tokens=3, ignore_eos=True).usage.completion_tokens, 3)
            for who in ("", "mallory"):
                other = self.client(server.address, credentials=credentials(who))
                self.assert_refused(grpc.StatusCode.UNAVAILABLE, lambda: other.generate(PROMPT, max_tokens=1))
            nameless = self.client(server.address, credentials=credentials("nameless"))
            self.assert_refused(grpc.StatusCode.UNAUTHENTICATED, lambda: nameless.generate(PROMPT, max_tokens=1))
            self.assert_refused(grpc.StatusCode.PERMISSION_DENIED, bob.drain)
            self.check_abort_is_the_owners(alice, bob)
            self.assertIn("the certificate expires soon", server.log())
            expiry = server.metrics()["quire_tls_certificate_expiry_seconds"]
            self.assertAlmostEqual(expiry, time.time() + 2 * 86400, delta=600)
            shown = run_cli("models", "--server", server.address, "--tls_ca", path("authority.pem"), "--tls_cert",
                            path("alice.pem"), "--tls_key", path("alice.key"))
            self.assertEqual(shown.returncode, 0, shown.stderr)

    def test_connections_end_with_the_authority_of_their_certificates(self):
        file = harness.SCRATCH / "authorities.pem"
        old, new = ((harness.SCRATCH / f"{name}.pem").read_text() for name in ("authority", "stranger"))
        file.write_text(old)
        with running(*server_tls("--tls_client_ca", "authorities.pem"), "--handshake_timeout", "10m") as (server, _):
            alice = self.client(server.address, credentials=credentials("alice"))
            stream = alice.stream(PROMPT, **LONG)
            next(stream)
            # This client is at the door, and shows its certificate when the file has changed.
            host, port = server.address.rsplit(":", 1)
            late = socket.create_connection((host, int(port)), timeout=20)
            self.addCleanup(late.close)
            while server.metrics()["quire_connections"] < 2:
                time.sleep(0.01)

            def write(text: str, count: int):
                file.write_text(text)
                server.signal(signal.SIGHUP)
                server.wait_for_log("(?s)(certificates read again.*){%d}" % count)

            write(old + new, 1)
            next(stream)
            mallory = self.client(server.address, credentials=credentials("mallory"))
            mallory.server_info()
            write(new, 2)
            self.assert_refused(grpc.StatusCode.UNAVAILABLE, lambda: list(stream))
            self.assert_refused(grpc.StatusCode.UNAVAILABLE, alice.server_info)
            mallory.server_info()
            context = ssl.create_default_context(cafile=path("authority.pem"))
            context.load_cert_chain(path("alice.pem"), path("alice.key"))
            context.set_alpn_protocols(["h2"])
            with context.wrap_socket(late, server_hostname="localhost") as spoken:
                spoken.sendall(raw_http2.PREFACE + raw_http2.settings())
                said = b"".join(iter(lambda: spoken.recv(4096), b""))
            self.assertIn(b"the certificate's authority is no longer accepted", said)
            self.assertEqual(server.metrics()['quire_connections_cut_total{reason="certificate"}'], 2)

    def test_bearer_tokens(self):
        with running("--auth_token_file", path("tokens")) as (server, nobody):
            first, second = (self.client(server.address, token=token) for token in TOKENS)
            self.assertEqual(first.generate(PROMPT, max_tokens=3, ignore_eos=True).usage.completion_tokens, 3)
            wrong = self.client(server.address, token=TOKENS[0] + "x")
            for client in (nobody, wrong):
                for call in (lambda: client.generate(PROMPT, max_tokens=1), lambda: list(client.stream(PROMPT)),
                             lambda: client.tokenize("a"), client.stats, client.drain):
                    self.assert_refused(grpc.StatusCode.UNAUTHENTICATED, call)
            self.assertEqual(nobody.health(), "SERVING")  # probes have no token
            self.check_abort_is_the_owners(first, second)
            self.assertNotIn(TOKENS[0], server.log())
            (harness.SCRATCH / "one_token").write_text(TOKENS[1] + "\n")
            generate = ("generate", "--server", server.address, "--prompt", PROMPT, "--max_tokens", "3")
            self.assertEqual(run_cli(*generate, "--token_file", path("one_token")).returncode, 0)
            self.assertEqual(run_cli(*generate, QUIRE_TOKEN=TOKENS[0]).returncode, 0)
            shown = run_cli(*generate)
            self.assertEqual(shown.returncode, 1)
            self.assertIn("--token_file", shown.stderr)

    def check_abort_is_the_owners(self, owner: Client, other: Client):
        call = owner.stream(PROMPT, request_id="owned", **LONG)
        next(call)
        self.assert_refused(grpc.StatusCode.NOT_FOUND, lambda: other.abort("owned"))
        next(call)  # it goes on
        owner.abort("owned")
        self.assert_refused(grpc.StatusCode.CANCELLED, lambda: list(call))

    def test_a_tenant_is_proved_not_claimed(self):
        secret = "the code of the safe is 4711 and nobody else knows it"
        with running("--auth_token_file", path("tokens")) as (server, _):
            first, second = (self.client(server.address, token=token) for token in TOKENS)
            first.generate(secret, tenant="first", max_tokens=1)
            usage = first.generate(secret, tenant="first", max_tokens=1).usage
            self.assertEqual(usage.cached_tokens, usage.prompt_tokens - 1, "the prompt is cached")
            for guess in ("0000", "4712", "4711"):
                for options in (dict(tenant="first"), dict(), dict(tenant="token-1")):
                    usage = second.generate(secret.replace("4711", guess), max_tokens=1, bypass_write=True,
                                            **options).usage
                    self.assertEqual(usage.cached_tokens, 0, (guess, options))

    def test_a_user_is_no_operator(self):
        with running("--auth_token_file", path("identities")) as (server, nobody):
            user, operator = (self.client(server.address, token=token) for token in (TOKENS[0], OPERATOR))
            for call in (user.drain, user.stats, user.flush, user.reflected_services):
                self.assert_refused(grpc.StatusCode.PERMISSION_DENIED, call)
            self.assert_refused(grpc.StatusCode.UNAUTHENTICATED, nobody.reflected_services)
            self.assertEqual(user.server_info().block_size, 16)
            self.assertIn(b"quire.v1.ControlService", operator.reflected_services())
            call = user.stream(PROMPT, request_id="anybodys", **LONG)
            next(call)
            operator.abort("anybodys")
            self.assert_refused(grpc.StatusCode.CANCELLED, lambda: list(call))
            self.assertFalse(operator.stats().draining)
            self.assertGreater(operator.flush(), 0)
            operator.drain()
            self.assert_refused(grpc.StatusCode.UNAVAILABLE, lambda: user.generate(PROMPT, max_tokens=1))

    def test_a_priority_is_granted(self):
        with running("--auth_token_file", path("tokens")) as (server, _):
            user = self.client(server.address, token=TOKENS[0])
            for priority in (0, -100):
                user.generate(PROMPT, max_tokens=1, priority=priority)
            self.assert_refused(grpc.StatusCode.PERMISSION_DENIED,
                                lambda: user.generate(PROMPT, max_tokens=1, priority=1))

    def test_an_id_is_its_owners(self):
        with running("--auth_token_file", path("tokens")) as (server, _):
            first, second = (self.client(server.address, token=token) for token in TOKENS)
            call = first.stream(PROMPT, request_id="job", **LONG)
            next(call)
            self.assertEqual(second.generate(PROMPT, request_id="job", max_tokens=1).request_id, "job")
            self.assert_refused(grpc.StatusCode.ALREADY_EXISTS,
                                lambda: first.generate(PROMPT, request_id="job", max_tokens=1))
            first.abort("job")
            self.assert_refused(grpc.StatusCode.CANCELLED, lambda: list(call))

    def test_nobody_takes_all_seats(self):
        with running("--auth_token_file", path("identities"), "--max_num_seqs", "8") as (server, _):
            greedy, modest, operator = (self.client(server.address, token=token) for token in (*TOKENS, OPERATOR))
            self.assert_refused(grpc.StatusCode.INVALID_ARGUMENT,
                                lambda: greedy.generate(PROMPT, n=8, max_tokens=1))
            calls = [greedy.stream(PROMPT, n=4, **LONG) for _ in range(3)]
            operator.wait_until(lambda stats: stats.queue.num_running == 4 and stats.queue.num_waiting == 2, "seated")
            self.assertEqual(len(modest.generate(PROMPT, n=4, max_tokens=1).completions), 4)
            self.assertEqual(operator.stats().queue.num_running, 4)
            for call in calls:
                call.cancel()
            operator.wait_until_idle()

    def test_nobody_takes_the_whole_queue(self):
        with running("--auth_token_file", path("identities"), "--max_num_seqs", "2", "--max_queue",
                     "8") as (server, _):
            greedy, modest, operator = (self.client(server.address, token=token) for token in (*TOKENS, OPERATOR))
            running_one = greedy.stream(PROMPT, **LONG)
            next(running_one)
            calls = [greedy.stream(PROMPT, **LONG) for _ in range(4)]
            operator.wait_until(lambda stats: stats.queue.num_waiting == 4, "half full")
            refused = greedy.stream(PROMPT, **LONG)
            self.assert_refused(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: next(refused))
            self.assertEqual(modest.generate(PROMPT, max_tokens=1).usage.completion_tokens, 1)
            for call in (running_one, *calls):
                call.cancel()
            operator.wait_until_idle()

    def test_a_tenant_keeps_to_its_rates(self):
        file = harness.SCRATCH / "rates"
        limits = "name=alice requests_per_minute=3 tokens_per_minute=40\n"
        file.write_text(token_line(TOKENS[0], limits) + TOKENS[1] + "\n" +
                        token_line(OPERATOR, "name=olga roles=operator"))
        with running("--auth_token_file", str(file)) as (server, _):
            limited, other, operator = (self.client(server.address, token=token) for token in (*TOKENS, OPERATOR))
            ids = list(range(10, 15))
            usage = limited.generate(ids, max_tokens=45, ignore_eos=True, bypass_read=True).usage
            quota = limited.quota()
            self.assertEqual((quota.name, quota.accepted_requests, quota.num_requests), ("alice", 1, 0))
            self.assertEqual(quota.served_tokens, usage.prompt_tokens + usage.completion_tokens)
            self.assertAlmostEqual(quota.tokens_left, 40 - 50, delta=2)
            with self.assertRaises(grpc.RpcError) as caught:
                limited.generate(ids, max_tokens=1)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
            self.assertRegex(caught.exception.details(), "tokens_per_minute.*40.*try again in")
            self.assertGreater(details(caught.exception, error_details_pb2.RetryInfo).retry_delay.ToSeconds(), 5)
            other.generate(ids, max_tokens=45, ignore_eos=True)

            file.write_text(file.read_text().replace(" tokens_per_minute=40", ""))  # read again, without a restart
            server.signal(signal.SIGHUP)
            server.wait_for_log("(?s)(identities: loaded.*){2}")
            for _ in range(2):
                limited.generate(ids, max_tokens=1)
            refused = lambda: limited.generate(ids, max_tokens=1)  # noqa: E731
            self.assert_refused(grpc.StatusCode.RESOURCE_EXHAUSTED, refused)
            self.assertFalse(limited.quota().HasField("tokens_left"))

            self.assert_refused(grpc.StatusCode.PERMISSION_DENIED, limited.list_tenants)
            tenants = operator.list_tenants()
            self.assertEqual(tenants["alice"].refused_requests, 2)
            self.assertEqual(tenants["alice"].accepted_requests, 3)
            self.assertEqual([tenant.refused_requests for name, tenant in tenants.items() if name != "alice"], [0])

    def test_identities_are_read_again(self):
        file = harness.SCRATCH / "changing"
        file.write_text(TOKENS[0] + "\n")
        with running("--auth_token_file", str(file)) as (server, _):
            first, second = (self.client(server.address, token=token) for token in TOKENS)
            first.server_info()
            file.write_text(TOKENS[1] + "\n")
            server.signal(signal.SIGHUP)
            server.wait_for_log("(?s)(identities: loaded.*){2}")
            second.server_info()
            self.assert_refused(grpc.StatusCode.UNAUTHENTICATED, first.server_info)
            file.write_text("short\n")
            server.signal(signal.SIGHUP)
            server.wait_for_log("identities: not loaded")
            second.server_info()
            # Now no signal is sent. The file is replaced by a link, as when a mounted secret changes.
            (harness.SCRATCH / "next").write_text(TOKENS[0] + "\n")
            (harness.SCRATCH / "link").symlink_to("next")
            (harness.SCRATCH / "link").rename(file)
            server.wait_for_log("(?s)(identities: loaded.*){3}")
            first.server_info()

    def test_only_a_second_signal_ends_what_runs(self):
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT):
            with running() as (server, client):
                call = client.stream(PROMPT, max_tokens=200, ignore_eos=True)
                first = next(call)
                server.signal(number)
                last = [first, *call][-1]  # to its end
                self.assertEqual(last.usage.completion_tokens, 200)
                self.assertEqual(call.code(), grpc.StatusCode.OK, number)
                if number == signal.SIGQUIT:
                    self.assertEqual(server.wait(), 0)

    def test_a_far_deadline_has_not_passed(self):
        with running() as (server, _):
            host, port = server.address.split(":")
            connection = raw_http2.Connection((host, int(port)))  # no library sends such a deadline
            self.addCleanup(connection.close)
            connection.request(1, "/quire.v1.InferenceService/Generate", ("grpc-timeout", "99999999H"),
                               ("x-request-id", "far"),
                               body=harness.make_request(PROMPT, max_tokens=1).SerializeToString())
            self.assertEqual(connection.answer(1).status, 0)
            self.assertIn('code="OK"', server.wait_for_log('rpc: Generate request_id="far".*').group())

    def test_long_names_are_cut(self):
        with running() as (_, client):
            for text in ("x" * 10000, "\0" * 10000):
                self.assert_refused(grpc.StatusCode.NOT_FOUND, lambda: client.generate(PROMPT, model=text))
                self.assert_refused(grpc.StatusCode.NOT_FOUND, lambda: client.abort(text))

    def test_calls_are_logged_with_their_callers(self):
        with running("--auth_token_file", path("identities")) as (server, _):
            operator = self.client(server.address, token=OPERATOR)
            operator.generate(PROMPT, request_id="audited", max_tokens=1)
            line = server.wait_for_log('rpc: Generate.*request_id="audited".*').group()
            for field in ('caller="olga"', 'tenant="olga"', 'peer="127.0.0.1:', 'code="OK"'):
                self.assertIn(field, line)
            self.assertNotIn("another hour", server.log())
            operator.drain()
            self.assertRegex(server.wait_for_log('rpc: Drain.*').group(), 'caller="olga".*code="OK"')

    def test_an_open_address_serves_no_control(self):
        with running(listen="0.0.0.0:0") as (server, client):
            self.assertEqual(client.generate(PROMPT, max_tokens=3, ignore_eos=True).usage.completion_tokens, 3)
            for call in (client.stats, client.drain, client.reflected_services):
                self.assert_refused(grpc.StatusCode.UNIMPLEMENTED, call)
            self.assertEqual(client.health(), "SERVING")
            self.assertIn("ControlService and reflection are not served", server.log())
            shown = run_cli("stats", "--server", server.address)
            self.assertEqual(shown.returncode, 1)
            self.assertIn("--control_listen", shown.stderr)

    def test_an_open_address_with_tokens_serves_control(self):
        with running("--auth_token_file", path("identities"), listen="0.0.0.0:0") as (server, _):
            client = self.client(server.address, token=OPERATOR)
            self.assertGreater(client.stats().blocks.total, 0)

    def test_control_on_loopback_asks_for_no_role(self):
        with running("--auth_token_file", path("tokens"), "--control_listen", "127.0.0.1:0") as (server, _):
            self.assertIn("nobody has the role operator", server.log())
            user, nobody = (self.client(server.control_address, token=token) for token in (TOKENS[0], ""))
            self.assertGreater(user.stats().blocks.total, 0)
            self.assert_refused(grpc.StatusCode.UNAUTHENTICATED, nobody.stats)

    def test_a_team_shares_its_prefixes(self):
        with (harness.SCRATCH / "team").open("w") as file:
            file.writelines(token_line(token, f"name=n{i} tenant=search max_priority=10")
                            for i, token in enumerate(TOKENS))
        with running("--auth_token_file", path("team")) as (server, _):
            first, second = (self.client(server.address, token=token) for token in TOKENS)
            first.generate(PROMPT, max_tokens=1)
            usage = second.generate(PROMPT, max_tokens=1, priority=10).usage
            self.assertEqual(usage.cached_tokens, usage.prompt_tokens - 1)
            self.assertEqual(second.generate(PROMPT, max_tokens=1, tenant="part").usage.cached_tokens, 0)

    def test_control_on_an_address_of_its_own(self):
        with running("--control_listen", "127.0.0.1:0", listen="0.0.0.0:0") as (server, client):
            self.assert_refused(grpc.StatusCode.UNIMPLEMENTED, client.stats)
            self.assert_refused(grpc.StatusCode.UNIMPLEMENTED, client.flush)
            self.assertTrue(client.model_info().name)
            self.assertGreater(client.server_info().num_blocks, 0)
            shown = run_cli("models", "--server", server.address)
            self.assertEqual((shown.returncode, shown.stderr), (0, ""))
            self.assert_refused(grpc.StatusCode.NOT_FOUND, lambda: client.abort("nobody's"))
            control = self.client(server.control_address)
            self.assertGreater(control.stats().blocks.total, 0)
            self.assert_refused(grpc.StatusCode.UNIMPLEMENTED, lambda: control.generate(PROMPT, max_tokens=1))


if __name__ == "__main__":
    unittest.main(verbosity=2)
