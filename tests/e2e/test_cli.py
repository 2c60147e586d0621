"""The quire command against a real server: its output and its exit status."""

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
import unittest

import harness
from harness import json_lines, run_cli

PROMPT = "the thing in another hour"
GROUPS = ("prefix", "session")  # whose second word is a command
LETTERS = ",".join(str(id) for id in range(32, 90))


class CliTest(harness.TestCase):
    def quire(self, *args, status=0, **kwargs):
        words = 2 if args[0] in GROUPS else 1
        shown = run_cli(*args[:words], "--server", self.server.address, *args[words:], **kwargs)
        self.assertEqual(shown.returncode, status, shown.stderr)
        return shown

    def start(self, *args, **kwargs):
        return subprocess.Popen([str(harness.BIN / "quire"), args[0], "--server", self.server.address, *args[1:]],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=harness.child_environment(), **kwargs)

    def test_generate_prints_the_text(self):
        shown = self.quire("generate", "--prompt", PROMPT, "--max_tokens", "20", "--seed", "3", "--stats",
                           "--allowed_token_ids", LETTERS)
        answer = self.client.generate(PROMPT, max_tokens=20, seed=3, allowed_token_ids=range(32, 90))
        self.assertEqual(shown.stdout, answer.completions[0].text + "\n")
        self.assertIn("20 generated", shown.stderr)
        self.assertIn("ended by length", shown.stderr)

    def test_every_form_of_prompt_gives_the_same(self):
        options = ("--max_tokens", "10", "--seed", "3", "--ignore_eos", "--json")
        ids = self.client.tokenize(PROMPT)
        file = harness.SCRATCH / "prompt.txt"
        file.write_text(PROMPT)

        def ids_of(shown):
            return [id for message in json_lines(shown.stdout) for id in message.get("token_ids", [])]

        wanted = ids_of(self.quire("generate", "--prompt", PROMPT, *options))
        self.assertEqual(len(wanted), 10)
        self.assertEqual(ids_of(self.quire("generate", "--token_ids", ",".join(map(str, ids)), *options)), wanted)
        self.assertEqual(ids_of(self.quire("generate", "--prompt_file", str(file), *options)), wanted)
        self.assertEqual(ids_of(self.quire("generate", "--prompt_file", "-", *options, text=PROMPT)), wanted)

    def test_json_is_the_stream_a_message_a_line(self):
        messages = json_lines(self.quire("generate", "--prompt", PROMPT, "--max_tokens", "12", "--ignore_eos", "--json",
                                         "--request_id", "by-cli", "--allowed_token_ids", LETTERS).stdout)
        self.assertEqual(messages[0]["request_id"], "by-cli")
        last = messages[-1]
        self.assertEqual(last["finish_reason"], "FINISH_REASON_LENGTH")
        self.assertEqual(last["usage"]["completion_tokens"], 12)
        self.assertGreater(last["timings"]["ttft_seconds"], 0)
        self.assertIn("model_digest", messages[0])
        self.assertTrue(any("text_delta" in message for message in messages))
        unary = json_lines(self.quire("generate", "--prompt", PROMPT, "--max_tokens", "12", "--ignore_eos", "--json",
                                      "--unary").stdout)
        self.assertEqual(len(unary), 1)
        self.assertEqual(len(unary[0]["completions"][0]["token_ids"]), 12)

    def test_several_samples_come_under_their_titles(self):
        shown = self.quire("generate", "--prompt", PROMPT, "--max_tokens", "5", "--n", "3", "--ignore_eos").stdout
        self.assertEqual(sorted(line[:12] for line in shown.splitlines() if line.startswith("--- sample")),
                         ["--- sample 0", "--- sample 1", "--- sample 2"])

    def test_the_best_samples_come_with_their_scores(self):
        options = ("--prompt", PROMPT, "--max_tokens", "5", "--n", "2", "--best_of", "4", "--ignore_eos", "--seed", "3")
        shown = self.quire("generate", *options).stdout
        self.assertEqual(len([line for line in shown.splitlines() if ", score -" in line]), 2)
        answer, = json_lines(self.quire("generate", *options, "--json").stdout)
        scores = [completion["score"] for completion in answer["completions"]]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertEqual(answer["usage"]["completion_tokens"], 20)

    def test_beams_give_the_best_answers(self):
        options = ("--prompt", PROMPT, "--max_tokens", "6", "--beam_width", "4", "--beam_return", "2", "--ignore_eos",
                   "--beam_early_stopping", "never")
        shown = self.quire("generate", *options).stdout
        self.assertEqual(len([line for line in shown.splitlines() if ", score -" in line]), 2)
        answer, = json_lines(self.quire("generate", *options, "--json").stdout)
        first, second = answer["completions"]
        self.assertGreater(first["score"], second["score"])
        self.assertEqual(answer["usage"]["completion_tokens"], 4 * 6)
        whole = self.client.tokenize(PROMPT, add_special_tokens=True) + first["token_ids"]
        read = self.client.generate(whole, max_tokens=1, prompt_logprobs=0).prompt_logprobs
        self.assertAlmostEqual(sum(position.chosen.logprob for position in read[-6:]) / 6, first["score"], places=6)
        self.quire("generate", *options[:-1], "soon", status=2)

    def test_logprobs_are_listed(self):
        shown = self.quire("generate", "--prompt", PROMPT, "--max_tokens", "4", "--ignore_eos", "--logprobs", "2",
                           "--allowed_token_ids", LETTERS).stdout
        self.assertEqual(len([line for line in shown.splitlines() if " | " in line]), 5)  # with the title

    def test_chat_one_shot(self):
        options = ("--max_tokens", "10", "--seed", "1", "--allowed_token_ids", LETTERS)
        shown = self.quire("chat", "--prompt", "the hour?", "--system", "Be brief.", *options)
        answer = self.client.generate([("system", "Be brief."), ("user", "the hour?")], max_tokens=10, seed=1,
                                      allowed_token_ids=range(32, 90))
        self.assertEqual(shown.stdout, answer.completions[0].text + "\n")

    def test_chat_keeps_the_conversation(self):
        options = ("--max_tokens", "10", "--seed", "1", "--allowed_token_ids", LETTERS)
        text = "one?\ntwo?\n/reset\none?\n/system Be brief.\none?\n/exit\nnever\n"
        lines = self.quire("chat", *options, text=text).stdout.splitlines()

        def answer(*turns):
            return self.client.generate(list(turns), max_tokens=10, seed=1,
                                        allowed_token_ids=range(32, 90)).completions[0].text

        first = answer(("user", "one?"))
        self.assertEqual(lines, [first, answer(("user", "one?"), ("assistant", first), ("user", "two?")), first,
                                 answer(("system", "Be brief."), ("user", "one?"))])

    def test_tokenize_there_and_back(self):
        shown = self.quire("tokenize", "--text", "the thing", "--json").stdout
        ids = [token["id"] for token in json.loads(shown)["tokens"]]
        self.assertEqual(ids, self.client.tokenize("the thing"))
        self.assertEqual(self.quire("tokenize", "--token_ids", ",".join(map(str, ids))).stdout, "the thing\n")
        self.assertIn('"th"', self.quire("tokenize", "--text", "the thing").stdout)
        plain = self.quire("tokenize", "--text", "the", "--add_special_tokens=false", "--json").stdout
        self.assertNotIn("<s>", plain)
        behind = self.quire("tokenize", "--text", "the", "--use", "continuation", "--json").stdout
        self.assertEqual(behind, plain)

    def test_models_stats_health(self):
        self.client.generate(PROMPT, max_tokens=1)  # so that a tenant has been accepted
        self.assertIn("2 layers, hidden 64", self.quire("models").stdout)
        models = json.loads(self.quire("models", "--json").stdout)
        self.assertEqual(models["models"][0]["num_layers"], 2)
        self.assertIn("blocks", self.quire("stats").stdout)
        self.assertIn("blocks", json.loads(self.quire("stats", "--json").stdout))
        watched = self.quire("stats", "--watch", "--count", "3", "--interval", "10ms", "--json").stdout
        self.assertEqual(len(json_lines(watched)), 3)
        screens = self.quire("top", "--count", "2", "--interval", "10ms").stdout
        self.assertEqual(screens.count("blocks    "), 2)
        self.assertNotIn("\x1b", screens)
        tenants = json.loads(self.quire("tenants", "--json").stdout)["tenants"]
        self.assertGreater(int(tenants[0]["accepted_requests"]), 0)
        self.assertIn("(all callers)", self.quire("tenants").stdout)
        self.assertEqual(json.loads(self.quire("tenants", "--own", "--json").stdout)["share"], 1)
        self.assertEqual(self.quire("health").stdout, "SERVING\n")
        self.assertEqual(self.quire("health", "--service", "quire.v1.InferenceService").stdout, "SERVING\n")
        self.assertIn("NOT_FOUND", self.quire("health", "--service", "none", status=1).stderr)
        self.assertIn("NOT_FOUND", self.quire("models", "--model", "none", status=1).stderr)

    def test_prefixes(self):
        hostile = "rules\x1b[31m"
        file = harness.SCRATCH / "rules.txt"
        file.write_text(PROMPT)
        name = self.quire("prefix", "create", "--prompt_file", str(file), "--display_name", hostile, "--ttl", "10m",
                          "--allow", "bob", "--allow", "carol").stdout.strip()
        self.assertRegex(name, "^prefixes/[a-z0-9]{26}$")
        made = json.loads(self.quire("prefix", "get", name, "--json").stdout)
        for form in (("--prompt_file", "-"), ("--token_ids", ",".join(map(str, self.client.tokenize(PROMPT))))):
            same = json.loads(self.quire("prefix", "create", *form, "--salt", "s", "--json", text=PROMPT).stdout)
            self.assertEqual(same["content_sha256"], made["content_sha256"], form)
            self.quire("prefix", "delete", same["name"])
        once = [self.quire("prefix", "create", "--prompt", PROMPT, "--request_id", "cli").stdout.strip() for _ in "ab"]
        self.assertEqual(once[0], once[1])
        self.quire("prefix", "delete", once[0])
        shown = self.quire("generate", "--prefix", name, "--prompt", " and", "--max_tokens", "3", "--stats")
        self.assertRegex(shown.stderr, r"\b[1-9]\d* tokens of the named prefix")
        shown = self.quire("prefix", "get", name).stdout
        for word in (name, "READY", "bob", "carol", "1, which did not compute"):
            self.assertIn(word, shown)
        for shown in (shown, self.quire("prefix", "list").stdout):
            self.assertIn(name, shown)
            self.assertIn("rules", shown)
            self.assertNotIn("\x1b", shown)
        self.assertEqual([json.loads(line)["name"] for line in self.quire("prefix", "list", "--json").stdout.splitlines()],
                         [name])
        made = json.loads(self.quire("prefix", "warm", name, "--json").stdout)
        self.assertEqual((made["state"], made["display_name"]), ("STATE_READY", hostile))
        self.assertIn("prefix.expire_time", self.quire("prefix", "update", name, "--expire_time", "2001-01-01T00:00:00Z",
                                                       status=1).stderr)
        changed = json.loads(self.quire("prefix", "update", name, "--ttl", "20m", "--allow_nobody", "--refresh_on_hit",
                                        "--etag", made["etag"], "--json").stdout)
        self.assertEqual((changed["ttl"], changed["refresh_on_hit"]), ("1200s", True))
        self.assertNotIn("allowed_tenants", changed)
        self.assertIn("ABORTED", self.quire("prefix", "delete", name, "--etag", made["etag"], status=1).stderr)
        self.quire("prefix", "delete", name)
        self.assertIn("NOT_FOUND", self.quire("prefix", "get", name, status=1).stderr)
        self.quire("prefix", "delete", name, "--allow_missing")
        begun = json.loads(self.quire("prefix", "create", "--prompt", PROMPT, "--wait=false", "--json").stdout)
        self.assertIn("READY", self.quire("prefix", "warm", begun["name"]).stdout)
        self.quire("prefix", "delete", begun["name"])

    def test_health_by_the_admin_port(self):
        admin = self.server.admin_address
        self.assertEqual(run_cli("health", "--admin", admin).stdout, "SERVING\n")
        self.assertEqual(run_cli("health", QUIRE_ADMIN_LISTEN=admin).stdout, "SERVING\n")
        anywhere = admin.replace("127.0.0.1", "0.0.0.0")  # as a container listens
        self.assertEqual(run_cli("health", "--json", QUIRE_ADMIN_LISTEN=anywhere).stdout, '{"status":"SERVING"}\n')
        # --server takes precedence over QUIRE_ADMIN_LISTEN.
        asked = run_cli("health", "--server", self.server.address, QUIRE_ADMIN_LISTEN="127.0.0.1:1")
        self.assertEqual(asked.stdout, "SERVING\n")
        for address, wanted in (("127.0.0.1:1", "refused"), ("nowhere", "HOST:PORT"), (self.server.address, "--admin")):
            shown = run_cli("health", "--admin", address, "--timeout", "5s")
            self.assertEqual((shown.returncode, shown.stdout), (1, ""))
            self.assertIn(wanted, shown.stderr)
        self.assertEqual(run_cli("health", "--admin", admin, "--server", self.server.address).returncode, 2)

    def test_health_of_a_silent_admin_port_ends_in_time(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            shown = run_cli("health", "--admin", f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "100ms")
            self.assertEqual(shown.returncode, 1)
            self.assertIn("in time", shown.stderr)

    def test_bench_in_both_loops(self):
        for loop in (("--concurrency", "4"), ("--rate", "200")):
            shown = self.quire("bench", *loop, "--num_requests", "20", "--prompt_tokens", "8..32", "--output_tokens",
                               "5..10", "--ignore_eos", "--shared_prefix_tokens", "64", "--json", "--warmup", "2")
            report = json.loads(shown.stdout)
            self.assertEqual(report["num_ok"], 20)
            self.assertEqual(report["failures"], {})
            self.assertGreater(report["cached_tokens"], 64 * 10)
            self.assertEqual(report["output_tokens"], report["server"]["generated"])
            self.assertEqual(report["ttft_seconds"]["count"], 20)
            self.assertGreater(report["tpot_seconds"]["count"], 0)
        table = self.quire("bench", "--num_requests", "3", "--output_tokens", "4", "--ignore_eos").stdout
        for word in ("TTFT", "TPOT", "token gap", "p99", "3 ok"):
            self.assertIn(word, table)

    def test_bench_cancels_its_share(self):
        report = json.loads(self.quire("bench", "--concurrency", "8", "--num_requests", "60", "--cancel_rate", "0.5",
                                       "--output_tokens", "500", "--ignore_eos", "--json").stdout)
        self.assertEqual(report["num_ok"] + report["num_dropped"], 60)
        self.assertGreater(report["num_dropped"], 10)
        self.assertEqual(report["failures"], {})

    def test_addresses_as_people_type_them(self):
        """Without a port, with a scheme, and the port of HTTP."""
        for address in (f"http://{self.server.address}", f"http://{self.server.address}/", f"grpc://{self.server.address}"):
            self.assertEqual(run_cli("health", "--server", address).returncode, 0, address)
        shown = run_cli("health", "--server", self.server.admin_address)
        self.assertEqual(shown.returncode, 1)
        self.assertIn(f"{self.server.admin_address} speaks HTTP: is it the admin port?", shown.stderr)
        self.assertEqual(run_cli("health", "--server", f"https://{self.server.address}").returncode, 1)  # no TLS there
        shown = run_cli("health", "--server", f"http://{self.server.address}/v1")
        self.assertEqual(shown.returncode, 2)
        self.assertIn("want HOST:PORT", shown.stderr)

    def on_terminal(self, *args: str, typed: bytes = b"", columns: int = 80, status: int = 0) -> str:
        """What a terminal shows of a command, on which `typed` is typed first."""
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.write(ours, typed)
        process = subprocess.Popen([str(harness.BIN / "quire"), *args], stdin=theirs, stdout=theirs, stderr=theirs,
                                   env=harness.child_environment())
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # a terminal that nobody else has ends with an error
            while piece := os.read(ours, 4096):
                text += piece
        os.close(ours)
        text = text.decode(errors="replace")
        self.assertEqual(process.wait(harness.DEADLINE), status, text)
        return text

    def test_a_chat_on_a_terminal_says_who_answers_and_breaks_no_word(self):
        letters = ",".join(str(id) for id in (32, *range(97, 103)))  # a space and a to f
        text = self.on_terminal("chat", "--server", self.server.address, "--max_tokens", "120",
                                "--allowed_token_ids", letters, "--logit_bias", "32:3", "--seed", "1",
                                typed=b"the hour?\n/exit\n", columns=24)
        self.assertIn("tiny-llama, a context of 32768 tokens\r\n", text)
        answer = text.split("> ")[1].split("\r\n\r\n")[0].split("\r\n")
        whole = self.client.generate([("user", "the hour?")], max_tokens=120, seed=1,
                                     allowed_token_ids=[32, *range(97, 103)], logit_bias={32: 3}).completions[0].text
        self.assertGreater(len(answer), 4)
        self.assertLessEqual(max(map(len, answer)), 24)
        self.assertEqual(" ".join(answer).split(), whole.split())

    def test_a_model_that_cannot_chat_lets_nobody_type(self):
        with harness.running(model=harness.REPOSITORY / "models" / "quire-stories") as (server, _):
            text = self.on_terminal("chat", "--server", server.address, status=1)
            self.assertIn("quire-stories has no chat template: use quire generate", text)
            self.assertNotIn("> ", text)
        text = self.on_terminal("chat", "--server", "127.0.0.1:1", status=1)
        self.assertIn("UNAVAILABLE", text)
        self.assertNotIn("> ", text)

    def test_on_a_terminal_the_prompt_comes_first(self):
        def seen(*more: str) -> str:
            return self.on_terminal("generate", "--server", self.server.address, "--prompt", "the\nthing\x1b[2J",
                                    "--max_tokens", "3", "--ignore_eos", *more)

        for more in ((), ("--unary",)):
            self.assertTrue(seen(*more).startswith("\x1b[2mthe\r\nthing?[2J\x1b[0m"), more)
        for more in (("--json",), ("--n", "2"), ("--echo",)):
            self.assertNotIn("\x1b[2m", seen(*more))

    def test_q_ends_the_screen(self):
        ours, theirs = os.openpty()
        self.addCleanup(os.close, ours)
        process = subprocess.Popen([str(harness.BIN / "quire"), "top", "--server", self.server.address, "--interval", "10m"],
                                   stdin=theirs, stdout=theirs, env=harness.child_environment())
        seen = b""
        while b"TTFT" not in seen:
            seen += os.read(ours, 4096)
        self.assertFalse(termios.tcgetattr(theirs)[3] & termios.ECHO)
        os.write(ours, b"xq")
        self.assertEqual(process.wait(harness.DEADLINE), 0)
        self.assertTrue(termios.tcgetattr(theirs)[3] & termios.ECHO)
        os.close(theirs)

    def test_ctrl_c_cancels(self):
        for command in (("generate", "--prompt", PROMPT, "--max_tokens", "30000", "--ignore_eos"),
                        ("bench", "--num_requests", "100", "--output_tokens", "20000", "--ignore_eos")):
            process = self.start(*command)
            self.client.wait_until(lambda s: s.queue.num_running == 1, "running")
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=harness.DEADLINE)
            self.assertEqual(process.returncode, 130)
            self.client.wait_until_idle()

    def test_a_closed_pipe_ends_the_stream(self):
        process = self.start("generate", "--prompt", PROMPT, "--max_tokens", "30000", "--ignore_eos", "--json")
        process.stdout.readline()
        process.stdout.close()
        process.wait(harness.DEADLINE)
        process.stderr.close()
        self.assertEqual(process.returncode, -signal.SIGPIPE)
        self.client.wait_until_idle()

    def test_timeouts_and_refusals_fail_with_a_cure(self):
        shown = self.quire("generate", "--prompt", PROMPT, "--max_tokens", "30000", "--ignore_eos", "--timeout",
                           "200ms", status=1)
        self.assertIn("DEADLINE_EXCEEDED", shown.stderr)
        self.assertIn("--timeout", shown.stderr)
        shown = self.quire("generate", "--prompt", PROMPT, "--top_p", "2", status=1)
        self.assertIn("sampling.top_p", shown.stderr)

    def test_the_python_example(self):
        example = harness.REPOSITORY / "docs" / "examples" / "client.py"
        code = [line for line in example.read_text().splitlines() if line.strip()]
        self.assertLessEqual(len(code), 15)
        shown = subprocess.run([sys.executable, str(example), self.server.address, PROMPT], capture_output=True,
                               text=True, timeout=harness.DEADLINE, env=dict(os.environ))
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertGreater(len(shown.stdout), 10)


