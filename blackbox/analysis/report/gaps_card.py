"""The card of gaps and damage."""

from __future__ import annotations

from html import escape
from typing import Final

from blackbox.analysis.report import charts
from blackbox.analysis.report.axis import time_ticks
from blackbox.analysis.report.cards import card, dim, nothing
from blackbox.analysis.report.day_report import DayReport
from blackbox.numbers import count, counted
from blackbox.timestamps import clock_text

_GAPS_SHOWN: Final = 12


def gaps(report: DayReport) -> str:
    """The card."""
    parts = []
    if report.gaps:
        first, last = report.first_ts_out, max(report.last_ts_out, report.first_ts_out + 1)
        x, y = charts.across(first, last), charts.upward(0, 1)
        marks = [
            f'<path class="mark" d="M{x(gap.ts_out):.2f} 0V100"><title>'
            f"{escape(_gap_text(report, gap.ts_out))}\n{count(gap.count)} missing</title></path>"
            for gap in report.gaps
        ]
        ticks = [(float(ns), text) for ns, text in time_ticks(first, last, report.time_zone)]
        parts.append(charts.chart("When messages went missing", x, y, ticks, (), marks, 44))
        largest = sorted(report.gaps, key=lambda gap: (-gap.count, gap.ts_out))
        rows = "".join(
            f"<tr><td>{_gap_text(report, gap.ts_out)}</td><td>{gap.slice_id}</td>"
            f"<td>{count(gap.first)}</td><td>{count(gap.count)}</td></tr>"
            for gap in largest[:_GAPS_SHOWN]
        )
        head = "".join(f"<th>{name}</th>" for name in ("sent", "slice", "first", "missing"))
        parts.append(f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>')
        if len(largest) > _GAPS_SHOWN:
            parts.append(f'<p class="dim more">and {count(len(largest) - _GAPS_SHOWN)} more</p>')
        total = sum(gap.count for gap in report.gaps)
        told = f"{counted(total, 'message')}, in {counted(len(report.gaps), 'gap')}"
    else:
        told = ""
        parts.append('<p class="price up">Nothing is missing</p>')
        parts.append(nothing("The sequence numbers of every slice follow each other."))
    if report.damage:
        items = "".join(f"<li>{escape(text)}</li>" for text in report.damage[:_GAPS_SHOWN])
        parts.append(
            f'<p class="bad more">{counted(len(report.damage), "damaged part")}</p><ul class="notes">{items}</ul>'
        )
    return card("Gaps", dim(told) if told else "", *parts)


def _gap_text(report: DayReport, ns: int) -> str:
    return clock_text(ns, report.time_zone, 3)
