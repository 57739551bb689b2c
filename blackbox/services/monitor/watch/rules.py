"""Rules that find what is wrong in an installation, by kind. They do no I/O; `conditions` adds time.

Each rule yields findings from the newest snapshot and the growth of counters. Limits leave room for a busy machine: a
rule must not fire at full load. `without_consequences` drops what another finding explains.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from blackbox.numbers import byte_size, count, counted, duration
from blackbox.receive.alerts import kind_of_disk_error
from blackbox.services.monitor.heartbeats import LineState
from blackbox.services.monitor.watch.conditions import Condition, Finding
from blackbox.services.monitor.watch.installation import Installation, Part, figure
from blackbox.services.monitor.watch.snapshot import Line, Page

_S: Final = 1_000_000_000
_GONE_NS: Final = 1_500_000_000
"""Time after the last answer at which a process that refuses connections counts as ended."""
_STUCK_NS: Final = 3 * _S
"""... at which one that takes connections and does not answer counts as stuck."""
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

Rule = Callable[[Installation], Iterator[Finding]]


def findings(installation: Installation) -> list[Finding]:
    """Return what all rules find in the newest snapshot."""
    return [found for rule in RULES for found in rule(installation)]


def _of(part: Part, kind: str, why: str, *, is_error: bool = False, **times: int) -> Finding:
    feed = part.status.feed
    severity = "error" if is_error else "warning"
    return Finding(kind, severity, part.name, feed, f"feed {feed}, {part.page.url}", why, **times)  # type: ignore[arg-type]


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
                yield _of_lines("late_publisher", f"publisher of {feed}", lines, why)
                continue
            silent += [line for line in lines if line.health.state is LineState.NOT_HEARD]
        for line in silent[:_MOST_NAMED]:
            last_ns, beat = line.health.last_heard_ns, duration(line.heartbeat_ns)
            said = f"for {(now.now.now_ns - last_ns) / _S:.1f} s" if last_ns else "since the watch began"
            why = f"no heartbeat {said}, expected one every {beat}"
            if len(silent) > _MOST_NAMED:
                why += f"; {len(silent)} of {len(lines)} lines of the feed are silent"
            name = f"line {line.health.line} of {feed} slice {line.health.slice_id}"
            yield _of_lines("silent_line", name, [line], why)


def _of_lines(kind: str, who: str, lines: list[Line], why: str, severity: str = "error") -> Finding:
    line = lines[0]
    where = f"feed {line.feed}" if len(lines) > 1 else f"feed {line.feed} slice {line.health.slice_id}"
    return Finding(kind, severity, who, line.feed, f"{where} at {line.health.endpoint}", why)  # type: ignore[arg-type]


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
            silent_ns = now.now.at_ns - (page.answered_ns or now.now.began_ns)
            if silent_ns >= (_STUCK_NS if page.failure == "silent" else _GONE_NS):
                yield from _lost(now, page, silent_ns / _S)


def _lost(now: Installation, page: Page, silent_s: float) -> Iterator[Finding]:
    why = f"{page.url} has not answered for {silent_s:.1f} s: {page.why}"
    if not page.parts:
        cause = "stopped, stuck or busy" if page.failure == "silent" else "gone, or the address is wrong"
        yield Finding("unreachable", "error", page.url, "", page.url, f"{why}; its process is {cause}")
    for part in [each for each in now.parts if each.page is page]:
        what = "stuck" if page.failure == "silent" else "dead"
        role = part.status.role
        kind = "lost_consumer" if (what, role) == ("dead", "subscriber") else f"{what}_{role}"
        yield _of(part, kind, why, is_error=True)


def unhealthy(now: Installation) -> Iterator[Finding]:
    """Find parts that report that they have failed, or are not ready for long."""
    for part in _answering(now):
        reasons = " ".join(part.status.reasons[:_MOST_NAMED]) or "it gave no reason"
        if not part.status.healthy:
            kind = kind_of_disk_error(reasons)
            yield _of(part, kind if kind == "full_disk" else "unhealthy", reasons, is_error=True)
        elif not part.status.ready:
            yield _of(part, "not_ready", reasons, hold_ns=_READY_NS)


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
        yield _of(part, "slow_callback", why)
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
        yield Finding(
            *("late_publisher", "warning", f"publisher of {feed}", feed, f"feed {feed}"),
            f"{why}, limit {duration(limit_ns)}",
            hold_ns=_HOLD_NS,
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


def losses(now: Installation) -> Iterator[Finding]:
    """Find lost messages: above the first relay that misses them, else at their receivers."""
    lossy = dict[tuple[str, ...], tuple[Part, str, float]]()
    for part in _answering(now):
        lines = part.list("lines")
        before = now.before(part)
        for place, line in enumerate(lines):
            old = before.list("lines")[place : place + 1] if before is not None else []
            gaps = figure(line, "gaps") - figure(old[0], "gaps") if old else 0
            path = line.get("path")
            if gaps > 0 and isinstance(path, list | tuple):
                where = f"line {line.get('line')} of slice {line.get('slice_id')} from {line.get('source')}"
                lossy[(*map(str, path), where)] = part, where, gaps
        if gaps := now.growth(part, *part.inside, "received", "gaps"):
            why = f"{counted(int(gaps), 'message')} lost on the way to it, {_all_gaps(part)} in all"
            yield _of(part, "gap", why, clear_ns=_EDGE_NS)
    for key, (part, where, gaps) in lossy.items():
        path = key[:-1]
        if not any(other[:-1] == path[: len(other) - 1] and len(other) < len(key) for other in lossy):
            why = f"{counted(int(gaps), 'message')} lost above relay {path[-1]!r}, on {where}"
            yield _of(part, "loss_above_relay", why, is_error=True, clear_ns=_EDGE_NS)


def _all_gaps(part: Part) -> str:
    return count(int(part.figure(*part.inside, "received", "gaps")))


# Senders


def full_queues(now: Installation) -> Iterator[Finding]:
    """Find publishers and relays that wait for slow peers or drop for them, and receivers that drop."""
    for part in _answering(now):
        waited = (now.rate(part, "waits") or 0.0) * _WAIT_S
        peers = sorted(part.list("peers"), key=lambda peer: figure(peer, "behind_s"), reverse=True)
        behind_s = figure(peers[0], "behind_s") if peers else 0.0
        slowest = _peer(peers[0]) if behind_s > 0 else "a subscriber"
        if waited >= _WAITING:
            yield _of(part, "full_queue", f"its senders wait {min(1, waited):.0%} of the time for {slowest}")
        elif behind_s >= _BEHIND_S:
            unsent = byte_size(int(figure(peers[0], "unsent_bytes")))
            why = f"{slowest} has taken next to nothing for {behind_s:.1f} s, {unsent} wait for it"
            yield _of(part, "full_queue", why, hold_ns=_HOLD_NS)
        for name, what in (("shared_memory_dropped", "in shared memory"), ("discarded", "at its end")):
            if dropped := now.growth(part, name):
                why = f"{counted(int(dropped), 'message')} dropped {what}, because its queue was full"
                yield _of(part, "full_queue", why, is_error=True, clear_ns=_EDGE_NS)
        if dropped := now.growth(part, *part.inside, "delivery", "dropped"):
            why = f"its policy for slow subscribers dropped {counted(int(dropped), 'delivery')}".replace("ys", "ies")
            yield _of(part, "dropped_messages", why, is_error=True, clear_ns=_EDGE_NS)


def _peer(peer: object) -> str:
    address = peer.get("address") if isinstance(peer, dict) else ""
    return f"the subscriber at {address}" if address else "a subscriber"


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
    causes: frozenset[str]
    consequences: frozenset[str]


_CONSEQUENCES: Final = (
    _Cause(
        frozenset({"stuck_hub", "dead_hub", "stuck_publisher", "dead_publisher"}),
        frozenset({"silent_line", "late_publisher", "not_ready", "late_blocks"}),
    ),
    _Cause(frozenset({"silent_line", "late_publisher"}), frozenset({"not_ready"})),
    _Cause(frozenset({"loss_above_relay"}), frozenset({"gap"})),
    _Cause(frozenset({"clock_step"}), frozenset({"late_blocks", "late_publisher"})),
    _Cause(frozenset({"full_queue"}), frozenset({"late_publisher"})),
    _Cause(frozenset({"slow_callback"}), frozenset({"late_blocks"})),
)
"""Kinds that explain other kinds in the same feed."""


def without_consequences(found: Iterable[Finding], present: Iterable[Condition]) -> list[Finding]:
    """Return findings that no other finding or present condition of their feed explains."""
    found = list(found)
    kinds = {(each.feed, each.kind) for each in found} | {(each.feed, each.kind) for each in present}
    hidden = {
        (feed, consequence)
        for cause in _CONSEQUENCES
        for feed, kind in kinds
        if kind in cause.causes
        for consequence in cause.consequences
    }
    return [each for each in found if (each.feed, each.kind) not in hidden]
