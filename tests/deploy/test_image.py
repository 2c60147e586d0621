"""The container image, built and run by buildah and podman: what an orchestrator asks of it."""

import json
import pathlib
import re
import shutil
import struct
import subprocess
import time
import unittest

import containers
import harness
import make_tiny_model
import test_security
from containers import Container
from harness import run_cli

IMAGE = "localhost/quire:test"
STORY = ("generate", "--prompt", "Once upon a time", "--max_tokens", "20", "--ignore_eos", "--seed", "1")


def setUpModule():
    reason = containers.why_not()
    if reason:
        raise unittest.SkipTest(reason)
    containers.prepare()
    containers.build(IMAGE, "--build-arg", "REVISION=abc")


def write_wide_model(folder: pathlib.Path, ffn: int) -> int:
    """A model with wide layers of zeros, which take no room on the disk; the bytes of its weights."""
    make_tiny_model.write(folder)
    config = json.loads((folder / "config.json").read_text())
    config["intermediate_size"] = make_tiny_model.FFN = ffn
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, shape, _ in make_tiny_model.tensors(config["vocab_size"], config["head_dim"]):
        begin, end = end, end + 4 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return end


class ImageCase(unittest.TestCase):
    def start(self, *args: str, **kwargs) -> Container:
        container = Container(IMAGE, *args, **kwargs)
        self.addCleanup(container.close)
        return container

    def tell_a_story(self, container: Container, *flags: str):
        told = run_cli(*STORY, "--server", container.address, *flags)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertGreater(len(told.stdout.split()), 10)


class ImageTest(ImageCase):
    def test_it_tells_a_story_as_nobody_on_a_read_only_root(self):
        container = self.start().wait_healthy()
        self.tell_a_story(container)
        pid = container.state["Pid"]
        status = dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
        self.assertEqual(status["Uid"].split(), ["65532"] * 4)
        self.assertEqual(status["Gid"].split(), ["65532"] * 4)
        self.assertEqual((int(status["CapEff"], 16), status["NoNewPrivs"], status["Seccomp"]), (0, "1", "2"))
        root = [line.split() for line in pathlib.Path(f"/proc/{pid}/mounts").read_text().splitlines()]
        self.assertIn("ro", next(options for _, where, _, options, *_ in root if where == "/").split(","))

    def test_operators_ask_from_inside(self):
        container = self.start().wait_healthy()
        stats = container.exec("/usr/local/bin/quire", "stats", "--server", "127.0.0.1:8102")
        self.assertIn("blocks", stats.stdout)
        refused = run_cli("stats", "--server", container.address)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("UNIMPLEMENTED", refused.stderr)

    def test_sigterm_under_load_lets_the_stream_finish(self):
        container = self.start().wait_healthy()
        story = subprocess.Popen([str(containers.BIN / "quire"), *STORY, "--max_tokens", "400", "--json", "--server",
                                  container.address], stdout=subprocess.PIPE, text=True,
                                 env=harness.child_environment())
        first = story.stdout.readline()
        containers.podman("kill", "-s", "TERM", container.id)
        rest = story.stdout.read()
        story.stdout.close()
        self.assertEqual(story.wait(containers.DEADLINE), 0)
        messages = harness.json_lines(first + rest)
        self.assertEqual(sum(len(message.get("token_ids", [])) for message in messages), 400)
        self.assertEqual(container.wait(), 0)
        self.assertIn("draining", container.log())

    def test_environment_configures_it(self):
        container = self.start(port=9100, options=(
            "-e", "QUIRE_LISTEN=0.0.0.0:9100", "-e", "QUIRE_ADMIN_LISTEN=0.0.0.0:9101", "-e", "QUIRE_MAX_NUM_SEQS=3",
            "-e", "QUIRE_SERVED_MODEL_NAME=teller"))
        container.wait_healthy()  # by the other port
        self.tell_a_story(container, "--model", "teller")
        info = container.exec("/usr/local/bin/quire", "models", "--server", "127.0.0.1:8102", "--json").stdout
        self.assertIn("teller", info)
        self.assertIn("0.0.0.0:9101", container.log())

    def test_flags_go_before_the_environment(self):
        container = self.start("--served_model_name", "flagged", options=("-e", "QUIRE_SERVED_MODEL_NAME=variable"))
        container.wait_healthy()
        self.tell_a_story(container, "--model", "flagged")

    def test_it_opens_the_backend_modules_that_it_has(self):
        """The module of the emulated GPU stands for that of CUDA, which goes to the same place."""
        container = self.start("--backend", "cuda-emulated", "--max_num_batched_tokens", "256", "--max_num_seqs", "16")
        container.wait_healthy()
        self.assertIn('isa_path="emulated device"', container.log())
        self.tell_a_story(container)
        none = self.start("--backend", "cuda")
        self.assertEqual(none.wait(), 1)
        self.assertIn("libquire-cuda.so", none.log())

    def test_health_is_red_without_an_admin_port_there(self):
        container = self.start().wait_healthy()
        self.assertEqual(container.exec("/usr/local/bin/quire", "health", "--admin", "127.0.0.1:1",
                                        check=False).returncode, 1)

    def test_health_while_it_drains(self):
        container = self.start(options=("-e", "QUIRE_DRAIN_DELAY=30s")).wait_healthy()
        containers.podman("kill", "-s", "TERM", container.id)
        deadline = time.monotonic() + containers.DEADLINE
        while container.health() == 0 and time.monotonic() < deadline:
            pass
        self.assertEqual(container.health(), 1)
        self.tell_a_story(container)  # NOT_SERVING, and still taken
        containers.podman("kill", "-s", "TERM", container.id)
        self.assertEqual(container.wait(), 1)

    def test_the_memory_limit_is_kept(self):
        container = self.start(options=("--memory", "256m")).wait_healthy()
        self.tell_a_story(container)
        blocks = int(re.search(r"kv_cache_mib=(\d+)", container.log()).group(1))
        self.assertTrue(0 < blocks <= 64, container.log())

    def test_weights_over_the_memory_limit_are_refused_in_words(self):
        folder = pathlib.Path(harness.SCRATCH) / "wide"
        weights = write_wide_model(folder, 1 << 17)
        self.addCleanup(shutil.rmtree, folder)
        container = self.start("--model", "/models/wide", options=("--memory", "64m", "-v", f"{folder}:/models/wide:ro"))
        self.assertEqual(container.wait(), 1, container.log())
        said = container.log().strip().splitlines()[-1]
        self.assertRegex(said, rf"the weights need {weights >> 20} MiB, .*memory limit has \d\d MiB left; raise the limit")

    def test_steps_over_the_memory_limit_are_refused_in_words(self):
        folder = pathlib.Path(harness.SCRATCH) / "wide"
        weights = write_wide_model(folder, 1 << 16)
        self.addCleanup(shutil.rmtree, folder)
        limit = (weights >> 20) + 60  # for itself and what surrounds a step, whose 256 tokens take 64 MiB
        container = self.start("--model", "/models/wide", options=("--memory", f"{limit}m", "-v", f"{folder}:/models/wide:ro"))
        self.assertEqual(container.wait(), 1, container.log())
        self.assertRegex(container.log(), r"steps of 256 tokens .* need \d+ MiB, .* has \d+ MiB left; raise the limit, or lower")

    def test_a_cache_over_the_memory_limit_is_refused_in_words(self):
        container = self.start("--kv_cache_mib", "1000", options=("--memory", "256m",))
        self.assertEqual(container.wait(), 1)
        self.assertRegex(container.log(), r"kv_cache_mib: want at most \d+, .* got 1000")

    def test_there_is_no_shell_and_little_else(self):
        container = self.start().wait_healthy()
        self.assertNotEqual(container.exec("/bin/sh", "-c", "true", check=False).returncode, 0)
        megabytes = containers.inspect(IMAGE)["Size"] / 1e6
        print(f"{megabytes:.1f} MB ", end="")
        self.assertLess(megabytes, 80)

    def test_labels(self):
        labels = containers.inspect(IMAGE)["Labels"]
        version = subprocess.run([str(containers.BIN / "quire-server"), "--version"], capture_output=True, text=True)
        self.assertEqual(labels["org.opencontainers.image.version"], version.stdout.split()[1])
        self.assertEqual(labels["org.opencontainers.image.licenses"], "Apache-2.0")
        self.assertEqual(labels["org.opencontainers.image.revision"], "abc")


