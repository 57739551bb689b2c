"""A recorded day on the command line: its argument, its times, and reports of gaps and damage."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from blackbox.cli.ui.status import lose
from blackbox.numbers import NOTHING, counted
from blackbox.timestamps import clock_text, date_of

if TYPE_CHECKING:
    from blackbox.archive.files.segment import Damage
    from blackbox.archive.recording import Recording
    from blackbox.block.gap import Gap

RecordingArgument = Annotated[
    Path,
    typer.Argument(metavar="RECORDING", help="A recorded day: the directory with the `manifest.json`."),
]
RecordingsOption = Annotated[
    Path,
    typer.Option(
        "--out", metavar="DIR", help="Directory of all recordings, made if missing. A day is written to DIR/FEED/DATE."
    ),
]
StartOption = Annotated[
    str | None,
    typer.Option(
        "--start",
        metavar="TIME",
        help="First market time: `09:30` of the session, in the feed's time zone; ISO 8601; or ns since 1970.",
        show_default=False,
    ),
]
StopOption = Annotated[
    str | None,
    typer.Option("--stop", metavar="TIME", help="Market time to stop before.", show_default=False),
]
_MANIFEST: Final = "manifest.json"


class Compression(StrEnum):
    """Compression of the bodies of blocks."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


def days_of(path: Path) -> list[Path]:
    """Return the days in a feed's directory, in order; empty if it is a day itself or holds no recording."""
    return [] if (path / _MANIFEST).exists() else sorted(found.parent for found in path.glob(f"*/{_MANIFEST}"))


def open_day(path: Path) -> Recording:
    """Open the recording in a day's directory. Raises JournalError."""
    from blackbox.archive.recording import Recording

    return Recording.open(path)


def time_ns(recording: Recording, text: str | None, option: str) -> int | None:
    """Return the time given to an option, ns since the epoch. Raises BadParameter (status 2)."""
    if text is None:
        return None
    try:
        return recording.time(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def check_slices(slices: Sequence[int] | None, count: int) -> None:
    """Raise BadParameter (status 2) unless the feed has these slices. `count`: number of its slices."""
    for each in slices or ():
        if each >= count:
            raise typer.BadParameter(f"slice was {each}, expected 0 to {count - 1}", param_hint="--slice")


def local_time(recording: Recording, ns: int | None, *, date: bool = False) -> str:
    """Return a time in the feed's time zone, to the millisecond."""
    if not ns:
        return NOTHING
    zone = recording.feed.time_zone
    return f"{date_of(ns, zone)} " * date + clock_text(ns, zone, 3)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Suppress logging of damage: the command prints it."""
    log = logging.getLogger("blackbox.archive.recording")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def damage_objects(day: Recording, damage: Sequence[Damage]) -> list[dict[str, Any]]:
    """Return the damaged parts for JSON; paths are relative to the day's directory, unknown counts null."""
    return [
        {
            "file": str(file_of(day, each)),
            "offset": each.offset,
            "bytes": each.size,
            "messages": each.messages or None,
            "what": each.what,
        }
        for each in damage
    ]


def file_of(day: Recording, damage: Damage) -> Path:
    """Return the path of a damaged part's file, relative to the day's directory."""
    return damage.path.relative_to(day.path) if damage.path.is_relative_to(day.path) else damage.path


def gap_objects(gaps: Sequence[Gap]) -> list[dict[str, Any]]:
    """Return gaps for JSON; `ts_out` in ns since 1970, of the first block after the gap."""
    return [
        {
            "slice": gap.slice_id,
            "epoch": gap.epoch,
            "key": gap.key.decode(errors="backslashreplace"),
            "sequence": gap.sequence,
            "messages": gap.count,
            "ts_out": gap.ts_out,
        }
        for gap in gaps
    ]


def damage_text(damage: Sequence[Damage]) -> str:
    """Describe the damage; "" if there is no damage."""
    return damaged_parts_text(len(damage), sum(each.messages for each in damage)) if damage else ""


def damaged_parts_text(parts: int, messages: int = 0) -> str:
    """Describe the damage; `messages`: the least number of damaged ones, 0 if unknown."""
    return f"{counted(parts, 'part')} damaged{f' with {messages:,} messages or more' * bool(messages)}"


def missing_text(counts: Sequence[int]) -> str:
    """Describe the missing messages, given the number for each gap."""
    return f"{counted(sum(counts), 'message')} missing in {counted(len(counts), 'gap')}"


def lose_what_is_wrong(recording: Path, damage: str, gaps: Sequence[int]) -> None:
    """Exit with `Status.LOST` and a message if anything is damaged or missing.

    `damage`: description of the damage, "" for none; `gaps`: number of messages of each gap.
    """
    wrong = [damage] * bool(damage) + [missing_text(gaps)] * bool(gaps)
    if wrong:
        lose(f"{recording}: {'; '.join(wrong)}")


def lose_damage(recording: Path, damage: Sequence[Damage], out: Path) -> None:
    """Exit with `Status.LOST` if anything is damaged, with a message that `out` lacks it."""
    if damage:
        lose(f"{recording}: {damage_text(damage)}; they are not in {out}: see `blackbox verify`")
