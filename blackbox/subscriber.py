"""Subscribe to a feed: callbacks by topic prefix, in the slices that their prefixes can fall into."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from numpy.typing import NDArray

from blackbox.arguments import check_function, check_integers, check_prefix, names_of
from blackbox.block.batch import Batch
from blackbox.block.gap import Gap
from blackbox.block.position import Position
from blackbox.errors import ConfigError, SubscriberError
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.feed.schema import load_schema
from blackbox.recovery.consumer import consumer_of
from blackbox.recovery.start_position import Positions, Time, beginning_of
from blackbox.subscribe.callbacks import IN_SLICE, Callback, CompiledCallback
from blackbox.subscribe.compiled_callback import compile_callback
from blackbox.subscribe.gap_hooks import GapHook
from blackbox.subscribe.match_table import MAX_WORKERS
from blackbox.subscribe.options import Options
from blackbox.subscribe.plain_values import PlainCallback
from blackbox.subscribe.slice_hooks import SliceHooks
from blackbox.subscribe.slow_subscriber import SlowPolicy
from blackbox.subscribe.statistics import Statistics
from blackbox.subscribe.stream import Stream, WhenFull
from blackbox.subscribe.supervisor import State, Supervisor, slices_of_callbacks
from blackbox.subscribe.timers import Timer

if TYPE_CHECKING:
    from blackbox.archive.recording import Recording
    from blackbox.archive.serve.client import ArchiveClient
    from blackbox.book.books import Books
    from blackbox.replay.replay import Replay, ReplayStatistics
    from blackbox.replay.to_callbacks import CallbackPlayer

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., object])
BatchFunction = TypeVar("BatchFunction", bound=Callable[[Batch], object])

_DEFAULT_POLICY = SlowPolicy()
_ANSWER_S = 1.0
"""For so long a subscriber that repairs waits for one answer of one archive: then it asks the next one."""


class Subscriber:
    """Receive a feed and give its messages to callbacks.

    Life: NEW, `start` (or `with`), RUNNING, `stop` or `terminate`, STOPPING, ENDED. `run` is start, wait and stop.
    Callbacks may be added and removed at any time, from any thread, also from callbacks.

    A callback lives on one worker of each slice: it sees a slice's messages one at a time in publish order (with
    `key_bytes` > 0: those of each key), but may run for two slices at once.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        workers: int = 2,
        slow: SlowPolicy = _DEFAULT_POLICY,
        on_error: Literal["stop", "log"] = "stop",
        queue_blocks: int = 16,
        hwm_blocks: int = 128,
        line_wait_ns: int = 50_000_000,
        on_gap: Literal["tell", "stop", "repair"] = "tell",
        repair_wait_ns: int = 2_000_000_000,
        processes: bool = False,
        name: str | None = None,
        positions: str | os.PathLike[str] | None = None,
        checkpoint_interval_ns: int | None = None,
        name_wait_ns: int = 0,
    ) -> None:
        """Settings; nothing is opened before `start`. Raises ValueError when one is out of range.

        Args:
            feed: what to subscribe to.
            workers: threads per slice that run callbacks, at most 63; compiled ones if they ask for it. 0: all run in
                the slice's thread, which receives nothing meanwhile: one wake-up less, for few and short callbacks.
            slow: what to do when it cannot keep up: see `SlowPolicy`.
            on_error: a callback that raises: "stop" ends the subscriber, `run` and `stop` raise CallbackError; "log"
                logs it and goes on with the next message (or batch).
            queue_blocks: blocks that may wait for one worker. When full the slice waits, ZeroMQ queues, lag grows.
            hwm_blocks: blocks that ZeroMQ queues for a slice at the receiver; then it stops reading, and queues at the
                publisher.
            line_wait_ns: with two lines, how long a block waits for what the other line may still bring.
            on_gap: messages that were lost: "tell" counts them, and tells callbacks in their place: see the method
                `on_gap`; "stop" delivers what came before, then ends the subscriber: `run` and `stop` raise GapError.
                "repair" fetches them from the feed's archives and delivers them in their place; what is behind waits,
                up to `hwm_blocks` times the feed's `block_bytes`. What no archive has is told.
            repair_wait_ns: how long what is behind a gap waits for archives, all of them together. With `since`: after
                which time without anything more what they lack before what comes live is a gap; and ten times as long,
                how long none may answer.
            processes: run each slice in a process of its own, forked at `start`, so that Python callbacks of several
                slices run in parallel. What callbacks change stays in their process, but for states of compiled ones;
                callbacks cannot then be added or removed while running.
            name: a name for what this subscriber does, such as "strategy-1". At `start` it goes on from its last
                checkpoint, with what the feed's archives recorded since. One process at a time has a name.
            positions: the directory where positions are kept by name.
            checkpoint_interval_ns: make a checkpoint so often, and at the end. What was delivered after the last one
                comes again: each message at least once. Default: only where you call `checkpoint`.
            name_wait_ns: how long `start` waits for another process of this name to end.
        """
        check_is_feed(feed)
        check_integers(("workers", workers, 0, MAX_WORKERS))
        self.feed = feed
        self._options = Options(
            workers=workers,
            slow=slow,
            on_error=on_error,
            queue_blocks=queue_blocks,
            hwm_blocks=hwm_blocks,
            line_wait_ns=line_wait_ns,
            on_gap=on_gap,
            repair_wait_ns=repair_wait_ns,
        )
        self._processes = processes
        self._consumer = consumer_of(feed, name, positions, name_wait_ns, checkpoint_interval_ns)
        self._callbacks: list[Callback] = []
        self._timers: list[Timer] = []
        self._gap_hooks: list[GapHook] = []
        self._hooks = SliceHooks([], [], [])
        plan = slices_of_callbacks(feed, self._callbacks, self._timers, self._gap_hooks, self._hooks, workers)
        self._streams: list[Stream] = []
        self._client = self._archives()
        self._supervisor = Supervisor(
            feed,
            self._options,
            plan,
            processes=processes,
            hooks=self._hooks,
            archives=self._client,
            streams=self._streams,
        )
        self._loads = [0] * workers
        """Callbacks of each worker, counted as they are added: counting all anew each time would be quadratic."""
        self._player: CallbackPlayer | None = None
        self._replay: Replay | None = None
        """The replay that runs."""

    def _archives(self) -> ArchiveClient | None:
        if not self.feed.archives and self._options.on_gap != "repair":
            return None
        from blackbox.archive.serve.client import ArchiveClient

        wait_s = self._options.repair_wait_ns / 1e9
        return ArchiveClient(self.feed, timeout=min(_ANSWER_S, wait_s / (len(self.feed.archives) + 1)))

    # Callbacks

    def on(
        self,
        prefix: bytes,
        *,
        fields: Iterable[str] | None = None,
        types: str | Iterable[str] | None = None,
        independent: bool = False,
        group: str | None = None,
    ) -> Callable[[AnyFunction], AnyFunction]:
        """Decorate `f(message)`, called for every message whose topic starts with `prefix`.

        With `fields` it is called with their values in place of the message, which is several times as fast:
        `@on(b"AAPL.", fields=("ts_event", "price", "shares"))` decorates `f(ts_event, price, shares)`. A field is one
        of the message's own (`topic`, `symbol`, `payload`, `sequence`, `epoch`, `slice_id`, `ts_event`, `ts_out`,
        `ts_in`, `ts_recv`), or of its record (see `Message.record`; `"record.sequence"` where both have it); None where
        a message's type has no such field, or it has no value. `types` names the message types that are wanted: `"P"`,
        `"PQ"`, `("mbo", "trade")`. Names that no schema of the feed has are a ConfigError at `start` or `replay`.

        Each message reaches all such callbacks of a worker (in a replay: all callbacks), in the order in which they
        were registered, before the next one reaches any. One that is `independent` does not need that, and gets its
        messages block by block. Callbacks of one `group` live on one worker of each slice, so they need no lock.
        """
        check_prefix(prefix, "on")
        names = None if fields is None else names_of("fields", fields)
        wanted = types if types is None or (types and isinstance(types, str)) else names_of("types", types)

        def register(function: AnyFunction) -> AnyFunction:
            check_function(function, *(names or ("message",)))

            def make(worker: int) -> Callback:
                if names is None:
                    return Callback("message", prefix, function, worker, independent, types=wanted)
                return PlainCallback(names, prefix, function, worker, independent, types=wanted)

            self._add(make, prefix, group)
            return function

        return register

    def on_batch(
        self, prefix: bytes, *, interval_ns: int | None = None, independent: bool = False, group: str | None = None
    ) -> Callable[[BatchFunction], BatchFunction]:
        """Decorate `f(batch)`, called once per block with the messages whose topics start with `prefix`, as columns.

        In a replay a batch of one of several callbacks ends where another one's turn begins, unless it is
        `independent`. `interval_ns`: a batch ends also where `ts_event` passes a multiple of it (ns since 1970), as for
        bars; `at` tells when such a time has come. `group`: see `on`.
        """
        check_prefix(prefix, "on_batch")
        if interval_ns is not None:
            check_integers(("interval_ns", interval_ns, 1, 1 << 62))

        def register(function: BatchFunction) -> BatchFunction:
            check_function(function, "batch")

            def make(worker: int) -> Callback:
                return Callback("batch", prefix, function, worker, independent, interval_ns)

            self._add(make, prefix, group)
            return function

        return register

    def on_compiled(
        self,
        prefix: bytes,
        *,
        state: NDArray[Any],
        worker: bool = False,
        independent: bool = False,
        group: str | None = None,
    ) -> Callable[[Callable[[Any, Any], None]], CompiledCallback]:
        """Decorate `f(batch, state)`, which numba compiles and the slice's thread runs without the GIL.

        The time it takes is time in which nothing is received: one that computes long runs on a `worker`, and so does
        one of a `group`.

        `batch` is a `blackbox.subscribe.compiled_callback.CompiledBatch`; `state` a copy of the given array for each
        slice. The decorated name becomes a `CompiledCallback`: read `.states` or `.total()`. In a replay beside Python
        callbacks its batches end where another one's turn begins, unless it is `independent`. `group`: see `on`.
        Raises CallbackError when it does not compile.
        """
        check_prefix(prefix, "on_compiled")

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
            )
            assert isinstance(made, CompiledCallback)
            return made

        return register

    def stream(
        self,
        prefix: bytes,
        *,
        limit: int = 10_000,
        when_full: WhenFull = "wait",
        batches: bool = False,
        group: str | None = None,
    ) -> Stream:
        """Return a `Stream` of messages (or `batches`) to take in a loop, by `get`, or in asyncio; see `Stream`.

        Of more than `limit` messages, or 64 MiB of their blocks, that wait: "wait" holds its worker up, which is lag of
        the subscriber; or the oldest are dropped and counted; or it ends as by an error in a callback ("stop"). Raises
        SubscriberError with `processes=True`, ValueError for "stop" where errors are only logged.
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
                owner._supervisor.raise_failure()

        def remove(stream: Stream) -> None:
            if (owner := weak()) is None:
                return
            with owner._supervisor.lock:  # its state stays what it is
                if stream in owner._streams:
                    owner._streams.remove(stream)
                    if owner.state in (State.NEW, State.RUNNING):
                        owner.off(stream.put)

        stream = Stream(prefix, limit, when_full, batches, raise_failure, remove)
        with self._supervisor.lock:
            self.on_batch(prefix, group=group)(stream.put)
            self._streams.append(stream)
        return stream

    def book(
        self, prefix: bytes, *, schema: str | None = None, group: str | None = None, max_bytes: int = 1 << 30
    ) -> Books:
        """Keep the order books of all symbols whose messages have topics that start with `prefix`; see `Books`.

        Callbacks that are registered after it, on its worker (`group`), find it as it is after the message that they
        get: in a replay all of them. It is emptied where compiled callbacks get their states back. `schema`: that of
        the feed, unless given. `max_bytes`: of all books together. Raises ConfigError when the schema has no books.
        """
        from blackbox.book.books import BookCallback, Books

        check_prefix(prefix, "book")
        check_integers(("max_bytes", max_bytes, 0, 1 << 62))
        rule, most = self.feed.symbol_rule, self.feed.max_topics
        books = Books(schema or self.feed.schema_name, symbol_rule=rule, max_symbols=most, max_bytes=max_bytes)
        self._add(lambda worker: BookCallback(prefix, books, worker), prefix, group)
        return books

    def at(
        self, interval_ns: int, *, group: str | None = None
    ) -> Callable[[Callable[[int], object]], Callable[[int], object]]:
        """Decorate `f(ts_ns)`, called at each multiple of `interval_ns` (ns since 1970), also when no message comes.

        In a replay by market time: after all messages before that time, and before any of that time or later; from the
        first message to the last, and those of a silence at its end. Live by this machine's clock, on the worker of a
        `group`, or a worker of the first slice; of times that go by while that worker is busy, the last is called. A
        clock that is set back shows times again. Raises SubscriberError once it has started, or during a replay.
        """
        check_integers(("interval_ns", interval_ns, 1, 1 << 62))

        def register(function: Callable[[int], object]) -> Callable[[int], object]:
            check_function(function, "time")
            with self._supervisor.lock:
                if self.state is not State.NEW or self._replay is not None:
                    raise SubscriberError("at was called while running, expected it before start or replay")
                self._timers.append(Timer(interval_ns, function, group))
            return function

        return register

    def on_gap(
        self, prefix: bytes, *, group: str | None = None
    ) -> Callable[[Callable[[Gap], object]], Callable[[Gap], object]]:
        """Decorate `f(gap)`, called when messages were lost that may have had topics that start with `prefix`.

        It is called in the place of what is missing: on each worker with callbacks (of a `group`: with one of its
        callbacks) that may have got some of them, between their messages before and after. With the feed's `key_bytes`
        0 nobody knows whose messages were lost, so that all callbacks of the slice may. Compiled callbacks find the
        number in `batch.lost`, order books are not `synced` any more. A gap behind the last message is told as soon as
        a heartbeat shows it. What the policies "drop" and "conflate" leave out: see `Gap.sequence` and
        `Batch.conflated`. Of a replay: nothing is lost on its way.
        """
        check_prefix(prefix, "on_gap")

        def register(function: Callable[[Gap], object]) -> Callable[[Gap], object]:
            check_function(function, "gap")
            with self._supervisor.lock:
                self._check_may_change()
                self._gap_hooks.append(GapHook(prefix, function, group))
                self._renew()
            return function

        return register

    def on_epoch(self, hook: Callable[[int, int], object]) -> Callable[[int, int], object]:
        """Decorate `f(slice_id, epoch)`, called when a publisher begins an epoch: for its first one, too.

        Live it is called once for each slice, in one of its threads, between the messages before and after: no callback
        of the slice runs meanwhile. What came in between nobody knows: see `on_reset`.
        """
        check_function(hook, "slice_id", "epoch")
        self._hooks.on_epoch.append(hook)
        return hook

    def on_reset(self, hook: Callable[[], object]) -> Callable[[], object]:
        """Decorate `f()`, called when what a callback keeps is void: time goes back, or a publisher begins anew.

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
        have had all that was before, and from now on what comes live is not held back. And again each time after a
        slice had fallen back to archives. Of a slice that begins live, and of a replay: never.
        """
        check_function(hook, "slice_id")
        with self._supervisor.lock:
            self._check_may_change()
            self._hooks.on_live.append(hook)
            self._renew()
        return hook

    def off(self, function: Callable[..., Any] | Callback) -> None:
        """Remove a callback, everywhere it was registered. No batch of it begins after this; one that runs is finished.

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

    def _add(self, make: Callable[[int], Callback], prefix: bytes, group: str | None) -> Callback:
        if not self.feed.slices_for(prefix):
            raise ConfigError(f"feed {self.feed.name!r}: no slice can hold topics that start with {prefix!r}")
        with self._supervisor.lock:
            self._check_may_change()
            least = self._loads.index(min(self._loads)) if self._loads else IN_SLICE
            callback = make(next((c.worker for c in self._callbacks if group is not None and c.group == group), least))
            callback.group = group
            if self.state is State.RUNNING or self._replay is not None:
                self._check([callback])
            if callback.worker != IN_SLICE:
                self._loads[callback.worker] += 1
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
        if callback.worker != IN_SLICE:
            self._loads[callback.worker] -= 1
        self._supervisor.remove(callback)

    def _check_may_change(self) -> None:
        if self.state in (State.STOPPING, State.ENDED):
            raise SubscriberError("callbacks of a subscriber that has ended cannot be changed")
        if self.state is State.RUNNING and self._processes:
            raise SubscriberError("callbacks cannot be changed while running with processes=True")

    def _renew(self) -> None:
        """Bring what runs up to date with the callbacks."""
        if self._replay is not None and self._player is not None:
            self._player.change(self._callbacks)
        self._supervisor.renew()

    # Life

    @property
    def state(self) -> State:
        """Where it is in its life."""
        return self._supervisor.state

    def start(self, timeout: float = 10.0, *, since: Time | Positions | None = None, back: int | None = None) -> Self:
        """Begin, and return when every publisher has confirmed the subscriptions: nothing sent after that is missed.

        With `since` or `back` it begins in the past, then goes over to what comes live, with nothing twice and nothing
        between. `on_live` is told of that, `wait_live` waits for it, `statistics().received.catching_up` tells how many
        slices have yet to. What comes so is no lag. Only for feeds with `key_bytes` 0.

        Args:
            timeout: how long publishers may take to confirm, in seconds.
            since: with what the feed's archives recorded at this time or later: ns since 1970, a datetime, or text such
                as "2019-12-30T14:30:00Z", "14:30" (of the session that goes on now, in the feed's time zone) or
                "session", when that began. Or from (epoch, sequence) of each slice on; those without begin live.
            back: with so many of the messages of each slice that archives have recorded last; more if some are recorded
                meanwhile.

        Of two lines one is enough, after `timeout` seconds (not counted: compiling, on the first start ever). Raises
        NotConfirmedError naming the slices without a publisher, EndpointError when a slice cannot connect.
        """
        self._begin_live()
        if self._consumer is not None:
            since, back = self._consumer.begin(since, back)
        try:
            self._supervisor.start(timeout, beginning_of(self.feed, self._client, since, back))
            if self._consumer is not None:
                self._consumer.keep_by_itself(self._supervisor.checkpoint)
        except BaseException:
            self._leave()
            raise
        return self

    @contextmanager
    def checkpoint(self, timeout: float = 10.0) -> Iterator[dict[int, Position]]:
        """In a `with` block: let no callback run, and get by slice the (epoch, sequence) of what will come next.

        All callbacks have then had each message before, none a later one. Keep your own state in the block, with the
        positions in the same transaction, and give them to `start(since=...)`; or let them be kept by `name`: when the
        block ends without an exception, they are. Other blocks wait meanwhile, which is lag, so be quick. May be used
        after the end too, but for `terminate`. Messages that archives still bring come after it.

        Raises TimeoutError when callbacks do not return in time; SubscriberError in a callback, with streams, with
        `processes`, for the policy "conflate", for feeds with `key_bytes`, and while a slice has no position, as
        nothing has come yet; PositionError when positions cannot be kept; what ended the subscriber.
        """
        with self._supervisor.checkpoint(timeout) as positions:
            yield positions
            if self._consumer is not None:
                self._consumer.keep(positions)

    def _leave(self) -> None:
        """Once it has ended: keep where it ended, if it keeps positions by itself, and let its name go."""
        if self._consumer is not None and self.state is State.ENDED:
            self._consumer.end(self._supervisor.checkpoint)

    def wait_live(self, timeout: float = 60.0) -> None:
        """Wait until all slices have gone over to what comes live: see `start`.

        Raises what ended the subscriber meanwhile; TimeoutError.
        """
        self._supervisor.wait_live(timeout)

    def _check(self, callbacks: Iterable[Callback]) -> None:
        """Raise ConfigError unless what comes, or is replayed, has the fields and types that callbacks ask for."""
        replay = self._replay
        schemas = [load_schema(self.feed.schema)] if replay is None else [feed.schema for feed in replay.feeds.of_slice]
        for callback in callbacks:
            callback.check(schemas)

    def _begin_live(self) -> None:
        """Leave replays behind, and check what callbacks ask for. Raises SubscriberError, ConfigError."""
        with self._supervisor.lock:
            if self._replay is not None:
                raise SubscriberError("start was called during a replay, expected it to end first")
            if self.state is State.NEW:
                self._player = None  # what it counts from here on is live
                self._check(self._callbacks)

    def replay(self, recordings: Recording | Iterable[Recording] | Replay, **settings: Any) -> ReplayStatistics:
        """Drive the callbacks from recordings, without sockets, instead of `start`; Python ones in this thread.

        Each message reaches all callbacks that want it, in the order in which they were registered, before the next
        one reaches any; messages come by `ts_event`, over all slices, see `Replay`. So it is run after run, at any
        speed. If all callbacks are compiled, slices are played in parallel, each in order and in a thread: they share
        no state, so nothing tells. Exceptions: an error stops all of them, and numba's random generator is per thread.

        `settings` are those of `Replay`; or give a Replay, to control it by its `controls`. Call it again to go on with
        the same states and topic numbers. `statistics` and `topics` then count replays, until it is started.

        `stop`, controls, and callbacks that come or go take effect between two deliveries: up to 32 blocks, or 32 MiB
        of blocks if all callbacks are compiled.

        Raises CallbackError as `run`; SubscriberError when it has been started, or replays now.
        """
        from blackbox.replay.replay import Replay
        from blackbox.replay.to_callbacks import CallbackPlayer

        replay = recordings if isinstance(recordings, Replay) else Replay(recordings, **settings)
        with self._supervisor.lock:
            if self.state is not State.NEW:
                raise SubscriberError(
                    f"replay was called when it was {self.state.value}, expected a subscriber that never started"
                )
            if self._replay is not None:
                raise SubscriberError("replay was called while another one runs, expected one at a time")
            player = CallbackPlayer(
                replay.feeds,
                tuple(self._callbacks),
                self._options.on_error,
                self._hooks.on_reset,
                replay.prefix,
                self._player,
                self._timers,
            )
            self._player, self._replay = player, replay
        try:
            self._check(self._callbacks)
            for stream in tuple(self._streams):
                stream.begin()
            return replay.run(player, player.timers)
        except BaseException as error:
            for stream in tuple(self._streams):
                stream.end(failure=error)
            raise
        finally:
            for stream in tuple(self._streams):
                stream.end()
            player.close()  # first: its workers may still play, and another replay would share their tables
            self._replay = None

    def wait_confirmed(self, timeout: float = 10.0) -> None:
        """Wait until publishers have confirmed all subscriptions, those of callbacks added while running included.

        Raises as `start`.
        """
        self._supervisor.wait_confirmed(timeout)

    def run(self, *, until_end: bool = False, timeout: float = 10.0, silence_timeout: float | None = None) -> None:
        """Start (unless it runs), wait, stop. In the main thread SIGINT and SIGTERM stop; a second one terminates.

        Ends when `stop` or `terminate` is called elsewhere; with `until_end` also when every publisher has closed and
        all it sent was delivered. A publisher that was killed never closes: `silence_timeout` says after how many
        seconds without a block or heartbeat from a slice to give up; None: never. After SIGTERM it raises
        SystemExit(143), once all that was received has been delivered.

        Raises SlowSubscriberError, CallbackError (the callback's exception is its cause), SilentPublisherError or
        SubscriberError when one of these ended it; SubscriberError when there are no callbacks. `timeout` is `start`'s.
        """
        self._begin_live()
        if not self._callbacks and self.state in (State.NEW, State.RUNNING):
            raise SubscriberError(
                'run was called without callbacks, expected some: @subscriber.on(b"") gets all topics'
            )
        try:
            self._supervisor.run(self.start, until_end=until_end, timeout=timeout, silence_timeout=silence_timeout)
        finally:
            self._leave()

    def check_silence(self, silence_timeout: float | None) -> None:
        """Raise SilentPublisherError when nothing has come from a slice for so many seconds, and no end."""
        self._supervisor.check_silence(silence_timeout)

    def stop(self, timeout: float = 30.0) -> None:
        """Deliver what was received until now, then end. See `terminate` to end at once. Does not wait in a callback.

        A replay that runs is told to stop, as by its controls. Raises what `run` raises; SubscriberError when callbacks
        are not done in `timeout` seconds (it then terminates).
        """
        if not self._stop_replay():
            try:
                self._supervisor.stop(timeout)
            finally:
                self._leave()

    def terminate(self, timeout: float = 5.0) -> None:
        """End now: the callback that runs is finished, what is queued is lost. See `stop` to lose nothing.

        A callback that does not return in `timeout` seconds is left behind in its daemon thread, with an error logged.
        """
        if not self._stop_replay():
            self._supervisor.terminate(timeout)
            self._leave()

    def request_stop(self) -> None:
        """As `stop`, but return at once: `run` then ends by itself."""
        if not self._stop_replay():
            self._supervisor.request_stop()

    def _stop_replay(self) -> bool:
        replay = self._replay
        if replay is not None:
            replay.controls.stop()
            for stream in tuple(self._streams):
                stream.end(at_once=False)
        return replay is not None

    def __enter__(self) -> Self:
        return self if self.state is State.RUNNING else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.terminate()

    def __repr__(self) -> str:
        return f"Subscriber({self.feed!r}, {len(self._callbacks)} callbacks, {self.state.value})"

    # What it knows

    def statistics(self) -> Statistics:
        """Return a snapshot of all counters; exact once it has ended."""
        return self._supervisor.statistics() if self._player is None else self._player.statistics()

    def topics(self, slice_id: int) -> list[bytes]:
        """Return the topics seen in one slice: a batch's `topic_numbers` are places in this list."""
        if self._player is not None:
            numbering = self._player.topics[slice_id : slice_id + 1]
            return numbering[0].names() if numbering else []
        return self._supervisor.topics(slice_id)

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """What is registered now."""
        return tuple(self._callbacks)

    @property
    def is_finished(self) -> bool:
        """Whether every publisher has said that it ends, and all it sent is with the workers."""
        return self._supervisor.is_finished

    @property
    def is_done(self) -> bool:
        """Whether all its threads and processes have ended. One that hangs and was left behind keeps it false."""
        return self._supervisor.is_done
