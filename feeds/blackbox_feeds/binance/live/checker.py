"""Check frames by their numbers: leave out repetitions, report gaps, find which order books must be requested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.feed.source import Chunk, rows_of
from blackbox.native.tables.name_table import Numbering, number_of
from blackbox_feeds.binance.live.sequences import LAST, STALE_ID, STATE_COLUMNS, Checked, Kind, check_frames
from blackbox_feeds.binance.live.streams import SNAPSHOT, Stream

_REMEMBERED: Final = 1 << 18
"""Latest frames without numbers, to recognize when a second connection repeats them. Its held frames are not more."""


class FrameChecker:
    """Checks the frames of one source in the order in which they were received."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        symbols = sorted({each.symbol for each in streams if each.kind == Kind.DEPTH})
        all_streams = [*streams, *(Stream(f"{symbol}@{SNAPSHOT}", symbol, Kind.SNAPSHOT) for symbol in symbols)]
        names = [each.name.encode() for each in all_streams]
        numbers = {symbol: number for number, symbol in enumerate(symbols)}
        self._names = Numbering(len(names), max(map(len, names)))
        self._kinds = numpy.array([each.kind for each in all_streams], numpy.int64)
        self._symbols = numpy.array([numbers.get(each.symbol, -1) for each in all_streams], numpy.int64)
        self._depth_symbols = [each.symbol for each in all_streams]
        self._states = numpy.zeros((len(names), STATE_COLUMNS), numpy.int64)
        self._states[:, [LAST, STALE_ID]] = -1
        self._recent: NDArray[numpy.int64] = numpy.zeros(_REMEMBERED, numpy.int64)
        self._remembered = 0
        self.is_numbered = bool((self._kinds != Kind.NONE).all() and (self._kinds != Kind.TICKER).all())
        """True if the numbers of every stream show what is missing."""
        self.duplicates = 0
        """Frames left out."""
        for name in names:
            _add(self._names, name)

    def check(self, chunk: Chunk, *, is_overlap: bool = False) -> tuple[Chunk, frozenset[str]]:
        """Return the frames without repetitions and with gaps, and the symbols whose order book must be requested.

        `is_overlap`: the frames are of a second connection that began before the first one ended.
        """
        n = len(chunk.starts)
        checked = Checked.room(n, len(self._kinds))
        gaps = check_frames(
            chunk.payloads,
            chunk.starts,
            chunk.lengths,
            self._names.at,
            self._kinds,
            self._symbols,
            self._states,
            is_overlap,
            checked,
        )
        found = checked.gaps[:gaps]
        if is_overlap and (again := numpy.isin(checked.hashes, self._recent) & (checked.hashes != 0)).any():
            # Frames without numbers have no gaps, so only the places of later gaps move.
            rows = numpy.flatnonzero(checked.keep)
            found[:, 0] -= numpy.concatenate([[0], numpy.cumsum(again[rows])])[found[:, 0]]
            checked.keep[again] = False
        self._remember(checked.hashes[checked.keep & (checked.hashes != 0)][-_REMEMBERED:])
        wanted = frozenset(self._depth_symbols[place] for place in numpy.flatnonzero(checked.wants).tolist())
        dropped = n - int(numpy.count_nonzero(checked.keep))
        self.duplicates += dropped
        kept = rows_of(chunk, checked.keep) if dropped else chunk
        return kept._replace(gaps=tuple((row, count) for row, count in found.tolist())), wanted

    def _remember(self, hashes: NDArray[numpy.int64]) -> None:
        places = numpy.arange(self._remembered, self._remembered + len(hashes))
        self._recent[places % _REMEMBERED] = hashes
        self._remembered += len(hashes)


def _add(names: Numbering, name: bytes) -> None:
    content = numpy.frombuffer(name, numpy.uint8)
    number_of(names.at, content.ctypes.data, len(content))
