"""Register callbacks, timers, hooks, streams and books for messages of a feed, at any time."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from blackbox.arguments import (
    as_bytes,
    check_function,
    check_integers,
    decorator_prefix,
    duration_ns,
    message_types_of,
    names_of,
)
from blackbox.block.batch.batch import Batch
from blackbox.block.gap import Gap
from blackbox.errors import ConfigError, SubscriberError
from blackbox.feed.feed import Feed
from blackbox.feed.schema.prices import Prices, check_prices
from blackbox.feed.symbol_choice import SymbolChoice, TopicChoice
from blackbox.receive.callbacks.callbacks import Callback, CompiledCallback, TopicsCallback
from blackbox.receive.callbacks.compiled_callback import compile_callback
from blackbox.receive.callbacks.plain_values import PlainCallback
from blackbox.receive.callbacks.timers import Timer
from blackbox.receive.slices.catching_up import Archives
from blackbox.receive.slices.options import Options
from blackbox.receive.stream import Stream
from blackbox.receive.stream_queue import StreamQueue, WhenFull
from blackbox.receive.supervise.checkpoints import wait_until_complete
from blackbox.receive.supervise.sharers import Sharers
from blackbox.receive.supervise.slice_plan import slices_of_callbacks
from blackbox.receive.supervise.supervisor import SubscriberLife, Supervisor
from blackbox.subscriber.registry import Registry
from blackbox.subscriber.table import Puts, Table

if TYPE_CHECKING:
    from blackbox.book.books import Books

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., object])
BatchFunction = TypeVar("BatchFunction", bound=Callable[[Batch], object])


class Registration:
    """Everything registered to receive a feed, and the slices that deliver it.

    Any thread may add and remove callbacks at any time until the end, also from callbacks. Running slices or a replay
    are updated.
    """

    def __init__(
        self,
        feed: Feed,
        options: Options,
        archives: Archives | None,
        *,
        processes: bool,
        shares: Registration | None = None,
    ) -> None:
        """Store the settings, which are those of `Subscriber`. `shares`: the registration whose slices it uses."""
        self.feed = feed
        self._options = options
        if shares is None:
            sharers = Sharers(options.workers)
            plan = slices_of_callbacks(feed, sharers, options.workers)
            self._supervisor = Supervisor(feed, options, plan, processes=processes, archives=archives, sharers=sharers)
        else:
            self._supervisor = shares._supervisor
        self._registry = Registry(feed, options, self._supervisor, processes=processes)
        self._share, self._replays = self._registry.share, self._registry.replays

    @property
    def state(self) -> SubscriberLife:
        """The current state."""
        return self._share.state

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """The registered callbacks."""
        return tuple(self._registry.registered.callbacks)

    def on(
        self,
        prefix: str | bytes = b"",
        *,
        symbols: Iterable[str | bytes] | None = None,
        fields: Iterable[str] | None = None,
        message_type: str | Iterable[str] | None = None,
        prices: Prices | None = None,
        independent: bool = False,
        group: str | None = None,
    ) -> Callable[[AnyFunction], AnyFunction]:
        """Decorate `f(message)`, called for every message whose topic starts with `prefix`.

        With `symbols` it is called only for messages of exactly these symbols: `symbols=["AAPL"]` matches `AAPL.trade`,
        but not `AAPLW.trade`. The feed's `symbol` and `separator` define which part of a topic is its symbol. Raises
        ConfigError for a symbol that no topic of the feed can have.

        With `fields` it is called with their values instead of the message, which is several times faster:
        `@on(b"AAPL.", fields=("ts_event", "price", "shares"))` decorates `f(ts_event, price, shares)`. A field is an
        attribute of the message (`topic`, `symbol`, `payload`, `sequence`, `epoch`, `slice_id`, `ts_event`, `ts_out`,
        `ts_in`, `ts_recv`) or of its record (see `Message.record`; write `"record.sequence"` if both have it). The
        value is None if the message's type has no such field, or the venue gave no value. `prices`, for `fields`:
        "integer" (the default), as sent by the venue; "float"; or "decimal", exact. `message_type` is a message type or
        a list of several: `"P"`, `["mbo", "trade"]`. `start` and `replay` raise ConfigError if no schema of the feed
        has it.

        Each message is passed to all such callbacks of a worker (in a replay: all callbacks), in order of registration,
        before the next message. An `independent` callback gets its messages block by block instead. Callbacks of one
        `group` run on one worker per slice, so they need no lock.
        """
        prefix = decorator_prefix(prefix, "on")
        chosen = self._chosen(symbols, prefix)
        names = None if fields is None else names_of("fields", fields)
        if prices is not None and names is None:
            raise ValueError(f"prices was {prices!r} without fields, pass fields, or use `record.price_float`")
        form: Prices = "integer" if prices is None else prices
        check_prices(form)
        wanted = None if message_type is None else message_types_of(message_type)

        def register(function: AnyFunction) -> AnyFunction:
            check_function(function, *(names or ("message",)))

            callback = (
                Callback("message", prefix, function, independent=independent, message_types=wanted)
                if names is None
                else PlainCallback(names, prefix, function, independent, wanted, form)
            )
            self._registry.add(callback, group, chosen)
            return function

        return register

    def on_batch(
        self,
        prefix: str | bytes = b"",
        *,
        symbols: Iterable[str | bytes] | None = None,
        interval: float | timedelta | None = None,
        independent: bool = False,
        group: str | None = None,
    ) -> Callable[[BatchFunction], BatchFunction]:
        """Decorate `f(batch)`, called once per block with the messages whose topics start with `prefix`, as columns.

        In a replay to several callbacks a batch ends where another callback's turn begins, unless it is `independent`.
        With `interval` (seconds or a `timedelta`) a batch also ends when `ts_event` passes a multiple of it since 1970,
        as for bars; `every` calls a function at such times. `group`: see `on`.
        """
        prefix = decorator_prefix(prefix, "on_batch")
        chosen = self._chosen(symbols, prefix)
        interval_ns = None if interval is None else duration_ns("interval", interval, 1e-9)

        def register(function: BatchFunction) -> BatchFunction:
            check_function(function, "batch")
            callback = Callback("batch", prefix, function, independent=independent, interval_ns=interval_ns)
            self._registry.add(callback, group, chosen)
            return function

        return register

    def on_compiled(
        self,
        prefix: str | bytes = b"",
        *,
        symbols: Iterable[str | bytes] | None = None,
        state: NDArray[Any],
        worker: bool = False,
        independent: bool = False,
        group: str | None = None,
    ) -> Callable[[Callable[[Any, Any], None]], CompiledCallback]:
        """Decorate `f(batch, state)`, compiled by numba and run by the slice's thread without the GIL.

        The slice receives nothing while it runs, so pass `worker=True` for long computations. Callbacks of a `group`
        always run on a worker.

        `batch` is a `blackbox.receive.callbacks.compiled_callback.CompiledBatch`; `state` is a copy of the given array
        for each slice. The decorated name becomes a `CompiledCallback`: read `.states` or `.total()`. In a replay
        together with Python callbacks its batches end where another callback's turn begins, unless it is `independent`.
        `symbols`, `group`: see `on`. Raises CallbackError if it does not compile.
        """
        prefix = decorator_prefix(prefix, "on_compiled")
        chosen = self._chosen(symbols, prefix)

        def register(function: Callable[[Any, Any], None]) -> CompiledCallback:
            if not callable(function):
                raise TypeError(f"callback was {function!r}, expected a function of (batch, state)")
            if worker and not self._options.workers:
                raise ValueError("worker was True, but this subscriber has workers=0: create it with at least 1")
            entry = compile_callback(function, state)
            callback = CompiledCallback(prefix, function, state, entry, independent)
            self._registry.add(callback, group, chosen, in_slice=not worker and group is None)
            return callback

        return register

    def stream(
        self,
        prefix: str | bytes = b"",
        *,
        symbols: Iterable[str | bytes] | None = None,
        limit: int = 10_000,
        when_full: WhenFull = "wait",
        batches: bool = False,
        group: str | None = None,
    ) -> Stream:
        """Return a `Stream` of messages (or `batches`) to read in a loop, by `get`, or in asyncio; see `Stream`.

        `when_full` is the policy for more than `limit` waiting messages or 64 MiB of their blocks: "wait" blocks the
        worker, so that the subscriber lags; "drop_oldest" drops and counts the oldest; "stop" ends the subscriber like
        an error in a callback. `symbols`: see `on`. Raises SubscriberError with `processes=True`, ValueError for "stop"
        if errors are only logged.
        """
        if when_full == "stop" and self._options.on_error != "stop":
            raise ValueError(
                f"when_full was 'stop', which on_error={self._options.on_error!r} would log; expected 'stop'"
            )
        if self._registry.processes:
            raise SubscriberError("stream was called with processes=True: callbacks run in other processes")
        prefix = as_bytes("prefix", prefix)
        chosen = self._chosen(symbols, prefix)
        weak = weakref.ref(self._registry)  # a strong reference would form a cycle and keep its descriptors open

        def raise_failure() -> None:
            if (registry := weak()) is not None:
                registry.share.raise_failure()

        def remove(stream: Stream) -> None:
            if (registry := weak()) is not None:
                registry.remove_stream(stream)

        stream = Stream(StreamQueue(prefix, limit, when_full), batches, raise_failure, remove)
        self._registry.add_stream(stream, chosen, group)
        return stream

    def book(
        self,
        prefix: str | bytes = b"",
        *,
        symbols: Iterable[str | bytes] | None = None,
        schema: str | None = None,
        group: str | None = None,
        max_bytes: int = 1 << 30,
    ) -> Books:
        """Keep the order books of all symbols whose messages have topics that start with `prefix`; see `Books`.

        Callbacks registered after the book see it with their own message applied and no later one: live if they run on
        the same worker (`group`), in a replay always. It is emptied whenever compiled callbacks get their initial
        states. `schema`: default is that of the feed. `max_bytes`: for all books together. Raises ConfigError if the
        schema has no books.
        """
        from blackbox.book.books import BookCallback, Books

        prefix = as_bytes("prefix", prefix)
        check_integers(("max_bytes", max_bytes, 0, 1 << 62))
        rule, most = self.feed.symbol_rule, self.feed.max_topics
        name = schema or self.feed.schema_name
        books = Books(name, prefix=prefix, symbol_rule=rule, max_symbols=most, max_bytes=max_bytes)
        self._registry.add(BookCallback(prefix, books), group, self._chosen(symbols, prefix))
        if self._replays.current is not None:
            books.lose_sync()  # it lacks everything played before
        elif self.state is SubscriberLife.RUNNING:
            for slice_id in range(len(self.feed.slices)):
                books.lose_sync(slice_id)
        return books

    def table(
        self,
        prefix: str | bytes = b"",
        *,
        symbols: Iterable[str | bytes] | None = None,
        client: Puts | None = None,
        group: str | None = None,
    ) -> Table:
        """Return a `Table` of the newest payload of each topic that starts with `prefix`.

        It needs a snapshot at `start`. `client`: the `HubClient` of the feed's hub for `put` and `delete` of the table.
        Raises ConfigError for a client of another feed; SubscriberError with `processes=True`, and after the start.
        """
        if self._registry.processes:
            raise SubscriberError("table was called with processes=True: callbacks run in other processes")
        if client is not None and client.feed.name != self.feed.name:
            raise ConfigError(f"client was of feed {client.feed.name!r}, expected one of {self.feed.name!r}")
        prefix = as_bytes("prefix", prefix)
        chosen = self._chosen(symbols, prefix)
        weak = weakref.ref(self._registry)

        def check_life() -> None:
            if (registry := weak()) is not None:
                registry.share.raise_failure()
            if registry is None or registry.share.state is SubscriberLife.ENDED:
                raise SubscriberError(f"table {prefix!r}: its subscriber ended during the wait")

        def wait_complete(slice_ids: Collection[int], timeout: float) -> bool:
            registry = weak()
            return registry is not None and wait_until_complete(registry.supervisor, slice_ids, timeout)

        with self._supervisor.lock:
            if self.state is not SubscriberLife.NEW:
                raise SubscriberError("table was called while running: call it before start")
            table = Table(self.feed, prefix, client, check_life, wait_complete, chosen)
            self._registry.add(TopicsCallback("batch", prefix, table._take), group, chosen)
            self._registry.tables.append(table)
        return table

    def every(
        self, interval: float | timedelta, *, group: str | None = None
    ) -> Callable[[Callable[[int], object]], Callable[[int], object]]:
        """Decorate `f(ts_ns)`, called at each multiple of `interval` since 1970, even without messages.

        `interval` is in seconds, or a `timedelta`.

        In a replay it follows market time, from the first message to the last: it is called after all messages before
        its time and before any at or after it. Times within a silence are called when the silence ends. Live it follows
        this machine's clock, on the worker of a `group`, or a worker of the first slice. If several times pass while
        that worker is busy, it is called only for the last. If the clock is set back, times repeat. Raises
        SubscriberError after the start, or during a replay.
        """
        interval_ns = duration_ns("interval", interval, 1e-9)

        def register(function: Callable[[int], object]) -> Callable[[int], object]:
            check_function(function, "time")
            self._registry.add_timer(Timer(interval_ns, function, group))
            return function

        return register

    def on_gap(
        self, prefix: str | bytes = b"", *, symbols: Iterable[str | bytes] | None = None, group: str | None = None
    ) -> Callable[[Callable[[Gap], object]], Callable[[Gap], object]]:
        """Decorate `f(gap)`, called for lost messages whose topics may start with `prefix`.

        With `symbols` it is called if they may have been messages of these symbols.

        It is called at the position of the gap: on each worker with callbacks (of a `group`: with one of its callbacks)
        that may lack messages, between the messages before and after. If the feed's `key_bytes` is 0, the topics of
        lost messages are unknown, so all callbacks of the slice may lack some. Compiled callbacks find the number in
        `batch.lost`; order books are no longer `synced`. A gap after the last message is reported when a heartbeat
        reveals it. For messages left out by the policies "drop" and "conflate" see `Gap.sequence` and
        `Batch.conflated`. In a replay it is called where recordings lack messages between those played.
        """
        prefix = decorator_prefix(prefix, "on_gap")
        topics = TopicChoice.of(self.feed, prefix, symbols)

        def register(function: Callable[[Gap], object]) -> Callable[[Gap], object]:
            check_function(function, "gap")
            self._registry.add_gap_hook(topics, function, group)
            return function

        return register

    def on_epoch(self, hook: Callable[[int, int], object]) -> Callable[[int, int], object]:
        """Decorate `f(slice_id, epoch)`, called when a publisher begins an epoch, including its first one.

        Live it is called once for each slice, in one of its threads, between the messages before and after; no callback
        of the slice runs meanwhile. Messages lost between two epochs cannot be counted: see `on_reset`.
        """
        check_function(hook, "slice_id", "epoch")
        self._registry.add_hook(self._registry.registered.hooks.on_epoch, hook)
        return hook

    def on_reset(self, hook: Callable[[], object]) -> Callable[[], object]:
        """Decorate `f()`, called when callbacks must reset their state: time goes back, or a publisher restarts.

        A replay in this process calls it once when it goes back. Live each slice calls it once for an epoch that
        follows another, after `on_epoch`. In both cases compiled callbacks get their initial state, and order books are
        emptied.
        """
        check_function(hook)
        self._registry.add_hook(self._registry.registered.hooks.on_reset, hook)
        return hook

    def on_live(self, hook: Callable[[int], object]) -> Callable[[int], object]:
        """Decorate `f(slice_id)`, called when a slice that began in the past switches to live messages: see `start`.

        It is called in one of the slice's threads, between two messages, while no callback of the slice runs. Callbacks
        have received everything before; from now on live messages are not held back. It is called again each time that
        a slice goes live after falling back to archives; never for a slice that begins live, or in a replay.
        """
        check_function(hook, "slice_id")
        self._registry.add_hook(self._registry.registered.hooks.on_live, hook)
        return hook

    def remove(self, function: Callable[..., Any] | Callback) -> None:
        """Remove a callback from everything it was registered for. A running call is finished.

        No new batch is delivered. A slice without callbacks is closed a second later, and reopened when a callback
        needs it.

        Raises ValueError if it was not registered.
        """
        self._registry.remove(function)

    def _on_batch_of(self, topics: TopicChoice, function: BatchFunction) -> None:
        """Call `f(batch)` once per block with the chosen messages, each under all of its topics."""
        callback = TopicsCallback("batch", b"", function)
        callback.prefixes = topics.prefixes
        self._registry.add(callback, None, topics.symbols)

    def _chosen(self, symbols: Iterable[str | bytes] | None, prefix: bytes) -> SymbolChoice | None:
        return None if symbols is None else SymbolChoice.of(self.feed, symbols, prefix)
