"""`blackbox subscribe`: receive a feed and show what comes."""

from __future__ import annotations

from contextlib import ExitStack
from enum import StrEnum
from typing import Annotated

import typer

from blackbox.cli.feeds import FeedOption, feed_text, load_feed
from blackbox.cli.follow import follow
from blackbox.cli.status import exit_statuses, lose
from blackbox.cli.terminal import count, say


class OnSlow(StrEnum):
    """What a subscriber does when its lag is above the limit."""

    TERMINATE = "terminate"
    CONFLATE = "conflate"
    DROP = "drop"
    WARN = "warn"


def subscribe(
    prefix: Annotated[
        list[str] | None,
        typer.Argument(metavar="PREFIX", help="Topics that start with one of these. Default: all.", show_default=False),
    ] = None,
    feed: FeedOption = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="End when every publisher has closed and all it sent was delivered.")
    ] = False,
    enough: Annotated[
        int, typer.Option("--count", metavar="N", min=0, help="End after N messages or a few more; 0: never.")
    ] = 0,
    show: Annotated[
        int, typer.Option(metavar="N", min=0, help="Print the first N messages, decoded by their schema.")
    ] = 0,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for the publishers to confirm.")
    ] = 60.0,
    workers: Annotated[int, typer.Option(metavar="N", min=1, max=63, help="Threads per slice for callbacks.")] = 2,
    processes: Annotated[bool, typer.Option("--processes", help="Run each slice in a process of its own.")] = False,
    max_lag: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1e-6,
            help="Lag (now - the publisher's send time) above which --on-slow applies. Default: the feed's, mostly 1.",
            show_default=False,
        ),
    ] = None,
    on_slow: Annotated[
        OnSlow,
        typer.Option(
            help="When too slow: `terminate` with status 3; `conflate` to the newest message per topic; `drop` late "
            "blocks; or only `warn`. All of it is counted."
        ),
    ] = OnSlow.TERMINATE,
    queue_blocks: Annotated[int, typer.Option(metavar="N", min=1, help="Blocks that may wait for one worker.")] = 64,
    console: Annotated[
        str | None,
        typer.Option(
            metavar="ENDPOINT", help="Operator console (a PULL socket) to tell before a slow death.", show_default=False
        ),
    ] = None,
) -> None:
    """Subscribe to a feed by topic prefix; show rates, losses and lag.

    For example:

    blackbox subscribe                          everything of the feed `local`, until Ctrl-C

    blackbox subscribe AAPL. MSFT. --show 10    two symbols, the first ten messages in full

    blackbox subscribe --until-end              end with the publisher; status 4 if anything was lost

    blackbox subscribe --feed configs/nasdaq.toml --max-lag 0.5 --on-slow conflate
    """
    with exit_statuses():
        from blackbox.cli.subscription import Subscription
        from blackbox.subscriber import Subscriber

        shape = load_feed(feed)
        subscriber = Subscriber(
            shape,
            workers=workers,
            max_lag_ns=None if max_lag is None else int(max_lag * 1e9),
            on_slow=on_slow.value,
            queue_blocks=queue_blocks,
            console=console,
            processes=processes,
        )
        prefixes = tuple(dict.fromkeys(text.encode() for text in prefix or ("",)))
        subscription = Subscription(subscriber, prefixes, show)
        say(f"waiting for the publishers of {feed_text(shape)}")
        with ExitStack() as stack:
            subscriber.start(timeout)
            stack.callback(subscription.print_statistics)
            say("subscribed")
            screen = stack.enter_context(subscription.screen())
            follow(
                subscriber,
                screen.show,
                until_end=until_end,
                is_enough=lambda: 0 < enough <= subscriber.statistics().delivered,
            )
        gaps = subscriber.statistics().gaps
        if until_end and gaps:
            lose(f"{count(gaps)} messages never came")
