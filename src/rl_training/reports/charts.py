"""Line and bar charts as SVG: no request to the network, readable in light and dark, with texts for
screen readers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 320
MOST_DRAWN = 320
"""Points of a curve that are drawn; its extremes are among them."""
MOST_DOTS = 40
"""Points of a curve that are shown as dots, which say their value under a pointer."""
LEFT, RIGHT, TOP, BOTTOM = 84, 16, 16, 52
LARGEST = 1e300
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b8860b")
"""Okabe and Ito's, which colour-blind readers can tell apart, and two more."""
STYLE = (
    ".chart{color:#1b1b1b;background:#fff;font:12px system-ui,sans-serif}"
    ".chart text{fill:currentColor}.chart .grid{stroke:currentColor;stroke-opacity:.15}"
    ".chart .mark0,.chart .mark1{stroke:currentColor;stroke-opacity:.7;stroke-dasharray:7 4}"
    ".chart .mark1{stroke-width:2;stroke-dasharray:2 4}"
    "@media(prefers-color-scheme:dark){.chart{color:#e8e8e8;background:#16181c}}"
    "@media print{.chart{color:#1b1b1b;background:#fff}}"
)


@dataclass(frozen=True)
class Line:
    """A named curve, with a band around it if `low` and `high` are given."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Mark:
    """A horizontal line, such as the mean return of the data."""

    name: str
    y: float


def line_chart(
    title: str,
    x_label: str,
    y_label: str,
    lines: Sequence[Line],
    marks: Sequence[Mark] = (),
    legend: bool = True,
) -> str:
    """An SVG element of curves over a shared axis; an empty one says so.

    Without a `legend` the page around it names the curves, in the order of `COLOURS`.
    """
    drawn = [line for line in lines if len(line.x)]
    values = [v for line in drawn for v in (*line.y, *line.low, *line.high) if math.isfinite(v)]
    values += [mark.y for mark in marks]
    places = [x for line in drawn for x in line.x]
    described = f"{title}: {y_label} over {x_label}, " + ", ".join(map(_in_words, drawn))
    rows = -(-len(drawn) // 2) + len(marks) if legend else 0
    height = HEIGHT + 18 * rows
    body = [f"<title>{escape(title)}</title><desc>{escape(described)}</desc>"]
    body.append(f"<style>{STYLE}</style>")
    if not values or not places:
        body.append(f'<text x="{LEFT}" y="{HEIGHT // 2}">no points yet</text>')
        return _svg(height, title, body)
    x_ticks, y_ticks = ticks(min(places), max(places)), ticks(min(values), max(values))
    x_low, x_high = min(places), max(places) if max(places) > min(places) else min(places) + 1
    y_low, y_high = min(y_ticks[0], *values), max(y_ticks[-1], *values)

    def across(x: float) -> float:
        return LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def up(y: float) -> float:
        return HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    body += [_grid_line(up(y), y) for y in y_ticks]
    body += [_x_tick(across(x), x) for x in x_ticks if x_low <= x <= x_high]
    body.append(_labels(x_label, y_label))
    for i, mark in enumerate(marks):
        at = f'y1="{up(mark.y):.1f}" y2="{up(mark.y):.1f}"'
        body.append(f'<line class="mark{i % 2}" x1="{LEFT}" x2="{WIDTH - RIGHT}" {at}/>')
    for i, line in enumerate(drawn):
        colour = COLOURS[i % len(COLOURS)]
        if line.low:
            edge = list(zip(line.x, line.high, strict=True))
            edge += list(zip(line.x, line.low, strict=True))[::-1]
            around = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in edge)
            body.append(f'<polygon points="{around}" fill="{colour}" fill-opacity=".18"/>')
        points = " ".join(
            f"{across(x):.1f},{up(y):.1f}"
            for x, y in zip(line.x, line.y, strict=True)
            if math.isfinite(y)
        )
        body.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" '
            'stroke-linejoin="round"/>'
        )
        if len(line.x) <= MOST_DOTS:
            body += [
                f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3.5" fill="{colour}">'
                f"<title>{escape(line.name)}: {short(y)} at {short(x)}</title></circle>"
                for x, y in zip(line.x, line.y, strict=True)
                if math.isfinite(y)
            ]
        if not legend:
            continue
        left, below = LEFT + (i % 2) * (WIDTH - LEFT) // 2, HEIGHT + 12 + 18 * (i // 2)
        body.append(
            f'<rect x="{left}" y="{below - 9}" width="12" height="4" fill="{colour}"/>'
            f'<text x="{left + 18}" y="{below - 3}">{escape(line.name)}</text>'
        )
    for i, mark in enumerate(marks if legend else ()):
        below = HEIGHT + 12 + 18 * (-(-len(drawn) // 2) + i)
        body.append(
            f'<line class="mark{i % 2}" x1="{LEFT}" x2="{LEFT + 14}" '
            f'y1="{below - 7}" y2="{below - 7}"/>'
            f'<text x="{LEFT + 18}" y="{below - 3}">{escape(mark.name)}: {short(mark.y)}</text>'
        )
    return _svg(height, title, body)


def bar_chart(
    title: str, x_label: str, y_label: str, edges: Sequence[float], counts: Sequence[int]
) -> str:
    """An SVG element of a histogram; bar i counts what lies between the edges i and i + 1."""
    most = max(max(counts, default=0), 1)
    y_ticks = [y for y in ticks(0, most) if y == int(y)]
    described = f"{title}: {y_label} by {x_label}, " + ", ".join(
        f"{count} from {short(low)} to {short(high)}"
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
        if count
    )
    wide = (WIDTH - LEFT - RIGHT) / max(len(counts), 1)

    def up(y: float) -> float:
        return HEIGHT - BOTTOM - y / max(y_ticks[-1], 1) * (HEIGHT - TOP - BOTTOM)

    body = [f"<title>{escape(title)}</title><desc>{escape(described)}</desc>"]
    body.append(f"<style>{STYLE}</style>")
    body += [_grid_line(up(y), y) for y in y_ticks]
    body += [
        f'<rect x="{LEFT + i * wide + 1:.1f}" y="{up(count):.1f}" width="{wide - 2:.1f}" '
        f'height="{HEIGHT - BOTTOM - up(count):.1f}" fill="{COLOURS[0]}"/>'
        for i, count in enumerate(counts)
    ]
    shown = range(0, len(edges), max(len(counts) // 4, 1))
    body += [_x_tick(LEFT + i * wide, edges[i]) for i in shown]
    body.append(_labels(x_label, y_label))
    return _svg(HEIGHT, title, body)


def interval_chart(
    title: str, x_label: str, rows: Sequence[tuple[str, float, float, float]]
) -> str:
    """An SVG element of values with intervals around them: name, value, low and high of each, one
    below the other, in the order of `COLOURS`."""
    ends = [end for _, _, low, high in rows for end in (low, high)]
    x_ticks = ticks(min(ends), max(ends))
    height = TOP + 44 * len(rows) + BOTTOM
    described = f"{title}: {x_label}, " + ", ".join(
        f"{name} {short(value)}, from {short(low)} to {short(high)}"
        for name, value, low, high in rows
    )
    body = [f"<title>{escape(title)}</title><desc>{escape(described)}</desc>"]
    body.append(f"<style>{STYLE}</style>")

    def across(x: float) -> float:
        return RIGHT + (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * (WIDTH - 2 * RIGHT)

    for x in x_ticks:
        at, below = across(x), height - BOTTOM
        anchor = "start" if x == x_ticks[0] else "end" if x == x_ticks[-1] else "middle"
        body.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{below}"/>'
            f'<text x="{at:.1f}" y="{below + 18}" text-anchor="{anchor}">{short(x)}</text>'
        )
    for i, (name, value, low, high) in enumerate(rows):
        colour, y = COLOURS[i % len(COLOURS)], TOP + 44 * i + 30
        body.append(
            f'<text x="{RIGHT}" y="{y - 12}">{escape(_cut(name))}</text>'
            f'<rect x="{across(low):.1f}" y="{y - 5}" width="{across(high) - across(low):.1f}" '
            f'height="10" rx="3" fill="{colour}" fill-opacity=".35"/>'
            f'<circle cx="{across(value):.1f}" cy="{y}" r="5" fill="{colour}">'
            f"<title>{short(value)} [{short(low)}, {short(high)}]</title></circle>"
        )
    body.append(
        f'<text x="{WIDTH / 2}" y="{height - 8}" text-anchor="middle">{escape(x_label)}</text>'
    )
    return _svg(height, title, body)


def _cut(name: str, most: int = 70) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _grid_line(at: float, value: float) -> str:
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{short(value)}</text>'
    )


def _x_tick(at: float, value: float) -> str:
    """A number below the axis; the last one ends at it, so that it is not cut off."""
    anchor = "end" if at > WIDTH - RIGHT - 20 else "middle"
    where = f'x="{at:.1f}" y="{HEIGHT - BOTTOM + 22}" text-anchor="{anchor}"'
    return f"<text {where}>{short(value)}</text>"


def _labels(x_label: str, y_label: str) -> str:
    return (
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" '
        f'text-anchor="middle">{escape(x_label)}</text>'
        f'<text class="label" transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>'
    )


def drawable(name: str, x: Sequence[float], y: Sequence[float]) -> Line:
    """A curve with at most `MOST_DRAWN` of its points: the lowest and the highest of every part
    of it, so that no peak is lost."""
    size = math.ceil(2 * len(x) / MOST_DRAWN) if len(x) > MOST_DRAWN else 1
    chosen: list[int] = []
    for start in range(0, len(x), size):
        part = range(start, min(start + size, len(x)))
        chosen += sorted({min(part, key=y.__getitem__), max(part, key=y.__getitem__)})
    return Line(name, [x[i] for i in chosen], [_drawn(y[i]) for i in chosen])


def _drawn(value: float) -> float:
    """A value whose distance to any other one is finite."""
    return max(-LARGEST, min(LARGEST, value))


def _svg(height: int, title: str, body: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="{escape(title)}">{"".join(body)}</svg>'
    )


def _in_words(line: Line) -> str:
    return f"{line.name} from {short(line.y[0])} to {short(line.y[-1])}"


def widened(low: float, high: float) -> tuple[float, float]:
    """A range; a wider one around it if it is a single number, as far as floats can tell."""
    size = max(abs(low), abs(high))
    pad = max(0.5, 1e-3 * size) if high - low <= max(1e-9 * size, 1e-300) else 0.0
    return low - pad, high + pad


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that cover a range."""
    low, high = widened(low, high)
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [i * step for i in range(first, last + 1)]


def short(value: float) -> str:
    """A number in a few characters."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1e4:
        return f"{value / 1e3:.3g}k"
    return f"{value:,.4g}" if size < 1e3 else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """A time in words."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes >= 10 else f"{60 * minutes + rest} s"
