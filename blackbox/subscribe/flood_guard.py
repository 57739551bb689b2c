"""End connections on which bytes come without end, but no block: libzmq would keep all of a message that never ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import zmq

from blackbox.block.format import MAX_BODY_BYTES
from blackbox.feed.endpoint import transport_of
from blackbox.native.limits import Needs, start_thread
from blackbox.subscribe.state import SliceCounters
from blackbox.transport.connections import Connection, Connections
from blackbox.transport.curve import ClientKeys, refusal_of

log = logging.getLogger("blackbox")

GUARD_NEEDS = Needs(descriptors=2, threads=1)
"""The socket that reports connections, and its thread."""
_LOOK_S = 0.2
_SLACK_BYTES = 16 << 20
"""What the kernel holds, and frames around bodies."""


class _Mark(NamedTuple):
    """What was known of a connection when its line had last been heard."""

    heard_ns: int
    received: int
    reads: int = 0
    """How often the slice thread had looked for a block when more had come than may; 0: it has not."""


class FloodGuard:
    """Look at a SUB socket's TCP connections, five times a second, in a thread of its own.

    Each may bring as many bytes between two valid blocks of its line as a full queue and one body hold; then, once the
    slice thread has read and still found none, it is ended, libzmq frees what it held, and connects again. Made and
    closed in the socket's thread, before it connects. It also tells of handshakes that fail.
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
        """`heard_ns` of a line: when its last valid block came. `queued_bytes`: what libzmq may queue of one line.

        `reads`: how often the slice thread has looked for a block. `keys`: with which it connects.
        """
        self.refusal = ""
        """Why a publisher does not take our connections, as far as failed handshakes tell."""
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
        """Begin to look, if there is anything that can be looked at."""
        if self._connections is not None:
            start_thread(self._thread)

    def close(self) -> None:
        """End the thread, and watch no longer."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._connections is not None:
            self._connections.close()

    def _lines_of(self, connection: Connection) -> list[int]:
        """Return the line of a connection; all lines of its port where the feed names a host in another form."""
        lines = [line for line, address in self._addresses.items() if address == connection.address]
        port = f":{connection.peer[1]}"
        return lines or [line for line, address in self._addresses.items() if address.endswith(port)] or [0]

    def _watch(self) -> None:
        has_failed = False
        while not self._ended.wait(_LOOK_S):
            try:
                self.look()
            except Exception:  # the next look may do better; without any, nobody is ended
                if not has_failed:
                    log.exception("slice %d: the flood guard's look failed, it goes on", self._slice_id)
                has_failed = True

    def look(self) -> None:
        """Judge every connection by what has come on it, and what was heard."""
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
                text = "slice %d: ended the connection to %s: %d bytes came, and no block"
                log.warning(text, self._slice_id, connection.address, unheard)
