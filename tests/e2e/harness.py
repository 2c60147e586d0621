"""The common part of the end-to-end tests: a real server as a child process, and its clients.

ctest sets QUIRE_BIN (the folder of quire-server and quire) and PYTHONPATH (the Python generated from proto/).
"""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import grpc
from google.protobuf import wrappers_pb2
from google.rpc import error_details_pb2, status_pb2

import make_tiny_model
from quire.v1 import (chat_pb2, control_service_pb2, control_service_pb2_grpc, inference_service_pb2,
                      inference_service_pb2_grpc, prefix_service_pb2_grpc, session_service_pb2_grpc,
                      tenant_service_pb2, tenant_service_pb2_grpc, token_service_pb2, token_service_pb2_grpc)

BIN = pathlib.Path(os.environ["QUIRE_BIN"])
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
DEADLINE = 60  # seconds for work of milliseconds, so that no test fails because a machine is slow

pb = inference_service_pb2


def test_data(relative: str) -> pathlib.Path | None:
    """A file of the optional test material; None when it is not there."""
    root = os.environ.get("QUIRE_TEST_DATA", REPOSITORY.parent / "shared" / "data")
    path = pathlib.Path(root) / relative
    return path if path.exists() else None


_scratch = tempfile.TemporaryDirectory(prefix="quire-e2e-")
SCRATCH = pathlib.Path(_scratch.name)


# Set for the runs on an emulated GPU.
BACKEND = os.environ.get("QUIRE_E2E_BACKEND", "auto")
EMULATED = BACKEND == "cuda-emulated"
# The emulator takes minutes for the largest steps that a GPU takes by default, and the warm-up runs them.
EMULATOR_FLAGS = ("--max_num_batched_tokens", "128", "--max_num_seqs", "8")
TINY_DTYPE = os.environ.get("QUIRE_E2E_DTYPE", "float32")
if EMULATED and "QUIRE_E2E_DEFAULT_MODE" not in os.environ:  # else bits depend on the step
    EMULATOR_FLAGS += ("--deterministic",)


def cut(whole: int, short: int) -> int:
    """A length or number, which is `short` on an emulated GPU. That computes two hundred tokens a second."""
    return short if EMULATED else whole


def tiny_model() -> pathlib.Path:
    path = SCRATCH / "tiny-llama"
    if not path.exists():
        make_tiny_model.write(path, TINY_DTYPE)
    return path


