"""Subscribe to a feed: the life of a subscriber, live or replayed. Registration is in `registration`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from blackbox.archive.serve.protocol import Snapshot
from blackbox.arguments import Duration, check_integers, seconds
from blackbox.errors import ConfigError, SubscriberError
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.feed.symbol_choice import TopicChoice
from blackbox.receive.callbacks.match_table import MAX_WORKERS
from blackbox.receive.slices.catching_up import Since
from blackbox.receive.slices.options import Options
from blackbox.receive.slow_subscriber import SlowPolicy
from blackbox.receive.statistics import Statistics
from blackbox.receive.supervise.confirmation_wait import wait_live
from blackbox.receive.supervise.run import run
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.receive.trace.hops import Trace, TraceReader
from blackbox.subscriber.consumer import consumer_of
from blackbox.subscriber.registration import Registration
from blackbox.subscriber.start_position import Beginning, Positions, Time, beginning_of

if TYPE_CHECKING:
    from blackbox.archive.recording import Recording
    from blackbox.archive.serve.client import ArchiveClient
    from blackbox.replay.replay import Replay, ReplaySettings, ReplayStatistics

_DEFAULT_POLICY = SlowPolicy()
_ANSWER_S = 1.0
"""Time to wait for an archive's answer during a repair before asking the next one."""
_ARCHIVES_S = 10.0
"""Time that a start without a timeout waits for archives to answer."""


def _client_of(feed: Feed, options: Options) -> ArchiveClient | None:
    """Return a client for the feed's archives, if it has some, or they are needed."""
    if not feed.archives and options.on_gap != "repair":
        return None
    from blackbox.archive.serve.client import ArchiveClient

    wait_s = options.repair_wait_ns / 1e9
    return ArchiveClient(feed, timeout=min(_ANSWER_S, wait_s / (len(feed.archives) + 1)))


