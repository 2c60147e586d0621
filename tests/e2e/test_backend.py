"""The backend that serves is the one that was asked for, and the log warns when attention on it is slow."""

import unittest

import harness
import make_tiny_model
from harness import Client, Server

SLOW = "attention runs on a plain kernel"


class BackendTest(unittest.TestCase):
    def serve(self, dtype: str) -> str:
        """The log of a server on an emulated GPU, after one answer."""
        model = harness.SCRATCH / dtype
        make_tiny_model.write(model, dtype)
        server = Server("--backend", "cuda-emulated", model=model).ready()
        self.addCleanup(server.stop)
        client = Client(server.address)
        self.addCleanup(client.close)
        self.assertEqual(client.generate("the thing", max_tokens=2, ignore_eos=True).usage.completion_tokens, 2)
        info = client.server_info()
        self.assertEqual((info.backend, info.isa_path), ("cuda", "emulated device"))
        self.assertEqual(info.numerics, "cuda-2")
        return server.log()

    def test_types_that_tensor_cores_take(self):
        self.assertNotIn(SLOW, self.serve("bfloat16"))

    def test_types_that_they_do_not_take(self):
        self.assertRegex(self.serve("float32"), f'{SLOW}.* activations="f32" kv_dtype="f32" layer=0 key_dim=16 value_dim=16 block_size=16')

    def test_one_that_the_build_does_not_have(self):
        server = Server("--backend", "tpu")
        self.assertEqual(server.wait(), 1)
        self.assertRegex(server.log(), r"backend: want one of auto\|cpu(\|cuda-emulated)?, which this build has, got tpu")


if __name__ == "__main__":
    unittest.main(verbosity=2)
