"""`blackbox verify`: check a recording for damage and gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from blackbox.cli.ui.days import (
    RecordingArgument,
    damage_objects,
    damage_text,
    file_of,
    gap_objects,
    local_time,
    lose_what_is_wrong,
    open_day,
    without_warnings,
)
from blackbox.cli.ui.options import JsonOption
from blackbox.cli.ui.progress import reading
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import print_json, say, stdout, titled
from blackbox.notebook import escaped
from blackbox.numbers import byte_size, count

if TYPE_CHECKING:
    from blackbox.archive.files.segment import Damage
    from blackbox.archive.recording import Recording
    from blackbox.block.gap import Gap

_GAPS_SHOWN = 20


def verify(recording: RecordingArgument, as_json: JsonOption = False) -> None:
    """Read a recorded day and check checksums, structure and sequence numbers.

    Prints each damaged part (file, offset, bytes, messages) and each gap in the sequence numbers, and exits with status
    4 if there are any. Changes nothing. A day that is still being recorded may end in a half-written block.

    JSON has `recording`, `file_bytes`, `missing` (messages), and all of `damage` and `gaps`.

    For example:

    blackbox verify recordings/nasdaq/2026-11-20

    blackbox verify recordings/nasdaq/2026-11-20 && rm 12302019.NASDAQ_ITCH50.gz

    for day in recordings/nasdaq/*/; do blackbox verify "$day"; done

    blackbox verify recordings/nasdaq/2026-11-20 --json | jq .gaps
    """
    with exit_statuses(), without_warnings():
        day = open_day(recording)
        with reading(f"reading {recording}", day.file_bytes) as progress:
            damage, gaps, _ = day.examine(progress)
        if as_json:
            print_json(
                {
                    "recording": str(recording),
                    "file_bytes": day.file_bytes,
                    "missing": sum(gap.count for gap in gaps),
                    "damage": damage_objects(day, damage),
                    "gaps": gap_objects(gaps),
                }
            )
        if damage and not as_json:
            stdout.print(titled("damage", damage_table(day, damage)))
        if gaps and not as_json:
            stdout.print(titled("missing", gaps_table(day, gaps)))
        lose_what_is_wrong(recording, damage_text(damage), [gap.count for gap in gaps])
        say(f"{recording}: {byte_size(day.file_bytes)}, nothing is damaged, nothing is missing")


def damage_table(day: Recording, damage: list[Damage]) -> Table:
    """Return a table of the damaged parts; paths are relative to the day's directory."""
    table = Table(header_style="cyan")
    for name in ("file", "offset", "bytes", "messages", "what is wrong"):
        table.add_column(name, justify="right" if name in {"offset", "bytes", "messages"} else "left", overflow="fold")
    for each in damage:
        table.add_row(
            str(file_of(day, each)),
            count(each.offset),
            count(each.size),
            count(each.messages) if each.messages else "?",
            each.what,
        )
    return table


def gaps_table(day: Recording, gaps: list[Gap]) -> Table:
    """Return a table of the largest gaps."""
    table = Table(header_style="cyan")
    for name in ("slice", "epoch", "key", "first missing", "messages", "before"):
        table.add_column(name, justify="left" if name in {"epoch", "key"} else "right", overflow="fold")
    for gap in sorted(gaps, key=lambda gap: -gap.count)[:_GAPS_SHOWN]:
        table.add_row(
            str(gap.slice_id),
            str(gap.epoch),
            escaped(gap.key.decode(errors="backslashreplace")) or "-",
            count(gap.sequence),
            count(gap.count),
            local_time(day, gap.ts_out),
        )
    if len(gaps) > _GAPS_SHOWN:
        table.caption = f"the largest {_GAPS_SHOWN} of {count(len(gaps))}"
    return table
