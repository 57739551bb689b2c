"""The put log of a hub that has a peer: beside what it takes, what its peer must get, and which of the two may lead."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy

from blackbox.errors import JournalError
from blackbox.hub.pair import Entry
from blackbox.hub.protocol import REQUESTS, Places, Put, unpack_places
from blackbox.hub.put_log import PutLog

log = logging.getLogger("blackbox")

MOST_KEPT_BYTES: Final = 1 << 30
"""Of rows that are kept for a peer that is away."""
_ROW_BYTES: Final = 100
"""Of a row, beside its request."""
_MOST_ROWS: Final = 1_024
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS pair(only INTEGER PRIMARY KEY, role TEXT, term INTEGER, is_alone INTEGER, epoch INTEGER,
    outbox INTEGER, run INTEGER);
"""


class TooFarBehindError(JournalError):
    """What the peer lacks is not in the log any more."""


class PairedLog(PutLog):
    """Every row has the same number in the logs of both hubs.

    Requests stay until the outboxes of both have them on the disk, up to `MOST_KEPT_BYTES`. `term`, `epoch`: the last
    that this hub knows of. `is_alone`: no other hub may be active. `outbox`: up to here the outbox has all on the disk.
    """

    def __init__(
        self,
        path: Path,
        remember_puts: int,
        remember_ids: int,
        most_clients: int,
        role: Literal["primary", "backup"],
    ) -> None:
        """Open it, or make it. What says that it is alone holds for the hub that has written it, not for its peer."""
        super().__init__(path, remember_puts, remember_ids, most_clients)
        self.kept = 0
        """Up to here the peer has all on its disk."""
        with self.transaction(synced=True):
            self._sql.execute(_TABLE)
            self._sql.execute("INSERT OR IGNORE INTO pair VALUES (0, ?, 0, 0, 0, 0, 0)", (role,))
            self._sql.execute("UPDATE pair SET role = ?, is_alone = 0 WHERE role != ?", (role, role))
            self._sql.execute("UPDATE pair SET run = max(run + 1, ?)", (time.time_ns(),))
            self.run = int(self._sql.execute("SELECT run FROM pair").fetchone()[0])
            """Of this process; later ones have greater ones."""
            waiting = super().waiting()
            self._dropped = waiting[0] - 1 if waiting else self.newest
        self.reload()

    def reload(self) -> None:
        """Read again what it says of the pair, as after a transaction that was given up."""
        with self._in_words():
            row = self._sql.execute("SELECT term, is_alone, epoch, outbox FROM pair").fetchone()
            self.term, is_alone, self.epoch, self.outbox = row
            self.is_alone = bool(is_alone)
            self._kept_bytes = self._size(self._dropped, self.newest)

    def set(self, *, term: int | None = None, is_alone: bool | None = None, epoch: int | None = None) -> None:
        """Note that, on the disk when this returns, or when the transaction ends that goes on."""
        self.term = self.term if term is None else term
        self.is_alone = self.is_alone if is_alone is None else is_alone
        self.epoch = self.epoch if epoch is None else epoch
        if self._sql.in_transaction:
            self._set()
        else:
            with self.transaction(synced=True):
                self._set()

    def _set(self) -> None:
        self._sql.execute(
            "UPDATE pair SET term = ?, is_alone = ?, epoch = ?", (self.term, int(self.is_alone), self.epoch)
        )

    @property
    def newest(self) -> int:
        """The number of the last row, of the transaction that goes on, too; 0: there is none."""
        with self._in_words():
            return int(self._sql.execute("SELECT max(number) FROM puts").fetchone()[0] or 0)

    def begin_session(self, name: str, session: int) -> None:
        """As `PutLog.begin_session`; the peer gets it as a row."""
        super().begin_session(name, session)
        self._sql.execute("INSERT INTO puts VALUES (NULL, ?, ?, 0, ?, ?, NULL, 0)", (name, -session, b"", ""))
        self._kept_bytes += _ROW_BYTES

    def add(
        self, client: str | None, first: int, count: int, places: bytes, why: str, request: bytes | None, taken_ns: int
    ) -> int:
        """As `PutLog.add`."""
        self._kept_bytes += _ROW_BYTES + len(request or b"")
        return super().add(client, first, count, places, why, request, taken_ns)

    def waiting(self) -> list[int]:
        """As `PutLog.waiting`."""
        return [number for number in super().waiting() if number > self.outbox]

    def forget(self, number: int, lost: Places) -> None:
        """Forget a row, as `PutLog.forget`, and all behind it: rows follow each other, as in the log of the peer."""
        self._note_last()
        self._known = {}
        rows = self._sql.execute("SELECT client, first FROM puts WHERE number >= ? ORDER BY number DESC", (number,))
        for client, first in rows.fetchall():
            self._sql.execute("UPDATE clients SET last = ? WHERE name = ? AND ? > 0", (first - 1, client, first))
        behind = self._sql.execute("SELECT places FROM puts WHERE number > ?", (number,)).fetchall()
        lost = numpy.concatenate([lost, *(unpack_places(places) for (places,) in behind)])
        lost = lost[lost["is_new"] != 0]
        log.error("put log %s: %d puts were lost in a power cut, the other hub may have them", self._path, len(lost))
        self._forget_ids(lost)
        self._sql.execute("DELETE FROM puts WHERE number >= ?", (number,))
        self._sql.execute("DELETE FROM large WHERE number >= ?", (number,))
        self.reload()

    def drop(self, number: int, *, synced: bool = False) -> None:
        """Note that the outbox has all up to a number, and this log, which the peer is told; forget what both have."""
        if number > self.outbox:
            with self.transaction(synced=synced):
                self._sql.execute("UPDATE pair SET outbox = ?", (number,))
            self.outbox = number
        upto = min(self.outbox, self.kept)
        if self._kept_bytes > MOST_KEPT_BYTES and upto < self.outbox:
            upto = self.outbox
            log.warning("put log %s has no room for what its peer lacks: that cannot follow any more", self._path)
        if upto > self._dropped:
            self._kept_bytes -= self._size(self._dropped, upto)
            super().drop(upto)

    def _size(self, after: int, upto: int) -> int:
        """Return the bytes of rows."""
        between = "WHERE number > ? AND number <= ?"
        count, size = self._sql.execute(
            f"SELECT count(*), total(length(request)) FROM puts {between}", (after, upto)
        ).fetchone()
        (large,) = self._sql.execute(f"SELECT total(size) FROM large {between}", (after, upto)).fetchone()
        return int(count) * _ROW_BYTES + int(size + large)

    # For the peer, and from it.

    def digest(self, number: int) -> bytes:
        """Return what tells a row from another one with its number; empty: there is no such row."""
        with self._in_words():
            row = self._sql.execute(
                "SELECT first, places, why, taken_ns FROM puts WHERE number = ?", (number,)
            ).fetchone()
        return hashlib.blake2b(repr(row).encode(), digest_size=16).digest() if row else b""

    def entries(self, after: int, most_bytes: int) -> list[Entry]:
        """Return the rows behind a number, up to so many bytes, but for the first. Raises TooFarBehindError."""
        found: list[Entry] = []
        with self._in_words():
            rows = self._sql.execute(
                "SELECT number, client, first, places, why, request, taken_ns FROM puts WHERE number > ? "
                "ORDER BY number LIMIT ?",
                (after, _MOST_ROWS),
            )
            for row in rows:
                entry = Entry(*row)
                if entry.request is None:
                    entry = msgspec.structs.replace(entry, request=self._large.read(entry.number))
                has_puts = bool(entry.places) and not unpack_places(entry.places)["is_refused"].all()
                if entry.number != after + 1 + len(found) or (has_puts and entry.request is None):
                    raise TooFarBehindError(f"put log {self._path} had row {entry.number}, expected all behind {after}")
                most_bytes -= len(entry.request or b"") + len(entry.places) + len(entry.why)
                if most_bytes < 0 and found:
                    break
                found.append(entry)
        return found

    def take(self, entries: Sequence[Entry]) -> None:
        """Write rows that the peer has, as it has done."""
        for entry in entries:
            if entry.first < 0 and entry.client is not None:
                self.begin_session(entry.client, -entry.first)
            else:
                count = len(unpack_places(entry.places))
                self.add(entry.client, entry.first, count, entry.places, entry.why, entry.request, entry.taken_ns)
                self._take_ids(entry)
        if entries and self.newest != entries[-1].number:
            raise JournalError(f"put log {self._path} had row {self.newest}, expected {entries[-1].number} of the peer")

    def _take_ids(self, entry: Entry) -> None:
        if entry.request is None:
            return
        put = REQUESTS.decode(entry.request)
        assert isinstance(put, Put)
        self.remember(put.ids, unpack_places(entry.places))
