"""The messages that a venue server has sent so far, on disk, found by sequence.

A message is stored as its protocol frames it: `length 2 | message`, or `length 2 | type 1 | message`. The position of a
message is the number of bytes before it, over the whole session.
"""

from __future__ import annotations

import math
import os
import tempfile
from array import array
from bisect import bisect_right
from collections import deque
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.errors import ConfigError, EndpointError
from blackbox.native.compile.jit import njit, warm_up
from blackbox.native.memory.intrinsics import copy_bytes
from blackbox.replay.play.venue_server import VenueMessages

_MARK_EVERY: Final = 64
"""Messages between two known positions."""
_SEGMENT_BYTES: Final = 256 << 20
_MIB: Final = 1 << 20
_LONGEST: Final = 0xFFFF
_FOLDER: Final = "/var/tmp"
NO_TYPE: Final = -1


def check_linger(seconds: float) -> None:
    """Raise ConfigError for an invalid time in which a server answers after the end of its session."""
    if not 0 <= seconds < math.inf:
        raise ConfigError(f"linger was {seconds}, expected 0 or more seconds")


class Framing(NamedTuple):
    """The form of a stored message."""

    is_big_endian: bool
    type: int = NO_TYPE
    """Byte between length and message, which the length counts; NO_TYPE: none."""

    @property
    def head_bytes(self) -> int:
        """Bytes before each message."""
        return 2 if self.type == NO_TYPE else 3


class Frames(NamedTuple):
    """Consecutive messages, framed."""

    first: int
    """Sequence of the first one."""
    position: int
    """Position of the first one."""
    data: NDArray[numpy.uint8]
    offsets: NDArray[numpy.int64]
    """int64[n + 1]: start of each frame in `data`, and the end of the last one."""


@njit(nogil=True, cache=True)
def _frame(
    addresses: NDArray[numpy.int64],
    lengths: NDArray[numpy.int32],
    offsets: NDArray[numpy.int64],
    is_big_endian: bool,
    kind: int,
    data: NDArray[numpy.uint8],
) -> None:
    """Copy payloads behind their lengths."""
    target = data.ctypes.data
    for row in range(len(addresses)):
        place = offsets[row]
        size = numpy.int64(lengths[row]) + (kind >= 0)
        high, low = numpy.uint8(size >> 8), numpy.uint8(size & 0xFF)
        data[place] = high if is_big_endian else low
        data[place + 1] = low if is_big_endian else high
        place += 2
        if kind >= 0:
            data[place] = kind
            place += 1
        copy_bytes(target + place, addresses[row], numpy.int64(lengths[row]))


@njit(nogil=True, cache=True)
def _find_frames(data: NDArray[numpy.uint8], is_big_endian: bool, most: int, offsets: NDArray[numpy.int64]) -> int:
    """Write the offsets of the frames in `data`, at most `most`. Return how many are complete."""
    found, place = 0, numpy.int64(0)
    offsets[0] = 0
    while found < most and place + 2 <= len(data):
        first, second = numpy.int64(data[place]), numpy.int64(data[place + 1])
        place += 2 + (first << 8 | second if is_big_endian else second << 8 | first)
        if place > len(data):
            break
        found += 1
        offsets[found] = place
    return found


class _Segment:
    """A temporary file with the frames from one position on."""

    def __init__(self, directory: str, first: int, position: int) -> None:
        self.first, self.position = first, position
        self.marks = array("q")
        """Position of every 64th message from the first one on."""
        self.size = 0
        self.file: Any = tempfile.TemporaryFile(dir=directory, prefix="blackbox-sent-")  # noqa: SIM115 - closed by `drop`


