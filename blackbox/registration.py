"""Register what wants messages of a feed: callbacks, timers, hooks, streams and books. They may come and go."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from blackbox.arguments import (
    all_as_bytes,
    as_bytes,
    check_function,
    check_integers,
    decorator_prefix,
    duration_ns,
    message_types_of,
    names_of,
)
from blackbox.block.batch import Batch
from blackbox.block.gap import Gap
from blackbox.errors import ConfigError, SubscriberError
from blackbox.feed.feed import Feed
from blackbox.feed.prefixes import common_prefix
from blackbox.feed.prices import Prices, check_prices
from blackbox.feed.schema import load_schema
from blackbox.feed.symbol_choice import SymbolChoice, TopicChoice, starts_by_slice
from blackbox.image.table import Puts, Table
from blackbox.subscribe.callbacks import IN_SLICE, Callback, CompiledCallback
from blackbox.subscribe.catching_up import Archives
from blackbox.subscribe.compiled_callback import compile_callback
from blackbox.subscribe.gap_hooks import GapHook
from blackbox.subscribe.options import Options
from blackbox.subscribe.plain_values import PlainCallback
from blackbox.subscribe.share import Share
from blackbox.subscribe.sharers import Sharers
from blackbox.subscribe.slice_plan import slices_of_callbacks
from blackbox.subscribe.stream import Stream, WhenFull
from blackbox.subscribe.supervisor import SubscriberLife, Supervisor
from blackbox.subscribe.timers import Timer

if TYPE_CHECKING:
    from blackbox.book.books import Books
    from blackbox.replay.replay import Replay
    from blackbox.replay.to_callbacks import CallbackPlayer

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., object])
BatchFunction = TypeVar("BatchFunction", bound=Callable[[Batch], object])


class Registration:
    """All that is registered to receive a feed, and the slices that deliver it.

    Any thread may add and remove callbacks, at any time until the end, also from callbacks. What runs, live slices or a
    replay, is then brought up to date.
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
        """Nothing is registered yet, nothing runs. The settings are those of `Subscriber`. `shares`: whose slices."""
        self.feed = feed
        self._options = options
        self._processes = processes
        if shares is None:
            sharers = Sharers(options.workers)
            plan = slices_of_callbacks(feed, sharers, options.workers)
            self._supervisor = Supervisor(feed, options, plan, processes=processes, archives=archives, sharers=sharers)
        else:
            self._supervisor = shares._supervisor
        self._share = Share(self._supervisor)
        registered = self._share.registered
        self._callbacks, self._timers, self._streams = registered.callbacks, registered.timers, registered.streams
        self._gap_hooks, self._hooks = registered.gap_hooks, registered.hooks
        self._owner = object()
        self._tables: list[Table] = []
        self._player: CallbackPlayer | None = None
        self._replay: Replay | None = None
        """The replay that runs."""

    @property
    def state(self) -> SubscriberLife:
        """Where it is in its life."""
        return self._share.state

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """What is registered now."""
        return tuple(self._callbacks)

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

        With `symbols` it is called only for messages of exactly these symbols: `symbols=["AAPL"]` is `AAPL.trade`, but
        not `AAPLW.trade`. The feed's `symbol` and `separator` say which part of a topic is its symbol. Raises
        ConfigError for a symbol that no topic of the feed can have.

        With `fields` it is called with their values in place of the message, which is several times as fast:
        `@on(b"AAPL.", fields=("ts_event", "price", "shares"))` decorates `f(ts_event, price, shares)`. A field is one
        of the message's own (`topic`, `symbol`, `payload`, `sequence`, `epoch`, `slice_id`, `ts_event`, `ts_out`,
        `ts_in`, `ts_recv`), or of its record (see `Message.record`; `"record.sequence"` where both have it); None where
        a message's type has no such field, or the venue gave no value. `prices`, for `fields`: "integer" (the default),
        as the venue sent them; "float"; or "decimal", exact. `message_type` is the message type that is wanted, or a
        list of several: `"P"`, `["mbo", "trade"]`. One that no schema of the feed has is a ConfigError at `start` or
        `replay`.

        Each message reaches all such callbacks of a worker (in a replay: all callbacks), in the order in which they
        were registered, before the next one reaches any. One that is `independent` gets its messages
        block by block, out of turn. Callbacks of one `group` live on one worker of each slice, so they need no lock.
        """
        prefix = decorator_prefix(prefix, "on")
        chosen = self._chosen(symbols, prefix)
        names = None if fields is None else names_of("fields", fields)
        if prices is not None and names is None:
            raise ValueError(f"prices was {prices!r} without fields, expected fields; `record.price_float` is a float")
        form: Prices = "integer" if prices is None else prices
        check_prices(form)
        wanted = None if message_type is None else message_types_of(message_type)

        def register(function: AnyFunction) -> AnyFunction:
            check_function(function, *(names or ("message",)))

            def make(worker: int) -> Callback:
                if names is None:
                    return Callback("message", prefix, function, worker, independent, message_types=wanted)
                return PlainCallback(names, prefix, function, worker, independent, wanted, form)

            self._add(make, prefix, group, chosen)
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

        In a replay to several callbacks a batch ends where another one's turn begins, unless it is `independent`. With
        `interval` (seconds or a `timedelta`) a batch also ends where `ts_event` passes a multiple of it since 1970, as
        for bars; `every` calls a function at such times. `group`: see `on`.
        """
        prefix = decorator_prefix(prefix, "on_batch")
        chosen = self._chosen(symbols, prefix)
        interval_ns = None if interval is None else duration_ns("interval", interval, 1e-9)

        def register(function: BatchFunction) -> BatchFunction:
            check_function(function, "batch")

            def make(worker: int) -> Callback:
                return Callback("batch", prefix, function, worker, independent, interval_ns)

            self._add(make, prefix, group, chosen)
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
        """Decorate `f(batch, state)`, which numba compiles and the slice's thread runs without the GIL.

        Nothing is received while it runs: pass `worker=True` for one that computes long. One of a `group` runs on a
        worker anyway.

        `batch` is a `blackbox.subscribe.compiled_callback.CompiledBatch`; `state` a copy of the given array for each
        slice. The decorated name becomes a `CompiledCallback`: read `.states` or `.total()`. In a replay beside Python
        callbacks its batches end where another one's turn begins, unless it is `independent`. `symbols`, `group`: see
        `on`. Raises CallbackError when it does not compile.
        """
        prefix = decorator_prefix(prefix, "on_compiled")
        chosen = self._chosen(symbols, prefix)

        def register(function: Callable[[Any, Any], None]) -> CompiledCallback:
            if not callable(function):
                raise TypeError(f"callback was {function!r}, expected a function of (batch, state)")
            if worker and not self._options.workers:
                raise ValueError("worker was True, but this subscriber has workers=0; expected workers of at least 1")
            entry = compile_callback(function, state)
            made = self._add(
                lambda least: CompiledCallback(
                    prefix, function, least if worker or group is not None else IN_SLICE, state, entry, independent
                ),
                prefix,
                group,
                chosen,
            )
            assert isinstance(made, CompiledCallback)
            return made

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
        """Return a `Stream` of messages (or `batches`) to take in a loop, by `get`, or in asyncio; see `Stream`.

        `when_full`, once `limit` messages or 64 MiB of their blocks wait: "wait" blocks its worker, so that the
        subscriber lags; "drop_oldest" drops the oldest and counts them; "stop" ends it as an error in a callback does.
        `symbols`: see `on`.
        Raises SubscriberError with `processes=True`, ValueError for "stop" where errors are only logged.
        """
        if when_full == "stop" and self._options.on_error != "stop":
            raise ValueError(
                f"when_full was 'stop', which on_error={self._options.on_error!r} would log; expected 'stop'"
            )
        if self._processes:
            raise SubscriberError("stream was called with processes=True, where callbacks run in other processes")
        weak = weakref.ref(self)  # a subscriber that refers to itself would keep its descriptors

        def raise_failure() -> None:
            if (owner := weak()) is not None:
                owner._share.raise_failure()

        def remove(stream: Stream) -> None:
            if (owner := weak()) is None:
                return
            with owner._supervisor.lock:  # its state stays what it is
                if stream in owner._streams:
                    owner._streams.remove(stream)
                    if owner.state in (SubscriberLife.NEW, SubscriberLife.RUNNING):
                        owner.remove(stream._put)

        prefix = as_bytes("prefix", prefix)
        symbols = None if symbols is None else all_as_bytes("symbols", symbols)
        stream = Stream(prefix, limit, when_full, batches, raise_failure, remove)
        with self._supervisor.lock:
            self._share.add_stream(stream)  # before anything comes to it
            try:
                self.on_batch(prefix, symbols=symbols, group=group)(stream._put)
            except BaseException:
                self._streams.remove(stream)
                raise
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

        Callbacks that are registered after it see it with their own message applied, and none later: live those on the
        same worker (`group`), in a replay all. It is emptied where compiled callbacks get their states back. `schema`:
        that of the feed, unless given. `max_bytes`: of all books together. Raises ConfigError when the schema has no
        books.
        """
        from blackbox.book.books import BookCallback, Books

        prefix = as_bytes("prefix", prefix)
        check_integers(("max_bytes", max_bytes, 0, 1 << 62))
        rule, most = self.feed.symbol_rule, self.feed.max_topics
        name = schema or self.feed.schema_name
        books = Books(name, prefix=prefix, symbol_rule=rule, max_symbols=most, max_bytes=max_bytes)
        self._add(lambda worker: BookCallback(prefix, books, worker), prefix, group, self._chosen(symbols, prefix))
        if self._replay is not None:
            books.lose_sync()  # what was played before it is not in it
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
        """Return a `Table` of the newest payload of each topic that starts with `prefix`; it needs an image at `start`.

        `client`: the `HubClient` of the feed's hub for `put` and `delete` of the table. Raises ConfigError for one
        of another feed; SubscriberError with `processes=True`, and once it has started.
        """
        if self._processes:
            raise SubscriberError("table was called with processes=True, where callbacks run in other processes")
        if client is not None and client.feed.name != self.feed.name:
            raise ConfigError(f"client was of feed {client.feed.name!r}, expected one of {self.feed.name!r}")
        prefix = as_bytes("prefix", prefix)
        chosen = self._chosen(symbols, prefix)
        weak = weakref.ref(self)

        def check_life() -> None:
            if (owner := weak()) is not None:
                owner._share.raise_failure()
            if owner is None or owner.state is SubscriberLife.ENDED:
                raise SubscriberError(f"table {prefix!r}: its subscriber ended before what was waited for")

        def wait_complete(slice_ids: Collection[int], timeout: float) -> bool:
            owner = weak()
            return owner is not None and owner._supervisor.wait_complete(slice_ids, timeout)

        with self._supervisor.lock:
            if self.state is not SubscriberLife.NEW:
                raise SubscriberError("table was called while running: call it before start")
            table = Table(self.feed, prefix, client, check_life, wait_complete, chosen)
            self._add(lambda worker: Callback("batch", prefix, table._take, worker), prefix, group, chosen)
            self._tables.append(table)
        return table

    def every(
        self, interval: float | timedelta, *, group: str | None = None
    ) -> Callable[[Callable[[int], object]], Callable[[int], object]]:
        """Decorate `f(ts_ns)`, called at each multiple of `interval` since 1970, also when no message comes.

        `interval` is in seconds, or a `timedelta`.

        In a replay it goes by market time, from the first message to the last: after all messages before that time,
        and before any of that time or later; times within a silence are called when it ends. Live it goes by this
        machine's clock, on the worker of a `group`, or a worker of the first slice; of several times that pass while
        that worker is busy, only the last is called. When the clock is set back, times come again. Raises
        SubscriberError once it has started, or during a replay.
        """
        interval_ns = duration_ns("interval", interval, 1e-9)

        def register(function: Callable[[int], object]) -> Callable[[int], object]:
            check_function(function, "time")
            with self._supervisor.lock:
                if self.state is not SubscriberLife.NEW or self._replay is not None:
                    raise SubscriberError("every was called while running: call it before start or replay")
                self._timers.append(Timer(interval_ns, function, group))
            return function

        return register

    def on_gap(
        self, prefix: str | bytes = b"", *, symbols: Iterable[str | bytes] | None = None, group: str | None = None
    ) -> Callable[[Callable[[Gap], object]], Callable[[Gap], object]]:
        """Decorate `f(gap)`, called when messages were lost that may have had topics that start with `prefix`.

        With `symbols` it is called for messages that may have been of these symbols.

        It is called in the place of what is missing: on each worker with callbacks (of a `group`: with one of its
        callbacks) that may have got some of them, between their messages before and after. With the feed's `key_bytes`
        0 nobody knows whose messages were lost: all callbacks of the slice may lack some. Compiled callbacks find the
        number in `batch.lost`, order books are not `synced` any more. A gap after the last message is told as soon as a
        heartbeat shows it. What the policies "drop" and "conflate" leave out: see `Gap.sequence` and `Batch.conflated`.
        In a replay it is called where recordings lack messages between those that are played.
        """
        prefix = decorator_prefix(prefix, "on_gap")
        starts = TopicChoice.of(self.feed, prefix, symbols).starts

        def register(function: Callable[[Gap], object]) -> Callable[[Gap], object]:
            check_function(function, "gap")
            with self._supervisor.lock:
                self._check_may_change()
                self._gap_hooks.append(GapHook(starts, function, group, self._owner))
                self._renew()
            return function

        return register

    def on_epoch(self, hook: Callable[[int, int], object]) -> Callable[[int, int], object]:
        """Decorate `f(slice_id, epoch)`, called when a publisher begins an epoch: for its first one, too.

        Live it is called once for each slice, in one of its threads, between the messages before and after: no callback
        of the slice runs meanwhile. What was sent between two epochs is not known: see `on_reset`.
        """
        check_function(hook, "slice_id", "epoch")
        self._hooks.on_epoch.append(hook)
        return hook

    def on_reset(self, hook: Callable[[], object]) -> Callable[[], object]:
        """Decorate `f()`, called when callbacks must forget what they keep: time goes back, or a publisher restarts.

        A replay in this process calls it once when it goes back. Live each slice calls it once for an epoch that
        follows another, behind `on_epoch`. In both cases compiled callbacks get the state back that they began with,
        and order books are emptied.
        """
        check_function(hook)
        self._hooks.on_reset.append(hook)
        return hook

    def on_live(self, hook: Callable[[int], object]) -> Callable[[int], object]:
        """Decorate `f(slice_id)`, called when a slice that began in the past goes over to what comes live: see `start`.

        It is called in one of the slice's threads, between two messages, while no callback of the slice runs: callbacks
        have had all that was before, and from now on what comes live is not held back. It is called again each time
        that a slice goes live after falling back to archives; never for a slice that begins live, or in a replay.
        """
        check_function(hook, "slice_id")
        with self._supervisor.lock:
            self._check_may_change()
            self._hooks.on_live.append(hook)
            self._renew()
        return hook

    def remove(self, function: Callable[..., Any] | Callback) -> None:
        """Remove a callback, everywhere it was registered. No new batch of it begins; one that runs is finished.

        A slice that nothing needs any more is released a second later, and comes back when a callback wants it.

        Raises ValueError when it was not registered.
        """
        with self._supervisor.lock:
            gone = [c for c in self._callbacks if c is function or c.function == function]
            timers = [timer for timer in self._timers if timer.function == function]
            hooks = [hook for hook in self._gap_hooks if hook.function == function]
            self._check_may_change()
            for timer in timers:
                timer.active = False
                self._timers.remove(timer)
            for hook in hooks:
                self._gap_hooks.remove(hook)
            if not gone and not timers and not hooks:
                raise ValueError(f"{function!r} was not registered as a callback")
            for callback in gone:
                self._forget(callback)
            self._renew()

    def _on_batch_of(self, topics: TopicChoice, function: BatchFunction) -> None:
        """Call `f(batch)` once per block with the chosen messages."""
        for prefix in topics.prefixes if topics.symbols is None else ():
            self._check_slices(prefix)

        def make(worker: int) -> Callback:
            callback = Callback("batch", b"", function, worker)
            callback.prefixes = topics.prefixes
            return callback

        self._add(make, common_prefix(topics.prefixes), None, topics.symbols)

    def _check_slices(self, prefix: bytes) -> None:
        if not self.feed.slices_for(prefix):
            raise ConfigError(f"feed {self.feed.name!r}: no slice can hold topics that start with {prefix!r}")

    def _chosen(self, symbols: Iterable[str | bytes] | None, prefix: bytes) -> SymbolChoice | None:
        return None if symbols is None else SymbolChoice.of(self.feed, symbols, prefix)

    def _add(
        self, make: Callable[[int], Callback], prefix: bytes, group: str | None, symbols: SymbolChoice | None = None
    ) -> Callback:
        if symbols is not None and not starts_by_slice(self.feed, symbols.starts):
            raise ConfigError(
                f"feed {self.feed.name!r}: no slice can hold topics of the symbols {sorted(symbols.names)}"
            )
        self._check_slices(prefix)
        with self._supervisor.lock:
            self._check_may_change()
            loads = self._supervisor.sharers.loads
            least = loads.index(min(loads)) if loads else IN_SLICE
            callback = make(next((c.worker for c in self._callbacks if group is not None and c.group == group), least))
            callback.group, callback.owner = group, self._owner
            if symbols is not None:
                callback.choose(symbols)
            if self.state is SubscriberLife.RUNNING or self._replay is not None:
                self._check([callback])
            self._supervisor.sharers.count([callback], 1)
            self._callbacks.append(callback)
            try:
                self._renew()
            except BaseException:
                self._forget(callback)  # the thread of a slice that only it needs could not be started
                raise
        return callback

    def _forget(self, callback: Callback) -> None:
        callback.active = False
        self._callbacks.remove(callback)
        self._supervisor.sharers.count([callback], -1)
        self._supervisor.remove(callback)

    def _check_may_change(self) -> None:
        if self.state in (SubscriberLife.STOPPING, SubscriberLife.ENDED):
            self._share.raise_failure()
            raise SubscriberError("callbacks of a subscriber that has ended cannot be changed")
        if self.state is SubscriberLife.RUNNING and self._processes:
            raise SubscriberError("callbacks cannot be changed while running with processes=True")

    def _renew(self) -> None:
        """Bring what runs up to date with the callbacks."""
        if self._replay is not None and self._player is not None:
            self._player.change(self._callbacks)
        self._share.renew()

    def _check(self, callbacks: Iterable[Callback]) -> None:
        """Raise ConfigError unless the schemas have the fields and types that callbacks name."""
        replay = self._replay
        schemas = [load_schema(self.feed.schema)] if replay is None else [feed.schema for feed in replay.feeds.of_slice]
        for callback in callbacks:
            callback.check(schemas)
