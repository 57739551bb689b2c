"""The state of an installation as tables for people and scripts: `top`, the page and `--json` show these. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from blackbox.services.monitor.heartbeats import LineState
from blackbox.services.monitor.watch.conditions import Condition, printable
from blackbox.services.monitor.watch.installation import Installation, Part, figure, path_of, text

_MOST_PEERS: Final = 100
_RATES: Final[dict[str, tuple[str, ...]]] = {
    "hub": ("stored",),
    "archive": ("answered",),
    "bridge": ("added", "sent", "put", "messages put", "messages published"),
}
"""Counters shown as a rate, by role: the first that a part has. Other roles have `messages`."""
_LOST: Final = ("lost", "missing", "told missing")
_DROPPED: Final = ("discarded", "shared_memory_dropped", "passed_over", "full")
_ORDER: Final = ("publisher", "hub", "source", "replay", "relay", "recorder", "archive", "subscriber", "bridge")


class SliceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One slice of a feed."""

    feed: str
    slice_id: int
    lines: dict[str, str]
    """State of each line, by its letter."""
    epoch: int | None
    messages: int
    messages_per_second: float | None
    bytes_per_second: float | None
    """Bodies, as its fastest receiver gets them; None: no receiver is watched."""
    heartbeat_lag_ns: int | None
    lag_p50_ns: int | None
    """Percentiles are the worst of the watched receivers, since their starts."""
    lag_p99_ns: int | None
    age_p50_ns: int | None
    age_p99_ns: int | None
    lost: int
    """Messages lost on the way to the watched receivers, summed over these."""
    repaired: int
    receivers: int


