"""Conditions: what is wrong now, since when; raised after a hold time and cleared by themselves. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from blackbox.receive.alerts import Alert, Severity

MOST_CONDITIONS: Final = 1_000
_CLEAR_NS: Final = 3_000_000_000
"""Time without a finding after which a condition is over."""

_RESTORED_NS: Final = 15_000_000_000
_MOST_TEXT: Final = 1_000


class Finding(NamedTuple):
    """One thing that a rule found wrong in the newest snapshot, or an alert."""

    kind: str
    severity: Severity
    who: str
    """The process or line."""
    feed: str
    where: str
    why: str
    """A sentence with the value and its limit."""
    hold_ns: int = 0
    """Time for which it must be found before it counts."""
    clear_ns: int = _CLEAR_NS
    """Time for which it counts after it was last found."""
    since_ns: int = 0
    """When it began, ns since 1970; 0: when it was first found."""
    slices: frozenset[int] | None = None
    """Slices of the feed that it is about; None: all; empty: it is not about slices."""
    is_explained: bool = False
    """True if another finding explains it: it raises nothing, and hides what it has raised."""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong."""

    kind: str
    severity: Severity
    who: str
    feed: str
    where: str
    why: str
    since_ns: int
    """When it began, ns since 1970."""


class _Held(NamedTuple):
    condition: Condition
    found_ns: int
    """Monotonic time when it was first found."""
    last_ns: int
    """... last found."""
    finding: Finding
    """The last one."""
    is_raised: bool


class Changes(NamedTuple):
    """Conditions that began and that ended."""

    raised: list[Condition]
    cleared: list[Condition]


class Conditions:
    """The present conditions: at most `MOST_CONDITIONS`, further findings are counted in `left_out`.

    Findings of one kind about the same process or line are one condition. One that is explained later is hidden, and
    cleared only when it is over. One thread uses it.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], _Held] = {}
        self.left_out = 0

    def restore(self, conditions: Iterable[Condition], at_ns: int) -> None:
        """Take conditions that were present at the end of an earlier run. They clear if they are not found again."""
        for each in list(conditions)[:MOST_CONDITIONS]:
            texts = each.kind, each.severity, each.who, each.feed, each.where, each.why
            found = Finding(*texts, clear_ns=_RESTORED_NS, slices=frozenset())
            self._held[each.kind, each.who] = _Held(each, at_ns, at_ns, found, is_raised=True)

    @property
    def now(self) -> list[Condition]:
        """The present ones that no other explains: errors first, then in the order in which they began."""
        raised = [each.condition for each in self._held.values() if each.is_raised and not each.finding.is_explained]
        return sorted(raised, key=lambda each: (each.severity != "error", each.since_ns))

    @property
    def raised(self) -> list[Finding]:
        """The last findings of all present ones, explained or not."""
        return [each.finding for each in self._held.values() if each.is_raised]

    def look(self, findings: Iterable[Finding], at_ns: int, now_ns: int) -> Changes:
        """Take what was found at one moment, in monotonic time and in ns since 1970."""
        changes = Changes([], [])
        for finding in findings:
            self._take(finding, at_ns, now_ns, changes)
        for key, held in list(self._held.items()):
            if at_ns - held.last_ns > held.finding.clear_ns or (not held.is_raised and held.last_ns != at_ns):
                del self._held[key]
                if held.is_raised:
                    changes.cleared.append(held.condition)
        return changes

    def _take(self, finding: Finding, at_ns: int, now_ns: int, changes: Changes) -> None:
        key = finding.kind, finding.who
        before = self._held.get(key)
        was_raised = before is not None and before.is_raised
        if finding.is_explained and not was_raised:
            return
        if before is None and len(self._held) >= MOST_CONDITIONS:
            self.left_out += 1
            return
        found_ns = at_ns if before is None else before.found_ns
        since_ns = finding.since_ns or (now_ns if before is None else before.condition.since_ns)
        condition = Condition(
            kind=printable(finding.kind),
            severity=finding.severity,
            who=printable(finding.who),
            feed=printable(finding.feed),
            where=printable(finding.where),
            why=printable(finding.why),
            since_ns=min(since_ns, since_ns if before is None else before.condition.since_ns),
        )
        is_raised = was_raised or at_ns - found_ns >= finding.hold_ns
        if was_raised and before is not None and before.finding.slices is not None and finding.slices is not None:
            finding = finding._replace(slices=finding.slices | before.finding.slices)
        self._held[key] = _Held(condition, found_ns, at_ns, finding, is_raised)
        if is_raised and not was_raised:
            changes.raised.append(condition)


def printable(text: str) -> str:
    """Return text of others without characters that control a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text[:_MOST_TEXT])


_ALERT_CLEAR_NS: Final = {"warning": 5_000_000_000, "error": 60_000_000_000}


def finding_of(alert: Alert) -> Finding:
    """Return an alert of a process as a finding. An error stays for a minute, since its process has ended."""
    where = f"feed {alert.feed}" + ("" if alert.slice_id is None else f" slice {alert.slice_id}")
    return Finding(
        kind=alert.kind,
        severity=alert.severity,
        who=f"{alert.role} {alert.pid} on {alert.host}",
        feed=alert.feed,
        where=where,
        why=alert.text,
        clear_ns=_ALERT_CLEAR_NS[alert.severity],
        slices=None if alert.slice_id is None else frozenset({alert.slice_id}),
        since_ns=alert.since_ns,
    )
