"""What the commands print with: two consoles, a table of names and values, numbers as people read them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from blackbox.report.numbers import count, duration, scaled

__all__ = [
    "LAG",
    "NOTHING",
    "bad_if",
    "columns_table",
    "count",
    "duration",
    "long_time",
    "megabytes",
    "rate",
    "say",
    "scaled",
    "stderr",
    "stdout",
    "titled",
    "values_table",
]

_FILE_COLUMNS: Final = 140


def _console(stderr: bool) -> Console:
    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _FILE_COLUMNS
    return console


stdout = _console(stderr=False)
"""Results."""
stderr = _console(stderr=True)
"""Progress, warnings and errors."""

NOTHING: Final = "-"
LAG: Final = "lag: time from the publisher's sending to the callback"
"""What the word means in every table."""


def say(text: str, style: str | None = None) -> None:
    """Print a line of plain text on stderr, however long."""
    stderr.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def rate(messages: float, seconds: float) -> str:
    """Messages a second, with three digits: `25.3 M/s`."""
    return f"{scaled(messages / seconds)}/s" if seconds > 0 else NOTHING


def megabytes(octets: float, seconds: float) -> str:
    """`812 MB/s`."""
    return f"{octets / seconds / 1e6:,.0f} MB/s" if seconds > 0 else NOTHING


def long_time(seconds: float) -> str:
    """In hours, minutes and seconds: `1 h 04 min 05 s`, `4 min 48 s`, `12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes:02} min {rest:02} s"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def values_table(values: Iterable[tuple[str, str] | tuple[str, str, str]]) -> Table:
    """A table of names and values, and what those mean that do not say it themselves. All may have markup."""
    table = Table(show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for row in values:
        table.add_row(*row)
    return table


def columns_table(names: Iterable[str], left: int = 1) -> Table:
    """A table with these columns, the first `left` of them to the left, the others to the right."""
    table = Table(header_style="cyan")
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place < left else "right", no_wrap=True)
    return table


def bad_if(wrong: bool, value: str) -> str:
    """The value in red when something is wrong with it."""
    return f"[bold red]{value}[/]" if wrong else value


def titled(title: str, table: RenderableType) -> RenderableType:
    """Something with a title above it, which may be wider."""
    return Group(Text(title, style="bold"), table)
