"""A hub: takes what clients put, stores it once, numbers it, answers, and publishes it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self, TypedDict

import msgspec
import numpy
import zmq
from numpy.typing import NDArray

from blackbox.archive.day import make_directory, recorded_days, recorded_files
from blackbox.archive.outbox import Outbox
from blackbox.archive.recording import Recording
from blackbox.archive.retention import EVERYTHING, Retention
from blackbox.arguments import check_integers
from blackbox.block.block import as_rows
from blackbox.documents import DecodeError
from blackbox.errors import ConfigError, HubError, JournalError
from blackbox.feed.feed import Feed
from blackbox.feed.schema import load_schema
from blackbox.hub.conditions import Conditions
from blackbox.hub.join import Join
from blackbox.hub.numbers import Numbers, by_number
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
from blackbox.hub.put_log import PutLog
from blackbox.hub.revisions import Revision
from blackbox.hub.settings import feed_of_hub
from blackbox.hub.sites import Sites
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
"""Requests, and their bytes, that share a transaction."""
_MOST_LOG_BYTES: Final = 256 << 20
"""Of requests that wait for the outbox to be synced: then no more are taken until it is."""
_DROP_S: Final = 0.5
_PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.01
_WATCH_S: Final = 0.5
"""Time between two looks at whether what passes other hubs' feeds on has failed."""
_RECENT_DAYS: Final = 2
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
    """Rows of the put log that the other one of two hubs lacks, as it said last; -1: it has said nothing."""


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


