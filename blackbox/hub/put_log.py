"""The put log: what a hub has taken, and where it went, in a SQLite file, beside what it knows of its clients.

What is put is in here before it is published, and stays until the outbox has it on the disk.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

import numpy

from blackbox.errors import JournalError
from blackbox.hub.file_sync import FileSync
from blackbox.hub.large_requests import LARGE_BYTES, LargeRequests
from blackbox.hub.protocol import PLACE, PlaceRow, Places

log = logging.getLogger("blackbox")

_VERSION: Final = 5
_CHECKPOINT_PAGES: Final = 16_384
"""Pages of the write-ahead file at which SQLite moves them to the main one, with two syncs."""
_TABLES: Final = """
CREATE TABLE clients(name TEXT PRIMARY KEY, session INTEGER, last INTEGER, seen INTEGER) WITHOUT ROWID;
CREATE TABLE puts(number INTEGER PRIMARY KEY, client TEXT, first INTEGER, count INTEGER, places BLOB, why TEXT,
    request BLOB, taken_ns INTEGER);
CREATE TABLE large(number INTEGER PRIMARY KEY, file INTEGER, start INTEGER, size INTEGER, checksum INTEGER);
CREATE UNIQUE INDEX put_of_client ON puts(client, first);
CREATE TABLE ids(number INTEGER PRIMARY KEY, id BLOB UNIQUE, place BLOB);
"""
_NOTE_LAST: Final = """
UPDATE clients SET (last, seen) = (SELECT max(last, first + count - 1), max(seen, taken_ns)
    FROM puts WHERE client = name ORDER BY first DESC LIMIT 1)
    WHERE EXISTS (SELECT 1 FROM puts WHERE client = name AND first > last)
