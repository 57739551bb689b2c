"""Observe a running publisher, subscriber, recorder ...: its role, its health and its statistics.

An observer is called from the monitor's thread while the object works in others: it reads counters and states, and
takes no lock for longer than a few microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from blackbox.life import Life
from blackbox.native.compile.compiling import is_compiling
from blackbox.services.monitor.serve.hop_counts import Histogram, HopCounts
from blackbox.services.monitor.serve.status import SliceDetail

if TYPE_CHECKING:
    from blackbox.archive.record.recorder import Recorder
    from blackbox.archive.serve.server import ArchiveServer
    from blackbox.feed.live_source import LiveSource
    from blackbox.publish.publisher import Publisher
    from blackbox.receive.slices.slice_thread import SliceThread
    from blackbox.receive.supervise.supervisor import Supervisor
    from blackbox.replay.replay import Replay
    from blackbox.services.bridge.carrier import Carrier
    from blackbox.services.bridge.inlet import Inlet
    from blackbox.services.bridge.websocket.clients import WebSocketBridge
    from blackbox.services.bridge.websocket.inlet import WebSocketInlet
    from blackbox.services.hub.server.hub import Hub
    from blackbox.services.relay.plain_clients import PlainRelay
    from blackbox.services.relay.relay import Relay
    from blackbox.subscriber.subscriber import Subscriber
    from blackbox.transport.server_thread import ServerThread

STUCK_S: Final = 30.0
"""Time without progress after which something is stuck."""
_SILENT_HEARTBEATS: Final = 3
_LEAST_SILENT_S: Final = 1.0
_LATE_SYNC_S: Final = 5.0
"""Time by which a sync may be late."""

Counted = Any
"""Statistics: a msgspec Struct, or a dict of counts."""


class Observed(NamedTuple):
    """The state of a part at one moment."""

    role: str
    feed: str
    statistics: Counted
    waits: tuple[str, ...] = ()
    """Why it is not ready."""
    faults: tuple[str, ...] = ()
    """Why it is not healthy."""
    slices: tuple[SliceDetail, ...] = ()
    has_begun: bool = True
    """True once it was started, even if it still waits for others."""
    more: tuple[Counted, ...] = ()
    """Further statistics."""
    histograms: tuple[Histogram, ...] = ()
    """Lags and ages of the messages of each slice."""
    hops: tuple[Histogram, ...] = ()


class Beats:
    """Remembers since when counters have not changed.

    Attributes: `hops`, the counted traces.
    """

    def __init__(self) -> None:
        self.hops = HopCounts()
        self._seen: dict[object, tuple[object, float]] = {}

    def still_s(self, name: object, value: object, now: float) -> float:
        """Return the seconds for which `value` of the counter `name` has been the same."""
        before, since = self._seen.get(name, (None, now))
        if before != value:
            since = now
        self._seen[name] = value, since
        return now - since


def observe(thing: object, beats: Beats) -> Observed:
    """Return the state of an object that publishes, subscribes, records ... `beats` are those of this object.

    Raises TypeError for an object of another kind.
    """
    observer = _observer_of(thing)
    if observer is None:
        raise TypeError(f"a {type(thing).__name__} was given, expected one of {', '.join(_OBSERVERS)}")
    return observer(thing, beats)


def is_observable(thing: object) -> bool:
    """Return True if `observe` knows objects of this kind."""
    return _observer_of(thing) is not None


def _observer_of(thing: object) -> Callable[[Any, Beats], Observed] | None:
    for kind in type(thing).__mro__:
        if kind.__module__.startswith("blackbox") and kind.__name__ in _OBSERVERS:
            return _OBSERVERS[kind.__name__]
    return None


def _life(what: str, life: Life, ready: str, ends: tuple[str, ...]) -> tuple[str, ...]:
    """Return why something in a stage of its life is not ready."""
    if life == ready:
        return ()
    return (f"The {what} has ended." if life in ends else f"The {what} is {life}, and not yet {ready}.",)


def _publisher(thing: Publisher, _: Beats) -> Observed:
    waits = _life("publisher", thing.state, "running", ("closed",))
    faults, slices, now_ns = [], [], time.monotonic_ns()
    for each in list(thing._slices):
        sender, sent = each.sender, each.sender.sent
        reason = "" if sender.life == "running" else f"its sender is {sender.life}"
        late_s = (now_ns - sent.heartbeat_at) / 1e9 if sent.heartbeat_at and sender.life == "running" else 0.0
        if sender.error is not None:
            faults.append(f"Slice {sender.slice_id} has failed: {sender.error}.")
        elif late_s > STUCK_S:
            late = f"a heartbeat is {late_s:.0f} s late"
            faults.append(f"The sender of slice {sender.slice_id} makes no progress: {late}.")
        slices.append(SliceDetail(slice_id=sender.slice_id, epoch=sent.epoch, sequence=sent.sequence, reason=reason))
    has_begun = len(slices) == len(thing.feed.slices) and not any(each.reason for each in slices)
    if thing.state == "running" and not has_begun and not faults:
        waits = ("Its endpoints are not bound yet.",)
    return Observed("publisher", thing.feed.name, thing.statistics(), waits, tuple(faults), tuple(slices), has_begun)


def _subscribed(
    supervisor: Supervisor, beats: Beats, *, may_block: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[SliceDetail, ...]]:
    """Return why the slices of a supervisor are not ready, why they are not healthy, and the slices.

    `may_block`: callbacks wait for another system while it is unreachable.
    """
    waits, now = _life("subscriber", supervisor.state, "running", ("ended",)), time.monotonic()
    faults = [] if supervisor.error is None else [f"It has ended with an error: {supervisor.error}."]
    running = sorted(supervisor.slices.running.items())
    slices = tuple(_slice_of(slice_id, thread) for slice_id, thread in running)
    if supervisor.state == "running":
        if supervisor.has_died:
            faults.append("The supervisor has ended unexpectedly.")
        waits += tuple(f"Slice {each.slice_id}: {each.reason}." for each in slices if each.reason)
        for slice_id, thread in running:
            faults += _stuck(slice_id, thread, beats, now, may_block=may_block)
    return waits, tuple(faults), slices


def _with_slices(
    role: str, feed: str, statistics: Counted, supervisor: Supervisor, beats: Beats, *, may_block: bool = False
) -> Observed:
    """Return the state of something with a supervisor, with its histograms."""
    waits, faults, slices = _subscribed(supervisor, beats, may_block=may_block)
    histograms = tuple(
        Histogram(of, ("slice", str(slice_id)), counts.sum(axis=0))
        for slice_id, each in supervisor.slices.counters().items()
        for of, counts in (("lag", each.lags), ("age", each.ages))
    )
    for trace in supervisor.slices.traces(beats.hops.reader):
        beats.hops.add(trace)
    hops = beats.hops.histograms()
    return Observed(role, feed, statistics, waits, faults, slices, histograms=histograms, hops=hops)


def _slice_of(slice_id: int, thread: SliceThread) -> SliceDetail:
    status = thread.status
    silence_s, heartbeat_s = status.silence_s(), status.feed.heartbeat_ns / 1e9
    position, where = status.position, " or ".join(status.lines)
    reason = ""
    if not status.is_ready:
        reason = "it is compiling or connecting"
    elif status.is_finished:
        reason = "its publisher has ended"
    elif not status.is_confirmed:
        reason = f"no publisher at {where} has confirmed the subscription"
    elif status.is_catching_up:
        reason = "it still receives earlier messages from archives"
    elif silence_s > max(_LEAST_SILENT_S, _SILENT_HEARTBEATS * heartbeat_s):
        reason = f"the publisher at {where} has sent nothing for {silence_s:.0f} s"
    return SliceDetail(
        slice_id=slice_id,
        epoch=0 if position is None else position.epoch,
        sequence=0 if position is None else position.sequence,
        silence_s=round(silence_s, 3),
        reason=reason,
        addresses=thread.addresses,
    )


def _stuck(slice_id: int, thread: SliceThread, beats: Beats, now: float, *, may_block: bool) -> list[str]:
    """Return why a slice makes no progress."""
    status = thread.status
    still_s = beats.still_s(slice_id, status.state.reads, now)
    if status.life != "running" or is_compiling() or may_block:
        return []
    busy_s = max(status.counters.busy_ns(worker) for worker in range(len(status.counters.workers))) / 1e9
    if busy_s > STUCK_S:
        return [f"A callback of slice {slice_id} has not returned for {busy_s:.0f} s."]
    return [f"Slice {slice_id} has not looked for messages for {still_s:.0f} s."] if still_s > STUCK_S else []


def _subscriber(thing: Subscriber, beats: Beats) -> Observed:
    statistics, feed = thing.statistics(), thing.feed.name
    if thing._replays.slices is not None:
        return Observed("replay", feed, statistics)
    return _with_slices("subscriber", feed, statistics, thing._supervisor, beats)._replace(
        has_begun=thing.state != "new"
    )


def _recorder(thing: Recorder, beats: Beats) -> Observed:
    supervisor, feed = thing._share.supervisor, thing.feed.name
    seen = _with_slices("recorder", feed, thing.statistics(), supervisor, beats)._replace(histograms=())
    waits, faults = seen.waits, seen.faults
    journals, keeper = thing._journals, thing._journals.keeper
    if journals.error is not None:
        faults = (f"{journals.error}.", *faults)
    if (silent_s := keeper.silent_s()) > STUCK_S:
        faults = (*faults, f"The disk of {journals.directory} has not answered for {silent_s:.0f} s.")
    if (late_s := keeper.late_sync_s()) > _LATE_SYNC_S:
        waits = (*waits, f"A sync of {journals.directory} has been due for {late_s:.0f} s.")
    archive = thing.archive_statistics
    more = () if archive is None else (archive,)
    return seen._replace(waits=waits, faults=faults, has_begun=thing.state != "new", more=more)


def _archive(thing: ArchiveServer, _: Beats) -> Observed:
    feed = thing.directory.name if thing._feed is None else thing._feed.name
    waits, faults = _server("archive", thing._thread)
    return Observed("archive", feed, thing.statistics(), waits, faults, (), thing._thread.life == "serving")


def _server(what: str, thread: ServerThread) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return why a server is not ready, and why it is not healthy."""
    busy_s = thread.busy_s()
    faults = (f"The {what} has worked on the same request for {busy_s:.0f} s.",) if busy_s > STUCK_S else ()
    return _life(what, thread.life, "serving", ("ending", "ended")), faults


