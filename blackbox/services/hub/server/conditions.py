"""Conditions by which a hub judges puts, and deadlines after which it deletes topics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.errors import BlackBoxError, ConfigError
from blackbox.services.hub.protocol import ANYWHERE, CONFLICT, MOST_PUTS, PLACE, Columns, PlaceRow, Places, Put
from blackbox.services.hub.server.deadlines import Deadlines
from blackbox.services.hub.server.notes import END
from blackbox.services.hub.server.revisions import NO_VALUE, Revision, Revisions
from blackbox.services.hub.server.topics import Reasons

log = logging.getLogger("blackbox")

_AGAIN_NS: Final = 60 * 10**9
"""Delay before unreadable days are read again."""
_TICK_S: Final = 1.0
"""Interval of checks, as the clock may be set and a day may end."""
_MYSELF: Final = "hub"


class Unjudged(NamedTuple):
    """Puts of a request, with what is known about each without its condition."""

    put: Put
    columns: Columns
    order: NDArray[numpy.int64]
    """Rows in the order in which they are judged."""
    slices: list[int]
    """Slice by topic."""
    codes: list[int]
    """For each row, 0 or the reason to refuse it regardless of its condition."""
    known: dict[bytes, PlaceRow]
    """Places of stored puts by id, which are not judged again; new ones are added."""
    stored: dict[int, PlaceRow]
    """The same by row."""


class Conditions:
    """Judges puts, and finds expired topics. Used in the hub's thread.

    The places of newest messages are known once a put has needed them. A topic expires `ttl` after its put was taken;
    the put's note has that time.
    """

    def __init__(self, feed: str, now_ns: Callable[[], int]) -> None:
        self._feed, self._now_ns = feed, now_ns
        self._revisions, self.deadlines = Revisions(), Deadlines()
        self._why_unread, self._read_again_at = "", 0

    def ask_for_days(self, puts: Sequence[Put]) -> bool:
        """Return True if `read` must be called before these puts are judged."""
        if self._revisions.is_known or not any(each.if_at for each in puts):
            return False
        return self._now_ns() >= self._read_again_at

    def read(self, find: Callable[[], dict[bytes, Revision]]) -> None:
        """Note the newest message of every topic, as returned by `find`. After a failure, it is called again later."""
        try:
            self._revisions.know(find())
        except BlackBoxError as error:  # puts without a condition still work
            self._why_unread, self._read_again_at = str(error), self._now_ns() + _AGAIN_NS
            log.error("hub of feed %r refuses puts with if_at: %s", self._feed, error)

    def judge(self, puts: Unjudged, why: Reasons, number: Callable[[bytes], Revision]) -> Places:
        """Judge puts one by one, and return their places.

        `why` gets reasons. `number` assigns the revision of a topic's next message, or raises ConfigError if the topic
        has no room.
        """
        put, columns, order, slices, codes, known, stored = puts
        is_known, revisions, rows = self._revisions.is_known, self._revisions, list[PlaceRow]()
        conditions = [ANYWHERE] * put.count if columns.if_at is None else columns.if_at.tolist()
        index, ids = columns.index.tolist(), put.ids or [b""] * put.count
        if columns.is_one and columns.if_at is not None:
            codes = self._codes_of_one([put.topics[each] for each in index], conditions, codes, why)
        for row in order.tolist():
            put_id, expected, code = ids[row], conditions[row], codes[row]
            name, slice_id = put.topics[index[row]], slices[index[row]]
            if row in stored:
                rows.append(stored[row])
            elif put_id in known:
                rows.append(known[put_id])
            elif code and code != CONFLICT:
                rows.append((slice_id, 0, code, *NO_VALUE))
            elif expected != ANYWHERE and not is_known:
                rows.append((slice_id, 0, why.code(f"if_at cannot be judged: {self._why_unread}"), *NO_VALUE))
            elif expected != ANYWHERE and expected != (found := revisions[name]):
                rows.append((slice_id, 0, CONFLICT, *found))
            else:
                try:
                    revision = number(name)
                except ConfigError as error:
                    rows.append((slice_id, 0, why.code(error), *NO_VALUE))
                    continue
                rows.append((slice_id, 1, 0, *revision))
                if is_known:
                    revisions.note(name, revision, columns.has_value(row))
                if put_id:
                    known[put_id] = slice_id, 0, 0, *revision
        places = numpy.empty(put.count, PLACE)
        places[order] = numpy.array(rows, PLACE)
        return places

    def _codes_of_one(
        self, topics: list[bytes], conditions: list[Revision], codes: list[int], why: Reasons
    ) -> list[int]:
        """Return the codes of a message with several topics; if a condition does not hold, CONFLICT for its topic."""
        if any(codes):
            return codes
        if not self._revisions.is_known:
            return [why.code(f"if_at cannot be judged: {self._why_unread}")] * len(codes)
        fails = [each not in (ANYWHERE, self._revisions[topic]) for topic, each in zip(topics, conditions, strict=True)]
        if not any(fails):
            return codes
        other = why.code("another topic of the message has a newer message than its condition allows")
        return [CONFLICT if each else other for each in fails]

    def note(self, topics: list[bytes], columns: Columns, places: Places, taken_ns: int) -> bytes:
        """Note the newest message and the deadline of each topic, as far as they are kept.

        Return END[n] for all rows, not only the last one of a topic: a hub that is killed may lose that one.
        """
        deadlines, revisions, ends = self.deadlines, self._revisions, list[tuple[int, int]]()
        is_timed = columns.ttl is not None or bool(deadlines)
        if not is_timed and not revisions.is_known:
            return b""
        is_new = places["is_new"] != 0
        if revisions.is_known:
            for topic, row in columns.last_rows(is_new):
                place = int(places["epoch"][row]), int(places["sequence"][row])
                revisions.note(topics[topic], place, columns.has_value(row))
        if not is_timed:
            return b""
        for row in numpy.flatnonzero(is_new).tolist():
            name = topics[columns.index[row]]
            if columns.ttl is not None and columns.ttl[row] and columns.has_value(row):
                ends.append((row, taken_ns + int(columns.ttl[row])))
            elif name in deadlines:
                ends.append((row, 0))
            else:
                continue
            deadlines.set(name, ends[-1][1])
        return numpy.array(ends, END).tobytes()

    # Deadlines.

    def wait_s(self) -> float:
        """Return the seconds until a topic expires, at most 1."""
        at = self.deadlines.next()
        return _TICK_S if at is None else max(0.0, min(_TICK_S, (at - self._now_ns()) / 1e9))

    def deletion(self) -> Put | None:
        """Return a request that deletes expired topics, like a client's; None if no topic has expired."""
        topics = self.deadlines.due(self._now_ns(), MOST_PUTS)
        if not topics:
            return None
        count, none = len(topics), bytes(8 * (len(topics) + 1))
        index = numpy.arange(count, dtype=numpy.int32).tobytes()
        return Put(_MYSELF, 0, 0, count, False, topics, index, none, b"", b"", bytes(count), [])
