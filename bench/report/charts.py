"""Bars of a run as self-contained SVG files, light or dark by the reader's preference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from blackbox.analysis.report.charts import Axis, path
from blackbox.analysis.report.picture import caption
from blackbox.analysis.report.style import COLOURS, PALETTE

_WIDTH: Final = 880
_EDGE: Final = 20
_HEAD: Final = 66
_BAR: Final = 26
_LABELS: Final = 320
_LETTER: Final = 7.1
_FIGURES: Final = 160
_ROOM: Final = 1.12

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
.fill { fill: var(--c); }
.axis { stroke: var(--dim); fill: none; }
"""
)
COLOUR: Final = {"ours": 0, "rival": 1, "limit": COLOURS - 1}


class Bar(NamedTuple):
    """A bar for a ratio of at least 1, followed by its text."""

    label: str
    colour: int
    value: float
    text: str


def bars(title: str, told: str, shown: Sequence[Bar]) -> str:
    """Draw logarithmic bars from one, top to bottom."""
    left = _EDGE + min(_LABELS, max(len(bar.label) for bar in shown) * _LETTER) + 12
    right, bottom = _WIDTH - _FIGURES, _HEAD + _BAR * len(shown)
    x = Axis(1, max(_ROOM * max(bar.value for bar in shown), 2), right - left, scale=math.log2)
    parts = []
    for place, bar in enumerate(shown):
        at = _HEAD + _BAR * place
        kind = "dim" if bar.colour == COLOUR["ours"] else "strong"
        parts += [
            caption(left - 12, at + 18, _fit(bar.label), "right"),
            path("fill", f"M{left:.1f} {at + 5}h{max(1.0, x(bar.value)):.1f}v{_BAR - 10}H{left:.1f}z", bar.colour),
            caption(right + 78, at + 18, bar.text, f"{kind} right"),
        ]
    height = bottom + _EDGE - 6
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1:.0f}" rx="10"/>',
        caption(_EDGE, 30, title, "title"),
        caption(_EDGE, 50, told, "dim small"),
        *parts,
        path("axis", f"M{left:.1f} {_HEAD}V{bottom}"),
        "</svg>",
        "",
    ])  # fmt: skip


def _fit(text: str) -> str:
    most = int(_LABELS / _LETTER)
    return text if len(text) <= most else text[: most - 1] + "…"