def _relay(thing: Relay, beats: Beats) -> Observed:
    waits, now = _life("relay", thing.state, "running", ("closed",)), time.monotonic()
    faults, slices = [], []
    for each in thing._slices:
        reasons, slice_id = [], each.lines[0].origin.slice_id
        for name, line in zip("AB", each.lines, strict=False):
            upstream = line.upstream
            if not upstream.source.is_connected and line.way.memory.at.state == 0:
                reasons.append(f"line {name} is not connected to {upstream.source.address}")
            elif upstream.filters and not upstream.is_confirmed(upstream.requested):
                reasons.append(f"the source of line {name}, {upstream.source.address}, has not confirmed all requests")
        still_s = beats.still_s(slice_id, each.progress, now)
        if each.error is not None:
            faults.append(f"Slice {slice_id} has failed: {each.error}.")
        elif each.life == "running" and still_s > STUCK_S and not is_compiling():
            faults.append(f"Slice {slice_id} has forwarded nothing and looked at no connection for {still_s:.0f} s.")
        slices.append(
            SliceDetail(
                slice_id=slice_id,
                epoch=each.lines[0].state.epoch,
                reason=" and ".join(reasons),
                addresses=tuple(filter(None, (line.upstream.source.local_address for line in each.lines))),
            )
        )
    if thing.state == "running":
        waits += tuple(f"Slice {each.slice_id}: {each.reason}." for each in slices if each.reason)
    if thing._images is not None and thing._images.error is not None:
        faults.append(f"The images have failed: {thing._images.error}.")
    feed = thing.downstream.name
    return Observed("relay", feed, thing.statistics(), waits, tuple(faults), tuple(slices), thing.state != "new")


