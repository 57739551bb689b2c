"""Standalone pictures: an SVG file with a title, axes and labels, light or dark as the viewer's system.

Its marks are the outlines of `blackbox.analysis.report.charts`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Final

from blackbox.analysis.report.charts import Axis, Tick, path
from blackbox.analysis.report.style import LIGHT, PALETTE

WIDTH: Final = 880
EDGE: Final = 20
HEAD: Final = 66
"""Top of the content below title and subtitle."""
LETTER: Final = 7.1
"""Mean width of a letter."""

_STYLE: Final = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: var(--ink); }
.card { fill: var(--card); stroke: var(--edge); }
.title { font-size: 15px; font-weight: 600; }
.dim { fill: var(--dim); }
.bad { fill: var(--bad); }
.small { font-size: 12px; }
.strong { font-weight: 600; }
.right { text-anchor: end; }
.middle { text-anchor: middle; }
.fill { fill: var(--c); }
.area { fill: var(--soft); }
.grid { stroke: var(--grid); fill: none; }
.axis { stroke: var(--dim); fill: none; }
.range { stroke: var(--ink); stroke-width: 1.5; fill: none; opacity: 0.55; }
.bound { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 5 4; fill: none; }
.line { stroke: var(--accent); stroke: var(--c, var(--accent)); stroke-width: 2; stroke-linejoin: round; fill: none; }
.thin { stroke-width: 1; }
.dashed { stroke: var(--c); stroke-width: 2; stroke-dasharray: 2 4; stroke-linecap: round; fill: none; }
.band { fill: var(--c); opacity: 0.14; }
"""
# Viewers without CSS variables ignore such a declaration, and use the light colour before it.
_PORTABLE: Final = re.sub(r"([a-z]+): var\(--(\w{2,})\);", lambda m: f"{m[1]}: {LIGHT[m[2]]}; {m[0]}", _STYLE)


def caption(x: float, y: float, text: str, kind: str) -> str:
    """Return a text that begins at `x`; with the class `right` it ends there, with `middle` it is centred there."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def axes(x: Axis, y: Axis, x_ticks: Iterable[Tick], y_ticks: Iterable[Tick], x_label: str) -> list[str]:
    """Return grid, axes and labels. Labels of `x` that would touch the previous one are omitted."""
    parts = []
    for value, text in y_ticks:
        parts.append(path("grid", f"M{x.begin:.1f} {y(value):.1f}H{x.end:.1f}"))
        parts.append(caption(x.begin - 10, y(value) + 4, text, "dim small right"))
    used = -100.0
    for value, text in x_ticks:
        at = x(value)
        parts.append(path("axis", f"M{at:.1f} {y.end:.1f}v5"))
        if at - used > len(text) * LETTER + 8:
            parts.append(caption(at, y.end + 19, text, "dim small middle"))
            used = at
    parts.append(path("axis", f"M{x.begin:.1f} {y.end:.1f}H{x.end:.1f}"))
    parts.append(caption((x.begin + x.end) / 2, y.end + 38, x_label, "dim small middle"))
    return parts


def picture(title: str, subtitle: str, parts: Iterable[str], height: float) -> str:
    """Return the file's text."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{PALETTE}{_PORTABLE}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="10"/>',
            caption(EDGE, 30, title, "title"),
            caption(EDGE, 50, subtitle, "dim small"),
            *parts,
            "</svg>",
            "",
        ]
    )
