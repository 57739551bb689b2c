"""Bars of a run as self-contained SVG files, light or dark by the reader's preference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from blackbox.analysis.report.charts import Axis, path
from blackbox.analysis.report.picture import EDGE, HEAD, LETTER, WIDTH, caption, picture
from blackbox.analysis.report.style import COLOURS

_BAR: Final = 26
_LABELS: Final = 320
_FIGURES: Final = 160
_ROOM: Final = 1.12
COLOUR: Final = {"ours": 0, "rival": 1, "limit": COLOURS - 1}


class Bar(NamedTuple):
    """A bar for a ratio of at least 1, followed by its text."""

    label: str
    colour: int
    value: float
    text: str


def bars(title: str, told: str, shown: Sequence[Bar]) -> str:
    """Draw logarithmic bars from one, top to bottom."""
    left = EDGE + min(_LABELS, max(len(bar.label) for bar in shown) * LETTER) + 12
    right, bottom = WIDTH - _FIGURES, HEAD + _BAR * len(shown)
    x = Axis(1, max(_ROOM * max(bar.value for bar in shown), 2), right - left, scale=math.log2)
    parts = []
    for place, bar in enumerate(shown):
        at = HEAD + _BAR * place
        kind = "dim" if bar.colour == COLOUR["ours"] else "strong"
        parts += [
            caption(left - 12, at + 18, _fit(bar.label), "right"),
            path("fill", f"M{left:.1f} {at + 5}h{max(1.0, x(bar.value)):.1f}v{_BAR - 10}H{left:.1f}z", bar.colour),
            caption(right + 78, at + 18, bar.text, f"{kind} right"),
        ]
    height = bottom + EDGE - 6
    parts.append(path("axis", f"M{left:.1f} {HEAD}V{bottom}"))
    return picture(title, told, parts, height)


def _fit(text: str) -> str:
    most = int(_LABELS / LETTER)
    return text if len(text) <= most else text[: most - 1] + "…"
