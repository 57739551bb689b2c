"""What a replay plays: blocks of recordings in order, unpacked, cut to a time range, as columns of addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.errors import JournalError
from blackbox.journal.chunks import Chunk
from blackbox.journal.codec import decompress
from blackbox.journal.layout import CODEC_NONE, OFFSET_BLOCK_HEADER, RECORD_HEAD_BYTES
from blackbox.journal.record import is_whole
from blackbox.journal.segment import Damage, Segment
from blackbox.layout import HEADER_BYTES
from blackbox.replay.cut import cut, is_good, next_inside, next_outside, time_ranges
from blackbox.replay.play import Reel

# Rows of `Scene.columns`; the first ones are those of a `Reel`.
HEAD: Final = 0
BODY: Final = 1
FIRST: Final = 2
RECEIVED: Final = 3
SLICE: Final = 4
CHECKSUM: Final = 5
COUNT: Final = 6
"""Messages of the block that are played."""
NEXT: Final = 7
"""Time of the first of them."""
LOW: Final = 8
HIGH: Final = 9
STAYS: Final = 10
"""1: the body lies in a recording's memory, and stays there as long as it is mapped."""
COLUMNS: Final = 11

BEGINNING: Final = -(1 << 63)
END: Final = (1 << 63) - 1


class Scene(NamedTuple):
    """Blocks to play one after the other. Addresses are good as long as `alive` is kept."""

    columns: NDArray[numpy.int64]
    """int64[COLUMNS, n]."""
    alive: list[object]
    heads: NDArray[numpy.void]
    """RECORD[n]: of each block, the record that it came from."""

    def is_good(self, block: int) -> bool:
        """Whether a block is valid, and its body what its checksum says."""
        return bool(is_good(*self.columns[[HEAD, BODY, CHECKSUM], block].tolist()))

    def damage(self, block: int, what: str) -> Damage:
        """What is wrong with a block."""
        address = int(self.columns[HEAD, block]) - OFFSET_BLOCK_HEADER
        segment = next(s for s in self.alive if isinstance(s, Segment) and 0 <= address - s.address < s.memory.nbytes)
        size = RECORD_HEAD_BYTES + int(self.heads[block]["stored_bytes"])
        return Damage(segment.path, address - segment.address, size, what, int(self.columns[COUNT, block]))

    def fill_times(self, start: int, stop: int) -> None:
        """Find the times of the messages of blocks `[start, stop)`."""
        row = [self.columns[n, start:].ctypes.data for n in (HEAD, BODY, FIRST, NEXT, LOW, HIGH)]
        time_ranges(*row[:3], stop - start, *row[3:])

    def reel(self, start: int, stop: int) -> Reel:
        """Blocks `[start, stop)` for compiled code."""
        head, body, first, received, part, checksum = (self.columns[row, start:].ctypes.data for row in range(6))
        return Reel(head, body, first, received, part, checksum, stop - start)

    def cut(self, block: int, start: int, stop: int) -> Scene:
        """A scene of rows `[start, stop)` of one block."""
        head, body = self.columns[HEAD, block], self.columns[BODY, block]
        old = self.heads[block]
        new_head = numpy.zeros(HEADER_BYTES, numpy.uint8)
        new_body = numpy.empty(int(old["body_bytes"]) + 8, numpy.uint8)
        places = numpy.empty(int(old["topics"]), numpy.int32)
        size = cut(head, body, start, stop, places.ctypes.data, new_head.ctypes.data, new_body.ctypes.data)
        columns = self.columns[:, block : block + 1].copy()
        columns[[HEAD, BODY, FIRST, CHECKSUM, COUNT, STAYS], 0] = (
            new_head.ctypes.data,
            new_body.ctypes.data,
            0,
            -1,
            stop - start,
            0,
        )
        times = new_body[: 8 * (stop - start)].view(numpy.int64)
        columns[[NEXT, LOW, HIGH], 0] = times[0], times.min(), times.max()
        record = self.heads[block : block + 1].copy()
        record[0]["count"], record[0]["sequence"] = stop - start, int(record[0]["sequence"]) + start
        record[0]["body_bytes"] = size
        return Scene(columns, [new_head, new_body], record)


