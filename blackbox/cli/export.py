"""`blackbox export`: a recording in the venue's own file format."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from blackbox.cli.days import RecordingArgument, StartOption, StopOption, damaged_text, open_day, time_ns
from blackbox.cli.status import exit_statuses, lose, warn
from blackbox.cli.terminal import count, megabytes, rate, stderr, stdout, titled, values_table


def export(
    recording: RecordingArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; packed if it ends in .gz or .zst.")],
    start: StartOption = None,
    stop: StopOption = None,
) -> None:
    """Write a recorded day back to the venue's own file format.

    ITCH 5.0 becomes a file of messages, each behind its length (2 bytes, big-endian), as NASDAQ gives it away: the very
    bytes that were published. IEX becomes message blocks of IEX-TP (2 bytes of length, little-endian), without headers.
    Tape becomes a zip archive of the CSV files that were published, DBN the very stream of
    metadata and records, Binance the lines of frames.

    The messages of one slice keep their order. Those of several slices are merged by market time; messages of equal
    times in different slices stand in an order that is always the same, but may not be that of the venue.

    For example:

    blackbox export recordings/nasdaq/2026-11-20 20261120.itch

    blackbox export recordings/nasdaq/2026-11-20 20261120.itch.gz

    blackbox export recordings/nasdaq/2026-11-20 open.itch --start 09:30 --stop 09:35
    """
    with exit_statuses():
        from blackbox.export import export as write

        day = open_day(recording)
        first, end = time_ns(day, start, "--start"), time_ns(day, stop, "--stop")
        began = time.monotonic()
        with stderr.status("writing") as shown:
            done = write(day, file, first, end, lambda many: shown.update(f"written {count(many)} messages"))
        elapsed_s = time.monotonic() - began
        stdout.print(
            titled(
                f"exported {recording} to {file}",
                values_table(
                    [
                        ("schema", day.feed.schema),
                        ("messages", count(done.messages)),
                        ("bytes", count(done.file_bytes), "of the file"),
                        ("rate", rate(done.messages, elapsed_s)),
                        ("file", megabytes(done.file_bytes, elapsed_s)),
                    ]
                ),
            )
        )
        where, better = "slices", "of one slice"
        if day.feed.key_bytes:
            where, better = "slices or keys", "of one slice without keys"
        if done.ties:
            warn(
                f"{count(done.ties)} messages of equal times in different {where}: their order is not certain; "
                f"a feed {better} keeps it"
            )
        if done.late:
            warn(
                f"{count(done.late)} messages have an earlier time than one before them: their place among those of "
                f"other {where} is not certain; a feed {better} keeps it"
            )
        if day.damage:
            lose(f"{recording}: {damaged_text(day.damage)}; they are not in {file}: see `blackbox verify`")
