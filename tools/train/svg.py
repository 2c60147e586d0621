"""Line charts as small SVG files. Needs only the standard library."""

import dataclasses
import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 56, 52  # margins
COLORS = ("#1f6feb", "#d1570a", "#2da44e", "#8250df")


@dataclasses.dataclass(frozen=True)
class Line:
    label: str
    points: Sequence[tuple[float, float]]
    faint: bool = False


@dataclasses.dataclass(frozen=True)
class Chart:
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log_y: bool = False
    marks: Sequence[tuple[float, str]] = ()  # vertical lines: (position, label)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) within [low, high], five to ten of them."""
    step = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 9)
    return [round(i * step, 10) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten. Within a decade these are too few, so evenly spaced ones are used there."""
    if high / low < 10:
        return ticks(low, high)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [factor * 10.0**decade for decade in decades for factor in (1, 2, 5) if low <= factor * 10.0**decade <= high]


class _Axes:
    """Maps a point of the data to its place on the page. The ranges contain all points."""

    def __init__(self, chart: Chart):
        xs = [x for line in chart.lines for x, _ in line.points] + [x for x, _ in chart.marks]
        ys = [y for line in chart.lines for _, y in line.points]
        self._bend = math.log10 if chart.log_y else float
        pad = 1.05 if chart.log_y else 0.05 * (max(ys) - min(ys) or 1)
        self.x_range = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1
        self.y_range = (min(ys) / pad, max(ys) * pad) if chart.log_y else (min(ys) - pad, max(ys) + pad)
        self.x_ticks = ticks(*self.x_range)
        self.y_ticks = (log_ticks if chart.log_y else ticks)(*self.y_range)

    def x(self, value: float) -> float:
        low, high = self.x_range
        return round(LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        low, high = (self._bend(end) for end in self.y_range)
        return round(TOP + (high - self._bend(value)) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)


def _text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def render(chart: Chart) -> str:
    """The chart as an SVG document, readable on both light and dark pages."""
    axes = _Axes(chart)
    bottom, middle = HEIGHT - BOTTOM, (TOP + HEIGHT - BOTTOM) / 2
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
           _text(WIDTH / 2, 20, chart.title, more=' font-size="15"'),
           _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, chart.x_label),
           _text(16, middle, chart.y_label, more=f' transform="rotate(-90 16 {middle:g})"')]
    for tick in axes.x_ticks:
        out.append(f'<path d="M{axes.x(tick):g} {TOP}V{bottom}" stroke="#eee"/>')
        out.append(_text(axes.x(tick), bottom + 16, f"{tick:,g}"))
    for tick in axes.y_ticks:
        out.append(f'<path d="M{LEFT} {axes.y(tick):g}H{WIDTH - RIGHT}" stroke="#eee"/>')
        out.append(_text(LEFT - 6, axes.y(tick) + 4, f"{tick:,g}", "end"))
    for where, words in chart.marks:
        out.append(f'<path d="M{axes.x(where):g} {TOP}V{bottom}" stroke="#888" stroke-dasharray="4 3"/>')
        out.append(_text(axes.x(where) + 4, TOP + 14, words, "start", ' fill="#666"'))
    for i, line in enumerate(chart.lines):
        color, opacity = COLORS[i % len(COLORS)], ' opacity="0.45"' if line.faint else ""
        points = " ".join(f"{axes.x(x):g},{axes.y(y):g}" for x, y in line.points)
        out.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"{opacity}/>')
        # The legend is above the plot, because lines may pass anywhere inside the plot.
        place = LEFT + (i + 0.5) / len(chart.lines) * (WIDTH - LEFT - RIGHT)
        out.append(_text(place, TOP - 12, line.label, more=f' fill="{color}"'))
    return "\n".join([*out, "</svg>"]) + "\n"
