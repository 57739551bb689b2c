"""Read several recordings as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from blackbox.archive.by_time import ByTime
from blackbox.archive.filter import Clock, Filter
from blackbox.archive.reader import Bodies, RecordRun, Report, read_runs
from blackbox.archive.recording import Recording
from blackbox.archive.segment import Damage, Segment
from blackbox.errors import ConfigError


def runs_of(
    recordings: Iterable[Recording],
    prefix: bytes = b"",
    start: int | None = None,
    stop: int | None = None,
    slices: Iterable[int] | None = None,
    by: Clock = "ts_event",
    *,
    bodies: Bodies = "checked",
    kept: int = 0,
    ahead: int = 0,
) -> Iterator[RecordRun]:
    """Do as `Recording.runs`, for several recordings in one order. Times are ns since 1970; the rest: see `read_runs`.

    Raises ConfigError when their feeds have different `key_bytes`.
    """
    return read_runs(*_chosen(recordings, prefix, start, stop, slices, by), bodies=bodies, kept=kept, ahead=ahead)


def by_time(
    recordings: Iterable[Recording],
    prefix: bytes = b"",
    start: int | None = None,
    stop: int | None = None,
    slices: Iterable[int] | None = None,
) -> ByTime:
    """Return several recordings for reading by `ts_event`. Raises as `runs_of`."""
    return ByTime(*_chosen(recordings, prefix, start, stop, slices, "ts_event"))


def _chosen(
    recordings: Iterable[Recording],
    prefix: bytes,
    start: int | None,
    stop: int | None,
    slices: Iterable[int] | None,
    by: Clock,
) -> tuple[list[list[Segment]], Filter, Report]:
    """Return the segments of each slice, what is wanted of them, and who is told of damage."""
    recordings = tuple(recordings)
    sizes = {recording.feed.key_bytes for recording in recordings}
    if len(sizes) > 1:
        raise ConfigError(f"recordings had feeds of key_bytes {sorted(sizes)}, expected the same in all")
    chosen = None if slices is None else tuple(slices)
    streams = [stream for recording in recordings for stream in recording.streams(prefix, chosen)]

    def report(damage: Damage) -> None:
        next(r for r in recordings if damage.path.is_relative_to(r.path)).note(damage)

    return streams, Filter(sizes.pop(), prefix, None, start, stop, by), report
