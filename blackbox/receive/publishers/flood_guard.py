"""Disconnect peers that send bytes without end but no block: libzmq would buffer an endless message in memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

import zmq

from blackbox.block.form.format import MAX_BODY_BYTES
from blackbox.feed.endpoint import transport_of
from blackbox.native.system.limits import Needs, start_thread
from blackbox.receive.slices.slice_status import SliceStatus
from blackbox.repeated_log import RepeatedLog
from blackbox.transport.security.curve import ClientKeys, refusal_of
from blackbox.transport.tcp_info import Connection, Connections

log = logging.getLogger("blackbox")

GUARD_NEEDS = Needs(descriptors=2, threads=1)
"""The connection monitor and its thread."""
_LOOK_S = 0.2
_SLACK_BYTES = 16 << 20
"""Bytes in kernel buffers, and frames around bodies."""


class _Mark(NamedTuple):
    """A connection's counters when its line last received a block."""

    heard_ns: int
    received: int
    reads: int = 0
    """Reads of the slice thread when the limit was exceeded; 0: not exceeded."""


class FloodGuard:
    """Checks a SUB socket's TCP connections five times a second in a separate thread.

    Between two valid blocks of its line each connection may send as many bytes as a full queue and one body. Beyond
    that, once the slice thread has read without finding a block, it is disconnected: libzmq frees its buffers and
    reconnects. Created and closed in the socket's thread, before it connects. Also reports failed handshakes.
    """

    def __init__(
        self,
        sub: zmq.Socket[bytes],
        status: SliceStatus,
        hwm_blocks: int,
        keys: ClientKeys | None = None,
        has_lost: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`hwm_blocks`: most blocks that libzmq queues for one line. `keys`: CURVE keys of the socket.

        `has_lost`: called with the number of lost messages when it has changed.
        """
        self._has_lost, self._lost = has_lost, 0
        self.refusal = ""
        """Reason why a publisher rejects our connections, from failed handshakes."""
        self.addresses: tuple[str, ...] = ()
        """Our own addresses of the open connections."""
        self._status, self._hwm_blocks, self._keys = status, hwm_blocks, keys
        self._enough_reads = 2 * len(status.lines)  # lines with blocks take turns; one block may be on its way
        self._addresses = {
            line: endpoint.removeprefix("tcp://")
            for line, endpoint in enumerate(status.lines)
            if transport_of(endpoint) == "tcp"
        }
        self._marks: dict[int, _Mark] = {}
        """By descriptor."""
        self._repeated = RepeatedLog(log)
        self._ended = threading.Event()
        self._connections = Connections(sub) if self._addresses else None
        self._reports = any(transport_of(endpoint) in ("tcp", "ipc") for endpoint in status.lines)
        self._thread = threading.Thread(target=self._watch, name=f"blackbox-guard-{status.slice_id}", daemon=True)

    def start(self) -> None:
        """Start checking if there are connections: those by ipc have only their losses reported."""
        if self._reports:
            start_thread(self._thread)

    def close(self) -> None:
        """Stop the thread and the monitor."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._connections is not None:
            self._connections.close()

    def _lines_of(self, connection: Connection) -> list[int]:
        """Return the line of a connection; all lines of its port if the feed names the host differently."""
        lines = [line for line, address in self._addresses.items() if address == connection.address]
        port = f":{connection.peer[1]}"
        return lines or [line for line, address in self._addresses.items() if address.endswith(port)] or [0]

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            try:
                self.look()
            except Exception:  # noqa: BLE001 - logged; the next check may succeed, until then no peer is disconnected
                text = "slice %d: the flood guard's check failed, it continues"
                self._repeated.log(logging.ERROR, "", text, self._status.slice_id, exc_info=True)

    def look(self) -> None:
        """Check every connection's bytes against the blocks received."""
        if (lost := self._status.counters.slice.gaps) != self._lost:
            self._lost = lost
            self._has_lost(lost)
        if self._connections is None:
            return
        state, heard_ns = self._status.state, self._status.order.epochs.heard_ns
        body_bytes = max(self._status.feed.block_bytes, state.largest_body)
        limit, reads = self._hwm_blocks * body_bytes + MAX_BODY_BYTES + _SLACK_BYTES, state.reads
        found = self._connections.look()
        self.addresses = tuple(each.local_address for each in found)
        refusal = refusal_of(self._connections.failures, self._keys)
        if refusal != self.refusal:
            self.refusal = refusal
            addresses = " or ".join(self._addresses.values())
            text = "slice %d: no connection to %s: %s"
            self._repeated.warning(refusal, text, self._status.slice_id, addresses, refusal)
        self._marks = {each.fd: self._marks[each.fd] for each in found if each.fd in self._marks}
        for connection in found:
            last_ns = max(heard_ns[line] for line in self._lines_of(connection))
            mark = self._marks.get(connection.fd)
            if mark is None or last_ns != mark.heard_ns or connection.received < mark.received:
                self._marks[connection.fd] = _Mark(last_ns, connection.received)
                continue
            unheard = connection.received - mark.received
            if unheard <= limit:
                continue
            if mark.reads == 0:
                self._marks[connection.fd] = mark._replace(reads=reads)
            elif reads - mark.reads >= self._enough_reads and connection.end():
                del self._marks[connection.fd]
                self._status.counters.slice.ended_connections += 1
                text = "slice %d: closed the connection to %s: it sent %d bytes and no block"
                self._repeated.warning("", text, self._status.slice_id, connection.address, unheard)
