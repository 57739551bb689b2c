"""Rules that find what is wrong in an installation, by kind. They do no I/O; `conditions` adds time.

Each rule yields findings from the newest snapshot and the growth of counters. Limits leave room for a busy machine: a
rule must not fire at full load. `explained` marks what another finding explains.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from blackbox.numbers import byte_size, count, counted, duration
from blackbox.receive.alerts import Severity, kind_of_disk_error
from blackbox.services.monitor.heartbeats import LineState
from blackbox.services.monitor.watch.conditions import Finding
from blackbox.services.monitor.watch.installation import Installation, Part, figure, path_of, text
from blackbox.services.monitor.watch.snapshot import Failure, Line, Page

_S: Final = 1_000_000_000
_GONE_NS: Final = 1_500_000_000
"""Time after the last answer at which a process that refuses connections counts as ended."""
_STUCK_NS: Final = 3 * _S
"""... at which any other one without a status is reported."""
_HOLD_NS: Final = 1_400_000_000
"""Hold time of levels that may be high for a moment: longer than the time between two statuses."""
_EDGE_NS: Final = 10 * _S
"""Time for which the growth of a counter counts."""
_STEP_NS: Final = 30 * _S
_READY_NS: Final = 10 * _S
_STILL_S: Final = 2.0
_BEHIND_S: Final = 1.5
_WAIT_S: Final = 0.02
"""Longest wait counted as one of `waits`."""
_WAITING: Final = 0.5
"""Share of the time spent waiting for slow subscribers that counts."""
_LEAST_FREE_BYTES: Final = 64 << 20
_FILLS_S: Final = 60.0
_MOST_NAMED: Final = 3
_NO_SLICE: Final[frozenset[int]] = frozenset()

Rule = Callable[[Installation], Iterator[Finding]]


def findings(installation: Installation) -> list[Finding]:
    """Return what all rules find in the newest snapshot."""
    return [found for rule in RULES for found in rule(installation)]


def _of(part: Part, kind: str, why: str, *, is_error: bool = False, **more: Any) -> Finding:
    feed = part.status.feed
    severity: Severity = "error" if is_error else "warning"
    return Finding(kind, severity, part.name, feed, f"feed {feed}, {part.page.url}", why, **more)


# Lines


def silent_lines(now: Installation) -> Iterator[Finding]:
    """Find lines whose heartbeats have stopped, and feeds without a publisher."""
    feeds = defaultdict[str, list[Line]](list)
    for line in now.now.lines:
        feeds[line.feed].append(line)
    for feed, lines in feeds.items():
        heard = [line for line in lines if line.health.state is not LineState.NOT_HEARD]
        silent = [line for line in lines if line.health.state is LineState.SILENT]
        watched_ns = now.now.at_ns - now.now.began_ns
        if watched_ns >= 4 * lines[0].heartbeat_ns + _S:
            if not heard:
                why = f"no publisher has been heard since the watch began {watched_ns / _S:.0f} s ago"
                found = _of_lines("late_publisher", f"publisher of {feed}", lines, why)
                yield found._replace(since_ns=now.wall_ns(now.now.began_ns))
                continue
            silent += [line for line in lines if line.health.state is LineState.NOT_HEARD]
        for line in silent[:_MOST_NAMED]:
            last_ns, beat = line.health.last_heard_ns, duration(line.heartbeat_ns)
            since_ns = last_ns or now.wall_ns(now.now.began_ns)
            said = f"for {(now.now.now_ns - last_ns) / _S:.1f} s" if last_ns else "since the watch began"
            why = f"no heartbeat {said}, expected one every {beat}"
            if len(silent) > _MOST_NAMED:
                why += f"; {len(silent)} of {len(lines)} lines of the feed are silent"
            name = f"line {line.health.line} of {feed} slice {line.health.slice_id}"
            yield _of_lines("silent_line", name, [line], why)._replace(since_ns=since_ns)


def _of_lines(kind: str, who: str, lines: list[Line], why: str, severity: Severity = "error") -> Finding:
    line = lines[0]
    where = f"feed {line.feed}" if len(lines) > 1 else f"feed {line.feed} slice {line.health.slice_id}"
    slices = frozenset(each.health.slice_id for each in lines)
    return Finding(kind, severity, who, line.feed, f"{where} at {line.health.endpoint}", why, slices=slices)


def late_heartbeats(now: Installation) -> Iterator[Finding]:
    """Find lines whose heartbeats arrive long after they were sent."""
    for line in now.now.lines:
        health, limit_ns = line.health, now.max_lag_ns(line.feed)
        if health.state is LineState.ALIVE and (health.heartbeat_lag_ns or 0) > limit_ns:
            why = (
                f"its heartbeats arrive {duration(health.heartbeat_lag_ns or 0)} after they were sent, limit "
                f"{duration(limit_ns)}: the line is slow, or the publisher's clock is late"
            )
            name = f"line {health.line} of {line.feed} slice {health.slice_id}"
            found = _of_lines("late_publisher", name, [line], why, "warning")
            yield found._replace(hold_ns=line.heartbeat_ns + _HOLD_NS)


# Processes


def pages(now: Installation) -> Iterator[Finding]:
    """Find processes that have ended, hang, or never answered."""
    for page in now.now.pages:
        if page.failure:
            began_ns = page.answered_ns or now.now.began_ns
            silent_ns = now.now.at_ns - began_ns
            if silent_ns >= (_GONE_NS if page.failure == "refused" else _STUCK_NS):
                yield from _silent(now, page, silent_ns / _S, now.wall_ns(began_ns))


_KINDS: Final[dict[Failure, str]] = {"refused": "dead_{}", "silent": "stuck_{}", "invalid": "unhealthy"}
_CAUSES: Final[dict[Failure, str]] = {
    "refused": "its process has ended, or the address is wrong",
    "silent": "its process is stopped, stuck or busy, or its host is off",
    "invalid": "its process has failed, or another program has this address",
    "unreachable": "its host is off, or the network or the address is wrong",
}


def _silent(now: Installation, page: Page, silent_s: float, since_ns: int) -> Iterator[Finding]:
    answer = "has given no status" if page.failure == "invalid" else "has not answered"
    why = f"{page.url} {answer} for {silent_s:.1f} s: {page.why}"
    if not page.parts:
        why += f"; {_CAUSES[page.failure]}"
        yield Finding("unreachable", "error", page.name or page.url, "", page.url, why, since_ns=since_ns)
    for part in [each for each in now.parts if each.page is page]:
        kind = _KINDS.get(page.failure, "unreachable").format(part.status.role)
        kind = "lost_consumer" if kind == "dead_subscriber" else kind
        slices = frozenset(each.slice_id for each in part.status.slices) or None
        yield _of(part, kind, why, is_error=True, since_ns=since_ns, slices=slices)


def unhealthy(now: Installation) -> Iterator[Finding]:
    """Find parts that report that they have failed, or are not ready for long."""
    for part in _answering(now):
        reasons = " ".join(part.status.reasons[:_MOST_NAMED]) or "it gave no reason"
        since_ns = now.since_state_ns(part)
        if not part.status.healthy:
            kind = kind_of_disk_error(reasons)
            kind = kind if kind == "full_disk" else "unhealthy"
            yield _of(part, kind, reasons, is_error=True, since_ns=since_ns)
        elif not part.status.ready:
            of_slices = {f"Slice {each.slice_id}: {each.reason}.": each.slice_id for each in part.status.slices}
            is_own = not of_slices.keys() >= set(part.status.reasons)
            slices = _NO_SLICE if is_own else frozenset(of_slices[each] for each in part.status.reasons)
            lasts_ns = max(0, now.now.now_ns - since_ns) if since_ns else 0  # less than 0: its clock was set back
            hold_ns = max(0, _READY_NS - lasts_ns)
            yield _of(part, "not_ready", reasons, hold_ns=hold_ns, since_ns=since_ns, slices=slices)


def _answering(now: Installation) -> Iterator[Part]:
    return (part for part in now.parts if not part.page.failure)


# Receivers


def slow_callbacks(now: Installation) -> Iterator[Finding]:
    """Find receivers that lag or stand still, and messages that were late already when they were sent."""
    for part in filter(lambda part: part.is_receiver, _answering(now)):
        yield from _slow(now, part)


def _slow(now: Installation, part: Part) -> Iterator[Finding]:
    at, limit_ns = part.inside, now.max_lag_ns(part.status.feed)
    lag_ns, age_ns = part.figure(*at, "lag", "last_ns"), part.figure(*at, "lag", "last_age_ns")
    queue = int(part.figure(*at, "delivery", "queue_blocks"))
    waiting = (*at, "delivery", "queue_blocks")
    still_s = now.still_s(part, *at, "delivery", "delivered", waiting=waiting)
    if queue and still_s >= _STILL_S:
        why = f"{counted(queue, 'block')} wait and no callback has returned for {still_s:.0f} s"
        yield _of(part, "slow_callback", why, since_ns=now.now.now_ns - round(still_s * _S))
    lags = f"lags {duration(lag_ns)}, limit {duration(limit_ns)}"
    if lag_ns > limit_ns and queue:  # also while it receives nothing, because its queue is full
        yield _of(part, "slow_callback", f"{lags}, and {counted(queue, 'block')} wait for callbacks", hold_ns=_HOLD_NS)
    elif now.still_s(part, *at, "received", "blocks") >= _STILL_S:
        return  # lag and age are those of an old block
    elif lag_ns > limit_ns:
        yield _of(part, "late_blocks", f"{lags}, and no block waits: the network or its slice thread", hold_ns=_HOLD_NS)
    elif age_ns - lag_ns > limit_ns:
        late = duration(age_ns - lag_ns)
        why = f"messages waited {late} in the publisher of {part.status.feed} before they were sent"
        feed = part.status.feed
        late_slices = frozenset(
            int(figure(each, "slice_id"))
            for each in part.list(*at, "slices")
            if figure(each, "lag", "last_age_ns") - figure(each, "lag", "last_ns") > limit_ns
        )
        yield Finding(
            *("late_publisher", "warning", f"publisher of {feed}", feed, f"feed {feed}"),
            f"{why}, limit {duration(limit_ns)}",
            hold_ns=_HOLD_NS,
            slices=late_slices or None,
        )


def clock_steps(now: Installation) -> Iterator[Finding]:
    """Find steps of the clocks of publishers and receivers."""
    for part in _answering(now):
        if steps := now.growth(part, *part.inside, "lag", "clock_steps"):
            ahead_ns = part.figure(*part.inside, "lag", "clock_offset_ns")
            why = f"{counted(int(steps), 'clock step')}, here or at the publisher; its clock is {_ahead(ahead_ns)}"
            yield _of(part, "clock_step", why, clear_ns=_STEP_NS)


def _ahead(offset_ns: float) -> str:
    if not offset_ns:
        return "now right"
    return f"now {duration(abs(offset_ns))} {'ahead' if offset_ns > 0 else 'late'}"


class _Lossy(NamedTuple):
    """A relay's line that misses messages."""

    part: Part
    path: tuple[str, ...]
    """Relays from the source to this one."""
    slice_id: int
    where: str
    lost: int

    def explains(self, other: _Lossy) -> bool:
        """Return True if this loss is on the way to another one, in the same slice of a feed."""
        is_same = (self.part.status.feed, self.slice_id) == (other.part.status.feed, other.slice_id)
        return is_same and other.path[: len(self.path)] == self.path != other.path


