"""Connections of a slice to its publishers, one for each line: of its SUB socket, and its multicast groups."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress

import zmq

from blackbox.block.form.format import HEARTBEAT_KEY, MAX_BODY_BYTES
from blackbox.errors import EndpointError
from blackbox.receive.slices.slice_status import SliceStatus
from blackbox.repeated_log import RepeatedLog
from blackbox.transport.context import MAX_SUBSCRIPTIONS, allow_ipv6
from blackbox.transport.inproc import bound_number, is_bound_anew, is_inproc
from blackbox.transport.keep_alive import keep_alive
from blackbox.transport.security.curve import ClientKeys, use_keys
from blackbox.transport.tcp_info import Connection, connection_to
from blackbox.transport.udp.open_lines import Multicast

log = logging.getLogger("blackbox")

_UNHEARD_NS = 30_000_000_000
"""Time after which a line without any message is reconnected."""


def open_sub(
    context: zmq.Context[zmq.Socket[bytes]], hwm_blocks: int, kind: zmq.SocketType = zmq.SUB
) -> zmq.Socket[bytes]:
    """Return a SUB socket, or an XSUB socket, not yet connected."""
    sub = context.socket(kind)
    sub.rcvhwm = hwm_blocks
    sub.sndhwm = MAX_SUBSCRIPTIONS
    sub.maxmsgsize = MAX_BODY_BYTES
    sub.linger = 0
    sub.reconnect_ivl = 50
    sub.reconnect_ivl_max = 1000
    keep_alive(sub)
    return sub


def address_from(interface: str, endpoint: str) -> str:
    """Return the address to connect to through an interface; empty: the system chooses it."""
    host = f"[{interface}]" if ":" in interface else interface
    return endpoint.replace("tcp://", f"tcp://{host}:0;") if interface else endpoint


class Lines:
    """Connects the SUB socket to each line, and again when a line is silent; joins groups. Used by the slice thread.

    Attributes: `addresses`, of all lines; `multicast`.
    """

    def __init__(self, status: SliceStatus) -> None:
        self._status = status
        part = status.feed.slices[status.slice_id]
        self.addresses = [address_from(part.interface, endpoint) for endpoint in status.lines]
        self.multicast = Multicast(status.feed, status.slice_id)
        self._sockets = len(part.sockets)
        """Number of lines of the SUB socket, which come first."""
        self._epochs: dict[int, int] = {}
        """Last epoch of each line."""
        self._connections: dict[int, Connection | None] = {}
        """For each line, the connection of its last message."""
        self._silent: set[int] = set()
        self._repeated = RepeatedLog(log)
        self._reconnected: set[int] = set()
        """Reconnected lines that have not answered since."""
        self._connected_ns = [time.monotonic_ns()] * len(self.addresses)
        """Time when each line was last connected."""
        self._bound_numbers: dict[int, int] = {}
        """For each inproc line, the number of the bind that it is connected to."""

    def connect(self, sub: zmq.Socket[bytes], keys: Sequence[ClientKeys | None]) -> None:
        """Connect to every line with its keys, and subscribe to heartbeats.

        Raises EndpointError naming a line that cannot be connected.
        """
        self._sub, self._keys = sub, keys
        # Joined first: a publisher that confirms on tcp then sends a heartbeat to the groups.
        self.multicast.open(self._status.counters.datagrams)
        for line, address in enumerate(self.addresses[: self._sockets]):
            allow_ipv6(sub, address)
            try:
                self._connect(line)
            except zmq.ZMQError as error:
                where = f"feed {self._status.feed.name!r} slice {self._status.slice_id}"
                text = f"{where}: cannot connect to {address}: {error.strerror}"
                raise EndpointError(error.errno, text) from error
        sub.subscribe(HEARTBEAT_KEY)

    def _connect(self, line: int) -> None:
        use_keys(self._sub, self._keys[line])
        self._bound_numbers[line] = bound_number(self.addresses[line])
        self._sub.connect(self.addresses[line])

    def is_multicast(self, line: int) -> bool:
        """Return True if a line is one of the multicast lines."""
        return line >= self._sockets

    def has_data(self, line: int) -> bool:
        """Return True unless a line carries only control blocks, next to a multicast line."""
        return self.is_multicast(line) or self._sockets == len(self.addresses)

    def note_heard(self, line: int, descriptor: int) -> None:
        """Note the connection on which a line's last message came."""
        if self.is_multicast(line):
            return
        self._connections[line] = connection_to(self._status.lines[line], descriptor)

    def enter(self, line: int, epoch: int) -> bool:
        """Note the epoch of a line; return True if it is new on the line."""
        before = self._epochs.get(line)
        self._epochs[line] = epoch
        return before != epoch

    def is_anew(self, line: int, epoch: int) -> bool:
        """Return True, once, if a line has reconnected, or has another epoch than before."""
        is_anew = line in self._reconnected
        self._reconnected.discard(line)
        return is_anew or self._epochs.get(line, epoch) != epoch

    def reconnect_silent(self) -> None:
        """Reconnect lines that are silent for some heartbeats, have nothing queued, and have lost their connection.

        libzmq reconnects, except after what it considers an attack, such as a frame above `maxmsgsize`. An open
        connection to a host that answers is kept: a publisher that waits for a slow subscriber is silent, and a
        reconnect would lose what it sends meanwhile.
        """
        now_ns, order = time.monotonic_ns(), self._status.order
        self._status.state.look_again_at_ns = now_ns + order.at.line_dead_ns
        if int(self._sub.get(zmq.EVENTS)) & zmq.POLLIN:
            return
        for line in range(len(self.addresses)):
            if line not in self._epochs:
                # Never heard: it may not run yet. libzmq may have given up, so reconnect, but rarely.
                if self.is_multicast(line):
                    self._warn_unheard(line, now_ns)
                elif now_ns - self._connected_ns[line] >= _UNHEARD_NS:
                    self._connected_ns[line] = now_ns
                    self._reconnect(line)
            elif not order.is_dead(line, now_ns):
                self._note_back(line)
            elif self._is_lost(line):
                self._reconnect(line)

    def _note_back(self, line: int) -> None:
        """Log once that a silent line sends again."""
        if line in self._silent:
            self._silent.discard(line)
            text = "%s: the publisher at %s sends again"
            self._repeated.warning(line, text, self._what(line), self.addresses[line])

    def _what(self, line: int) -> str:
        """Return feed, slice and epoch of a line, for the log."""
        status = self._status
        return f"feed {status.feed.name!r} slice {status.slice_id} epoch {self._epochs[line]}"

    def _is_lost(self, line: int) -> bool:
        """Return True if the connection of a silent line is closed or its host does not answer."""
        address = self.addresses[line]
        finished = bool(self._status.state.finished_lines >> line & 1)
        if not finished and line not in self._silent:
            text = "%s: the publisher at %s is silent but has not closed"
            self._repeated.warning(line, text, self._what(line), address)
            self._silent.add(line)
        if self.is_multicast(line):
            return False
        if is_inproc(address):
            return is_bound_anew(address, self._bound_numbers[line])
        connection = self._connections.get(line)
        return not finished and (connection is None or not connection.is_answered())

    def _warn_unheard(self, line: int, now_ns: int) -> None:
        if line not in self._silent and now_ns - self._connected_ns[line] >= self._status.order.at.line_dead_ns:
            text = "slice %d: nothing has come from %s: is its publisher running, and is multicast routed to this host?"
            log.warning(text, self._status.slice_id, self.addresses[line])
            self._silent.add(line)

    def _reconnect(self, line: int) -> None:
        with suppress(zmq.ZMQError):
            self._sub.disconnect(self.addresses[line])
        self._connect(line)
        self._reconnected.add(line)
        # A publisher that continues in the same epoch may have lost our filters.
        self._status.state.confirmed_lines &= ~(1 << line)
