"""A hub: stores each put of its clients once, numbers it, answers, and publishes it."""

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
from typing import Final, Literal, Self, TypedDict

import msgspec
import numpy
import zmq

from blackbox.archive.files.day import Lock, make_directory, recorded_days
from blackbox.archive.files.synced import RECENT_DAYS, forget_synced, note_all
from blackbox.archive.maintain.retention import EVERYTHING, Retention
from blackbox.archive.record.check import check_days
from blackbox.archive.record.crash_recovery import recover_day
from blackbox.archive.record.outbox import Outbox, has_lost_power
from blackbox.arguments import check_integers
from blackbox.block.form.block import as_rows
from blackbox.documents import DecodeError
from blackbox.errors import HubError, JournalError
from blackbox.feed.feed import Feed
from blackbox.native.system.limits import Needs
from blackbox.publish.publisher import Publisher
from blackbox.publish.send.slice_writer import Resolved
from blackbox.services.hub.protocol import (
    ENCODER,
    MOST_REQUEST_BYTES,
    REFUSED,
    REQUESTS,
    Ended,
    FindSites,
    FoundSites,
    Hello,
    Put,
    Refused,
    Stored,
    unpack_places,
)
from blackbox.services.hub.server.history import History
from blackbox.services.hub.server.judge import Answer, Fresh, Judge, Request, Turn
from blackbox.services.hub.server.revisions import Revision, newest_places
from blackbox.services.hub.settings import feed_of_hub
from blackbox.services.hub.sites.discovery import Join
from blackbox.services.hub.sites.sites import Sites
from blackbox.services.relay.relay import Relay
from blackbox.transport.context import allow_ipv6, new_context
from blackbox.transport.keep_alive import keep_alive
from blackbox.transport.security.curve import key_of
from blackbox.transport.security.gate import Gate, open_gate
from blackbox.transport.server_thread import ServerLife, ServerThread, bind, receive

log = logging.getLogger("blackbox")

QUEUE_REQUESTS: Final = 16
"""Requests of one client that wait here; more wait on the client's side."""
QUEUE_ANSWERS: Final = 1_000
"""Answers that may wait for one client. More are dropped, and the client asks again."""
_MOST_AT_ONCE: Final = 256
_MOST_BYTES_AT_ONCE: Final = 16 << 20
"""Maximum number of requests that are answered together, and of their bytes."""
PATIENCE_S: Final = 60.0
_WATCH_S: Final = 0.5
"""Time between two checks of the relays of other hubs' feeds."""
_FRAMES: Final = 2
_POLLIN: Final = int(zmq.POLLIN)
_MORE: Final = int(zmq.SNDMORE | zmq.NOBLOCK)
"""Flags of the first frame; a socket that accepts it accepts the whole message."""
_NEEDS: Final = Needs(descriptors=64)


class HubStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a hub, and its state in a pair."""

    stored: int = 0
    """Puts that were stored."""
    known: int = 0
    """Puts that were stored before: repeated ones, or ones with a known id."""
    refused: int = 0
    """Puts refused for other reasons than a conflict, and requests answered with an error."""
    conflicts: int = 0
    """Puts refused because the newest message of their topic was not at `if_at`."""
    ended: int = 0
    """Topics that were deleted after their `ttl`."""
    unread: int = 0
    """Answers dropped because the client was gone or did not read; it asks again."""
    life: str = "active"
    """State in a pair: active, armed (it may take over) or passive."""
    term: int = 0
    """Number that grows whenever a hub of the pair becomes active."""
    peer_lacks: int = -1
    """Turns that the other hub of the pair lacks, by its last message; -1: none received."""


class HubKeywords(TypedDict, total=False):
    """Keyword arguments of `Hub` and `PairedHub`."""

    fsync: Literal["interval", "block"]
    fsync_interval: float | timedelta
    remember_puts: int
    remember_ids: int
    most_clients: int
    retention: Retention
    peers: Sequence[tuple[Feed, Feed]]
    join: Join | None


class Hub:
    """Hub of one feed, in its own thread, from `start` to `close`. It is used once.

    It is the feed's publisher and the first of its archives. After a kill, the next hub continues from the same files.
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
        """Store the settings, see `HubSettings`; nothing is opened. Raises ConfigError or ValueError.

        `peers`: for each hub of another site, its feed, and that feed with endpoints of this host.
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
        """Relays of other hubs' feeds, one hop from each hub."""
        self.sites = Sites(self.feed, [there for there, _ in peers], join)
        self.endpoint = self.feed.hub
        """Endpoint for puts."""
        self._make_outbox = partial(
            Outbox,
            directory,
            fsync=fsync,
            fsync_interval=fsync_interval,
            retention=retention,
            keeps_days=True,
            again_bytes=0,  # subscribers fetch unsent messages from its archive
        )
        self._outbox = self._make_outbox(serve=True)
        self._is_patient = fsync == "interval"
        """True if it appends without syncing."""
        self._remembered = remember_puts, remember_ids, most_clients
        self._around = _Around(self.feed, self.sites)
        self._judge = Judge(self.feed, self._remembered, self._around)
        """State of the hub, which is empty until the journals are read."""
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._thread = ServerThread("blackbox-hub", f"hub of feed {feed.name!r}", self._run)

    # For its owner.

    def start(self) -> Self:
        """Start, and return once it accepts puts. Raises JournalError, EndpointError, ConfigError or LimitError.

        Hubs of other sites may be away.
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
        """Wait until it ends. Raises the error that ended it; RelayError if peers form a loop, naming them."""
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
        """Publish and answer accepted puts, and end. It may be called again.

        Raises HubError if an error ended it before, RelayError as `run`.
        """
        if not self._end():
            raise HubError(f"hub of feed {self.feed.name!r} has not ended within {PATIENCE_S:g} s")
        if self._error is not None:
            raise HubError(f"hub of feed {self.feed.name!r} ended: {self._error}") from self._error
        for peer in self.peers:
            peer.check()

    def statistics(self) -> HubStatistics:
        """Return a snapshot of the counters."""
        return HubStatistics(**self._judge.counts)  # type: ignore[arg-type]  # counts are numbers

    def __enter__(self) -> Self:
        return self if self._thread.life is ServerLife.SERVING else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._end()

    @property
    def epoch(self) -> int:
        """Epoch of the published messages; 0 before the start."""
        return self._judge.numbers.epoch

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
            self._publisher.start()  # first: its outbox keeps other hubs out
            stack.callback(self._publisher.close)
            self._read_history()
            (socket,) = self._bind(stack, self.feed.bound(self.endpoint))
            for frames in self._thread.frames(socket, self._judge.conditions.wait_s):
                if (turn := self._judge.deletion()) is not None:
                    self._store(turn)
                if frames:
                    self._answer_all(socket, self._waiting(socket, frames))
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
        """Return True if the system has restarted and may have lost unsynced data."""
        return self._is_patient and has_lost_power(self.directory / self.feed.name)

    def _read_history(self) -> None:
        """Restore the state from the journals."""
        counts, self._judge = self._judge.counts, Judge(self.feed, self._remembered, self._around)
        judge = self._judge
        judge.counts = counts
        history = History(self.directory / self.feed.name, self.feed)
        history.tell(judge.table, judge.conditions.deadlines, judge.topics)
        publisher = self._publisher
        judge.begin(publisher.epoch, [publisher.published_count(each) for each in range(len(self.feed.slices))])

    def _bind(self, stack: ExitStack, *endpoints: str) -> list[zmq.Socket[bytes]]:
        """Return a socket at each endpoint, for as long as the stack is open."""
        context = stack.enter_context(new_context("hub", _NEEDS))
        what = f"hub of feed {self.feed.name!r}"
        self._around.gate = gate = open_gate(context, self.feed, endpoints, what, takes_puts=True)
        if gate is not None:
            stack.callback(gate.close)
        sockets = []
        for endpoint in endpoints:
            socket = stack.enter_context(context.socket(zmq.ROUTER))
            socket.setsockopt(zmq.MAXMSGSIZE, MOST_REQUEST_BYTES)
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else dropped answers are not counted
            socket.rcvhwm, socket.sndhwm, socket.linger = QUEUE_REQUESTS, QUEUE_ANSWERS, 0
            keep_alive(socket)
            allow_ipv6(socket, endpoint)
            if gate is not None:
                gate.secure(socket, endpoint)
            bind(socket, endpoint, "hub endpoint")
            sockets.append(socket)
        return sockets

    # Requests.

    def _waiting(self, socket: zmq.Socket[bytes], frames: list[zmq.Frame]) -> list[Request]:
        """Return a request and those that wait after it."""
        waiting = [frames]
        size = sum(map(len, frames))
        while len(waiting) < _MOST_AT_ONCE and size < _MOST_BYTES_AT_ONCE and int(socket.get(zmq.EVENTS)) & _POLLIN:
            frames = receive(socket, zmq.NOBLOCK)
            size += sum(map(len, frames))
            waiting.append(frames)
        return [request_of(frames, self._around.gate) for frames in waiting]

    def _answer_all(self, socket: zmq.Socket[bytes], requests: list[Request]) -> None:
        """Judge requests, append their puts, and answer them."""
        self._prepare(requests)
        for turn in self._judge.turns(requests):
            if turn.number:
                self._store(turn)
            for client, answer in turn.answers:
                self._send(socket, client, answer)

    def _store(self, turn: Turn) -> None:
        """Append a turn, and wait until the journals have it: on the disk if it must be synced, else in the page cache.

        Raises PublisherError or JournalError if this fails.
        """
        following = self._judge.numbers.following()
        for slice_id, note in turn.notes.items():
            self._publisher._running()[slice_id].ring.put_note(note, is_alone=slice_id not in turn.touched)
        for fresh in turn.fresh:
            self._publish(fresh)
        deadline = time.monotonic() + PATIENCE_S
        for slice_id in turn.notes:
            self._publisher._running()[slice_id].wait_kept(following[slice_id], deadline)
        if turn.is_synced:
            self._sync()

    def _sync(self) -> None:
        """Sync all slices, so that the disk has no turn without all turns before it."""
        for slice_id in range(len(self.feed.slices)):
            self._outbox.sync(slice_id)

    def _take_snapshot(self) -> None:
        """Append a snapshot if one is due. A day is deleted only if a later day has a snapshot on the disk."""
        day = self._outbox.day()  # the snapshot is in this one, or in a later one
        if turns := self._judge.snapshot(day):
            self._sync()  # a power cut then loses nothing before the snapshot
            for turn in turns:
                self._store(turn)
            self._outbox.sync(0)
            self._outbox.delete_before(day)

    def _prepare(self, requests: Sequence[Request]) -> None:
        """Find the newest message of every topic, once a put has a condition on it."""
        judge = self._judge
        if judge.conditions.ask_for_days([each.request for each in requests if isinstance(each.request, Put)]):
            judge.conditions.read(self._newest_places)

    def _newest_places(self) -> dict[bytes, Revision]:
        days, following = self.directory / self.feed.name, self._judge.numbers.following()
        return newest_places(days, self.epoch, following, self._pause)

    def _pause(self) -> None:
        """Do nothing; a subclass does what cannot wait while days are read."""

    def _send(self, socket: zmq.Socket[bytes], client: bytes, answer: Answer) -> None:
        if isinstance(answer, Stored) and answer.why:
            self._judge.counts["refused"] += int((unpack_places(answer.places)["is_refused"] >= REFUSED).sum())
        self._judge.counts["refused"] += isinstance(answer, Refused | Ended)
        try:
            socket.send(client, _MORE)
            socket.send(ENCODER.encode(answer), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            self._judge.counts["unread"] += 1

    def _publish(self, fresh: Fresh) -> None:
        columns, topics, rows, numbers = fresh
        starts, stops = columns.offsets[:-1], columns.offsets[1:]
        if len(rows) == 1 and not self.feed.key_rule:  # with keys, blocks would have another order
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
            numbers = self._judge.topics.numbers(topics) if numbers is None else numbers
            slices, routes = self._judge.topics.routes(topics, numbers, self._publisher)
            self._publisher._publish_rows(Resolved.of(slices, routes), columns.index[rows], columns_of_rows)


class _Around:
    """Surroundings of the judge."""

    def __init__(self, feed: Feed, sites: Sites) -> None:
        self.gate: Gate | None = None
        """Set once sockets are bound; None without keys."""
        self._feed, self._sites = feed, sites

    def now_ns(self) -> int:
        return time.time_ns()

    def put_rights(self, key: str) -> tuple[bytes, ...] | None:
        if self.gate is None or not key:
            return None
        self.gate.look()
        return self.gate.put_rights_of(key)

    def may_read(self, prefix: bytes, key: str) -> bool:
        if self.gate is None or not key:
            return True
        self.gate.look()
        start, rights = self._feed.subscription_of(prefix), self.gate.rights_of(key)[1]
        return rights is None or any(start.startswith(right) or right.startswith(start) for right in rights)

    def find_sites(self, request: FindSites, key: str) -> FoundSites | Ended:
        return self._sites.answer(request, key)


def request_of(frames: list[zmq.Frame], gate: Gate | None) -> Request:
    """Return the request in a message. Without a gate, clients have no keys."""
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
