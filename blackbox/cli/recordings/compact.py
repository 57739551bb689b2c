"""`blackbox compact`: rewrite a recording in larger blocks, compressed on request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blackbox.cli.ui.days import Compression, RecordingArgument, lose_damage, open_day
from blackbox.cli.ui.options import JsonOption
from blackbox.cli.ui.progress import reading
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import print_json, stdout, titled, values_table
from blackbox.numbers import count

if TYPE_CHECKING:
    from blackbox.archive.maintain.compact import Compacted


def compact(
    recording: RecordingArgument,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The directory to create.")],
    compression: Annotated[
        Compression,
        typer.Option(
            help="Compression of blocks: `none` for fast replays, `lz4` for quick packing, `zstd` for small size."
        ),
    ] = Compression.NONE,
    block_kib: Annotated[
        int, typer.Option(metavar="KIB", min=1, max=65_536, help="Merge blocks up to this size.")
    ] = 256,
    as_json: JsonOption = False,
) -> None:
    """Copy a recorded day with small blocks merged into large ones, compressed on request.

    Consecutive blocks of one key and one run of the publisher become one block if they are within a second. Messages
    do not change, and gaps stay gaps. RECORDING is not changed. The copy gets its name after it was read again and
    compared with RECORDING; then RECORDING can be removed.

    JSON has `recording`, `out`, `messages`, and `blocks` and `file_bytes`, `before` and `after`.

    For example:

    blackbox compact recordings/nasdaq/2026-11-20 --out archive/2026-11-20 --compression zstd

    blackbox compact recordings/nasdaq/2026-11-20 --out quick/2026-11-20 --compression lz4 --block-kib 1024

    blackbox compact recordings/nasdaq/2026-11-20 --out merged             faster to replay, same size
    """
    with exit_statuses():
        from blackbox.archive.maintain.compact import compact as write

        day = open_day(recording)
        with reading(f"reading {recording}, writing and reading {out}", 2 * day.file_bytes) as progress:
            done = write(day, out, compression=compression.value, block_bytes=block_kib << 10, progress=progress)
        if as_json:
            print_json(
                {
                    "recording": str(recording),
                    "out": str(out),
                    "messages": done.messages,
                    "blocks": {"before": done.blocks_before, "after": done.blocks_after},
                    "file_bytes": {"before": done.file_bytes_before, "after": done.file_bytes_after},
                }
            )
            lose_damage(recording, day.damage, out)
            return
        table = values_table(
            [
                ("messages", count(done.messages), "equal before and after: each was compared"),
                ("blocks before", count(done.blocks_before)),
                ("blocks after", count(done.blocks_after)),
                ("bytes before", count(done.file_bytes_before)),
                ("bytes after", count(done.file_bytes_after), f"{_change(done)}, indexes included"),
            ]
        )
        stdout.print(titled(f"compacted {recording} to {out}", table))
        lose_damage(recording, day.damage, out)


def _change(done: Compacted) -> str:
    before, after = done.file_bytes_before, done.file_bytes_after
    smaller = before / after if after else 1.0
    return f"{smaller:.2f} times smaller" if smaller >= 1 else f"{after / before:.2f} times larger"
