"""`blackbox compact`: a recording in larger blocks, packed if that is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blackbox.cli.days import Compression, RecordingArgument, damaged_text, open_day, reading
from blackbox.cli.status import exit_statuses, lose
from blackbox.cli.terminal import count, stdout, titled, values_table


def compact(
    recording: RecordingArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The directory to make.")],
    compression: Annotated[
        Compression,
        typer.Option(help="Of the blocks' bodies: `none`, replays use them as they are; `lz4`, quick; `zstd`, small."),
    ] = Compression.NONE,
    block_kib: Annotated[
        int, typer.Option(metavar="KIB", min=1, max=65_536, help="Merge blocks up to this size.")
    ] = 256,
) -> None:
    """Write a recorded day anew: small blocks merged into large ones, and packed.

    Blocks of one key and one run of the publisher that follow each other within a second become one. The messages stay
    what they are, and gaps stay gaps. RECORDING is not changed. OUT gets its name only when it has been read again and
    holds the same messages; then it is safe to remove RECORDING.

    For example:

    blackbox compact recordings/nasdaq/2026-11-20 archive/2026-11-20 --compression zstd

    blackbox compact recordings/nasdaq/2026-11-20 archive/2026-11-20 --compression lz4 --block-kib 1024

    blackbox compact recordings/nasdaq/2026-11-20 merged                faster to replay, as large
    """
    with exit_statuses():
        from blackbox.journal.compact import compact as write

        day = open_day(recording)
        with reading(f"reading {recording}, writing and reading {out}", 2 * day.file_bytes) as progress:
            done = write(day, out, compression=compression.value, block_bytes=block_kib << 10, progress=progress)
        ratio = done.file_bytes_before / done.file_bytes_after if done.file_bytes_after else 1.0
        table = values_table(
            [
                ("messages", count(done.messages), "the same before and after: each was compared"),
                ("blocks before", count(done.blocks_before)),
                ("blocks after", count(done.blocks_after)),
                ("bytes before", count(done.file_bytes_before)),
                ("bytes after", count(done.file_bytes_after), f"{ratio:.2f} times smaller, indexes included"),
            ]
        )
        stdout.print(titled(f"compacted {recording} to {out}", table))
        if day.damage:
            lose(f"{recording}: {damaged_text(day.damage)}; they are not in {out}: see `blackbox verify`")
