"""Disconnect peers that misbehave or stop reading, before they slow others down."""

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

from blackbox.block.form.ack_format import MOST_BYTES
from blackbox.block.form.format import MOST_WANT_BYTES
from blackbox.native.system.limits import Needs, start_thread
from blackbox.publish.listeners.peers import PeerStatistics
from blackbox.publish.listeners.subscriptions import MOST_WANTS, Subscriptions
from blackbox.publish.send.sender_state import SenderState
from blackbox.transport.keep_alive import GIVEN_UP_S
from blackbox.transport.security.gate import Gate
from blackbox.transport.shared_memory.writer import NO_WRITER, SharedWriter, WriterAt
from blackbox.transport.socket_cookie import COOKIE_SCRATCH_WORDS, socket_cookie
from blackbox.transport.tcp_info import Connection, Connections, Failure
from blackbox.transport.wakeup import PIPE_NEEDS, Pipe

log = logging.getLogger("blackbox")

GUARD_NEEDS: Final = Needs(descriptors=PIPE_NEEDS.descriptors, threads=1)
UPSTREAM_BYTES: Final = 512
"""Largest frame accepted from a subscriber, bounded by ZeroMQ's handshake. Our own frames have at most 100 bytes."""
_ANSWER_BYTES: Final = 2 * (MOST_BYTES + 16)
"""Bytes that a recorder sends when asked for its position: a new subscription, and withdrawal of the old one."""
UPSTREAM_QUEUE: Final = 256
"""Subscriptions of one connection queued for the sender; further ones wait at the subscriber."""
UPSTREAM_BUFFER_BYTES: Final = 256 << 10
_LOOK_S: Final = 0.25
_FILTER_BYTES: Final = 24
"""Typical size of a subscription on the wire, rounded up."""
_LEAST_BURST_BYTES: Final = 1 << 20
_BURST_OF_WANTS_BYTES: Final = MOST_WANTS // 2 * (MOST_WANT_BYTES + 5)
"""Bytes that a relay may send at once to request everything that is wanted downstream."""
_CURVE_TIMES: Final = 3
"""An encrypted subscription takes 33 bytes more, so with a gate all byte limits are multiplied by this."""
_BYTES_PER_S: Final = 256 << 10
"""Rate at which a connection may send after its burst: some 12,000 subscriptions a second."""
_MOST_UNHEARD_BYTES: Final = 2 << 20
"""Bytes that a connection may send before the sender receives a whole message from it, on top of the size of all
filters in force: libzmq does not pass on filters that others have too. An unfinished message takes up to 32 times its
bytes in libzmq.
"""
_GREETING_BYTES: Final = {False: 104, True: 600}
"""Most bytes that libzmq's SUB sends before its first subscription: in the clear, and encrypted."""
_LEAST_FILTER_BYTES: Final = 4
"""Least size of a subscription on the wire."""
_UNSETTLED_BYTES: Final = 16 << 20
"""Further allowance while the sender has not yet read everyone's subscriptions."""
_PING_BYTES_PER_S: Final = 16
"""Upper bound for ZMTP pings on the wire; a plain SUB socket may send them."""
_DOUBT_S: Final = 0.02
"""Time between two looks while it is unclear if a connection has sent too much."""
_REMOVAL_S: Final = 1.0
"""Time until the filters of an ended connection are removed, or prove to be shared with others."""
_DEAF_S: Final = 5.0
"""A peer is deaf if data has waited for it this long while it took next to nothing."""
_MOST_DEAF: Final = 8
"""Deaf peers per slice that stay connected with `when_full="drop"`; beyond that the longest deaf are disconnected."""
_LEAST_TAKEN_BYTES: Final = 16 << 10
"""A peer that takes less than this between two looks counts as deaf."""
PATIENCE_S: Final = 10.0
"""Time that a closing publisher waits while no peer takes anything."""


_FAILURE_TEXT: Final = {
    (True, Failure.MECHANISM): "refused a peer without CURVE: its feed file needs [security]",
    (True, Failure.LEFT): "a peer left in the handshake: it may speak no CURVE, its feed file then needs [security]",
    (True, Failure.MALFORMED): "refused a peer that has another key for us: its server_keys need our public key",
    (False, Failure.MECHANISM): "refused a peer with CURVE: this feed file has no [security]",
}
"""Log texts by (has a gate, failure)."""


