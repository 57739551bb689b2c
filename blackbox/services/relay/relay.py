"""Forward a feed to more subscribers than its publisher can serve, or to another site."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Literal, Self

import msgspec

from blackbox.archive.serve.server import ArchiveStatistics
from blackbox.arguments import Duration, duration_ns
from blackbox.errors import ConfigError, RelayError
from blackbox.feed.endpoint import SHARED_MEMORY, transport_of
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.feed.slice import Slice
from blackbox.life import Life
from blackbox.native.system.limits import check_limits
from blackbox.publish.listeners.peers import PeerStatistics, most_of
from blackbox.publish.listeners.queue_policy import QueuePolicy
from blackbox.receive.publishers.lines import address_from
from blackbox.services.relay.hops import new_hop
from blackbox.services.relay.images import RelayImages
from blackbox.services.relay.line import Line
from blackbox.services.relay.slice_relay import Settings, SliceRelay, needs_of
from blackbox.services.relay.upstream_socket import Source
from blackbox.transport.security.curve import keys_of_line

log = logging.getLogger("blackbox")

_LOOK_S = 0.5
_SAME = ("key_bytes", "channels", "symbol", "separator", "schema_name", "max_topics", "heartbeat_ns")
"""Settings that must be the same above and below a relay."""


class RelayLife(Life):
    """Stages in the life of a relay."""

    NEW = "new", "running", "closed"
    """Nothing is open. RUNNING by `start`, CLOSED by `close`."""
    RUNNING = "running", "closed"
    """It forwards once `start` has returned. CLOSED by `close`, or if it cannot start."""
    CLOSED = "closed", "closed"
    """It has ended. A second `close` does nothing."""


class RelayLine(msgspec.Struct, frozen=True, kw_only=True):
    """State and counters of one line of a relay."""

    slice_id: int
    line: str
    """A or B, in the feed below."""
    source: str
    """Endpoint that it is, or will be, connected to."""
    transport: str
    """Transport of its blocks: `shm`, `tcp`, `ipc` or `inproc`."""
    is_connected: bool
    is_confirmed: bool
    """True if all subscriptions from below are confirmed by the source."""
    reconnects: int
    """Times that it connected to the source again."""
    epoch: int
    """Epoch being forwarded; 0: none yet."""
    path: tuple[str, ...]
    """Relays between the source and the subscribers below, this one last."""
    messages: int
    blocks: int
    """Data blocks forwarded."""
    body_bytes: int
    heartbeats: int
    waits: int
    """Times that it waited up to 20 ms for a slow subscriber (`when_full="wait"`)."""
    refused: int
    """Messages that were not blocks, and were dropped."""
    faults: int
    """Blocks with an unreadable header; they were forwarded for receivers to reject."""
    unwanted: int
    """Messages of keys that no filter covers, sent after the source had confirmed all filters and withdrawals."""
    gaps: int
    """Messages lost between the source and this relay. Not counted with keys, during changes of subscriptions, and
    across a new connection."""
    keys: int
    """Keys whose end it knows."""
    filters_below: int
    """Distinct filters of the peers below, on the line with most: of all kinds but wanted topics."""
    filters_above: int
    """Filters that it has requested from the source."""


class RelayStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a relay, over all slices."""

    messages: int
    blocks: int
    body_bytes: int
    waits: int
    refused: int
    faults: int
    unwanted: int
    shared_memory_dropped: int
    """Messages for which shared memory had no free place (`when_full="drop"`)."""
    subscribers: int
    """Confirmed subscribers of the slice that has most; a relay below counts as one."""
    put_out: int
    """Peers below disconnected because they sent what no subscriber sends, or read nothing for too long."""
    refused_peers: int
    """Connections from below rejected because of their key, a wrong key of ours, or a missing key (`[security]`)."""
    refused_below: int
    """Refused subscriptions of peers below."""
    peers: tuple[PeerStatistics, ...]
    """Connections from below with subscriptions, per slice and line: the 100 with most subscriptions."""
    other_peers: int
    """Number of other such connections."""
    subscriptions: int
    """Active subscriptions of all connections from below, each counted separately."""
    hops: int
    """Relays between the source and the subscribers below, including this one, on the longest line."""
    datagrams: int
    """Datagrams sent on multicast lines."""
    datagrams_failed: int
    """Datagrams that the system refused to send."""
    lines: tuple[RelayLine, ...]
    images: ArchiveStatistics | None = None
    """Counters of the archive with its images; None before it answers, or without images."""


