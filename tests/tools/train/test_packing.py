"""tools/train/packing.py: windows that hold every document once an epoch."""

import unittest

import train_path

MISSING = train_path.missing("numpy")
if not MISSING:
    import numpy as np

    from packing import PackedDocuments

END = 0


@unittest.skipIf(MISSING, MISSING)
class PackedDocumentsTest(unittest.TestCase):
    def setUp(self):
        self.documents = [[100 * i + j for j in range(1, 2 + i % 7)] for i in range(1, 60)]
        self.packed = PackedDocuments(self.documents, END, context=8, seed=3)

    def test_a_window_starts_with_the_last_token_of_the_one_before(self):
        windows = self.packed.windows(0)
        self.assertEqual(windows.shape, (self.packed.num_windows, 9))
        np.testing.assert_array_equal(windows[1:, 0], windows[:-1, -1])

    def test_an_epoch_holds_each_document_once_after_an_end_of_text(self):
        windows = self.packed.windows(2)
        stream = [*windows[:, :-1].flatten().tolist(), int(windows[-1, -1])]
        self.assertEqual(stream[0], END)
        found = " ".join(map(str, stream)).split(" 0 ")
        found[0] = found[0].removeprefix("0 ")
        whole = {" ".join(map(str, document)) for document in self.documents}
        self.assertLessEqual(set(found[:-1]), whole)
        self.assertEqual(len(set(found)), len(found))
        # Only tokens for which the last window had no room are missing.
        self.assertGreaterEqual(len(stream), self.packed.num_tokens - 8)

    def test_epochs_differ_and_can_be_made_again_in_any_order(self):
        first, second = self.packed.windows(0).copy(), self.packed.windows(1).copy()
        self.assertFalse(np.array_equal(first, second))
        np.testing.assert_array_equal(self.packed.windows(0), first)
        np.testing.assert_array_equal(PackedDocuments(self.documents, END, 8, seed=3).windows(1), second)

    def test_steps_walk_through_the_epochs(self):
        per_epoch = self.packed.num_windows // 4
        np.testing.assert_array_equal(self.packed.batch(1, 4), self.packed.windows(0)[4:8])
        np.testing.assert_array_equal(self.packed.batch(per_epoch, 4), self.packed.windows(1)[:4])

    def test_too_little_text_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "more than 8 tokens, got 4"):
            PackedDocuments([[1, 2, 3]], END, context=8, seed=1)
        with self.assertRaisesRegex(ValueError, "at least 1000 windows"):
            self.packed.batch(0, 1000)


if __name__ == "__main__":
    unittest.main()
