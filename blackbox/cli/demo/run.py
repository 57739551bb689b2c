"""One run of the demo: the publishing process, the subscriber in this one, and what came of it."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

import msgspec
from rich.status import Status as Spinner

from blackbox.cli.demo.callbacks import DemoCallbacks, trading_of
from blackbox.cli.demo.publisher import (
    BLOCK_BYTES,
    QUEUE_BLOCKS,
    Failed,
    Order,
    Prepared,
    Progress,
    Published,
    run_publisher,
)
from blackbox.cli.demo.trades import MAX_TOPICS
from blackbox.cli.follow import follow
from blackbox.cli.terminal import count, stderr
from blackbox.errors import PublisherError
from blackbox.feed import Feed
from blackbox.statistics import Statistics
from blackbox.subscriber import Subscriber

_NO_LIMIT_NS: Final = 600 * 10**9
_GOODBYE_S: Final = 10.0

Reply = TypeVar("Reply", Prepared, Published)


class DemoResult(NamedTuple):
    """What a run was about and what came of it."""

    spec: str
    feed: Feed
    prepared: Prepared
    published: Published
    received: Statistics
    callbacks: DemoCallbacks

    @property
    def lost(self) -> int:
        """Messages that were published and not delivered, wherever they went."""
        return int(max(self.received.gaps, self.prepared.messages - self.received.matched) + self.received.dropped)


class DemoRun:
    """Owns the publishing process, the pipe to it, and the subscriber. `with` starts and ends the process."""

    def __init__(self, spec: str, options: list[str], messages: int | None, schema: str) -> None:
        trading_of(schema)
        feed = Feed.local("demo", slices=2, schema=schema)
        self._feed = msgspec.structs.replace(feed, block_bytes=BLOCK_BYTES, max_topics=MAX_TOPICS)
        self._spec = spec
        self._order = Order(self._feed, spec, options, messages)
        context = multiprocessing.get_context("spawn")
        self._pipe, self._far_end = context.Pipe()
        self._process = context.Process(target=run_publisher, args=(self._order, self._far_end), daemon=True)

    def __enter__(self) -> Self:
        with _interrupts_held():
            self._process.start()
        self._far_end.close()  # so that the process's end is the end of the pipe
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.terminate()
        self._process.join(_GOODBYE_S)
        self._pipe.close()

    def result(self) -> DemoResult:
        """Run it to its end.

        Raises:
            PublisherError: the publishing process failed.
            SubscriberError: the subscriber did.
        """
        with stderr.status(f"preparing {self._spec} in memory") as spinner:
            prepared = self._await(Prepared, spinner)
            subscriber = Subscriber(
                self._feed,
                workers=1,
                max_lag_ns=_NO_LIMIT_NS,
                on_slow="warn",
                queue_blocks=QUEUE_BLOCKS,
                hwm_blocks=QUEUE_BLOCKS,
            )
            spinner.update("compiling the callbacks")
            callbacks = DemoCallbacks(subscriber, prepared.orders, prepared.watched)
            with subscriber.start(60.0):
                self._pipe.send("go")
                follow(subscriber, lambda: self._watch(subscriber, spinner), until_end=True)
            published = self._await(Published, spinner)
        return DemoResult(self._spec, self._feed, prepared, published, subscriber.statistics(), callbacks)

    def _watch(self, subscriber: Subscriber, spinner: Spinner) -> None:
        received = subscriber.statistics().received
        spinner.update(f"delivered {count(received)} messages")
        if not self._process.is_alive() and not self._pipe.poll():
            raise PublisherError(f"the publishing process ended with status {self._process.exitcode}")

    def _await(self, kind: type[Reply], spinner: Spinner) -> Reply:
        while True:
            try:
                reply = self._pipe.recv()
            except EOFError:
                self._process.join(_GOODBYE_S)
                raise PublisherError(f"the publishing process ended with status {self._process.exitcode}") from None
            if isinstance(reply, kind):
                return reply
            if isinstance(reply, Failed):
                raise PublisherError(reply.text)
            if isinstance(reply, Progress):
                spinner.update(f"preparing {self._spec} in memory: {count(reply.messages)} messages")


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back; a process that is started meanwhile never gets one: it reaches both, and this one decides."""
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if came:
        raise KeyboardInterrupt
