"""Resume a live session where it was interrupted. Without I/O.

The gateway replays records from a time on. That is some seconds before the last record, since records of several venues
are not exactly in order. Records that were delivered before are recognized by their bytes. If a record occurs twice in
the stream, it is expected twice.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox.native.tables.xxh3 import xxh3
from blackbox_feeds.dbn.records import NAMES, RTYPE_AT, TYPED
from blackbox_feeds.io.integers import little_64

MARGIN_NS: Final = 5_000_000_000
REMEMBERED: Final = 1 << 18
"""Latest records that are recognized in a replay."""

_TS_EVENT_AT = 8
_BY_TS_RECV: Final = ("bbo-1s", "bbo-1m", "cbbo-1s", "cbbo-1m", "tcbbo")
"""Types that the gateway replays by `ts_recv`, others by `ts_event`."""
_OF_GATEWAY: Final = ("symbol-mapping", "error", "system")
"""Types that belong to one session, and are not replayed."""


def _times_at() -> NDArray[numpy.int64]:
    """Return the offset of the time of each type by which the gateway replays; 0 for types that it does not replay."""
    offsets = numpy.full(256, _TS_EVENT_AT, numpy.int64)
    for rtype, name in NAMES.items():
        if name in _BY_TS_RECV:
            fields = TYPED[name][1].fields
            offsets[rtype] = fields["ts_recv"][1] if fields is not None else 0
        elif name in _OF_GATEWAY:
            offsets[rtype] = 0
    return offsets


@njit(nogil=True, cache=True)
def _measure(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    lengths: NDArray[numpy.int32],
    times_at: NDArray[numpy.int64],
    found: NDArray[numpy.int64],
) -> None:
    """Fill (n, 2) with the time by which each record is replayed, or 0, and a hash of its bytes."""
    for row in range(len(starts)):
        start = starts[row]
        offset = times_at[data[start + RTYPE_AT]]
        found[row, 0] = little_64(data, start + offset) if offset > 0 else 0
        found[row, 1] = numpy.int64(xxh3(data.ctypes.data + start, lengths[row]))


class Resumption:
    """Remembers the latest records of a stream, and recognizes them in a replay."""

    def __init__(self) -> None:
        self._times_at = _times_at()
        self._ring = numpy.zeros((REMEMBERED, 2), numpy.int64)
        self._count = 0
        self._forgotten_ns = 0
        self._expected: Counter[int] = Counter()
        self._expected_until_ns = 0
        self.last_ns = 0
        """The latest time of a record by which the gateway replays; 0 before the first one."""
        self.repeated = 0
        """Records recognized."""

    def start_ns(self, asked: int | None) -> int | None:
        """Return from when on to replay, so that no record is missed.

        `asked` is the start that the user asked for: the earliest one returned, and that before any record.
        """
        if not self.last_ns:
            return asked
        return max(asked or 0, min(self.last_ns, max(self.last_ns - MARGIN_NS, self._forgotten_ns + 1)))

    def begin(self, start_ns: int) -> None:
        """Expect the records from a time on again, until records are later than the last one by the margin."""
        self._expected_until_ns = self.last_ns + MARGIN_NS
        known = self._ring[: min(self._count, REMEMBERED)]
        self._expected = Counter(known[known[:, 0] >= start_ns, 1].tolist())

    def new_rows(
        self, data: NDArray[numpy.uint8], starts: NDArray[numpy.int64], lengths: NDArray[numpy.int32]
    ) -> NDArray[numpy.bool_] | None:
        """Process the next records; return which of them are no repetition, or None if none is one."""
        found = numpy.empty((len(starts), 2), numpy.int64)
        _measure(data, starts, lengths, self._times_at, found)
        is_new = self._without_expected(found) if self._expected else None
        self._remember(found[found[:, 0] > 0] if is_new is None else found[is_new & (found[:, 0] > 0)])
        return is_new

    def _without_expected(self, found: NDArray[numpy.int64]) -> NDArray[numpy.bool_] | None:
        is_new = numpy.ones(len(found), numpy.bool_)
        expected = self._expected
        for row, code in enumerate(found[:, 1].tolist()):
            if expected.get(code, 0) > 0:
                expected[code] -= 1
                is_new[row] = False
        repeated = len(found) - int(numpy.count_nonzero(is_new))
        self.repeated += repeated
        if found[:, 0].max() > self._expected_until_ns:
            self._expected = Counter()
        return is_new if repeated else None

    def _remember(self, found: NDArray[numpy.int64]) -> None:
        if not len(found):
            return
        self.last_ns = max(self.last_ns, int(found[:, 0].max()))
        if len(found) > REMEMBERED:
            self._forgotten_ns = max(self._forgotten_ns, int(found[:-REMEMBERED, 0].max()))
            found = found[-REMEMBERED:]
        places = numpy.arange(self._count, self._count + len(found)) % REMEMBERED
        # Places that were never written have the time 0.
        self._forgotten_ns = max(self._forgotten_ns, int(self._ring[places, 0].max()))
        self._ring[places] = found
        self._count += len(found)
