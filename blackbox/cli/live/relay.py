"""`blackbox relay`: forward a feed to more subscribers, or to another site."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blackbox.cli.live.publish import WhenFull
from blackbox.cli.ui.feeds import feed_text
from blackbox.cli.ui.monitored import MetricsOption, monitored
from blackbox.cli.ui.options import JsonOption
from blackbox.cli.ui.slow_peers import MaxPeerAgeOption, SlowPeer, SlowPeerOption, check_slow_peer, print_lossy_peers
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import bad_if, columns_table, print_json, say, stdout, titled
from blackbox.feed.feed import Feed
from blackbox.numbers import count, duration

if TYPE_CHECKING:
    from blackbox.services.relay.plain_clients import PlainRelay
    from blackbox.services.relay.relay import Relay


def relay(
    upstream: Annotated[
        str, typer.Argument(metavar="UP.toml", help="Feed file of the source: a publisher, or another relay.")
    ],
    downstream: Annotated[
        str,
        typer.Argument(
            metavar="DOWN",
            help="Feed file for the relay's subscribers: the same feed at other endpoints. With --plain: one endpoint.",
        ),
    ],
    plain: Annotated[
        bool,
        typer.Option(
            "--plain",
            help="Send single messages of all slices at the endpoint DOWN, as three frames: topic, ts_event (8 bytes, "
            "little-endian), payload. For SUB sockets in any language, by topic prefix. Losses are not reported to "
            "them.",
        ),
    ] = False,
    in_the_clear: Annotated[
        bool,
        typer.Option("--in-the-clear", help="With --plain, for a feed with `security`: allow readers without keys."),
    ] = False,
    spare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Feed file of another source, used while the first one is silent. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of this relay for its subscribers.", show_default="PID@HOST"),
    ] = None,
    when_full: Annotated[
        WhenFull,
        typer.Option(
            help="When a subscriber's queue is full: `drop` the block for that subscriber, which counts a gap; or "
            "`wait` for it, which delays the source and all others."
        ),
    ] = WhenFull.DROP,
    slow_peer: SlowPeerOption = SlowPeer.KEEP,
    max_peer_age: MaxPeerAgeOption = None,
    hold: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Time for which a subscription stays at the source after its last subscriber has left.",
        ),
    ] = 0.0,
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Serve the newest message of each topic at the first archive of DOWN.toml, from a directory for this "
            "relay alone. It then takes the whole feed.",
            show_default=False,
        ),
    ] = None,
    metrics: MetricsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pass a feed on to more subscribers, or to another site.

    Blocks go down unchanged; subscriptions are merged and go up. Subscribers use DOWN.toml like the publisher's feed
    file, and get the same reports of losses. Relays can be chained. Ends at Ctrl-C or SIGTERM; subscribers reconnect
    when a relay binds its endpoints again.

    JSON is printed at the end: the relay's statistics.

    For example:

    blackbox relay nasdaq.toml site.toml --name london

    blackbox relay nasdaq.toml site.toml --spare backup.toml --hold 5

    blackbox relay nasdaq.toml site.toml --images /var/lib/blackbox/london

    blackbox relay nasdaq.toml tcp://10.0.0.5:6000 --plain
    """
    check_slow_peer(slow_peer, max_peer_age)
    with exit_statuses():
        if plain:
            if spare or name or hold or images or when_full is WhenFull.WAIT or slow_peer is SlowPeer.DISCONNECT:
                raise typer.BadParameter(
                    "was given with --spare, --name, --hold, --images, --when-full wait or --slow-peer, expected none",
                    param_hint="--plain",
                )
            relay_plainly(Feed.load(upstream), downstream, in_the_clear, metrics, as_json)
            return
        if in_the_clear:
            raise typer.BadParameter("was given without --plain, expected both", param_hint="--in-the-clear")
        from blackbox.services.relay.relay import Relay

        above, below = Feed.load(upstream), Feed.load(downstream)
        spares = [Feed.load(path) for path in spare or ()]
        running = Relay(
            above,
            below,
            spares=spares,
            name=name,
            when_full=when_full.value,
            slow_peer=slow_peer.value,
            max_peer_age=max_peer_age,
            hold=hold,
            images=images,
        )
        with monitored(metrics, running), running:
            try:  # from here on Ctrl-C prints the totals
                say(f"relay {running.name}: relays {feed_text(above)}")
                running.run()
            finally:
                if as_json:
                    print_json(running.statistics())
                else:
                    print_summary(running)


def relay_plainly(above: Feed, endpoint: str, in_the_clear: bool, metrics: str | None, as_json: bool) -> None:
    """Forward single messages, until Ctrl-C or SIGTERM."""
    from blackbox.services.relay.plain_clients import PlainRelay

    running = PlainRelay(above, endpoint, in_the_clear=in_the_clear)
    say(f"plain relay: waits for the publishers of {feed_text(above)}")
    with monitored(metrics, running), running.start(math.inf):
        try:
            say(f"plain relay: relays {feed_text(above)} at {endpoint}")
            running.run()
        finally:
            if as_json:
                print_json(running.statistics())
            else:
                print_plain_summary(running)


def print_plain_summary(running: PlainRelay) -> None:
    """Print the totals of a plain relay."""
    done = running.statistics()
    table = columns_table(("endpoint", "messages", "client full", "lost above", "lag p99"), 1)
    table.add_row(
        running.endpoint,
        count(done.messages),
        bad_if(done.full > 0, count(done.full)),
        bad_if(done.source.received.gaps > 0, count(done.source.received.gaps)),
        duration(done.source.lag.p99_ns),
    )
    table.caption = "client full: messages that a client missed because its queue was full"
    stdout.print(titled("plain relay", table))


def print_summary(running: Relay) -> None:
    """Print the totals of a relay, by line."""
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
    print_lossy_peers(done.peers)
    if done.put_out:
        say(f"{count(done.put_out)} peers were disconnected")
