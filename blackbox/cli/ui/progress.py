"""Show a command's progress: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, ParamSpec

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from blackbox.cli.ui.terminal import say, stderr
from blackbox.native.system.limits import start_thread
from blackbox.numbers import counted

LINE_EVERY_S: Final = 2.0
"""Seconds between two lines without a terminal."""
TEXT: Final = TextColumn("{task.fields[text]}", markup=False)
"""Column of a bar that shows the field `text`."""
_TICK_S: Final = 0.1

P = ParamSpec("P")


def at_most_every(seconds: float, show: Callable[P, object], *, at_once: bool = False) -> Callable[P, None]:
    """Return `show` limited to one call per `seconds`. Unless `at_once`, the first call waits as well."""
    last = float("-inf") if at_once else time.monotonic()

    def show_if_due(*args: P.args, **fields: P.kwargs) -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            last = time.monotonic()
            show(*args, **fields)

    return show_if_due


@contextmanager
def ticking(show: Callable[[], object], every_s: float = _TICK_S) -> Iterator[None]:
    """Call `show` every `every_s` seconds in a separate thread while the caller is busy."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(every_s):
            show()

    thread = threading.Thread(target=run, name="blackbox-ticker", daemon=True)
    start_thread(thread)
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def bar(what: str, total: int | None, *columns: ProgressColumn) -> Iterator[Callable[..., None]]:
    """Show a bar on stderr. Yield a function to move it, which takes `completed`, `text` and rich's own fields."""
    with Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), *columns, console=stderr, transient=True
    ) as progress:
        yield partial(progress.update, progress.add_task(what, total=total, text=""))


@contextmanager
def reading(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar of bytes, or one line without a terminal. Yield a function to call with the bytes read so far."""
    with _bar_or_line(what, total, DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()) as move:
        yield lambda octets: move(completed=octets)


@contextmanager
def counting(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar of messages, as `reading` does for bytes; without a total it only shows activity."""
    with _bar_or_line(what, total, TEXT, TimeRemainingColumn()) as move:
        yield lambda messages: move(completed=messages, text=counted(messages, "message"))


@contextmanager
def _bar_or_line(what: str, total: int | None, *columns: ProgressColumn) -> Iterator[Callable[..., None]]:
    if stderr.is_terminal:
        with bar(what, total, *columns) as move:
            yield move
    else:
        say(what)
        yield _ignore


def _ignore(**_fields: Any) -> None:
    """Ignore progress: there is no bar."""
