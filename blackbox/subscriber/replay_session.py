"""The replays of a subscriber: one at a time, instead of live messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blackbox.errors import ConfigError, SubscriberError
from blackbox.feed.feed import Feed
from blackbox.receive.supervise.sharers import Registered

if TYPE_CHECKING:
    from blackbox.replay.play.played_slices import PlayedSlices
    from blackbox.replay.play.to_callbacks import CallbackPlayer
    from blackbox.replay.replay import Replay, ReplayStatistics


class ReplaySession:
    """Plays to a subscriber's callbacks. Topic numbers and counters continue from one replay to the next.

    Attributes: `current`, the running replay; `slices` of the newest replay, None before the first and once live.
    """

    def __init__(self, feed: Feed, registered: Registered, on_error: str) -> None:
        self._feed, self._registered, self._on_error = feed, registered, on_error
        self.current: Replay | None = None
        self.slices: PlayedSlices | None = None
        self._player: CallbackPlayer | None = None

    def begin(self, replay: Replay) -> None:
        """Prepare a replay; `run` follows. Raises SubscriberError during another one; ConfigError."""
        from blackbox.replay.play.to_callbacks import CallbackPlayer

        if self.current is not None:
            raise SubscriberError("replay was called during another replay")
        if replay.builds_books and all(callback.kind != "book" for callback in self._registered.callbacks):
            raise ConfigError(
                "books was set for a replay to a subscriber without order books, expected "
                "`book = subscriber.book(prefix)` before it, or books=False"
            )
        player = CallbackPlayer(replay.playlist, self._registered, self._on_error, self.slices)
        self._player, self.slices, self.current = player, player.slices, replay

    def run(self) -> ReplayStatistics:
        """Play. Raises as `Subscriber.replay`."""
        replay, player, streams = self.current, self._player, self._registered.streams
        assert replay is not None
        assert player is not None
        try:
            self._check(replay)
            for stream in tuple(streams):
                stream._queue.begin()
            return replay.run(player, player.timers)
        except BaseException as error:
            for stream in tuple(streams):
                stream._queue.end(failure=error)
            raise
        finally:
            for stream in tuple(streams):
                stream._queue.end()
            player.close()  # first: its workers may still play, and another replay would share their tables
            self.current = self._player = None

    def _check(self, replay: Replay) -> None:
        """Raise ConfigError if callbacks need other fields, types or symbols than the replayed feeds have."""
        callbacks, feeds, rule = (
            tuple(self._registered.callbacks),
            replay.playlist.feeds.of_slice,
            self._feed.symbol_rule,
        )
        for callback in callbacks:
            callback.check([feed.schema for feed in feeds])
        other = next((feed for feed in feeds if feed.symbol_rule != rule), None)
        if other is not None and any(callback.symbols is not None for callback in callbacks):
            raise ConfigError(
                f"callbacks chose symbols by {rule} of feed {self._feed.name!r}, but feed {other.name!r} has "
                f"{other.symbol_rule}: choose its topics by prefix"
            )

    def renew(self) -> None:
        """Play to the callbacks as they are now."""
        if (player := self._player) is not None:
            player.change(self._registered.callbacks)

    def stop(self) -> bool:
        """Stop the current replay after its current delivery. Return True if one is running."""
        if (replay := self.current) is None:
            return False
        replay.controls.stop()
        for stream in tuple(self._registered.streams):
            stream._queue.end(at_once=False)
        return True