def scenes(
    chunks: Iterator[Chunk],
    by: str,
    start: int,
    stop: int,
    tell: Callable[[Damage], None],
) -> Iterator[Scene]:
    """Scenes of the messages whose time is in `[start, stop)`. What cannot be read is left out, and told."""
    for chunk in chunks:
        scene = _scene(chunk, tell)
        if by != "ts_event":
            scene.columns[NEXT : HIGH + 1] = scene.heads[by]  # chunks hold none outside of the range
            yield scene
            continue
        scene.fill_times(0, len(scene.heads))
        if start == BEGINNING and stop == END:
            yield scene
        else:
            yield from _cut_scene(scene, start, stop, tell)


def _scene(chunk: Chunk, tell: Callable[[Damage], None]) -> Scene:
    heads, addresses = chunk.heads, chunk.addresses
    columns = numpy.empty((COLUMNS, len(heads)), numpy.int64)
    columns[HEAD] = addresses + OFFSET_BLOCK_HEADER
    columns[BODY] = addresses + RECORD_HEAD_BYTES
    columns[FIRST] = heads["first_row"]
    columns[RECEIVED] = heads["ts_recv"]
    columns[SLICE] = heads["slice"]
    columns[CHECKSUM] = heads["stored_checksum"]
    columns[COUNT] = heads["count"] - columns[FIRST]
    columns[STAYS] = 1
    scene = Scene(columns, list(chunk.segments), heads)
    lost: list[int] = []
    for place in numpy.flatnonzero(heads["codec"] != CODEC_NONE).tolist():
        try:
            body = _unpacked(chunk, place)
        except JournalError as error:
            tell(scene.damage(place, str(error)))
            lost.append(place)
            continue
        scene.alive.append(body)
        columns[[BODY, CHECKSUM, STAYS], place] = body.ctypes.data, -1, 0
    if lost:
        return Scene(numpy.delete(columns, lost, axis=1), scene.alive, numpy.delete(heads, lost))
    return scene


def _unpacked(chunk: Chunk, place: int) -> NDArray[numpy.uint8]:
    segment = chunk.segments[chunk.segment_of[place]]
    address = int(chunk.addresses[place])
    if not is_whole(address):
        raise JournalError("body checksum did not match")
    head = chunk.heads[place]
    start = address - segment.address + RECORD_HEAD_BYTES
    stored = segment.memory[start : start + int(head["stored_bytes"])]
    return decompress(int(head["codec"]), stored, int(head["body_bytes"]))


def _cut_scene(scene: Scene, start: int, stop: int, tell: Callable[[Damage], None]) -> Iterator[Scene]:
    """The parts of a scene that are in `[start, stop)`: as few scenes as that takes, in the same order."""
    low, high = scene.columns[LOW], scene.columns[HIGH]
    inside = (low >= start) & (high < stop)
    touched = (high >= start) & (low < stop)
    at = 0
    for block in numpy.flatnonzero(touched & ~inside).tolist():
        yield from _whole(scene, at, block, inside)
        at = block + 1
        head, body = (int(scene.columns[n, block]) for n in (HEAD, BODY))
        if not scene.is_good(block):
            tell(scene.damage(block, "the block is not valid"))
            continue
        row = next_inside(head, body, int(scene.columns[FIRST, block]), start, stop)
        count = int(scene.heads[block]["count"])
        while row < count:
            end = next_outside(head, body, row, start, stop)
            yield scene.cut(block, row, end)
            row = next_inside(head, body, end, start, stop)
    yield from _whole(scene, at, len(inside), inside)


def _whole(scene: Scene, at: int, stop: int, inside: NDArray[numpy.bool_]) -> Iterator[Scene]:
    chosen = at + numpy.flatnonzero(inside[at:stop])
    if len(chosen):
        yield Scene(numpy.ascontiguousarray(scene.columns[:, chosen]), scene.alive, scene.heads[chosen])
