"""tools/train/svg.py and plot_loss.py: what the pictures hold."""

import unittest
import xml.etree.ElementTree as ElementTree

import train_path  # noqa: F401
import plot_loss
import svg
from history import Entry

NAMESPACE = "{http://www.w3.org/2000/svg}"


def points_of(document):
    return [[tuple(map(float, point.split(","))) for point in line.get("points").split()]
            for line in ElementTree.fromstring(document).iter(f"{NAMESPACE}polyline")]


def words_of(document):
    return [text.text for text in ElementTree.fromstring(document).iter(f"{NAMESPACE}text")]


class TicksTest(unittest.TestCase):
    def test_they_are_round_and_inside(self):
        self.assertEqual(svg.ticks(0, 24), [0, 5, 10, 15, 20])
        self.assertEqual(svg.ticks(1.3, 2.6), [1.4, 1.6, 1.8, 2.0, 2.2, 2.4, 2.6])

    def test_there_are_enough_and_not_too_many(self):
        for low, high in ((0, 1), (0, 7), (3.1, 3.2), (-5, 2048), (1e-6, 9e-6)):
            self.assertIn(len(svg.ticks(low, high)), range(4, 12))

    def test_logarithmic_ones_are_one_two_five(self):
        self.assertEqual(svg.log_ticks(4, 300), [5, 10, 20, 50, 100, 200])
        self.assertEqual(svg.log_ticks(60, 95), [60, 65, 70, 75, 80, 85, 90, 95])


class ChartTest(unittest.TestCase):
    def test_a_point_is_where_its_numbers_say(self):
        (line,) = points_of(svg.render(svg.Chart("t", "x", "y", [svg.Line("l", [(0, 1), (5, 2), (10, 3)])])))
        self.assertEqual(line[0][0], svg.LEFT)
        self.assertEqual(line[2][0], svg.WIDTH - svg.RIGHT)
        self.assertAlmostEqual(line[1][0], (line[0][0] + line[2][0]) / 2, delta=0.1)
        self.assertAlmostEqual(line[1][1], (line[0][1] + line[2][1]) / 2, delta=0.1)
        self.assertGreater(line[0][1], line[2][1])  # more is higher up

    def test_a_logarithmic_axis_spaces_factors_evenly(self):
        (line,) = points_of(svg.render(svg.Chart("t", "x", "y", [svg.Line("l", [(0, 2), (1, 20), (2, 200)])], log_y=True)))
        self.assertAlmostEqual(line[1][1], (line[0][1] + line[2][1]) / 2, delta=0.1)

    def test_words_are_escaped(self):
        self.assertIn("a < b & c", words_of(svg.render(svg.Chart("a < b & c", "x", "y", [svg.Line("l", [(0, 0), (1, 1)])]))))


class LossCurveTest(unittest.TestCase):
    def test_it_shows_both_losses_and_names_the_best(self):
        entries = [Entry(step, step * 1000, 5 - step / 500, 4 - step / 1000 if step % 100 == 0 else None)
                   for step in range(10, 2001, 10)]
        document = svg.render(plot_loss.chart(entries))
        training, validation = points_of(document)
        self.assertLessEqual(len(training), plot_loss.MAX_POINTS)
        self.assertEqual(len(validation), 20)
        self.assertIn("held-out documents: 2.000 at best", words_of(document))

    def test_thinning_keeps_the_mean(self):
        entries = [Entry(step, step, float(step), None) for step in range(1, 2 * plot_loss.MAX_POINTS + 1)]
        self.assertEqual(plot_loss.thinned(entries)[0], (2 / 1e6, 1.5))


if __name__ == "__main__":
    unittest.main()
