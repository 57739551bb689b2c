"""One of the two hubs of a feed: it leads, or it follows the one that leads and takes over from it.

See "Two hubs" in docs/hub-pairs-and-sites.md for the rules. Only the duration of a failover depends on clocks: while a
passive hub may take over, the active hub answers only what the passive one has in its log.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple, Self, Unpack

import msgspec
import numpy
import zmq

from blackbox.archive.day import make_directory
from blackbox.block.layout import VERSION
from blackbox.errors import ConfigError, HubError, JournalError
from blackbox.feed.endpoint import free_endpoints
from blackbox.feed.feed import Feed
from blackbox.hub.hub import Hub, HubKeywords, HubStatistics, _Fresh, _Mark, request_of
from blackbox.hub.link import Link
from blackbox.hub.numbers import by_number
from blackbox.hub.pair import Entry, Follow, Lead, Pair, Standing, next_term
from blackbox.hub.paired_log import PairedLog, TooFarBehindError
from blackbox.hub.protocol import (
    PLACE,
    REQUESTS,
    Columns,
    Ended,
    FindSites,
    Passive,
    Places,
    Put,
    unpack_places,
    wrong_version,
)
from blackbox.hub.topics import Topics
from blackbox.life import Life
from blackbox.publish.publisher import Publisher
from blackbox.transport.server_thread import receive

log = logging.getLogger("blackbox")

_MOST_BYTES: Final = 4 << 20
"""Of what a passive hub gets at once."""
_MOST_TURNED_AWAY: Final = 256


class PairLife(Life):
    """Whether a hub of two leads."""

    PASSIVE = "passive", "armed", "active"
    """It lacks something, or does not know whether it does. ARMED once it has all, ACTIVE if its peer is behind it."""
    ARMED = "armed", "passive", "active"
    """It has all that the active one has answered, and takes over when that is silent and a client asks."""
    ACTIVE = "active", "passive"
    """It takes puts. PASSIVE once it hears that the other one has taken over."""


class _OverError(Exception):
    """It is told to end."""


class _OutdatedError(Exception):
    """The other one has taken over."""


class _AloneError(Exception):
    """It is to go on alone, in another epoch."""


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
        self.life = PairLife.PASSIVE
        self._own, self.endpoint = self._own_feed(), pair.endpoint(self.feed)
        self._has_publisher = False
        """Not until there is an epoch."""
        self._has_lost = False
        """Whether the log had puts of the epoch that are lost."""
        self._peer: Standing | None = None
        # Of the one that follows:
        self._leader = self._done = 0
        # Of the one that leads:
        self._follower = self._batch = 0
        self._batch_synced = False
        self._followed: Follow | None = None
        self._seen = (0, -1)
        """Its term, and how many rows the peer lacks; -1: nobody knows."""
        self._first: list[zmq.Frame] | None = None
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
        make_directory(self.directory)
        self._sync_files()
        with ExitStack() as stack:
            path = self.directory / f"{self.feed.name}.puts"
            self._log = self._pair_log = stack.enter_context(PairedLog(path, *self._remembered, self.pair.role))
            with self._pair_log.transaction():
                self._conditions = self._make_conditions()
            stack.callback(self._end_publisher)
            if self._pair_log.epoch:
                self._open_publisher()
            self._socket, answers = self._bind(stack, self.feed.bound(self.endpoint), self.pair.link)
            self._link = Link(answers, self.feed, self.pair)
            stack.callback(self._link.close)
            self._thread.begin()
            try:
                self._go_on()
            except _OverError:
                self._thread.begin_to_end()
            self._close_publisher()

    def _go_on(self) -> None:
        if self._is_told_alone:
            self._become_active("it was told to go on alone", is_new_epoch=True)
        elif self._pair_log.is_alone:
            self._become_active("it was alone before", is_new_epoch=self._has_lost or not self._outbox.is_whole)
        while True:
            try:
                self._follow()
                self._lead()
            except _OutdatedError:
                assert self._peer is not None
                self._pair_log.set(is_alone=False)
                self._enter(PairLife.PASSIVE, f"the {self._peer.role} has taken over, in term {self._peer.term}")
            except _AloneError:
                self._enter(PairLife.PASSIVE, "the other one is silent")
                self._become_active("it goes on alone, and what the other one answers is lost", is_new_epoch=True)

    @property
    def _is_active(self) -> bool:
        return self.life is PairLife.ACTIVE

    def _enter(self, life: PairLife, why: str) -> None:
        if life is not self.life:
            self.life = self.life.enter(life, f"hub of feed {self.feed.name!r}")
            log.warning("hub of feed %r, the %s, is %s: %s", self.feed.name, self.pair.role, life.value, why)

    # The publisher, open in both lives, in the epoch that the log tells.

    def _open_publisher(self) -> None:
        """Go on in the epoch of the log, and publish what is in that and not in the outbox."""
        self._outbox = self._make_outbox(serve=self.feed.archives[self.pair.line], epoch=self._pair_log.epoch)
        self._publisher = Publisher(self._own, outbox=self._outbox).start()
        self._has_publisher = True
        self._numbers.begin(self._publisher)
        self._forget_marks()
        self._put_again()
        self._publisher.flush()
        self._has_begun = True  # the log tells the epoch, not the outbox

    def _forget(self, number: int, lost: Places) -> None:
        """Forget a request and those behind it: the peer has them, or another epoch begins."""
        self._has_lost = True
        self._pair_log.forget(number, lost)

    def _forget_marks(self) -> None:
        self._mark, self._numbers.touched = _Mark(0, 0, {}), {}
        self._dropped = self._waiting_bytes = 0
        self._topics = Topics(self.feed, self._publisher)

    def _close_publisher(self) -> None:
        """End the outbox in order: all that is in the log is in there."""
        if self._has_publisher:
            self._publisher.flush()
            self._end_publisher()
            self._pair_log.drop(self._pair_log.newest, synced=True)

    def _end_publisher(self) -> None:
        if self._has_publisher:
            self._has_publisher = False
            self._publisher.close(says_end=False)

    def _begin_epoch(self, epoch: int) -> None:
        self._close_publisher()
        self._pair_log.set(epoch=epoch)
        self._open_publisher()

    def statistics(self) -> HubStatistics:
        """As `Hub.statistics`, with how the pair stands."""
        return HubStatistics(**self._counts, life=self.life.value, term=self._seen[0], peer_lacks=self._seen[1])

    # The link.

    def _standing(self) -> Standing:
        return Standing(
            self.feed.name,
            self.pair.role,
            self._pair_log.run,
            self._pair_log.term,
            self._pair_log.newest,
            self._pair_log.outbox,
            self._is_active,
            self.life is PairLife.ARMED,
            VERSION,
        )

    def _talk(self) -> None:
        """Say and hear what there is. Raises _OutdatedError when the peer has taken over."""
        lead = self._link.answered()
        if lead is not None and self._hears(lead.standing):
            self._take_lead(lead)
        self._hear_peer()
        self._link.ask(self._question)
        newest = self._peer.newest if self._peer is not None else -1
        self._seen = self._pair_log.term, max(0, self._pair_log.newest - newest) if newest >= 0 else -1

    def _hear_peer(self) -> None:
        """Hear and answer what the peer asks. Raises _OutdatedError when it has taken over."""
        follow = self._link.asked()
        if follow is not None and self._hears(follow.standing):
            self._take_follow(follow)
        self._answer_peer()

    def _pause(self) -> None:
        """Do what cannot wait while days are read: else this hub would seem to be silent."""
        self._hear_peer()

    def _question(self, number: int) -> Follow:
        standing = self._standing()
        return Follow(number, standing, self._done, self._leader, self._pair_log.digest(standing.newest))

    def _hears(self, standing: Standing) -> bool:
        """Note how the peer stands. False: its process has ended since, or is of another version.

        Raises HubError for another version if this hub is passive.
        """
        if why := wrong_version("other hub", standing.version):
            if not self._is_active:
                raise HubError(why)
            return False
        if self._peer is not None and standing.run < self._peer.run:
            return False
        self._peer = standing
        if self._is_active and standing.term > self._pair_log.term:
            raise _OutdatedError
        return True

    # Passive.

    def _follow(self) -> None:
        """Return once it is active."""
        while not self._is_active:
            ready = self._thread.poll(self._thread.watch(self._socket, *self._link.sockets), self._link.wait_s())
            if ready is None:
                raise _OverError
            self._talk()
            if self._socket in ready and not self._is_active:
                self._turn_away()
            if self._has_publisher:
                self._drop()

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
            elif self.life is PairLife.ARMED and self._link.is_silent:
                self._first = frames
                self._become_active("the active one is silent, and a client asks", is_new_epoch=False)
                return
            else:
                self._send(self._socket, asked.client, Passive())

    def _take_lead(self, lead: Lead) -> None:
        """Take what the peer says, if that leads; if it does not, see who has to."""
        if self._is_active:
            return
        peer = lead.standing
        if not peer.is_active:
            self._settle_with(peer)
            return
        if lead.why:
            raise HubError(lead.why)
        if peer.term < self._pair_log.term:
            return  # it will hear of that
        if peer.run != self._leader:
            self._leader, self._done = peer.run, 0
            self._enter(PairLife.PASSIVE, "another process leads")
        self._take_entries(lead)
        if peer.term != self._pair_log.term:
            self._pair_log.set(term=peer.term)
        self._pair_log.kept = max(self._pair_log.kept, min(peer.synced, self._pair_log.newest))
        has_all = self._pair_log.newest == peer.newest
        if has_all:
            self._done = lead.batch
            if lead.epoch != self._pair_log.epoch:
                self._begin_epoch(lead.epoch)
        if lead.is_in_step and has_all:
            self._enter(PairLife.ARMED, "it has all that the active one has")
        elif not lead.is_in_step:
            self._enter(PairLife.PASSIVE, "the active one goes on without it")
        self._link.ask_at = 0.0

    def _settle_with(self, peer: Standing) -> None:
        """See who of two that are passive has to lead."""
        if self.life is PairLife.ARMED:
            self._become_active("the active one has ended, or begun anew", is_new_epoch=False)
        elif not peer.is_armed and self._standing().rank > peer.rank:
            self._become_active("neither was, and the other one has no more", is_new_epoch=True)

    def _take_entries(self, lead: Lead) -> None:
        """Have rows of the peer in the log, then publish them."""
        newest, rows = self._pair_log.newest, list[_Row]()
        for entry in lead.entries:
            if entry.number <= newest:
                continue
            row = _Row.of(entry)
            is_other_epoch = row.epoch not in (0, self._pair_log.epoch)
            if is_other_epoch or not self._has_room(row):  # topics of another leader fill the publisher
                self._take_rows(rows, lead.is_synced)
                rows = []
                self._begin_epoch(row.epoch or self._pair_log.epoch or lead.epoch)
                self._topics.add_all(row.topics)
            rows.append(row)
        self._take_rows(rows, lead.is_synced)

    def _has_room(self, row: _Row) -> bool:
        """Count topics; return whether there is room for them."""
        try:
            self._topics.add_all(row.topics)
        except ConfigError:
            return False
        return True

    def _take_rows(self, rows: list[_Row], synced: bool) -> None:
        if not rows:
            return
        if self._has_publisher:
            self._prepare([row.put for row in rows if row.put is not None])
        with self._pair_log.transaction(synced=synced):
            self._pair_log.take([row.entry for row in rows])
            for row in rows:
                if row.put is not None and row.fresh is not None:
                    is_new = row.places["is_new"] != 0
                    self._conditions.note(row.put.topics, row.fresh.columns, row.places, is_new, row.entry.taken_ns)
        for row in rows:
            if row.fresh is not None:
                self._publish_row(row, row.fresh)

    def _publish_row(self, row: _Row, fresh: _Fresh) -> None:
        """Publish what a row has brought, where the peer did, but for what the outbox kept of it over a power cut."""
        expected, places = row.places.copy(), row.places
        lacks = by_number(places, numpy.flatnonzero((places["is_new"] != 0) & self._numbers.are_behind(places)))
        self._numbers.number(expected, lacks)
        if (expected != places).any():
            raise JournalError(f"row {row.entry.number} of the peer was {places[:1]}, expected {expected[:1]}")
        self._publish(fresh._replace(rows=lacks))
        self._newest, self._waiting_bytes = row.entry.number, self._waiting_bytes + len(row.entry.request or b"")

    # Active.

    def _become_active(self, why: str, *, is_new_epoch: bool) -> None:
        peer_term = self._peer.term if self._peer is not None else 0
        term = next_term(max(self._pair_log.term, peer_term), self.pair.role)
        if is_new_epoch or not self._pair_log.epoch:
            self._begin_epoch(max(time.time_ns(), self._pair_log.epoch + 1))
        self._pair_log.set(term=term, is_alone=True)
        self._follower, self._followed = 0, None
        self._enter(PairLife.ACTIVE, f"{why}; term {term}")

    def _lead(self) -> None:
        """Answer what comes. Raises _OutdatedError, _AloneError, _OverError."""
        frames, self._first = self._first, None
        self._end_topics()
        if frames is not None:
            self._answer_all(self._socket, frames)
        while True:
            wait_s, left_s = self._link.wait_s(), self._conditions.wait_s()
            ready = self._thread.poll(
                self._thread.watch(self._socket, *self._link.sockets), wait_s if left_s is None else min(wait_s, left_s)
            )
            if ready is None:
                raise _OverError
            self._talk()
            self._end_topics()
            if self._socket in ready:
                self._answer_all(self._socket, receive(self._socket))
            else:
                self._drop()

    @contextmanager
    def _taking(self, synced: bool) -> Iterator[None]:
        """As `Hub._taking`; the peer has it, too, if it may take over."""
        before = self._newest, self._waiting_bytes, dict(self._counts)
        try:
            with self._numbers.trying(), self._conditions.trying(), self._pair_log.transaction(synced=synced):
                yield
                self._confirm(synced)
        except BaseException:
            self._newest, self._waiting_bytes, self._counts = before
            self._pair_log.reload()
            raise

    def _confirm(self, synced: bool) -> None:
        """Wait until the peer has what is in the log; not for one that may not take over."""
        self._batch += 1
        self._batch_synced = synced
        while not self._pair_log.is_alone:
            self._talk()
            if self._has_followed():
                return
            if self._link.is_silent:
                if self.pair.when_cut == "go_on":
                    raise _AloneError
                self._turn_away()
            if self._thread.poll(self._thread.watch(*self._link.sockets), self._link.wait_s()) is None:
                raise _OverError

    def _has_followed(self) -> bool:
        follow = self._followed
        return follow is not None and follow.done == self._batch and follow.standing.newest == self._pair_log.newest

    def _take_follow(self, follow: Follow) -> None:
        """Note how far the peer is, if it follows."""
        if not self._is_active or follow.standing.is_active:
            return
        if follow.standing.run != self._follower:  # the process before has ended: nobody may take over
            if not self._pair_log.is_alone:
                self._pair_log.set(is_alone=True)
                log.warning("hub of feed %r, the %s: the other one has begun anew", self.feed.name, self.pair.role)
            self._follower = follow.standing.run
        self._followed = follow if follow.leader == self._pair_log.run else None

    def _answer_peer(self) -> None:
        """Answer the peer's question if there is something for it, or it is time to."""
        follow = self._link.waiting
        if follow is None:
            return
        entries: list[Entry] = []
        why = ""
        standing = self._standing()
        if standing.is_active and not follow.standing.is_active:
            newest = follow.standing.newest
            try:
                digest = self._pair_log.digest(newest)
                if follow.standing.version != VERSION:
                    why = wrong_version("hub", follow.standing.version)
                elif newest and digest != follow.digest and (digest or newest > standing.newest):
                    why = self._why_not(follow, "has puts that are not here: it was active alone, and so was this one")
                else:
                    entries = self._pair_log.entries(newest, _MOST_BYTES)
                    self._pair_log.kept = max(self._pair_log.kept, min(follow.standing.synced, newest))
            except TooFarBehindError:
                why = self._why_not(follow, "lacks more than the log still has")
            if (
                not why
                and not entries
                and self._followed is follow
                and self._pair_log.is_alone
                and follow.done == self._batch
            ):
                self._pair_log.set(is_alone=False)
                log.warning("hub of feed %r, the %s: the other one is in step", self.feed.name, self.pair.role)
                self._link.answer_at = 0.0
            has_news = bool(entries) or bool(why) or follow.done != self._batch or follow.leader != self._pair_log.run
            if not has_news and time.monotonic() < self._link.answer_at:
                return
        epoch = self._pair_log.epoch
        is_in_step = standing.is_active and not self._pair_log.is_alone and self._followed is not None
        self._link.answer(
            Lead(follow.number, standing, epoch, self._batch, self._batch_synced, is_in_step, entries, why)
        )

    def _why_not(self, follow: Follow, why: str) -> str:
        return (
            f"hub of feed {self.feed.name!r}, the {follow.standing.role}, {why} (the {self.pair.role}, row "
            f"{self._pair_log.newest} of its log): move its directory away, and put a copy of the other one's there"
        )


class _Row(NamedTuple):
    """A row of the peer, understood."""

    entry: Entry
    put: Put | None
    """None: it holds no puts, as the begin of a session."""
    places: Places
    fresh: _Fresh | None
    epoch: int
    """In which its messages are published; 0: it brings none."""

    @classmethod
    def of(cls, entry: Entry) -> Self:
        """Return it."""
        if entry.request is None:
            return cls(entry, None, numpy.empty(0, PLACE), None, 0)
        put, places = REQUESTS.decode(entry.request), unpack_places(entry.places)
        assert isinstance(put, Put)
        is_new = places["is_new"] != 0
        epoch = int(places["epoch"][is_new][0]) if is_new.any() else 0
        return cls(entry, put, places, _Fresh(Columns.of(put), put.topics, numpy.flatnonzero(is_new)), epoch)

    @property
    def topics(self) -> list[bytes]:
        """Those of what it brings."""
        return [] if self.fresh is None else self.fresh.used_topics
