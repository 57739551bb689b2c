"""Watch a feed's publishers by their heartbeats alone, at almost no cost to them."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import msgspec
import zmq

from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.format import FLAG_CONTROL, HEARTBEAT_KEY, MAX_BODY_BYTES, TRACE_KEY
from blackbox.block.position import End
from blackbox.errors import BlockError, ConfigError, EndpointError
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.life import Life
from blackbox.native.system.limits import Needs
from blackbox.transport.context import allow_ipv6, new_context
from blackbox.transport.keep_alive import keep_alive
from blackbox.transport.security.curve import ClientKeys, keys_of_line, use_keys

_SILENT_AFTER_HEARTBEATS = 3


class LineState(Life):
    """State of the publisher of a line."""

    NOT_HEARD = "not heard", "alive", "closed"
    """The first heartbeat leads to ALIVE, or to CLOSED if it announces the end."""
    ALIVE = "alive", "alive", "silent", "closed"
    """Heard within the last three heartbeat intervals. SILENT or CLOSED follow."""
    SILENT = "silent", "alive", "closed"
    """Heard before, but not within the last three heartbeat intervals. The next heartbeat leads to ALIVE or CLOSED."""
    CLOSED = "closed", "closed", "alive"
    """Its last heartbeat announced the end. ALIVE when another epoch begins."""


class LineHealth(msgspec.Struct, kw_only=True):
    """Results from the heartbeats of one line of one slice."""

    slice_id: int
    line: str
    """"A" or "B"."""
    endpoint: str
    state: LineState = LineState.NOT_HEARD
    epoch: int | None = None
    """The publisher's epoch; None: never heard."""
    keys: int = 0
    """Keys published in this epoch."""
    messages: int = 0
    """Messages published in this epoch, over all keys."""
    messages_per_second: float | None = None
    """Rate between the last two heartbeats; None before the second of this epoch."""
    heartbeat_lag_ns: int | None = None
    """Time of arrival minus `ts_out` of the last heartbeat."""
    last_heard_ns: int = 0
    """Time of arrival of the last heartbeat, ns since 1970; 0: never."""
    heard: int = 0
    """Heartbeats of this epoch."""
    malformed: int = 0
    """Messages on the heartbeat key that were not valid heartbeats."""


class Heartbeats:
    """Plain SUB sockets, one for each line of each slice, that subscribe only to heartbeats.

    Owns its sockets: open in a `with` block, used by the one thread that entered it. `lines` are updated in place.
    """

    def __init__(self, feed: Feed) -> None:
        check_is_feed(feed)
        self.feed = feed
        self.lines: list[LineHealth] = []
        self._ts_out: dict[int, int] = {}
        self._heard_ns: dict[int, int] = {}
        """Monotonic time of the last heartbeat."""
        self._context = new_context(
            f"heartbeats of feed {feed.name!r}",
            *[Needs(descriptors=2 * len(feed_slice.sockets)) for feed_slice in feed.slices],
        )
        self._poller = zmq.Poller()
        self._place_of: dict[zmq.Socket[bytes], int] = {}

    def __enter__(self) -> Self:
        """Connect. Raises EndpointError naming the endpoint that cannot be connected."""
        own = Block.encode_ends(HEARTBEAT_KEY, {b"": End(0, 0)}, HeaderFields(slice_id=0, epoch=1, ts_out=0))
        Block.decode(*map(bytes, own.frames))  # loads compiled code before the first heartbeat arrives
        try:
            for slice_id, feed_slice in enumerate(self.feed.slices):
                if not feed_slice.sockets:
                    raise ConfigError(
                        f"slice {slice_id} of feed {self.feed.name!r} had only multicast lines, expected one on tcp: "
                        "heartbeats are read there"
                    )
                for number, (name, endpoint) in enumerate(zip("AB", feed_slice.sockets, strict=False)):
                    self._connect(endpoint, keys_of_line(self.feed, number, endpoint))
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

    def _connect(self, endpoint: str, keys: ClientKeys | None) -> None:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.SUB)
        self._place_of[socket] = len(self.lines)
        socket.linger = 0
        socket.maxmsgsize = MAX_BODY_BYTES
        allow_ipv6(socket, endpoint)
        keep_alive(socket)
        use_keys(socket, keys)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise EndpointError(error.errno, f"cannot connect to {endpoint}: {error.strerror}") from error
        socket.subscribe(HEARTBEAT_KEY)
        self._poller.register(socket, zmq.POLLIN)

    def listen(self, seconds: float) -> None:
        """Receive heartbeats for `seconds`, and update `lines`. 0: at most one of each line."""
        deadline = time.monotonic() + seconds
        while True:
            left_ms = max(0, int(1000 * (deadline - time.monotonic())))
            ready = self._poller.poll(left_ms)
            for socket, _ in ready:
                self._take(self.lines[self._place_of[socket]], socket.recv_multipart())
            if not ready or left_ms == 0:
                break
        silent_ns = _SILENT_AFTER_HEARTBEATS * self.feed.heartbeat_ns
        for place, line in enumerate(self.lines):
            if line.state is LineState.ALIVE and time.monotonic_ns() - self._heard_ns[place] >= silent_ns:
                self._enter(line, LineState.SILENT)

    @property
    def heard_all(self) -> bool:
        """True if every line has closed or was heard twice, so that its rate is known."""
        return all(line.heard > 1 or line.state is LineState.CLOSED for line in self.lines)

    def _take(self, line: LineHealth, frames: list[bytes]) -> None:
        now_ns = time.time_ns()  # before decoding, which is slow the first time
        try:
            key, header, body = frames
            block = Block.decode(key, header, body)
            if key == TRACE_KEY:  # a relay's, which the subscription to heartbeats includes
                return
            if key != HEARTBEAT_KEY or not block.flags & FLAG_CONTROL:
                raise BlockError("not a heartbeat")
        except (BlockError, ValueError):
            line.malformed += 1
            return
        messages, epoch = block.sequence, block.epoch
        place = self.lines.index(line)
        between_ns = block.ts_out - self._ts_out.get(place, block.ts_out)
        if epoch != line.epoch:
            line.epoch, line.heard, line.messages_per_second = epoch, 0, None
        elif between_ns > 0:
            line.messages_per_second = (messages - line.messages) * 1e9 / between_ns
        self._ts_out[place], self._heard_ns[place] = block.ts_out, time.monotonic_ns()
        line.keys, line.messages = block.count, messages
        line.heartbeat_lag_ns = now_ns - block.ts_out
        line.last_heard_ns = now_ns
        self._enter(line, LineState.CLOSED if block.is_end else LineState.ALIVE)
        line.heard += 1

    def _enter(self, line: LineHealth, state: LineState) -> None:
        """Record the new state of a line. Raises RuntimeError if the transition is not allowed."""
        line.state = line.state.enter(state, f"feed {self.feed.name!r} slice {line.slice_id} line {line.line}")
