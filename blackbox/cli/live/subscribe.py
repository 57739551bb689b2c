"""`blackbox subscribe`: receive a feed and show its messages and rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy
import typer
from rich.console import Group, RenderableType

from blackbox.cli.hub.get import PositionsOption, subscribe_durably
from blackbox.cli.ui.feeds import ConfirmTimeout, FeedOption, SilenceTimeout, feed_text, load_feed
from blackbox.cli.ui.live import Rates, follow, live_screen
from blackbox.cli.ui.monitored import MetricsOption, monitored
from blackbox.cli.ui.options import CountOption, JsonOption, PrefixOption, SymbolOption, prefixes_of, symbols_of
from blackbox.cli.ui.status import exit_statuses, lose
from blackbox.cli.ui.terminal import (
    AGE,
    LAG,
    bad_if,
    columns_table,
    print_json,
    say,
    stderr,
    stdout,
    titled,
    values_table,
)
from blackbox.feed.schema.schema import schema_of
from blackbox.numbers import byte_rate, count, counted, duration, rate

if TYPE_CHECKING:
    from blackbox.block.batch.batch import Batch
    from blackbox.subscriber.subscriber import Subscriber


class OnSlow(StrEnum):
    """Policy of a subscriber when its lag exceeds the limit."""

    EXIT_PROCESS = "exit_process"
    RAISE = "raise"
    CONFLATE = "conflate"
    DROP = "drop"
    WARN = "warn"


def subscribe(
    prefix: PrefixOption = None,
    symbol: SymbolOption = None,
    feed: FeedOption = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="End when every publisher has closed and all messages were delivered.")
    ] = False,
    enough: CountOption = 0,
    show: Annotated[
        int, typer.Option(metavar="N", min=0, help="Print the first N messages, decoded by their schema.")
    ] = 0,
    timeout: ConfirmTimeout = None,
    silence_timeout: SilenceTimeout = None,
    workers: Annotated[int, typer.Option(metavar="N", min=0, max=63, help="Threads per slice for callbacks.")] = 2,
    processes: Annotated[bool, typer.Option("--processes", help="Run each slice in a separate process.")] = False,
    max_lag: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1e-6,
            help="Lag (now - the publisher's send time) above which --on-slow applies. Default: the feed's limit.",
            show_default=False,
        ),
    ] = None,
    on_slow: Annotated[
        OnSlow,
        typer.Option(
            help="When too slow: end with status 3 (`exit_process`, also if a callback hangs, or `raise`); `conflate` "
            "to the newest message per topic; `drop` late blocks; or only `warn`. All cases are counted."
        ),
    ] = OnSlow.EXIT_PROCESS,
    queue_blocks: Annotated[int, typer.Option(metavar="N", min=1, help="Blocks that may wait for one worker.")] = 16,
    start_grace: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, max=1e6, help="Time after the start in which --on-slow does not apply."),
    ] = 10.0,
    console: Annotated[
        str | None,
        typer.Option(
            metavar="ENDPOINT",
            help="Operator console (a PULL socket) to notify before a slow subscriber ends itself.",
            show_default=False,
        ),
    ] = None,
    durable: Annotated[
        bool,
        typer.Option(
            "--durable",
            help="For a feed with a hub: begin a durable subscription of --name, and end. See `blackbox get`.",
        ),
    ] = False,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="With --durable: name of the client.")
    ] = None,
    positions: PositionsOption = Path("positions"),
    metrics: MetricsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Subscribe to a feed by topic prefix; show rates, losses and lag.

    JSON is printed at the end: `feed`, `schema`, `symbols`, `topics` and `statistics`. With --json the messages of
    --show go to stderr.

    For example:

    blackbox subscribe                          all messages of the feed `local`, until Ctrl-C

    blackbox subscribe --prefix AAPL. --prefix MSFT. --show 10

    blackbox subscribe --symbol AAPL --symbol BRK.B   exactly these symbols, not AAPLW

    blackbox subscribe --until-end              end with the publisher; status 4 if messages were lost

    blackbox subscribe --feed configs/nasdaq.toml --max-lag 0.5 --on-slow conflate

    blackbox subscribe --prefix orders. --feed feed.toml --durable --name desk-1
    """
    if durable != (name is not None):
        raise typer.BadParameter("expected --durable and --name NAME together, or neither", param_hint="--name")
    with exit_statuses():
        if name is not None:
            subscribe_durably(name, positions, feed, prefix, symbol, timeout)
            return
        from blackbox.receive.slow_subscriber import SlowPolicy
        from blackbox.subscriber.subscriber import Subscriber

        shape = load_feed(feed)
        subscriber = Subscriber(
            shape,
            workers=workers,
            slow=SlowPolicy(on_slow.value, max_lag, console=console, start_grace=start_grace),
            queue_blocks=queue_blocks,
            processes=processes,
        )
        view = _SubscriberView(subscriber, prefixes_of(prefix), symbols_of(symbol), show, as_json)
        say(f"waiting for the publishers of {feed_text(shape)}")
        with ExitStack() as stack:
            stack.enter_context(monitored(metrics, subscriber))
            subscriber.start(timeout)
            stack.callback(view.print_totals)
            say("subscribed")
            stack.enter_context(view.previewing())
            follow(
                subscriber,
                stack.enter_context(live_screen(view)),
                until_end=until_end,
                silence_timeout=silence_timeout,
                is_enough=lambda: 0 < enough <= subscriber.statistics().delivery.delivered,
            )
        gaps = subscriber.statistics().received.gaps
        if until_end and gaps:
            lose(f"{counted(gaps, 'message')} were lost")


