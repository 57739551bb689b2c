"""Building blocks of the page: a card with a title, and times."""

from __future__ import annotations

from html import escape
from typing import Final

from blackbox.analysis.report import charts
from blackbox.analysis.report.axis import time_ticks
from blackbox.analysis.report.day_report import DayReport
from blackbox.timestamps import SECOND_NS, clock_text

_UNITS: Final = (
    ("hour", 3_600 * SECOND_NS),
    ("minute", 60 * SECOND_NS),
    ("second", SECOND_NS),
    ("millisecond", 10**6),
    ("microsecond", 1_000),
    ("nanosecond", 1),
)


def card(title: str, told: str, *parts: str) -> str:
    """Return a card. All is HTML; `told` is next to the title."""
    return f'<section class="card"><div class="head"><h2>{title}</h2>{told}</div>{"".join(parts)}</section>'


def dim(text: str) -> str:
    """Return dimmed text."""
    return f'<span class="dim">{escape(text)}</span>'


def nothing(text: str) -> str:
    """Return a line that says why there is no chart."""
    return f'<p class="dim">{escape(text)}</p>'


def interval(ns: int) -> str:
    """`5 minutes`, `1 second`."""
    name, size = next(unit for unit in _UNITS if ns % unit[1] == 0)
    return f"{ns // size:,} {name}{'s' * (ns != size)}"


def times(report: DayReport) -> list[charts.Tick]:
    """Return the time ticks below a chart of the day."""
    return [(float(ns), text) for ns, text in time_ticks(report.mix.start_ns, report.mix.stop_ns, report.time_zone)]


def at(report: DayReport, ns: int, step_ns: int) -> str:
    """Return a time of day, as precise as intervals of `step_ns` need it."""
    digits = 0 if step_ns % SECOND_NS == 0 else 3 if step_ns % 10**6 == 0 else 9
    return clock_text(ns, report.time_zone, digits)