"""
"""What puts say of their clients, and `clients` does not: a row a put is enough."""


class PutLog:
    """The file, open in one thread. Every method raises JournalError when the disk refuses."""

    def __init__(self, path: Path, remember_puts: int, remember_ids: int, most_clients: int) -> None:
        """Open it, or make it, and sync what a hub before has left there."""
        self._path = path
        self._remember_puts, self._remember_ids, self._most_clients = remember_puts, remember_ids, most_clients
        self._syncs_commits = False
        self._dropped = 0
        self._known: dict[str, tuple[int, int]] = {}
        """Session and last put of clients that were heard since it was opened."""
        self._heard: dict[str, int] = {}
        """When those were that have put something which `clients` does not tell yet."""
        with self._in_words():
            self._sql = sqlite3.connect(path, isolation_level=None, cached_statements=256)
        with self._in_words(), ExitStack() as stack:
            stack.callback(self._sql.close)
            self._prepare()
            stack.pop_all()
        # Not the main file: to close that anywhere in the process would unlock it.
        self._sync = FileSync(*(path.with_name(f"{path.name}{end}") for end in (".a", ".b", "-wal")))

    def _prepare(self) -> None:
        # One process has it. Before all else: then SQLite needs no memory that it shares with others.
        self._sql.execute("PRAGMA locking_mode=EXCLUSIVE")
        (version,) = self._sql.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise JournalError(f"put log {self._path} had version {version}, expected {_VERSION}")
        self._sql.execute("PRAGMA journal_mode=WAL")
        self._sql.execute("PRAGMA synchronous=FULL")
        self._sql.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        if version == 0:
            self._sql.executescript(f"BEGIN;{_TABLES}PRAGMA user_version={_VERSION};COMMIT;")
        self._large = LargeRequests(self._path, self._sql)
        self._sql.execute(_NOTE_LAST)
        self._sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._sql.execute("PRAGMA synchronous=NORMAL")

    @contextmanager
    def transaction(self, *, synced: bool = False) -> Iterator[None]:
        """Do all in the `with` block, or nothing; `synced`: it is on the disk when that ends, else with the system."""
        try:
            if synced != self._syncs_commits:
                self._sql.execute(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")
                self._syncs_commits = synced
            self._sql.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self._sql.in_transaction:
                    self._sql.execute("ROLLBACK")
                self._known, self._heard = {}, {}
                self._sql.execute(_NOTE_LAST)
                raise
            if synced:
                self._large.sync()  # first: what the log tells of is there
            self._sql.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise self._refusal(error) from error

    @property
    def sql(self) -> sqlite3.Connection:
        """The file, for what else is kept in it, in the same transactions."""
        return self._sql

    def forget_peer(self) -> None:
        """Drop what a hub of two has kept here for the other one: there is one hub now, and it would put that again."""
        if self._sql.execute("SELECT 1 FROM sqlite_master WHERE name = 'pair'").fetchone():
            (outbox,) = self._sql.execute("SELECT outbox FROM pair").fetchone()
            self._sql.execute("UPDATE puts SET request = NULL WHERE number <= ?", (outbox,))
            self._large.drop(outbox)
            self._sql.execute("DROP TABLE pair")

    def client(self, name: str) -> tuple[int, int] | None:
        """Return a client's session and the number of its last put; None: it is not known."""
        found = self._known.get(name)
        if found is None:
            found = self._sql.execute("SELECT session, last FROM clients WHERE name = ?", (name,)).fetchone()
            if found is not None:
                self._known[name] = found
        return found

    def begin_session(self, name: str, session: int) -> None:
        """Note the session of a client; forget those not heard of for longest, if there are too many."""
        self._sql.execute(
            "INSERT INTO clients VALUES (?, ?, 0, ?) ON CONFLICT (name) DO UPDATE SET session = ?, seen = ?",
            (name, session, now := time.time_ns(), session, now),
        )
        _, last = self.client(name) or (0, 0)
        self._known[name] = session, last
        (count,) = self._sql.execute("SELECT count(*) FROM clients").fetchone()
        if count > self._most_clients:
            self._note_last()
            old = "SELECT name FROM clients WHERE name != ? ORDER BY seen LIMIT ?"
            forgotten = self._sql.execute(old, (name, count - self._most_clients)).fetchall()
            self._sql.executemany("DELETE FROM clients WHERE name = ?", forgotten)
            self._sql.executemany("UPDATE puts SET client = NULL WHERE client = ?", forgotten)
            for (each,) in forgotten:
                self._known.pop(each, None)

    def _note_last(self) -> None:
        """Have in `clients` what is known of those heard."""
        told = [(self._known[name][1], seen, name) for name, seen in self._heard.items()]
        self._sql.executemany("UPDATE clients SET last = ?, seen = max(seen, ?) WHERE name = ?", told)
        self._heard = {}

    def answered(self, client: str, first: int) -> tuple[bytes, str] | None:
        """Return where the puts of an earlier request went, and why some were refused; None: that is forgotten."""
        found: tuple[bytes, str] | None = self._sql.execute(
            "SELECT places, why FROM puts WHERE client = ? AND first = ?", (client, first)
        ).fetchone()
        return found

    def add(
        self, client: str | None, first: int, count: int, places: bytes, why: str, request: bytes | None, taken_ns: int
    ) -> int:
        """Take a request; return its number in here. `taken_ns`: when that was.

        `client`: None if it is of the hub itself, or of one that is forgotten since.
        """
        if client is not None and (known := self.client(client)) is not None:
            self._known[client] = known[0], first + count - 1
            self._heard[client] = taken_ns
        large = request if request is not None and len(request) >= LARGE_BYTES else None
        added = self._sql.execute(
            "INSERT INTO puts VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)",
            (client, first, count, places, why, request if large is None else None, taken_ns),
        )
        number = int(added.lastrowid or 0)
        if large is not None:
            self._large.add(number, large)
        return number

    def places_of(self, ids: Sequence[bytes]) -> dict[bytes, PlaceRow]:
        """Return where what was put with these ids before is, of those that are remembered."""
        found: dict[bytes, PlaceRow] = {}
        for each in ids:
            row = self._sql.execute("SELECT place FROM ids WHERE id = ?", (each,)).fetchone()
            if row is not None:
                slice_id, _, _, *position = numpy.frombuffer(row[0], PLACE)[0].item()
                found[each] = slice_id, 0, 0, *position
        return found

    def remember(self, ids: Sequence[bytes], places: Places) -> None:
        """Note where those puts of a request went that have brought their ids; forget the oldest, if it is too many."""
        if not any(ids):
            return
        rows = [row for row in numpy.nonzero(places["is_new"])[0].tolist() if ids[row]]
        if not rows:
            return
        went = [(ids[row], places[row].tobytes()) for row in rows]
        self._sql.executemany("INSERT INTO ids VALUES (NULL, ?, ?)", went)
        (newest,) = self._sql.execute("SELECT max(number) FROM ids").fetchone()
        self._sql.execute("DELETE FROM ids WHERE number <= ?", (newest - self._remember_ids,))

    def waiting(self) -> list[int]:
        """Return the numbers of requests that may not be in the outbox, in order."""
        rows = self._sql.execute(
            "SELECT number FROM puts WHERE request IS NOT NULL UNION SELECT number FROM large ORDER BY number"
        )
        return [number for (number,) in rows]

    def read(self, number: int) -> tuple[str | None, bytes, bytes | None] | None:
        """Return one of them: its client, its places, and itself, None if it was damaged; None: it was forgotten."""
        row = self._sql.execute("SELECT client, places, request FROM puts WHERE number = ?", (number,)).fetchone()
        if row is None:
            return None
        client, places, request = row
        return client, places, self._large.read(number) if request is None else request

    def forget(self, number: int, lost: Places) -> None:
        """Forget a request, of which those places were lost in a power cut: its client goes on from there.

        What of that client is behind it and not forgotten stays, with its ids, but nobody asks for it by its number.
        What ends topics stays as the lost puts have set it.
        """
        self._note_last()
        self._known = {}
        client, first = self._sql.execute("SELECT client, first FROM puts WHERE number = ?", (number,)).fetchone()
        log.error("put log %s: %d puts were lost in a power cut", self._path, len(lost))
        self._sql.execute("UPDATE clients SET last = min(last, ?) WHERE name = ?", (first - 1, client))
        self._sql.execute("UPDATE puts SET client = NULL WHERE client = ? AND number > ?", (client, number))
        self._forget_ids(lost)
        self._sql.execute("DELETE FROM puts WHERE number = ?", (number,))
        self._sql.execute("DELETE FROM large WHERE number = ?", (number,))

    def _forget_ids(self, lost: Places) -> None:
        gone = {place.tobytes() for place in lost}
        ids = self._sql.execute("SELECT number, place FROM ids").fetchall()
        self._sql.executemany("DELETE FROM ids WHERE number = ?", [(at,) for at, place in ids if place in gone])

    def move(self, number: int, places: bytes, ids: Sequence[tuple[bytes, bytes]]) -> None:
        """Note that a request went elsewhere."""
        self._sql.execute("UPDATE puts SET places = ? WHERE number = ?", (places, number))
        self._sql.executemany("UPDATE ids SET place = ? WHERE id = ?", [(place, each) for each, place in ids])

    def begin_sync(self) -> None:
        """Begin to have on the disk what is committed by now, once `is_synced`: nobody waits for that."""
        self._sync.begin()

    def is_synced(self) -> bool:
        """Whether what `begin_sync` began is on the disk."""
        with self._in_words():
            return self._sync.is_done()

    def drop(self, number: int, *, synced: bool = False) -> None:
        """Forget requests up to a number: the outbox has them; and where the oldest went, if there are too many."""
        with self.transaction(synced=synced):
            self._note_last()  # before puts go that tell it
            self._sql.execute(
                "UPDATE puts SET request = NULL WHERE number > ? AND number <= ? AND request IS NOT NULL",
                (self._dropped, number),
            )
            self._sql.execute(
                "DELETE FROM puts WHERE number <= min((SELECT max(number) FROM puts) - ?, ?) AND request IS NULL",
                (self._remember_puts, number),
            )
            self._large.drop(number)
        self._dropped = number
        self._large.reuse(number)

    def close(self) -> None:
        """Close the file."""
        with self._in_words():
            self._sync.close()
            self._sql.close()
            self._large.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self._refusal(error) from error

    def _refusal(self, error: sqlite3.Error | OSError) -> JournalError:
        return JournalError(f"put log {self._path} cannot be used: {error}")