class TlsTest(ImageCase):
    """The same container under TLS: its health check needs no certificate."""

    @classmethod
    def setUpClass(cls):
        test_security.setUpModule()
        harness.SCRATCH.chmod(0o755)  # 65532 reads there
        for file in harness.SCRATCH.glob("*.key"):
            file.chmod(0o644)

    def start_tls(self, *more: str) -> Container:
        names = {"TLS_CERT": "server.pem", "TLS_KEY": "server.key", **dict(word.split("=") for word in more)}
        variables = [part for name, file in names.items() for part in ("-e", f"QUIRE_{name}=/tls/{file}")]
        return self.start(options=("-v", f"{harness.SCRATCH}:/tls:ro", *variables)).wait_healthy()

    def test_tls(self):
        self.tell_a_story(self.start_tls(), "--tls_ca", test_security.path("authority.pem"))

    def test_client_certificates(self):
        container = self.start_tls("TLS_CLIENT_CA=authority.pem")
        alice = ("--tls_ca", test_security.path("authority.pem"), "--tls_cert", test_security.path("alice.pem"),
                 "--tls_key", test_security.path("alice.key"))
        self.tell_a_story(container, *alice)
        refused = run_cli(*STORY, "--server", container.address, *alice[:2])
        self.assertEqual(refused.returncode, 1)


class LayersTest(unittest.TestCase):
    def test_only_what_is_built_is_in_the_context(self):
        """Documents and tests change, and every layer is taken from the cache."""
        marker = containers.REPOSITORY / "docs" / "changed-by-test_image.md"
        marker.write_text("changed")
        self.addCleanup(marker.unlink)
        before = containers.inspect(IMAGE)["Id"]
        containers.build(IMAGE, "--build-arg", "REVISION=abc")
        self.assertEqual(containers.inspect(IMAGE)["Id"], before)


if __name__ == "__main__":
    unittest.main(verbosity=2)
