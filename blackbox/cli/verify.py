"""`blackbox verify`: whether a recording is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from blackbox.cli.days import (
    RecordingArgument,
    damaged_text,
    local_time,
    missing_text,
    open_day,
    reading,
    told_elsewhere,
)
from blackbox.cli.status import exit_statuses, lose
from blackbox.cli.terminal import count, say, stdout, titled

if TYPE_CHECKING:
    from blackbox.journal.census import Gap
    from blackbox.journal.segment import Damage
    from blackbox.recording import Recording

_GAPS_SHOWN = 20


def verify(recording: RecordingArgument) -> None:
    """Read a recorded day and check all of it: checksums, structure, sequence numbers.

    Prints whatever is damaged, by file, place, bytes and messages, and what is missing between the messages that are
    there. Ends with status 4 if there is any of it. Nothing is changed. The end of a day that is being recorded may be
    half written.

    For example:

    blackbox verify recordings/nasdaq/2026-11-20

    blackbox verify recordings/nasdaq/2026-11-20 && rm 12302019.NASDAQ_ITCH50.gz

    for day in recordings/nasdaq/*/; do blackbox verify "$day"; done
    """
    with exit_statuses(), told_elsewhere():
        day = open_day(recording)
        with reading(f"reading {recording}", day.file_bytes) as progress:
            damage, gaps = day.examine(progress)
        if damage:
            stdout.print(titled("damage", damage_table(day, damage)))
        if gaps:
            stdout.print(titled("missing", gaps_table(day, gaps)))
        wrong = [damaged_text(damage)] * bool(damage)
        if gaps:
            wrong.append(missing_text([gap.count for gap in gaps]))
        if wrong:
            lose(f"{recording}: {'; '.join(wrong)}")
        say(f"{recording}: {day.file_bytes / 1e6:,.1f} MB, nothing is damaged, nothing is missing")


def damage_table(day: Recording, damage: list[Damage]) -> Table:
    """Each damaged part; files as they are called within the day's directory."""
    table = Table(header_style="cyan")
    for name in ("file", "offset", "bytes", "messages", "what is wrong"):
        table.add_column(name, justify="right" if name in {"offset", "bytes", "messages"} else "left", overflow="fold")
    for each in damage:
        path = each.path.relative_to(day.path) if each.path.is_relative_to(day.path) else each.path
        table.add_row(
            str(path), count(each.offset), count(each.size), count(each.messages) if each.messages else "?", each.what
        )
    return table


def gaps_table(day: Recording, gaps: list[Gap]) -> Table:
    """The largest gaps."""
    table = Table(header_style="cyan")
    for name in ("slice", "epoch", "key", "first missing", "messages", "before"):
        table.add_column(name, justify="left" if name in {"epoch", "key"} else "right", overflow="fold")
    for gap in sorted(gaps, key=lambda gap: -gap.count)[:_GAPS_SHOWN]:
        table.add_row(
            str(gap.slice_id),
            f"{gap.epoch:016x}",
            gap.key.decode(errors="backslashreplace") or "-",
            count(gap.sequence),
            count(gap.count),
            local_time(day, gap.ts_out),
        )
    if len(gaps) > _GAPS_SHOWN:
        table.caption = f"the largest {_GAPS_SHOWN} of {count(len(gaps))}"
    return table