def losses(now: Installation) -> Iterator[Finding]:
    """Find lost messages: above the first relay that misses them, else at their receivers."""
    lossy = list[_Lossy]()
    for part in _answering(now):
        for place, line in enumerate(part.list("lines")):
            lost, path = int(now.growth(part, "lines", place, "gaps")), path_of(line)
            if lost and path:
                slice_id = int(figure(line, "slice_id"))
                where = f"line {text(line.get('line'))} of slice {slice_id} from {text(line.get('source'))}"
                lossy.append(_Lossy(part, path, slice_id, where, lost))
        if gaps := now.growth(part, *part.inside, "received", "gaps"):
            why = f"{counted(int(gaps), 'message')} lost on the way to it, {_all_gaps(part)} in all"
            yield _of(part, "gap", why, clear_ns=_EDGE_NS, slices=_lossy_slices(now, part))
    for each in lossy:
        if not any(other.explains(each) for other in lossy):
            why = f"{counted(each.lost, 'message')} lost above relay {each.path[-1]!r}, on {each.where}"
            slices = frozenset({each.slice_id})
            yield _of(each.part, "loss_above_relay", why, is_error=True, clear_ns=_EDGE_NS, slices=slices)


def _lossy_slices(now: Installation, part: Part) -> frozenset[int] | None:
    path = (*part.inside, "slices")
    slices = enumerate(part.list(*path))
    grown = [int(figure(each, "slice_id")) for n, each in slices if now.growth(part, *path, n, "received", "gaps")]
    return frozenset(grown) or None


