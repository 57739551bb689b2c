"""Charts of the page: an SVG that stretches to any width, with HTML labels next to it, which do not stretch.

Standalone pictures use the same parts: see `blackbox.analysis.report.picture`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Final

_WIDTH: Final = 1_000
_HEIGHT: Final = 100
_LONG_LABEL: Final = 5

Tick = tuple[float, str]
"""A number on an axis, and its label."""


class Axis:
    """Maps the numbers from `first` to `last` to the coordinates from `begin` to `begin + size`.

    `upward` axes run from the far end to `begin`, since y grows downwards. `scale` is applied to numbers first.
    """

    def __init__(
        self,
        first: float,
        last: float,
        size: float,
        upward: bool = False,
        scale: Callable[[float], float] = float,
        begin: float = 0.0,
    ) -> None:
        self._first, self._span = scale(first), scale(last) - scale(first) or 1.0
        self._upward, self._scale = upward, scale
        self.begin, self.end = begin, begin + size

    def __call__(self, value: float) -> float:
        """Return the coordinate of a number."""
        share = self.share(value)
        return self.begin + (self.end - self.begin) * (1 - share if self._upward else share)

    def share(self, value: float) -> float:
        """Return the position of a number as a fraction of the axis, from 0 to 1."""
        return (self._scale(value) - self._first) / self._span


def across(first: float, last: float, scale: Callable[[float], float] = float) -> Axis:
    """Return the x axis of a chart of the page."""
    return Axis(first, last, _WIDTH, scale=scale)


def upward(first: float, last: float, scale: Callable[[float], float] = float) -> Axis:
    """Return the y axis of a chart of the page."""
    return Axis(first, last, _HEIGHT, upward=True, scale=scale)


def chart(
    label: str,
    x: Axis,
    y: Axis,
    x_ticks: Iterable[Tick],
    y_ticks: Iterable[Tick],
    marks: Iterable[str],
    height: int,
) -> str:
    """Return a chart with grid, marks and labels. `height` is in CSS pixels; `label` is for screen readers."""
    xs, ys = _inside(x, x_ticks), _inside(y, y_ticks)
    grid = "".join(f'<path class="grid" d="M0 {y(value):.2f}H{_WIDTH}"/>' for value, _ in ys)
    sizes = "long" if any(len(text) > _LONG_LABEL for _, text in xs) else ""
    left = "".join(f'<span style="bottom:{100 * y.share(value):.2f}%">{escape(text)}</span>' for value, text in ys)
    below = "".join(f'<span style="--at:{100 * x.share(value):.2f}%">{escape(text)}</span>' for value, text in xs)
    return (
        f'<div class="chart"><div class="y">{left}</div>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" style="height:{height}px" role="img" '
        f'aria-label="{escape(label)}">{grid}{"".join(marks)}</svg><div class="x {sizes}">{below}</div></div>'
    )


def _inside(axis: Axis, ticks: Iterable[Tick]) -> list[Tick]:
    slack = 1e-9
    return [(value, text) for value, text in ticks if -slack <= axis.share(value) <= 1 + slack]


def hover(x: Axis, first: float, last: float, text: str) -> str:
    """Return an invisible strip from top to bottom with a tooltip."""
    left, right = x(first), x(last)
    return (
        f'<rect class="hover" x="{left:.2f}" y="0" width="{right - left:.2f}" height="{_HEIGHT}">'
        f"<title>{escape(text)}</title></rect>"
    )


def steps(x: Axis, edges: Sequence[float], tops: Sequence[float], bottoms: Sequence[float]) -> str:
    """Return the outline of adjacent columns, from bottoms to tops. `edges` has one more item."""
    over = "".join(f"V{top:.2f}H{x(edge):.2f}" for top, edge in zip(tops, edges[1:], strict=True))
    pairs = zip(reversed(bottoms), reversed(edges[:-1]), strict=True)
    under = "".join(f"V{bottom:.2f}H{x(edge):.2f}" for bottom, edge in pairs)
    return f"M{x(edges[0]):.2f} {bottoms[0]:.2f}{over}{under}Z"


def line(places: Iterable[tuple[float, float]]) -> str:
    """Return the outline of a line through these coordinates."""
    return "M" + "L".join(f"{left:.2f} {top:.2f}" for left, top in places)


def path(kind: str, outline: str, color: int | None = None) -> str:
    """Return a path with a class of the style sheet; `color` is one of `--c0` to `--c7`."""
    chosen = "" if color is None else f' style="--c:var(--c{color})"'
    return f'<path class="{kind}"{chosen} d="{outline}"/>'