class _Mark(NamedTuple):
    """Requests that may be dropped from the log once the outbox is synced far enough."""

    number: int
    """Of the last of them."""
    size: int
    """Their bytes."""
    needs: dict[int, int]
    """By slice, how many messages must be synced."""


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
            again_bytes=0,  # what a killed hub has not sent is asked of its archive
            are_told_before=True,
        )
        self._outbox = self._make_outbox(serve=True)
        self._remembered = remember_puts, remember_ids, most_clients
        self._schema = load_schema(feed.schema)
        self._counts = dict.fromkeys(("stored", "known", "refused", "conflicts", "ended", "unread"), 0)
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._thread = ServerThread("blackbox-hub", f"hub of feed {feed.name!r}", self._run)
        self._numbers = Numbers(len(self.feed.slices))
        self._topics = Topics(self.feed)
        self._has_begun = False
        """Whether a message of the epoch is in the outbox."""
        self._newest = self._waiting_bytes = 0
        """The last request that was taken, and the bytes of those that wait for the outbox to be synced."""
        self._mark = _Mark(0, 0, {})
        self._dropped, self._dropped_at = 0, 0.0

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
        return self._thread.end(_PATIENCE_S)

    def close(self) -> None:
        """Answer what was taken, publish it, and end; again is fine.

        Raises HubError with what ended it before, RelayError as `run`.
        """
        if not self._end():
            raise HubError(f"hub of feed {self.feed.name!r} has not ended within {_PATIENCE_S:g} s")
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
        make_directory(self.directory)
        self._sync_files()
        with ExitStack() as stack:
            publisher = self._publisher = Publisher(self.feed, outbox=self._outbox)
            publisher.start()  # first: its outbox lets no other hub in
            stack.callback(publisher.close)
            self._log = stack.enter_context(PutLog(self.directory / f"{self.feed.name}.puts", *self._remembered))
            with self._log.transaction():
                self._log.forget_peer()
                self._conditions = self._make_conditions()
            publisher.flush()
            self._numbers.begin(publisher)
            self._topics = Topics(self.feed, publisher)
            self._put_again()
            publisher.flush()
            self._has_begun = self._numbers.has_any()
            (socket,) = self._bind(stack, self.feed.bound(self.endpoint))
            for frames in self._thread.frames(socket, self._wait_s):
                self._end_topics()
                if frames:
                    self._answer_all(socket, frames)
                else:
                    self._drop()
            self._close_log()

    def _wait_s(self) -> float | None:
        """Return when to look again if nothing comes: while topics are to end, or the log has what is to be dropped."""
        left_s = self._conditions.wait_s()
        return left_s if self._dropped == self._newest else min(_DROP_S, _DROP_S if left_s is None else left_s)

    def _make_conditions(self) -> Conditions:
        """Return what is judged by, within a transaction of the log."""
        return Conditions(self.feed.name, self.directory / self.feed.name, self._log.sql)

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

    def _sync_files(self) -> None:
        """Have on the disk what a killed hub has left with the system: what is synced from now on follows it."""
        for day in recorded_days(self.directory / self.feed.name)[-_RECENT_DAYS:]:
            for path in recorded_files(day):
                with path.open("rb") as file:
                    os.fdatasync(file.fileno())

    def _close_log(self) -> None:
        """Drop all that was put, once the outbox has closed in order: the next epoch need not look for it."""
        self._publisher.close()
        self._log.drop(self._newest, synced=True)

    # What comes.

    def _answer_all(self, socket: zmq.Socket[bytes], frames: list[zmq.Frame]) -> None:
        """Answer a request, and those that wait behind it, after one transaction for all of them."""
        waiting = [frames]
        size = sum(map(len, frames))
        while len(waiting) < _MOST_AT_ONCE and size < _MOST_BYTES_AT_ONCE and int(socket.get(zmq.EVENTS)) & _POLLIN:
            frames = receive(socket, zmq.NOBLOCK)
            size += sum(map(len, frames))
            waiting.append(frames)
        requests = [request_of(frames, self._gate) for frames in waiting]
        puts = [each.request for each in requests if isinstance(each.request, Put)]
        self._prepare(puts)
        fresh: list[_Fresh] = []
        synced = any(each.synced for each in puts)
        with self._taking(synced):
            answers = [(each.client, self._answer(each, fresh)) for each in requests]
        self._begin(fresh)
        for client, answer in answers:  # first: what is in the log will be published, whatever happens
            self._send(socket, client, answer)
        for each in fresh:
            self._publish(each)
        self._drop()

    def _begin(self, fresh: list[_Fresh]) -> None:
        """Have something of the epoch in the outbox before anything is answered: only then it goes on after a kill."""
        if fresh and not self._has_begun:
            self._publish(fresh.pop(0))
            self._publisher.flush()
            self._has_begun = True

    def _end_topics(self) -> None:
        """Delete topics whose time is over."""
        request = self._conditions.deletion()
        if request is None:
            return
        fresh: list[_Fresh] = []
        with self._taking(synced=False):
            self._take(None, request, Columns.of(request), ENCODER.encode(request), fresh)
        self._counts["ended"] += request.count
        self._begin(fresh)
        for each in fresh:
            self._publish(each)
        self._drop()

    def _prepare(self, puts: list[Put]) -> None:
        """Find the newest message of every topic, once some put asks where that is."""
        if self._conditions.ask_for_days(puts):
            self._publisher.flush()  # so that all is in the days
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

    def _taking(self, synced: bool) -> AbstractContextManager[None]:
        """Take what is taken in the `with` block, or nothing: it may be answered, and published, behind that."""
        return self._log.transaction(synced=synced)

    def _answer(self, asked: Request, fresh: list[_Fresh]) -> Answer:
        request, text = asked.request, asked.text
        if isinstance(request, Ended):
            return request
        if isinstance(request, FindSites):
            return self.sites.answer(request, asked.key)
        known = self._log.client(request.client)
        if isinstance(request, Hello):
            return self._welcome(request, known, asked.key)
        if known is None:
            return Ended(f"client {request.client!r} was not known, expected a hub that it has begun with")
        session, last = known
        if request.session != session:
            return Ended(f"client {request.client!r} was begun elsewhere since, expected one process of this name")
        if request.first > last + 1:
            return Expected(last + 1)
        if request.first <= last:
            return self._answer_again(request)
        try:
            columns = Columns.of(request)
        except ConfigError as error:  # nobody knows what its puts are
            places, why = numpy.zeros(request.count, PLACE), Reasons()
            places["is_refused"], places["sequence"] = why.code(error), -1
            return self._note(request.client, request, places, why, None, time.time_ns())
        return self._take(request.client, request, columns, text, fresh, self._rights_of(asked.key))

    def _take(
        self,
        client: str | None,
        request: Put,
        columns: Columns,
        text: bytes,
        fresh: list[_Fresh],
        may: tuple[bytes, ...] | None = None,
    ) -> Stored:
        """Judge each put on its own, and note all; `may`: what their topics must start with."""
        taken_ns, why = time.time_ns(), Reasons()
        topics = self._topics.find(request.topics, may, why)
        wrong = misfits(self._schema, columns.offsets, columns.data, columns.valid)
        order = self._topics.in_order(request.topics, columns.index)
        ids = [each for each in request.ids if each]
        known = self._log.places_of(ids)
        is_plain = not wrong and topics.codes is None and columns.if_at is None
        if is_plain and not known and len(set(ids)) == len(ids) and self._topics.has_room(topics.new):
            places = self._numbers.places_of(topics.slices[columns.index], order)
            self._topics.add_all(topics.new)
        else:
            codes = [0] * request.count if topics.codes is None else topics.codes[columns.index].tolist()
            for row, misfit in wrong:
                codes[row] = codes[row] or why.code(misfit)
            slices = topics.slices.tolist()
            places = self._conditions.judge(request, columns, order, slices, codes, known, why, self._next_of)
        is_new = places["is_new"] != 0
        self._log.remember(request.ids, places)
        self._conditions.note(request.topics, columns, places, is_new, taken_ns)
        if numpy.count_nonzero(is_new):
            numbers = None if topics.new else topics.numbers
            fresh.append(_Fresh(columns, request.topics, order[is_new[order]], numbers))
        return self._note(client, request, places, why, text, taken_ns)

    def _note(
        self, client: str | None, request: Put, places: Places, why: Reasons, text: bytes | None, taken_ns: int
    ) -> Stored:
        """Note in the log what became of puts, and return the answer that says so."""
        answer = Stored(request.first, pack_places(places), str(why))
        self._newest = self._log.add(client, request.first, request.count, answer.places, answer.why, text, taken_ns)
        self._waiting_bytes += len(text or b"")
        refused, stored = places["is_refused"], int(numpy.count_nonzero(places["is_new"]))
        self._counts["stored"] += stored if client is not None else 0
        self._counts["known"] += request.count - stored - int(numpy.count_nonzero(refused))
        self._counts["conflicts"] += int(numpy.count_nonzero(refused == CONFLICT))
        return answer

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

    def _welcome(self, request: Hello, known: tuple[int, int] | None, key: str) -> Answer:
        if why := wrong_version("client", request.version):
            return Ended(why)
        if request.feed != self.feed.name:
            return Ended(f"feed was {request.feed!r}, expected {self.feed.name!r}, whose hub this is")
        session, last = known or (0, 0)
        if request.session < session:
            return Ended(f"client {request.client!r} was begun elsewhere since", session + 1)
        if request.session > session:
            self._log.begin_session(request.client, request.session)
        is_told = request.prefix is not None and self._may_read(request.prefix, key)
        return Welcome(request.number, last, self.epoch, self._numbers.following() if is_told else [])

    def _answer_again(self, request: Put) -> Answer:
        answered = self._log.answered(request.client, request.first)
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

    # What is in the log, and perhaps not in the outbox.

    def _put_again(self) -> None:
        """Publish what a killed hub had taken and its outbox lacks, where it was to go.

        Where the epoch does not go on, since a power cut, it goes to the new one. That may have damaged requests: these
        are forgotten, and what else of their clients is behind them, as if it had not come.
        """
        self._topics.add_all(self._conditions.topics_that_end())  # so that there is room to end them
        others, cut = dict[tuple[int, int], set[int]](), set[str]()
        with self._log.transaction():
            waiting = self._log.waiting()
        for number in waiting:
            with self._log.transaction():
                row = self._log.read(number)
                if row is None:
                    continue  # it was forgotten with one before it
                client, packed, text = row
                places, request = unpack_places(packed).copy(), None if text is None else REQUESTS.decode(text)
                assert request is None or isinstance(request, Put)
                lacks = self._lacks(places, others)
                if len(lacks) and (request is None or request.client in cut):
                    if client is not None:
                        cut.add(client)
                    self._forget(number, places[lacks])
                    continue
                self._newest = number
                if request is None:  # the outbox has all of it
                    continue
                fresh = _Fresh(Columns.of(request), request.topics, lacks)
                self._topics.add_all(fresh.used_topics)
                before = places.copy()
                self._numbers.number(places, lacks)
                moved = before != places
                if (moved & (before["epoch"] == self.epoch)).any():
                    raise JournalError(f"put log {number} was {before[moved][:1]}, expected {places[moved][:1]}")
                if moved.any():
                    rows = numpy.nonzero(moved)[0].tolist() if request.ids else []
                    ids = [(request.ids[row], places[row].tobytes()) for row in rows if request.ids[row]]
                    self._log.move(number, pack_places(places), ids)
            self._publish(fresh)
            self._waiting_bytes += len(text or b"")

    def _forget(self, number: int, lost: Places) -> None:
        """Forget a request. Raises JournalError where others may get its places: no power cut has damaged it."""
        if (lost["epoch"] == self.epoch).any():
            raise JournalError(f"put log {number} was damaged, expected it as it was taken")
        self._log.forget(number, lost)

    def _lacks(self, places: Places, others: dict[tuple[int, int], set[int]]) -> NDArray[numpy.int64]:
        """Return which puts of a request the outbox lacks, in the order of their numbers."""
        lacks: NDArray[numpy.bool_] = places["is_new"] != 0
        is_earlier = places["epoch"] != self.epoch
        lacks &= is_earlier | self._numbers.are_behind(places)
        for row in numpy.flatnonzero(lacks & is_earlier).tolist():
            slice_id, _, _, epoch, sequence = places[row].item()
            lacks[row] = sequence not in self._recorded(others, epoch, slice_id)
        return by_number(places, numpy.flatnonzero(lacks))

    def _recorded(self, known: dict[tuple[int, int], set[int]], epoch: int, slice_id: int) -> set[int]:
        """Return the numbers of an earlier epoch that the outbox has of a slice."""
        if (epoch, slice_id) not in known:
            found = known[epoch, slice_id] = set()
            for day in recorded_days(self.directory / self.feed.name)[-_RECENT_DAYS:]:
                for batch in Recording.open(day).batches():
                    if (batch.block.epoch, batch.block.slice_id) == (epoch, slice_id):
                        found.update(batch.sequence.tolist())
        return known[epoch, slice_id]

    def _drop(self) -> None:
        """Drop from the log what the outbox has synced; wait for that, once the log is too long.

        Raises JournalError when the disk does not sync, or what ended the publisher.
        """
        now = time.monotonic()
        if now - self._dropped_at < _DROP_S and self._waiting_bytes < _MOST_LOG_BYTES:
            return
        self._dropped_at = now
        self._drop_synced()
        while self._waiting_bytes >= _MOST_LOG_BYTES:
            if time.monotonic() > now + _PATIENCE_S:
                raise JournalError(f"outbox {self.directory} was not synced within {_PATIENCE_S:g} s")
            self._publisher.flush()
            self._over.wait(_LOOK_S)
            self._drop_synced()

    def _drop_synced(self) -> None:
        mark = self._mark
        if self._log.is_synced() and all(
            self._outbox.synced(each) >= (self.epoch, count) for each, count in mark.needs.items()
        ):
            if mark.number > self._dropped:
                self._log.drop(mark.number)
                self._dropped = mark.number
                self._waiting_bytes -= mark.size
            self._mark = _Mark(self._newest, self._waiting_bytes, self._numbers.touched)
            self._numbers.touched = {}
            if self._newest > mark.number:
                self._log.begin_sync()  # so that after a power cut it is not far behind the outbox


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
