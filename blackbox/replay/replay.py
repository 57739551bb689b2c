"""Replay recordings: in order, paced or at full speed, to a publisher or to callbacks in this process."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypedDict

from blackbox.archive.read.filter import Time, check_options
from blackbox.archive.recording import Recording
from blackbox.archive.recordings import check_one_schema
from blackbox.errors import ConfigError
from blackbox.feed.routing.prefixes import Prefixes
from blackbox.receive.callbacks.timers import Timers
from blackbox.replay.controls import Controls
from blackbox.replay.play.to_wire import PublisherPlayer
from blackbox.replay.playback import Playback, Player, ReplayStatistics
from blackbox.replay.playlist import Choice, Playlist
from blackbox.replay.tables.block_table import warm_up_tables

if TYPE_CHECKING:
    from blackbox.publish.publisher import Publisher

__all__ = ["Player", "Replay", "ReplaySettings", "ReplayStatistics", "check_settings"]


class ReplaySettings(TypedDict, total=False):
    """Keywords of `Replay`, also accepted by `Subscriber.replay`."""

    speed: float | None
    start: Time | None
    stop: Time | None
    prefix: Prefixes
    symbols: Iterable[str | bytes] | None
    slices: Iterable[int] | None
    order: Literal["event", "sent"] | None
    pace_by: Literal["ts_event", "ts_out"] | None
    max_silence: float | timedelta | None
    keep_gaps: bool
    books: bool
    loops: int
    controls: Controls | None


class Replay:
    """Recordings to replay, by `publish` or `Subscriber.replay`; `controls` pause, seek and pace it.

    It can run several times, each time from the beginning, until its controls are stopped.

    By default messages are in market order (`ts_event`), over all slices and recordings. Messages of equal times are
    ordered by feed, as given, then by slice, and within a slice as published; send times have no influence. A message
    without a time follows the one before it in its slice. Without an earlier time, it is played at the latest when it
    was sent. Used by one thread at a time; the controls by any.
    """

    def __init__(
        self,
        recordings: Recording | Iterable[Recording],
        *,
        speed: float | None = None,
        start: Time | None = None,
        stop: Time | None = None,
        prefix: Prefixes = b"",
        symbols: Iterable[str | bytes] | None = None,
        slices: Iterable[int] | None = None,
        order: Literal["event", "sent"] | None = None,
        pace_by: Literal["ts_event", "ts_out"] | None = None,
        max_silence: float | timedelta | None = None,
        keep_gaps: bool = False,
        books: bool = False,
        loops: int = 1,
        controls: Controls | None = None,
    ) -> None:
        """Settings. Nothing is read before it runs.

        Args:
            recordings: one, or several that are played as one, in time order. Duplicates are played once.
            speed: seconds of market time per second; None: unlimited. Change it by `controls.speed`.
            start: the first time to play, by `pace_by`; see `Recording.time`. A time of day applies to each day.
            stop: the end of the times, exclusive, likewise.
            prefix: only messages whose topics start with it, or with one of several.
            symbols: only messages of exactly these symbols, see `Subscriber.on`.
            slices: only these slices.
            order: "event": by the venue's time. "sent": block by block as sent, slices merged. Default: the venue's
                time, if messages have one and `pace_by` is not "ts_out".
            pace_by: the time that is market time: the venue's or the publisher's. Default: the venue's if messages
                have one.
            max_silence: longest silence of market time, in seconds or a `timedelta`. Longer ones are shortened.
            keep_gaps: when publishing, skip the sequence numbers that are missing in the recording. Subscribers then
                see the recorder's gaps, and one where a time range excludes blocks between others. By default sequences
                are consecutive. Cannot be combined with a prefix or symbols; implies order "sent".
            books: before playing from `start`, or after a seek, build the order books of `Subscriber.book` from the
                beginning of the recordings (of each day, for a time of day). Other callbacks do not get these messages.
                A stop or seek interrupts it; a paused replay pauses after it.
            loops: number of repetitions; 0: until it is stopped.
            controls: your own controls, instead of `speed` and `max_silence`.

        Raises:
            ConfigError: there is no recording, they do not fit together (see `Recordings`), or settings contradict.
            ValueError: a value is out of range.
        """
        self.playlist = Playlist(
            recordings, Choice(start, stop, prefix, symbols, slices, order, pace_by, keep_gaps=keep_gaps)
        )
        if loops < 0:
            raise ValueError(f"loops was {loops}, expected 0 or more")
        if controls is not None and (speed is not None or max_silence is not None):
            raise ValueError("controls were given together with a speed or max_silence, expected one of the two")
        self.controls = controls or Controls(speed, max_silence)
        self.builds_books = books
        self._keep_gaps, self._loops = keep_gaps, loops
        self._playback: Playback | None = None

    def publish(self, publisher: Publisher) -> ReplayStatistics:
        """Publish as if live: `ts_out` is the time of sending, so subscribers cannot tell the difference.

        Large bodies are sent as recorded if the publisher's feed has the same slices and keys. Other messages are
        published again, in new blocks. The publisher's `when_full` decides whether slow subscribers block it or lose
        messages. Returns when the publisher has accepted everything; then `flush` or `close` it.

        Raises ConfigError if the publisher's feed has another schema, or other slices with `keep_gaps`.
        """
        if self.builds_books:
            raise ConfigError("books was set for a replay that is published, expected one to callbacks")
        playlist = self.playlist
        feeds = [recording.feed for recording in playlist.recordings]
        player = PublisherPlayer(publisher, feeds, self._keep_gaps, playlist.feeds.recorded)
        check_one_schema(playlist.recordings)
        return self.run(player)

    def run(self, player: Player, timers: Timers | None = None) -> ReplayStatistics:
        """Play to a player. `timers` are called between messages, by market time."""
        warm_up_tables()
        self._playback = Playback(self.playlist, player, self.controls, timers or Timers((), lambda _: True))
        self._playback.run(self._loops, builds_books=self.builds_books)
        return self._playback.statistics()

    def statistics(self) -> ReplayStatistics:
        """Return the counters so far; exact after the end."""
        return ReplayStatistics() if self._playback is None else self._playback.statistics()


def check_settings(recordings: object, settings: Iterable[str]) -> None:
    """Raise TypeError for settings given with a `Replay`, which has its own."""
    if isinstance(recordings, Replay):
        for name in settings:
            raise TypeError(f"{name} was given with a Replay, pass it when the Replay is created")
    check_options(settings, ReplaySettings.__optional_keys__)
