"""Disconnect peers that send what no subscriber sends, or take nothing, before they cost others anything."""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Final

import numpy
import zmq

from blackbox.block.acknowledgement import MOST_BYTES
from blackbox.block.format import MOST_WANT_BYTES
from blackbox.native.limits import Needs, start_thread
from blackbox.publish.peers import PeerStatistics
from blackbox.publish.sender_state import SenderState
from blackbox.publish.subscriptions import MOST_WANTS, Subscriptions
from blackbox.transport.connections import Connection, Connections, Failure
from blackbox.transport.gate import Gate
from blackbox.transport.keep_alive import GIVEN_UP_S
from blackbox.transport.shared_memory_writer import NO_WRITER, SharedWriter, WriterAt
from blackbox.transport.socket_cookie import COOKIE_SCRATCH_WORDS, socket_cookie
from blackbox.transport.wakeup import PIPE_NEEDS, Pipe

log = logging.getLogger("blackbox")

GUARD_NEEDS: Final = Needs(descriptors=PIPE_NEEDS.descriptors, threads=1)
UPSTREAM_BYTES: Final = 512
"""The largest frame that a subscriber may send: ZeroMQ's handshake; of ours the longest has some 100 bytes."""
_ANSWER_BYTES: Final = 2 * (MOST_BYTES + 16)
"""What a recorder sends when it is asked how far it is: it subscribes to that, and withdraws what it told before."""
UPSTREAM_QUEUE: Final = 256
"""Subscriptions of one connection that may wait for the sender; more wait at the subscriber."""
UPSTREAM_BUFFER_BYTES: Final = 256 << 10
_LOOK_S: Final = 0.25
_FILTER_BYTES: Final = 24
"""Of a subscription on the wire, at most."""
_LEAST_BURST_BYTES: Final = 1 << 20
_BURST_OF_WANTS_BYTES: Final = MOST_WANTS // 2 * (MOST_WANT_BYTES + 5)
"""What a relay may send at once to say all that is wanted below it."""
_CURVE_TIMES: Final = 3
"""An encrypted subscription takes 33 bytes more: where there is a gate, peers may send this many times as much."""
_BYTES_PER_S: Final = 256 << 10
"""What a connection may go on sending once its burst is spent: some 12,000 subscriptions a second."""
_MOST_UNHEARD_BYTES: Final = 2 << 20
"""What a connection may send before the sender has heard a whole message of it, beside as much as all filters in force
take: libzmq does not pass on filters that others have, too. It holds an unfinished message in up to 32 times its bytes.
"""
_GREETING_BYTES: Final = {False: 104, True: 600}
"""Most bytes that a SUB of libzmq sends before its first subscription: in the clear, and encrypted."""
_LEAST_FILTER_BYTES: Final = 4
"""Of a subscription on the wire, at least."""
_UNSETTLED_BYTES: Final = 16 << 20
"""What it may send on top of that while the sender has yet to hear what others asked for."""
_PING_BYTES_PER_S: Final = 16
"""What ZMTP's pings take on the wire, at most: a plain SUB socket may send them."""
_DOUBT_S: Final = 0.02
"""Time between two looks while it is not known whether a connection has sent too much."""
_REMOVAL_S: Final = 1.0
"""Time until the filters of an ended connection are gone, or turn out to be those of others, too."""
_DEAF_S: Final = 5.0
"""A peer is deaf when what waits for it has waited so long, and it took next to nothing."""
_MOST_DEAF: Final = 8
"""Deaf peers of a slice that keep their queues, with `when_full="drop"`; beyond that the longest deaf are put out."""
_LEAST_TAKEN_BYTES: Final = 16 << 10
"""What a peer must take between two looks, or it counts as deaf."""
PATIENCE_S: Final = 10.0
"""How long a closing publisher waits for peers of which none takes anything."""


_FAILURE_TEXT: Final = {
    (True, Failure.MECHANISM): "refused a peer without CURVE: its feed file needs [security]",
    (True, Failure.LEFT): "a peer left in the handshake: it may speak no CURVE, its feed file then needs [security]",
    (True, Failure.MALFORMED): "refused a peer that has another key for us: its server_keys need our public key",
    (False, Failure.MECHANISM): "refused a peer with CURVE: this feed file has no [security]",
}
"""What is logged: with a gate or without, of which failure."""


