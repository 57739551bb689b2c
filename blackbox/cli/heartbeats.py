"""Listen to a feed's heartbeats with plain SUB sockets: how its publishers do, at next to no cost to them."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import msgspec
import zmq

from blackbox.block import Block
from blackbox.errors import BlockError, EndpointError
from blackbox.feed import Feed
from blackbox.layout import FLAG_CONTROL, HEARTBEAT_KEY

_SILENT_AFTER_HEARTBEATS = 3


class LineHealth(msgspec.Struct, kw_only=True):
    """What the heartbeats of one line of one slice have told so far."""

    slice_id: int
    line: str
    """"A" or "B"."""
    endpoint: str
    is_alive: bool = False
    """Heard in the last three heartbeat times, and not closed."""
    epoch: str | None = None
    """The publisher's run, as 16 hexadecimal digits; None: never heard."""
    keys: int = 0
    """Keys published so far."""
    messages: int = 0
    """Messages published so far in this run, over all keys."""
    messages_per_second: float | None = None
    """Between the last two heartbeats; None: there were no two of one run yet."""
    heartbeat_lag_ns: int | None = None
    """Now - `ts_out` when the last one came."""
    last_heard_ns: int = 0
    """When the last one came, ns since the epoch; 0: never."""
    heard: int = 0
    """Heartbeats of this run."""
    closed: bool = False
    """Whether the publisher has said that it ends."""
    malformed: int = 0
    """Heartbeats that were not valid blocks."""


class Heartbeats:
    """SUB sockets, one for each line of each slice, that ask for heartbeats alone. Used by one thread."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.lines: list[LineHealth] = []
        self._ts_out: dict[int, int] = {}
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._place_of: dict[zmq.Socket[bytes], int] = {}

    def __enter__(self) -> Self:
        """Connect. Raises EndpointError naming the endpoint that could not be."""
        try:
            for slice_id, part in enumerate(self.feed.slices):
                for name, endpoint in zip("AB", part.endpoints, strict=False):
                    self._connect(endpoint)
                    self.lines.append(LineHealth(slice_id=slice_id, line=name, endpoint=endpoint))
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        for socket in self._place_of:
            socket.close(linger=0)
        self._context.term()

    def _connect(self, endpoint: str) -> None:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.SUB)
        self._place_of[socket] = len(self.lines)
        socket.linger = 0
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise EndpointError(error.errno, f"cannot connect to {endpoint}: {error.strerror}") from error
        socket.subscribe(HEARTBEAT_KEY)
        self._poller.register(socket, zmq.POLLIN)

    def listen(self, seconds: float) -> None:
        """Take in what comes in that time, at least once."""
        deadline = time.monotonic() + seconds
        while True:
            left_ms = max(0, int(1000 * (deadline - time.monotonic())))
            ready = self._poller.poll(left_ms)
            for socket, _ in ready:
                self._take(self.lines[self._place_of[socket]], socket.recv_multipart())
            if not ready or left_ms == 0:
                break
        silent_ns = _SILENT_AFTER_HEARTBEATS * self.feed.heartbeat_ns
        for line in self.lines:
            line.is_alive = not line.closed and time.time_ns() - line.last_heard_ns < silent_ns

    @property
    def heard_all(self) -> bool:
        """Whether every line has been heard twice or has closed, so that its rate is known if it ever will be."""
        return all(line.heard > 1 or line.closed for line in self.lines)

    def _take(self, line: LineHealth, frames: list[bytes]) -> None:
        try:
            key, header, body = frames
            block = Block.decode(key, header, body)
            if key != HEARTBEAT_KEY or not block.flags & FLAG_CONTROL:
                raise BlockError("not a heartbeat")
            sequences = block.sequences()
        except (BlockError, ValueError):
            line.malformed += 1
            return
        now_ns = time.time_ns()
        messages, epoch = sum(sequences.values()), f"{block.epoch:016x}"
        place = self.lines.index(line)
        between_ns = block.ts_out - self._ts_out.get(place, block.ts_out)
        if epoch != line.epoch:
            line.epoch, line.heard, line.messages_per_second = epoch, 0, None
        elif between_ns > 0:
            line.messages_per_second = (messages - line.messages) * 1e9 / between_ns
        self._ts_out[place] = block.ts_out
        line.keys, line.messages = len(sequences), messages
        line.heartbeat_lag_ns = now_ns - block.ts_out
        line.last_heard_ns = now_ns
        line.closed = block.is_end
        line.heard += 1
