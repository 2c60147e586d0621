"""Every pair of features works on a real server, or is refused by a message. docs/features.md has the table, and this
file makes it:

    python3 tests/e2e/test_features.py --renew    # with QUIRE_BIN and PYTHONPATH as ctest sets them
"""

import itertools
import re
import sys
import time
import unittest

import grpc

import harness
import make_tiny_model
from harness import Client, Server, make_request, pb
from quire.v1 import prefix_service_pb2 as pb_prefix
from quire.v1 import session_service_pb2 as sb

DOCS = harness.REPOSITORY / "docs" / "features.md"

# In the order of the table: what is switched on, and by which fields or flags.
REQUEST = {
    "session": "`session_name`; with a prefix, the session begins with it",
    "prefix": "`prefix_name`",
    "n": "`sampling.n` 2",
    "best_of": "`sampling.best_of` 3",
    "beam": "`sampling.beam`, width 2",
    "resume": "`resume_token_ids` and the fields beside it",
    "window": "`cache.window_tokens` and `sink_tokens`",
}
RPCS = {"batch": "`GenerateBatch`", "stream": "`GenerateStream`", "score": "`Score`"}
SERVER = {
    "windowed model": "a model whose layers have windows; models with chunks are the same",
    "fp8": "`--kv_dtype fp8`",
    "disk": "`--kv_disk_mib`",
    "drafts": "`--max_draft_tokens`",
    "CUDA": "`--backend cuda`, without `--deterministic`",
}
FEATURES = {**REQUEST, **RPCS, **SERVER}

PROMPT = [40 + i * 7 % 50 for i in range(40)]
BORDER = 20  # of the prompt, behind the prefix and what the session had
NUM_TOKENS = 12
OPTIONS = dict(max_tokens=NUM_TOKENS, ignore_eos=True, token_ids=True)
CONTINUATIONS = ([50, 51, 52], [60])
# These answer with other tokens than a plain request.
OTHER_TOKENS = {"best_of", "beam", "window", "score"}


class Refused(Exception):
    """The message is that of the server."""


