"""End connections on which bytes come without end, but no block: libzmq would keep all of a message that never ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import zmq

from blackbox.block.format import MAX_BODY_BYTES
from blackbox.feed.endpoint import transport_of
from blackbox.native.limits import Needs, start_thread
from blackbox.subscribe.state import SliceCounters
from blackbox.transport.connections import Connection, Connections

log = logging.getLogger("blackbox")

GUARD_NEEDS = Needs(descriptors=2, threads=1)
"""What tells it of connections, and its thread."""
_LOOK_S = 0.1
_SLACK_BYTES = 16 << 20
"""What the kernel holds, and frames around bodies."""


class FloodGuard:
    """Look at a SUB socket's TCP connections, ten times a second, in a thread of its own.

    Each may bring as many bytes between two valid blocks of its line as a full queue and one body hold; then it is
    ended, libzmq frees what it held, and connects again. Made and closed in the socket's thread, before it connects.
    """

    def __init__(
        self,
        sub: zmq.Socket[bytes],
        endpoints: Sequence[str],
        counters: SliceCounters,
        heard_ns: Callable[[int], int],
        queued_bytes: Callable[[], int],
        slice_id: int,
    ) -> None:
        """`heard_ns` of a line: when its last valid block came. `queued_bytes`: what libzmq may queue of one line."""
        self._counters, self._heard_ns, self._queued_bytes, self._slice_id = counters, heard_ns, queued_bytes, slice_id
        self._addresses = {
            line: endpoint.removeprefix("tcp://")
            for line, endpoint in enumerate(endpoints)
            if transport_of(endpoint) == "tcp"
        }
        self._marks: dict[int, tuple[int, int]] = {}
        """For each descriptor: when its line was heard last, and how many bytes had come by then."""
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
        assert self._connections is not None
        while not self._ended.wait(_LOOK_S):
            limit = self._queued_bytes() + MAX_BODY_BYTES + _SLACK_BYTES
            found = self._connections.look()
            self._marks = {each.fd: self._marks[each.fd] for each in found if each.fd in self._marks}
            for connection in found:
                heard = max(map(self._heard_ns, self._lines_of(connection)))
                before, received = self._marks.get(connection.fd, (-1, 0))
                if heard != before or connection.received < received:
                    self._marks[connection.fd] = heard, connection.received
                elif connection.received - received > limit and connection.end():
                    del self._marks[connection.fd]
                    self._counters.ended_connections += 1
                    text = "slice %d: ended the connection to %s: %d bytes came, and no block"
                    log.warning(text, self._slice_id, connection.address, connection.received - received)
