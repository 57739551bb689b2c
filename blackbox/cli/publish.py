"""`blackbox publish`: send a source into a feed."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import TimeElapsedColumn

from blackbox.cli.ui import progress
from blackbox.cli.ui.feeds import FeedOption, SourceOptions, check_source, feed_for, load_feed, open_with_options
from blackbox.cli.ui.status import exit_statuses, lose, warn
from blackbox.cli.ui.terminal import bad_if, say, stderr, stdout, titled, values_table
from blackbox.feed.source import Source
from blackbox.report.numbers import byte_rate, count, counted, duration, rate

if TYPE_CHECKING:
    from blackbox.cli.ui.source_publisher import SourcePublisher


class WhenFull(StrEnum):
    """What the publisher does when a subscriber's queue is full."""

    WAIT = "wait"
    DROP = "drop"


def publish(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="What to publish: NAME:ARGUMENT.")],
    feed: FeedOption = None,
    when_full: Annotated[
        WhenFull,
        typer.Option(
            help="When a subscriber's queue is full: `wait` for the slowest subscriber; "
            "or `drop` the block for that subscriber, which counts a gap."
        ),
    ] = WhenFull.WAIT,
    wait_for: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Wait until every slice has N subscribers; 0: publish at once. Messages that nobody has subscribed "
            "to are counted as unwanted, which is no error.",
        ),
    ] = 1,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for those subscribers.")
    ] = 60.0,
    option: SourceOptions = None,
) -> None:
    """Publish a source into a feed, as fast as its subscribers take it.

    SOURCE is [cyan]itch50:PATH[/], [cyan]iex:PATH[/], [cyan]tape:PATH[/], [cyan]dbn:PATH[/],
    [cyan]binance:PATH[/], [cyan]synthetic:MESSAGES[/], or NAME:ARGUMENT of a plug-in.

    For example, each with `blackbox subscribe` in another terminal:

    blackbox publish synthetic:1000000

    blackbox publish iex:DEEP10.pcap.gz

    blackbox publish itch50:12302019.NASDAQ_ITCH50.gz --feed configs/nasdaq.toml --wait-for 2

    blackbox publish itch50:day.bin --option date=2020-01-30 --when-full drop

    blackbox publish tape:equity/usa/tick --option date=2013-10-07 --feed configs/tape.toml
    """
    with exit_statuses():
        from blackbox.cli.ui.source_publisher import SourcePublisher

        shape = load_feed(feed)
        opened = open_with_options(source, option, shape)
        shape = feed_for(shape, opened, source)
        with stderr.status("reading the source's first messages"):
            check_source(opened)
        with SourcePublisher(shape, when_full=when_full.value) as publisher:
            publisher.wait_for_each_slice(wait_for, timeout, say)
            started = time.monotonic()
            elapsed = 0.0
            lacking: dict[int, int] = {}
            try:
                _publish_with_progress(opened, publisher)
                publisher.flush()
                lacking = publisher.lacking(wait_for)
                elapsed = time.monotonic() - started
            finally:
                publisher.close(timeout=30.0 if elapsed else 1.0)
                print_summary(opened, publisher, elapsed or time.monotonic() - started)
        done = publisher.statistics()
        lost = []
        if done.discarded:
            lost.append(f"{count(done.discarded)} messages were not sent: a subscriber did not take them in time")
        if lacking:
            left = ", ".join(f"slice {slice_id} has {found}" for slice_id, found in lacking.items())
            lost.append(
                f"subscribers left before the end: {left}, expected {wait_for}; {count(done.unwanted)} messages "
                "went to nobody"
            )
        if publisher.missing:
            lost.append(f"{counted(publisher.missing, 'message')} missing in the source, published as gaps")
        if opened.truncated:
            lost.append(f"the source is incomplete: {opened.truncated}")
        if lost:
            lose("; ".join(lost))


def _publish_with_progress(source: Source, publisher: SourcePublisher) -> None:
    started = time.monotonic()

    def rates(messages: int) -> tuple[str, str, str]:
        seconds = time.monotonic() - started
        done = publisher.statistics()
        unwanted = f" ({count(done.unwanted)} unwanted)" if done.unwanted else ""
        return count(messages) + unwanted, rate(messages, seconds), byte_rate(done.body_bytes, seconds)

    def say_line(messages: int) -> None:
        say("messages so far: {}, {}, {}".format(*rates(messages)))

    if stderr.is_terminal:
        with progress.bar("publishing", source.total, progress.TEXT, TimeElapsedColumn()) as move:
            source.publish(publisher, lambda messages: move(completed=messages, text="  ".join(rates(messages))))
    else:
        source.publish(publisher, progress.at_most_every(progress.LINE_EVERY_S, say_line))


def print_summary(source: Source, publisher: SourcePublisher, elapsed_s: float) -> None:
    """Print what was published of a source, and what was not."""
    done = publisher.statistics()
    stdout.print(
        titled(
            f"published {source!r}",
            values_table(
                [
                    ("schema", publisher.feed.schema_name),
                    ("messages", count(done.messages), "sent, each counted once however many subscribers got it"),
                    ("symbols", count(len(publisher.feed.symbol_rule.symbols(publisher.topics)))),
                    ("topics", count(done.topics)),
                    ("blocks", count(done.blocks)),
                    ("unwanted", count(done.unwanted), "not sent: nobody had subscribed to them"),
                    (
                        "discarded",
                        bad_if(done.discarded > 0, count(done.discarded)),
                        "not sent: a subscriber did not take them in time",
                    ),
                    (
                        "dropped",
                        bad_if(done.shared_memory_dropped > 0, count(done.shared_memory_dropped)),
                        "not written to shared memory: slow subscribers held every place",
                    ),
                    ("elapsed", duration(elapsed_s * 1e9)),
                    ("rate", rate(done.messages, elapsed_s)),
                    ("bodies", byte_rate(done.body_bytes, elapsed_s)),
                ]
            ),
        )
    )
    for note in source.notes:
        warn(note)
    if done.unwanted and not done.messages:
        warn(f"nobody had subscribed: all {count(done.unwanted)} messages were unwanted, and none was sent")
    elif done.unwanted:
        warn(f"{count(done.messages)} messages were sent; {count(done.unwanted)} were not: nobody wanted them")