class Served:
    """A server with some of the features SERVER, and its plain answer."""

    def __init__(self, features: frozenset, number: int):
        flags, model = [], None
        if "windowed model" in features:
            model = self.windowed_model()
        if "fp8" in features:
            flags += ["--kv_dtype", "fp8"]
        if "disk" in features:
            flags += ["--kv_disk_dir", str(harness.SCRATCH / f"features-{number}"), "--kv_disk_mib", "64"]
        flags += ["--max_draft_tokens", "4" if "drafts" in features else "0"]
        if "CUDA" in features:
            flags += ["--backend", "cuda-emulated"]
        self.server = Server(*flags, model=model)
        try:
            self.server.ready()
        except AssertionError:
            log = self.server.log()
            assert self.server.wait() != 0
            raise Refused(re.search(r' (?:E|F|error|fatal) .*|[^\n]*\S[^\n]*$', log.strip()).group(0)) from None
        self.client = Client(self.server.address)
        try:
            self.check(features)
            self.prefix = self.client.prefixes.CreatePrefix(pb_prefix.CreatePrefixRequest(
                token_ids=dict(ids=PROMPT[:BORDER])), timeout=harness.DEADLINE).name
            self.plain = list(self.ask(frozenset()))
            if "disk" in features:
                self.wait_for_disk()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def windowed_model():
        path = harness.SCRATCH / "tiny-windows"
        if not path.exists():
            make_tiny_model.write_mistral(path)
        return path

    def check(self, features: frozenset):
        """The server has them."""
        info = self.client.server_info()
        assert ("fp8" in features) == ("fp8" in self.client.model_info().kv_dtype), info
        assert ("CUDA" in features) == (info.backend == "cuda"), info
        assert (info.max_draft_tokens == 4) == ("drafts" in features), info

    def wait_for_disk(self):
        """The prompt's blocks are written."""
        deadline = time.monotonic() + harness.DEADLINE
        while self.server.metrics()["quire_kv_disk_bytes"] == 0:
            assert time.monotonic() < deadline, "nothing was written to disk"
            time.sleep(0.05)

    def close(self):
        self.client.close()
        self.server.stop()

    def ask(self, features: frozenset) -> list[int]:
        """The tokens of the first sample, which the features had a part in. Raises Refused."""
        try:
            return self._ask(features)
        except grpc.RpcError as error:
            assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION), error
            raise Refused(error.details()) from None

    def _ask(self, features: frozenset) -> list[int]:
        request = self.request(features)
        if "score" in features:
            return self.score(request, features)
        if "resume" in features:
            whole, _ = self.call(self.request(features - {"resume"}), features)
            self.resume(request, whole)
        samples, usage = self.call(request, features)
        self.prove(features, samples, usage)
        return samples[0][0]

    def request(self, features: frozenset) -> pb.GenerateRequest:
        options = dict(OPTIONS)
        if "beam" not in features:
            options |= dict(temperature=1, seed=7)
        if "window" in features:
            options |= dict(window_tokens=32, sink_tokens=1)
        request = make_request(PROMPT, **options)
        if "n" in features:
            request.sampling.n = 2
        if "best_of" in features:
            request.sampling.best_of = 3
        if "beam" in features:
            request.sampling.beam.width = 2
        if features & {"session", "prefix"}:
            request.token_ids.ids[:] = PROMPT[BORDER:]
        if "session" in features:
            prefix = self.prefix if "prefix" in features else None
            made = self.client.sessions.CreateSession(sb.CreateSessionRequest(prefix_name=prefix),
                                                      timeout=harness.DEADLINE)
            if prefix is None:
                append = sb.AppendToSessionRequest(name=made.name)
                append.token_ids.ids.extend(PROMPT[:BORDER])
                made = self.client.sessions.AppendToSession(append, timeout=harness.DEADLINE).session
            request.session_name, request.session_etag = made.name, made.etag
        elif "prefix" in features:
            request.prefix_name = self.prefix
        return request

    def resume(self, request: pb.GenerateRequest, whole):
        for ids, _, _ in whole:
            request.resume_token_ids.add().ids.extend(ids[:NUM_TOKENS // 2])
            request.resume_text_bytes.append(0)
        info = self.client.server_info()
        request.resume_model_digest, request.resume_numerics = info.model_digest, info.answer_numerics

    def call(self, request: pb.GenerateRequest, features: frozenset):
        """(ids, number of given ids, whether it has a score) of each sample, and the usage."""
        inference, usage = self.client.inference, None
        given = [list(ids.ids) for ids in request.resume_token_ids] or [[]] * 64
        if "stream" in features:
            samples = {}
            for message in inference.GenerateStream(request, timeout=harness.DEADLINE):
                samples.setdefault(message.index, []).extend(message.token_ids)
                usage = message.usage
            return [(given[k] + samples[k], len(given[k]), False) for k in sorted(samples)], usage
        if "batch" in features:
            batch = pb.GenerateBatchRequest(requests=[request])
            (answer,) = inference.GenerateBatch(batch, timeout=harness.DEADLINE)
            if answer.WhichOneof("result") == "error":
                raise Refused(answer.error.message)
            response = answer.response
        else:
            response = inference.Generate(request, timeout=harness.DEADLINE)
        return [(given[k] + list(sample.token_ids), len(given[k]), sample.HasField("score"))
                for k, sample in enumerate(response.completions)], response.usage

    def prove(self, features: frozenset, samples, usage):
        assert all(len(ids) == NUM_TOKENS for ids, _, _ in samples), samples
        assert len(samples) == (2 if "n" in features else 1), samples
        assert samples[0][2] == bool(features & {"best_of", "beam"}), samples
        assert (usage.kept_tokens == BORDER) == ("session" in features), usage
        assert (usage.prefix_tokens == BORDER) == ("prefix" in features), usage
        assert (usage.resumed_tokens > 0) == ("resume" in features), usage
        want = getattr(self, "plain", None)
        if want and not features & OTHER_TOKENS:
            assert samples[0][0] == want, (samples[0][0], want)

    def score(self, request: pb.GenerateRequest, features: frozenset) -> list[int]:
        wanted = {"session": "session_name", "prefix": "prefix_name", "n": "sampling", "best_of": "sampling",
                  "beam": "sampling", "resume": "resume_token_ids", "window": "cache"}
        fields = pb.ScoreRequest.DESCRIPTOR.fields_by_name
        for feature in features & wanted.keys():
            if wanted[feature] not in fields:
                raise Refused(f"ScoreRequest has no field {wanted[feature]}")
        score = pb.ScoreRequest(token_ids=request.token_ids, cache=request.cache)
        for ids in CONTINUATIONS:
            score.continuations.add().token_ids.ids.extend(ids)
        response = self.client.inference.Score(score, timeout=harness.DEADLINE)
        assert [[token.token_id for token in each.tokens] for each in response.scores] == list(map(list, CONTINUATIONS))
        return []


class Table:
    """The outcome of each pair: "" for yes, else the message of the refusal."""

    def __init__(self):
        self.cells: dict[frozenset, str] = {}
        self.servers: dict[frozenset, Served | str] = {}
        try:
            for pair in itertools.combinations_with_replacement(FEATURES, 2):
                self.cells[frozenset(pair)] = self.outcome(frozenset(pair))
        finally:
            for served in self.servers.values():
                if isinstance(served, Served):
                    served.close()

    def outcome(self, pair: frozenset) -> str:
        if len(pair & RPCS.keys()) == 2:
            return "a call is one of GenerateBatch, GenerateStream and Score"
        of_server = frozenset(pair & SERVER.keys())
        if of_server not in self.servers:
            try:
                self.servers[of_server] = Served(of_server, len(self.servers))
            except Refused as error:
                self.servers[of_server] = str(error)
        served = self.servers[of_server]
        if isinstance(served, str):
            return served
        try:
            served.ask(frozenset(pair - SERVER.keys()))
        except Refused as error:
            return str(error)
        return ""

    def page(self) -> str:
        refusals = list(dict.fromkeys(message for message in self.cells.values() if message))
        rows = [["", *FEATURES], ["---"] * (1 + len(FEATURES))]
        for i, one in enumerate(FEATURES):
            row = [one]
            for k, other in enumerate(FEATURES):
                message = self.cells[frozenset((one, other))]
                row.append("" if k > i else str(1 + refusals.index(message)) if message else "yes")
            rows.append(row)
        lines = [TITLE, *("| " + " | ".join(row) + " |" for row in rows), "", "## Refused by", ""]
        lines += [f"{i}. `{message}`" for i, message in enumerate(refusals, 1)]
        lines += ["", "## What was switched on", "", "| feature | by |", "|---|---|"]
        lines += [f"| {name} | {how} |" for name, how in FEATURES.items()]
        return "\n".join(lines) + "\n"


TITLE = """# Which features go together

A cell says "yes", or has the number of the message by which a real server refused the pair. The
diagonal is each feature alone. `tests/e2e/test_features.py` makes this page: it tries every pair,
and where no feature changes the answer, it wants the tokens of the plain request. The same test
holds the page against what servers do.
"""


class FeaturesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.table = Table()

    def test_the_page_says_what_servers_do(self):
        self.assertMultiLineEqual(DOCS.read_text(), self.table.page(),
                                  "renew it: python3 tests/e2e/test_features.py --renew")

    def test_each_feature_alone_works(self):
        for feature in FEATURES:
            with self.subTest(feature):
                self.assertEqual(self.table.cells[frozenset((feature,))], "")


if __name__ == "__main__":
    if sys.argv[1:] == ["--renew"]:
        DOCS.write_text(Table().page())
    else:
        unittest.main()