def _all_gaps(part: Part) -> str:
    return count(int(part.figure(*part.inside, "received", "gaps")))


# Senders


def full_queues(now: Installation) -> Iterator[Finding]:
    """Find publishers and relays that wait for slow peers or drop for them, and receivers that drop."""
    for part in _answering(now):
        waited, slices = _waits(now, part)
        peers = sorted(part.list("peers"), key=lambda peer: figure(peer, "behind_s"), reverse=True)
        behind_s = figure(peers[0], "behind_s") if peers else 0.0
        slowest = _peer(now, part, peers[0]) if behind_s > 0 else "a subscriber"
        since_ns = max(0, now.now.now_ns - round(behind_s * _S)) if behind_s > 0 else 0
        if waited >= _WAITING:
            why = f"its senders wait {min(1, waited):.0%} of the time for {slowest}"
            yield _of(part, "full_queue", why, since_ns=since_ns, slices=slices)
        elif behind_s >= _BEHIND_S:
            unsent = byte_size(int(figure(peers[0], "unsent_bytes")))
            why = f"{slowest} has taken next to nothing for {behind_s:.1f} s, {unsent} wait for it"
            yield _of(part, "full_queue", why, hold_ns=_HOLD_NS, since_ns=since_ns, slices=_NO_SLICE)
        for name, what in (("shared_memory_dropped", "in shared memory"), ("discarded", "at its end")):
            if dropped := now.growth(part, name):
                why = f"{counted(int(dropped), 'message')} dropped {what}, because its queue was full"
                yield _of(part, "full_queue", why, is_error=True, clear_ns=_EDGE_NS, slices=_NO_SLICE)
        if dropped := now.growth(part, *part.inside, "delivery", "dropped"):
            why = f"its policy for slow subscribers dropped {counted(int(dropped), 'delivery')}".replace("ys", "ies")
            yield _of(part, "dropped_messages", why, is_error=True, clear_ns=_EDGE_NS)


