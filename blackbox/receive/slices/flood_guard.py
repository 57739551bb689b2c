"""Disconnect peers that send bytes without end but no block: libzmq would buffer an endless message in memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import zmq

from blackbox.block.form.format import MAX_BODY_BYTES
from blackbox.feed.endpoint import transport_of
from blackbox.native.system.limits import Needs, start_thread
from blackbox.receive.state import SliceCounters
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
        endpoints: Sequence[str],
        counters: SliceCounters,
        heard_ns: Callable[[int], int],
        queued_bytes: Callable[[], int],
        reads: Callable[[], int],
        slice_id: int,
        keys: ClientKeys | None = None,
    ) -> None:
        """`heard_ns` returns the time of a line's last valid block. `queued_bytes`: most bytes queued for one line.

        `reads`: reads of the slice thread so far. `keys`: CURVE keys of the socket.
        """
        self.refusal = ""
        """Reason why a publisher rejects our connections, from failed handshakes."""
        self._keys = keys
        self._counters, self._heard_ns, self._queued_bytes, self._slice_id = counters, heard_ns, queued_bytes, slice_id
        self._reads = reads
        self._enough_reads = 2 * len(endpoints)  # lines with blocks take turns; one block may be on its way
        self._addresses = {
            line: endpoint.removeprefix("tcp://")
            for line, endpoint in enumerate(endpoints)
            if transport_of(endpoint) == "tcp"
        }
        self._marks: dict[int, _Mark] = {}
        """By descriptor."""
        self._ended = threading.Event()
        self._connections = Connections(sub) if self._addresses else None
        self._thread = threading.Thread(target=self._watch, name=f"blackbox-guard-{slice_id}", daemon=True)

    def start(self) -> None:
        """Start checking if there are TCP connections."""
        if self._connections is not None:
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
        has_failed = False
        while not self._ended.wait(_LOOK_S):
            try:
                self.look()
            except Exception:  # the next check may succeed; until then no peer is disconnected
                if not has_failed:
                    log.exception("slice %d: the flood guard's check failed, it continues", self._slice_id)
                has_failed = True

    def look(self) -> None:
        """Check every connection's bytes against the blocks received."""
        assert self._connections is not None
        limit, reads = self._queued_bytes() + MAX_BODY_BYTES + _SLACK_BYTES, self._reads()
        found = self._connections.look()
        refusal = refusal_of(self._connections.failures, self._keys)
        if refusal != self.refusal:
            self.refusal = refusal
            addresses = " or ".join(self._addresses.values())
            log.warning("slice %d: no connection to %s: %s", self._slice_id, addresses, refusal)
        self._marks = {each.fd: self._marks[each.fd] for each in found if each.fd in self._marks}
        for connection in found:
            heard_ns = max(map(self._heard_ns, self._lines_of(connection)))
            mark = self._marks.get(connection.fd)
            if mark is None or heard_ns != mark.heard_ns or connection.received < mark.received:
                self._marks[connection.fd] = _Mark(heard_ns, connection.received)
                continue
            unheard = connection.received - mark.received
            if unheard <= limit:
                continue
            if mark.reads == 0:
                self._marks[connection.fd] = mark._replace(reads=reads)
            elif reads - mark.reads >= self._enough_reads and connection.end():
                del self._marks[connection.fd]
                self._counters.ended_connections += 1
                text = "slice %d: closed the connection to %s: it sent %d bytes and no block"
                log.warning(text, self._slice_id, connection.address, unheard)
