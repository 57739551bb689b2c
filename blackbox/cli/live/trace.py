"""`blackbox trace`: where the time of messages goes, hop by hop."""

from __future__ import annotations

import time
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
    feed: Annotated[str, typer.Argument(metavar="FEED", help="Feed file.")],
    prefix: PrefixOption = None,
    symbol: SymbolOption = None,
    every: Annotated[
        int, typer.Option("--every", metavar="N", min=1, help="Trace one message in N, a power of two.")
    ] = 1_024,
    enough: CountOption = 1_000,
    timeout: ConfirmTimeout = None,
    as_json: JsonOption = False,
) -> None:
    """Measure where the time of messages goes: from the venue to publish, send, relays, receive, match and callback.

    Subscribes like any other subscriber to FEED, that of a publisher or below a relay. "send" is the time when the
    publisher sent the message's block, "match" when its callbacks were found. Relays send their times for one message
    in `trace_every` of their feed files: blocks of others have the way through the relays in one.

    Times at different hosts are those of their clocks: a negative one means that clocks differ.

    Ends after --count traced messages, or at Ctrl-C, and prints p50, p99 and the longest time of each hop.

    For example:

    blackbox trace feed.toml

    blackbox trace below-relay.toml --every 65536 --symbol AAPL --json
    """
    with exit_statuses():
        from blackbox.services.monitor.trace import Tracer

        if every & (every - 1):
            raise ConfigError(f"--every was {every}, expected a power of two, such as 1024")
        shape = load_feed(feed)
        say("waiting for the publishers")
        with Tracer(shape, prefixes_of(prefix), symbols=symbols_of(symbol), every=every) as running:
            running.start(timeout)
            say("tracing")
            try:
                while running.look() < enough or not enough:
                    time.sleep(0.05)
            finally:
                _print(running.times(), as_json)


def _print(times: list[HopTimes], as_json: bool) -> None:
    if as_json:
        print_json(times)
        return
    from blackbox.services.monitor.watch.conditions import printable

    table = columns_table(("hop", "samples", "p50", "p99", "longest"))
    for each in times:
        table.add_row(printable(each.hop), count(each.samples), *map(duration, (each.p50_ns, each.p99_ns, each.max_ns)))
    stdout.print(titled("time of each hop", table))