def _waits(now: Installation, part: Part) -> tuple[float, frozenset[int] | None]:
    """Return the share of the time that the slowest slice waits for subscribers, and the slices that wait for most."""
    of_slice = dict[int, float]()
    for name in ("slices", "lines"):
        for place, each in enumerate(part.list(name)):
            slice_id, share = int(figure(each, "slice_id")), (now.rate(part, name, place, "waits") or 0.0) * _WAIT_S
            of_slice[slice_id] = max(share, of_slice.get(slice_id, 0.0))
    if not of_slice:
        return (now.rate(part, "waits") or 0.0) * _WAIT_S, None
    return max(of_slice.values()), frozenset(each for each, share in of_slice.items() if share >= _WAITING)


def _peer(now: Installation, part: Part, peer: Mapping[str, Any]) -> str:
    address = text(peer.get("address"))
    if not address:
        return "a subscriber"
    process = now.process_at(address, part.status.host)
    return f"{process} at {address}" if process else f"the subscriber at {address}"


def strangers(now: Installation) -> Iterator[Finding]:
    """Find connections with a wrong key, harmful peers, and crowds."""
    for part in _answering(now):
        if refused := now.growth(part, "refused_peers"):
            why = f"{counted(int(refused), 'connection')} refused because of a wrong or missing key"
            yield _of(part, "wrong_key", why, clear_ns=_EDGE_NS)
        if put_out := now.growth(part, "put_out"):
            why = f"{counted(int(put_out), 'peer')} disconnected for invalid data, or for reading nothing"
            yield _of(part, "harmful_peer", why, clear_ns=_EDGE_NS)
        peers, limit = len(part.list("peers")) + int(part.figure("other_peers")), now.max_peers(part.status.feed)
        if peers > limit:
            yield _of(part, "crowd_of_peers", f"it has {counted(peers, 'connection')}, limit {count(limit)}")


