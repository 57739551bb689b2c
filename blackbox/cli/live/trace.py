"""`blackbox trace`: where the time of messages goes, hop by hop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blackbox.cli.ui.feeds import ConfirmTimeout, load_feed
from blackbox.cli.ui.options import CountOption, JsonOption, PrefixOption, SymbolOption, prefixes_of, symbols_of
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import columns_table, print_json, say, stdout, titled
from blackbox.errors import ConfigError
from blackbox.numbers import count, duration

if TYPE_CHECKING:
    from blackbox.services.monitor.trace import HopTimes


def trace(
    feeds: Annotated[
        list[str],
        typer.Argument(metavar="FEED...", help="Feed file; then the feed files below its relays, one after the other."),
    ],
    prefix: PrefixOption = None,
    symbol: SymbolOption = None,
    every: Annotated[
        int, typer.Option("--every", metavar="N", min=1, help="Measure one block in about N messages.")
    ] = 1_000,
    enough: CountOption = 1_000,
    timeout: ConfirmTimeout = None,
    as_json: JsonOption = False,
) -> None:
    """Measure where the time of messages goes: from the venue to publish, send, receive and callback.

    Subscribes like any other subscriber, and takes the times that blocks carry. With the feed files below relays it
    subscribes there too, and compares the times at which the same block was received: the relay's part. Times at
    different hosts are those of their clocks: a negative one means that clocks differ.

    Ends after --count sampled blocks, or at Ctrl-C, and prints p50, p99 and the longest time of each hop.

    For example:

    blackbox trace feed.toml

    blackbox trace feed.toml below-relay.toml --every 100 --symbol AAPL --json
    """
    with exit_statuses():
        from blackbox.services.monitor.trace import Trace

        shapes, names = [load_feed(each) for each in feeds], [Path(each).stem for each in feeds]
        if len(set(names)) < len(names):
            names = feeds
        if len({shape.name for shape in shapes}) > 1:
            raise ConfigError(f"FEED... had the feeds {sorted({shape.name for shape in shapes})}, expected one feed")
        say("waiting for the publishers")
        with Trace(shapes, names, prefixes_of(prefix), symbols=symbols_of(symbol), every=every) as running:
            running.start(timeout)
            say("tracing")
            try:
                while not enough or running.samples < enough:
                    running.check()
                    time.sleep(0.05)
            finally:
                _print(running.times(), as_json)


def _print(times: list[HopTimes], as_json: bool) -> None:
    if as_json:
        print_json(times)
        return
    table = columns_table(("hop", "samples", "p50", "p99", "longest"))
    for each in times:
        table.add_row(each.hop, count(each.samples), *map(duration, (each.p50_ns, each.p99_ns, each.max_ns)))
    stdout.print(titled("time of each hop", table))