def child_environment(**extra: str) -> dict[str, str]:
    """Our environment without QUIRE_*, which would set flags of the child."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    return {**kept, **extra}


class Server:
    """A quire-server on free ports. The constructor starts it; it is ready when ready() returns.

    `limits` are those of setrlimit(2), such as {resource.RLIMIT_NOFILE: 100}.
    """

    def __init__(self, *flags: str, model: pathlib.Path | None = None, listen: str = "127.0.0.1:0",
                 admin_listen: str = "127.0.0.1:0", limits: dict[int, int] | None = None, **environment: str):
        command = [str(BIN / "quire-server"), "--model", str(model or tiny_model()), "--listen", listen,
                   "--admin_listen", admin_listen, "--threads", "1", "--kv_cache_mib", "64", "--backend", BACKEND,
                   *(EMULATOR_FLAGS if "cuda-emulated" in (BACKEND, *flags) else ()), *flags]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                                         env=child_environment(**environment),
                                         preexec_fn=limits and (lambda: [resource.setrlimit(which, (most, most))
                                                                         for which, most in limits.items()]))
        self._reading = threading.Event()
        self._reading.set()
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self._process.stderr:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
            self._reading.wait()
        with self._changed:
            self._lines.append("")
            self._changed.notify_all()

    def stop_reading(self):
        """Stops reading the log's pipe, which is made small, until go_on_reading() or the server's end."""
        fcntl.fcntl(self._process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        self._reading.clear()

    def go_on_reading(self):
        self._reading.set()

    def log(self) -> str:
        with self._changed:
            return "".join(self._lines)

    def wait_for_log(self, pattern: str) -> re.Match:
        deadline = time.monotonic() + DEADLINE
        with self._changed:
            while True:
                found = re.search(pattern, "".join(self._lines))
                if found:
                    return found
                if (self._lines and self._lines[-1] == "") or time.monotonic() > deadline:
                    raise AssertionError(f"the server never logged {pattern!r}:\n{''.join(self._lines)}")
                self._changed.wait(1)

    def ready(self) -> "Server":
        self.started("listen")
        return self

    def started(self, field: str) -> str:
        """A field of the log's line "ready"."""
        return self.wait_for_log(rf' server: ready .*\b{field}="?([^\s"]*)').group(1)

    @property
    def address(self) -> str:
        """The address at which this machine reaches the server."""
        return self.started("listen").replace("0.0.0.0", "127.0.0.1")

    @property
    def control_address(self) -> str:
        return self.started("control")

    @property
    def admin_address(self) -> str:
        return self.started("admin")

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """The exit status; None while the server runs."""
        return self._process.poll()

    def signal(self, number: int):
        self._process.send_signal(number)

    def wait(self, timeout: float = DEADLINE) -> int:
        """Waits for the server's end, and returns its exit status."""
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"the server did not end within {timeout} s:\n{self.log()}")
        finally:
            self.go_on_reading()
            self._reader.join()
            self._process.stderr.close()
        return status

    def stop(self) -> int:
        if self._process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait()

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of an answer of the admin port."""
        try:
            with urllib.request.urlopen(f"http://{self.admin_address}{path}", timeout=DEADLINE) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self) -> dict[str, float]:
        """The samples of /metrics, by name with labels as in the text format."""
        status, text = self.get("/metrics")
        assert status == 200, text
        return parse_metrics(text)

    def cpu_seconds(self) -> float:
        """The CPU time of the process so far."""
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def parse_metrics(text: str) -> dict[str, float]:
    samples = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r'([a-zA-Z_:][a-zA-Z0-9_:]*(?:\{[^}]*\})?) (\S+)', line)
            assert match, f"not a sample: {line!r}"
            samples[match.group(1)] = float(match.group(2))
    return samples


# The messages of grpc.health.v1 have one string or one enum, both field 1: the same bytes as the wrappers.
HEALTH_MESSAGES = {"request_serializer": wrappers_pb2.StringValue.SerializeToString,
                   "response_deserializer": wrappers_pb2.Int32Value.FromString}


def health_name(answer: wrappers_pb2.Int32Value) -> str:
    return {1: "SERVING", 2: "NOT_SERVING"}.get(answer.value, "UNKNOWN")


class Client:
    """The services' stubs on one separate connection."""

    def __init__(self, address: str, token: str = "", credentials=None, options=()):
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1), *options]
        self.channel = (grpc.secure_channel(address, credentials, options) if credentials
                        else grpc.insecure_channel(address, options))
        self.metadata = [("authorization", f"Bearer {token}")] if token else []
        self.inference = inference_service_pb2_grpc.InferenceServiceStub(self.channel)
        self.tokens = token_service_pb2_grpc.TokenServiceStub(self.channel)
        self.prefixes = prefix_service_pb2_grpc.PrefixServiceStub(self.channel)
        self.sessions = session_service_pb2_grpc.SessionServiceStub(self.channel)
        self.control = control_service_pb2_grpc.ControlServiceStub(self.channel)
        self.tenants = tenant_service_pb2_grpc.TenantServiceStub(self.channel)

    def close(self):
        self.channel.close()

    def generate(self, prompt, timeout: float = DEADLINE, **options) -> pb.GenerateResponse:
        return self.inference.Generate(make_request(prompt, **options), timeout=timeout, metadata=self.metadata)

    def stream(self, prompt, timeout: float = 10 * DEADLINE, **options):
        """The stream is not read here. Its deadline is later than every wait, so that no stream ends because of it."""
        return self.inference.GenerateStream(make_request(prompt, **options), timeout=timeout,
                                             metadata=self.metadata)

    def tokenize(self, text: str, **options) -> list[int]:
        request = token_service_pb2.TokenizeRequest(text=text, **options)
        response = self.tokens.Tokenize(request, timeout=DEADLINE, metadata=self.metadata)
        return [token.id for token in response.tokens]

    def detokenize(self, ids: list[int], **options) -> str:
        request = token_service_pb2.DetokenizeRequest(token_ids=ids, **options)
        return self.tokens.Detokenize(request, timeout=DEADLINE, metadata=self.metadata).text

    def stats(self) -> control_service_pb2.GetStatsResponse:
        return self.control.GetStats(control_service_pb2.GetStatsRequest(), timeout=DEADLINE,
                                     metadata=self.metadata)

    def server_info(self) -> control_service_pb2.GetServerInfoResponse:
        return self.control.GetServerInfo(control_service_pb2.GetServerInfoRequest(), timeout=DEADLINE,
                                          metadata=self.metadata)

    def model_info(self) -> control_service_pb2.ModelInfo:
        return self.control.GetModelInfo(control_service_pb2.GetModelInfoRequest(), timeout=DEADLINE,
                                         metadata=self.metadata).model

    def quota(self) -> tenant_service_pb2.Tenant:
        return self.tenants.GetQuota(tenant_service_pb2.GetQuotaRequest(), timeout=DEADLINE, metadata=self.metadata)

    def list_tenants(self) -> dict[str, tenant_service_pb2.Tenant]:
        response = self.tenants.ListTenants(tenant_service_pb2.ListTenantsRequest(), timeout=DEADLINE,
                                            metadata=self.metadata)
        return {tenant.name: tenant for tenant in response.tenants}

    def abort(self, request_id: str):
        self.control.Abort(control_service_pb2.AbortRequest(request_id=request_id), timeout=DEADLINE,
                           metadata=self.metadata)

    def drain(self) -> control_service_pb2.DrainResponse:
        return self.control.Drain(control_service_pb2.DrainRequest(), timeout=DEADLINE, metadata=self.metadata)

    def flush(self) -> int:
        """The number of cached blocks that were freed."""
        return self.control.FlushPrefixCache(control_service_pb2.FlushPrefixCacheRequest(), timeout=DEADLINE,
                                             metadata=self.metadata).num_freed_blocks

    def health(self, service: str = "", timeout: float = DEADLINE) -> str:
        check = self.channel.unary_unary("/grpc.health.v1.Health/Check", **HEALTH_MESSAGES)
        return health_name(check(wrappers_pb2.StringValue(value=service), timeout=timeout, metadata=self.metadata))

    def watch_health(self):
        """Yields the health of the server, now and whenever it changes."""
        watch = self.channel.unary_stream("/grpc.health.v1.Health/Watch", **HEALTH_MESSAGES)
        return map(health_name, watch(wrappers_pb2.StringValue(), timeout=DEADLINE, metadata=self.metadata))

    def reflected_services(self) -> bytes:
        """The raw answer of server reflection to list_services (field 7, empty)."""
        info = self.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        return next(info(iter([b"\x3a\x00"]), timeout=DEADLINE, metadata=self.metadata))

    def wait_until(self, condition, what: str):
        """Waits until condition(stats) holds."""
        deadline = time.monotonic() + DEADLINE
        while True:
            stats = self.stats()
            if condition(stats):
                return stats
            if time.monotonic() > deadline:
                raise AssertionError(f"never {what}; at last:\n{stats}")

    def wait_until_idle(self):
        """Waits until no request runs or waits, and no block is held."""
        return self.wait_until(lambda s: s.queue.num_running == 0 and s.queue.num_waiting == 0
                               and s.blocks.held == 0, "idle")


