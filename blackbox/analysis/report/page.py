"""The page of a report: self-contained HTML."""

from __future__ import annotations

import datetime
from html import escape

from blackbox.analysis.report.cards import interval
from blackbox.analysis.report.day_report import DayReport
from blackbox.analysis.report.gaps_card import gaps
from blackbox.analysis.report.lags_card import lag_text, lags
from blackbox.analysis.report.messages_card import mix, rate
from blackbox.analysis.report.prices_card import instrument
from blackbox.analysis.report.style import STYLE
from blackbox.numbers import count, counted, scaled
from blackbox.timestamps import SECOND_NS, clock_text, date_of


def page(report: DayReport) -> str:
    """Return the whole page."""
    title = f"{report.feed}, {report.date}"
    parts = [
        _header(report),
        _tiles(report),
        *(instrument(report, each) for each in report.instruments),
        rate(report),
        mix(report),
        f'<div class="pair">{lags(report)}{gaps(report)}</div>',
        _footer(report),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def _header(report: DayReport) -> str:
    when = datetime.date.fromisoformat(report.date)
    told = f"{report.schema} · {report.time_zone} · {report.recording}"
    return (
        f"<header><h1>{escape(report.feed)} <small>{when.day} {when:%B %Y}</small></h1>"
        f'<p class="dim path">{escape(told)}</p></header>'
    )


def _tiles(report: DayReport) -> str:
    mix = report.mix
    totals = mix.totals
    symbols = "symbol" if report.symbols == 1 else "symbols"
    tiles = [("", count(report.messages), "messages"), ("", count(report.symbols), symbols)]
    if totals:
        date = date_of((mix.start_ns + mix.stop_ns) // 2, report.time_zone)
        first, last = (clock_text(ns, report.time_zone) for ns in (mix.start_ns, mix.stop_ns))
        told = report.clock
        if str(date) != report.date:
            told += ", " + f"{date.day} {date:%b %Y}".replace(" ", "\N{NO-BREAK SPACE}")
        tiles.append(("", f"{first[:5]}–{last[:5]}" if first[:5] != last[:5] else first, told))
        tiles.append(("", f"{scaled(max(totals) * SECOND_NS / mix.step_ns)}/s", f"busiest {interval(mix.step_ns)}"))
    if report.lags:
        tiles.append(("", lag_text(report.lags[0], 0.99), f"{report.lags[0].name}, p99"))
    missing = sum(gap.count for gap in report.gaps)
    tiles.append(("bad" if missing else "good", count(missing), "missing"))
    if report.damage:
        tiles.append(("bad", count(len(report.damage)), "damaged"))
    made = "".join(f'<div class="tile {kind}"><b>{escape(b)}</b><span>{escape(s)}</span></div>' for kind, b, s in tiles)
    return f'<section class="tiles">{made}</section>'


def _footer(report: DayReport) -> str:
    sentences = [report.prices] if report.prices else []
    if report.left_out:
        reasons = ", ".join(f"{count(number)} {reason}" for number, reason in report.left_out)
        sentences.append(f"Trade messages of all symbols and times in no bar: {reasons}.")
    if report.mix.outside:
        sentences.append(
            f"{counted(report.mix.outside, 'message')} without a time, or far from the others, not in any chart."
        )
    sentences += [
        f"Times of day are in {report.time_zone}; gaps are at the time of sending.",
        f"Point at a chart to see values. Made by blackbox {report.version}.",
    ]
    return f"<footer><p>{escape(' '.join(sentences))}</p></footer>"