def disks(now: Installation) -> Iterator[Finding]:
    """Find recorders that lose messages, and disks that fill up."""
    for part in _answering(now):
        if lost := now.growth(part, "lost"):
            why = f"{counted(int(lost), 'received message')} not recorded. " + " ".join(part.status.reasons[:1])
            yield _of(part, kind_of_disk_error(why), why, is_error=True, clear_ns=6 * _EDGE_NS)
        free = part.figure("free_bytes") if part.has("free_bytes") else -1.0
        written = now.rate(part, "stored_bytes") or 0.0
        if 0 <= free < max(_LEAST_FREE_BYTES, _FILLS_S * written):
            left = f", enough for {free / written:.0f} s" if written > 0 else ""
            yield _of(part, "full_disk", f"the disk of its recording has {byte_size(int(free))} left{left}")


RULES: Final[tuple[Rule, ...]] = (
    silent_lines,
    late_heartbeats,
    pages,
    unhealthy,
    slow_callbacks,
    clock_steps,
    losses,
    full_queues,
    strangers,
    disks,
)


class _Cause(NamedTuple):
    kinds: frozenset[str]
    explains: frozenset[str]
    in_process: bool = False
    """True if it explains only findings about the same process; else those about its slices."""

    def covers(self, each: Finding, found: list[Finding]) -> bool:
        """Return True if findings of these kinds, of the same feed, explain one."""
        causes = [other for other in found if other.kind in self.kinds and other.feed == each.feed]
        if self.in_process:
            return any(other.who == each.who for other in causes)
        if any(other.slices is None for other in causes):
            return each.slices is None or bool(each.slices)
        return each.slices is not None and _NO_SLICE < each.slices <= _NO_SLICE.union(
            *(other.slices or () for other in causes)
        )


_CAUSES_OF: Final = (
    _Cause(
        frozenset({"stuck_hub", "dead_hub", "stuck_publisher", "dead_publisher"}),
        frozenset({"silent_line", "late_publisher", "not_ready", "late_blocks"}),
    ),
    _Cause(frozenset({"full_queue"}), frozenset({"silent_line", "late_publisher", "not_ready"})),
    _Cause(frozenset({"silent_line", "late_publisher"}), frozenset({"not_ready"})),
    _Cause(frozenset({"loss_above_relay"}), frozenset({"gap"})),
    _Cause(frozenset({"clock_step"}), frozenset({"late_publisher"})),
    _Cause(frozenset({"clock_step", "slow_callback"}), frozenset({"late_blocks"}), in_process=True),
)
"""Kinds that explain other kinds in the same feed."""


def explained(found: Iterable[Finding], raised: Iterable[Finding]) -> list[Finding]:
    """Return findings, those marked that others explain: found ones, or those of present conditions."""
    found = list(found)
    causes = [*found, *raised]
    return [each._replace(is_explained=_is_explained(each, causes)) for each in found]


def _is_explained(each: Finding, causes: list[Finding]) -> bool:
    return any(each.kind in cause.explains and cause.covers(each, causes) for cause in _CAUSES_OF)