class _Record:
    """State that the guard keeps per connection."""

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
        """The sender's pass at which too much was unread, and the bytes received by then."""
        self.received = self.taken = self.heard = 0
        self.unheard_from = 0.0
        """Bytes accounted for: those before the last whole message, and pings."""


class Guard:
    """Watch the connections of a slice's sockets in a separate thread, as the sender may be blocked by one of them.

    Create, start and close it in the sender's thread, which also passes it the sockets. `put_out` counts the peers that
    it has disconnected.
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
        """When the publisher began to close; from then on deaf peers are disconnected."""
        self.deaf: list[Connection] = []
        """Deaf peers that were left connected at the last look."""
        self.moved_at = time.monotonic()
        """When a peer with data waiting last took some of it."""
        self._slice_id, self._subscriptions, self._drop = slice_id, subscriptions, drop
        self._sent, self._wake_sender = sent, wake_sender
        self._burst = max(_LEAST_BURST_BYTES, _FILTER_BYTES * subscriptions.most_filters) + _BURST_OF_WANTS_BYTES
        self.gate: Gate | None = None
        """Checks keys; set before the start."""
        self._told: set[tuple[int, Failure]] = set()
        """Failures already logged, by line."""
        self._is_over = False
        self._watched: dict[int, Connections] = {}
        """By line."""
        self._records: dict[Connection, _Record] = {}
        self._times_asked = self._answer_bytes = 0
        self._looked_at = self._judged_taken_at = self._made_room_at = time.monotonic()
        self.shared: SharedWriter | None = None
        """Shared memory that readers may join, if any. Set before the start; closed with the guard."""
        self._scratch = numpy.zeros(COOKIE_SCRATCH_WORDS, numpy.int64)
        self._wake = Pipe()
        self._thread = threading.Thread(target=self._run, name=f"blackbox-guard-{slice_id}", daemon=True)

    def watch(self, line: int, socket: zmq.Socket[bytes]) -> None:
        """Watch a line's socket, before it is bound."""
        self._watched[line] = Connections(socket)

    def start(self) -> None:
        """Start watching."""
        start_thread(self._thread)

    def close(self) -> None:
        """Stop watching."""
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
        """Return statistics of each connection that has subscribed."""
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
        """Number of peers refused in the handshake because of a missing or wrong key."""
        if self.gate is None:
            return 0
        # A peer that just hangs up may be a port scan.
        return sum(
            sum(count for failure, count in list(each.failures.items()) if failure is not Failure.LEFT)
            for each in list(self._watched.values())
        )

    def _tell_failures(self, line: int, connections: Connections) -> None:
        """Log each kind of failed handshake once. Keys that were refused are logged by the gate."""
        for failure in connections.failures.keys() - {Failure.REFUSED}:
            text = _FAILURE_TEXT.get((self.gate is not None, failure))
            if text and (line, failure) not in self._told:
                self._told.add((line, failure))
                log.warning("slice %d line %s: %s", self._slice_id, "AB"[line], text)

    @property
    def shared_at(self) -> WriterAt:
        """The shared memory for compiled code; NO_WRITER: none."""
        return NO_WRITER if self.shared is None else self.shared.at

    def look_now(self) -> None:
        """Look now instead of at the next interval: a peer has to be disconnected."""
        self._wake.poke()

    def _end(self, connection: Connection, why: str) -> None:
        if connection.end():
            log.warning("slice %d: disconnected %s: %s", self._slice_id, connection.address, why)
            self.put_out += 1

    def _run(self) -> None:
        while not self._is_over:
            try:
                self.look()
            except Exception:  # retry at the next look; without the guard no peer is disconnected
                log.exception("slice %d: the guard's look failed", self._slice_id)
            doubts = any(record.doubted for record in self._records.values())
            self._wait(_DOUBT_S if doubts and not self._subscriptions.is_behind else _LOOK_S)

    def _wait(self, seconds: float) -> None:
        """Wait until the next look is due or requested; serve readers of shared memory meanwhile."""
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
        """Return True if a closing publisher has waited long enough for peers that take nothing."""
        return time.monotonic() - max(self.moved_at, self.closing_since) >= PATIENCE_S + 4 * _LOOK_S

    def look(self) -> None:
        """Check what every connection has sent and taken since the last look."""
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
                # Data of a closed connection may be read after another connection got its descriptor.
                who = connection.fd, socket_cookie(connection.fd, self._scratch.ctypes.data) if unwelcome else 0
                # A connection that has sent only its greeting is new, whatever was noted for its descriptor.
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
            self._end(connection, f"it took next to nothing for {now - records[connection].moved_at:.1f} s")
        self.deaf = deaf[max(0, more) :]

    def _find_unwelcome(self) -> None:
        """Mark connections to be ended: those whose rights have changed, and those whose requests were lost."""
        subscriptions = self._subscriptions
        if self.gate is not None and self.gate.look():
            with subscriptions.changed:
                for peer in (peer for line in self._watched for peer in subscriptions.peers(line) if peer.key):
                    if self.gate.rights_of(peer.key) != (peer.name, peer.may):
                        subscriptions.unwelcome[peer.fd, peer.cookie] = f"the rights of {peer.called} changed"
        subscriptions.find_late()

    def _make_room(self, line: int, found: list[Connection], now: float, *, wants: bool) -> None:
        """If a line has too many filters, end the connections that hold most of them until the rest fit."""
        of_fd, distinct = self._subscriptions.held(line, wants=wants)
        most = MOST_WANTS if wants else self._subscriptions.most_filters
        over = distinct - most
        settles = now - self._made_room_at < _REMOVAL_S or self._subscriptions.is_behind
        if over <= (most if settles else 0):
            return
        self._made_room_at = now
        # Subscriptions of a closed connection may be attributed to the one that has its descriptor; the bytes it sent
        # are an upper bound.
        held = {each: min(each.received // _LEAST_FILTER_BYTES, of_fd.get(each.fd, 0)) for each in found}
        for connection in sorted(found, key=held.__getitem__, reverse=True):
            if over > 0 and held[connection] > 0:
                over -= held[connection]
                self._end(
                    connection, f"the line had more than {most} distinct filters, {held[connection]} of this peer"
                )

    def _judge_sent(self, connection: Connection, record: _Record, seconds: float) -> None:
        sent = (connection.received - record.received) / self._times
        record.burst = min(self._burst, record.burst + _BYTES_PER_S * seconds + self._answer_bytes) - sent
        heard = self._subscriptions.heard.get(connection.fd, 0)
        if heard != record.heard:
            record.heard, record.unheard_from = heard, record.received
        record.received = connection.received
        # Pings are not counted as messages: within days they would add up to too much.
        record.unheard_from = min(record.received, record.unheard_from + _PING_BYTES_PER_S * seconds)
        if record.burst < 0:
            self._end(connection, f"it sent subscriptions too fast ({connection.received} bytes in all)")
        else:
            self._judge_unheard(connection, record)

    def _judge_unheard(self, connection: Connection, record: _Record) -> None:
        """End a connection that sends no whole subscription.

        Filters that others have too count as whole once they are read.
        """
        most = self._times * (_MOST_UNHEARD_BYTES + _FILTER_BYTES * self._subscriptions.filter_count())
        if record.received - record.unheard_from <= most:
            record.doubted = None
            return
        passes, received = record.doubted = record.doubted or (self._sent.passes, record.received)
        # The pass after the current one has read everything received so far.
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
        """End a connection whose host stopped answering: TCP alone would retry for a quarter of an hour."""
        if connection.segments != record.segments or not connection.unanswered:
            record.segments, record.answered_at = connection.segments, now
        elif now - record.answered_at >= GIVEN_UP_S:
            self._end(connection, f"its host has not answered for {now - record.answered_at:.1f} s")

    def _judge_taken(self, connection: Connection, record: _Record, now: float) -> None:
        taken = connection.taken - record.taken
        record.taken = connection.taken
        if taken and record.was_behind:
            self.moved_at = now
        record.was_behind = connection.unsent > 0
        if not connection.unsent or taken >= _LEAST_TAKEN_BYTES:
            record.moved_at = now
