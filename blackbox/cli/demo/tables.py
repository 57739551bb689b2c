"""The tables and lines printed at the demo's end."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from blackbox.cli.demo.runs import CLASSIC_MESSAGES, DemoResult
from blackbox.cli.ui.terminal import LAG, bad_if, columns_table, stdout, titled, values_table
from blackbox.notebook import escaped
from blackbox.numbers import NOTHING, byte_rate, count, counted, duration, factor, long_time, rate

_TOP_SYMBOLS = 10
_WAYS = {"shm": "in shared memory", "tcp": "over loopback TCP"}


def print_tables(result: DemoResult) -> None:
    """Print the results of the callbacks, and the figures of each run."""
    stdout.print(_symbols(result))
    stdout.print(_mix(result))
    stdout.print(_delivery(result))
    stdout.print(_runs(result))


def print_outcome(result: DemoResult, is_kept: bool) -> None:
    """Print where the recording is, and if results are equal."""
    size = f"{result.stored_bytes / 1e6:,.0f} MB"
    where = ", ".join(map(str, result.days))
    stdout.print(f"recording: {size}, {f'kept in {where}' if is_kept else 'removed again'}", highlight=False)
    if not result.differences:
        symbols = len(result.live.results.symbols)
        stdout.print(
            f"results are equal: VWAP and last price of {counted(symbols, 'symbol')} and message "
            "mix, live both ways, replayed on the wire, and replayed in process",
            style="bold green",
            highlight=False,
        )


def _delivery(result: DemoResult) -> RenderableType:
    live, received, session = result.live.run, result.live.statistics, result.session
    table = values_table(
        [
            ("schema", result.feed.schema_name),
            ("published", count(session.messages)),
            ("delivered", count(received.delivery.matched), "each message counted once"),
            (
                "to callbacks",
                count(received.delivery.delivered),
                "the same, counted once for each callback that got it",
            ),
            ("topics", count(received.delivery.topics)),
            ("market time", long_time(session.market_seconds)),
            ("time", duration(live.seconds * 1e9)),
            ("payload", byte_rate(session.payload_bytes, live.seconds)),
            ("lag p50", duration(received.lag.p50_ns), LAG),
            ("lag p99", duration(received.lag.p99_ns), "at full speed it is the time in queues"),
        ]
    )
    way = received.received.transport
    return titled(f"{result.spec} live, {len(result.feed.slices)} slices, {_WAYS.get(way, way)}", table)


def _runs(result: DemoResult) -> RenderableType:
    table = columns_table(
        ("", "messages", "lost", "duplicated", "rate", "x market", f"{CLASSIC_MESSAGES / 1e9:.2f} billion")
    )
    for run in result.runs:
        table.add_row(
            run.name,
            count(run.messages),
            bad_if(run.lost > 0, count(run.lost)),
            count(run.duplicated),
            Text(rate(run.messages, run.seconds), style="bold green"),
            NOTHING if run.times_faster is None else factor(run.times_faster),
            NOTHING if run.classic_day_s is None else long_time(run.classic_day_s),
        )
    table.caption = (
        "x market: market time of the session over the time it took\n"
        f"last column: how long a day of 8 hours and {count(CLASSIC_MESSAGES)} messages would take at this rate"
    )
    return titled("each run", table)


def _symbols(result: DemoResult) -> RenderableType:
    table = columns_table(("symbol", "shares", "trades", "VWAP", "last"))
    found = result.live.results
    for row in found.symbols[:_TOP_SYMBOLS]:
        last = NOTHING if row.last is None else f"{row.last:,.2f}"
        table.add_row(escaped(row.symbol), count(row.shares), count(row.trades), f"{row.vwap:,.4f}", last)
    if found.unpriced:
        table.caption = f"{count(found.unpriced)} executions of unknown orders left out"
    return titled("largest volumes", table)


def _mix(result: DemoResult) -> RenderableType:
    found = result.live.results
    names = [escaped(symbol.decode(errors="backslashreplace")) for symbol in found.watched]
    table = columns_table(("type", "all", *names))
    for kind, number in sorted(found.mix.items(), key=lambda item: -item[1]):
        table.add_row(kind, count(number), *(count(mix[ord(kind)]) for mix in found.watched.values()))
    return titled("message mix", table)
