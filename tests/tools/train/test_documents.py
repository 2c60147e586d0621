"""tools/train/documents.py: where documents part, and which are held out."""

import pathlib
import tempfile
import unittest

import train_path  # noqa: F401
import documents


def many(count):
    return [f"Story {i} of a cat." for i in range(count)]


class SplittingTest(unittest.TestCase):
    def test_documents_lie_between_separators(self):
        text = "One cat.\n<|endoftext|>\nTwo cats.\n<|endoftext|>\n \n<|endoftext|>\nThree."
        self.assertEqual(documents.documents_of(text, "<|endoftext|>"), ["One cat.", "Two cats.", "Three."])

    def test_any_text_may_separate(self):
        self.assertEqual(documents.documents_of("A b\nc\n\n\n\nD", "\n\n\n"), ["A b\nc", "D"])

    def test_blank_lines_and_double_spaces_go(self):
        self.assertEqual(documents.tidy("  He ran. \r\n\n\n She\u00a0sat  down.\n"), "He ran.\nShe sat down.")

    def test_a_long_text_is_cut_at_line_ends_and_loses_nothing(self):
        text = "\n".join(f"Line {i} is here." for i in range(200))
        parts = documents.pieces(text, max_characters=100)
        self.assertGreater(len(parts), 10)
        self.assertTrue(all(len(part) <= 100 for part in parts))
        self.assertEqual("\n".join(parts), text)

    def test_one_line_may_be_longer_than_allowed(self):
        self.assertEqual(documents.pieces("x" * 300, max_characters=100), ["x" * 300])

    def test_copies_are_found_by_their_letters(self):
        found = documents.without_copies(["A cat, a hat.", "Another.", "a cat - a HAT"])
        self.assertEqual(found, ["A cat, a hat.", "Another."])


class HeldOutTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, texts):
        path = self.folder / name
        path.write_text("\n<|endoftext|>\n".join(texts))
        return path

    def split(self, *paths, seed=1, held_out=0.1):
        return documents.read_split(paths, "<|endoftext|>", held_out, seed)

    def test_the_share_is_about_what_was_asked(self):
        split = self.split(self.write("a", many(3000)))
        self.assertEqual(len(split.training) + len(split.validation), 3000)
        # The number is binomial. The bound is five standard deviations.
        self.assertLess(abs(len(split.validation) - 300), 5 * (3000 * 0.1 * 0.9) ** 0.5)

    def test_nothing_is_on_both_sides(self):
        split = self.split(self.write("a", many(500) + many(500)))
        self.assertEqual(len(split.training) + len(split.validation), 500)
        self.assertFalse(set(split.training) & set(split.validation))

    def test_more_files_and_another_order_move_nothing_across(self):
        alone = self.split(self.write("a", many(500)))
        with_more = self.split(self.write("b", [f"Other {i}." for i in range(500)]), self.write("a", many(500)[::-1]))
        self.assertLess(set(alone.validation), set(with_more.validation))
        self.assertLess(set(alone.training), set(with_more.training))

    def test_the_seed_decides(self):
        path = self.write("a", many(500))
        self.assertEqual(self.split(path, seed=1), self.split(path, seed=1))
        self.assertNotEqual(self.split(path, seed=1), self.split(path, seed=2))

    def test_an_empty_side_is_an_error_that_names_the_cure(self):
        with self.assertRaisesRegex(ValueError, "--separator"):
            self.split(self.write("a", ["Only this."]))

    def test_other_bytes_than_utf8_are_an_error_that_names_the_file(self):
        path = self.folder / "latin1.txt"
        path.write_bytes("caf\u00e9 au lait".encode("latin-1"))
        with self.assertRaisesRegex(ValueError, "latin1.txt: want UTF-8.*byte 3"):
            self.split(path)


if __name__ == "__main__":
    unittest.main()
