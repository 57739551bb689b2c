"""A hub: takes what clients put, stores it once, numbers it, answers, and publishes it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self, TypedDict

import msgspec
import numpy
import zmq
from numpy.typing import NDArray

from blackbox.archive.check import check_days
from blackbox.archive.crash_recovery import recover_day
from blackbox.archive.day import Lock, make_directory, recorded_days
from blackbox.archive.outbox import Outbox, has_lost_power
from blackbox.archive.retention import EVERYTHING, Retention
from blackbox.archive.synced import RECENT_DAYS, forget_synced, note_all
from blackbox.arguments import check_integers
from blackbox.block.block import as_rows
from blackbox.documents import DecodeError
from blackbox.errors import ConfigError, HubError, JournalError
from blackbox.feed.feed import Feed
from blackbox.feed.schema import load_schema
from blackbox.hub.conditions import Conditions
from blackbox.hub.history import History
from blackbox.hub.join import Join
from blackbox.hub.notes import MOST_PART_BYTES, Client, Judged, encode_judged, encode_renewed, encode_snapshot
from blackbox.hub.numbers import Numbers
from blackbox.hub.protocol import (
    CONFLICT,
    ENCODER,
    MOST_REQUEST_BYTES,
    PLACE,
    REFUSED,
    REQUESTS,
    Columns,
    Ended,
    Expected,
    FindSites,
    FoundSites,
    Hello,
    Passive,
    Places,
    Put,
    Refused,
    Stored,
    Welcome,
    misfits,
    pack_places,
    unpack_places,
    wrong_version,
)
from blackbox.hub.revisions import Revision
from blackbox.hub.settings import feed_of_hub
from blackbox.hub.sites import Sites
from blackbox.hub.table import Table
from blackbox.hub.topics import Reasons, Topics
from blackbox.native.limits import Needs
from blackbox.publish.publisher import Publisher
from blackbox.relay.relay import Relay
from blackbox.transport.context import allow_ipv6, new_context
from blackbox.transport.curve import key_of
from blackbox.transport.gate import Gate, open_gate
from blackbox.transport.keep_alive import keep_alive
from blackbox.transport.server_thread import ServerLife, ServerThread, bind, receive

log = logging.getLogger("blackbox")

QUEUE_REQUESTS: Final = 16
"""Requests of one client that wait here; more wait on the client's side."""
QUEUE_ANSWERS: Final = 1_000
"""Answers that may wait for one client; it asks again for those that it is not given."""
_MOST_AT_ONCE: Final = 256
_MOST_BYTES_AT_ONCE: Final = 16 << 20
"""Requests, and their bytes, that are answered together."""
PATIENCE_S: Final = 60.0
_MOST_SINCE_SNAPSHOT: Final = 64 << 20
"""Bytes that are appended between two snapshots, at least."""
_TURN_BYTES: Final = 4 << 10
"""Bytes that each request of a turn adds to these, as requests are read one by one."""
_HEAD_BYTES: Final = 100
"""Approximate bytes of a request in a note, without its ids and places."""
_WATCH_S: Final = 0.5
"""Time between two looks at whether what passes other hubs' feeds on has failed."""
_FRAMES: Final = 2
_POLLIN: Final = int(zmq.POLLIN)
_MORE: Final = int(zmq.SNDMORE | zmq.NOBLOCK)
"""Once it takes the first frame of a message, it takes all."""
_NEEDS: Final = Needs(descriptors=64)

Answer = Welcome | Stored | Refused | Expected | Ended | Passive | FoundSites


class HubStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a hub has done so far."""

    stored: int = 0
    """Puts that were taken."""
    known: int = 0
    """Puts that were there already, by their id or as they came again."""
    refused: int = 0
    """Puts that no hub can have, and requests that were answered with an error."""
    conflicts: int = 0
    """Puts that were not taken, as the newest message of their topic was not where they said (`if_at`)."""
    ended: int = 0
    """Topics that were deleted once their `ttl` was over."""
    unread: int = 0
    """Answers that a client did not take, or that was gone; it asks again."""
    life: str = "active"
    """Of two hubs: active, armed (it may take over) or passive."""
    term: int = 0
    """Grows whenever one of two hubs becomes active."""
    peer_lacks: int = -1
    """Turns that the other one of two hubs lacks, as it said last; -1: it has said nothing."""


class _Fresh(NamedTuple):
    """Puts to be published: some rows of a request, in the order of their numbers."""

    columns: Columns
    topics: list[bytes]
    """Of the request; for those that were refused the publisher may have no room."""
    rows: NDArray[numpy.int64]
    numbers: NDArray[numpy.int64] | None = None
    """Of the topics, as of `Topics.numbers`; None: they are to be looked up."""

    @property
    def used_topics(self) -> list[bytes]:
        """The topics of its rows."""
        return self.columns.topics_of(self.topics, self.rows)


class _Turn:
    """A turn of the hub: requests that are judged, appended and answered together."""

    def __init__(self) -> None:
        self.requests: list[tuple[Judged, list[int]]] = []
        """With the slices in which it stores something."""
        self.fresh: list[_Fresh] = []
        self.counts: dict[str, int] = {}
        """Counts to add to the statistics."""
        self.size = 0
        """Approximate size of the notes in bytes."""

    def notes(self, number: int, first: int) -> dict[int, bytes]:
        """Return the note of each slice. `first`: number of the first turn of this hub's run."""
        of_slice: dict[int, list[Judged]] = {}
        for request, slices in self.requests:
            for slice_id in slices:
                of_slice.setdefault(slice_id, []).append(request)
        return {slice_id: encode_judged(number, first, requests) for slice_id, requests in sorted(of_slice.items())}


class HubKeywords(TypedDict, total=False):
    """Keywords of `Hub`, which a hub that has a peer takes, too."""

    fsync: Literal["interval", "block"]
    fsync_interval: float | timedelta
    remember_puts: int
    remember_ids: int
    most_clients: int
    retention: Retention
    peers: Sequence[tuple[Feed, Feed]]
    join: Join | None


