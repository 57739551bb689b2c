"""The cards of instruments: bars with volume, and the spread."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from blackbox.analysis.report import charts
from blackbox.analysis.report.axis import rate_ticks, span_ticks
from blackbox.analysis.report.cards import at, card, dim, interval, times
from blackbox.analysis.report.day_report import BASIS_POINTS, DayReport, Instrument
from blackbox.numbers import counted, scaled


def instrument(report: DayReport, each: Instrument) -> str:
    """Return the card of one instrument."""
    x = charts.across(report.mix.start_ns, report.mix.stop_ns)
    parts, told = [], ""
    if each.bars:
        first, last = each.bars[0].open, each.bars[-1].close
        kind = "up" if last >= first else "down"
        change = f" {'+' if last >= first else '−'}{abs(last / first - 1):.2%}" if first > 0 else ""
        volume, trades = sum(bar.volume for bar in each.bars), sum(bar.trades for bar in each.bars)
        told = f'<span class="price">{last:,.{each.decimals}f}</span><span class="price {kind}">{change}</span>' + dim(
            f"{counted(trades, 'trade')}, {scaled(volume)} volume; bars of {interval(each.step_ns)}"
        )
        parts += [_candles(report, each, x), _volumes(report, each, x)]
    if each.spreads:
        unit = escape(each.spread_unit)
        parts += [f'<p class="dim">Spread, {unit}: mean, and from a tenth to nine tenths of the quotes</p>']
        parts += [_spread(report, each, x)]
    return card(escape(each.symbol), told, *parts)


def _candles(report: DayReport, each: Instrument, x: charts.Axis) -> str:
    low, high = min(bar.low for bar in each.bars), max(bar.high for bar in each.bars)
    room = 0.06 * (high - low) or 0.01 * abs(high) or 1.0
    y = charts.upward(low - room, high + room)
    marks = []
    for bar in each.bars:
        kind = "rise" if bar.close >= bar.open else "fall"
        left, right = x(bar.start_ns), x(bar.start_ns + each.step_ns)
        top, bottom = y(max(bar.open, bar.close)), y(min(bar.open, bar.close))
        body = max(bottom - top, 0.5)  # keep a bar with equal open and close visible
        width = 0.7 * (right - left)
        marks.append(
            f'<path class="wick {kind}" d="M{(left + right) / 2:.2f} {y(bar.high):.2f}V{y(bar.low):.2f}"/>'
            f'<rect class="{kind}" x="{left + (right - left - width) / 2:.2f}" y="{top:.2f}" '
            f'width="{width:.2f}" height="{body:.2f}"/>'
        )
    marks += [
        charts.hover(x, bar.start_ns, bar.start_ns + each.step_ns, _bar_text(report, each, n))
        for n, bar in enumerate(each.bars)
    ]
    ticks = span_ticks(low - room, high + room, each.decimals)
    return charts.chart(f"Prices of {each.symbol}", x, y, (), ticks, marks, 260)


def _bar_text(report: DayReport, each: Instrument, number: int) -> str:
    bar = each.bars[number]
    prices = "  ".join(
        f"{name} {value:,.{each.decimals}f}"
        for name, value in zip(("open", "high", "low", "close"), (bar.open, bar.high, bar.low, bar.close), strict=True)
    )
    begin, end = (at(report, ns, each.step_ns) for ns in (bar.start_ns, bar.start_ns + each.step_ns))
    return f"{begin} – {end}\n{prices}\nvolume {bar.volume:,.15g}, {counted(bar.trades, 'trade')}"


def _volumes(report: DayReport, each: Instrument, x: charts.Axis) -> str:
    ticks = list(rate_ticks(max(bar.volume for bar in each.bars)))
    y = charts.upward(0, ticks[-1][0])
    marks = []
    for number, bar in enumerate(each.bars):
        left, right = x(bar.start_ns), x(bar.start_ns + each.step_ns)
        top = y(bar.volume)
        marks.append(
            f'<rect class="volume" x="{left + 0.15 * (right - left):.2f}" y="{top:.2f}" '
            f'width="{0.7 * (right - left):.2f}" height="{100 - top:.2f}"/>'
        )
        marks.append(charts.hover(x, bar.start_ns, bar.start_ns + each.step_ns, _bar_text(report, each, number)))
    return charts.chart(f"Volume of {each.symbol}", x, y, times(report), [ticks[0], ticks[-1]], marks, 64)


def _spread(report: DayReport, each: Instrument, x: charts.Axis) -> str:
    points, step = each.spreads, each.step_ns
    low, high = min(0.0, *(point.low for point in points)), max(point.high for point in points)
    decimals = 0 if each.spread_unit == BASIS_POINTS else each.decimals
    ticks = list(span_ticks(low, 1.05 * high if high > low else low + 1, decimals))
    y = charts.upward(low, 1.05 * high if high > low else low + 1)
    marks = []
    for run in _runs([point.start_ns for point in points], step):
        part = [points[place] for place in run]
        edges = [float(point.start_ns) for point in part] + [float(part[-1].start_ns + step)]
        tops, bottoms = [y(point.high) for point in part], [y(point.low) for point in part]
        marks.append(charts.path("area", charts.steps(x, edges, tops, bottoms)))
        means = [(x(point.start_ns + shift), y(point.mean)) for point in part for shift in (0, step)]
        marks.append(charts.path("line", charts.line(means)))
    for point in points:
        mean, least, most = (f"{value:.{max(2, decimals)}f}" for value in (point.mean, point.low, point.high))
        text = f"{at(report, point.start_ns, step)}\nmean {mean}, from {least} to {most}"
        marks.append(charts.hover(x, point.start_ns, point.start_ns + step, text))
    return charts.chart(f"Spread of {each.symbol}", x, y, times(report), ticks, marks, 110)


def _runs(starts: list[int], step: int) -> Iterator[list[int]]:
    """Yield the indices of consecutive intervals, run by run."""
    run: list[int] = []
    for place, start in enumerate(starts):
        if run and start != starts[place - 1] + step:
            yield run
            run = []
        run.append(place)
    if run:
        yield run
