"""Disconnect peers that misbehave or stop reading, before they slow others down."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

import numpy
import zmq

from blackbox.native.system.limits import Needs, start_thread
from blackbox.publish.listeners.dropped_estimate import LineTotals
from blackbox.publish.listeners.peers import Peer, PeerStatistics
from blackbox.publish.listeners.queue_policy import QueuePolicy
from blackbox.publish.listeners.subscriptions import MOST_WANTS, Subscriptions
from blackbox.publish.listeners.taps import TapGuard
from blackbox.publish.listeners.traffic import LOOK_S, Traffic, TrafficLimits
from blackbox.publish.send.sender_state import SenderState
from blackbox.repeated_log import RepeatedLog
from blackbox.transport.security.gate import Gate
from blackbox.transport.shared_memory.writer import SharedWriter
from blackbox.transport.socket_cookie import COOKIE_SCRATCH_WORDS, socket_cookie
from blackbox.transport.tcp_info import Connection, Connections, Failure
from blackbox.transport.wakeup import PIPE_NEEDS, Pipe

log = logging.getLogger("blackbox")

GUARD_NEEDS: Final = Needs(descriptors=2 * PIPE_NEEDS.descriptors, threads=1)
_GREETING_BYTES: Final = {False: 104, True: 600}
"""Most bytes that libzmq's SUB sends before its first subscription: in the clear, and encrypted."""
_LEAST_FILTER_BYTES: Final = 4
"""Least size of a subscription on the wire."""
_DOUBT_S: Final = 0.02
"""Time between two looks while it is unclear if a connection has sent too much."""
_REMOVAL_S: Final = 1.0
"""Time until the filters of an ended connection are removed, or prove to be shared with others."""
_FAILURE_TEXT: Final = {
    (True, Failure.MECHANISM): "refused a peer without CURVE: its feed file needs [security]",
    (True, Failure.LEFT): "a peer left in the handshake: it may speak no CURVE, its feed file then needs [security]",
    (True, Failure.MALFORMED): "refused a peer that has another key for us: its server_keys need our public key",
    (False, Failure.MECHANISM): "refused a peer with CURVE: this feed file has no [security]",
}
"""Log texts by (has a gate, failure)."""


_UNKNOWN: Final = Connection(-1, None, ("", 0)), Traffic(0.0, 0.0)
"""For peers that are not on TCP, or that the guard has not seen yet."""