def _plain_relay(thing: PlainRelay, beats: Beats) -> Observed:
    seen = _with_slices("relay", thing.upstream.name, thing.statistics(), thing._subscriber._supervisor, beats)
    faults = seen.faults if thing.error is None else (f"It has ended with an error: {thing.error}.", *seen.faults)
    return seen._replace(faults=faults, has_begun=thing.state != "new")


def _hub(thing: Hub, _: Beats) -> Observed:
    statistics = thing.statistics()
    waits, faults = _server("hub", thing._thread)
    if thing._error is not None:
        faults = (f"It has ended with an error: {thing._error}.", *faults)
    if not waits and statistics.life != "active" and statistics.peer_lacks < 0:
        waits = ("The hub is on standby, and the active hub of its pair has not answered.",)
    epoch, none = thing.epoch, [0] * len(thing.feed.slices)
    following = thing.server.judge.numbers.following() if statistics.life == "active" else none
    slices = tuple(
        SliceDetail(slice_id=slice_id, epoch=epoch, sequence=sequence) for slice_id, sequence in enumerate(following)
    )
    return Observed("hub", thing.feed.name, statistics, waits, faults, slices, thing._thread.life == "serving")


def _replay(thing: Replay, _: Beats) -> Observed:
    status = thing.controls.status()
    feed = thing.playlist.recordings[0].feed.name
    waits = (f"The replay is {status.state}.",) if status.state in ("ready", "ended") else ()
    return Observed("replay", feed, thing.statistics(), waits, (), (), status.state != "ready")