class SentStream:
    """Appends messages and reads them again. The caller locks it: one thread appends, another one reads.

    Attributes: `next`, sequence of the next message, from 1 on; `position` of the next message.
    """

    def __init__(self, framing: Framing, store: str | None, keep_mib: int) -> None:
        """`store`: directory of the files. Beyond `keep_mib` the oldest are dropped. Raises ConfigError."""
        self.framing = framing
        self._directory = _FOLDER if store is None else store
        if not Path(self._directory).is_dir():
            raise ConfigError(f"store was {self._directory!r}, which is not a directory")
        if keep_mib < 1:
            raise ConfigError(f"keep_mib was {keep_mib}, expected 1 or more")
        self._segment_bytes = min(_SEGMENT_BYTES, max(1, keep_mib * _MIB // 4))
        self._most_segments = -(-keep_mib * _MIB // self._segment_bytes)
        self._segments: deque[_Segment] = deque()
        self.next, self.position = 1, 0
        nothing = numpy.zeros(0, numpy.uint8)
        warm_up(_frame, *(numpy.zeros(0, kind) for kind in ("i8", "i4", "i8")), True, NO_TYPE, nothing)
        warm_up(_find_frames, nothing, True, 0, numpy.zeros(1, numpy.int64))

    @property
    def first(self) -> int:
        """Sequence of the oldest message that is kept; `next` if none is."""
        return self._segments[0].first if self._segments else self.next

    def append(self, messages: VenueMessages) -> Frames:
        """Store messages. Return them framed.

        Raises ConfigError if a message is too long for the protocol, and EndpointError if the disk is full.
        """
        framing = self.framing
        many = len(messages.lengths)
        longest = int(messages.lengths.max(initial=0))
        if longest + framing.head_bytes - 2 > _LONGEST:
            raise ConfigError(f"a message had {longest} bytes, expected at most {_LONGEST + 2 - framing.head_bytes}")
        offsets = numpy.zeros(many + 1, numpy.int64)
        numpy.cumsum(messages.lengths, out=offsets[1:])
        offsets += framing.head_bytes * numpy.arange(many + 1)
        data = numpy.empty(int(offsets[-1]), numpy.uint8)
        _frame(messages.addresses, messages.lengths, offsets, framing.is_big_endian, framing.type, data)
        frames = Frames(self.next, self.position, data, offsets)
        self._store(frames)
        self.next += many
        self.position += len(data)
        return frames

    def _store(self, frames: Frames) -> None:
        segments = self._segments
        if not segments or segments[-1].size >= self._segment_bytes:
            segments.append(_Segment(self._directory, frames.first, frames.position))
            if len(segments) > self._most_segments:
                segments.popleft().file.close()
        segment = segments[-1]
        ahead = (segment.first - frames.first) % _MARK_EVERY
        segment.marks.frombytes((frames.position + frames.offsets[ahead:-1:_MARK_EVERY]).tobytes())
        view, at = frames.data.data, segment.size
        try:
            while view:
                written = os.pwrite(segment.file.fileno(), view, at)
                view, at = view[written:], at + written
        except OSError as error:
            raise EndpointError(
                error.errno,
                f"the messages sent cannot be kept in {self._directory}: {error.strerror}: choose another directory "
                "with store=, or keep less with keep_mib=",
            ) from error
        segment.size = at

    def read(self, first: int, count: int, most_bytes: int) -> Frames | None:
        """Return up to `count` messages from sequence `first` on, in at most `most_bytes`; at least one.

        None: `first` is not kept, or not sent yet. All returned messages are of one file, so there may be fewer.
        """
        if not self.first <= first < self.next:
            return None
        segment = self._segments[bisect_right([each.first for each in self._segments], first) - 1]
        mark, skipped = divmod(first - segment.first, _MARK_EVERY)
        most = min(count, self.next - first)
        start = self._mark(segment, mark)
        skipped_bytes = self._mark(segment, mark + 1) - start
        end = self._mark(segment, mark + -(-(skipped + most) // _MARK_EVERY))
        size = min(end - start, skipped_bytes + max(most_bytes, _LONGEST + 2))
        data = numpy.frombuffer(os.pread(segment.file.fileno(), size, start), numpy.uint8)
        offsets = numpy.zeros(skipped + most + 1, numpy.int64)
        found = _find_frames(data, self.framing.is_big_endian, skipped + most, offsets)
        offsets = offsets[skipped : found + 1]
        fitting = int(numpy.searchsorted(offsets - offsets[0], most_bytes, side="right"))
        offsets = offsets[: max(2, fitting)]
        begin, end = int(offsets[0]), int(offsets[-1])
        return Frames(first, segment.position + start + begin, data[begin:end], offsets - begin)

    @staticmethod
    def _mark(segment: _Segment, mark: int) -> int:
        """Return the offset of a mark in its file, or the end of the file."""
        return segment.marks[mark] - segment.position if mark < len(segment.marks) else segment.size

    def position_of(self, sequence: int) -> int | None:
        """Return the position of a message, or of the next one to be sent; None: it is not kept."""
        if sequence == self.next:
            return self.position
        frames = self.read(sequence, 1, 1)
        return None if frames is None else frames.position

    def file_at(self, position: int) -> tuple[int, int, int] | None:
        """Return the descriptor, the offset and the number of bytes stored there from a position on.

        None: it is not kept. The number of bytes is 0 at the end.
        """
        if position == self.position:
            return -1, 0, 0
        if not self._segments or not self._segments[0].position <= position < self.position:
            return None
        segment = self._segments[bisect_right([each.position for each in self._segments], position) - 1]
        at = position - segment.position
        return segment.file.fileno(), at, segment.size - at

    def close(self) -> None:
        """Delete the files."""
        while self._segments:
            self._segments.popleft().file.close()
