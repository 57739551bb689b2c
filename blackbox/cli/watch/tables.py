"""The tables of `blackbox top`: columns and cells that fit on 80 columns, made from a view. No terminal, no I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from blackbox.numbers import NOTHING, byte_rate, byte_size, count, duration, long_time, rate
from blackbox.services.monitor.watch.conditions import Condition, printable
from blackbox.services.monitor.watch.view import (
    ConsumerRow,
    PeerRow,
    ProcessRow,
    SliceRow,
    TopicRow,
    View,
)
from blackbox.timestamps import clock_text


class Column(NamedTuple):
    """A column: its title, its width, how a row is shown in it, and the value by which rows are sorted."""

    title: str
    width: int
    cell: Callable[[Any], str]
    value: Callable[[Any], Any]
    is_left: bool = False


class Tab(NamedTuple):
    """One table."""

    name: str
    rows: Callable[[View], tuple[Any, ...]]
    columns: tuple[Column, ...]


def _maybe(value: float | None, show: Callable[[float], str]) -> str:
    return NOTHING if value is None else show(value)


def _number(value: float | None) -> float:
    return -1.0 if value is None else value


def _lines(row: SliceRow) -> str:
    marks = {"alive": "+", "closed": "x", "silent": "!", "not heard": "?"}
    return " ".join(f"{name}{marks.get(state, state)}" for name, state in row.lines.items())


def _numbers(title: str, width: int, name: str, show: Callable[[float], str]) -> Column:
    """Return a column of a number that may be missing."""
    return Column(title, width, lambda row: _maybe(getattr(row, name), show), lambda row: _number(getattr(row, name)))


def _texts(title: str, width: int, name: str) -> Column:
    return Column(
        title, width, lambda row: printable(str(getattr(row, name))), lambda row: getattr(row, name), is_left=True
    )


def _ago(row: Any) -> str:
    return f"{long_time(max(0.0, (time.time_ns() - row.kept_ns) / 1e9))} ago"


def _depth(row: ProcessRow) -> str:
    return "  " * min(row.depth, 6) + printable(row.label)


def _whole(value: float) -> str:
    return count(int(value))


SLICES: Final = Tab(
    "slices",
    lambda view: view.slices,
    (
        _texts("feed", 8, "feed"),
        _numbers("slice", 5, "slice_id", _whole),
        Column("lines", 6, _lines, _lines, is_left=True),
        _numbers("rate", 8, "messages_per_second", rate),
        _numbers("bytes", 8, "bytes_per_second", byte_rate),
        _numbers("lag50", 7, "lag_p50_ns", duration),
        _numbers("lag99", 7, "lag_p99_ns", duration),
        _numbers("age99", 7, "age_p99_ns", duration),
        _numbers("lost", 6, "lost", _whole),
        _numbers("fixed", 5, "repaired", _whole),
    ),
)
PROCESSES: Final = Tab(
    "processes",
    lambda view: view.processes,
    (
        Column("process", 22, _depth, lambda row: (row.feed, row.name), is_left=True),
        _texts("state", 11, "state"),
        _numbers("rate", 8, "messages_per_second", rate),
        _numbers("lag99", 7, "lag_p99_ns", duration),
        _numbers("lost", 6, "lost", _whole),
        _numbers("fixed", 5, "repaired", _whole),
        _numbers("dropped", 7, "dropped", _whole),
        _numbers("peers", 6, "peers", _whole),
    ),
)
PEERS: Final = Tab(
    "peers",
    lambda view: view.peers,
    (
        _texts("of", 22, "process"),
        Column("line", 5, lambda row: f"{row.slice_id}{row.line}", lambda row: (row.slice_id, row.line), is_left=True),
        _texts("address", 21, "address"),
        _numbers("prefixes", 8, "subscriptions", _whole),
        _numbers("behind", 7, "behind_s", lambda seconds: f"{seconds:.1f} s"),
        _numbers("unsent", 9, "unsent_bytes", lambda octets: byte_size(int(octets))),
    ),
)
CONSUMERS: Final = Tab(
    "consumers",
    lambda view: view.consumers,
    (
        _texts("consumer", 27, "name"),
        _texts("feed", 12, "feed"),
        _numbers("behind", 12, "behind_messages", _whole),
        _numbers("in time", 9, "behind_s", lambda seconds: duration(seconds * 1e9)),
        Column("stored", 15, _ago, lambda row: row.kept_ns),
    ),
)
TOPICS: Final = Tab(
    "topics",
    lambda view: view.topics,
    (
        _texts("topic", 40, "topic"),
        _texts("feed", 12, "feed"),
        _numbers("rate", 12, "messages_per_second", rate),
        _numbers("share", 8, "share", lambda share: f"{share:.1%}"),
    ),
)
CONDITIONS: Final = Tab(
    "conditions",
    lambda view: view.conditions,
    (
        _texts("kind", 17, "kind"),
        Column("since", 9, lambda row: clock_text(row.since_ns, "UTC"), lambda row: row.since_ns, is_left=True),
        _texts("who", 22, "who"),
        _texts("why", 200, "why"),
    ),
)
TABS: Final = (SLICES, PROCESSES, PEERS, CONSUMERS, TOPICS, CONDITIONS)
Row = SliceRow | ProcessRow | PeerRow | ConsumerRow | TopicRow | Condition


def rows_of(tab: Tab, view: View, *, sort: int | None = None, text: str = "") -> list[Row]:
    """Return the rows of a table that contain a text, sorted by a column: largest first, texts from A on."""
    rows = list(tab.rows(view))
    if text:
        low = text.lower()
        rows = [row for row in rows if any(low in column.cell(row).lower() for column in tab.columns)]
    if sort is not None:
        column = tab.columns[sort % len(tab.columns)]
        rows.sort(key=column.value, reverse=not column.is_left)
    return rows


def headline(view: View) -> str:
    """Return the totals in one line."""
    speed = NOTHING if view.bytes_per_second is None else byte_rate(view.bytes_per_second)
    lag = _maybe(view.lag_p99_ns, duration)
    return (
        f"{clock_text(view.now_ns, 'UTC')}  {rate(view.messages_per_second)}  {speed}  lag p99 {lag}  "
        f"lost {count(view.lost)}  repaired {count(view.repaired)}"
    )


def news(view: View, most: int = 3) -> list[str]:
    """Return what is wrong, the worst first, in at most `most` lines."""
    lines = [f"{each.kind.replace('_', ' ')}: {each.who}: {each.why}" for each in view.conditions]
    if len(lines) > most:
        lines[most - 1 :] = [f"and {len(lines) - most + 1} more: press 6"]
    return lines


def details(row: Row) -> list[tuple[str, str]]:
    """Return all fields of a row, for the screen of one row."""
    return [(name, printable(_shown(name, getattr(row, name)))) for name in row.__struct_fields__]


def _shown(name: str, value: Any) -> str:
    if value is None:
        return NOTHING
    if name in ("since_ns", "kept_ns"):
        return f"{clock_text(value, 'UTC', 3)} UTC" if value else NOTHING
    if name.endswith("_ns"):
        return duration(value)
    if name.endswith("bytes_per_second"):
        return byte_rate(value)
    if name.endswith("per_second"):
        return rate(value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    if isinstance(value, tuple | list):
        return " ".join(map(str, value)) or NOTHING
    return f"{value:,}" if isinstance(value, int) else str(value)
