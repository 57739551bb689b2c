"""A recorded day on the command line: its argument, its times, and a bar while it is read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from zoneinfo import ZoneInfo

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from blackbox.cli.terminal import NOTHING, count, say, stderr

if TYPE_CHECKING:
    from blackbox.journal.segment import Damage
    from blackbox.recording import Recording

RecordingArgument = Annotated[
    Path,
    typer.Argument(metavar="RECORDING", help="A recorded day: the directory with the `manifest.json`."),
]
StartOption = Annotated[
    str | None,
    typer.Option(
        "--start",
        metavar="TIME",
        help="First market time: HH:MM[:SS[.fraction]] of the session, an ISO date-time, or ns since 1970.",
        show_default=False,
    ),
]
StopOption = Annotated[
    str | None,
    typer.Option("--stop", metavar="TIME", help="End of the market times, not included.", show_default=False),
]
_MANIFEST: Final = "manifest.json"
_DATE_DIGITS: Final = 8
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Compression(StrEnum):
    """How bodies are packed."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


def days_of(path: Path) -> list[Path]:
    """The days of a feed's directory, in their order; none when it is a day itself, or holds no recording."""
    return [] if (path / _MANIFEST).exists() else sorted(found.parent for found in path.glob(f"*/{_MANIFEST}"))


def open_day(path: Path) -> Recording:
    """The recording of a day's directory. Raises JournalError."""
    from blackbox.recording import Recording

    return Recording.open(path)


def time_ns(recording: Recording, text: str | None, option: str) -> int | None:
    """A time of an option, ns since the epoch. Raises BadParameter, which ends the command with status 2."""
    if text is None:
        return None
    try:
        return recording.time(int(text) if text.isdecimal() and len(text) > _DATE_DIGITS else text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def local_time(recording: Recording, ns: int | None, *, date: bool = False) -> str:
    """A time in the feed's time zone, to the millisecond."""
    if not ns:
        return NOTHING
    local = (_EPOCH + timedelta(microseconds=ns // 1_000)).astimezone(ZoneInfo(recording.feed.time_zone))
    return f"{local:%Y-%m-%d %H:%M:%S}"[0 if date else 11 :] + f".{local.microsecond // 1_000:03d}"


@contextmanager
def told_elsewhere() -> Iterator[None]:
    """Do not warn of damage: the command shows it all."""
    log = logging.getLogger("blackbox.recording")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def reading(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, where that is a terminal; call what it gives with the bytes so far."""
    if not stderr.is_terminal:
        say(what)
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda size: progress.update(task, completed=size)


@contextmanager
def counting(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """As `reading`, of messages; without a total, only that it goes on."""
    if not stderr.is_terminal:
        say(what)
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}"), TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True) as progress:
        task = progress.add_task(what, total=total, done="")
        yield lambda many: progress.update(task, completed=many, done=f"{count(many)} messages")


def damaged_text(damage: list[Damage]) -> str:
    """How much is damaged, in words."""
    lost = sum(each.messages for each in damage)
    parts = parts_text(len(damage))
    return f"{parts} with {lost:,} messages or more" if lost else parts


def parts_text(damaged: int) -> str:
    """So many damaged parts, in words."""
    return f"{damaged} part{'s' * (damaged != 1)} damaged"


def missing_text(counts: Sequence[int]) -> str:
    """How many messages are missing, given those of each gap, in words."""
    missing = sum(counts)
    gaps = f"{count(len(counts))} gap{'s' * (len(counts) != 1)}"
    return f"{count(missing)} message{'s' * (missing != 1)} missing in {gaps}"
