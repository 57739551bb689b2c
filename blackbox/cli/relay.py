"""`blackbox relay`: pass a feed on to more subscribers, or to another site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from blackbox.cli.publish import WhenFull
from blackbox.cli.ui.feeds import feed_text
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import bad_if, columns_table, say, stdout, titled
from blackbox.feed.feed import Feed
from blackbox.report.numbers import count

if TYPE_CHECKING:
    from blackbox.relay.relay import Relay


def relay(
    upstream: Annotated[
        str, typer.Argument(metavar="UP.toml", help="Feed file of the source: a publisher, or another relay.")
    ],
    downstream: Annotated[
        str,
        typer.Argument(metavar="DOWN.toml", help="Feed file of those below: the same feed with endpoints of its own."),
    ],
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
    """
    with exit_statuses():
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
