"""The backend that serves is the one that was asked for, and the log warns when attention on it is slow."""

import collections
import contextlib
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time
import unittest

import grpc

import harness
import make_tiny_model
from harness import Client, Server, make_request

SLOW = "attention runs on a plain kernel"


class BackendTest(unittest.TestCase):
    def start(self, *flags: str, backend: str = "cuda-emulated", **kwargs) -> tuple[Server, Client]:
        """A ready server until the end of the test, and a client of it."""
        return self.enterContext(harness.running("--backend", backend, *flags, **kwargs))

    def assert_no_start(self, says: str, *flags: str, status: int = 1, **kwargs):
        server = Server(*flags, **kwargs)
        self.assertEqual(server.wait(), status)
        self.assertIn(says, server.log())

    def serve(self, dtype: str, *flags: str, numerics: str = "cuda-4", **environment: str) -> str:
        """The log of a server on an emulated GPU, after one answer."""
        model = harness.SCRATCH / dtype
        make_tiny_model.write(model, dtype)
        server, client = self.start(*flags, model=model, **environment)
        self.assertEqual(client.generate("the thing", max_tokens=2, ignore_eos=True).usage.completion_tokens, 2)
        info = client.server_info()
        self.assertEqual((info.backend, info.isa_path), ("cuda", "emulated device"))
        self.assertEqual(info.numerics, numerics)
        self.resume(client, "--deterministic" in flags)
        return server.log()

    def resume(self, client: Client, is_exact: bool):
        """A stream that was cut is resumed with the same tokens, or refused where these depend on the batch."""
        request = make_request("the thing", max_tokens=4, ignore_eos=True, seed=1, resumable=True)
        whole = list(client.inference.GenerateStream(request, timeout=harness.DEADLINE))
        ids = [id for message in whole for id in message.token_ids]
        self.assertEqual(len(ids), 4)
        request.resume_token_ids.add().ids.extend(ids[:2])
        request.resume_text_bytes.append(0)
        request.resume_model_digest, request.resume_numerics = whole[0].model_digest, whole[0].numerics
        request.resume_resolved.CopyFrom(whole[0].resolved)
        resumed = client.inference.GenerateStream(request, timeout=harness.DEADLINE)
        if is_exact:
            self.assertEqual([id for message in resumed for id in message.token_ids], ids[2:])
            return
        with self.assertRaises(grpc.RpcError) as caught:
            list(resumed)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        self.assertIn("no stream can be resumed here, since --deterministic is not set", caught.exception.details())

    def test_types_that_tensor_cores_take(self):
        self.assertNotIn(SLOW, self.serve("bfloat16"))

    def test_types_that_they_do_not_take(self):
        self.assertRegex(self.serve("float32"), f'{SLOW}.* activations="f32" kv_dtype="f32" layer=0 key_dim=16 value_dim=16 alibi_is_rounded=0 block_size=16')

    def test_deterministic(self):
        self.serve("bfloat16", "--deterministic", numerics="cuda-4-deterministic")
        self.assert_no_start("--deterministic: want no --cuda_experiments, whose results depend on the step",
                             "--backend", "cuda-emulated", "--deterministic", "--cuda_experiments", "wgmma_attention",
                             status=2)
        self.start("--deterministic", backend="cpu")

    def test_products_in_e4m3(self):
        log = self.serve("float8", "--cuda_experiments", "fp8_products", numerics="cuda-4-fp8")
        self.assertIn("INFO engine: matrices in F8_E4M3 are multiplied with activations in F8_E4M3 matrices=14 others=0", log)

    def test_products_in_e4m3_that_the_gpu_refuses(self):
        fault = harness.SCRATCH / "refusing"
        fault.with_suffix(".refusal").touch()
        log = self.serve("float8", "--cuda_experiments", "fp8_products", numerics="cuda-4-fp8",
                         EMULATED_DEVICE_FAULT=str(fault))
        warnings = [line for line in log.splitlines() if "fp8_products" in line and "WARNING" in line]
        self.assertEqual(len(warnings), 1, log)
        self.assertRegex(warnings[0], "cuBLASLt refuses products of some matrices .* refused=14 matrices=0 others=14")

    def test_products_in_e4m3_of_a_model_that_has_none(self):
        log = self.serve("bfloat16", "--cuda_experiments", "fp8_products", numerics="cuda-4-fp8")
        self.assertRegex(log, "WARNING engine: fp8_products does nothing: .* matrices=0 others=0")

    def test_one_that_the_build_does_not_have(self):
        self.assert_no_start("backend: want auto, cpu, cuda or cuda:n, got tpu", "--backend", "tpu")

    def test_strict_refuses_what_a_plain_kernel_would_serve(self):
        self.assert_no_start("strict: want a fast attention kernel for every layer, got none for layer 0",
                             "--backend", "cuda-emulated", "--strict")
        make_tiny_model.write(harness.SCRATCH / "strict", "bfloat16")
        self.start("--strict", model=harness.SCRATCH / "strict")

    def test_a_rounded_alibi_bias_is_not_silently_slow(self):
        """Falcon's attention runs on the plain kernel, whatever the dtypes."""
        falcon = harness.SCRATCH / "falcon"
        make_tiny_model.write_falcon(falcon)
        server, client = self.start(model=falcon)
        self.assertEqual(client.generate("the thing", max_tokens=2, ignore_eos=True).usage.completion_tokens, 2)
        self.assertIn(SLOW, server.log())
        self.assertRegex(server.log(), 'activations="bf16" kv_dtype="bf16" layer=0 .*alibi_is_rounded=1')
        server = Server("--backend", "cuda-emulated", "--strict", model=falcon)
        self.assertEqual(server.wait(), 1)
        self.assertRegex(server.log(), "got none for layer 0.*a rounded bias")

    def test_the_type_of_activations(self):
        for backend, dtype, says in (("cpu", "bf16", 'dtype: want auto or f32, in which the CPU computes, got "bf16"'),
                                     ("auto", "f16", 'dtype: want auto or f32, in which this backend computes, got "f16"')):
            self.assert_no_start(says, "--backend", backend, "--dtype", dtype)
        _, client = self.start("--dtype", "f16", "--max_num_seqs", "0")
        model = client.model_info()
        self.assertEqual((model.activation_dtype, model.kv_dtype), ("f16", "f16"))
        self.assertEqual(client.server_info().max_num_seqs, 256)  # the default on a device

    def test_the_cache_gets_what_is_left_of_the_device(self):
        """Of the emulated device's GiB."""
        _, client = self.start("--kv_cache_mib", "0", "--gpu_memory_utilization", "0.25")
        cache = client.server_info().kv_cache_bytes
        self.assertLessEqual(cache, 256 << 20)
        self.assertGreater(cache, 250 << 20)

    def test_a_cache_that_leaves_too_little_for_steps(self):
        model = harness.SCRATCH / "too-little"
        make_tiny_model.write(model, "bfloat16")
        server = Server("--backend", "cuda-emulated", "--kv_cache_mib", "0", "--gpu_memory_utilization", "1", model=model)
        self.assertEqual(server.wait(), 1)
        self.assertRegex(server.log(), r"quire-server: allocating \d+ bytes: out of memory: steps need it beside weights "
                                       r"and KV cache; lower --gpu_memory_utilization or --kv_cache_mib\n$")

    def test_samples_of_one_prompt_share_its_keys_where_that_is_chosen(self):
        model = harness.SCRATCH / "shared"
        make_tiny_model.write(model, "bfloat16")
        server, client = self.start("--cuda_experiments", "shared_prefix", model=model)
        self.assertEqual(client.server_info().numerics, "cuda-4-prefix")
        self.assertEqual(server.metrics()["quire_saved_keys_total"], 0)
        answer = client.generate([5 + i % 90 for i in range(300)], n=3, max_tokens=4, ignore_eos=True)
        self.assertEqual(answer.usage.completion_tokens, 12)
        # Each of the three or four steps after the prompt's saves the keys of two samples.
        metrics = server.metrics()
        self.assertIn(metrics["quire_shared_prefixes_total"], (3, 4))
        self.assertEqual(metrics["quire_saved_keys_total"], metrics["quire_shared_prefixes_total"] * 2 * 256)

    def test_far_keys_of_a_model_with_alibi_are_skipped_where_that_is_chosen(self):
        """The bundled model. A prompt as short as this has no far keys, so both servers read the same."""
        stories = pathlib.Path(__file__).parents[2] / "models/quire-stories"
        answers = []
        for flags in ((), ("--cuda_experiments", "alibi_skip")):
            _, client = self.start("--max_model_len", "64", "--max_num_batched_tokens", "16", "--max_num_seqs", "1",
                                   *flags, model=stories)
            self.assertEqual(client.server_info().numerics, "cuda-4-skip" if flags else "cuda-4")
            answer = client.generate("Once upon a time", temperature=0, max_tokens=6, ignore_eos=True, token_ids=True)
            answers.append(list(answer.completions[0].token_ids))
        self.assertEqual(*answers)

    def test_answers_in_float32_are_those_of_the_cpu(self):
        """Also past the window of a model that has one, where a stream has sinks, among the samples of a prompt, and for
        a mixture of experts.

        No draw of this test is so near to another that the last bits decide.
        """
        requests = [dict(max_tokens=100, temperature=0), dict(max_tokens=30, seed=1, n=3),
                    dict(max_tokens=40, seed=2, top_p=0.9, repetition_penalty=1.2, logit_bias={70: 2})]
        sinks = dict(max_tokens=150, seed=3, sink_tokens=4, window_tokens=64)
        for write, is_windowed in ((make_tiny_model.write, False), (make_tiny_model.write_mistral, True),
                                   (make_tiny_model.write_mixtral, False)):
            model = harness.SCRATCH / write.__name__
            write(model)
            answers = []
            for backend in ("cpu", "cuda-emulated"):
                _, client = self.start(backend=backend, model=model)
                prompt = [5 + i * i % 90 for i in range(150)]
                answers.append([[list(completion.token_ids) for completion in client.generate(
                    prompt, ignore_eos=True, token_ids=True, **request).completions]
                    for request in (requests if is_windowed else [*requests, sinks])])
            self.assertEqual(*answers)

    def test_skipping_is_for_models_with_alibi(self):
        self.assertIn("alibi_skip changes nothing", self.serve("bfloat16", "--cuda_experiments", "alibi_skip"))

    def test_the_metrics_of_the_gpu(self):
        """With a library in the place of the driver's NVML, and without any."""
        nvml = harness.BIN.parent / "tests/fake_nvml"
        self.assertTrue((nvml / "libnvidia-ml.so.1").exists())
        server, _ = self.start(LD_LIBRARY_PATH=str(nvml))
        deadline = time.monotonic() + harness.DEADLINE
        while (metrics := server.metrics()).get("quire_gpu_clock_hertz{clock=\"sm\"}") is None:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.1)
        self.assertEqual(metrics["quire_gpu_memory_bytes{kind=\"used\"}"], 60 << 30)
        self.assertEqual(metrics["quire_gpu_xid_errors_total"], 0)
        server, _ = self.start()
        self.assertIn("the metrics lack those of the GPU", server.log())
        self.assertFalse([name for name in server.metrics() if name.startswith("quire_gpu")])

    def test_a_gpu_that_is_not_there(self):
        for name, says in (("cuda-emulated:1", "want GPU 1, got 1 GPU"), ("cuda-emulated:64", "want a GPU in 0..63"),
                           ("cuda-emulated:", "want a GPU in 0..63"), ("cuda-emulated:-1", "want a GPU in 0..63")):
            self.assert_no_start(says, "--backend", name)

    def test_modules_that_cannot_serve(self):
        """The server in a folder of its own, with files in the place of the module."""
        folder = harness.SCRATCH / "modules"
        folder.mkdir()
        server = folder / "quire-server"
        shutil.copy(harness.BIN / "quire-server", server)
        module = folder / "libquire-cuda-emulated.so"

        def log_with(content: bytes | None) -> str:
            module.unlink(missing_ok=True)
            if content is not None:
                module.write_bytes(content)
            run = subprocess.run([server, "--backend", "cuda-emulated", "--model", harness.tiny_model(),
                                  "--listen", "127.0.0.1:0", "--admin_listen="],
                                 stderr=subprocess.PIPE, text=True, timeout=harness.DEADLINE)
            self.assertEqual(run.returncode, 1)
            return run.stderr

        good = (harness.BIN.parent / "lib/quire/libquire-cuda-emulated.so").read_bytes()
        self.assertIn("got no such file; install the module that was built with this program", log_with(None))
        self.assertIn("want a module that can be opened", log_with(b"not a library"))
        self.assertIn("want a backend module, got another library",
                      log_with(good.replace(b"quire_backend_module", b"quire_backend_modulf")))
        build_id = re.search(rb"\d+\.\d+\.\d+-[0-9a-f]{16}", good).group()
        other = build_id[:-16] + b"0" * 16
        self.assertIn(f"want the module of build {build_id.decode()}, as this program, got {other.decode()}",
                      log_with(good.replace(build_id, other)))


