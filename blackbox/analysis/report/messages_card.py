"""The cards of messages over the day: their rate, and their types."""

from __future__ import annotations

from html import escape

from blackbox.analysis.report import charts
from blackbox.analysis.report.axis import rate_ticks
from blackbox.analysis.report.cards import at, card, dim, interval, nothing, times
from blackbox.analysis.report.day_report import DayReport, Mix
from blackbox.analysis.report.style import COLOURS
from blackbox.numbers import count, scaled
from blackbox.timestamps import SECOND_NS


def _edges(mix: Mix) -> list[float]:
    return [float(mix.start_ns + mix.step_ns * place) for place in range(len(mix.counts[0]) + 1)]


def rate(report: DayReport) -> str:
    """Return the card of the rate."""
    mix = report.mix
    if not mix.counts:
        return card("Messages over the day", "", nothing("No message has a time."))
    rates = [total * SECOND_NS / mix.step_ns for total in mix.totals]
    ticks = list(rate_ticks(max(rates)))
    x, y = charts.across(mix.start_ns, mix.stop_ns), charts.upward(0, ticks[-1][0])
    edges = _edges(mix)
    tops = [y(rate) for rate in rates]
    flat = [y(0)] * len(rates)
    over = [(x(edge), top) for place, top in enumerate(tops) for edge in edges[place : place + 2]]
    marks = [charts.path("area", charts.steps(x, edges, tops, flat)), charts.path("line", charts.line(over))]
    for place, total in enumerate(mix.totals):
        text = f"{at(report, int(edges[place]), mix.step_ns)}\n{scaled(rates[place])}/s, {count(total)} messages"
        marks.append(charts.hover(x, edges[place], edges[place + 1], text))
    told = dim(f"a second, in intervals of {interval(mix.step_ns)}; {report.clock}, {report.time_zone}")
    return card(
        "Messages over the day", told, charts.chart("Messages a second", x, y, times(report), ticks, marks, 190)
    )


def mix(report: DayReport) -> str:
    """Return the card of the types; "" without messages."""
    mix = report.mix
    if not mix.counts:
        return ""
    kinds, counts = _few(mix)
    totals = mix.totals
    everything = sum(totals) or 1
    ticks = list(rate_ticks(max(totals)))
    x, y = charts.across(mix.start_ns, mix.stop_ns), charts.upward(0, ticks[-1][0])
    edges = _edges(mix)
    marks, below = [], [0] * len(totals)
    for place, column in enumerate(counts):
        above = [under + own for under, own in zip(below, column, strict=True)]
        outline = charts.steps(x, edges, [y(value) for value in above], [y(value) for value in below])
        marks.append(charts.path("fill", outline, _colour(place, len(kinds))))
        below = above
    for place, total in enumerate(totals):
        shares = [(column[place], name) for name, column in zip(kinds, counts, strict=True) if column[place]]
        lines = [f"{name}: {count(own)}" for own, name in sorted(shares, reverse=True)]
        head = f"{at(report, int(edges[place]), mix.step_ns)}, {count(total)} messages"
        marks.append(charts.hover(x, edges[place], edges[place + 1], "\n".join([head, *lines])))
    legend = "".join(
        f'<li style="--c:var(--c{_colour(place, len(kinds))})"><i class="key"></i>{escape(name)} '
        f'<span class="dim">{sum(column) / everything:.1%}</span></li>'
        for place, (name, column) in enumerate(zip(kinds, counts, strict=True))
    )
    return card(
        "Message types",
        dim(f"messages in each {interval(mix.step_ns).removeprefix('1 ')}, by type"),
        f'<ul class="legend">{legend}</ul>',
        charts.chart("Messages by type", x, y, times(report), ticks, marks, 220),
    )


def _few(mix: Mix) -> tuple[list[str], list[tuple[int, ...]]]:
    """Return the most frequent types; those beyond the number of colours are combined."""
    names = [kind or "no type" for kind in mix.kinds]
    if len(names) <= COLOURS:
        return names, list(mix.counts)
    most = COLOURS - 1
    rest = tuple(sum(column) for column in zip(*mix.counts[most:], strict=True))
    return [*names[:most], f"{len(names) - most} others"], [*mix.counts[:most], rest]


def _colour(place: int, kinds: int) -> int:
    return COLOURS - 1 if place == COLOURS - 1 and kinds == COLOURS else place
