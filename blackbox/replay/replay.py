"""Replay recordings: in order, paced or as fast as they are taken, onto the wire or to callbacks in this process."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Final, Literal, Protocol

import msgspec
import numpy

from blackbox.errors import ConfigError
from blackbox.recording import Recording, Time, chunks_of
from blackbox.replay.ahead import DEPTH, ahead
from blackbox.replay.controls import ANY, Controls, Grant, Kind
from blackbox.replay.cut import next_beyond
from blackbox.replay.look import BODY, BODY_BYTES, COUNT, FAULT, FIRST, HEAD, HIGH, NEXT, UNSEEN
from blackbox.replay.scenes import BEGINNING, END, Choice, Scene, scenes, warm_up_scenes
from blackbox.replay.wire import Wire
from blackbox.warmup import warm_up

if TYPE_CHECKING:
    from blackbox.publisher import Publisher
    from blackbox.schema import Schema


_LOOK_BYTES: Final = 4 << 20
"""As much is looked at and played at a time, but to compiled callbacks: it is in cache then, and nothing waits long."""


class Player(Protocol):
    """What takes the blocks of a replay."""

    @property
    def reads_ahead(self) -> bool:
        """Whether another thread may read while this plays: not where Python runs for every message."""

    @property
    def looks(self) -> bool:
        """Whether it takes blocks that nobody has looked at, and does so itself."""

    def play(self, scene: Scene, start: int, stop: int) -> None:
        """Take those of blocks `[start, stop)` of a scene that are valid and have messages that are wanted."""

    def jump(self, *, is_back: bool) -> None:
        """What follows does not go on where it was. `is_back`: messages may come that came before."""


class ReplayStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay has played; what was played again, after a seek or in a loop, is counted again."""

    messages: int
    """Messages played, exactly."""
    blocks: int
    """Blocks of the recording that were played to their end."""
    body_bytes: int
    """Bytes of the bodies of these blocks."""
    seconds: float
    """How long it took."""
    market_seconds: float
    """How much market time went by in it."""
    damaged: int
    """Messages left out since their block could not be read."""

    @property
    def times_faster(self) -> float:
        """Market time over the time that it took."""
        return self.market_seconds / self.seconds if self.seconds else 0.0


