"""`blackbox relay`: pass a feed on to more subscribers, or to another site."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from blackbox.cli.publish import WhenFull
from blackbox.cli.ui.feeds import feed_text
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import bad_if, columns_table, say, stdout, titled
from blackbox.feed.feed import Feed
from blackbox.report.numbers import count, duration

if TYPE_CHECKING:
    from blackbox.relay.plain import PlainRelay
    from blackbox.relay.relay import Relay


def relay(
    upstream: Annotated[
        str, typer.Argument(metavar="UP.toml", help="Feed file of the source: a publisher, or another relay.")
    ],
    downstream: Annotated[
        str,
        typer.Argument(
            metavar="DOWN",
            help="Feed file of those below: the same feed with endpoints of its own. With --plain: one endpoint.",
        ),
    ],
    plain: Annotated[
        bool,
        typer.Option(
            "--plain",
            help="Send each message by itself, of all slices at the one endpoint DOWN, as three frames: topic, "
            "ts_event (8 bytes, little-endian), payload. For SUB sockets in any language, by prefixes of topics; they "
            "are not told of what they miss.",
        ),
    ] = False,
    in_the_clear: Annotated[
        bool,
        typer.Option("--in-the-clear", help="With --plain, of a feed with `security`: let anybody read, without keys."),
    ] = False,
    spare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Feed file of another place where the feed can be had when the source falls silent. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What this relay is called by those below it.", show_default="PID@HOST"),
    ] = None,
    when_full: Annotated[
        WhenFull,
        typer.Option(
            help="When a subscriber's queue is full: `drop` the block for that subscriber, which counts a gap; or "
            "`wait` for it, which holds up the source and all others."
        ),
    ] = WhenFull.DROP,
    hold: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Seconds to keep asking for what nobody wants any more: quick changes then cost the source nothing.",
        ),
    ] = 0.0,
) -> None:
    """Pass a feed on: blocks as they are, down; what is wanted below, merged, up.

    Subscribers use DOWN.toml as they would use the publisher's feed file, and are told of the same losses. Relays may
    stand below relays. Ends at Ctrl-C or SIGTERM; those below connect again to the next one that binds its endpoints.

    For example:

    blackbox relay nasdaq.toml site.toml --name london

    blackbox relay nasdaq.toml site.toml --spare backup.toml --hold 5

    blackbox relay nasdaq.toml tcp://10.0.0.5:6000 --plain
    """
    with exit_statuses():
        if plain:
            if spare or name or hold or when_full is WhenFull.WAIT:
                raise typer.BadParameter(
                    "was given with --spare, --name, --hold or --when-full wait, expected none of them",
                    param_hint="--plain",
                )
            relay_plainly(Feed.load(upstream), downstream, in_the_clear)
            return
        if in_the_clear:
            raise typer.BadParameter("was given without --plain, expected both", param_hint="--in-the-clear")
        from blackbox.relay.relay import Relay

        above, below = Feed.load(upstream), Feed.load(downstream)
        spares = [Feed.load(path) for path in spare or ()]
        running = Relay(above, below, spares=spares, name=name, when_full=when_full.value, hold_s=hold)
        with running:
            say(f"relay {running.name}: passes {feed_text(above)} on")
            try:
                running.run()
            finally:
                print_summary(running)


def relay_plainly(above: Feed, endpoint: str, in_the_clear: bool) -> None:
    """Pass messages on one by one, until Ctrl-C or SIGTERM."""
    from blackbox.relay.plain import PlainRelay

    running = PlainRelay(above, endpoint, in_the_clear=in_the_clear)
    say(f"plain relay: waits for the publishers of {feed_text(above)}")
    with running.start(math.inf):
        say(f"plain relay: passes {feed_text(above)} on at {endpoint}")
        try:
            running.run()
        finally:
            print_plain_summary(running)


def print_plain_summary(running: PlainRelay) -> None:
    """Print what a plain relay has passed on."""
    done = running.statistics()
    table = columns_table(("endpoint", "messages", "client full", "lost above", "lag p99"), 1)
    table.add_row(
        running.endpoint,
        count(done.messages),
        bad_if(done.full > 0, count(done.full)),
        bad_if(done.source.received.gaps > 0, count(done.source.received.gaps)),
        duration(done.source.lag.p99_ns),
    )
    table.caption = "client full: messages that a client missed, as too many waited for it, and others behind them"
    stdout.print(titled("plain relay", table))


def print_summary(running: Relay) -> None:
    """Print what a relay has passed on, line by line."""
    done = running.statistics()
    table = columns_table(
        ("line", "source", "hops", "blocks", "messages", "MB", "refused", "filters below", "above"), 2
    )
    for line in done.lines:
        table.add_row(
            f"{line.slice_id}{line.line}",
            line.source,
            str(len(line.path)),
            count(line.blocks),
            count(line.messages),
            f"{line.body_bytes / 1e6:,.1f}",
            bad_if(line.refused > 0, count(line.refused)),
            count(line.filters_below),
            count(line.filters_above),
        )
    stdout.print(titled(f"relay {running.name}", table))
    if done.put_out:
        say(f"{count(done.put_out)} peers were disconnected")
