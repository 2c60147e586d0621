"""tools/train/alibi.py: the slopes of arXiv:2108.12409."""

import unittest

import train_path  # noqa: F401
import alibi


class SlopesTest(unittest.TestCase):
    def test_eight_heads_are_the_papers_example(self):
        self.assertEqual(alibi.slopes(8), [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256])

    def test_sixteen_heads_are_the_papers_example(self):
        for slope, half in zip(alibi.slopes(16), range(1, 17), strict=True):
            self.assertAlmostEqual(slope, 2 ** (-half / 2), places=15)

    def test_other_numbers_take_every_second_slope_of_the_next_ladder(self):
        for heads in (3, 5, 6, 7, 12, 71, 112):
            n = max(power for power in (2, 4, 8, 16, 32, 64) if power <= heads)
            expected = alibi.slopes(n) + alibi.slopes(2 * n)[0::2][: heads - n]
            for got, want in zip(alibi.slopes(heads), expected, strict=True):
                self.assertAlmostEqual(got, want, places=15)

    def test_all_slopes_differ_and_lie_between_zero_and_one(self):
        for heads in range(1, 129):
            slopes = alibi.slopes(heads)
            self.assertEqual(len(set(slopes)), heads)
            self.assertTrue(all(0 < slope < 1 for slope in slopes))

    def test_bias_max_replaces_eight(self):
        self.assertEqual(alibi.slopes(4, bias_max=16), [2.0**-4, 2.0**-8, 2.0**-12, 2.0**-16])

    def test_no_heads_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "num_heads"):
            alibi.slopes(0)


if __name__ == "__main__":
    unittest.main()
