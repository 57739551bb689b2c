"""What a replay plays: blocks of recordings in order, unpacked, cut to a time range, as columns of addresses."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.check import FAULT_TEXT, Fault
from blackbox.errors import JournalError
from blackbox.journal.blocks import unpack
from blackbox.journal.chunks import Chunk
from blackbox.journal.layout import CODEC_NONE, OFFSET_BLOCK_HEADER, RECORD_HEAD_BYTES, record_bytes
from blackbox.journal.segment import Damage, Segment
from blackbox.layout import HEADER_BYTES
from blackbox.replay.cut import cut, find_faults, measure, next_inside, next_outside
from blackbox.replay.play import Reel
from blackbox.warmup import warm_up

# Rows of `Scene.columns`; the first ones are those of a `Reel`.
HEAD: Final = 0
BODY: Final = 1
FIRST: Final = 2
RECEIVED: Final = 3
SLICE: Final = 4
COUNT: Final = 5
"""Messages of the block that are played: those from the first row on whose topic has the prefix."""
NEXT: Final = 6
"""Time of the first of them."""
LOW: Final = 7
HIGH: Final = 8
STAYS: Final = 9
"""1: the body lies in a recording's memory, and stays there as long as it is mapped."""
COLUMNS: Final = 10

BEGINNING: Final = -(1 << 63)
END: Final = (1 << 63) - 1


class Choice:
    """Which messages are played: `by` is what their times are, `[start, stop)` the range of them."""

    def __init__(self, key_bytes: int, prefix: bytes, by: str) -> None:
        self.key_bytes = key_bytes
        self.prefix = prefix
        self.by = by
        self.start, self.stop = BEGINNING, END
        self._text = numpy.frombuffer(prefix or b"\0", numpy.uint8)

    @property
    def at(self) -> tuple[int, int]:
        """The prefix's address and size."""
        return self._text.ctypes.data, len(self.prefix)


class Scene(NamedTuple):
    """Blocks to play one after the other. Addresses are good as long as `alive` is kept."""

    columns: NDArray[numpy.int64]
    """int64[COLUMNS, n]."""
    alive: list[object]
    heads: NDArray[numpy.void]
    """RECORD[n]: of each block, the record that it came from."""

    def damage(self, block: int, what: str) -> Damage:
        """What is wrong with a block, in the words of `Recording.batches`."""
        address = int(self.columns[HEAD, block]) - OFFSET_BLOCK_HEADER
        segment = next(s for s in self.alive if isinstance(s, Segment) and 0 <= address - s.address < s.memory.nbytes)
        head = self.heads[block]
        messages = int(head["count"]) - int(head["first_row"])
        return Damage(segment.path, address - segment.address, record_bytes(int(head["stored_bytes"])), what, messages)

    def measure(self, choice: Choice, start: int, stop: int) -> None:
        """Find how many messages of blocks `[start, stop)` are played, and their times."""
        row = [self.columns[n, start:].ctypes.data for n in (HEAD, BODY, FIRST, COUNT, NEXT, LOW, HIGH)]
        measure(*row[:3], stop - start, *choice.at, *row[3:])
        if choice.by != "ts_event":
            self.columns[NEXT : HIGH + 1, start:stop] = self.heads[choice.by][start:stop]

    def part(self, start: int, stop: int) -> Scene:
        """Blocks `[start, stop)`."""
        return Scene(self.columns[:, start:stop], self.alive, self.heads[start:stop])

    def reel(self, start: int, stop: int) -> Reel:
        """Blocks `[start, stop)` for compiled code."""
        head, body, first, received, part = (self.columns[row, start:].ctypes.data for row in range(5))
        return Reel(head, body, first, received, part, stop - start)

    def cut(self, block: int, start: int, stop: int, choice: Choice) -> Scene:
        """A scene of rows `[start, stop)` of one block. Its record is still that of the whole block."""
        head, body = self.columns[HEAD, block], self.columns[BODY, block]
        new_head = numpy.zeros(HEADER_BYTES, numpy.uint8)
        new_body = numpy.empty(int(self.heads[block]["body_bytes"]) + 8, numpy.uint8)
        places = numpy.empty(int(self.heads[block]["topics"]), numpy.int32)
        cut(head, body, start, stop, places.ctypes.data, new_head.ctypes.data, new_body.ctypes.data)
        columns = self.columns[:, block : block + 1].copy()
        columns[[HEAD, BODY, FIRST, STAYS], 0] = new_head.ctypes.data, new_body.ctypes.data, 0, 0
        piece = Scene(columns, [new_head, new_body], self.heads[block : block + 1])
        piece.measure(choice, 0, 1)
        return piece