class Hub:
    """The hub of one feed, in a thread of its own, from `start` to `close`. It is used once.

    It is the feed's publisher, and the first of its archives. Killed, the next one goes on with what this one has.
    """

    def __init__(
        self,
        feed: Feed,
        directory: str | os.PathLike[str],
        *,
        fsync: Literal["interval", "block"] = "interval",
        fsync_interval: float | timedelta = 1.0,
        remember_puts: int = 100_000,
        remember_ids: int = 1_000_000,
        most_clients: int = 100_000,
        retention: Retention = EVERYTHING,
        peers: Sequence[tuple[Feed, Feed]] = (),
        join: Join | None = None,
    ) -> None:
        """Settings, as in a hub file: see `HubSettings`; nothing is opened. Raises ConfigError or ValueError.

        `peers`: of each hub of another site its feed, and that feed with endpoints of this host.
        """
        check_integers(
            ("remember_puts", remember_puts, 1, 10**9),
            ("remember_ids", remember_ids, 1, 10**9),
            ("most_clients", most_clients, 1, 10**7),
        )
        if fsync not in ("interval", "block"):
            raise ValueError(f"fsync was {fsync!r}, expected interval or block")
        self.feed, self.directory = feed_of_hub(feed), Path(directory)
        self.peers = tuple(Relay(there, here, name=self.feed.name) for there, here in peers)
        """What brings here what is wanted of other hubs: one hop, straight from each."""
        self.sites = Sites(self.feed, [there for there, _ in peers], join)
        self.endpoint = self.feed.hub
        """Where it takes puts."""
        self._make_outbox = partial(
            Outbox,
            directory,
            fsync=fsync,
            fsync_interval=fsync_interval,
            retention=retention,
            keeps_days=True,
            again_bytes=0,  # what a killed hub has not sent is asked of its archive
        )
        self._outbox = self._make_outbox(serve=True)
        self._is_patient = fsync == "interval"
        """True if it appends without a sync."""
        self._remembered = remember_puts, remember_ids, most_clients
        self._schema = load_schema(feed.schema)
        self._counts = dict.fromkeys(("stored", "known", "refused", "conflicts", "ended", "unread"), 0)
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._thread = ServerThread("blackbox-hub", f"hub of feed {feed.name!r}", self._run)
        self._numbers = Numbers(len(self.feed.slices))
        self._since_snapshot, self._snapshot_bytes, self._snapshot_day = 0, 0, Path()
        """Bytes that were appended since the last snapshot, with those that count for each turn; its own; its day."""

    # For its owner.

    def start(self) -> Self:
        """Return once it takes puts. Raises JournalError, EndpointError, ConfigError or LimitError when it cannot.

        Hubs of other sites need not be there.
        """
        self._thread.start()
        try:
            for peer in self.peers:
                peer.start()
            self.sites.start()
        except BaseException:
            self._end()
            raise
        return self

    def run(self) -> None:
        """Wait until it ends. Raises what ended it; RelayError when peers form a loop, naming them."""
        while not self._over.wait(_WATCH_S):
            for peer in self.peers:
                peer.check()
        self.close()

    def _end(self) -> bool:
        for peer in self.peers:
            peer.close()
        self.sites.close()
        return self._thread.end(PATIENCE_S)

    def close(self) -> None:
        """Answer what was taken, publish it, and end; again is fine.

        Raises HubError with what ended it before, RelayError as `run`.
        """
        if not self._end():
            raise HubError(f"hub of feed {self.feed.name!r} has not ended within {PATIENCE_S:g} s")
        if self._error is not None:
            raise HubError(f"hub of feed {self.feed.name!r} ended: {self._error}") from self._error
        for peer in self.peers:
            peer.check()

    def statistics(self) -> HubStatistics:
        """Return a snapshot of the counters."""
        return HubStatistics(**self._counts)  # type: ignore[arg-type]  # numbers are what it counts

    def __enter__(self) -> Self:
        return self if self._thread.life is ServerLife.SERVING else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._end()

    @property
    def epoch(self) -> int:
        """Of the messages that are published, once it has started; 0 before."""
        return self._numbers.epoch

    # In its thread.

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            if self._thread.life is ServerLife.BINDING:
                raise  # from `start`
            self._error = error
            log.error("hub of feed %r ended: %s", self.feed.name, error)
        finally:
            self._over.set()

    def _serve(self) -> None:
        self._check_directory()
        with ExitStack() as stack:
            self._publisher = Publisher(self.feed, outbox=self._outbox)
            self._publisher.start()  # first: its outbox lets no other hub in
            stack.callback(self._publisher.close)
            self._read_history()
            (socket,) = self._bind(stack, self.feed.bound(self.endpoint))
            for frames in self._thread.frames(socket, self._conditions.wait_s):
                self._end_topics()
                if frames:
                    self._answer_all(socket, frames)
                self._take_snapshot()

    def _check_directory(self) -> None:
        if (earlier := self.directory / f"{self.feed.name}.puts").exists():
            raise JournalError(f"{earlier} is of an earlier version of blackbox, expected a directory of this one")
        days = self.directory / self.feed.name
        make_directory(days)
        with closing(Lock(days)):
            has_lost_power = self._has_lost_power()
            check_days(days, len(self.feed.slices), has_lost_power=has_lost_power)
            if has_lost_power:
                forget_synced(days)
                for day in recorded_days(days)[-RECENT_DAYS:]:
                    recover_day(day)
                history = History(days, self.feed)
                history.cut_back(history.newest()[0])
                note_all(days, len(self.feed.slices))

    def _has_lost_power(self) -> bool:
        """Return True if the system was started again, and may have forgotten what was not synced."""
        return self._is_patient and has_lost_power(self.directory / self.feed.name)

    def _read_history(self) -> None:
        """Know what the journals say."""
        self._numbers.begin(self._publisher)
        self._table, self._topics = Table(*self._remembered), Topics(self.feed)
        self._conditions = Conditions(self.feed.name, self.directory / self.feed.name)
        history = History(self.directory / self.feed.name, self.feed)
        history.tell(self._table, self._conditions.deadlines, self._topics)
        self._first = self._table.number + 1
        """The first turn of this run."""
        self._since_snapshot = _MOST_SINCE_SNAPSHOT

    def _bind(self, stack: ExitStack, *endpoints: str) -> list[zmq.Socket[bytes]]:
        """Return a socket at each endpoint, for as long as the stack is open."""
        context = stack.enter_context(new_context("hub", _NEEDS))
        what = f"hub of feed {self.feed.name!r}"
        self._gate = gate = open_gate(context, self.feed, endpoints, what, takes_puts=True)
        if gate is not None:
            stack.callback(gate.close)
        sockets = []
        for endpoint in endpoints:
            socket = stack.enter_context(context.socket(zmq.ROUTER))
            socket.setsockopt(zmq.MAXMSGSIZE, MOST_REQUEST_BYTES)
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else what a client does not take vanishes uncounted
            socket.rcvhwm, socket.sndhwm, socket.linger = QUEUE_REQUESTS, QUEUE_ANSWERS, 0
            keep_alive(socket)
            allow_ipv6(socket, endpoint)
            if gate is not None:
                gate.secure(socket, endpoint)
            bind(socket, endpoint, "hub endpoint")
            sockets.append(socket)
        return sockets

    # What comes.

    def _answer_all(self, socket: zmq.Socket[bytes], frames: list[zmq.Frame]) -> None:
        """Answer a request and the requests that wait after it together."""
        waiting = [frames]
        size = sum(map(len, frames))
        while len(waiting) < _MOST_AT_ONCE and size < _MOST_BYTES_AT_ONCE and int(socket.get(zmq.EVENTS)) & _POLLIN:
            frames = receive(socket, zmq.NOBLOCK)
            size += sum(map(len, frames))
            waiting.append(frames)
        requests = [request_of(frames, self._gate) for frames in waiting]
        puts = [each.request for each in requests if isinstance(each.request, Put)]
        self._prepare(puts)
        synced = any(each.synced for each in puts)
        self._answer_turn(socket, requests, synced)

    def _answer_turn(self, socket: zmq.Socket[bytes], requests: list[Request], synced: bool) -> None:
        """Judge requests, append what they bring, and answer them; in several turns if their notes are large."""
        turn, answers = _Turn(), list[tuple[bytes, Answer]]()
        for at, each in enumerate(requests):
            answers.append((each.client, self._answer(each, turn)))
            if turn.size >= MOST_PART_BYTES or at == len(requests) - 1:
                self._append(turn, synced)
                for client, answer in answers:
                    self._send(socket, client, answer)
                turn, answers = _Turn(), []

    def _append(self, turn: _Turn, synced: bool) -> None:
        """Return once the journals contain all of a turn: on the disk if `synced`, else in the page cache.

        Raises PublisherError or JournalError when they do not take it.
        """
        if turn.requests:
            notes = turn.notes(self._table.number, self._first)
            self._store(notes, turn, synced)
            self._since_snapshot += _TURN_BYTES + sum(map(len, notes.values()))
            self._since_snapshot += sum(len(each.columns.data) for each in turn.fresh)
            self._numbers.touched = {}
        for name, count in turn.counts.items():
            self._counts[name] += count

    def _store(self, notes: dict[int, bytes], turn: _Turn, synced: bool) -> None:
        following = self._numbers.following()
        for slice_id, note in notes.items():
            self._publisher._note(slice_id, note, is_alone=slice_id not in self._numbers.touched)
        for fresh in turn.fresh:
            self._publish(fresh)
        deadline = time.monotonic() + PATIENCE_S
        for slice_id in notes:
            self._publisher._wait_kept(slice_id, following[slice_id], deadline)
        if synced:
            self._sync()

    def _sync(self) -> None:
        """Have all on the disk: no later turn is there without those before it."""
        for slice_id in range(len(self.feed.slices)):
            self._outbox.sync(slice_id)

    def _take_snapshot(self) -> None:
        """Append what is known of clients, deadlines and topics, so that the next hub need not read far back for it.

        No day is deleted unless a later one has a snapshot on the disk.
        """
        day = self._outbox.day()  # the snapshot is in this one, or in a later one
        if self._since_snapshot < max(_MOST_SINCE_SNAPSHOT, 4 * self._snapshot_bytes) and day == self._snapshot_day:
            return
        for note in encode_renewed(self._table.number + 1, self._first, self._table.renew()):
            self._table.number += 1
            self._store({0: note}, _Turn(), synced=False)
        known = self._table.clients(), self._conditions.deadlines.items(), self._topics.all()
        notes = encode_snapshot(self._table.number, self._table.floor, *known) if self._table.number else []
        if notes:
            self._sync()  # a power cut then loses nothing before the snapshot
            self._store_snapshot(notes)
        self._since_snapshot, self._snapshot_bytes = 0, sum(map(len, notes))
        self._snapshot_day = day
        self._outbox.delete_before(day)

    def _store_snapshot(self, notes: list[bytes]) -> None:
        for note in notes:
            self._publisher._note(0, note, is_alone=True)
        self._publisher._wait_kept(0, self._publisher.published_count(0), time.monotonic() + PATIENCE_S)
        self._outbox.sync(0)

    def _end_topics(self) -> None:
        """Delete topics whose time is over."""
        request = self._conditions.deletion()
        if request is None:
            return
        turn = _Turn()
        self._take(None, request, Columns.of(request), turn)
        turn.counts["ended"] = request.count
        self._append(turn, synced=False)

    def _prepare(self, puts: list[Put]) -> None:
        """Find the newest message of every topic, once some put asks where that is."""
        if self._conditions.ask_for_days(puts):
            self._conditions.read(self.epoch, self._numbers.following(), self._pause)

    def _pause(self) -> None:
        """Do what cannot wait while days are read: nothing."""

    def _send(self, socket: zmq.Socket[bytes], client: bytes, answer: Answer) -> None:
        if isinstance(answer, Stored) and answer.why:
            self._counts["refused"] += int((unpack_places(answer.places)["is_refused"] >= REFUSED).sum())
        self._counts["refused"] += isinstance(answer, Refused | Ended)
        try:
            socket.send(client, _MORE)
            socket.send(ENCODER.encode(answer), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            self._counts["unread"] += 1

    def _answer(self, asked: Request, turn: _Turn) -> Answer:
        request = asked.request
        if isinstance(request, Ended):
            return request
        if isinstance(request, FindSites):
            return self.sites.answer(request, asked.key)
        client = Client(asked.key, request.client)
        known = self._table.client(client)
        if isinstance(request, Hello):
            return self._welcome(request, client, known, turn)
        if known is None:
            return Ended(f"client {request.client!r} was not known, expected a hub that it has begun with")
        session, last = known
        if request.session != session:
            return Ended(f"client {request.client!r} was begun elsewhere since, expected one process of this name")
        if request.first > last + 1:
            return Expected(last + 1)
        if request.first <= last:
            return self._answer_again(client, request)
        try:
            columns = Columns.of(request)
        except ConfigError as error:  # nobody knows what its puts are
            places, why = numpy.zeros(request.count, PLACE), Reasons()
            places["is_refused"], places["sequence"] = why.code(error), -1
            return self._note(client, request, places, why, b"", time.time_ns(), turn)
        return self._take(client, request, columns, turn, self._rights_of(asked.key))

    def _take(
        self,
        client: Client | None,
        request: Put,
        columns: Columns,
        turn: _Turn,
        may: tuple[bytes, ...] | None = None,
    ) -> Stored:
        """Judge each put on its own, and note all; `may`: what their topics must start with."""
        taken_ns, why = time.time_ns(), Reasons()
        topics = self._topics.find(request.topics, may, why)
        wrong = misfits(self._schema, columns.offsets, columns.data, columns.valid)
        order = self._topics.in_order(request.topics, columns.index)
        ids = [each for each in request.ids if each]
        known = {} if client is None else self._table.places_of(client.key, ids)
        stored = self._table.stored(client, request.session, request.first)
        is_plain = not wrong and topics.codes is None and columns.if_at is None
        if is_plain and not known and not stored and len(set(ids)) == len(ids) and self._topics.has_room(topics.new):
            places = self._numbers.places_of(topics.slices[columns.index], order)
            self._topics.add_all(topics.new)
        else:
            codes = [0] * request.count if topics.codes is None else topics.codes[columns.index].tolist()
            for row, misfit in wrong:
                codes[row] = codes[row] or why.code(misfit)
            slices = topics.slices.tolist()
            places = self._conditions.judge(request, columns, order, slices, codes, known, stored, why, self._next_of)
        is_new = places["is_new"] != 0
        ends = self._conditions.note(request.topics, columns, places, is_new, taken_ns)
        if numpy.count_nonzero(is_new):
            numbers = None if topics.new else topics.numbers
            turn.fresh.append(_Fresh(columns, request.topics, order[is_new[order]], numbers))
        return self._note(client, request, places, why, ends, taken_ns, turn)

    def _note(
        self,
        client: Client | None,
        request: Put,
        places: Places,
        why: Reasons,
        ends: bytes,
        taken_ns: int,
        turn: _Turn,
    ) -> Stored:
        """Note what became of puts, and return the answer that says so."""
        answer = Stored(request.first, pack_places(places), str(why))
        self._add(
            turn,
            Judged(
                len(turn.requests),
                client,
                request.session,
                request.first,
                answer.places,
                answer.why,
                request.ids,
                ends,
                taken_ns,
            ),
            places,
        )
        refused, stored = places["is_refused"], int(numpy.count_nonzero(places["is_new"]))
        conflicts = int(numpy.count_nonzero(refused == CONFLICT))
        known = request.count - stored - int(numpy.count_nonzero(refused))
        for name, count in (("stored", stored * (client is not None)), ("known", known), ("conflicts", conflicts)):
            turn.counts[name] = turn.counts.get(name, 0) + count
        return answer

    def _add(self, turn: _Turn, request: Judged, places: Places) -> None:
        """Add a request to a turn, which has the next number."""
        slices = numpy.unique(places["slice"][places["is_new"] != 0]).tolist()
        number = self._table.number + (not turn.requests)
        turn.requests.append((request, slices or [0]))
        turn.size += (
            len(request.places) + len(request.why) + sum(map(len, request.ids)) + len(request.ends) + _HEAD_BYTES
        )
        self._table.take(number, request, places)

    def _rights_of(self, key: str) -> tuple[bytes, ...] | None:
        """Return prefixes of the topics that a key may put; None: all."""
        if self._gate is None or not key:
            return None
        self._gate.look()
        return self._gate.put_rights_of(key)

    def _may_read(self, prefix: bytes, key: str) -> bool:
        """Return True if a key has a right to some topics with a prefix."""
        if self._gate is None or not key:
            return True
        self._gate.look()
        start, rights = self.feed.subscription_of(prefix), self._gate.rights_of(key)[1]
        return rights is None or any(start.startswith(right) or right.startswith(start) for right in rights)

    def _welcome(self, request: Hello, client: Client, known: tuple[int, int] | None, turn: _Turn) -> Answer:
        if why := wrong_version("client", request.version):
            return Ended(why)
        if request.feed != self.feed.name:
            return Ended(f"feed was {request.feed!r}, expected {self.feed.name!r}, whose hub this is")
        session, last = known or (0, 0)
        if request.session != session:
            if request.replaces != session:
                return Ended(f"client {request.client!r} was begun elsewhere since", session)
            begin = Judged(len(turn.requests), client, request.session, 0, b"", "", [], b"", time.time_ns())
            self._add(turn, begin, numpy.empty(0, PLACE))
        is_told = request.prefix is not None and self._may_read(request.prefix, client.key)
        return Welcome(request.number, last, self.epoch, self._numbers.following() if is_told else [])

    def _answer_again(self, client: Client, request: Put) -> Answer:
        answered = self._table.answered(client, request.first)
        if answered is None:
            return Refused(request.first, "it was answered before, so long ago that the hub has forgotten where it is")
        answer = Stored(request.first, *answered)
        self._counts["known"] += int((unpack_places(answer.places)["is_refused"] == 0).sum())
        return answer

    def _next_of(self, topic: bytes) -> Revision:
        """Give a topic's next message its number. Raises ConfigError when there is no room for the topic."""
        return self.epoch, self._numbers.next(self._topics.add(topic))

    def _publish(self, fresh: _Fresh) -> None:
        columns, topics, rows, numbers = fresh
        starts, stops = columns.offsets[:-1], columns.offsets[1:]
        if len(rows) == 1 and not self.feed.key_rule:  # with keys they would share blocks in another order
            row = int(rows[0])
            is_null = columns.valid is not None and not columns.valid[row]
            payload = None if is_null else columns.data[starts[row] : stops[row]].tobytes()
            time_ns = 0 if columns.times is None else int(columns.times[row])
            self._publisher.publish(topics[columns.index.item(row)], payload, time_ns)
        elif len(rows):
            columns_of_rows, _alive = as_rows(
                columns.data,
                None if columns.times is None else columns.times[rows],
                starts[rows],
                (stops - starts)[rows].astype(numpy.int32),
                len(rows),
                valid=None if columns.valid is None else columns.valid[rows],
            )
            numbers = self._topics.numbers(topics) if numbers is None else numbers
            slices, routes = self._topics.routes(topics, numbers, self._publisher)
            self._publisher._publish_routed(slices, routes, columns.index[rows], columns_of_rows)


class Request(NamedTuple):
    """What a client asks."""

    client: bytes
    """Its identity."""
    key: str
    """Its public key; empty: it has none, as on ipc."""
    text: bytes
    request: Hello | Put | FindSites | Ended


def request_of(frames: list[zmq.Frame], gate: Gate | None) -> Request:
    """Return what came; without a gate nobody has a key."""
    text = frames[-1].bytes
    return Request(frames[0].bytes, key_of(frames[-1]) if gate is not None else "", text, _decoded(text, len(frames)))


def _decoded(text: bytes, frames: int) -> Hello | Put | FindSites | Ended:
    if frames != _FRAMES:
        return Ended(f"request had {frames - 1} frames, expected 1")
    try:
        request: Hello | Put | FindSites = REQUESTS.decode(text)
    except DecodeError as error:
        return Ended(f"request was not understood: {error}")
    return request
