"""Named prefixes: what their owner, the tenants that it allows, and all others see of them."""

import hashlib
import itertools
import random
import re
import struct
import threading
import unittest

import grpc
from google.protobuf import duration_pb2, field_mask_pb2
from google.rpc import error_details_pb2

import harness
from harness import Client, Streamed, details, make_request, running
from quire.v1 import prefix_service_pb2 as xb

READY = xb.Prefix.STATE_READY
GREEDY = dict(temperature=0, max_tokens=8, ignore_eos=True, token_ids=True)
TENANTS = ("alice", "bob", "carol")
UNKNOWN = "prefixes/" + "0" * 26
HOSTILE = ("", "prefixes/", "prefixes/x", "prefixes/" + "0" * 25, "prefixes/" + "0" * 27, "prefixes/../../etc/passwd",
           "PREFIXES/" + "0" * 26, "x" * 100_000, "prefixes/" + "\x00" * 26, "prefixes/" + "\N{PILE OF POO}" * 26, "%s%n",
           "sessions/" + "0" * 26)


def token_of(name: str) -> str:
    return f"{name}-token-0123456789"


def identities() -> str:
    """The path of a file of callers: TENANTS, a colleague of alice, and an operator."""
    lines = {name: f"name={name}" for name in TENANTS}
    lines |= {"anna": "name=anna tenant=alice", "olga": "name=olga roles=operator"}
    file = harness.SCRATCH / "prefix-callers"
    file.write_text("".join(f"token:{hashlib.sha256(token_of(name).encode()).hexdigest()} {fields}\n"
                            for name, fields in lines.items()))
    return str(file)


def ids(length: int, first: int = 33) -> list[int]:
    """Token ids whose first one differs with `first`, so that nothing of them is cached by others' prompts."""
    return [first] + [33 + (i * 7) % 60 for i in range(1, length)]


class Caller:
    """The calls of one caller."""

    def __init__(self, address: str, name: str):
        self.client = Client(address, token=token_of(name) if name else "")
        self.stub = self.client.prefixes

    def _call(self, method, request, timeout=harness.DEADLINE):
        return method(request, timeout=timeout, metadata=self.client.metadata)

    def create(self, content, ttl=None, timeout=harness.DEADLINE, **fields) -> xb.Prefix:
        request = xb.CreatePrefixRequest(**fields)
        prompt = make_request(content)
        kind = prompt.WhichOneof("prompt")
        if kind == "text":
            request.text = prompt.text
        else:
            getattr(request, kind).CopyFrom(getattr(prompt, kind))
        if ttl is not None:
            request.ttl.CopyFrom(duration_pb2.Duration(seconds=ttl))
        return self._call(self.stub.CreatePrefix, request, timeout)

    def get(self, name) -> xb.Prefix:
        return self._call(self.stub.GetPrefix, xb.GetPrefixRequest(name=name))

    def names(self, **fields) -> list[str]:
        return [prefix.name for prefix in self.list_page(**fields).prefixes]

    def list_page(self, **fields) -> xb.ListPrefixesResponse:
        return self._call(self.stub.ListPrefixes, xb.ListPrefixesRequest(**fields))

    def update(self, name, **fields) -> xb.Prefix:
        mask = field_mask_pb2.FieldMask(paths=[field for field in fields if field != "etag"])
        return self._call(self.stub.UpdatePrefix,
                          xb.UpdatePrefixRequest(prefix=xb.Prefix(name=name, **fields), update_mask=mask))

    def delete(self, name, **fields):
        return self._call(self.stub.DeletePrefix, xb.DeletePrefixRequest(name=name, **fields))

    def warm(self, name) -> xb.Prefix:
        return self._call(self.stub.WarmPrefix, xb.WarmPrefixRequest(name=name))

    def generate(self, prompt, prefix=None, **options):
        return self.client.generate(prompt, prefix=prefix, **{**GREEDY, **options})

    def calls_by_name(self):
        """Each call that names a prefix."""
        return {"get": self.get, "delete": self.delete, "warm": self.warm,
                "update": lambda name: self.update(name, display_name="x"),
                "generate": lambda name: self.generate([40], name)}


def reason(error) -> str:
    return details(error, error_details_pb2.ErrorInfo).reason


