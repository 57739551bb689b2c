"""What the demo prints at its end."""

from __future__ import annotations

from rich.console import RenderableType

from blackbox.cli.demo.passes import CLASSIC_MESSAGES
from blackbox.cli.demo.run import DemoResult
from blackbox.cli.terminal import (
    LAG,
    NOTHING,
    bad_if,
    columns_table,
    count,
    duration,
    long_time,
    megabytes,
    rate,
    stdout,
    titled,
    values_table,
)

_TOP_SYMBOLS = 10


def print_tables(result: DemoResult) -> None:
    """Print what callbacks found, and how each pass went."""
    stdout.print(_symbols(result))
    stdout.print(_mix(result))
    stdout.print(_delivery(result))
    stdout.print(_passes(result))


def print_outcome(result: DemoResult, is_kept: bool) -> None:
    """Print where the recording is, and whether results are equal."""
    size = f"{result.stored_bytes / 1e6:,.0f} MB"
    where = ", ".join(map(str, result.days))
    stdout.print(f"recording: {size}, {f'kept in {where}' if is_kept else 'removed again'}", highlight=False)
    if not result.differences:
        symbols = len(result.live.findings.symbols)
        stdout.print(
            f"results are equal: VWAP and last price of {count(symbols)} symbol{'s' * (symbols != 1)} and message "
            "mix, live, replayed on the wire, and replayed in process",
            style="bold green",
            highlight=False,
        )


def _delivery(result: DemoResult) -> RenderableType:
    live, received, prepared = result.live.told, result.live.statistics, result.prepared
    table = values_table(
        [
            ("schema", result.feed.schema),
            ("published", count(prepared.messages)),
            ("delivered", count(received.matched), "each message counted once"),
            ("to callbacks", count(received.delivered), "the same, counted once for each callback that got it"),
            ("topics", count(received.topics)),
            ("market time", long_time(prepared.market_seconds)),
            ("time", duration(live.seconds * 1e9)),
            ("payload", megabytes(prepared.payload_bytes, live.seconds)),
            ("lag p50", duration(received.lag_p50_ns), LAG),
            ("lag p99", duration(received.lag_p99_ns), "at full speed it is the time in queues"),
        ]
    )
    return titled(f"{result.spec} live, {len(result.feed.slices)} slices over loopback TCP", table)


def _passes(result: DemoResult) -> RenderableType:
    table = columns_table(
        ("", "messages", "lost", "duplicated", "rate", "x market", f"{CLASSIC_MESSAGES / 1e9:.2f} billion")
    )
    for told in result.passes:
        table.add_row(
            told.name,
            count(told.messages),
            bad_if(told.lost > 0, count(told.lost)),
            count(told.duplicated),
            f"[bold green]{rate(told.messages, told.seconds)}[/]",
            NOTHING if told.times_faster is None else _times(told.times_faster),
            NOTHING if told.classic_day_s is None else long_time(told.classic_day_s),
        )
    table.caption = (
        "x market: market time of the session over the time it took\n"
        f"last column: how long the classic day of 8 hours and {count(CLASSIC_MESSAGES)} messages would take so"
    )
    return titled("each pass", table)


def _times(factor: float) -> str:
    return f"{factor:,.0f}" if factor >= 100 else f"{factor:.1f}"


def _symbols(result: DemoResult) -> RenderableType:
    table = columns_table(("symbol", "shares", "trades", "VWAP", "last"))
    found = result.live.findings
    for row in found.symbols[:_TOP_SYMBOLS]:
        last = NOTHING if row.last is None else f"{row.last:,.2f}"
        table.add_row(row.symbol, count(row.shares), count(row.trades), f"{row.vwap:,.4f}", last)
    if found.unpriced:
        table.caption = f"{count(found.unpriced)} executions of unknown orders left out"
    return titled("largest volumes", table)


def _mix(result: DemoResult) -> RenderableType:
    found = result.live.findings
    names = [symbol.decode(errors="backslashreplace") for symbol in found.watched]
    table = columns_table(("type", "all", *names))
    for kind, number in sorted(found.mix.items(), key=lambda item: -item[1]):
        table.add_row(kind, count(number), *(count(mix[ord(kind)]) for mix in found.watched.values()))
    return titled("message mix", table)