def scenes(chunks: Iterator[Chunk], choice: Choice) -> Generator[Scene | Damage, None, None]:
    """Scenes of the chosen messages, all of them of valid blocks.

    What cannot be read is left out; that it is stands in its place.

    Raises JournalError when the library that unpacks a body is not installed.
    """
    for chunk in chunks:
        scene, faults = _read(chunk, choice.key_bytes)
        at = 0
        for place in sorted(faults):
            yield from _chosen(scene.part(at, place), choice)
            yield scene.damage(place, faults[place])
            at = place + 1
        yield from _chosen(scene.part(at, len(scene.heads)), choice)


def warm_up_scenes() -> None:
    """Compile what making scenes runs, before there is something to play."""
    warm_up(find_faults, 0, 0, 0, 0, 0, 0)
    warm_up(measure, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    warm_up(cut, 0, 0, 0, 0, 0, 0, 0)
    warm_up(next_inside, 0, 0, 0, 0, 0)
    warm_up(next_outside, 0, 0, 0, 0, 0)


def _read(chunk: Chunk, key_bytes: int) -> tuple[Scene, dict[int, str]]:
    """A chunk's blocks, and what is wrong with which of them."""
    heads, addresses = chunk.heads, chunk.addresses
    columns = numpy.zeros((COLUMNS, len(heads)), numpy.int64)
    columns[HEAD] = addresses + OFFSET_BLOCK_HEADER
    columns[BODY] = addresses + RECORD_HEAD_BYTES
    columns[FIRST] = heads["first_row"]
    columns[RECEIVED] = heads["ts_recv"]
    columns[SLICE] = heads["slice"]
    columns[STAYS] = 1
    scene = Scene(columns, list(chunk.segments), heads)
    sizes = heads["stored_bytes"].astype(numpy.int64)
    slices = numpy.array([segment.slice_id for segment in chunk.segments])[chunk.segment_of]
    faults = dict.fromkeys(numpy.flatnonzero(heads["slice"] != slices).tolist(), FAULT_TEXT[Fault.SLICE])
    for place in numpy.flatnonzero(heads["codec"] != CODEC_NONE).tolist():
        if place in faults:
            continue
        try:
            body = _unpacked(chunk, place)
        except JournalError as error:
            if isinstance(error.__cause__, ImportError):
                raise
            faults[place] = str(error)
            continue
        scene.alive.append(body)
        columns[[BODY, STAYS], place] = body.ctypes.data, 0
        sizes[place] = len(body)
    found = numpy.zeros(len(heads), numpy.int64)
    find_faults(
        addresses.ctypes.data,
        columns[BODY].ctypes.data,
        sizes.ctypes.data,
        len(heads),
        key_bytes,
        found.ctypes.data,
    )
    for place in numpy.flatnonzero(found).tolist():
        faults.setdefault(place, FAULT_TEXT[Fault(int(found[place]))])
    return scene, faults


def _unpacked(chunk: Chunk, place: int) -> NDArray[numpy.uint8]:
    segment = chunk.segments[chunk.segment_of[place]]
    address = int(chunk.addresses[place])
    head = chunk.heads[place]
    start = address - segment.address + RECORD_HEAD_BYTES
    stored = segment.memory[start : start + int(head["stored_bytes"])]
    return unpack(address, int(head["codec"]), stored, int(head["body_bytes"]))


def _chosen(scene: Scene, choice: Choice) -> Iterator[Scene]:
    """The parts of a scene that are chosen: as few scenes as that takes, in the same order."""
    scene.measure(choice, 0, len(scene.heads))
    count, low, high = scene.columns[COUNT], scene.columns[LOW], scene.columns[HIGH]
    inside = (count > 0) & (low >= choice.start) & (high < choice.stop)
    touched = (count > 0) & (high >= choice.start) & (low < choice.stop)
    at = 0
    for block in numpy.flatnonzero(touched & ~inside).tolist():
        yield from _whole(scene, at, block, inside)
        at = block + 1
        head, body = (int(scene.columns[n, block]) for n in (HEAD, BODY))
        row = next_inside(head, body, int(scene.columns[FIRST, block]), choice.start, choice.stop)
        rows = int(scene.heads[block]["count"])
        while row < rows:
            end = next_outside(head, body, row, choice.start, choice.stop)
            piece = scene.cut(block, row, end, choice)
            if piece.columns[COUNT, 0]:
                yield piece
            row = next_inside(head, body, end, choice.start, choice.stop)
    yield from _whole(scene, at, len(inside), inside)


def _whole(scene: Scene, at: int, stop: int, inside: NDArray[numpy.bool_]) -> Iterator[Scene]:
    if inside[at:stop].all():
        if stop > at:
            yield scene.part(at, stop)
        return
    chosen = at + numpy.flatnonzero(inside[at:stop])
    if len(chosen):
        yield Scene(numpy.ascontiguousarray(scene.columns[:, chosen]), scene.alive, scene.heads[chosen])