class Replay:
    """Recordings, played again by `publish` or `Subscriber.replay`, and steered by `controls`.

    It can be run again, from the beginning, unless its controls were told to stop.

    Blocks come in the order in which they were sent (`ts_out`), slices merged; each slice in its own order.
    """

    def __init__(
        self,
        recordings: Recording | Iterable[Recording],
        *,
        speed: float | None = None,
        start: Time | None = None,
        stop: Time | None = None,
        prefix: bytes = b"",
        slices: Iterable[int] | None = None,
        pace_by: Literal["ts_event", "ts_out"] | None = None,
        max_silence_ns: int | None = None,
        keep_gaps: bool = False,
        loops: int = 1,
        controls: Controls | None = None,
    ) -> None:
        """Settings; nothing is read before it is run.

        Args:
            recordings: one, or several, which are played as one, in time order.
            speed: seconds of market time in a second; None: as fast as it is taken. Change it by `controls.speed`.
            start: the first time to play, see `Recording.time`. By `pace_by`.
            stop: the time to stop before.
            prefix: only messages whose topics start with it.
            slices: only these.
            pace_by: which time is market time: the venue's, or the publisher's. Default: the venue's if there is any.
            max_silence_ns: cut longer silences of market time to this.
            keep_gaps: on the wire, leave out the sequence numbers that are missing in the recording: subscribers see
                the gaps that its recorder saw (and one where a time range leaves blocks out between others). Otherwise
                numbers run on. Not beside a prefix.
            loops: how many times, one after the other; 0: until it is stopped.
            controls: what steers it, instead of `speed` and `max_silence_ns`.
        """
        if keep_gaps and prefix:
            raise ConfigError(f"keep_gaps was set beside prefix {prefix!r}: what is left out would look like gaps too")
        given = (recordings,) if isinstance(recordings, Recording) else tuple(recordings)
        if not given:
            raise ConfigError("a replay was given no recording, expected at least one")
        for name, values in (
            ("schema", {recording.feed.schema for recording in given}),
            ("key_bytes", {recording.feed.key_bytes for recording in given}),
        ):
            if len(values) > 1:
                raise ConfigError(f"recordings had feeds of {name} {sorted(values)}, expected the same in all")
        self._slices = None if slices is None else tuple(slices)
        there = min(len(recording.feed.slices) for recording in given)
        if unknown := sorted(set(self._slices or ()).difference(range(there))):
            raise ValueError(f"slices had {unknown[0]}, expected 0 to {there - 1}")
        self.recordings = tuple(sorted(given, key=lambda recording: recording.date))
        if loops < 0:
            raise ValueError(f"loops was {loops}, expected 0 or more")
        if pace_by not in (None, "ts_event", "ts_out"):
            raise ValueError(f"pace_by was {pace_by!r}, expected 'ts_event' or 'ts_out'")
        if controls is not None and (speed is not None or max_silence_ns is not None):
            raise ValueError("controls were given beside a speed or max_silence_ns, expected one of the two")
        self.controls = controls or Controls(speed, max_silence_ns)
        self.prefix = prefix
        self._pace_by = pace_by or self._usual_clock()
        self._choice = Choice(given[0].feed.key_bytes, prefix, self._pace_by)
        self._start = BEGINNING if start is None else self.recordings[0].time(start, self._pace_by)
        self._stop = END if stop is None else self.recordings[-1].time(stop, self._pace_by)
        self._keep_gaps = keep_gaps
        self._loops = loops
        self._messages = self._blocks = self._body_bytes = self._damaged = 0
        self._market_ns = 0
        self._position_ns = 0
        self._played_to = BEGINNING
        """The highest time played since time last went back."""
        self._seconds = 0.0

    def publish(self, publisher: Publisher) -> ReplayStatistics:
        """Play it on a publisher, as if it were live: blocks are stamped anew, subscribers cannot tell.

        Bodies are sent straight from the recording where the publisher's feed has the same slices and `key_bytes`;
        otherwise messages are published anew. Slow subscribers wait or lose as the publisher's `when_full` says.
        Returns once the publisher has taken everything; `Publisher.flush` and `close` see to the rest.
        """
        feeds = [recording.feed for recording in self.recordings]
        return self.run(Wire(publisher, feeds, self.prefix, self._keep_gaps))

    @property
    def schema(self) -> Schema:
        """Of the first recording."""
        return self.recordings[0].schema

    def run(self, player: Player) -> ReplayStatistics:
        """Play it to whatever takes blocks."""
        warm_up_scenes()
        warm_up(next_beyond, 0, 0, 0, 0, 0, 0, 0)
        first_ns, last_ns = self._market_range()
        self._messages = self._blocks = self._body_bytes = self._damaged = 0
        self._market_ns = 0
        controls = self.controls
        controls.begin(first_ns, last_ns)
        began = time.perf_counter()
        try:
            self._play(player, first_ns)
        finally:
            controls.end()
            self._seconds = time.perf_counter() - began
        return self.statistics()

    def _play(self, player: Player, first_ns: int) -> None:
        left = self._loops or -1
        start = self._start
        self._position_ns, self._played_to = first_ns, BEGINNING
        while left:
            before = self._messages
            ended = self._play_from(player, start)
            if ended is None:
                left -= 1
                if self._messages == before and start == self._start:
                    return  # there is nothing to be played again
                if left:
                    self.controls.rewind()
                    start = self._jump(player, first_ns, first_ns)
            elif ended.kind is Kind.SEEK:
                start = self._jump(player, ended.seek_to_ns, first_ns)
            else:
                return

    def _jump(self, player: Player, to_ns: int, first_ns: int) -> int:
        """Go on from a market time; returns the first time to be played."""
        is_back = to_ns <= self._played_to
        player.jump(is_back=is_back)
        if is_back:
            self._played_to = BEGINNING
        self._position_ns = to_ns
        return self._start if to_ns <= first_ns else max(self._start, to_ns)

    def statistics(self) -> ReplayStatistics:
        """What it has played so far; exact once it has ended."""
        return ReplayStatistics(
            messages=self._messages,
            blocks=self._blocks,
            body_bytes=self._body_bytes,
            seconds=self._seconds,
            market_seconds=self._market_ns / 1e9,
            damaged=self._damaged,
        )

    def _usual_clock(self) -> Literal["ts_event", "ts_out"]:
        return "ts_event" if any(r.time_range("ts_event")[1] > 0 for r in self.recordings) else "ts_out"

    def _market_range(self) -> tuple[int, int]:
        ranges = [r.time_range(self._pace_by) for r in self.recordings]
        known = [(low, high) for low, high in ranges if high >= low]
        low = min((low for low, _ in known), default=0)
        high = max((high for _, high in known), default=0)
        start = max(low, self._start)
        return start, max(start, min(high, self._stop - 1))

    def _play_from(self, player: Player, start: int) -> Grant | None:
        """Play from a time on; returns the grant that says not to go on, or None at the end."""
        read = self._scenes(start, looked_at=player.reads_ahead and not player.looks)
        with closing(ahead(read) if player.reads_ahead else read) as found:  # also when an error keeps this frame
            for scene in found:
                grant = self._play_scene(player, scene)
                if grant is not None:
                    return grant
        return None

    def _scenes(self, start: int, *, looked_at: bool) -> Generator[Scene, None, None]:
        by, stop = self._pace_by, self._stop
        chunks = chunks_of(
            self.recordings,
            self.prefix,
            None if start == BEGINNING else start,
            None if stop == END else stop,
            self._slices,
            by,
            DEPTH + 2,  # what is made, what waits, what is played
        )
        self._choice.start, self._choice.stop = start, stop
        return scenes(chunks, self._choice, looked_at=looked_at)

    def _play_scene(self, player: Player, scene: Scene) -> Grant | None:
        columns = scene.columns
        blocks = columns.shape[1]
        at = 0
        while at < blocks:
            if columns[FAULT, at] == UNSEEN:
                scene.look(at, at + 1)
            if columns[COUNT, at] == 0:
                at = self._pass_over(scene, at)
                continue
            grant = self.controls.wait(int(columns[NEXT, at]))
            if grant.kind is not Kind.GO:
                return grant
            whole = blocks - at
            is_limited = grant.until_ns != ANY or grant.messages != ANY
            if is_limited or not player.looks:
                whole = _look_ahead(scene, at) - at
            if is_limited:
                next_ones = columns[:, at : at + whole]
                fits = (next_ones[HIGH] <= grant.until_ns) & (next_ones[COUNT].cumsum() <= grant.messages)
                whole = whole if fits.all() else int(fits.argmin())
            if whole:
                self._take(player, scene, at, at + whole)
                at += whole
            else:
                self._take_rows(player, scene, at, grant)
        return None

    def _pass_over(self, scene: Scene, at: int) -> int:
        """Go on to a block with messages that are wanted, or behind those looked at now; tell of damages on the way."""
        stop = _look_ahead(scene, at)
        wanted = numpy.flatnonzero(scene.columns[COUNT, at:stop])
        stop = at + int(wanted[0]) if len(wanted) else stop
        self._tell_damages(scene, at, stop)
        return stop

    def _take_rows(self, player: Player, scene: Scene, block: int, grant: Grant) -> None:
        """Play the rows of a block that are due, which are not all of it."""
        head, body, first = (int(scene.columns[n, block]) for n in (HEAD, BODY, FIRST))
        until_ns = grant.until_ns if self._pace_by == "ts_event" else ANY
        wish = self._choice.wish
        end = next_beyond(head, body, first, until_ns, grant.messages, wish.prefix, wish.prefix_bytes)
        self._play_blocks(player, scene.cut(block, first, end), 0, 1)
        scene.columns[FIRST, block] = end
        scene.look(block, block + 1)

    def _take(self, player: Player, scene: Scene, start: int, stop: int) -> None:
        """Play blocks to their end, and tell of those that cannot be."""
        self._play_blocks(player, scene, start, stop)
        self._tell_damages(scene, start, stop)
        played = start + numpy.flatnonzero(scene.columns[COUNT, start:stop])
        self._blocks += len(played)
        self._body_bytes += int(scene.heads["body_bytes"][played].sum())

    def _play_blocks(self, player: Player, scene: Scene, start: int, stop: int) -> None:
        player.play(scene, start, stop)
        counts = scene.columns[COUNT, start:stop]
        messages = int(counts.sum())
        if not messages:
            return
        self._messages += messages
        high = int(scene.columns[HIGH, start:stop][counts > 0].max())
        self._played_to = max(self._played_to, high)
        if high > self._position_ns:
            self._market_ns += high - self._position_ns
            self._position_ns = high
        self.controls.played(messages, high)

    def _tell_damages(self, scene: Scene, start: int, stop: int) -> None:
        for damage in scene.damages(start, stop):
            self._damaged += damage.messages
            for recording in self.recordings:
                if damage.path.is_relative_to(recording.path):
                    recording.note(damage)
                    break


def _look_ahead(scene: Scene, at: int) -> int:
    """See that blocks from `at` on, some _LOOK_BYTES of them, have been looked at; returns where they end."""
    columns = scene.columns
    stop = min(columns.shape[1], at + 1 + int(columns[BODY_BYTES, at:].cumsum().searchsorted(_LOOK_BYTES)))
    if (columns[FAULT, at:stop] == UNSEEN).any():
        scene.look(at, stop)
    return stop