class Relay:
    """Forward a feed: blocks go down unchanged, subscriptions from below go up merged.

    Life: NEW, `start` (or `with`, or `run`), RUNNING, `close`, CLOSED. One thread and two I/O threads per slice.

    `downstream` is the same feed with other endpoints; subscribers use it like the publisher's. `upstream` may be that
    of another relay. `spares` are other places with the same feed: a line switches to the next one when its source
    falls silent. If `downstream` has one line only, the other line of `upstream` is also a spare.

    `when_full`, `hwm_blocks`, `slow_peer` and `max_peer_age` are as in `Publisher`: "drop" a block for a subscriber
    that does not keep up, or "wait" for it, which delays the source. A filter without subscribers stays active above
    for the time `hold`. `name` is sent to peers below.

    With `images`, a directory, the relay takes the whole feed and serves the newest message of each topic at the first
    of `downstream.archives`, so that subscribers below start with `snapshot="latest"` without the source's archive.

    Raises ConfigError if the feeds do not fit each other, or a key of `[security]` is missing or malformed.
    """

    def __init__(
        self,
        upstream: Feed,
        downstream: Feed,
        *,
        spares: Sequence[Feed] = (),
        name: str | None = None,
        when_full: Literal["drop", "wait"] = "drop",
        hwm_blocks: int | None = None,
        slow_peer: Literal["keep", "disconnect"] = "keep",
        max_peer_age: float | timedelta | None = None,
        hold: Duration = 0.0,
        images: str | os.PathLike[str] | None = None,
    ) -> None:
        policy = QueuePolicy.of(when_full, hwm_blocks, slow_peer, max_peer_age)
        hold_s = duration_ns("hold", hold, 0.0) / 1e9
        for feed in (upstream, downstream, *spares):
            check_is_feed(feed)
        for feed in (upstream, *spares):
            _check_fit(feed, downstream)
        self.upstream, self.downstream = upstream, downstream
        self.name = name or f"{os.getpid()}@{socket.gethostname()}"
        self.state = RelayLife.NEW
        self._images = None if images is None else RelayImages(upstream, downstream, images)
        self._ended = threading.Event()
        self._sources = sources = (upstream, *spares)
        settings = Settings(policy, hold_s, min(feed.max_subscriptions for feed in sources) // 2)
        me = new_hop(self.name)
        self._slices = [
            SliceRelay(
                downstream,
                slice_id,
                _sources_of(sources, downstream, slice_id),
                settings,
                me,
                self._ended.set,
            )
            for slice_id in range(len(downstream.slices))
        ]

    def start(self) -> Self:
        """Bind every slice and connect it; the source need not run yet.

        Raises EndpointError naming an endpoint that cannot be bound, LimitError naming a limit that is too low.
        """
        if self.state is not RelayLife.NEW:
            raise RelayError(f"start was called when {self.state}; a relay is used once")
        self._enter(RelayLife.RUNNING)
        try:
            needs = [
                need
                for slice_id, part in enumerate(self.downstream.slices)
                for need in needs_of(part, any(_memory_of(feed, part, slice_id) for feed in self._sources))
            ]
            check_limits(f"relay of feed {self.downstream.name!r}", *needs)
            for each in self._slices:
                each.start()
            if self._images is not None:
                self._images.start()
        except BaseException:
            self.close()
            raise
        return self

    def run(self) -> None:
        """Forward blocks until another thread calls `close`, or an error. Starts the relay if necessary.

        Raises RelayError if the relay is its own source, naming the relays of the loop, or if libzmq fails.
        """
        if self.state is RelayLife.NEW:
            self.start()
        try:
            while not self._ended.wait(_LOOK_S):
                pass
        finally:
            self.close()
        self.check()

    def check(self) -> None:
        """Raise the error of a slice that has ended, if any."""
        for each in self._slices:
            if each.error is not None:
                raise each.error
        if self._images is not None and self._images.error is not None:
            raise self._images.error

    def close(self) -> None:
        """End at once. Subscribers reconnect to the next process there, and report a gap if they missed messages."""
        self._enter(RelayLife.CLOSED)
        if self._images is not None:
            self._images.close()
        for each in self._slices:
            each.ask_to_close()
        for each in self._slices:
            each.join()

    def _enter(self, state: RelayLife) -> None:
        """Enter `state`. Raises RuntimeError if it cannot follow the current state."""
        self.state = self.state.enter(state, f"relay {self.name!r}")

    def statistics(self) -> RelayStatistics:
        """Return a snapshot of the counters."""
        lines = tuple(
            _line_of(each, number, line, self.name) for each in self._slices for number, line in enumerate(each.lines)
        )
        casters = [each.sockets.caster for each in self._slices if each.sockets.caster is not None]
        peers = most_of(peer for each in self._slices for peer in each.sockets.guard.peers())
        return RelayStatistics(
            messages=sum(line.messages for line in lines),
            blocks=sum(line.blocks for line in lines),
            body_bytes=sum(line.body_bytes for line in lines),
            waits=sum(line.waits for line in lines),
            refused=sum(line.refused for line in lines),
            faults=sum(line.faults for line in lines),
            unwanted=sum(line.unwanted for line in lines),
            shared_memory_dropped=sum(line.state.shared_memory_dropped for each in self._slices for line in each.lines),
            subscribers=max(each.below.subscriber_count() for each in self._slices),
            put_out=sum(each.sockets.guard.put_out for each in self._slices),
            refused_peers=sum(each.sockets.guard.refused for each in self._slices),
            refused_below=sum(each.below.admission.refused for each in self._slices),
            peers=peers.shown,
            other_peers=peers.others,
            subscriptions=peers.subscriptions,
            hops=max(len(line.path) for line in lines),
            datagrams=sum(caster.state.datagrams for caster in casters),
            datagrams_failed=sum(caster.state.failed for caster in casters),
            lines=lines,
            images=None if self._images is None else self._images.statistics(),
        )

    def __enter__(self) -> Self:
        return self if self.state is RelayLife.RUNNING else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
        if kind is None:
            self.check()

    def __repr__(self) -> str:
        return f"Relay({self.upstream!r}, {self.downstream!r}, name={self.name!r})"


def _line_of(each: SliceRelay, number: int, line: Line, name: str) -> RelayLine:
    state, upstream = line.state, line.upstream
    return RelayLine(
        slice_id=line.origin.slice_id,
        line="AB"[number],
        source=upstream.source.address,
        transport=SHARED_MEMORY if line.way.memory.at.state else transport_of(upstream.source.address),
        is_connected=upstream.source.is_connected,
        is_confirmed=upstream.is_confirmed(upstream.requested),
        reconnects=max(0, upstream.source.reconnects),
        epoch=state.epoch,
        path=(*(hop.name for hop in line.above), name),
        messages=state.messages,
        blocks=state.blocks,
        body_bytes=state.body_bytes,
        heartbeats=state.heartbeats,
        waits=state.waits,
        refused=state.no_blocks,
        faults=state.faults,
        unwanted=state.unwanted,
        gaps=state.gaps,
        keys=state.keys,
        filters_below=each.below.filter_count(wants=False),
        filters_above=len(upstream.filters),
    )


def _memory_of(source: Feed, below: Slice, slice_id: int) -> str:
    """Return the name of a source's memory. With two lines below it is not read, since it holds one line only."""
    return source.slices[slice_id].shared_memory if below.data_lines == 1 else ""


def _sources_of(sources: Sequence[Feed], downstream: Feed, slice_id: int) -> list[dict[str, Source]]:
    """Return, for each line below, its source addresses in order of preference."""
    below = downstream.slices[slice_id]
    lines: list[dict[str, Source]] = [{} for _ in range(below.data_lines)]
    for source in sources:
        part, memory = source.slices[slice_id], _memory_of(source, below, slice_id)
        for number, endpoint in enumerate(part.sockets):
            address = address_from(part.interface, endpoint)
            lines[min(number, len(lines) - 1)].setdefault(
                address, Source(keys_of_line(source, number, endpoint), memory)
            )
    return lines


def _check_fit(above: Feed, below: Feed) -> None:
    """Raise ConfigError unless the feed above provides what the feed below promises."""
    for setting in _SAME:
        was, expected = getattr(below, setting), getattr(above, setting)
        if was != expected:
            raise ConfigError(
                f"{setting} of feed {below.name!r} below the relay was {was!r}, "
                f"expected {expected!r} as in feed {above.name!r} above it"
            )
    if len(below.slices) != len(above.slices):
        raise ConfigError(
            f"feed {below.name!r} below the relay had {len(below.slices)} slices, expected {len(above.slices)} as in "
            f"feed {above.name!r} above it"
        )
    for slice_id, (upper, lower) in enumerate(zip(above.slices, below.slices, strict=True)):
        where = f"slice {slice_id} of feed {below.name!r} below the relay"
        if (lower.prefixes, lower.share) != (upper.prefixes, upper.share):
            raise ConfigError(f"{where} was {lower!r}, expected the topics of {upper!r} above it")
        if not upper.sockets:
            raise ConfigError(
                f"slice {slice_id} above the relay had {upper.multicast[0]!r}, expected tcp: a relay takes no datagrams"
            )
        if lower.data_lines > len(upper.sockets):
            raise ConfigError(f"{where} had lines A and B, expected line A alone as above it")
        if both := set(lower.endpoints) & set(upper.endpoints):
            raise ConfigError(f"{where} had {min(both)}, expected another endpoint: the relay would be its own source")
