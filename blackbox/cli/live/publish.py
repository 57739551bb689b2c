"""`blackbox publish`: publish sources on a feed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import TimeElapsedColumn

from blackbox.cli.live.live_publishing import ended_by_signals, live_of, live_rows, live_text
from blackbox.cli.ui import progress
from blackbox.cli.ui.feeds import (
    FeedOption,
    NamedSource,
    SourceOptions,
    check_schemas,
    feed_for,
    in_order,
    load_feed,
    open_with_options,
)
from blackbox.cli.ui.monitored import MetricsOption, monitored
from blackbox.cli.ui.options import JsonOption, WaitTimeout
from blackbox.cli.ui.slow_peers import MaxPeerAgeOption, SlowPeer, SlowPeerOption, check_slow_peer, print_lossy_peers
from blackbox.cli.ui.status import exit_statuses, lose, warn
from blackbox.cli.ui.terminal import bad_if, print_json, say, stderr, stdout, titled, values_table
from blackbox.feed.source import Source
from blackbox.numbers import byte_rate, count, counted, duration, rate
from blackbox.timestamps import is_time_of_day, parse_time

if TYPE_CHECKING:
    from blackbox.cli.ui.source_publisher import SourcePublisher
    from blackbox.feed.live_source import LiveSource
    from blackbox.publish.listeners.peers import PeerStatistics
    from blackbox.publish.publisher import PublisherStatistics


class LineName(StrEnum):
    """Line of a feed."""

    A = "A"
    B = "B"


class WhenFull(StrEnum):
    """Policy of the publisher when a subscriber's queue is full."""

    WAIT = "wait"
    DROP = "drop"


