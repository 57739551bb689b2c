"""Charts of a run as self-contained SVG files, light or dark by the reader's preference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import cycle
from typing import Final, NamedTuple

from blackbox.analysis.report.axis import lag_ticks, rate_ticks
from blackbox.analysis.report.charts import Axis, Tick, line, path
from blackbox.analysis.report.picture import caption
from blackbox.analysis.report.style import COLOURS, PALETTE
from blackbox.numbers import short

_WIDTH: Final = 880
_EDGE: Final = 20
_HEAD: Final = 66
_BAR: Final = 26
_LABELS: Final = 320
_LETTER: Final = 7.1
_FIGURES: Final = 160
_FAR: Final = 2.2
"""A limit longer than this multiple of the largest bar is cut off."""
_ROOM: Final = 1.12
_PLOT: Final = 250
_LEFT: Final = 78
_MANY: Final = 30
"""Smallest ratio of largest to smallest value for a logarithmic axis."""
_DOUBLINGS: Final = 4
"""Smallest ratio for a logarithmic x axis, on which 1, 2 and 4 are equally spaced."""
_NINES: Final = 5
_PERCENTS: Final = ((0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %"), (1.0, "all"))

_STYLE: Final = (
    PALETTE
    + """
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: var(--ink); }
.card { fill: var(--card); stroke: var(--edge); }
.title { font-size: 15px; font-weight: 600; }
.dim { fill: var(--dim); }
.small { font-size: 12px; }
.strong { font-weight: 600; }
.right { text-anchor: end; }
.middle { text-anchor: middle; }
.fill { fill: var(--c); }
.grid { stroke: var(--grid); fill: none; }
.axis { stroke: var(--dim); fill: none; }
.range { stroke: var(--ink); stroke-width: 1.5; fill: none; opacity: 0.55; }
.bound { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 5 4; fill: none; }
.line { stroke: var(--c); stroke-width: 2; stroke-linejoin: round; fill: none; }
.dashed { stroke: var(--c); stroke-width: 2; stroke-dasharray: 2 4; stroke-linecap: round; fill: none; }
.band { fill: var(--c); opacity: 0.14; }
"""
)
COLOUR: Final = {"ours": 0, "rival": 1, "limit": COLOURS - 1}
DISTINCT: Final = COLOURS - 1
"""Number of colours other than grey."""


class Bar(NamedTuple):
    """A bar with its range, followed by `ratio` and `text`. Without a value only the text is drawn."""

    label: str
    colour: int
    value: float | None
    low: float
    high: float
    ratio: str
    text: str


class Line(NamedTuple):
    """A limit, drawn as a line across the bars."""

    label: str
    value: float


class Curve(NamedTuple):
    """Points in order, each with its range: (x, low, y, high)."""

    label: str
    colour: int
    points: Sequence[tuple[float, float, float, float]]
    dashed: bool = False


def bars(title: str, told: str, shown: Sequence[Bar], limits: Sequence[Line] = (), by_powers: bool = False) -> str:
    """Draw bars from zero, top to bottom, and limits as lines across; with `by_powers`, logarithmic bars from one.

    Limits far above all bars are cut off with an arrow, so that the bars remain distinguishable.
    """
    left = _EDGE + min(_LABELS, max(len(bar.label) for bar in shown) * _LETTER) + 12
    right = _WIDTH - _FIGURES
    reach = _FAR * max((bar.value for bar in shown if bar.value and bar.colour != COLOUR["limit"]), default=0.0)
    values = [bar.value for bar in shown if bar.value] + [limit.value for limit in limits]
    most = _ROOM * max((value for value in values if value <= reach or not reach), default=1.0)
    x = Axis(1, max(most, 2), right - left, scale=math.log2) if by_powers else Axis(0, most, right - left)
    near = [limit for limit in limits if limit.value <= most]
    far = [limit.label for limit in limits if limit.value > most]
    top = _HEAD + 18 * (len(near) + bool(far))
    bottom = top + _BAR * len(shown)
    parts = []
    for place, limit in enumerate(near):
        at = left + x(limit.value)
        parts.append(path("bound", f"M{at:.1f} {_HEAD + 18 * place - 2}V{bottom}"))
        parts.append(caption(at - 6, _HEAD + 18 * place + 8, limit.label, "dim small right"))
    if far:
        parts.append(caption(right, _HEAD + 18 * len(near) + 8, f"{', '.join(far)} →", "dim small right"))
    for place, bar in enumerate(shown):
        at = top + _BAR * place
        parts.append(caption(left - 12, at + 18, _fit(bar.label), "right"))
        if bar.value is None:
            parts.append(caption(left + 4, at + 18, bar.text, "dim"))
            continue
        width = max(1.0, x(min(bar.value, most)))
        end = f"l8 {_BAR / 2 - 5}l-8 {_BAR / 2 - 5}" if bar.value > most else f"v{_BAR - 10}"
        parts.append(path("fill", f"M{left:.1f} {at + 5}h{width:.1f}{end}H{left:.1f}z", bar.colour))
        if bar.low < min(bar.high, most):
            begin, stop = (left + x(min(value, most)) for value in (bar.low, bar.high))
            parts.append(path("range", f"M{begin:.1f} {at + _BAR / 2}H{stop:.1f}"))
        kind = "dim" if bar.colour == COLOUR["ours"] else "strong"
        parts.append(caption(right + 78, at + 18, bar.ratio, f"{kind} right"))
        parts.append(caption(_WIDTH - _EDGE, at + 18, bar.text, "dim right"))
    parts.append(path("axis", f"M{left:.1f} {top}V{bottom}"))
    return picture(title, told, parts, bottom + _EDGE - 6)


def curves(title: str, told: str, x_label: str, shown: Sequence[Curve]) -> str:
    """Draw curves; an axis is logarithmic if its values span powers."""
    xs = sorted({point[0] for curve in shown for point in curve.points})
    highs = [point[3] for curve in shown for point in curve.points]
    lows = [point[1] for curve in shown for point in curve.points]
    by_powers = xs[0] > 0 and xs[-1] / xs[0] >= _DOUBLINGS
    x = Axis(xs[0], xs[-1], _WIDTH - _LEFT - 2 * _EDGE, scale=math.log2 if by_powers else float)
    low, high = min(lows), max(highs)
    if low > 0 and high / low > _MANY:
        y_ticks = list(_powers(low, high))
        y = Axis(y_ticks[0][0], y_ticks[-1][0], _PLOT, upward=True, scale=math.log10)
    else:
        y_ticks = list(rate_ticks(high))
        y = Axis(0, y_ticks[-1][0], _PLOT, upward=True)
    x_ticks = [(at, short(at)) for at in xs]
    return _plot(title, told, x_label, (x, x_ticks), (y, y_ticks), shown)


def percentiles(title: str, told: str, shown: Sequence[Curve]) -> str:
    """Draw percentile curves: x is the share of the messages, y is ns on a logarithmic axis."""
    values = [max(1.0, point[2]) for curve in shown for point in curve.points]
    y_ticks = list(lag_ticks(min(values), max(values)))
    y = Axis(y_ticks[0][0], y_ticks[-1][0], _PLOT, upward=True, scale=math.log10)
    first = min(point[0] for curve in shown for point in curve.points)
    x = Axis(min(first, 0.5), 1, _WIDTH - _LEFT - 2 * _EDGE, scale=_nines)
    return _plot(title, told, "fraction of messages with latency ≤ y", (x, _PERCENTS), (y, y_ticks), shown)


def _nines(share: float) -> float:
    return _NINES if share >= 1 else min(_NINES, -math.log10(1 - share))


def _powers(low: float, high: float) -> Iterable[Tick]:
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        yield 10.0**power, short(10.0**power)


def _plot(
    title: str,
    told: str,
    x_label: str,
    across: tuple[Axis, Iterable[Tick]],
    upward: tuple[Axis, Iterable[Tick]],
    shown: Sequence[Curve],
) -> str:
    (x, x_ticks), (y, y_ticks) = across, upward
    legend, top = _legend(shown)
    bottom, left = top + _PLOT, _LEFT + _EDGE / 2
    right = _WIDTH - _EDGE - _EDGE / 2

    def place(curve: Curve, column: int) -> list[tuple[float, float]]:
        return [(left + x(point[0]), top + y(point[column])) for point in curve.points]

    parts = list(legend)
    for value, text in y_ticks:
        parts.append(path("grid", f"M{left} {top + y(value):.1f}H{right}"))
        parts.append(caption(left - 10, top + y(value) + 4, text, "dim small right"))
    used = -100.0
    for value, text in x_ticks:
        at = left + x(value)
        parts.append(path("axis", f"M{at:.1f} {bottom}v5"))
        if at - used > len(text) * _LETTER + 8:
            parts.append(caption(at, bottom + 19, text, "dim small middle"))
            used = at
    parts.append(path("axis", f"M{left} {bottom}H{right}"))
    parts.append(caption((left + right) / 2, bottom + 38, x_label, "dim small middle"))
    for curve in shown:
        outline = [*place(curve, 1), *reversed(place(curve, 3))]
        parts.append(path("band", line(outline) + "Z", curve.colour))
    for curve in shown:
        parts.append(path("dashed" if curve.dashed else "line", line(place(curve, 2)), curve.colour))
        for at, height in place(curve, 2):
            parts.append(
                f'<circle class="fill" style="--c:var(--c{curve.colour})" cx="{at:.1f}" cy="{height:.1f}" r="3"/>'
            )
    return picture(title, told, parts, bottom + 38 + _EDGE)


def _legend(shown: Sequence[Curve]) -> tuple[list[str], float]:
    """Return the legend's marks and the y offset below it."""
    parts, at, top = [], float(_EDGE), _HEAD + 4
    for curve in shown:
        width = 34 + len(curve.label) * _LETTER + 14
        if at + width > _WIDTH - _EDGE and at > _EDGE:
            at, top = float(_EDGE), top + 20
        kind = "dashed" if curve.dashed else "line"
        parts.append(path(kind, f"M{at} {top}h20", curve.colour))
        parts.append(caption(at + 27, top + 4, curve.label, "small"))
        at += width
    return parts, top + 24.0


def colours(kinds: Iterable[str]) -> list[int]:
    """Return a colour for each: grey for limits, different ones for the others."""
    free = cycle(range(DISTINCT))
    return [COLOUR["limit"] if kind == "limit" else next(free) for kind in kinds]


def _fit(text: str) -> str:
    most = int(_LABELS / _LETTER)
    return text if len(text) <= most else text[: most - 1] + "…"


def picture(title: str, told: str, parts: Iterable[str], height: float) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1:.0f}" rx="10"/>',
            caption(_EDGE, 30, title, "title"),
            caption(_EDGE, 50, told, "dim small"),
            *parts,
            "</svg>",
            "",
        ]
    )