class Subscriber(Registration):
    """Receive a feed and call callbacks with its messages.

    Life: NEW, `start` (or `with`), RUNNING, `stop` or `terminate`, STOPPING, ENDED. `run` is start, wait and stop.
    Callbacks may be added and removed at any time, from any thread, also from callbacks.

    A callback runs on one worker of each slice: it sees a slice's messages one at a time, in order of their sequences,
    but may run for two slices at once.
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
        line_wait: float | timedelta = 0.05,
        on_gap: Literal["tell", "stop", "repair"] = "tell",
        repair_wait: float | timedelta = 2.0,
        processes: bool = False,
        name: str | None = None,
        positions: str | os.PathLike[str] | None = None,
        checkpoint_interval: float | timedelta | None = None,
        name_wait: float | timedelta = 0.0,
        release: bool = False,
    ) -> None:
        """Store the settings; nothing is opened before `start`. Raises ValueError if one is out of range.

        Durations are seconds or `timedelta`.

        Args:
            feed: what to subscribe to.
            workers: threads per slice that run callbacks, at most 63; compiled callbacks use them on request. 0: all
                run in the slice's thread, which receives nothing meanwhile; saves a wake-up, for few and short
                callbacks.
            slow: policy if it cannot keep up: see `SlowPolicy`.
            on_error: policy for a callback that raises: "stop" ends the subscriber, and `run` and `stop` raise
                CallbackError; "log" logs it and continues with the next message (or batch).
            queue_blocks: blocks that may wait for one worker. When full the slice waits, ZeroMQ queues, lag grows.
            hwm_blocks: blocks that ZeroMQ queues for a slice at the receiver; then it stops reading, and blocks queue
                at the publisher.
            line_wait: with two lines, how long a block waits for earlier blocks of the other line.
            on_gap: policy for lost messages: "tell" counts them, and calls the function registered with the method
                `on_gap` at their position; "stop" delivers what came before, then ends the subscriber: `run` and `stop`
                raise GapError. "repair" fetches them from the feed's archives and delivers them at their position;
                later messages wait, up to `hwm_blocks` times the feed's `block_bytes`. What no archive has is reported.
            repair_wait: how long messages after a gap wait for all archives together. With `since`: when archives have
                delivered nothing for this time, messages that they lack before live ones are a gap; when none has
                answered for ten times this time, the subscriber ends.
            processes: run each slice in its own process, forked at `start`, so that Python callbacks of several slices
                run in parallel. Changes by callbacks stay in their process, except states of compiled ones. Callbacks
                cannot be added or removed while it runs.
            name: a name for this consumer, such as "strategy-1". `start` continues at its last checkpoint, with
                messages that the feed's archives recorded since. Only one process at a time can use a name.
            positions: the directory with the positions of names.
            checkpoint_interval: time between checkpoints; the last is made at the end. Messages delivered after the
                last one are delivered again: at least once. Default: only when you call `checkpoint`.
            name_wait: how long `start` waits for another process of this name to end.
            release: start even if the last process of this name ended because of a loss with `on_gap="stop"`. Such a
                name is blocked until then, or until `blackbox positions DIR --release NAME`, so that no supervisor
                restarts it past the loss. It begins at its last checkpoint; the same loss does not end it again.
        """
        check_is_feed(feed)
        check_integers(("workers", workers, 0, MAX_WORKERS))
        options = Options(
            workers=workers,
            slow=slow,
            on_error=on_error,
            queue_blocks=queue_blocks,
            hwm_blocks=hwm_blocks,
            line_wait=line_wait,
            on_gap=on_gap,
            repair_wait=repair_wait,
        )
        self._consumer = consumer_of(feed, name, positions, name_wait, checkpoint_interval, release)
        self._client = _client_of(feed, options)
        super().__init__(feed, options, self._client, processes=processes)
        if self._consumer is not None:
            self._supervisor.on_lost = self._consumer.hold

    def share(self) -> Subscriber:
        """Return another subscriber of the feed that uses this one's sockets and threads.

        Publishers see a single subscriber. It has its own callbacks, streams, hooks and life: it receives messages from
        its `start` until its `stop`, which waits until its callbacks have received everything. The last one to end
        closes sockets and threads. All settings are this one's; lag, gaps, `statistics`, topic numbers and checkpoints
        are shared. An error in one, as of a callback with `on_error="stop"`, ends all: each `run` and `stop` raises it.
        All callbacks run on the same workers, so a slow one delays all.

        Only the first one to start may use `start(since=...)`, `back` and `every`. `on_epoch` reports only epochs that
        begin after its start.

        Raises SubscriberError if this one has `processes` or a `name`, or the last one has ended.
        """
        if self._registry.processes:
            raise SubscriberError("share was called with processes=True: callbacks cannot be added or removed")
        if self._consumer is not None:
            raise SubscriberError("share was called on a subscriber with a name: its positions belong to its callbacks")
        other = object.__new__(Subscriber)
        other._consumer, other._client = None, self._client
        Registration.__init__(other, self.feed, self._options, self._client, processes=False, shares=self)
        other._share.check_new()
        return other

    # Life

    def start(
        self,
        timeout: Duration | None = None,
        *,
        since: Time | Positions | None = None,
        back: int | None = None,
        snapshot: Snapshot | None = None,
    ) -> Self:
        """Begin, and return when every publisher has confirmed the subscriptions: nothing sent after that is missed.

        With `since`, `back` or `snapshot` it begins in the past and then continues with live messages, without
        duplicates or omissions. Then `on_live` is called; `wait_live` waits for that, and
        `statistics().received.catching_up` counts the slices that are not live yet. Messages from archives do not count
        as lag.

        Args:
            timeout: how long publishers may take to confirm, in seconds; None: without limit. After one second the log
                says which slices it waits for. With `back` or `snapshot` it is also how long archives may take to
                answer, 10 seconds for None.
            since: begin with messages that the feed's archives recorded at this time or later: ns since 1970, a
                datetime, or text such as "2019-12-30T14:30:00Z", "14:30" (of the current session, in the feed's time
                zone) or "session", its start. Or begin at the position of each slice, from a `checkpoint`; slices
                without a position begin live, or at the position stored for the `name`.
            back: begin with the last `back` messages of each slice that archives have recorded; more if some are
                recorded meanwhile.
            snapshot: "latest": begin with the latest recorded message of each topic that callbacks want, in batches
                that are `is_image`, and then deliver all later messages. "books": the same, but with all resting orders
                instead of the messages that change order books: once they are applied, `book` is in sync.

        One of two lines is enough after `timeout` seconds, or 10 for None (not counting compilation on the very first
        start). Ctrl-C ends the wait with KeyboardInterrupt, and everything is closed. Raises NotConfirmedError naming
        the slices without a publisher, EndpointError if a slice cannot connect.
        """
        timeout = seconds("timeout", timeout)
        beginning = Beginning(since, back, snapshot)
        self._begin_live()
        self._share.check_new()  # before tables and books are emptied
        if self._consumer is not None:
            beginning = self._consumer.begin(beginning)
        try:
            begin = self._begin_at(beginning, timeout)
            self._share.start(timeout, begin, None if self._consumer is None else self._consumer.accepted)
            self._keep_positions(begin)
        except BaseException:
            self._leave()
            raise
        return self

    def _keep_positions(self, begin: Callable[[int], Since | None] | None) -> None:
        """Store where slices began, then positions at checkpoints. Terminate the subscriber if that is not possible."""
        if self._consumer is None:
            return
        try:
            self._consumer.keep_beginning(self._supervisor.slices.first_positions(), begin)
            self._consumer.keep_by_itself(self._share.checkpoint, self._registry.wanted_prefixes)
        except BaseException:
            self._share.terminate()
            raise

    def _begin_at(self, beginning: Beginning, timeout: float | None) -> Callable[[int], Since | None] | None:
        """Return where each slice begins, as `beginning_of`, and raise the same errors.

        Raises ConfigError where no snapshot is possible.
        """
        snapshot = beginning.snapshot
        if snapshot is not None and self._options.slow.action == "conflate":
            raise ConfigError(f"snapshot was {snapshot!r} with the policy 'conflate', which delivers out of order")
        if self._registry.tables and snapshot != "latest":
            raise ConfigError(f"snapshot was {snapshot!r} with a table, expected 'latest'")
        answer_s = _ARCHIVES_S if timeout is None else timeout
        begin = beginning_of(self.feed, self._client, beginning, answer_s, self._registry.wanted_prefixes())
        self._registry.expect(begin, books=snapshot == "books")
        return begin

    @contextmanager
    def checkpoint(self, timeout: Duration = 10.0) -> Iterator[dict[int, Any]]:
        """In a `with` block: pause all callbacks, and yield by slice the (epoch, sequence) of the next message.

        All callbacks have then had every message before these positions, and none after. Save your own state in the
        block, with the positions in the same transaction, and pass them to `start(since=...)`. With a `name`, the
        positions are saved when the block ends without an exception. Other messages wait meanwhile, which is lag, so be
        quick. May be used after the end too, unless it was terminated. Messages still to come from archives are after
        it.

        With streams, positions are before all messages that a reader has not finished. It has finished a message when
        it asks for the next one, or makes the checkpoint itself, in its own thread or task. A reader in another thread
        keeps reading meanwhile.

        A subscriber to some keys of a slice waits for a heartbeat which shows that nothing is missing.

        Raises TimeoutError if callbacks do not return or no heartbeat arrives in time; PositionError if positions
        cannot be saved; the error that ended the subscriber. Raises SubscriberError in a callback, with `processes`,
        for the policy "conflate", and if a stream's reader has not taken a repaired message of one key but a later one
        of another. It also does while a slice has no position: nothing has arrived yet, a snapshot is incomplete, new
        callbacks are not confirmed (see `wait_confirmed`), or it ended before that heartbeat.
        """
        timeout = seconds("timeout", timeout)
        with self._share.checkpoint(timeout, by_reader=True) as positions:
            yield positions
            if self._consumer is not None:
                self._consumer.keep(positions)

    def _leave(self) -> None:
        """After the end, save the last position if positions are saved automatically, and release the name."""
        if self._consumer is not None and self.state is SubscriberLife.ENDED:
            self._consumer.end(self._share.checkpoint)

    def wait_live(self, timeout: Duration = 60.0) -> None:
        """Wait until all slices have switched to live messages: see `start`.

        Raises the error that ended the subscriber meanwhile; TimeoutError.
        """
        timeout = seconds("timeout", timeout)
        wait_live(self._supervisor, timeout)

    def _begin_live(self) -> None:
        """Leave replay mode, and check the callbacks. Raises SubscriberError, ConfigError."""
        with self._supervisor.lock:
            if self._replays.current is not None:
                raise SubscriberError("start was called during a replay, expected it to end first")
            if self.state is SubscriberLife.NEW:
                self._replays.slices = None  # statistics are live from now on
                self._registry.check(self.callbacks)

    def replay(
        self, recordings: Recording | Iterable[Recording] | Replay, **settings: Unpack[ReplaySettings]
    ) -> ReplayStatistics:
        """Drive the callbacks from recordings, without sockets, instead of `start`.

        Python callbacks run in this thread. Each message is passed to all callbacks that want it, in order of
        registration, before the next message. Messages are in order of `ts_event`, over all slices, see `Replay`. The
        order is the same in every run, at any speed. If all callbacks are compiled, slices are played in parallel, one
        thread each: they share no state, so results are the same. Exceptions: an error stops all of them, and numba's
        random generator is per thread.

        `settings` are those of `Replay`; or pass a Replay, to control it by its `controls`. Call it again to continue
        with the same states and topic numbers. `statistics` and `topics` then count replays, until it is started.

        `stop`, controls, and changes of callbacks take effect between two deliveries: up to 32 blocks, or 32 MiB of
        blocks if all callbacks are compiled.

        Raises CallbackError as `run`; SubscriberError if it was started, or is replaying; ConfigError for books=True
        without a `book`; TypeError for an unknown setting, or one in addition to a Replay.
        """
        from blackbox.replay.replay import Replay, check_settings

        check_settings(recordings, settings)
        replay = recordings if isinstance(recordings, Replay) else Replay(recordings, **settings)
        with self._supervisor.lock:
            if self.state is not SubscriberLife.NEW:
                raise SubscriberError(
                    f"replay was called when it was {self.state.value}, expected a subscriber that never started"
                )
            self._replays.begin(replay)
        return self._replays.run()

    def wait_confirmed(
        self,
        timeout: Duration | None = None,
        prefix: str | bytes = b"",
        *,
        symbols: Iterable[str | bytes] | None = None,
    ) -> None:
        """Wait until publishers have confirmed all subscriptions, including those of callbacks added while running.

        With a `prefix` or `symbols`, only those of slices that may hold such topics. Raises as `start`.
        """
        timeout = seconds("timeout", timeout)
        self._share.wait_confirmed(timeout, TopicChoice.of(self.feed, prefix, symbols))

    def run(
        self, *, until_end: bool = False, timeout: Duration | None = None, silence_timeout: Duration | None = None
    ) -> None:
        """Start (unless running), wait, stop. In the main thread signals stop it; a second one terminates.

        Ends when `stop` or `terminate` is called elsewhere; with `until_end` also when every publisher has closed and
        everything it sent was delivered. A killed publisher never closes: after `silence_timeout` seconds without a
        block or heartbeat from a slice it gives up; None: never. After SIGTERM it raises SystemExit(143), after SIGHUP
        SystemExit(129), once everything received has been delivered. Ctrl-C before the start has finished raises
        KeyboardInterrupt.

        Raises SlowSubscriberError, CallbackError (caused by the callback's exception), SilentPublisherError or
        SubscriberError if one of these ended it; SubscriberError if there are no callbacks. `timeout` is that of
        `start`.
        """
        timeout = seconds("timeout", timeout)
        silence_timeout = seconds("silence_timeout", silence_timeout)
        self._begin_live()
        if not self.callbacks and self.state in (SubscriberLife.NEW, SubscriberLife.RUNNING):
            raise SubscriberError('run was called without callbacks, add one: @subscriber.on(b"") receives all topics')
        try:
            run(self._share, self.start, until_end=until_end, timeout=timeout, silence_timeout=silence_timeout)
        finally:
            self._leave()

    def _check_silence(self, silence_timeout: float | None) -> None:
        """Raise SilentPublisherError if an open slice has been silent for `silence_timeout` seconds."""
        self._share.check_silence(silence_timeout)

    def stop(self, timeout: Duration = 30.0) -> None:
        """Deliver everything received until now, then end. See `terminate` to end at once. Does not wait in a callback.

        Also stops a running replay, as its controls do. Raises what `run` raises; SubscriberError if callbacks take
        longer than `timeout` seconds (it then terminates).
        """
        timeout = seconds("timeout", timeout)
        if not self._replays.stop():
            try:
                self._share.stop(timeout)
            finally:
                self._leave()

    def terminate(self, timeout: Duration = 5.0) -> None:
        """End now: a running callback is finished, queued messages are lost. See `stop` to lose nothing.

        A callback that does not return in `timeout` seconds is abandoned in its daemon thread, and an error is logged.
        """
        timeout = seconds("timeout", timeout)
        if not self._replays.stop():
            self._share.terminate(timeout)
            self._leave()

    def request_stop(self) -> None:
        """Request the end as `stop` does, but return at once: `run` then ends."""
        if not self._replays.stop():
            self._share.request_end()

    def __enter__(self) -> Self:
        return self if self.state is SubscriberLife.RUNNING else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.stop()
        else:
            self.terminate()

    def __repr__(self) -> str:
        return f"Subscriber({self.feed!r}, {len(self.callbacks)} callbacks, {self.state.value})"

    # Information

    def statistics(self) -> Statistics:
        """Return a snapshot of all counters; exact once it has ended."""
        played = self._replays.slices
        return self._supervisor.slices.statistics() if played is None else played.statistics()

    def traces(self) -> list[Trace]:
        """Return the newest traces, up to 255 for each worker of a slice: one message in the feed's `trace_every`.

        Those of the last second are left out while it runs, since relays send their times after the messages. Live
        messages alone are traced.
        """
        return self._supervisor.slices.traces(TraceReader())

    def topics(self, slice_id: int) -> list[bytes]:
        """Return the topics seen in one slice: a batch's `topic_numbers` are indices into this list."""
        played = self._replays.slices
        return self._supervisor.slices.topics(slice_id) if played is None else played.names(slice_id)

    @property
    def is_finished(self) -> bool:
        """True once it has ended, or every publisher has announced its end and everything it sent is with the workers.

        `stop` then raises the error that ended it, as do `run`, `wait_confirmed`, `wait_live` and the end of a `with`
        block.
        """
        return self._share.is_finished

    @property
    def is_done(self) -> bool:
        """True once all its threads and processes have ended; stays False if one hangs and was abandoned."""
        return self._share.is_done
