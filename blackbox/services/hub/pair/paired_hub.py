"""A hub of a pair: it leads, or it follows the active hub and takes over from it.

See "Two hubs" in docs/hub-pairs-and-sites.md for the rules. `machine.py` decides; this module has the I/O.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Unpack

import msgspec
import numpy

from blackbox.archive.files.day import make_directory, recorded_days, replace_file, sync_directory
from blackbox.block.form.block import Block
from blackbox.errors import DamagedError
from blackbox.feed.endpoint import free_endpoints
from blackbox.feed.feed import Feed
from blackbox.feed.schema.schema import load_schema
from blackbox.publish.publisher import Publisher
from blackbox.publish.send.batcher import Stored
from blackbox.services.hub.pair.entries import Entries, checked, part_of
from blackbox.services.hub.pair.link import Link
from blackbox.services.hub.pair.machine import PairMachine
from blackbox.services.hub.pair.messages import Entry, Follow, Kept, Lead, Pair, Part, encode_kept, read_kept
from blackbox.services.hub.protocol import FindSites
from blackbox.services.hub.server.client_table import Table
from blackbox.services.hub.server.deadlines import Deadlines
from blackbox.services.hub.server.history import History, newest_epoch
from blackbox.services.hub.server.hub import PATIENCE_S, Hub, HubKeywords, HubStatistics
from blackbox.services.hub.server.judge import Answer, Fresh, Judge, Turn
from blackbox.services.hub.server.notes import newest_turn
from blackbox.services.hub.server.topics import Topics
from blackbox.transport.server_thread import receive

log = logging.getLogger("blackbox")

_ROW_BYTES: Final = 16
"""Approximate size of a message in a block, without its payload."""


class _OverError(Exception):
    """This hub no longer leads."""


class PairedHub(Hub):
    """A hub that has a peer. Settings and life as in `Hub`.

    `alone`: lead without hearing from the peer. Puts that only the peer has are lost, and the peer must not be active.
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
        """True if a publisher is open, which needs an epoch."""
        self._days = self.directory / self.feed.name
        self._path = self.directory / f"{self.feed.name}.pair"
        self._damaged = 0
        """As in `Kept`."""
        self._machine: PairMachine | None = None

    def _own_feed(self) -> Feed:
        """Return the feed with this hub's endpoints only. Line B gets a private line A, without subscribers."""
        line, slices = self.pair.line, []
        beside = free_endpoints("ipc", self.feed.name, len(self.feed.slices), 1) if line else []
        for number, part in enumerate(self.feed.slices):
            endpoints = (*beside[number], part.lines[1]) if line else part.lines[:1]
            bind = (*beside[number], part.bound[1]) if line else part.bound[:1]
            slices.append(msgspec.structs.replace(part, endpoints=endpoints, bind=bind))
        return msgspec.structs.replace(self.feed, slices=tuple(slices))

    # In its thread.

    def _serve(self) -> None:
        kept = read_kept(self._path) if self._path.exists() else Kept(self.pair.role)
        kept = self._check_directory_of(kept)
        self._damaged = kept.damaged
        is_cut = self._has_lost_power()
        with ExitStack() as stack:
            if kept.damaged:
                kept = msgspec.structs.replace(kept, epoch=newest_epoch(self._days))
            self._machine = machine = PairMachine(History(self._days, self.feed), kept, self.pair, self)
            stack.callback(self._end_publisher)
            if kept.epoch:
                self.begin_epoch(machine.state.kept.epoch)
            self._socket, answers = self._bind(stack, self.feed.bound(self.endpoint), self.pair.link)
            self._link = link = Link(answers, self.feed, self.pair)
            stack.callback(link.close)
            self._thread.begin()
            machine.begin(is_told_alone=self._is_told_alone, is_cut=is_cut)
            while True:
                requests = [self._socket] if machine.takes_requests else []
                poller = self._thread.watch(*requests, *link.sockets)
                ready = self._thread.poll(poller, machine.wait_s(time.monotonic()))
                if ready is None:
                    break
                asked = self._waiting(self._socket, receive(self._socket)) if self._socket in ready else []
                machine.step(time.monotonic(), link.answered(), link.asked(), asked)
            self._thread.begin_to_end()
            self._end_publisher()

    # State in the file next to the journals.

    def _check_directory_of(self, kept: Kept) -> Kept:
        """Check as `_check_directory`; set damaged days and all later days aside. Return the resulting state."""
        while True:
            try:
                self._check_directory()
                History(self._days, self.feed).tell(Table(*self._remembered), Deadlines(), Topics(self.feed))
                return kept
            except DamagedError as error:
                days = recorded_days(self._days)
                if self._is_told_alone or not days:
                    raise
                kept = self._set_aside(kept, days, str(error))

    def _set_aside(self, kept: Kept, days: list[Path], why: str) -> Kept:
        """Set the last day aside. This hub ends unless the peer has the puts of that day."""
        day = days[-1]
        aside = self._days / "damaged" / f"{day.name}-{time.time_ns()}"
        had = max(kept.damaged, newest_turn(day) + kept.is_alone, 1)  # an unreadable turn of a lone hub is counted
        damage = f"{kept.damage}{why} (it is now in {aside}). "
        log.error("hub of feed %r, the %s: %s; %s is now %s", self.feed.name, self.pair.role, why, day, aside)
        kept = msgspec.structs.replace(kept, is_alone=False, is_cut=False, damaged=had, damage=damage)
        self.keep(kept)
        make_directory(aside.parent)
        day.rename(aside)
        sync_directory(self._days)
        return kept

    def keep(self, kept: Kept) -> None:
        """As `Shell`."""
        replace_file(self._path, self._path.with_suffix(".new"), encode_kept(kept))
        self._damaged = kept.damaged

    def statistics(self) -> HubStatistics:
        """Return `Hub.statistics` with the state of the pair."""
        counts = self._judge.counts
        if self._machine is None:
            return HubStatistics(**counts, life="passive")
        state = self._machine.state
        peer = state.peer
        lacks = -1 if peer is None else max(0, state.standing.newest - peer.newest)
        return HubStatistics(**counts, life=state.life.value, term=state.kept.term, peer_lacks=lacks)

    # The publisher, open in both lives, in the kept epoch.

    def begin_epoch(self, epoch: int) -> None:
        """As `Shell`."""
        self._end_publisher()
        serve = not self._damaged and self.feed.archives[self.pair.line]
        self._outbox = self._make_outbox(serve=serve, epoch=epoch)
        self._publisher = Publisher(self._own, outbox=self._outbox).start()
        self._has_publisher = True

    def _end_publisher(self) -> None:
        if self._has_publisher:
            self._has_publisher = False
            self._publisher.close(says_end=False)

    def read_history(self) -> Judge:
        """As `Shell`."""
        self._read_history()
        return self._judge

    def read_days(self, judge: Judge) -> None:
        """As `Shell`."""
        with suppress(_OverError):
            judge.conditions.read(self._newest_places)

    def _pause(self) -> None:
        """Answer the peer while days are read; otherwise this hub would count as silent."""
        assert self._machine is not None
        if not self._machine.pause(time.monotonic(), self._link.asked()):
            raise _OverError

    # Entries.

    def entry_of(self, turn: Turn) -> Entry:
        """As `Shell`."""
        blocks: dict[int, list[Block]] = {slice_id: [] for slice_id in turn.notes}
        begins = {slice_id: self._publisher.published_count(slice_id) for slice_id in turn.notes}
        ends = dict(begins)
        for fresh in turn.fresh:
            for slice_id, block in self._blocks_of(fresh, ends):
                blocks[slice_id].append(block)
        return Entry(
            turn.number,
            self.epoch if turn.fresh else 0,
            [
                part_of(each, begins[each], note, [(block.header, bytes(block.body)) for block in blocks[each]])
                for each, note in turn.notes.items()
            ],
        )

    def _blocks_of(self, fresh: Fresh, ends: dict[int, int]) -> list[tuple[int, Block]]:
        """Encode rows of a request. `ends`: next sequence by slice, which is advanced."""
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
                    schema_id=load_schema(self.feed.schema).schema_id,
                    epoch=self.epoch,
                    sequence=ends[slice_id],
                )
                ends[slice_id] += len(rows)
                found.append((slice_id, block))
        return found

    def blocks_of(self, entry: Entry) -> list[list[Block]]:
        """As `Shell`."""
        return [checked(self.feed, part) for part in entry.parts]

    def following(self, slice_id: int) -> int:
        """As `Shell`."""
        return self._publisher.published_count(slice_id)

    def append(self, part: Part, blocks: Sequence[Block]) -> None:
        """As `Shell`."""
        following = self.following(part.slice_id)
        writer = self._publisher._running()[part.slice_id]
        writer.ring.put_note(part.note, is_alone=not blocks)
        self._publish_blocks(part, blocks)
        deadline = time.monotonic() + PATIENCE_S
        writer.wait_kept(following + sum(map(len, blocks)), deadline)

    def sync(self) -> None:
        """As `Shell`."""
        self._sync()

    def day(self) -> Path:
        """As `Shell`."""
        return self._outbox.day()

    def delete_before(self, day: Path) -> None:
        """As `Shell`."""
        self._outbox.delete_before(day)

    def entries(self, first: int) -> Entries:
        """As `Shell`."""
        return Entries(self._days, self.feed, first)

    def _publish_blocks(self, part: Part, blocks: Sequence[Block]) -> None:
        headers = numpy.frombuffer(b"".join(block.header for block in blocks) or b"\0", numpy.uint8)
        size = len(headers) // max(1, len(blocks))
        heads = headers.ctypes.data + size * numpy.arange(len(blocks), dtype=numpy.int64)
        bodies = numpy.array([block.body.ctypes.data for block in blocks], numpy.int64)
        absent = numpy.zeros(len(blocks), numpy.int64)
        stored = Stored(heads.ctypes.data, bodies.ctypes.data, absent.ctypes.data, len(blocks))
        if blocks:
            self._publisher._running()[part.slice_id].put_stored([block.key for block in blocks], stored)

    # The link and the clients.

    def now_ns(self) -> int:
        """As `Shell`."""
        return self._around.now_ns()

    def find_sites(self, request: FindSites, key: str) -> Answer:
        """As `Shell`."""
        return self._around.find_sites(request, key)

    def ask(self, follow: Follow) -> None:
        """As `Shell`."""
        self._link.ask(follow)

    def answer(self, lead: Lead) -> None:
        """As `Shell`."""
        self._link.answer(lead)

    def send(self, client: bytes, answer: Answer) -> None:
        """As `Shell`."""
        self._send(self._socket, client, answer)