class _Record:
    """What the guard remembers of a connection."""

    __slots__ = (
        "answered_at",
        "burst",
        "doubted",
        "heard",
        "moved_at",
        "received",
        "segments",
        "taken",
        "unheard_from",
        "was_behind",
    )

    def __init__(self, burst: float, now: float) -> None:
        self.burst, self.moved_at, self.answered_at = burst, now, now
        self.segments = 0
        self.was_behind = False
        self.doubted: tuple[int, int] | None = None
        """The sender's pass in which too much had not been heard, and how much had been received by then."""
        self.received = self.taken = self.heard = 0
        self.unheard_from = 0.0
        """Bytes that are accounted for: those before the last whole message, and pings."""


class Guard:
    """Watches the connections of a slice's sockets in a thread of its own: the sender may be waiting for one of them.

    Made, given its sockets, started and closed in the sender's thread. `put_out` counts whom it has disconnected.
    """

    def __init__(
        self,
        slice_id: int,
        subscriptions: Subscriptions,
        sent: SenderState,
        wake_sender: Callable[[], None],
        drop: bool,
    ) -> None:
        self.put_out = 0
        self.closing_since = math.inf
        """When the publisher began to close: from then on deaf peers are disconnected."""
        self.deaf: list[Connection] = []
        """Deaf peers that the last look left connected."""
        self.moved_at = time.monotonic()
        """When some peer for which something waited was last seen to take some of it."""
        self._slice_id, self._subscriptions, self._drop = slice_id, subscriptions, drop
        self._sent, self._wake_sender = sent, wake_sender
        self._burst = max(_LEAST_BURST_BYTES, _FILTER_BYTES * subscriptions.most_filters) + _BURST_OF_WANTS_BYTES
        self.gate: Gate | None = None
        """Who refuses keys; set before the start."""
        self._told: set[tuple[int, Failure]] = set()
        """Failures that were logged, by line."""
        self._is_over = False
        self._watched: dict[int, Connections] = {}
        """By line."""
        self._records: dict[Connection, _Record] = {}
        self._times_asked = self._answer_bytes = 0
        self._looked_at = self._judged_taken_at = self._made_room_at = time.monotonic()
        self.shared: SharedWriter | None = None
        """Shared memory that readers may join, if there is any; set before the start, closed with this."""
        self._scratch = numpy.zeros(COOKIE_SCRATCH_WORDS, numpy.int64)
        self._wake = Pipe()
        self._thread = threading.Thread(target=self._run, name=f"blackbox-guard-{slice_id}", daemon=True)

    def watch(self, line: int, socket: zmq.Socket[bytes]) -> None:
        """Watch a line's socket that has not yet been bound."""
        self._watched[line] = Connections(socket)

    def start(self) -> None:
        """Begin to watch."""
        start_thread(self._thread)

    def close(self) -> None:
        """Watch no longer."""
        if self._thread.ident is not None:
            self._is_over = True
            self._wake.poke()
            self._thread.join()
        if self.shared is not None:
            self.shared.close()
            self.shared = None
        for connections in self._watched.values():
            connections.close()

    def peers(self) -> list[PeerStatistics]:
        """Return what is known of each connection that has asked for something."""
        now, records = time.monotonic(), {each.fd: (each, record) for each, record in list(self._records.items())}
        found = []
        for line in range(self._subscriptions.lines):
            with self._subscriptions.changed:
                peers = self._subscriptions.peers(line)
            for peer in peers:
                connection, record = records.get(peer.fd, (None, None))
                if connection is None or record is None or connection.address != peer.address:
                    taken, unsent, behind_s = 0, 0, 0.0
                else:
                    taken, unsent = connection.taken, connection.unsent
                    behind_s = now - record.moved_at if unsent else 0.0
                found.append(
                    PeerStatistics(
                        slice_id=self._slice_id,
                        line="AB"[line],
                        address=peer.address,
                        key=peer.name,
                        since_ns=peer.since_ns,
                        subscriptions=len(peer.filters),
                        refused=peer.refusals,
                        taken_bytes=taken,
                        unsent_bytes=unsent,
                        behind_s=behind_s,
                    )
                )
        return found

    @property
    def _times(self) -> int:
        return _CURVE_TIMES if self.gate is not None else 1

    @property
    def refused(self) -> int:
        """Peers that were not let in: for their key, for another one of ours, or for none."""
        if self.gate is None:
            return 0
        # Who only hangs up may be a scan of ports.
        return sum(
            sum(count for failure, count in list(each.failures.items()) if failure is not Failure.LEFT)
            for each in list(self._watched.values())
        )

    def _tell_failures(self, line: int, connections: Connections) -> None:
        """Log each kind of failed handshake once; keys that were refused are logged by the gate."""
        for failure in connections.failures.keys() - {Failure.REFUSED}:
            text = _FAILURE_TEXT.get((self.gate is not None, failure))
            if text and (line, failure) not in self._told:
                self._told.add((line, failure))
                log.warning("slice %d line %s: %s", self._slice_id, "AB"[line], text)

    @property
    def shared_at(self) -> WriterAt:
        """Where the shared memory is."""
        return NO_WRITER if self.shared is None else self.shared.at

    def look_now(self) -> None:
        """Have a look before it is time: somebody is unwelcome."""
        self._wake.poke()

    def _end(self, connection: Connection, why: str) -> None:
        if connection.end():
            log.warning("slice %d: disconnected %s: %s", self._slice_id, connection.address, why)
            self.put_out += 1

    def _run(self) -> None:
        while not self._is_over:
            try:
                self.look()
            except Exception:  # the next look may do better; without any, nobody is put out
                log.exception("slice %d: the guard's look failed", self._slice_id)
            doubts = any(record.doubted for record in self._records.values())
            self._wait(_DOUBT_S if doubts and not self._subscriptions.is_behind else _LOOK_S)

    def _wait(self, seconds: float) -> None:
        """Wait until it is time for a look, or somebody wants one; meet readers of shared memory meanwhile."""
        until = time.monotonic() + seconds
        readable: list[int] = []
        while self._wake.reader not in readable and time.monotonic() < until:
            poller = select.poll()
            for fd in (self._wake.reader, *(self.shared.descriptors if self.shared else ())):
                poller.register(fd, select.POLLIN)
            readable = [fd for fd, _ in poller.poll(max(0.0, 1000 * (until - time.monotonic())))]
            if self.shared is not None:
                self.shared.attend(readable)
        if self._wake.reader in readable:
            os.read(self._wake.reader, 4096)

    def is_quiet(self) -> bool:
        """Whether a closing publisher has waited long enough for peers of which none takes anything, nor is put out."""
        return time.monotonic() - max(self.moved_at, self.closing_since) >= PATIENCE_S + 4 * _LOOK_S

    def look(self) -> None:
        """Judge every connection by what it has sent and taken since the last look."""
        now = time.monotonic()
        seconds = now - self._looked_at
        self._looked_at = now
        times_asked = self._subscriptions.times_asked
        self._answer_bytes = _ANSWER_BYTES * (times_asked - self._times_asked)
        self._times_asked = times_asked
        judges_taken = now - self._judged_taken_at >= _LOOK_S
        if judges_taken:
            self._judged_taken_at = now
        records: dict[Connection, _Record] = {}
        self._find_unwelcome()
        unwelcome: dict[tuple[int, int], str] = {}
        while self._subscriptions.unwelcome:
            who, why = self._subscriptions.unwelcome.popitem()
            unwelcome[who] = why
        for line, connections in self._watched.items():
            found = connections.look()
            self._tell_failures(line, connections)
            for connection in found:
                record = self._records.get(connection) or _Record(self._burst, now)
                records[connection] = record
                self._judge_sent(connection, record, seconds)
                if judges_taken:
                    self._judge_taken(connection, record, now)
                    self._judge_answered(connection, record, now)
                # What a connection that is gone has sent may be read when another has its descriptor.
                who = connection.fd, socket_cookie(connection.fd, self._scratch.ctypes.data) if unwelcome else 0
                # A connection that has sent no more than its greeting is new, whatever was noted for its descriptor.
                if who in unwelcome and connection.received > _GREETING_BYTES[self.gate is not None]:
                    self._end(connection, unwelcome[who])
            self._make_room(line, found, now, wants=False)
            self._make_room(line, found, now, wants=True)
        self._records = records
        is_closing = self.closing_since < now
        patience = PATIENCE_S if is_closing else _DEAF_S
        since = self.closing_since if is_closing else 0.0
        deaf = [each for each, record in records.items() if now - max(record.moved_at, since) >= patience]
        deaf.sort(key=lambda connection: records[connection].moved_at)
        more = len(deaf) if is_closing else len(deaf) - _MOST_DEAF if self._drop else 0
        for connection in deaf[: max(0, more)]:
            self._end(connection, f"it has taken next to nothing for {now - records[connection].moved_at:.1f} s")
        self.deaf = deaf[max(0, more) :]

    def _find_unwelcome(self) -> None:
        """Have those connections ended whose rights have changed, and those that must ask once more."""
        subscriptions = self._subscriptions
        if self.gate is not None and self.gate.look():
            with subscriptions.changed:
                for peer in (peer for line in self._watched for peer in subscriptions.peers(line) if peer.key):
                    if self.gate.rights_of(peer.key) != (peer.name, peer.may):
                        subscriptions.unwelcome[peer.fd, peer.cookie] = f"the rights of {peer.called} have changed"
        subscriptions.find_late()

    def _make_room(self, line: int, found: list[Connection], now: float, *, wants: bool) -> None:
        """Where a line has too many filters, end connections that may hold most of them, until the rest fit."""
        of_fd, distinct = self._subscriptions.held(line, wants=wants)
        most = MOST_WANTS if wants else self._subscriptions.most_filters
        over = distinct - most
        settles = now - self._made_room_at < _REMOVAL_S or self._subscriptions.is_behind
        if over <= (most if settles else 0):
            return
        self._made_room_at = now
        # What was read of a connection that is gone may count for who has its descriptor: its bytes bound that.
        held = {each: min(each.received // _LEAST_FILTER_BYTES, of_fd.get(each.fd, 0)) for each in found}
        for connection in sorted(found, key=held.__getitem__, reverse=True):
            if over > 0 and held[connection] > 0:
                over -= held[connection]
                self._end(connection, f"there were more than {most} distinct filters, {held[connection]} its own")

    def _judge_sent(self, connection: Connection, record: _Record, seconds: float) -> None:
        sent = (connection.received - record.received) / self._times
        record.burst = min(self._burst, record.burst + _BYTES_PER_S * seconds + self._answer_bytes) - sent
        heard = self._subscriptions.heard.get(connection.fd, 0)
        if heard != record.heard:
            record.heard, record.unheard_from = heard, record.received
        record.received = connection.received
        # Pings are never heard: in some days they would add up to too much.
        record.unheard_from = min(record.received, record.unheard_from + _PING_BYTES_PER_S * seconds)
        if record.burst < 0:
            self._end(connection, f"it sent {connection.received} bytes of subscriptions, too many at a time")
        else:
            self._judge_unheard(connection, record)

    def _judge_unheard(self, connection: Connection, record: _Record) -> None:
        """End a connection that sends nothing whole. Filters that others have count as whole, once those were heard."""
        most = self._times * (_MOST_UNHEARD_BYTES + _FILTER_BYTES * self._subscriptions.filter_count())
        if record.received - record.unheard_from <= most:
            record.doubted = None
            return
        passes, received = record.doubted = record.doubted or (self._sent.passes, record.received)
        # The pass after the one that may be under way has heard all that had come by then.
        is_settled = self._sent.passes > passes + 1 and not self._subscriptions.is_behind
        sent = received if is_settled else record.received - _UNSETTLED_BYTES
        if sent - record.unheard_from > most:
            self._end(
                connection, f"it sent {record.received - record.unheard_from:.0f} bytes without a whole subscription"
            )
        if is_settled:
            record.doubted = None
        self._wake_sender()

    def _judge_answered(self, connection: Connection, record: _Record, now: float) -> None:
        """End a connection whose host is gone: TCP itself goes on trying for a quarter of an hour."""
        if connection.segments != record.segments or not connection.unanswered:
            record.segments, record.answered_at = connection.segments, now
        elif now - record.answered_at >= GIVEN_UP_S:
            self._end(connection, f"its host has answered nothing for {now - record.answered_at:.1f} s")

    def _judge_taken(self, connection: Connection, record: _Record, now: float) -> None:
        taken = connection.taken - record.taken
        record.taken = connection.taken
        if taken and record.was_behind:
            self.moved_at = now
        record.was_behind = connection.unsent > 0
        if not connection.unsent or taken >= _LEAST_TAKEN_BYTES:
            record.moved_at = now
