"""A flame graph as a self-contained SVG file: box width is cost, and callers are below callees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Final

from bench.report.charts import DISTINCT, picture
from blackbox.analysis.report.picture import caption

_WIDTH: Final = 840
_LEFT: Final = 20
_TOP: Final = 66
_ROW: Final = 19
_LETTER: Final = 6.4
_LEAST: Final = 1.0
"""Minimum width of a box in pixels; narrower boxes are left out."""

Stacks = Mapping[tuple[str, ...], float]
"""Cost of each stack, outermost frame first."""


class _Box:
    """A frame and its callees."""

    def __init__(self) -> None:
        self.cost = 0.0
        self.calls: dict[str, _Box] = {}

    def add(self, stack: tuple[str, ...], cost: float) -> None:
        """Add a stack that starts at this frame."""
        self.cost += cost
        if stack:
            self.calls.setdefault(stack[0], _Box()).add(stack[1:], cost)

    def depth(self, scale: float) -> int:
        """Return the number of rows drawn above this one."""
        return max((1 + box.depth(scale) for box in self.calls.values() if box.cost * scale >= _LEAST), default=0)


def flames(title: str, told: str, stacks: Stacks, unit: str) -> str:
    """Return the graph. The first frame of a stack sets its colour; hovering over a box shows its text."""
    root = _Box()
    for stack, cost in stacks.items():
        root.add(stack, cost)
    scale = _WIDTH / (root.cost or 1.0)
    bottom = _TOP + _ROW * root.depth(scale)

    def drawn(name: str, box: _Box, left: float, colour: int, level: int) -> Iterator[str]:
        width = box.cost * scale
        if width < _LEAST:
            return
        top = bottom - _ROW * (level + 1)
        shade = 0.84 - 0.06 * (level % 5)
        yield (
            f'<rect class="box fill" style="--c:color-mix(in srgb, var(--c{colour}) {100 * shade:.0f}%, #223)" '
            f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{_ROW}">'
            f"<title>{escape(name)}: {box.cost:.1f} {unit}</title></rect>"
        )
        letters = int((width - 8) / _LETTER)
        if letters > 2:
            shown = name if len(name) <= letters else name[: letters - 1] + "…"
            yield caption(left + 4, top + 13, shown, "on")
        for called, inner in sorted(box.calls.items(), key=lambda item: -item[1].cost):
            yield from drawn(called, inner, left, colour, level + 1)
            left += inner.cost * scale

    parts = [
        "<style>.box { stroke: var(--card); } .box:hover { opacity: 0.8; } .on { fill: #fff; font-size: 11px; }</style>"
    ]
    left = float(_LEFT)
    for place, (name, box) in enumerate(sorted(root.calls.items(), key=lambda item: -item[1].cost)):
        parts += drawn(name, box, left, place % DISTINCT, 0)
        left += box.cost * scale
    return picture(title, told, parts, bottom + 14)