# Options for a client whose connection buffers at most 64 KiB that the client has not read. By default gRPC
# lets this buffer grow to megabytes.
NARROW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16))

# Maps each option to the field of GenerateRequest whose message has the option.
_SECTIONS = {
    field.name: section
    for section in ("sampling", "stop", "output", "cache", "sched")
    for field in pb.GenerateRequest.DESCRIPTOR.fields_by_name[section].message_type.fields
}


def make_request(prompt, model=None, request_id=None, session=None, prefix=None, **options) -> pb.GenerateRequest:
    """`prompt`: a text, a list of ids, a list of (role, content), ChatMessages, or None. `options`: fields of any section."""
    request = pb.GenerateRequest(model=model, request_id=request_id, session_name=session, prefix_name=prefix)
    if prompt is None:
        pass
    elif isinstance(prompt, str):
        request.text = prompt
    elif isinstance(prompt, chat_pb2.ChatMessages):
        request.chat.CopyFrom(prompt)
    elif prompt and isinstance(prompt[0], tuple):
        request.chat.messages.extend(chat_pb2.ChatMessage(role=role, content=text) for role, text in prompt)
    else:
        request.token_ids.ids.extend(prompt)
    sections = {}
    for name, value in options.items():
        sections.setdefault(_SECTIONS[name], {})[name] = value
    for section, fields in sections.items():
        getattr(request, section).MergeFrom(type(getattr(request, section))(**fields))
    return request


