"""Two consoles and two kinds of table for printing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, Any, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from blackbox.cli.ui.log import Level, is_json, json_line, json_text

_FILE_COLUMNS: Final = 140
Shown = str | Text
"""A cell of a table: plain text, or text with a style."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Print nothing more. The command continues, so that its exit status is right."""
        self.quiet = True
        drop_output(self.file)


def drop_output(*streams: IO[str]) -> None:
    """Drop buffered output, or Python would try to write it again at exit."""
    for stream in streams:
        with suppress(OSError):  # it has no descriptor
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _console(stderr: bool) -> Console:
    console = _Console(stderr=stderr, markup=False, emoji=False)  # topics and names from others are shown literally
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _FILE_COLUMNS
    return console


stdout = _console(stderr=False)
"""Results."""
stderr = _console(stderr=True)
"""Progress, warnings and errors."""

LAG: Final = "lag: time from the publisher's sending to the callback"
AGE: Final = "age: the same, from when it was handed to the publisher"
"""Explanation below every table with a lag."""


_STYLES: Final = {Level.ERROR: "bold red", Level.WARNING: "yellow"}


def say(text: str, level: Level = Level.INFO, *, before: str = "") -> None:
    """Print `before` and the text as a line on stderr, of any length; with `--log-format json` an object."""
    if is_json():
        line = json_line(level, text, "blackbox.cli", time.time())
        stderr.out(line, highlight=False)
    else:
        stderr.print(f"{before}{text}", style=_STYLES.get(level), highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a result as one line of JSON; paths and similar types as text."""
    try:
        typer.echo(json_text(value))
    except BrokenPipeError:
        stdout.on_broken_pipe()


def check_output() -> None:
    """Raise BrokenPipeError if the reader of stdout has closed it. For commands that print until they are stopped."""
    if stdout.quiet:
        raise BrokenPipeError


def values_table(values: Iterable[tuple[str, Shown] | tuple[str, Shown, str]]) -> Table:
    """Return a table of (name, value) or (name, value, explanation)."""
    table = Table(show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for row in values:
        table.add_row(*row)
    return table


def columns_table(names: Iterable[str], left: int = 1) -> Table:
    """Return an empty table with these columns: the first `left` aligned left, the others right."""
    table = Table(header_style="cyan")
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place < left else "right", no_wrap=True)
    return table


def bad_if(wrong: bool, value: str) -> Shown:
    """Return the value, in red if `wrong`."""
    return Text(value, style="bold red") if wrong else value


def titled(title: str, table: RenderableType) -> RenderableType:
    """Put a title above a table; it may be wider than the table."""
    return Group(Text(title, style="bold"), table)
