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
from blackbox.replay.cut import cut, next_inside, next_outside
from blackbox.replay.look import (
    BODY,
    BODY_BYTES,
    COLUMNS,
    COUNT,
    EMPTY,
    FAULT,
    FIRST,
    HEAD,
    HIGH,
    LOW,
    NEXT,
    RECEIVED,
    SLICE,
    STAYS,
    UNSEEN,
    Reel,
    Wish,
    look,
)
from blackbox.warmup import warm_up

BEGINNING: Final = -(1 << 63)
END: Final = (1 << 63) - 1


class Choice:
    """Which messages are played: `by` is what their times are, `[start, stop)` the range of them."""

    def __init__(self, key_bytes: int, prefix: bytes, by: str) -> None:
        self.prefix = prefix
        self.by = by
        self.start, self.stop = BEGINNING, END
        self._text = numpy.frombuffer(prefix or b"\0", numpy.uint8)
        self.wish = Wish(key_bytes, self._text.ctypes.data, len(prefix), int(by == "ts_event"))

    @property
    def is_limited(self) -> bool:
        """Whether some times are not wanted."""
        return (self.start, self.stop) != (BEGINNING, END)


class Scene(NamedTuple):
    """Blocks to play one after the other. Addresses are good as long as `alive` is kept."""

    columns: NDArray[numpy.int64]
    """int64[COLUMNS, n], as in a `Reel`."""
    alive: list[object]
    heads: NDArray[numpy.void]
    """RECORD[n]: of each block, the record that it came from."""
    choice: Choice
    told: dict[int, str]
    """Why the body of the record at an address could not be unpacked."""

    def damages(self, start: int, stop: int) -> Iterator[Damage]:
        """What is wrong with which of blocks `[start, stop)`, in the words of `Recording.batches`."""
        faults = self.columns[FAULT, start:stop]
        for block in (start + numpy.flatnonzero(faults > Fault.NONE)).tolist():
            address = int(self.columns[HEAD, block]) - OFFSET_BLOCK_HEADER
            what = self.told.get(address) or FAULT_TEXT[Fault(int(self.columns[FAULT, block]))]
            segments = (each for each in self.alive if isinstance(each, Segment))
            segment = next(each for each in segments if 0 <= address - each.address < each.memory.nbytes)
            head = self.heads[block]
            messages = int(head["count"]) - int(head["first_row"])
            size = record_bytes(int(head["stored_bytes"]))
            yield Damage(segment.path, address - segment.address, size, what, messages)

    def look(self, start: int, stop: int) -> None:
        """Look at those of blocks `[start, stop)` that nobody has looked at; measure the others again."""
        look(self.reel(start, stop))

    def reel(self, start: int, stop: int) -> Reel:
        """Blocks `[start, stop)` for compiled code."""
        columns = self.columns
        return Reel(columns.ctypes.data + 8 * start, columns.strides[0] // 8, stop - start, self.choice.wish)

    def cut(self, block: int, start: int, stop: int) -> Scene:
        """A scene of rows `[start, stop)` of one block. Its record is still that of the whole block."""
        head, body = self.columns[HEAD, block], self.columns[BODY, block]
        new_head = numpy.zeros(HEADER_BYTES, numpy.uint8)
        new_body = numpy.empty(int(self.heads[block]["body_bytes"]) + 8, numpy.uint8)
        places = numpy.empty(int(self.heads[block]["topics"]), numpy.int32)
        cut(head, body, start, stop, places.ctypes.data, new_head.ctypes.data, new_body.ctypes.data)
        columns = self.columns[:, block : block + 1].copy()
        columns[[HEAD, BODY, FIRST, STAYS], 0] = new_head.ctypes.data, new_body.ctypes.data, 0, 0
        piece = Scene(columns, [new_head, new_body], self.heads[block : block + 1], self.choice, {})
        piece.look(0, 1)
        return piece


def scenes(chunks: Iterator[Chunk], choice: Choice, *, looked_at: bool) -> Generator[Scene, None, None]:
    """Scenes of the chosen messages, and of blocks that cannot be read. Blocks need not be `looked_at`.

    Raises JournalError when the library that unpacks a body is not installed.
    """
    for chunk in chunks:
        scene = _read(chunk, choice)
        if looked_at or choice.is_limited:
            scene.look(0, len(scene.heads))
        if choice.is_limited:
            yield from _chosen(scene)
        else:
            yield scene


def warm_up_scenes() -> None:
    """Compile what making scenes runs, before there is something to play."""
    warm_up(look, EMPTY)
    warm_up(cut, 0, 0, 0, 0, 0, 0, 0)
    warm_up(next_inside, 0, 0, 0, 0, 0)
    warm_up(next_outside, 0, 0, 0, 0, 0)


def _read(chunk: Chunk, choice: Choice) -> Scene:
    """A chunk's blocks, unpacked; nobody has looked at them."""
    heads, addresses = chunk.heads, chunk.addresses
    columns = numpy.zeros((COLUMNS, len(heads)), numpy.int64)
    columns[HEAD] = addresses + OFFSET_BLOCK_HEADER
    columns[BODY] = addresses + RECORD_HEAD_BYTES
    columns[BODY_BYTES] = heads["stored_bytes"]
    columns[FIRST] = heads["first_row"]
    columns[RECEIVED] = heads["ts_recv"]
    columns[SLICE] = heads["slice"]
    columns[STAYS] = 1
    slices = numpy.array([segment.slice_id for segment in chunk.segments])[chunk.segment_of]
    columns[FAULT] = numpy.where(heads["slice"] == slices, UNSEEN, Fault.SLICE)
    if choice.by != "ts_event":
        columns[NEXT : HIGH + 1] = heads[choice.by]
    scene = Scene(columns, list(chunk.segments), heads, choice, {})
    for place in numpy.flatnonzero((heads["codec"] != CODEC_NONE) & (columns[FAULT] == UNSEEN)).tolist():
        try:
            body = _unpacked(chunk, place)
        except JournalError as error:
            if isinstance(error.__cause__, ImportError):
                raise
            scene.told[int(addresses[place])] = str(error)
            columns[FAULT, place] = Fault.BODY_CHECKSUM
            continue
        scene.alive.append(body)
        columns[[BODY, BODY_BYTES, STAYS], place] = body.ctypes.data, len(body), 0
    return scene


def _unpacked(chunk: Chunk, place: int) -> NDArray[numpy.uint8]:
    segment = chunk.segments[chunk.segment_of[place]]
    address = int(chunk.addresses[place])
    head = chunk.heads[place]
    start = address - segment.address + RECORD_HEAD_BYTES
    stored = segment.memory[start : start + int(head["stored_bytes"])]
    return unpack(address, int(head["codec"]), stored, int(head["body_bytes"]))


def _chosen(scene: Scene) -> Iterator[Scene]:
    """The parts of a scene that are chosen, in the same order: as few scenes as that takes."""
    columns, choice = scene.columns, scene.choice
    bad = columns[FAULT] != Fault.NONE
    low, high = columns[LOW], columns[HIGH]
    some = ~bad & (columns[COUNT] > 0)
    inside = bad | (some & (low >= choice.start) & (high < choice.stop))
    touched = some & (high >= choice.start) & (low < choice.stop)
    at = 0
    for block in numpy.flatnonzero(touched & ~inside).tolist():
        yield from _whole(scene, at, block, inside)
        at = block + 1
        head, body = (int(columns[n, block]) for n in (HEAD, BODY))
        row = next_inside(head, body, int(columns[FIRST, block]), choice.start, choice.stop)
        rows = int(scene.heads[block]["count"])
        while row < rows:
            end = next_outside(head, body, row, choice.start, choice.stop)
            piece = scene.cut(block, row, end)
            if piece.columns[COUNT, 0]:
                yield piece
            row = next_inside(head, body, end, choice.start, choice.stop)
    yield from _whole(scene, at, len(inside), inside)


def _whole(scene: Scene, at: int, stop: int, inside: NDArray[numpy.bool_]) -> Iterator[Scene]:
    chosen = at + numpy.flatnonzero(inside[at:stop])
    if len(chosen):
        columns = numpy.ascontiguousarray(scene.columns[:, chosen])
        yield scene._replace(columns=columns, heads=scene.heads[chosen])