class _SubscriberView:
    """A subscriber with one counting batch callback for each prefix, and its display.

    The counts are in memory that forked processes share: a word for each prefix and slice, each written by one thread.
    """

    def __init__(
        self, subscriber: Subscriber, prefixes: tuple[bytes, ...], symbols: list[bytes] | None, show: int, as_json: bool
    ) -> None:
        from blackbox.cli.live.preview import Preview
        from blackbox.native.memory.arrays import shared_array

        self._subscriber = subscriber
        self._prefixes, self._as_json = prefixes, as_json
        self._names = None if symbols is None else frozenset(symbols)
        self._counts = shared_array((len(prefixes), len(subscriber.feed.slices)), numpy.int64)
        self._schema_id = shared_array((1,), numpy.int64)
        shown_on = stderr if as_json else stdout
        self._preview = Preview(show, lambda line: shown_on.print(line, highlight=False, soft_wrap=True))
        for place, prefix in enumerate(prefixes):
            subscriber.on_batch(prefix, symbols=symbols)(self._counter(place))

    def _counter(self, place: int) -> Callable[[Batch], None]:
        counts, schema_id, offer = self._counts[place], self._schema_id, self._preview.offer

        def count_batch(batch: Batch) -> None:
            schema_id[0] = batch.block.schema_id  # the publisher's; a raw feed accepts any
            counts[batch.block.slice_id] += len(batch)
            offer(batch)

        return count_batch

    @contextmanager
    def previewing(self) -> Iterator[None]:
        """Print the first messages until the block is left. The subscriber must be running."""
        self._preview.start()
        try:
            yield
        finally:
            self._preview.close()

    def line(self, rates: Rates) -> str:
        now = self._subscriber.statistics()
        return (
            f"received {counted(now.received.messages, 'message')}, "
            f"{rate(rates.per_second('messages', now.received.messages))}, "
            f"{byte_rate(rates.per_second('bytes', now.received.body_bytes))}, lost {count(now.received.gaps)}, "
            f"lag p99 {duration(now.lag.p99_ns)}, age p99 {duration(now.lag.age_p99_ns)}"
        )

    def tables(self, rates: Rates) -> RenderableType:
        return Group(self._slices(rates), self._callbacks(rates))

    def _slices(self, rates: Rates) -> RenderableType:
        table = columns_table(
            ("slice", "received", "rate", "lost", "duplicated", "dropped", "queue", "lag p99", "age p99")
        )
        for feed_slice in self._subscriber.statistics().slices:
            table.add_row(
                str(feed_slice.slice_id),
                count(feed_slice.received.messages),
                rate(rates.per_second(feed_slice.slice_id, feed_slice.received.messages)),
                bad_if(feed_slice.received.gaps > 0, count(feed_slice.received.gaps)),
                count(feed_slice.received.duplicates),
                bad_if(feed_slice.delivery.dropped > 0, count(feed_slice.delivery.dropped)),
                count(feed_slice.delivery.queue_blocks),
                duration(feed_slice.lag.p99_ns),
                duration(feed_slice.lag.age_p99_ns),
            )
        table.caption = f"queue: blocks that wait for callbacks; {LAG}; {AGE}"
        return titled("slices", table)

    def _callbacks(self, rates: Rates) -> RenderableType:
        table = columns_table(("prefix", "delivered", "rate"))
        for prefix, delivered in zip(self._prefixes, self._counts.sum(axis=1).tolist(), strict=True):
            name = prefix.decode(errors="backslashreplace") or "(all)"
            table.add_row(name, count(delivered), rate(rates.per_second(prefix, delivered)))
        return titled("callbacks", table)

    def print_totals(self) -> None:
        subscriber, prefixes = self._subscriber, self._prefixes
        now = subscriber.statistics()
        seen = [topic for feed_slice in now.slices for topic in subscriber.topics(feed_slice.slice_id)]
        names, symbol_of = self._names, subscriber.feed.symbol_rule.symbol_of
        topics = [t for t in seen if t.startswith(prefixes) and (names is None or symbol_of(t) in names)]
        if self._as_json:
            print_json(
                {
                    "feed": subscriber.feed.name,
                    "schema": self._schema(),
                    "symbols": len(subscriber.feed.symbol_rule.symbols(topics)),
                    "topics": len(topics),
                    "statistics": now,
                }
            )
            return
        stdout.print(
            titled(
                f"received from {feed_text(subscriber.feed)}",
                values_table(
                    [
                        ("schema", self._schema()),
                        ("received", count(now.received.messages), "messages, including those of no --prefix"),
                        (
                            "delivered",
                            count(now.delivery.delivered),
                            "to callbacks: counted once for each --prefix",
                        ),
                        ("symbols", count(len(subscriber.feed.symbol_rule.symbols(topics)))),
                        ("topics", count(len(topics))),
                        ("blocks", count(now.received.blocks)),
                        (
                            "lost",
                            bad_if(now.received.gaps > 0, count(now.received.gaps)),
                            "missing sequence numbers",
                        ),
                        (
                            "duplicated",
                            count(now.received.duplicates),
                            "received again on the other line: delivered once",
                        ),
                        (
                            "dropped",
                            bad_if(now.delivery.dropped > 0, count(now.delivery.dropped)),
                            "too late: --on-slow drop",
                        ),
                        ("conflated", count(now.delivery.conflated), "replaced by newer ones: --on-slow conflate"),
                        (
                            "discarded",
                            bad_if(now.delivery.discarded > 0, count(now.delivery.discarded)),
                            "not delivered before the end",
                        ),
                        (
                            "malformed",
                            bad_if(now.received.malformed > 0, count(now.received.malformed)),
                            "blocks that were not valid",
                        ),
                        ("lag p50", duration(now.lag.p50_ns), LAG),
                        ("lag p99", duration(now.lag.p99_ns), "99 of 100 messages had at most this lag"),
                        ("lag max", duration(now.lag.max_ns)),
                        ("age p50", duration(now.lag.age_p50_ns), AGE),
                        ("age p99", duration(now.lag.age_p99_ns)),
                        ("age max", duration(now.lag.age_max_ns)),
                    ]
                ),
            )
        )

    def _schema(self) -> str:
        schema_id = int(self._schema_id[0])
        return schema_of(schema_id).name if schema_id else self._subscriber.feed.schema_name
