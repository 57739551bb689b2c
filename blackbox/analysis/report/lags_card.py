"""The card of lags: percentiles on a scale that widens the rare ones."""

from __future__ import annotations

import math
from html import escape
from itertools import pairwise
from typing import Final

from blackbox.analysis.report import charts
from blackbox.analysis.report.axis import lag_ticks
from blackbox.analysis.report.cards import card, dim, nothing
from blackbox.analysis.report.day_report import DayReport, Lag
from blackbox.numbers import count, duration

_LEAST_NS: Final = 1
_NINES: Final = 6
"""End of the percentile axis, at which the largest lag is drawn."""
_PERCENT_TICKS: Final = ((0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (1.0, "all"))
_PERCENT_SHOWN: Final = (0.5, 0.9, 0.99, 0.999, 1.0)


def _nines(p: float) -> float:
    """Return the number of nines of a percentile: 0.99 has two."""
    return _NINES if p >= 1 else min(_NINES, -math.log10(1 - p))


def lag_text(lag: Lag, p: float) -> str:
    """Return the lag of percentile `p` as text."""
    return duration(next(ns for at, ns in lag.percentiles if at >= p))


def lags(report: DayReport) -> str:
    """Return the card of lags."""
    if not report.lags:
        return card("How late", "", nothing("No message has the necessary times."))
    points = [max(_LEAST_NS, ns) for lag in report.lags for _, ns in lag.percentiles]
    low, high = 10.0 ** math.floor(math.log10(min(points))), 10.0 ** math.ceil(math.log10(max(points) + 1))
    x, y = charts.across(0, 1, _nines), charts.upward(low, high, math.log10)
    marks = []
    for number, lag in enumerate(report.lags):
        places = [(x(p), y(max(_LEAST_NS, ns))) for p, ns in lag.percentiles]
        marks.append(charts.path("line", charts.line(places), number))
    lag = report.lags[0]
    for (before, _), (p, _) in pairwise(lag.percentiles):
        texts = [f"{each.name}: {lag_text(each, p)}" for each in report.lags]
        marks.append(charts.hover(x, before, p, "\n".join([f"{100 * p:.7g} % took at most", *texts])))
    head = "".join(f"<th>{'largest' if p == 1 else f'{100 * p:g} %'}</th>" for p in _PERCENT_SHOWN)
    rows = "".join(
        f'<tr><td><i class="key" style="--c:var(--c{number})"></i>{escape(each.name)}</td>'
        + "".join(f"<td>{lag_text(each, p)}</td>" for p in _PERCENT_SHOWN)
        + "</tr>"
        for number, each in enumerate(report.lags)
    )
    negative = sum(each.negative for each in report.lags)
    note = f"; {count(negative)} arrived before they were sent: two clocks differ" if negative else ""
    return card(
        "How late",
        dim(f"fraction of messages with at most this lag{note}"),
        charts.chart("Percentiles of the lag", x, y, _PERCENT_TICKS, lag_ticks(low, high), marks, 230),
        f'<div class="scroll"><table class="words"><tr><th></th>{head}</tr>{rows}</table></div>',
    )
