"""One of the two hubs of a feed: it leads, or it follows the one that leads and takes over from it.

See "Two hubs" in docs/hub-pairs-and-sites.md for the rules, and `pair_state.py` for the decisions. Only the duration
of a failover depends on clocks: while a passive hub may take over, the active hub appends only what that one has.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Unpack

import msgspec
import numpy
import zmq

from blackbox.archive.day import make_directory, recorded_days, replace_file, sync_directory
from blackbox.block.block import Block
from blackbox.errors import BlockError, DamagedError, JournalError
from blackbox.feed.endpoint import free_endpoints
from blackbox.feed.feed import Feed
from blackbox.hub.deadlines import Deadlines
from blackbox.hub.entries import Entries, TooFarBehindError, checked, digest_of, part_of
from blackbox.hub.history import History, newest_epoch
from blackbox.hub.hub import PATIENCE_S, Hub, HubKeywords, HubStatistics, _Fresh, _Turn, request_of
from blackbox.hub.link import Link
from blackbox.hub.notes import is_whole_snapshot, newest_turn
from blackbox.hub.pair import Entry, Follow, Kept, Lead, Pair, Part, checksum_of, encode_kept, read_kept
from blackbox.hub.pair_state import OutdatedError, PairLife, PairState
from blackbox.hub.protocol import Ended, FindSites, Passive, wrong_version
from blackbox.hub.table import Table
from blackbox.hub.topics import Topics
from blackbox.publish.batcher import Stored
from blackbox.publish.publisher import Publisher
from blackbox.transport.server_thread import receive

log = logging.getLogger("blackbox")

_MOST_BYTES: Final = 4 << 20
"""Maximum size of the entries in one answer to a passive hub."""
_MOST_TURNED_AWAY: Final = 256
_ROW_BYTES: Final = 16
"""Size of a message in a block without its payload, approximately."""
_MOST_DIGESTS: Final = 1_000
_ALONE_TOO: Final = "has puts that are not here: it was active alone, and so was this one"


class _OverError(Exception):
    """It is told to end."""


class _AloneError(Exception):
    """It is to go on alone, in another epoch."""


class _ConflictError(Exception):
    """The peer has another turn of one number."""


class PairedHub(Hub):
    """A hub that has a peer. Settings and life as of `Hub`.

    `alone`: lead without having heard from the peer. What only that one has is lost, and it must not run as active.
    """

    def __init__(
        self,
        feed: Feed,
        directory: str | os.PathLike[str],
        *,
        pair: Pair,
        alone: bool = False,
        **settings: Unpack[HubKeywords],
    ) -> None:
        super().__init__(feed, directory, **settings)
        pair.check_feed(self.feed)
        self.pair, self._is_told_alone = pair, alone
        self._own, self.endpoint = self._own_feed(), pair.endpoint(self.feed)
        self._has_publisher = False
        """Not until there is an epoch."""
        self._days = self.directory / self.feed.name
        self._path = self.directory / f"{self.feed.name}.pair"
        self._kept = Kept(pair.role)
        """State on disk."""
        self._noted = 0
        """The last turn whose note slice 0 had at the start."""
        self._entries: Entries | None = None
        """Reader of the entries for a peer that catches up."""
        self._given = 0
        """The last turn that was taken out of these."""
        self._proposed: Entry | None = None
        self._snapshot: Entry | None = None
        """The last one, until the peer was given it."""
        self._digests: dict[int, bytes] = {}
        """Digest by turn, for recent turns."""
        self._seen = ("passive", 0, -1)
        """Its life, its term, and the number of turns that the peer lacks; -1: unknown."""
        self._first_frames: list[zmq.Frame] | None = None
        """The request with which it has taken over."""

    def _own_feed(self) -> Feed:
        """Return the feed with the endpoints that are this hub's. Line B has a line A beside it that nobody knows."""
        line, slices = self.pair.line, []
        beside = free_endpoints("ipc", self.feed.name, len(self.feed.slices), 1) if line else []
        for number, part in enumerate(self.feed.slices):
            endpoints = (*beside[number], part.lines[1]) if line else part.lines[:1]
            bind = (*beside[number], part.bound[1]) if line else part.bound[:1]
            slices.append(msgspec.structs.replace(part, endpoints=endpoints, bind=bind))
        return msgspec.structs.replace(self.feed, slices=tuple(slices))

    # In its thread.

    def _serve(self) -> None:
        self._kept = read_kept(self._path) if self._path.exists() else self._kept
        self._check_directory()
        self._is_cut = self._has_lost_power()
        with ExitStack() as stack:
            self._load()
            stack.callback(self._end_publisher)
            if self._kept.epoch:
                self._open_publisher(self._kept.epoch)
            self._socket, answers = self._bind(stack, self.feed.bound(self.endpoint), self.pair.link)
            self._link = Link(answers, self.feed, self.pair)
            stack.callback(self._link.close)
            self._thread.begin()
            try:
                self._go_on()
            except _OverError:
                self._thread.begin_to_end()
            self._end_publisher()

    def _go_on(self) -> None:
        if self._is_told_alone:
            self._state.kept = msgspec.structs.replace(self._state.kept, damaged=0, damage="")
            self._become_active("it was told to go on alone", is_new_epoch=True)
        elif self._kept.is_alone:
            self._become_active("it was alone before", is_new_epoch=self._is_cut)
        while True:
            try:
                self._follow()
                self._lead()
            except OutdatedError:
                peer = self._state.peer
                assert peer is not None
                self._state.give_way()
                self._note_state(f"the {peer.role} has taken over, in term {peer.term}")
            except _AloneError:
                self._state.give_way()
                self._become_active("it goes on alone, and what the other one answers is lost", is_new_epoch=True)
            self._proposed = None

    # State in the file next to the journals.

    def _check_directory(self) -> None:
        """As `Hub._check_directory`; set days aside that are damaged, and all days after them."""
        while True:
            try:
                super()._check_directory()
                History(self._days, self.feed).tell(Table(*self._remembered), Deadlines(), Topics(self.feed))
                return
            except DamagedError as error:
                days = recorded_days(self._days)
                if self._is_told_alone or not days:
                    raise
                self._set_aside(days, str(error))

    def _set_aside(self, days: list[Path], why: str) -> None:
        """Set the last day aside. This hub ends unless the peer has the puts of that day."""
        day = days[-1]
        aside = self._days / "damaged" / f"{day.name}-{time.time_ns()}"
        kept = self._kept
        had = max(kept.damaged, newest_turn(day) + kept.is_alone, 1)  # an unreadable turn of a lone hub is counted
        damage = f"{kept.damage}{why} (it is now in {aside}). "
        log.error("hub of feed %r, the %s: %s; %s is now %s", self.feed.name, self.pair.role, why, day, aside)
        self._keep(msgspec.structs.replace(kept, is_alone=False, damaged=had, damage=damage))
        make_directory(aside.parent)
        day.rename(aside)
        sync_directory(self._days)

    def _load(self) -> None:
        """Begin another run. That it is alone holds for the hub that has written it."""
        kept = self._kept
        is_alone = kept.is_alone and kept.role == self.pair.role
        history = History(self._days, self.feed)
        newest, note = history.newest()
        self._noted = max(
            (int(number) for part in history.parts_from(0, newest) for number in part.notes.numbers), default=0
        )
        run = max(kept.run + 1, time.time_ns())
        epoch = newest_epoch(self._days) if kept.damaged else kept.epoch
        kept = msgspec.structs.replace(kept, role=self.pair.role, run=run, is_alone=is_alone, epoch=epoch)
        digest = checksum_of(note).to_bytes(8, "little") if note else b""
        self._state = PairState(self.feed.name, kept, newest, digest)
        self._digests = {newest: digest}
        self._note_state("")

    def _keep(self, kept: Kept) -> None:
        replace_file(self._path, self._path.with_suffix(".new"), encode_kept(kept))
        self._kept = kept

    def _note_state(self, why: str) -> None:
        """Keep what the state has decided, before anything is said; log what it is now, and why."""
        state = self._state
        if state.kept != self._kept:
            self._keep(state.kept)
        peer = state.peer.newest if state.peer is not None else -1
        lacks = max(0, state.standing.newest - peer) if peer >= 0 else -1
        before, self._seen = self._seen, (state.life.value, state.kept.term, lacks)
        if before[0] != state.life.value:
            log.warning("hub of feed %r, the %s, is %s: %s", self.feed.name, self.pair.role, state.life.value, why)

    def statistics(self) -> HubStatistics:
        """As `Hub.statistics`, with how the pair stands."""
        life, term, lacks = self._seen
        return HubStatistics(**self._counts, life=life, term=term, peer_lacks=lacks)

    # The publisher, open in both lives, in the epoch that is kept.

    def _open_publisher(self, epoch: int) -> None:
        serve = not self._kept.damaged and self.feed.archives[self.pair.line]
        self._outbox = self._make_outbox(serve=serve, epoch=epoch)
        self._publisher = Publisher(self._own, outbox=self._outbox).start()
        self._has_publisher = True
        self._numbers.begin(self._publisher)

    def _end_publisher(self) -> None:
        if self._has_publisher:
            self._has_publisher = False
            self._publisher.close(says_end=False)

    def _begin_epoch(self, epoch: int) -> None:
        self._end_publisher()
        self._state.kept = msgspec.structs.replace(self._state.kept, epoch=epoch)
        self._note_state("another epoch begins")
        self._open_publisher(epoch)

    # Entries.

    def _store(self, notes: dict[int, bytes], turn: _Turn, synced: bool) -> None:
        """As `Hub._store`; the peer has it before, if it may take over."""
        entry = self._entry_of(notes, turn)
        self._confirm(entry, synced)
        self._append_entry(entry, [checked(self.feed, part) for part in entry.parts])
        if synced:
            self._sync()

    def _store_snapshot(self, notes: list[bytes]) -> None:
        super()._store_snapshot(notes)
        self._snapshot = Entry(self._state.newest, True, 0, [part_of(0, 0, note, ()) for note in notes])

    def _entry_of(self, notes: dict[int, bytes], turn: _Turn) -> Entry:
        """Return what a turn appends."""
        blocks: dict[int, list[Block]] = {slice_id: [] for slice_id in notes}
        begins = {slice_id: self._publisher.published_count(slice_id) for slice_id in notes}
        ends = dict(begins)
        for fresh in turn.fresh:
            for slice_id, block in self._blocks_of(fresh, ends):
                blocks[slice_id].append(block)
        number = self._table.number
        return Entry(
            number,
            False,
            self.epoch if turn.fresh else 0,
            [
                part_of(each, begins[each], note, [(block.header, bytes(block.body)) for block in blocks[each]])
                for each, note in notes.items()
            ],
        )

    def _blocks_of(self, fresh: _Fresh, ends: dict[int, int]) -> list[tuple[int, Block]]:
        """Encode rows of a request; `ends`: by slice, the next sequence, which goes on."""
        columns, found = fresh.columns, list[tuple[int, Block]]()
        used, places = numpy.unique(columns.index[fresh.rows], return_inverse=True)
        topics = [fresh.topics[each] for each in used.tolist()]
        numbers: dict[bytes, int] = {}
        keys = numpy.array([numbers.setdefault(self.feed.key_of(each), len(numbers)) for each in topics])[places]
        slices = numpy.array([self.feed.slice_of(each) for each in topics])[places]
        starts, sizes = columns.offsets[:-1], numpy.diff(columns.offsets)
        for slice_id in numpy.unique(slices).tolist():
            mine = numpy.flatnonzero(slices == slice_id)
            filled = numpy.cumsum(sizes[fresh.rows[mine]] + _ROW_BYTES) // self.feed.block_bytes
            cuts = numpy.flatnonzero((numpy.diff(keys[mine]) != 0) | (numpy.diff(filled) != 0)) + 1
            for part in numpy.split(mine, cuts):
                rows, (mine_used, index) = fresh.rows[part], numpy.unique(places[part], return_inverse=True)
                names = [topics[each] for each in mine_used.tolist()]
                block = Block.encode(
                    names,
                    index.astype(numpy.int32),
                    columns.data,
                    ts_event=numpy.zeros(len(rows), numpy.int64) if columns.times is None else columns.times[rows],
                    offsets=starts[rows],
                    lengths=sizes[rows].astype(numpy.int32),
                    valid=None if columns.valid is None else columns.valid[rows],
                    key=self.feed.key_of(names[0]),
                    key_rule=self.feed.key_rule,
                    slice_id=slice_id,
                    schema_id=self._schema.schema_id,
                    epoch=self.epoch,
                    sequence=ends[slice_id],
                )
                ends[slice_id] += len(rows)
                found.append((slice_id, block))
        return found

    def _append_entry(self, entry: Entry, blocks: list[list[Block]]) -> None:
        """Append the missing part of an entry with checked blocks. Raises JournalError if it does not fit."""
        deadline = time.monotonic() + PATIENCE_S
        for part, mine in zip(entry.parts, blocks, strict=True):
            following = self._publisher.published_count(part.slice_id)
            lacking = [block for block in mine if block.sequence >= following]
            if lacking and lacking[0].sequence != following:
                raise JournalError(
                    f"turn {entry.number} began at {lacking[0].sequence} of slice {part.slice_id}, expected {following}"
                )
            if lacking or (not mine and (entry.is_snapshot or entry.number > self._noted)):
                self._publisher._note(part.slice_id, part.note, is_alone=not lacking)
                self._publish_blocks(part, lacking)
                self._publisher._wait_kept(part.slice_id, following + sum(map(len, lacking)), deadline)
        if not entry.is_snapshot:
            self._digests[entry.number] = digest_of(entry)
            if len(self._digests) > _MOST_DIGESTS:
                del self._digests[next(iter(self._digests))]
            self._state.appended(entry.number, digest_of(entry))

    def _publish_blocks(self, part: Part, blocks: list[Block]) -> None:
        headers = numpy.frombuffer(b"".join(block.header for block in blocks) or b"\0", numpy.uint8)
        size = len(headers) // max(1, len(blocks))
        heads = headers.ctypes.data + size * numpy.arange(len(blocks), dtype=numpy.int64)
        bodies = numpy.array([block.body.ctypes.data for block in blocks], numpy.int64)
        absent = numpy.zeros(len(blocks), numpy.int64)
        stored = Stored(heads.ctypes.data, bodies.ctypes.data, 0, absent.ctypes.data, len(blocks))
        if blocks:
            self._publisher._publish_stored(part.slice_id, [block.key for block in blocks], stored)

    # The link.

    def _talk(self) -> None:
        """Say and hear what there is. Raises OutdatedError when the peer has taken over."""
        lead = self._link.answered()
        if lead is not None and self._state.hears(lead.standing):
            self._take_lead(lead)
        self._hear_peer()
        self._link.ask(self._state.question)
        self._note_state("")

    def _hear_peer(self) -> None:
        """Hear and answer what the peer asks. Raises OutdatedError when it has taken over."""
        follow = self._link.asked()
        if follow is not None and self._state.hears(follow.standing):
            was_alone = self._kept.is_alone
            self._state.hear_follow(follow)
            if self._state.kept.is_alone and not was_alone:
                log.warning("hub of feed %r, the %s: the other one has started again", self.feed.name, self.pair.role)
            self._note_state("")
        self._answer_peer()

    def _pause(self) -> None:
        """Do what cannot wait while days are read: else this hub would seem to be silent."""
        self._hear_peer()

    # Passive.

    def _follow(self) -> None:
        """Return once it is active."""
        while not self._state.is_active:
            ready = self._thread.poll(self._thread.watch(self._socket, *self._link.sockets), self._link.wait_s())
            if ready is None:
                raise _OverError
            self._talk()
            if self._socket in ready and not self._state.is_active:
                self._turn_away()

    def _turn_away(self) -> None:
        """Tell who asks that the other one is to be asked; or take over, if it is time."""
        for _ in range(_MOST_TURNED_AWAY):
            try:
                frames = receive(self._socket, zmq.NOBLOCK)
            except zmq.Again:
                return
            asked = request_of(frames, self._gate)
            if isinstance(asked.request, Ended):
                self._send(self._socket, asked.client, asked.request)
            elif isinstance(asked.request, FindSites):
                self._send(self._socket, asked.client, self.sites.answer(asked.request, asked.key))
            elif self._state.life is PairLife.ARMED and self._link.is_silent:
                self._first_frames = frames
                self._become_active("the active one is silent, and a client asks", is_new_epoch=False)
                return
            else:
                self._send(self._socket, asked.client, Passive())

    def _take_lead(self, lead: Lead) -> None:
        """Take what the peer says, if that leads; if it does not, see who has to."""
        state = self._state
        if state.is_active:
            return
        if not lead.standing.is_active:
            if (why := state.settle(lead.standing)) is not None:
                self._become_active(why[0], is_new_epoch=why[1])
            return
        entries = state.hear_lead(lead)
        self._note_state("another process leads")
        try:
            blocks = [[checked(self.feed, part) for part in entry.parts] for entry in entries]
        except BlockError as error:
            log.error(
                "hub of feed %r, the %s: the peer has sent damaged puts: %s", self.feed.name, self.pair.role, error
            )
            return  # it is asked again
        first = next((entry.epoch for entry in entries if entry.epoch), lead.epoch)
        for entry, mine in zip(entries, blocks, strict=True):
            epoch = entry.epoch or state.kept.epoch or first
            if epoch != state.kept.epoch:
                self._begin_epoch(epoch)
            day = self._outbox.day()
            if entry.is_snapshot:
                self._sync()
            self._append_entry(entry, mine)
            if entry.is_snapshot and is_whole_snapshot([part.note for part in entry.parts]):
                self._outbox.sync(0)
                self._outbox.delete_before(day)
        if entries and lead.is_synced:
            self._sync()
        was_damaged = state.kept.damaged > 0
        if state.end_following(lead) or (was_damaged and not state.kept.damaged):
            self._begin_epoch(lead.epoch)
        has_all = state.life is PairLife.ARMED
        self._note_state("it has all that the active one has" if has_all else "the active one goes on without it")
        self._link.ask_at = 0.0

    # Active.

    def _become_active(self, why: str, *, is_new_epoch: bool) -> None:
        if is_new_epoch or not self._kept.epoch:
            self._begin_epoch(max(time.time_ns(), self._kept.epoch + 1))
        self._read_history()
        self._state.lead()
        self._entries = self._snapshot = None
        self._note_state(f"{why}; term {self._state.kept.term}")

    def _lead(self) -> None:
        """Answer what comes. Raises OutdatedError, _AloneError, _OverError."""
        frames, self._first_frames = self._first_frames, None
        self._end_topics()
        if frames is not None:
            self._answer_all(self._socket, frames)
        while True:
            ready = self._thread.poll(
                self._thread.watch(self._socket, *self._link.sockets),
                min(self._link.wait_s(), self._conditions.wait_s()),
            )
            if ready is None:
                raise _OverError
            self._talk()
            self._end_topics()
            if self._socket in ready:
                self._answer_all(self._socket, receive(self._socket))
            self._take_snapshot()

    def _confirm(self, entry: Entry, synced: bool) -> None:
        """Wait until the peer has an entry; not for one that may not take over."""
        self._state.propose(entry.number, synced)
        self._proposed = entry
        while not self._state.has_followed():
            self._talk()
            if self._state.has_followed():
                break
            if self._link.is_silent:
                if self.pair.when_cut == "go_on":
                    raise _AloneError
                self._turn_away()
            if self._thread.poll(self._thread.watch(*self._link.sockets), self._link.wait_s()) is None:
                raise _OverError
        self._proposed = None

    def _answer_peer(self) -> None:
        """Answer the peer's question if there is something for it, or it is time to."""
        follow, state = self._link.waiting, self._state
        if follow is None:
            return
        entries: list[Entry] = []
        why = ""
        if state.is_active and not follow.standing.is_active:
            entries, why = self._entries_for(follow)
            if not why and state.take_in(follow, entries):
                log.warning("hub of feed %r, the %s: the other one is in step", self.feed.name, self.pair.role)
                self._note_state("")
                self._link.answer_at = 0.0
            if not entries and not why and not state.has_news(follow) and time.monotonic() < self._link.answer_at:
                return
        self._link.answer(state.answer(follow, entries, why))

    def _entries_for(self, follow: Follow) -> tuple[list[Entry], str]:
        """Return what the peer lacks; or why it cannot follow."""
        newest, digest, state = follow.standing.newest, follow.digest, self._state
        if why := wrong_version("hub", follow.standing.version):
            return [], why
        proposed = [] if self._proposed is None else [self._proposed]
        known = {each.number: digest_of(each) for each in proposed} | self._digests
        if follow.standing.had > state.standing.newest or (newest and digest and known.get(newest, digest) != digest):
            return [], state.why_not(follow, _ALONE_TOO)
        if newest == state.standing.newest:
            snapshot, self._snapshot = self._snapshot, None
            return [] if snapshot is None else [snapshot], ""
        if newest == state.newest:
            return proposed, ""
        try:
            return self._read_entries(newest, digest), ""
        except _ConflictError:
            return [], state.why_not(follow, _ALONE_TOO)
        except TooFarBehindError:
            return [], state.why_not(follow, "lacks more than the journals still have")
        except JournalError as error:
            log.error("hub of feed %r, the %s: the other one cannot follow: %s", self.feed.name, self.pair.role, error)
            return [], state.why_not(follow, f"cannot be given what it lacks: {error}")

    def _read_entries(self, newest: int, digest: bytes) -> list[Entry]:
        """Return what the journals have behind a turn, some of it. Raises JournalError, _ConflictError."""
        found = self._entries.take(_MOST_BYTES) if self._entries is not None and self._given == newest else []
        if not found:
            self._entries = Entries(self._days, self.feed, max(newest, 1))
            if newest:
                (first,) = self._entries.take(0)
                if digest not in (b"", digest_of(first)):
                    raise _ConflictError
            found = self._entries.take(_MOST_BYTES)
        self._given = max([newest, *(each.number for each in found)])
        return found
