"""Registrations of one subscriber, kept consistent with the slices or the replay that deliver to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from blackbox.errors import ConfigError, SubscriberError
from blackbox.feed.feed import Feed
from blackbox.feed.schema.schema import load_schema
from blackbox.feed.symbol_choice import SymbolChoice, TopicChoice, starts_by_slice
from blackbox.receive.callbacks.callbacks import Callback
from blackbox.receive.callbacks.gap_hooks import GapHook
from blackbox.receive.callbacks.timers import Timer
from blackbox.receive.slices.catching_up import Since
from blackbox.receive.slices.options import Options
from blackbox.receive.stream import Stream
from blackbox.receive.supervise.shared_slices import Share
from blackbox.receive.supervise.supervisor import SubscriberLife, Supervisor
from blackbox.subscriber.replay_session import ReplaySession
from blackbox.subscriber.table import Table


class Registry:
    """Callbacks, timers, hooks and streams of one subscriber. Any thread may change them, also callbacks.

    Attributes: `share` of the `supervisor`, with the `registered` callbacks; `replays`; `processes`, True if each slice
    runs in its own process; `tables`.
    """

    def __init__(self, feed: Feed, options: Options, supervisor: Supervisor, *, processes: bool) -> None:
        self.feed, self.supervisor, self.processes = feed, supervisor, processes
        self.share = Share(supervisor)
        self.registered = self.share.registered
        self.replays = ReplaySession(feed, self.registered, options.on_error)
        self.tables: list[Table] = []
        self._owner = object()

    def add(
        self, callback: Callback, group: str | None, symbols: SymbolChoice | None = None, *, in_slice: bool = False
    ) -> None:
        """Add a callback, limited to `symbols`, to the worker of its group, or the one with the fewest callbacks.

        `in_slice`: to the slice thread. Raises ConfigError if no slice can hold its topics.
        """
        if symbols is not None:
            callback.choose(symbols)
            if not starts_by_slice(self.feed, symbols.starts):
                raise ConfigError(
                    f"feed {self.feed.name!r}: no slice can hold topics of the symbols {sorted(symbols.names)}"
                )
        for prefix in callback.prefixes:
            if not self.feed.slices_for(prefix):
                raise ConfigError(f"feed {self.feed.name!r}: no slice can hold topics that start with {prefix!r}")
        callback.group, callback.owner = group, self._owner
        with self.supervisor.lock:
            self._check_may_change()
            sharers, callbacks = self.supervisor.sharers, self.registered.callbacks
            if sharers.loads and not in_slice:
                least = sharers.loads.index(min(sharers.loads))
                callback.worker = next((c.worker for c in callbacks if group is not None and c.group == group), least)
            if self.share.state is SubscriberLife.RUNNING or self.replays.current is not None:
                self.check([callback])
            sharers.count([callback], 1)
            callbacks.append(callback)
            try:
                self._renew()
            except BaseException:
                self._forget(callback)  # its slice's thread could not be started
                raise

    def add_stream(self, stream: Stream, symbols: SymbolChoice | None, group: str | None) -> None:
        """Add a stream, limited to `symbols`. Raises as `add`."""
        with self.supervisor.lock:
            self.share.add_stream(stream)  # before its first message
            try:
                self.add(Callback("batch", stream.prefix, stream._queue.put), group, symbols)
            except BaseException:
                self.registered.streams.remove(stream)
                raise

    def remove_stream(self, stream: Stream) -> None:
        """Remove a stream that has ended."""
        with self.supervisor.lock:
            if stream in self.registered.streams:
                self.registered.streams.remove(stream)
                if self.share.state in (SubscriberLife.NEW, SubscriberLife.RUNNING):
                    self.remove(stream._queue.put)

    def add_timer(self, timer: Timer) -> None:
        """Add a timer. Raises SubscriberError after the start, or during a replay."""
        with self.supervisor.lock:
            if self.share.state is not SubscriberLife.NEW or self.replays.current is not None:
                raise SubscriberError("every was called while running: call it before start or replay")
            self.registered.timers.append(timer)

    def add_gap_hook(self, topics: TopicChoice, function: Callable[..., object], group: str | None) -> None:
        """Call a function for lost messages of some topics."""
        with self.supervisor.lock:
            self._check_may_change()
            if self.replays.current is not None:
                raise SubscriberError("on_gap was called during a replay: call it before")
            self.registered.gap_hooks.append(GapHook(topics.starts, function, group, self._owner))
            self._renew()

    def add_hook(self, hooks: list[Any], hook: Callable[..., object]) -> None:
        """Add a function to the hooks of an event."""
        with self.supervisor.lock:
            self._check_may_change()
            hooks.append(hook)
            if hooks is self.registered.hooks.on_live:  # tables say which workers have hooks to call
                self._renew()

    def remove(self, function: Callable[..., Any] | Callback) -> None:
        """Remove a function from everything it was registered for. Raises ValueError if it was not registered."""
        registered = self.registered
        with self.supervisor.lock:
            callbacks = [each for each in registered.callbacks if each is function or each.function == function]
            timers = [timer for timer in registered.timers if timer.function == function]
            hooks = [hook for hook in registered.gap_hooks if hook.function == function]
            self._check_may_change()
            of_slices: list[list[Any]] = [each for each in registered.hooks if function in each]
            if not callbacks and not timers and not hooks and not of_slices:
                raise ValueError(f"{function!r} was not registered as a callback")
            for timer in timers:
                timer.active = False
                registered.timers.remove(timer)
            for hook in hooks:
                registered.gap_hooks.remove(hook)
            for each in of_slices:
                each[:] = [hook for hook in each if hook != function]
            for callback in callbacks:
                self._forget(callback)
            self._renew()

    def _forget(self, callback: Callback) -> None:
        callback.active = False
        self.registered.callbacks.remove(callback)
        self.supervisor.sharers.count([callback], -1)
        self.supervisor.slices.remove(callback)

    def _check_may_change(self) -> None:
        state = self.share.state
        if state in (SubscriberLife.STOPPING, SubscriberLife.ENDED):
            self.share.raise_failure()
            raise SubscriberError("callbacks of a subscriber that has ended cannot be changed")
        if state is SubscriberLife.RUNNING and self.processes:
            raise SubscriberError("callbacks cannot be changed while running with processes=True")

    def _renew(self) -> None:
        """Update running slices or replays with the callbacks."""
        self.replays.renew()
        self.share.renew()

    def wanted_prefixes(self) -> list[bytes]:
        """Return what topics of callbacks start with."""
        return [start for callback in self.registered.callbacks for start, _ in callback.starts]

    def expect(self, begin: Callable[[int], Since | None] | None, *, books: bool) -> None:
        """Prepare tables, and with `books` order books, for the beginning of each slice; None: all begin live.

        Books that the archives cannot vouch for are out of sync from the beginning.
        """
        from blackbox.book.books import BookCallback

        starts = {} if begin is None else {slice_id: begin(slice_id) for slice_id in range(len(self.feed.slices))}
        for callback in self.registered.callbacks if books else ():
            if isinstance(callback, BookCallback):
                for slice_id, since in starts.items():
                    if since is not None and since.image is not None:
                        callback.expect_image(slice_id, since.image)
                        if since.is_unsure:
                            callback.function.lose_sync(slice_id)
        for table in self.tables:
            wanted = self.feed.slices_for(table.prefix)
            table._begin({slice_id: since for slice_id, since in starts.items() if slice_id in wanted})

    def check(self, callbacks: Iterable[Callback]) -> None:
        """Raise ConfigError unless the schemas have the fields and types that callbacks use."""
        replay = self.replays.current
        feeds = [] if replay is None else replay.playlist.feeds.of_slice
        schemas = [feed.schema for feed in feeds] or [load_schema(self.feed.schema)]
        for callback in callbacks:
            callback.check(schemas)
