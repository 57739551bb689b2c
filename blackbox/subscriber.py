"""Subscribe to a feed: callbacks by topic prefix, in the slices that their prefixes can fall into."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import msgspec
from numpy.typing import NDArray

from blackbox.batch import Batch, Message
from blackbox.callbacks import Callback, CompiledCallback
from blackbox.compiled import compile_callback
from blackbox.console import Console
from blackbox.errors import (
    BlackBoxError,
    ConfigError,
    NotConfirmedError,
    SlowSubscriberError,
    SubscriberError,
)
from blackbox.feed import Feed
from blackbox.pipe import Pipe
from blackbox.processes import SliceProcess
from blackbox.schema import load_schema
from blackbox.sink import NO_SINK, SinkAt
from blackbox.slice_memory import STOPPING, SUBSCRIPTIONS, TERMINATE
from blackbox.slice_thread import POLICIES, Options, SliceThread
from blackbox.statistics import SliceCounters, Statistics, snapshot, total
from blackbox.tables import MAX_WORKERS, Table

if TYPE_CHECKING:
    from blackbox.recording import Recording
    from blackbox.replay.replay import Replay, ReplayStatistics
    from blackbox.replay.stage import Stage

log = logging.getLogger("blackbox")

MessageFunction = TypeVar("MessageFunction", bound=Callable[[Message], object])
BatchFunction = TypeVar("BatchFunction", bound=Callable[[Batch], object])

_TICK_S = 0.1
_SQUAWK_S = 1.0
"""Time between two squawks of one slice, at least."""
_COMPILE_S = 120.0
"""How long the first start on a machine may take before its timeout begins to count."""


class State(Enum):
    """Where a subscriber is in its life. It goes forward only."""

    NEW = "new"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class Subscriber:
    """Receive a feed and give its messages to callbacks.

    Life: NEW, `start` (or `with`), RUNNING, `stop` or `terminate`, ENDED. `run` is start, wait and stop. Callbacks may
    be added and removed at any time, from any thread, also from callbacks.

    A callback lives on one worker of each slice: it sees a slice's messages one at a time in publish order (with
    `key_bytes` > 0: those of each key), but may run for two slices at once.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        workers: int = 2,
        max_lag_ns: int | None = None,
        on_slow: Literal["terminate", "conflate", "drop", "warn"] = "terminate",
        on_error: Literal["stop", "log"] = "stop",
        queue_blocks: int = 16,
        hwm_blocks: int = 128,
        line_wait_ns: int = 50_000_000,
        grace_ns: int = 5_000_000_000,
        console: str | None = None,
        on_squawk: Callable[[str], object] | None = None,
        processes: bool = False,
    ) -> None:
        """Settings; nothing is opened before `start`.

        Args:
            feed: what to subscribe to.
            workers: threads per slice that run callbacks, 1 to 63.
            max_lag_ns: lag (now - `ts_out`) above which `on_slow` applies. Default: the feed's.
            on_slow: "terminate": squawk, then end with SlowSubscriberError; when a callback hangs, the process ends
                itself after `grace_ns` with status 3. "conflate": deliver only the newest message per topic until it
                has caught up. "drop": drop late blocks. "warn": squawk, deliver all the same. All of it is counted.
            on_error: a callback that raises: "stop" ends the subscriber, `run` and `stop` raise CallbackError; "log"
                logs it and goes on with the next message (or batch).
            queue_blocks: blocks that may wait for one worker. When full the slice waits, ZeroMQ queues, lag grows.
            hwm_blocks: blocks that ZeroMQ queues for a slice at the receiver; then it stops reading, and queues at the
                publisher.
            line_wait_ns: with two lines, how long a block waits for what the other line may still bring.
            grace_ns: time between the decision to terminate and the end of the process when a callback hangs.
            console: endpoint (tcp or ipc) of an operator console, a PULL socket that gets each squawk as one frame.
            processes: run each slice in a process of its own, forked at `start`, so that Python callbacks of several
                slices run in parallel. What callbacks change stays in their process, but for states of compiled ones;
                callbacks cannot then be added or removed while running.
            on_squawk: called with each squawk's text before the policy acts, in the supervising thread.
        """
        for name, value, low, high in (
            ("workers", workers, 1, MAX_WORKERS),
            ("queue_blocks", queue_blocks, 1, 1 << 20),
            ("hwm_blocks", hwm_blocks, 1, 1 << 20),
            ("max_lag_ns", feed.max_lag_ns if max_lag_ns is None else max_lag_ns, 1, 1 << 62),
            ("line_wait_ns", line_wait_ns, 0, 1 << 40),
            ("grace_ns", grace_ns, 0, 1 << 50),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name} was {value}, expected {low} to {high}")
        if on_slow not in POLICIES:
            raise ValueError(f"on_slow was {on_slow!r}, expected one of {', '.join(POLICIES)}")
        if on_error not in ("stop", "log"):
            raise ValueError(f"on_error was {on_error!r}, expected 'stop' or 'log'")
        self.feed = feed
        self.state = State.NEW
        self._options = Options(
            workers=workers,
            max_lag_ns=feed.max_lag_ns if max_lag_ns is None else max_lag_ns,
            on_slow=on_slow,
            queue_blocks=queue_blocks,
            hwm_blocks=hwm_blocks,
            on_error=on_error,
            line_wait_ns=line_wait_ns,
            grace_ns=grace_ns,
        )
        self._processes = processes
        self._console = Console(console, on_squawk)
        self._lock = threading.RLock()
        self._changed = threading.Condition()
        self._callbacks: list[Callback] = []
        self._loads = [0] * workers
        """Callbacks of each worker: counted as they come, or many of them would take the square of their number."""
        self._on_reset: list[Callable[[], object]] = []
        self._stage: Stage | None = None
        self._replay: Replay | None = None
        """The replay that runs."""
        self._sink: Callable[[int], SinkAt] | None = None
        self._versions = 0
        self._slices: dict[int, SliceThread] = {}
        self._children: dict[int, SliceProcess] = {}
        self._error: BlackBoxError | None = None
        self._stop_at_end = False
        self._terminated_at = 0.0
        self._squawk_after: dict[int, float] = {}
        self._news = Pipe()
        self._supervisor = threading.Thread(target=self._supervise, name="blackbox-supervisor", daemon=True)

    # Callbacks

    def on(self, prefix: bytes) -> Callable[[MessageFunction], MessageFunction]:
        """Decorate `f(message)`, called for every message whose topic starts with `prefix`."""

        def register(function: MessageFunction) -> MessageFunction:
            self._add(lambda worker: Callback("message", prefix, function, worker), prefix)
            return function

        return register

    def on_batch(self, prefix: bytes) -> Callable[[BatchFunction], BatchFunction]:
        """Decorate `f(batch)`, called once per block with the messages whose topics start with `prefix`, as columns."""

        def register(function: BatchFunction) -> BatchFunction:
            self._add(lambda worker: Callback("batch", prefix, function, worker), prefix)
            return function

        return register

    def on_compiled(
        self, prefix: bytes, *, state: NDArray[Any]
    ) -> Callable[[Callable[[Any, Any], None]], CompiledCallback]:
        """Decorate `f(batch, state)`, which numba compiles and workers run without the GIL.

        `batch` is a `blackbox.compiled.CompiledBatch`; `state` a copy of the given array for each slice. The decorated
        name becomes a `CompiledCallback`: read `.states` or `.total()`. Raises CallbackError when it does not compile.
        """

        def register(function: Callable[[Any, Any], None]) -> CompiledCallback:
            entry = compile_callback(function, state)
            made = self._add(lambda worker: CompiledCallback(prefix, function, worker, state, entry), prefix)
            assert isinstance(made, CompiledCallback)
            return made

        return register

    def attach(self, sink: Callable[[int], SinkAt]) -> None:
        """Give every block, in order and once, to compiled code in the slice threads, in place of callbacks.

        `sink(slice_id)` says where that is; see `blackbox.sink`. Raises SubscriberError when there are callbacks or
        processes, or it has started.
        """
        if self._callbacks or self._processes or self.state is not State.NEW:
            raise SubscriberError(
                "a sink was attached to a subscriber with callbacks or processes, or that has started"
            )
        self._sink = sink
        self._options = msgspec.structs.replace(self._options, workers=0)

    def on_reset(self, hook: Callable[[], object]) -> Callable[[], object]:
        """Decorate `f()`, called when a replay in this process goes back in time: what a callback keeps is then void.

        Compiled callbacks get the state back that they began with.
        """
        self._on_reset.append(hook)
        return hook

    def off(self, function: Callable[..., Any] | Callback) -> None:
        """Remove a callback, everywhere it was registered. No batch of it begins after this; one that runs is finished.

        Raises ValueError when it was not registered.
        """
        with self._lock:
            gone = [c for c in self._callbacks if c is function or c.function == function]
            self._check_may_change()
            if not gone:
                raise ValueError(f"{function!r} was not registered as a callback")
            for callback in gone:
                self._forget(callback)
            self._renew()

    def _add(self, make: Callable[[int], Callback], prefix: bytes) -> Callback:
        if self._sink is not None:
            raise SubscriberError("a callback was added to a subscriber with a sink")
        if not isinstance(prefix, bytes):
            raise TypeError(f"prefix was {prefix!r}, expected bytes")
        if not self.feed.slices_for(prefix):
            raise ConfigError(f"feed {self.feed.name!r}: no slice can hold topics that start with {prefix!r}")
        with self._lock:
            self._check_may_change()
            callback = make(self._loads.index(min(self._loads)))
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
        self._loads[callback.worker] -= 1
        for thread in self._slices.values():
            thread.remove(callback)

    def _check_may_change(self) -> None:
        if self.state in (State.STOPPING, State.ENDED):
            raise SubscriberError("callbacks of a subscriber that has ended cannot be changed")
        if self.state is State.RUNNING and self._processes:
            raise SubscriberError("callbacks cannot be changed while running with processes=True")

    def _renew(self) -> None:
        """Bring the slices that run up to date with the callbacks, and start those that are needed now."""
        if self._replay is not None and self._stage is not None:
            self._stage.change(self._callbacks)
        if self.state is not State.RUNNING:
            return
        self._versions += 1
        for slice_id, thread in self._slices.items():
            thread.set_table(self._table(slice_id))
        for slice_id in self._needed():
            if slice_id not in self._slices:
                self._start_slice(slice_id)

    def _needed(self) -> list[int]:
        if self._sink is not None:
            return list(self.feed.slices_for(b""))
        return sorted({s for c in self._callbacks for s in self.feed.slices_for(c.prefix)})

    def _table(self, slice_id: int) -> Table:
        callbacks = [c for c in self._callbacks if slice_id in self.feed.slices_for(c.prefix)]
        upstream = frozenset(self.feed.subscription_of(c.prefix) for c in callbacks)
        if self._sink is not None:
            upstream = frozenset({b""})
        return Table(self._versions, callbacks, upstream, self._options.workers, slice_id)

    # Life

    def start(self, timeout: float = 10.0) -> Self:
        """Begin, and return when every publisher has confirmed the subscriptions: nothing sent after that is missed.

        Of two lines one is enough, after `timeout` seconds (not counted: compiling, on the first start ever). Raises
        NotConfirmedError naming the slices without a publisher, EndpointError when a slice cannot connect.
        """
        with self._lock:
            if self.state is not State.NEW:
                raise SubscriberError(f"start was called when {self.state.value}; a subscriber is used once")
            if self._replay is not None:
                raise SubscriberError("start was called during a replay, expected it to end first")
            self._stage = None  # what it counts from here on is live
            self._schema = load_schema(self.feed.schema)
            self.state = State.RUNNING
        try:
            with self._lock:
                self._console.open()
                self._renew()
                self._supervisor.start()
            self.wait_confirmed(timeout)
        except BaseException:
            self.terminate()
            raise
        return self

    def replay(self, recordings: Recording | Iterable[Recording] | Replay, **settings: Any) -> ReplayStatistics:
        """Drive the callbacks from recordings, without sockets, instead of `start`; Python ones in this thread.

        Deterministic: callbacks of all kinds get the same messages in the same order, run after run; at full speed also
        the same batches. Where all are compiled, each slice is played in order, but slices beside one another, in
        threads. Each has a state of its own: only an error, which ends all of them where they are, and the random
        numbers of numba, which belong to a thread, can tell. `settings` are those of `Replay`; or give a Replay, to
        steer it by its `controls`. May be called again: states and topic numbers go on from the last one. `statistics`
        and `topics` then tell of replays, until it is started. `stop` and the controls act after what callbacks are
        being given: a burst, or up to 32 MiB of blocks where all are compiled. So do callbacks that come or go.

        Raises CallbackError as `run`; SubscriberError when it has been started, has a sink, or replays already.
        """
        from blackbox.replay.replay import Replay
        from blackbox.replay.stage import Stage

        replay = recordings if isinstance(recordings, Replay) else Replay(recordings, **settings)
        with self._lock:
            if self.state is not State.NEW or self._sink is not None:
                what = "it has a sink" if self._sink is not None else f"it was {self.state.value}"
                raise SubscriberError(f"replay was called when {what}, expected a subscriber that never started")
            if self._replay is not None:
                raise SubscriberError("replay was called while another one runs, expected one at a time")
            stage = Stage(
                replay.recordings[0].feed,
                max(len(recording.feed.slices) for recording in replay.recordings),
                tuple(self._callbacks),
                replay.schema,
                self._options.on_error,
                self._on_reset,
                replay.prefix,
                self._stage,
            )
            self._stage, self._replay = stage, replay
        try:
            return replay.run(stage)
        finally:
            stage.close()  # first: its lanes may still play, and another replay would share their tables
            self._replay = None

    def wait_confirmed(self, timeout: float = 10.0) -> None:
        """Wait until publishers have confirmed all subscriptions, those of callbacks added while running included.

        Raises as `start`.
        """
        deadline = time.monotonic() + _COMPILE_S
        ready = False
        with self._changed:
            while not all(thread.is_confirmed for thread in self._slices.values()):
                self._raise_failure()
                if self.state is not State.RUNNING:
                    raise SubscriberError("the subscriber ended before its subscriptions were confirmed")
                if not ready and all(thread.is_ready for thread in self._slices.values()):
                    ready = True
                    deadline = time.monotonic() + timeout
                if time.monotonic() >= deadline:
                    self._check_lines(timeout)
                    return
                self._changed.wait(_TICK_S)

    def _check_lines(self, timeout: float) -> None:
        for slice_id, thread in self._slices.items():
            confirmed, lines = thread.confirmed_lines, len(thread.part.endpoints)
            if confirmed == 0:
                raise NotConfirmedError(
                    f"feed {self.feed.name!r} slice {slice_id}: no publisher at {' or '.join(thread.part.endpoints)} "
                    f"confirmed the subscription in {timeout} s"
                )
            if confirmed < lines:
                log.warning("slice %d: only %d of %d lines have a publisher", slice_id, confirmed, lines)

    def run(self, *, until_end: bool = False, timeout: float = 10.0) -> None:
        """Start (unless it runs), wait, stop. In the main thread SIGINT and SIGTERM stop; a second one terminates.

        Ends when `stop` or `terminate` is called elsewhere; with `until_end` also when every publisher has closed and
        all it sent was delivered. Raises SlowSubscriberError, CallbackError (the callback's exception is its cause) or
        SubscriberError when one of these ended it; `timeout` is `start`'s.
        """
        with self._signals():
            if self.state is State.NEW:
                self.start(timeout)
            self._stop_at_end = until_end
            with self._changed:
                while self.state is not State.ENDED:
                    self._changed.wait(_TICK_S)
        self._raise_failure()

    def stop(self, timeout: float = 30.0) -> None:
        """Deliver what was received until now, then end. See `terminate` to end at once. Does not wait in a callback.

        A replay that runs is told to stop, as by its controls. Raises what `run` raises; SubscriberError when callbacks
        are not done in `timeout` seconds (it then terminates).
        """
        if self._stop_replay():
            return
        self.request_stop()
        if self._supervisor.ident is None:
            self.state = State.ENDED
        elif self._is_own_thread():
            return
        elif not self._wait_ended(timeout):
            self.terminate()
            raise SubscriberError(f"stop was not done in {timeout} s: a callback did not keep up")
        self._raise_failure()

    def terminate(self, timeout: float = 5.0) -> None:
        """End now: the callback that runs is finished, what is queued is lost. See `stop` to lose nothing.

        A callback that does not return in `timeout` seconds is left behind in its daemon thread, with an error logged.
        """
        if self._stop_replay():
            return
        for thread in self._slices.values():
            thread.ask_to_terminate()
        self.request_stop()
        if self._supervisor.ident is None:
            self._end(_COMPILE_S)  # `start` was not called, or could not start all threads
        elif not self._is_own_thread() and not self._wait_ended(timeout):
            log.error("a callback did not return in %s s; its thread is left behind", timeout)

    def _stop_replay(self) -> bool:
        replay = self._replay
        if replay is not None:
            replay.controls.stop()
        return replay is not None

    def _renew_locks(self) -> None:
        """In a process that was forked: what another thread held then would stay locked for ever."""
        self._lock = threading.RLock()
        self._changed = threading.Condition()

    def _is_own_thread(self) -> bool:
        """Whether the caller is a callback or hook: what must return before the end cannot wait for it."""
        workers = [worker.thread for thread in self._slices.values() for worker in thread.workers]
        return threading.current_thread() in (self._supervisor, *workers)

    def request_stop(self) -> None:
        """As `stop`, but return at once: `run` then ends by itself."""
        if self._stop_replay():
            return
        with self._lock:
            if self.state is State.RUNNING:
                self.state = State.STOPPING
            for thread in self._slices.values():
                thread.ask_to_stop()

    def _wait_ended(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        with self._changed:
            while self.state is not State.ENDED:
                if time.monotonic() >= deadline:
                    return False
                self._changed.wait(_TICK_S)
        return True

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._error

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
        """A snapshot of all counters; exact once it has ended."""
        if self._stage is not None:
            return self._stage.statistics()
        has_ended = self.state is State.ENDED
        parts = [
            (t.counters, snapshot(i, t.counters, int(t.words[SUBSCRIPTIONS]), len(t.topics), has_ended))
            for i, t in sorted(self._slices.items())
        ]
        return Statistics(total(parts, has_ended), tuple(part for _, part in parts))

    def topics(self, slice_id: int) -> list[bytes]:
        """The topics seen in one slice: a batch's `topic_numbers` are places in this list."""
        if self._stage is not None:
            numbering = self._stage.topics[slice_id : slice_id + 1]
            return numbering[0].names() if numbering else []
        return self._slices[slice_id].topics.names() if slice_id in self._slices else []

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """What is registered now."""
        return tuple(self._callbacks)

    @property
    def is_finished(self) -> bool:
        """Whether every publisher has said that it ends, and all it sent is with the workers."""
        return bool(self._slices) and all(thread.is_finished for thread in self._slices.values())

    @property
    def is_done(self) -> bool:
        """Whether all its threads and processes have ended: once it has ENDED, unless one hangs and was left behind."""
        return all(self._children.get(i, thread).is_done for i, thread in self._slices.items())

    # Supervision

    def _start_slice(self, slice_id: int) -> None:
        thread = SliceThread(
            self.feed,
            slice_id,
            self._options,
            self._schema,
            SliceCounters(self._options.workers),
            self._table(slice_id),
            self._news,
            NO_SINK if self._sink is None else self._sink(slice_id),
        )
        child = SliceProcess(thread, self._renew_locks) if self._processes else None
        before = self._children, self._slices
        if child is not None:
            self._children = {**self._children, slice_id: child}
        self._slices = {**self._slices, slice_id: thread}  # a new one: others iterate over the old without the lock
        try:
            (child or thread).start()
        except BaseException:
            self._children, self._slices = before
            raise

    def _supervise(self) -> None:
        try:
            self._watch()
        except Exception as error:  # without a supervisor nothing would ever end
            log.exception("the supervisor failed")
            failure = SubscriberError(f"the supervisor failed: {error}")
            failure.__cause__ = error
            self._give_up(failure)
            self._end()

    def _watch(self) -> None:
        """Pass on news from the slices, apply the slow-subscriber policy's Python half, notice the end."""
        poller = select.poll()
        poller.register(self._news.reader, select.POLLIN)
        while self.state is not State.ENDED:
            if poller.poll(_TICK_S * 1000):
                os.read(self._news.reader, 4096)
            with self._lock:
                threads = dict(self._slices)
            for slice_id, thread in threads.items():
                self._look_after(slice_id, thread)
            # A callback in a slice's own process asks to stop through the memory that it shares with this one.
            asked = any(thread.words[STOPPING] for thread in threads.values())
            if self.state is State.RUNNING and (asked or (self._stop_at_end and self.is_finished)):
                self.request_stop()
            if self.state is State.STOPPING:
                for slice_id, thread in threads.items():
                    if slice_id not in self._children and thread.words[STOPPING] == TERMINATE:
                        thread.release(0.0)
            done = [self._children.get(i, t).is_done for i, t in threads.items()]
            if self.state is State.STOPPING and (all(done) or self._is_late(threads)):
                self._end()
            elif any(done) and self.state is State.RUNNING:
                self._give_up(SubscriberError("a slice ended by itself"))
            with self._changed:
                self._changed.notify_all()

    def _look_after(self, slice_id: int, thread: SliceThread) -> None:
        failure = self._children.get(slice_id, thread).failure()
        if failure is not None:
            self._give_up(failure)
        if time.monotonic() < self._squawk_after.get(slice_id, 0.0):
            return  # one a second is enough; the worst lag is kept for the next
        lag_ns = thread.take_trouble()
        if not lag_ns:
            return
        self._squawk_after[slice_id] = time.monotonic() + _SQUAWK_S
        policy = self._options.on_slow
        text = (
            f"slow subscriber: feed {self.feed.name!r} slice {slice_id} lags {lag_ns / 1e9:.3f} s, "
            f"limit {self._options.max_lag_ns / 1e9:.3f} s, policy {policy}"
        )
        self._console.squawk(text)
        if policy == "terminate":
            self._give_up(SlowSubscriberError(text))

    def _give_up(self, error: BlackBoxError) -> None:
        if self._error is None:
            self._error = error
        for thread in self._slices.values():
            thread.ask_to_terminate()
        with self._lock:
            if self.state is State.RUNNING:
                self.state = State.STOPPING

    def _is_late(self, threads: dict[int, SliceThread]) -> bool:
        """Whether the grace time since all was told to terminate is over: a callback hangs."""
        if not all(thread.words[STOPPING] == TERMINATE for thread in threads.values()):
            return False
        if self._terminated_at == 0.0:
            self._terminated_at = time.monotonic()
        return time.monotonic() > self._terminated_at + self._options.grace_ns / 1e9

    def _end(self, timeout: float = 0.5) -> None:
        for slice_id, thread in self._slices.items():
            if not self._children.get(slice_id, thread).release(timeout):
                log.error("slice %d: a callback hangs; its thread is left behind, or its process killed", slice_id)
        self._console.close()
        self.state = State.ENDED

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, _frame: FrameType | None) -> None:
            if self.state is State.RUNNING:
                log.info("%s: stopping", signal.Signals(number).name)
                self.request_stop()
            else:
                for thread in self._slices.values():
                    thread.ask_to_terminate()

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