class PrefixesTest(harness.TestCase):
    """One server with an identity file. No prefix is left after a test."""

    @classmethod
    def setUpClass(cls):
        cls.flags = ("--auth_token_file", identities())
        super().setUpClass()
        for name in (*TENANTS, "anna", "olga"):
            caller = Caller(cls.server.address, name)
            setattr(cls, name, caller)
            cls.addClassCleanup(caller.client.close)
        cls.client = cls.olga.client  # GetStats is for operators

    def tearDown(self):
        for name in self.olga.names(page_size=1000):
            self.olga.delete(name)
        self.client.wait_until(lambda stats: stats.blocks.pinned == 0, "without pinned blocks")
        super().tearDown()

    def test_a_request_computes_what_follows(self):
        alone = self.bob.generate(ids(40) + [50, 51, 52])
        made = self.alice.create(ids(40), display_name="rules", ttl=600)
        self.assertEqual((made.state, made.tenant, made.display_name), (READY, "alice", "rules"))
        self.assertEqual((made.num_tokens, made.num_blocks), (40, 3))
        digest = self.client.server_info().model_digest
        self.assertEqual(made.content_sha256, hashlib.sha256(digest.encode() + struct.pack("<40i", *ids(40))).digest())
        self.assertEqual(made.ttl.seconds, 600)
        self.assertEqual(self.client.stats().blocks.pinned, 3)
        for caller in (self.alice, self.anna):  # one tenant
            answer = caller.generate([50, 51, 52], made.name, bypass_write=True)
            self.assertEqual(answer.completions[0].token_ids, alone.completions[0].token_ids)
            usage = answer.usage
            self.assertEqual((usage.prompt_tokens, usage.cached_tokens, usage.prefix_tokens), (43, 40, 40))
        seen = self.anna.get(made.name)
        self.assertEqual((seen.hits, seen.saved_tokens), (2, 80))
        self.assertGreaterEqual(seen.last_hit_time.seconds, made.create_time.seconds)

    def test_texts_and_conversations(self):
        whole = "the thing in another hour, and the rest of it"
        made = self.alice.create(whole[:25])
        answer = self.alice.generate(whole[25:], made.name)
        self.assertEqual(answer.usage.prefix_tokens, made.num_tokens)
        self.assertEqual(answer.completions[0].token_ids, self.bob.generate(whole).completions[0].token_ids)
        system, user = ("system", "Be brief, and speak of the hour."), ("user", "which hour?")
        made = self.alice.create([system])
        answer = self.alice.generate([user], made.name)
        self.assertEqual(answer.usage.prefix_tokens, made.num_tokens)
        self.assertEqual(answer.completions[0].token_ids, self.bob.generate([system, user]).completions[0].token_ids)

    def test_those_who_are_allowed_use_it_and_do_not_change_it(self):
        made = self.alice.create(ids(40, 60), allowed_tenants=["bob"])
        usage = self.bob.generate([50, 51], made.name).usage
        self.assertEqual((usage.cached_tokens, usage.prefix_tokens), (40, 40))
        self.assertEqual(self.bob.generate(ids(40, 60) + [50, 51]).usage.cached_tokens, 0, "only by its name")
        seen = self.bob.get(made.name)
        self.assertEqual(seen.num_tokens, 40)
        self.assertFalse(seen.HasField("hits"), "counts are for the owner")
        self.assertEqual(self.bob.names(), [made.name])
        self.assertEqual(self.carol.names(), [])
        for what in ("update", "delete", "warm"):
            error = self.assert_status(grpc.StatusCode.PERMISSION_DENIED,
                                       lambda: self.bob.calls_by_name()[what](made.name))
            self.assertEqual(reason(error), "PREFIX_PERMISSION_DENIED", what)
        self.assert_status(grpc.StatusCode.PERMISSION_DENIED, lambda: self.bob.list_page(tenant="alice"))
        error = self.assert_status(grpc.StatusCode.PERMISSION_DENIED,
                                   lambda: self.bob.generate([50], made.name, echo=True))
        self.assertEqual(reason(error), "OUTPUT_PERMISSION_DENIED")
        self.alice.update(made.name, allowed_tenants=["carol"])
        self.assert_status(grpc.StatusCode.NOT_FOUND, lambda: self.bob.generate([50], made.name))
        self.assertEqual(self.carol.generate([50], made.name).usage.prefix_tokens, 40)
        self.alice.update(made.name, allowed_tenants=["*"])
        self.assertEqual(self.bob.generate([50], made.name).usage.prefix_tokens, 40)
        self.assertEqual(self.olga.names(tenant="alice"), [made.name])

    def test_what_may_not_be_used_does_not_exist(self):
        made, gone = (self.alice.create(ids(40, first)) for first in (35, 36))
        self.alice.delete(gone.name)

        def told(call, name):
            error = self.assert_status(grpc.StatusCode.NOT_FOUND, lambda: call(name))
            self.assertEqual(reason(error), "PREFIX_NOT_FOUND")
            self.assertIn(name, error.details())
            return error.details().replace(name, "NAME")

        texts = {told(call, name) for name in (made.name, gone.name, UNKNOWN)
                 for call in self.carol.calls_by_name().values()}
        texts |= {told(call, gone.name) for call in self.alice.calls_by_name().values()}
        self.assertEqual(len(texts), 1, texts)
        self.carol.delete(UNKNOWN, allow_missing=True)
        self.carol.delete(made.name, allow_missing=True)
        self.assertEqual(self.alice.get(made.name).state, READY, "it is still there")

    def test_updates_and_their_etags(self):
        made = self.alice.create(ids(20))
        changed = self.alice.update(made.name, display_name="other", ttl=duration_pb2.Duration(seconds=90),
                                    refresh_on_hit=True, etag=made.etag)
        self.assertEqual((changed.display_name, changed.ttl.seconds, changed.refresh_on_hit), ("other", 90, True))
        self.assertNotEqual(changed.etag, made.etag)
        self.assertLess(changed.expire_time.seconds, made.expire_time.seconds)
        for call in (lambda: self.alice.update(made.name, display_name="late", etag=made.etag),
                     lambda: self.alice.delete(made.name, etag=made.etag)):
            self.assertEqual(reason(self.assert_status(grpc.StatusCode.ABORTED, call)), "ETAG_ABORTED")
        for field, value in (("ttl", duration_pb2.Duration(seconds=59)),
                             ("ttl", duration_pb2.Duration(seconds=24 * 3600 + 1)), ("display_name", "x" * 129)):
            error = self.assert_status(grpc.StatusCode.INVALID_ARGUMENT,
                                       lambda: self.alice.update(made.name, **{field: value}))
            violation = details(error, error_details_pb2.BadRequest).field_violations[0]
            self.assertEqual(violation.field, f"prefix.{field}")
        self.assertEqual(self.alice.get(made.name).etag, changed.etag)
        self.assertEqual(self.alice.warm(made.name).state, READY)
        self.alice.delete(made.name, etag=changed.etag)

    def test_a_stream_outlives_its_prefix(self):
        options = dict(GREEDY, max_tokens=300)
        alone = self.bob.generate(ids(100) + [50], **options)
        made = self.alice.create(ids(100))
        call = self.alice.client.stream([50], prefix=made.name, **options)
        first = next(call)
        self.alice.delete(made.name)
        self.assert_status(grpc.StatusCode.NOT_FOUND, lambda: self.alice.generate([50], made.name))
        streamed = Streamed(itertools.chain([first], call))
        self.assertEqual(streamed.ids, alone.completions[0].token_ids)

    def test_hostile_names(self):
        for name in HOSTILE:
            for what, call in self.alice.calls_by_name().items():
                if what == "generate" and not name:
                    continue  # a request without a prefix
                with self.subTest(name=name[:40], call=what):
                    error = self.assert_status(grpc.StatusCode.INVALID_ARGUMENT, lambda: call(name))
                    field = {"update": "prefix.name", "generate": "prefix_name"}.get(what, "name")
                    violation = details(error, error_details_pb2.BadRequest).field_violations[0]
                    self.assertEqual(violation.field, field)
                    self.assertLess(len(error.details()), 2000)

    def test_pages(self):
        names = [self.alice.create(ids(20, first)).name for first in range(40, 45)]
        pages, token = [], ""
        while not pages or token:
            page = self.alice.list_page(page_size=2, page_token=token)
            pages.append([prefix.name for prefix in page.prefixes])
            token = page.next_page_token
        self.assertEqual(pages, [names[0:2], names[2:4], names[4:5]])
        token = self.alice.list_page(page_size=2).next_page_token
        for call in (lambda: self.bob.list_page(page_token=token), lambda: self.anna.list_page(page_token=token),
                     lambda: self.alice.list_page(page_token=token, tenant="alice"),
                     lambda: self.alice.list_page(page_token=token[:-1]), lambda: self.alice.list_page(page_token="x" * 1000)):
            error = self.assert_status(grpc.StatusCode.INVALID_ARGUMENT, call)
            self.assertEqual(details(error, error_details_pb2.BadRequest).field_violations[0].field, "page_token")
        for size in (0, 1001):
            self.assert_status(grpc.StatusCode.INVALID_ARGUMENT, lambda: self.alice.list_page(page_size=size))

    def test_a_request_id_makes_one_prefix(self):
        made = self.alice.create(ids(30), request_id="once")
        self.assertEqual(self.alice.create(ids(30), request_id="once").name, made.name)
        error = self.assert_status(grpc.StatusCode.INVALID_ARGUMENT,
                                   lambda: self.alice.create(ids(31), request_id="once"))
        self.assertEqual(details(error, error_details_pb2.BadRequest).field_violations[0].field, "request_id")
        other = self.bob.create(ids(30), request_id="once")
        self.assertNotEqual(other.name, made.name)
        self.assertEqual(other.content_sha256, made.content_sha256)
        self.assertEqual(self.alice.names(), [made.name])

    def test_without_waiting(self):
        made = self.alice.create(ids(500), wait=False)
        self.assertEqual(self.alice.warm(made.name).state, READY)
        self.assertEqual(self.alice.generate([50], made.name).usage.prefix_tokens, 500)

    def test_an_abandoned_prefix_is_deleted(self):
        call = self.alice.stub.CreatePrefix.future(
            xb.CreatePrefixRequest(token_ids=make_request(ids(20_000)).token_ids), metadata=self.alice.client.metadata)
        self.client.wait_until(lambda stats: stats.queue.num_running == 1, "in computation")
        call.cancel()
        self.client.wait_until_idle()
        self.assertEqual(self.alice.names(), [])

    def test_a_storm(self):
        """Callers create, use, cancel and delete each other's prefixes at once; the server accounts for every block."""
        fine = {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.DEADLINE_EXCEEDED,
                grpc.StatusCode.UNAVAILABLE}
        names, wrong = [UNKNOWN], []

        def run(seed: int):
            luck = random.Random(seed)
            caller = (self.alice, self.anna, self.bob, self.carol)[seed % 4]
            for _ in range(40):
                name = luck.choice(names[-8:])
                try:
                    what = luck.randrange(4)
                    if what == 0:
                        names.append(caller.create(ids(luck.randrange(1, 200), 33 + luck.randrange(8)),
                                                   allowed_tenants=luck.choice([[], ["*"], ["bob"]]),
                                                   wait=luck.random() < 0.7,
                                                   timeout=luck.choice([0.005, harness.DEADLINE])).name)
                    elif what == 1:
                        caller.generate([50], name, max_tokens=luck.randrange(1, 20))
                    else:
                        luck.choice([caller.delete, caller.get, caller.warm])(name)
                except grpc.RpcError as error:
                    if error.code() not in fine:
                        wrong.append((error.code(), error.details()))

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        for name in self.olga.names(page_size=1000):
            self.olga.delete(name, allow_missing=True)
        self.client.wait_until(lambda stats: stats.blocks.pinned == 0, "without pinned blocks")