def _carrier(thing: Carrier, beats: Beats) -> Observed:
    supervisor = thing._subscriber._supervisor
    seen = _with_slices("bridge", thing.feed.name, thing.statistics(), supervisor, beats, may_block=True)
    away = (f"{thing.url} is unreachable: {thing.away}.",) if thing.away else ()
    return seen._replace(waits=(*away, *seen.waits), more=(thing._subscriber.statistics(),))


def _inlet(thing: Inlet, _: Beats) -> Observed:
    waits: tuple[str, ...] = ()
    if thing._thread.ident is None:
        waits = ("The bridge has not started.",)
    elif not thing._thread.is_alive():
        waits = ("The bridge has ended.",)
    elif thing.away:
        waits = (f"{thing.url} is unreachable: {thing.away}.",)
    faults = () if thing._failure is None else (f"It has ended with an error: {thing._failure}.",)
    return Observed("bridge", thing.feed.name, thing.statistics(), waits, faults)


def _websocket_bridge(thing: WebSocketBridge, beats: Beats) -> Observed:
    subscriber = getattr(thing, "_subscriber", None)  # made by `serve`
    if subscriber is None:
        return Observed("bridge", thing.feed.name, thing.statistics(), ("The bridge has not started.",))
    seen = _with_slices("bridge", thing.feed.name, thing.statistics(), subscriber._supervisor, beats)
    return seen._replace(more=(subscriber.statistics(),))


def _live_source(thing: LiveSource, _: Beats) -> Observed:
    counts = thing.statistics()
    waits = () if counts.connected else (f"{thing!r} is not connected.",)
    return Observed("source", "", counts, waits, (), (), thing._has_begun)


def _websocket_inlet(thing: WebSocketInlet, _: Beats) -> Observed:
    return Observed("bridge", thing.feed.name, thing.statistics(), (thing.waits,) if thing.waits else ())


_OBSERVERS: Final[Mapping[str, Callable[[Any, Beats], Observed]]] = {
    "Publisher": _publisher,
    "Subscriber": _subscriber,
    "Recorder": _recorder,
    "ArchiveServer": _archive,
    "Relay": _relay,
    "PlainRelay": _plain_relay,
    "Hub": _hub,
    "Replay": _replay,
    "Carrier": _carrier,
    "Inlet": _inlet,
    "LiveSource": _live_source,
    "WebSocketBridge": _websocket_bridge,
    "WebSocketInlet": _websocket_inlet,
}
"""By class name, so that a process imports only the classes that it uses."""
