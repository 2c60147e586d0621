"""tools/train/history.py: a table that a run that stopped can go on with."""

import pathlib
import tempfile
import unittest

import train_path  # noqa: F401
from history import Entry, History, read


class HistoryTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "history.csv"

    def test_what_was_added_is_read_back(self):
        entries = [Entry(10, 5120, 7.25, None), Entry(20, 10240, 6.5, 6.4321)]
        history = History(self.path)
        for entry in entries:
            history.add(entry)
        self.assertEqual(read(self.path), entries)

    def test_going_on_drops_what_came_after_the_checkpoint(self):
        history = History(self.path)
        for step in (10, 20, 30):
            history.add(Entry(step, step * 512, 5.0, None))
        again = History(self.path, from_step=20)
        again.add(Entry(30, 30 * 512, 4.0, None))
        self.assertEqual([(entry.step, entry.train_loss) for entry in read(self.path)], [(10, 5.0), (20, 5.0), (30, 4.0)])

    def test_a_new_run_starts_empty(self):
        History(self.path).add(Entry(10, 5120, 7.0, None))
        self.assertEqual(History(self.path).entries, [])


if __name__ == "__main__":
    unittest.main()
