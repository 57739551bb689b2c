"""HTML that a notebook shows for an object: a title, its facts, and tables with its first parts.

All text is escaped and cut, since topics, names and payloads come from others. There is no script and no style sheet:
notebooks have their own style for tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import tzinfo
from html import escape
from itertools import islice
from typing import Final, NamedTuple

from blackbox.numbers import NOTHING, count
from blackbox.timestamps import clock_text, date_of

Cell = str | bytes | int | None
"""An integer is a count, with commas. None: unknown."""

MOST_ROWS: Final = 10
_MOST_CHARACTERS: Final = 100
_LEFT: Final = ' style="text-align: left"'


class Rows(NamedTuple):
    """A table. The notebook shows the first of its rows, at most `MOST_ROWS`."""

    columns: Sequence[str]
    cells: Iterable[Sequence[Cell]]
    total: int
    """Number of rows, shown or not."""
    noun: str
    """The noun for the rows, in the plural."""


def view(title: str, facts: Mapping[str, Cell], *tables: Rows) -> str:
    """Return an object as HTML. Tables without rows are left out."""
    rows = "".join(f"<tr><th{_LEFT}>{escape(name)}</th>{_cell(value)}</tr>" for name, value in facts.items())
    parts = [f"<strong>{escape(text(title))}</strong>", f'<table class="dataframe"><tbody>{rows}</tbody></table>']
    return f"<div>{''.join([*parts, *map(_table, tables)])}</div>"


def _table(rows: Rows) -> str:
    cells = list(islice(rows.cells, MOST_ROWS))
    if not cells:
        return ""
    head = "".join(f"<th{_LEFT}>{escape(text(name))}</th>" for name in rows.columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in cells)
    left_out = f"<small>{len(cells)} of {rows.total:,} {rows.noun}</small>" if rows.total > len(cells) else ""
    return f'<table class="dataframe"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{left_out}'


def _cell(value: Cell) -> str:
    return f"<td{'' if isinstance(value, int) else _LEFT}>{escape(text(value))}</td>"


def text(value: Cell) -> str:
    """Return a cell as one line of printable characters, cut if it is long. Bytes are read as UTF-8."""
    if value is None:
        return NOTHING
    if isinstance(value, int):
        return count(value)
    start = value[: 4 * _MOST_CHARACTERS + 4]  # the rest of a long payload is not decoded
    shown = escaped(start if isinstance(start, str) else start.decode(errors="backslashreplace"))
    return shown if len(shown) <= _MOST_CHARACTERS else f"{shown[:_MOST_CHARACTERS]}…"


def escaped(text: str) -> str:
    """Return text of others with its unprintable characters escaped: they could control a terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def moment(ns: int | None, zone: str | tzinfo, digits: int = 6) -> str:
    """Return date and time in a zone; `-` for None or 0: unknown."""
    return f"{date_of(ns, zone)} {clock_text(ns, zone, digits)}" if ns else NOTHING


def period(first_ns: int | None, last_ns: int | None, zone: str | tzinfo) -> str:
    """Return the first and the last time in a zone, and the zone; `-` if they are unknown."""
    if not first_ns or not last_ns:
        return NOTHING
    last = moment(last_ns, zone) if date_of(first_ns, zone) != date_of(last_ns, zone) else clock_text(last_ns, zone, 6)
    return f"{moment(first_ns, zone)} to {last}, {zone}"