class Sample:
    """One sample of a stream: its messages with one index."""

    def __init__(self):
        self.text, self.ids, self.logprobs, self.messages = "", [], [], 0
        self.finish_reason = self.stop = self.seed = None


class Streamed:
    """Reads a stream to its end."""

    def __init__(self, call):
        self.samples: dict[int, Sample] = {}
        self.prompt_logprobs, self.usage, self.timings, self.request_id = [], None, None, ""
        for message in call:
            sample = self.samples.setdefault(message.index, Sample())
            assert sample.finish_reason is None, "a message after the sample's last"
            sample.text += message.text_delta
            sample.ids += message.token_ids
            sample.logprobs += message.logprobs
            sample.messages += 1
            self.prompt_logprobs += message.prompt_logprobs
            self.request_id = self.request_id or message.request_id
            if message.finish_reason:
                sample.finish_reason, sample.stop, sample.seed = message.finish_reason, message.stop, message.seed
            if message.HasField("usage"):
                self.usage = message.usage
            if message.HasField("timings"):
                self.timings = message.timings

    @property
    def text(self):
        return self.samples[0].text

    @property
    def ids(self):
        return self.samples[0].ids


class TestCase(unittest.TestCase):
    """One server for the class, with `flags`; each test leaves it idle."""

    flags: tuple[str, ...] = ()

    @classmethod
    def model(cls) -> pathlib.Path | None:
        return None

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.flags, model=cls.model())
        cls.addClassCleanup(cls._stop)
        cls.server.ready()
        cls.client = Client(cls.server.address)
        cls.addClassCleanup(cls.client.close)

    @classmethod
    def _stop(cls):
        if EMULATED:
            cls._check_device()
        status = cls.server.stop()
        assert status == 0, f"the server ended with {status}:\n{cls.server.log()}"

    @classmethod
    def _check_device(cls):
        """The device did the work of all steps, in graphs that the warm-up had recorded, and no step waited."""
        did = {name.removeprefix("quire_device_"): value for name, value in cls.server.metrics().items()
               if name.startswith("quire_device_")}
        kinds = {kind: did[f'attention_total{{kernel="{kind}"}}'] for kind in ("plain", "tensor_cores")}
        used, unused = ("plain", "tensor_cores") if TINY_DTYPE == "float32" else ("tensor_cores", "plain")
        assert kinds[used] > 0 and kinds[unused] == 0, did
        for name in ("replays_total", "uploads_total", "uploaded_bytes_total", "sampled_rows_total"):
            assert did[name] > 0, did
        for name in ("recordings_total", "allocations_total", "synchronizations_total"):
            assert did[name] == 0, did

    def tearDown(self):
        """After any test no request of it is left, and every block is accounted for."""
        stats = self.client.wait_until_idle()
        self.assertEqual(stats.blocks.free + stats.blocks.cached + stats.blocks.held, stats.blocks.total)

    def assert_status(self, code: grpc.StatusCode, call):
        """Checks that `call` fails with `code`, and returns the error."""
        with self.assertRaises(grpc.RpcError) as caught:
            call()
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        return caught.exception


def details(error: grpc.RpcError, kind):
    """The google.rpc detail of type `kind` in an error; None when it has none."""
    for key, value in error.trailing_metadata():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                found = kind()
                if detail.Unpack(found):
                    return found
    return None


def run_cli(*args: str, text: str | None = None, timeout: float = DEADLINE, **environment: str):
    """Runs quire with `args` to its end."""
    return subprocess.run([str(BIN / "quire"), *args], input=text, capture_output=True, text=True,
                          timeout=timeout, env=child_environment(**environment))


def json_lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@contextlib.contextmanager
def running(*args, **kwargs):
    """Yields a ready server for one test only, and a client of it."""
    server = Server(*args, **kwargs)
    client = None
    try:
        server.ready()
        client = Client(server.address)
        yield server, client
    finally:
        if client is not None:
            client.close()
        server.stop()