class UsageTest(unittest.TestCase):
    """Without a server."""

    COMMANDS = ("generate", "chat", "prefix", "session", "tokenize", "models", "stats", "top", "tenants", "health", "bench")

    def test_help_for_all_and_each(self):
        everything = run_cli("--help")
        self.assertEqual(everything.returncode, 0)
        for command in self.COMMANDS:
            self.assertIn(command, everything.stdout)
            shown = run_cli(command, *(["create"] if command in GROUPS else []), "--help")
            self.assertEqual(shown.returncode, 0)
            self.assertIn("--server", shown.stdout)
            self.assertEqual(shown.stderr, "")

    def test_wrong_command_lines_end_with_2(self):
        latin1 = harness.SCRATCH / "latin1.txt"
        latin1.write_bytes(b"caf\xe9")
        for args, told in [((), "usage"), (("generat",), "did you mean generate?"), (("x",), '"x"\n'), (("generate",), "--prompt"),
                           (("generate", "--prompt", "a", "--token_ids", "1"), "one of"),
                           (("generate", "--prompt", "a", "--max_token", "1"), "--max_tokens"),
                           (("generate", "--token_ids", "1,x"), "1,2,3"),
                           (("generate", "--prompt_file", "/nowhere"), "/nowhere"),
                           (("generate", "--prompt_file", str(latin1)), "UTF-8"),
                           (("generate", "--prompt_file", "/"), "cannot read /"),
                           (("health", "--tls_ca", "/nowhere"), "/nowhere"),
                           (("health", "--tls_cert", "/nowhere"), "--tls_key"),
                           (("bench", "--rate", "1", "--concurrency", "1"), "--rate"),
                           (("bench", "--cancel_rate", "2"), "--cancel_rate"),
                           (("tokenize",), "--text"), (("models", "all"), "all"), (("prefix",), "usage"),
                           (("prefix", "make"), "usage"), (("prefix", "create"), "--prompt_file"),
                           (("prefix", "create", "--text", "a"), "--prompt"), (("prefix", "get"), "name of a prefix"),
                           (("prefix", "create", "--prompt", "a", "--ttl", "1m", "--expire_time", "x"), "one of --ttl"),
                           (("prefix", "create", "--prompt", "a", "--expire_time", "soon"), "2030-01-31"),
                           (("prefix", "update", "p"), "at least one of"),
                           (("prefix", "update", "p", "--allow", "a", "--allow_nobody"), "one of --allow")]:
            with self.subTest(args=args):
                shown = run_cli(*args)
                self.assertEqual(shown.returncode, 2, shown.stderr)
                self.assertIn(told, shown.stderr)
                self.assertEqual(shown.stdout, "")

    def test_the_version_is_that_of_the_server(self):
        for word in ("--version", "version"):
            shown = run_cli(word)
            self.assertEqual((shown.returncode, shown.stderr), (0, ""))
            server = subprocess.run([harness.BIN / "quire-server", "--version"], capture_output=True, text=True)
            self.assertEqual(shown.stdout, server.stdout.replace("quire-server ", "quire "))
            self.assertRegex(shown.stdout, r"^quire \d+\.\d+\.\d+\n$")

    def test_what_is_no_typo_gets_no_proposal(self):
        for word in ("--sessions", "--prefixes", "versions"):
            self.assertNotIn("did you mean", run_cli(word).stderr)

    def test_no_server_says_how_to_start_one(self):
        for args in (("health",), ("generate", "--prompt", "a"), ("chat", "--prompt", "a"), ("stats",), ("bench",)):
            shown = run_cli(args[0], "--server", "127.0.0.1:1", *args[1:])
            self.assertEqual(shown.returncode, 1)
            self.assertIn("UNAVAILABLE", shown.stderr)
            self.assertIn("quire-server --model", shown.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