class Guard:
    """Watch the connections of a slice's sockets in a separate thread, as the sender may be blocked by one of them.

    Create, start and close it in the sender's thread, which also passes it the sockets. `put_out` counts the peers that
    it has disconnected; `limits` decides which, `taps` which taps.
    """

    def __init__(
        self,
        slice_id: int,
        subscriptions: Subscriptions,
        sent: SenderState,
        wake_sender: Callable[[], None],
        policy: QueuePolicy,
    ) -> None:
        self.put_out = 0
        self.limits = TrafficLimits(subscriptions, sent, policy)
        self.taps = TapGuard(subscriptions)
        self._slice_id, self._subscriptions, self._wake_sender = slice_id, subscriptions, wake_sender
        self.totals_of: Callable[[int], LineTotals] = lambda line: LineTotals(
            sent.wire_bytes_b if line else sent.wire_bytes, sent.blocks, sent.body_bytes
        )
        """Returns what was sent on a line so far."""
        self._gate: Gate | None = None
        self._shared: SharedWriter | None = None
        self._logged: set[tuple[int, Failure]] = set()
        """Failures already logged, by line."""
        self._repeated = RepeatedLog(log)
        self._is_over = False
        self._watched: dict[int, Connections] = {}
        """By line."""
        self._traffic: dict[Connection, Traffic] = {}
        self._made_room_at = time.monotonic()
        self._scratch = numpy.zeros(COOKIE_SCRATCH_WORDS, numpy.int64)
        self._wake = Pipe()
        self._thread = threading.Thread(target=self._run, name=f"blackbox-guard-{slice_id}", daemon=True)

    def watch(self, line: int, socket: zmq.Socket[bytes]) -> None:
        """Watch a line's socket, before it is bound."""
        self._watched[line] = Connections(socket)

    def start(self, gate: Gate | None, shared: SharedWriter | None) -> None:
        """Start watching. `gate` checks keys; readers may join `shared` memory."""
        self._gate, self._shared, self.limits.is_encrypted = gate, shared, gate is not None
        start_thread(self._thread)

    def close(self) -> None:
        """Stop watching."""
        if self._thread.ident is not None:
            self._is_over = True
            self._wake.poke()
            self._thread.join()
        self._shared = None
        for connections in self._watched.values():
            connections.close()

    def peers(self) -> list[PeerStatistics]:
        """Return statistics of each connection that has subscribed."""
        now, known = time.monotonic(), {each.fd: (each, traffic) for each, traffic in list(self._traffic.items())}
        found = []
        with self._subscriptions.changed:
            peers = self._subscriptions.peers()
        for peer in peers:
            connection, traffic = known.get(peer.fd, _UNKNOWN)
            if connection.address != peer.identity.address:
                connection, traffic = _UNKNOWN
            found.append(
                PeerStatistics(
                    slice_id=self._slice_id,
                    line="AB"[peer.line],
                    address=peer.identity.address,
                    key=peer.identity.name,
                    since_ns=peer.since_ns,
                    subscriptions=len(peer.filters),
                    refused=peer.refusals,
                    taken_bytes=connection.taken,
                    unsent_bytes=connection.unsent,
                    behind_s=now - traffic.moved_at if connection.unsent else 0.0,
                    age_s=traffic.age_s,
                    dropped_blocks=traffic.drops.blocks,
                    how_sure=traffic.drops.certainty,
                    lost_messages=peer.lost_messages,
                    is_tap=peer.is_tap,
                )
            )
        return found

    @property
    def refused(self) -> int:
        """Number of peers refused in the handshake because of a missing or wrong key."""
        if self._gate is None:
            return 0
        # A peer that just hangs up may be a port scan.
        return sum(
            sum(count for failure, count in list(each.failures.items()) if failure is not Failure.LEFT)
            for each in list(self._watched.values())
        )

    def _log_failures(self, line: int, connections: Connections) -> None:
        """Log each kind of failed handshake once. Keys that were refused are logged by the gate."""
        for failure in connections.failures.keys() - {Failure.REFUSED}:
            text = _FAILURE_TEXT.get((self._gate is not None, failure))
            if text and (line, failure) not in self._logged:
                self._logged.add((line, failure))
                log.warning("slice %d line %s: %s", self._slice_id, "AB"[line], text)

    def look_now(self) -> None:
        """Look now instead of at the next interval: a peer has to be disconnected."""
        self._wake.poke()

    def _end(self, connection: Connection, why: str) -> None:
        if connection.end():
            text, host = "slice %d: disconnected %s: %s", connection.peer[0]
            self._repeated.warning(host, text, self._slice_id, connection.address, why)
            self.put_out += 1

    def _note_dropped(self, taps: Iterable[Peer]) -> None:
        for peer in taps:
            where = peer.identity.called or "over ipc"
            self._repeated.warning("", "slice %d: disconnected the tap %s: it did not keep up", self._slice_id, where)
            self.put_out += 1

    def _run(self) -> None:
        while not self._is_over:
            try:
                self.look()
            except Exception:  # noqa: BLE001 - logged; without the guard no peer is disconnected
                text = "slice %d: the guard's look failed"
                self._repeated.log(logging.ERROR, "", text, self._slice_id, exc_info=True)
            doubts = any(traffic.doubted for traffic in self._traffic.values())
            self._wait(_DOUBT_S if doubts and not self._subscriptions.is_behind else LOOK_S)

    def _wait(self, seconds: float) -> None:
        """Wait until the next look is due or requested; serve readers of shared memory and taps meanwhile."""
        until = time.monotonic() + seconds
        readable: list[int] = []
        while self._wake.reader not in readable and time.monotonic() < until:
            poller = select.poll()
            fds = self._wake.reader, self.taps.bell.reader
            for fd in (*fds, *(self._shared.descriptors if self._shared else ())):
                poller.register(fd, select.POLLIN)
            readable = [fd for fd, _ in poller.poll(max(0.0, 1000 * (until - time.monotonic())))]
            if self.taps.bell.reader in readable:
                self._note_dropped(self.taps.answer())
            if self._shared is not None:
                self._shared.attend(readable)
        if self._wake.reader in readable:
            os.read(self._wake.reader, 4096)

    def look(self) -> None:
        """Check what every connection has sent and taken since the last look."""
        limits = self.limits
        limits.begin_look()
        all_traffic: dict[Connection, Traffic] = {}
        self._note_dropped(self.taps.look())
        self._find_unwelcome()
        unwelcome: dict[tuple[int, int], str] = {}
        while self._subscriptions.unwelcome:
            who, why = self._subscriptions.unwelcome.popitem()
            unwelcome[who] = why
        for line, connections in self._watched.items():
            totals, whole = self.totals_of(line), self._whole(line)
            found = connections.look()
            self._log_failures(line, connections)
            for connection in found:
                traffic = all_traffic[connection] = self._traffic.get(connection) or limits.new_traffic()
                limits.note_dropped(connection, traffic, totals if whole.get(connection.fd) else None)
                if why := limits.judge(connection, traffic):
                    self._end(connection, why)
                # Data of a closed connection may be read after another connection got its descriptor.
                who = connection.fd, socket_cookie(connection.fd, self._scratch.ctypes.data) if unwelcome else 0
                # A connection that has sent only its greeting is new, whatever was noted for its descriptor.
                if who in unwelcome and connection.received > _GREETING_BYTES[self._gate is not None]:
                    self._end(connection, unwelcome[who])
            self._make_room(line, found, wants=False)
            self._make_room(line, found, wants=True)
        self._traffic = all_traffic
        if any(traffic.doubted for traffic in all_traffic.values()):
            self._wake_sender()
        for connection in limits.deaf(all_traffic):
            seconds = limits.now - all_traffic[connection].moved_at
            self._end(connection, f"it took next to nothing for {seconds:.1f} s")

    def _whole(self, line: int) -> dict[int, bool]:
        """Return, by descriptor, if a connection of a line receives everything that is sent there."""
        if self._gate is not None:
            return {}  # encryption adds bytes
        with self._subscriptions.changed:
            return {peer.fd: b"" in peer.filters for peer in self._subscriptions.peers(line)}

    def _find_unwelcome(self) -> None:
        """Mark connections to be ended: those whose rights have changed, and those whose requests were lost."""
        subscriptions = self._subscriptions
        if self._gate is not None and self._gate.look():
            with subscriptions.changed:
                for peer in subscriptions.peers():
                    who = peer.identity
                    if who.key and self._gate.rights_of(who.key) != (who.name, who.may):
                        subscriptions.disconnect(peer, f"the rights of {who.called} changed")
        subscriptions.find_lost()

    def _make_room(self, line: int, found: list[Connection], *, wants: bool) -> None:
        """If a line has too many filters, end the connections that hold most of them until the rest fit."""
        of_fd, distinct = self._subscriptions.held(line, wants=wants)
        most = MOST_WANTS if wants else self._subscriptions.most_filters
        over = distinct - most
        settles = self.limits.now - self._made_room_at < _REMOVAL_S or self._subscriptions.is_behind
        if over <= (most if settles else 0):
            return
        self._made_room_at = self.limits.now
        # Subscriptions of a closed connection may be attributed to the one that has its descriptor; the bytes it sent
        # are an upper bound.
        held = {each: min(each.received // _LEAST_FILTER_BYTES, of_fd.get(each.fd, 0)) for each in found}
        for connection in sorted(found, key=held.__getitem__, reverse=True):
            if over > 0 and held[connection] > 0:
                over -= held[connection]
                why = f"the line had more than {most} distinct filters, {held[connection]} of this peer"
                self._end(connection, why)