def publish(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="Sources to publish: NAME:ARGUMENT.")],
    feed: FeedOption = None,
    when_full: Annotated[
        WhenFull,
        typer.Option(
            help="When a subscriber's queue is full: `wait` for the slowest subscriber; "
            "or `drop` the block for that subscriber, which counts a gap."
        ),
    ] = WhenFull.WAIT,
    slow_peer: SlowPeerOption = SlowPeer.KEEP,
    max_peer_age: MaxPeerAgeOption = None,
    wait_for: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Wait until every slice has N subscribers; 0: publish at once."),
    ] = 1,
    timeout: WaitTimeout = None,
    line: Annotated[
        LineName | None,
        typer.Option(
            case_sensitive=False,
            help="Publish one line of the feed, as one of two twins with the same source and --epoch, each from its "
            "first message on. A killed twin is started again with the same options.",
            show_default=False,
        ),
    ] = None,
    epoch: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Epoch of both twins: a date, date-time or ns since 1970, in the feed's time zone. Each session of "
            "the venue needs a later one.",
            show_default=False,
        ),
    ] = None,
    option: SourceOptions = None,
    metrics: MetricsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish sources into a feed, as fast as its subscribers take the messages.

    SOURCE is [cyan]itch50:PATH[/], [cyan]iex:PATH[/], [cyan]tape:PATH[/], [cyan]dbn:PATH[/],
    [cyan]binance:PATH[/], [cyan]synthetic:MESSAGES[/], or NAME:ARGUMENT of a plug-in. Several sources of one schema
    are published one after another, in the order of their first messages' times. Live sources, one per command, are
    [cyan]moldudp64://GROUP:PORT[/], [cyan]soupbintcp://USER@HOST:PORT[/] and [cyan]iextp://GROUP:PORT[/]; they run
    until Ctrl-C or the end of the session.

    Messages without a subscriber are not sent, and counted as unwanted. Status 4 if messages are lost.

    JSON has `sources`, `seconds`, `missing` (messages that the sources lack), `statistics` of the publisher, and
    `live`, counts of a live source.

    For example, each with `blackbox subscribe` in another terminal:

    blackbox publish synthetic:1000000

    blackbox publish dbn:20231225.mbo.dbn.zst dbn:20231226.mbo.dbn.zst --feed configs/dbn.toml

    blackbox publish itch50:12302019.NASDAQ_ITCH50.gz --feed configs/nasdaq.toml --wait-for 2

    blackbox publish itch50:day.bin --option date=2020-01-30 --when-full drop

    blackbox publish tape:equity/usa/tick --option date=2013-10-07 --feed configs/tape.toml

    blackbox publish soupbintcp://me@venue:26400 --feed feed.toml --line A --epoch 2026-11-30 --wait-for 0
    """
    check_slow_peer(slow_peer, max_peer_age)
    if (line is None) != (epoch is None):
        raise typer.BadParameter("was given alone, expected both --line and --epoch", param_hint="--line or --epoch")
    with exit_statuses():
        from blackbox.cli.ui.source_publisher import SourcePublisher
        from blackbox.publish.twin import Twin

        shape = load_feed(feed)
        named = [NamedSource(spec, open_with_options(spec, option, shape)) for spec in sources]
        check_schemas(named)
        shape = feed_for(shape, named[0].source, named[0].spec)
        with stderr.status("reading the first messages"):
            opened = in_order(named)
        live = live_of(opened)
        twin = None if line is None or epoch is None else Twin(line.value, _epoch_ns(epoch, shape.time_zone))
        publisher = SourcePublisher(
            shape, when_full=when_full.value, slow_peer=slow_peer.value, max_peer_age=max_peer_age, twin=twin
        )
        with monitored(metrics, publisher, *([] if live is None else [live])), publisher:
            publisher.wait_for_each_slice(wait_for, timeout, say)
            started = time.monotonic()
            elapsed = 0.0
            lacking: dict[int, int] = {}
            came: Collection[int] = ()
            peers: tuple[PeerStatistics, ...] = ()
            try:
                with ended_by_signals(live) as came:
                    _publish_with_progress(opened, publisher)
                    publisher.flush()
                lacking = {} if live else publisher.lacking(wait_for)
                peers = publisher.statistics().peers  # none is connected after `close`
                elapsed = time.monotonic() - started
            finally:
                is_whole = bool(elapsed) and not came and not any(each.truncated for each in opened)
                publisher.close(timeout=30.0 if elapsed else 1.0, says_end=twin is None or is_whole)
                seconds = elapsed or time.monotonic() - started
                if as_json:
                    print_json(
                        {
                            "sources": sources,
                            "seconds": round(seconds, 3),
                            "missing": publisher.missing,
                            "statistics": publisher.statistics(),
                            "live": live and live.statistics(),
                        }
                    )
                else:
                    print_summary(opened, publisher, seconds)
                    print_lossy_peers(peers)
                for note in (note for source in opened for note in source.notes):
                    warn(note)
                warn_of_unwanted(publisher.statistics())
        done = publisher.statistics()
        lost = []
        if done.discarded:
            lost.append(f"{count(done.discarded)} messages were not sent: a subscriber did not take them in time")
        if lacking:
            left = ", ".join(f"slice {slice_id} has {found}" for slice_id, found in lacking.items())
            lost.append(
                f"subscribers left before the end: {left}, expected {wait_for}; {count(done.unwanted)} messages "
                "had no subscriber"
            )
        if publisher.missing:
            lost.append(f"{counted(publisher.missing, 'message')} missing in the source, published as gaps")
        lost += [f"the source is incomplete: {each.truncated}" for each in opened if each.truncated]
        if lost:
            lose("; ".join(lost))
        if came:
            say("interrupted")
            raise typer.Exit(128 + min(came))


def _epoch_ns(text: str, zone: str) -> int:
    if is_time_of_day(text):
        raise typer.BadParameter(f"was {text!r}, expected a date, or ns since 1970", param_hint="--epoch")
    try:
        return parse_time(text, zone)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--epoch") from None


def _publish_with_progress(sources: Sequence[Source], publisher: SourcePublisher) -> None:
    started = time.monotonic()

    def rates(messages: int) -> tuple[str, str, str]:
        seconds = time.monotonic() - started
        done = publisher.statistics()
        unwanted = f" ({count(done.unwanted)} unwanted)" if done.unwanted else ""
        return count(messages) + unwanted, rate(messages, seconds), byte_rate(done.body_bytes, seconds)

    def say_line(messages: int) -> None:
        say("messages so far: {}, {}, {}".format(*rates(messages)))

    def publish_all(show: Callable[[int], object]) -> None:
        before = 0

        def show_all(messages: int) -> None:
            show(before + messages)

        for source in sources:
            before += source.publish(publisher, show_all)
            publisher.end_source()

    live = live_of(sources)
    if live is not None:
        _publish_live(live, publisher, lambda: "  ".join((*rates(live.statistics().messages), live_text(live))))
    elif stderr.is_terminal:
        totals = [source.total for source in sources]
        total = None if None in totals else sum(each or 0 for each in totals)
        with progress.bar("publishing", total, progress.TEXT, TimeElapsedColumn()) as move:
            publish_all(lambda messages: move(completed=messages, text="  ".join(rates(messages))))
    else:
        publish_all(progress.at_most_every(progress.LINE_EVERY_S, say_line))


def _publish_live(source: LiveSource, publisher: SourcePublisher, text: Callable[[], str]) -> None:
    """Publish a live source; show its state also while nothing arrives."""
    if stderr.is_terminal:
        with (
            progress.bar("publishing", None, progress.TEXT, TimeElapsedColumn()) as move,
            progress.ticking(lambda: move(text=text())),
        ):
            source.publish(publisher)
    else:
        with progress.ticking(lambda: say(text()), progress.LINE_EVERY_S):
            source.publish(publisher)
    publisher.end_source()


def print_summary(sources: Sequence[Source], publisher: SourcePublisher, elapsed_s: float) -> None:
    """Print the numbers of published and unpublished messages."""
    done = publisher.statistics()
    stdout.print(
        titled(
            f"published {', '.join(map(repr, sources))}",
            values_table(
                [
                    ("schema", publisher.feed.schema_name),
                    ("messages", count(done.messages), "sent, each counted once for all subscribers"),
                    ("symbols", count(len(publisher.feed.symbol_rule.symbols(sorted(publisher.seen))))),
                    ("topics", count(done.topics)),
                    ("blocks", count(done.blocks)),
                    ("unwanted", count(done.unwanted), "not sent: they had no subscriber"),
                    (
                        "discarded",
                        bad_if(done.discarded > 0, count(done.discarded)),
                        "not sent: a subscriber did not take them in time",
                    ),
                    (
                        "dropped",
                        bad_if(done.shared_memory_dropped > 0, count(done.shared_memory_dropped)),
                        "not written to shared memory: slow subscribers held all of it",
                    ),
                    ("elapsed", duration(elapsed_s * 1e9)),
                    ("rate", rate(done.messages, elapsed_s)),
                    ("bodies", byte_rate(done.body_bytes, elapsed_s)),
                    *live_rows(live_of(sources)),
                ]
            ),
        )
    )


def warn_of_unwanted(done: PublisherStatistics) -> None:
    """Print a warning if messages had no subscriber."""
    if done.unwanted and not done.messages:
        warn(f"no message was sent: all {count(done.unwanted)} messages had no subscriber")
    elif done.unwanted:
        warn(f"{count(done.messages)} messages were sent; {count(done.unwanted)} were not: they had no subscriber")
