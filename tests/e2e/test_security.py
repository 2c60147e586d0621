"""TLS, client certificates, bearer tokens, and what an address that strangers reach does not serve."""

import subprocess
import unittest

import grpc

import harness
from harness import Client, run_cli, running

PROMPT = "the thing in another hour"
LONG = dict(seed=1, max_tokens=30000, ignore_eos=True)
TOKENS = ["first-token-0123456789", "second-token-0123456789"]


def openssl(*args: str):
    subprocess.run(["openssl", *args], check=True, capture_output=True, cwd=harness.SCRATCH)


def make_authority(name: str):
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")


def make_certificate(name: str, authority: str):
    names = "DNS:localhost,IP:127.0.0.1" if name == "server" else f"DNS:{name}"
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
            "-addext", f"subjectAltName={names}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
    openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
            "-CAcreateserial", "-days", "2", "-copy_extensions", "copy", "-out", f"{name}.pem")


def setUpModule():
    make_authority("authority")
    make_authority("stranger")
    make_certificate("server", "authority")
    make_certificate("alice", "authority")
    make_certificate("bob", "authority")
    make_certificate("mallory", "stranger")
    (harness.SCRATCH / "tokens").write_text("# who may call\n" + "\n".join(TOKENS) + "\n")


def path(name: str) -> str:
    return str(harness.SCRATCH / name)


def credentials(client: str = "", authority: str = "authority"):
    def read(name):
        return (harness.SCRATCH / name).read_bytes()

    return grpc.ssl_channel_credentials(read(f"{authority}.pem"), read(f"{client}.key") if client else None,
                                        read(f"{client}.pem") if client else None)


SERVER_TLS = ("--tls_cert", "server.pem", "--tls_key", "server.key")


def server_tls(*more: str) -> list[str]:
    return [path(word) if word.endswith((".pem", ".key")) else word for word in (*SERVER_TLS, *more)]


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
            self.check_abort_is_the_owners(alice, bob)
            shown = run_cli("models", "--server", server.address, "--tls_ca", path("authority.pem"), "--tls_cert",
                            path("alice.pem"), "--tls_key", path("alice.key"))
            self.assertEqual(shown.returncode, 0, shown.stderr)

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
        with running("--auth_token_file", path("tokens"), listen="0.0.0.0:0") as (server, _):
            client = self.client(server.address, token=TOKENS[0])
            self.assertGreater(client.stats().blocks.total, 0)

    def test_control_on_an_address_of_its_own(self):
        with running("--control_listen", "127.0.0.1:0", listen="0.0.0.0:0") as (server, client):
            self.assert_refused(grpc.StatusCode.UNIMPLEMENTED, client.stats)
            control = self.client(server.control_address)
            self.assertGreater(control.stats().blocks.total, 0)
            self.assert_refused(grpc.StatusCode.UNIMPLEMENTED, lambda: control.generate(PROMPT, max_tokens=1))


if __name__ == "__main__":
    unittest.main(verbosity=2)