class LostDeviceTest(unittest.TestCase):
    """A device that gets a fault, or hangs, while streams run and one waits for its place."""

    LAST_STEPS = 8  # that the log tells of

    def setUp(self):
        self.fault = harness.SCRATCH / self.id()
        # A drain would take minutes: nothing waits for it.
        self.server, self.client = self.enterContext(harness.running(
            "--backend", "cuda-emulated", "--watchdog_timeout", "2s", "--max_num_seqs", "3", "--drain_delay", "5m",
            "--drain_timeout", "5m", EMULATED_DEVICE_FAULT=str(self.fault)))
        self.streams = [self.client.stream(f"the thing {i}", max_tokens=1000, ignore_eos=True) for i in range(3)]
        for stream in self.streams:
            next(stream)
        self.waiting = self.client.inference.Generate.future(
            harness.make_request("the thing", max_tokens=1000, ignore_eos=True))
        self.client.wait_until(lambda s: s.queue.num_waiting == 1 and s.sequences.steps > self.LAST_STEPS, "waiting")
        self.health = self.client.watch_health()
        self.assertEqual(next(self.health), "SERVING")
        self.readiness = []
        self.probe = threading.Thread(target=self.probe_until_the_end)
        self.probe.start()
        self.addCleanup(self.probe.join)
        while not self.readiness:
            time.sleep(0.01)

    def probe_until_the_end(self):
        with contextlib.suppress(OSError):
            while self.server.poll() is None:
                self.readiness.append(self.server.get("/readyz"))

    def break_device(self, how: str):
        self.fault.with_suffix(f"{self.fault.suffix}.{how}").touch()

    def assert_ended(self, call, code: grpc.StatusCode, says: str):
        with self.assertRaises(grpc.RpcError) as failed:
            call.result() if call is self.waiting else collections.deque(call, maxlen=0)
        self.assertEqual(failed.exception.code(), code)
        self.assertIn(says, failed.exception.details())

    def assert_server_ended(self, says: str):
        """The server's probes were red before it ended, and its log tells of the last steps."""
        self.assertEqual(self.server.wait(timeout=20), 3)
        self.assertIn(says, self.server.log())
        steps = re.findall(r"one of the last steps step=(\d+) ms_ago=\d+ sequences=(\d) tokens=\d+ "
                           r"longest_context=\d+ copies=\d+\n", self.server.log())
        first = int(steps[0][0])
        self.assertEqual([int(step) for step, _ in steps], list(range(first, first + self.LAST_STEPS)))
        self.assertEqual(steps[-1][1], "3")
        self.probe.join()
        self.assertEqual(self.readiness[0][0], 200)
        self.assertEqual(self.readiness[-1][0], 503)

    def test_a_fault_that_stays_ends_every_call_and_the_server(self):
        self.break_device("fault")
        for stream in self.streams:
            self.assert_ended(stream, grpc.StatusCode.INTERNAL, "an illegal memory access")
        self.assert_ended(self.waiting, grpc.StatusCode.UNAVAILABLE, "the device is lost")
        self.assertEqual(next(self.health), "NOT_SERVING")
        self.assert_server_ended("the device is lost: every request fails")
        self.assertIn("device: it is lost", self.readiness[-1][1])

    def test_a_hang_ends_every_call_and_the_server(self):
        self.break_device("hang")
        for call in (self.waiting, *self.streams):
            self.assert_ended(call, grpc.StatusCode.UNAVAILABLE, "the device hangs")
        self.assertEqual(next(self.health), "NOT_SERVING")
        self.assert_server_ended("the device hangs")

    def test_a_fault_ends_the_drain_delay(self):
        self.server.signal(signal.SIGTERM)
        self.server.wait_for_log("leaving service")
        self.break_device("fault")
        self.assert_ended(self.waiting, grpc.StatusCode.UNAVAILABLE, "the device is lost")
        self.assertEqual(self.server.wait(timeout=20), 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
