"""What the demo prints at its end."""

from __future__ import annotations

from rich.console import RenderableType

from blackbox.cli.demo.run import DemoResult
from blackbox.cli.terminal import (
    LAG,
    NOTHING,
    bad_if,
    columns_table,
    count,
    duration,
    megabytes,
    rate,
    stdout,
    titled,
    values_table,
)

_TOP_SYMBOLS = 10


def print_report(result: DemoResult) -> None:
    """Print the three tables."""
    stdout.print(_delivery(result))
    stdout.print(_symbols(result))
    stdout.print(_mix(result))


def _delivery(result: DemoResult) -> RenderableType:
    received, prepared, seconds = result.received, result.prepared, result.callbacks.seconds()
    table = values_table(
        [
            ("schema", result.feed.schema),
            ("published", count(result.published.statistics.messages)),
            ("delivered", count(received.matched), "each message counted once"),
            ("to callbacks", count(received.delivered), "the same, counted once for each callback that got it"),
            ("lost", bad_if(result.lost > 0, count(result.lost)), "published, but not delivered"),
            ("duplicated", count(received.duplicates), "came again: delivered once"),
            ("topics", count(received.topics)),
            ("time", duration(seconds * 1e9)),
            ("rate", f"[bold green]{rate(received.matched, seconds)}[/]"),
            ("payload", megabytes(prepared.payload_bytes, seconds)),
            ("lag p50", duration(received.lag_p50_ns), LAG),
            ("lag p99", duration(received.lag_p99_ns), "at full speed it is the time in queues"),
        ]
    )
    return titled(f"{result.spec}, {len(result.feed.slices)} slices over loopback TCP", table)


def _symbols(result: DemoResult) -> RenderableType:
    table = columns_table(("symbol", "shares", "trades", "VWAP", "last"))
    for row in result.callbacks.symbols()[:_TOP_SYMBOLS]:
        last = NOTHING if row.last is None else f"{row.last:,.2f}"
        table.add_row(row.symbol, count(row.shares), count(row.trades), f"{row.vwap:,.4f}", last)
    if result.callbacks.unpriced():
        table.caption = f"{count(result.callbacks.unpriced())} executions of unknown orders left out"
    return titled("largest volumes", table)


def _mix(result: DemoResult) -> RenderableType:
    watched = result.callbacks.watched
    names = [symbol.decode(errors="backslashreplace") for symbol in watched]
    table = columns_table(("type", "all", *names))
    for kind, number in sorted(result.callbacks.mix().items(), key=lambda item: -item[1]):
        table.add_row(kind, count(number), *(count(mix[ord(kind)]) for mix in watched.values()))
    return titled("message mix", table)