class PinnedShareTest(unittest.TestCase):
    def test_a_full_share_is_refused_with_its_numbers(self):
        with running("--max_pinned_share", "0.002") as (server, client):
            caller = Caller(server.address, "")
            self.addCleanup(caller.client.close)
            total = client.stats().blocks.total
            most = int(0.002 * total)
            with self.assertRaises(grpc.RpcError) as caught:
                caller.create(ids(16 * most + 1))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
            numbers = re.findall(r"\d+(?:\.\d+)?", caught.exception.details())
            self.assertEqual(numbers, [str(most), "0.002", str(total), str(most + 1)])
            made = caller.create(ids(16 * (most - 1)))
            with self.assertRaises(grpc.RpcError) as caught:
                caller.create(ids(17))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
            self.assertEqual(details(caught.exception, error_details_pb2.QuotaFailure).violations[0].subject, "prefix")
            numbers = re.findall(r"\d+(?:\.\d+)?", caught.exception.details())
            self.assertEqual(numbers, ["2", str(most - 1), str(most), "0.002", str(total)])
            caller.delete(made.name)
            client.wait_until(lambda stats: stats.blocks.pinned == 0, "without pinned blocks")
            caller.create(ids(16 * most))


if __name__ == "__main__":
    unittest.main(verbosity=2)