class ProcessRow(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a process; rows are in the order of a tree, with `depth`. Last come processes that never answered."""

    key: str
    name: str
    label: str
    """Role with the relay's name or the process id, and the host."""
    role: str = ""
    feed: str = ""
    url: str
    depth: int = 0
    state: str
    """ok; error or warning, if a condition names it; not ready, failed; or the failure of its page: refused, silent,
    invalid, unreachable."""
    messages_per_second: float | None = None
    bytes_per_second: float | None = None
    lag_ns: int | None = None
    """Lag of the last block."""
    lag_p99_ns: int | None = None
    lost: int = 0
    """Messages lost on the way to it, or received and not recorded."""
    repaired: int = 0
    dropped: int = 0
    """Messages left out because a queue was full or by a policy: dropped, conflated, discarded or passed over."""
    peers: int = 0
    uptime_s: float = 0.0
    version: str = ""
    reasons: tuple[str, ...]


class PeerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One connection to a publisher or relay."""

    process: str
    slice_id: int
    line: str
    address: str
    name: str
    """Name of the process at the other end; empty: not known."""
    key: str
    subscriptions: int
    refused: int
    behind_s: float
    unsent_bytes: int
    since_ns: int


class ConsumerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One named consumer."""

    name: str
    feed: str
    behind_messages: int | None
    """Messages of its slices after its stored positions; None: they are of an earlier epoch, or none was heard."""
    behind_s: float | None
    """Time since the first of these was published; None: before this watch."""
    kept_ns: int
    """When it stored its positions, ns since 1970."""


class TopicRow(msgspec.Struct, frozen=True, kw_only=True):
    """A busy topic."""

    feed: str
    topic: str
    messages_per_second: float
    share: float
    """Part of the feed's messages, 0 to 1."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """All of it at one moment."""

    now_ns: int
    messages_per_second: float
    bytes_per_second: float | None
    lag_p99_ns: int | None
    lost: int
    repaired: int
    conditions: tuple[Condition, ...]
    slices: tuple[SliceRow, ...]
    processes: tuple[ProcessRow, ...]
    peers: tuple[PeerRow, ...]
    """The 100 that are most behind."""
    consumers: tuple[ConsumerRow, ...]
    topics: tuple[TopicRow, ...]


def view_of(now: Installation, conditions: Iterable[Condition], topics: tuple[TopicRow, ...] = ()) -> View:
    """Return the state of an installation."""
    conditions = tuple(conditions)
    slices, processes = tuple(_slices(now)), (*_processes(now, conditions), *_unanswered(now))
    peers = sorted(_peers(now), key=lambda peer: (peer.behind_s, peer.unsent_bytes, peer.subscriptions), reverse=True)
    senders = [each.bytes_per_second for each in processes if each.role in ("publisher", "hub")]
    return View(
        now_ns=now.now.now_ns,
        messages_per_second=sum(each.messages_per_second or 0.0 for each in slices),
        bytes_per_second=_total(senders) or _total(each.bytes_per_second for each in slices),
        lag_p99_ns=_worst([*(each.lag_p99_ns for each in slices), *(each.lag_p99_ns for each in processes)]),
        lost=sum(each.lost for each in slices),
        repaired=sum(each.repaired for each in slices),
        conditions=conditions,
        slices=slices,
        processes=processes,
        peers=tuple(peers[:_MOST_PEERS]),
        consumers=tuple(_consumers(now)),
        topics=topics,
    )


def _total(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) if known else None


def _worst(values: Iterable[int | None]) -> int | None:
    return max((each for each in values if each is not None), default=None)


def _slices(now: Installation) -> Iterator[SliceRow]:
    by_slice: dict[tuple[str, int], list[int]] = {}
    for place, line in enumerate(now.now.lines):
        by_slice.setdefault((line.feed, line.health.slice_id), []).append(place)
    for (feed, slice_id), places in by_slice.items():
        lines = [now.now.lines[place].health for place in places]
        best = max(lines, key=lambda line: (line.state is LineState.ALIVE, line.epoch or 0, line.messages))
        receivers = list(_receivers(now, feed, slice_id))
        received = [part.figure(*path, "received", "gaps") for part, path in receivers]
        rates = [now.rate(part, *path, "received", "body_bytes") for part, path in receivers]
        yield SliceRow(
            feed=feed,
            slice_id=slice_id,
            lines={line.line: str(line.state) for line in lines},
            epoch=best.epoch,
            messages=best.messages,
            messages_per_second=best.messages_per_second if best.state is LineState.ALIVE else None,
            bytes_per_second=max((each for each in rates if each is not None), default=None),
            heartbeat_lag_ns=best.heartbeat_lag_ns,
            lag_p50_ns=_worst_lag(receivers, "p50_ns"),
            lag_p99_ns=_worst_lag(receivers, "p99_ns"),
            age_p50_ns=_worst_lag(receivers, "age_p50_ns"),
            age_p99_ns=_worst_lag(receivers, "age_p99_ns"),
            lost=int(sum(received)),
            repaired=int(sum(part.figure(*path, "received", "repaired") for part, path in receivers)),
            receivers=len(receivers),
        )


Path = tuple[str | int, ...]


def _receivers(now: Installation, feed: str, slice_id: int) -> Iterator[tuple[Part, Path]]:
    """Yield the receivers of a slice with the path of its statistics."""
    for part in now.parts:
        if part.status.feed == feed and part.is_receiver:
            for place, each in enumerate(part.list(*part.inside, "slices")):
                if figure(each, "slice_id") == slice_id:
                    yield part, (*part.inside, "slices", place)


def _worst_lag(receivers: list[tuple[Part, Path]], name: str) -> int | None:
    return _worst(_percentile(part, path, name) for part, path in receivers)


def _percentile(part: Part, path: Path, name: str) -> int | None:
    """Return a percentile at delivery; None for receivers that deliver to no callback, such as recorders."""
    is_known = part.figure(*path, "delivery", "delivered") > 0
    return int(part.figure(*path, "lag", name)) if is_known else None


def _processes(now: Installation, conditions: tuple[Condition, ...]) -> Iterator[ProcessRow]:
    named = {each.who: each.severity for each in reversed(conditions)}  # errors come first
    placed = [(_place_in_tree(part), part) for part in now.parts]
    for (*_, depth), part in sorted(placed, key=lambda each: each[0]):
        status, at = part.status, part.inside
        is_receiver = part.is_receiver
        size = (*at, "received", "body_bytes") if is_receiver else ("body_bytes",)
        lines = part.list("lines")
        yield ProcessRow(
            key=part.key,
            name=part.name,
            label=_label(part),
            role=status.role,
            feed=status.feed,
            url=part.page.url,
            depth=depth,
            state=_state(part, named.get(printable(part.name), "ok")),
            messages_per_second=_rate(now, part),
            bytes_per_second=now.rate(part, *size) if part.has(*size) else None,
            lag_ns=int(part.figure(*at, "lag", "last_ns")) if is_receiver else None,
            lag_p99_ns=_percentile(part, at, "p99_ns"),
            lost=int(
                part.figure(*at, "received", "gaps")
                + sum(figure(line, "gaps") for line in lines)
                + sum(map(part.figure, _LOST))
            ),
            repaired=int(part.figure(*at, "received", "repaired")),
            dropped=int(
                sum(part.figure(*at, "delivery", name) for name in ("dropped", "conflated", "discarded"))
                + sum(map(part.figure, _DROPPED))
            ),
            peers=len(part.list("peers")) + int(part.figure("other_peers") + part.figure("clients")),
            uptime_s=max(0.0, (status.now_ns - status.started_ns) / 1e9),
            version=status.version,
            reasons=status.reasons[:10],
        )


def _rate(now: Installation, part: Part) -> float | None:
    """Return the messages per second of a part; None: unknown, or it counts none."""
    if part.is_receiver:
        return now.rate(part, *part.inside, "received", "messages")
    counter = next(filter(part.has, _RATES.get(part.status.role, ("messages",))), None)
    return None if counter is None else now.rate(part, counter)


def _state(part: Part, found: str) -> str:
    if part.page.failure:
        return part.page.failure
    if not part.status.healthy:
        return "failed"
    return found if part.status.ready else "not ready"


def _unanswered(now: Installation) -> Iterator[ProcessRow]:
    """Yield rows of pages that never answered."""
    for page in now.now.pages:
        if page.failure and not page.parts:
            name = page.name or page.url
            yield ProcessRow(key=page.url, name=name, label=name, url=page.url, state=page.failure, reasons=(page.why,))


def _label(part: Part) -> str:
    names = _path_of(part) if part.status.role == "relay" else ()
    return f"{part.status.role} {names[-1] if names else part.status.pid} {part.status.host}"


def _path_of(part: Part) -> tuple[str, ...]:
    """Return the names of the relays from the source to this one; empty for other parts."""
    lines = part.list("lines")
    return path_of(lines[0]) if lines else ()


def _place_in_tree(part: Part) -> tuple[str, tuple[str, ...], int, str, int]:
    """Return a sort key that ends with the depth: senders, then relays by their path, then the others."""
    role, feed = part.status.role, part.status.feed
    order = _ORDER.index(role) if role in _ORDER else len(_ORDER)
    if role == "relay" and (names := _path_of(part)):
        return feed, ("1", *names), order, part.key, len(names)
    is_root = role in ("publisher", "hub", "source", "replay")
    return feed, ("0",) if is_root else ("2",), order, part.key, 0 if is_root else 1


def _peers(now: Installation) -> Iterator[PeerRow]:
    for part in now.parts:
        for peer in part.list("peers"):
            address = text(peer.get("address"))
            yield PeerRow(
                process=part.name,
                slice_id=int(figure(peer, "slice_id")),
                line=text(peer.get("line")),
                address=address,
                name=now.process_at(address, part.status.host),
                key=text(peer.get("key")),
                subscriptions=int(figure(peer, "subscriptions")),
                refused=int(figure(peer, "refused")),
                behind_s=figure(peer, "behind_s"),
                unsent_bytes=int(figure(peer, "unsent_bytes")),
                since_ns=int(figure(peer, "since_ns")),
            )


def _consumers(now: Installation) -> Iterator[ConsumerRow]:
    by_name: dict[tuple[str, str], list[int]] = {}
    for place, each in enumerate(now.now.consumers):
        by_name.setdefault((each.name, each.feed), []).append(place)
    for (name, feed), places in by_name.items():
        positions = [now.now.consumers[place] for place in places]
        behind, since = list[int | None](), list[int | None]()
        for each in positions:
            end = now.end_of(feed, each.slice_id)
            is_known = end is not None and end[0] == each.epoch
            missing = max(0, end[1] - each.sequence) if end is not None and is_known else None
            behind.append(missing)
            passed_ns = now.since_ns(feed, each.slice_id, each.epoch, each.sequence)
            since.append(now.now.now_ns if missing == 0 else passed_ns)
        known = [each for each in behind if each is not None]
        times = [each for each in since if each is not None]
        yield ConsumerRow(
            name=name,
            feed=feed,
            behind_messages=sum(known) if len(known) == len(behind) else None,
            behind_s=max(0.0, (now.now.now_ns - min(times)) / 1e9) if len(times) == len(since) else None,
            kept_ns=max(each.kept_ns for each in positions),
        )
