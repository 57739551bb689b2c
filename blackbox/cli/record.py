"""`blackbox record`: append a feed to journals on disk, until it is told to end."""

from __future__ import annotations

from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from blackbox.cli.days import Compression
from blackbox.cli.feeds import FeedOption, feed_text, load_feed
from blackbox.cli.follow import follow
from blackbox.cli.status import exit_statuses, lose
from blackbox.cli.terminal import count, say


class Fsync(StrEnum):
    """When a recorder makes durable what it wrote."""

    NEVER = "never"
    INTERVAL = "interval"
    BLOCK = "block"


def record(
    feed: FeedOption = None,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where recordings are; made if missing. This one goes to DIR/FEED/DATE."),
    ] = Path("recordings"),
    fsync: Annotated[
        Fsync,
        typer.Option(
            help="What the machine's own death may cost: `interval` the last second; `block` nothing, but each block "
            "waits for the disk; `never` what the system had not written, some 30 s. The recorder's death alone costs "
            "less than 1 MiB a slice."
        ),
    ] = Fsync.INTERVAL,
    compression: Annotated[
        Compression,
        typer.Option(help="Of blocks. `none` is fastest to record and to replay. Needs lz4 or zstandard installed."),
    ] = Compression.NONE,
    segment_mib: Annotated[
        int, typer.Option(metavar="N", min=1, max=1 << 20, help="Size, in MiB, at which the next file is begun.")
    ] = 256,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="End when every publisher has closed and all it sent was recorded.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for the publishers to confirm.")
    ] = 60.0,
) -> None:
    """Record a feed: every block as it came, a directory a day, a journal a slice.

    Both lines of a slice are recorded once. It can be read while it is written, and a recorder that was killed is just
    started again: it cuts what was not written whole, says so, and goes on in a new file. A feed has one recorder at a
    time in a directory. Ctrl-C ends it: all that was received is recorded, then the totals are printed.

    For example:

    blackbox record                             the feed `local` to recordings/local, until Ctrl-C

    blackbox record --until-end                 end with the publisher; status 4 if anything was lost

    blackbox record --feed configs/nasdaq.toml --out /data/recordings --fsync block

    blackbox record --compression zstd --segment-mib 1024
    """
    with exit_statuses():
        from blackbox.cli.recorded import Recorded
        from blackbox.recorder import Recorder

        shape = load_feed(feed)
        recorder = Recorder(
            shape, out, fsync=fsync.value, compression=compression.value, segment_bytes=segment_mib << 20
        )
        recorded = Recorded(recorder)
        say(f"waiting for the publishers of {feed_text(shape)}")
        with ExitStack() as stack:
            recorder.start(timeout)
            stack.callback(recorded.print_totals)
            say(f"recording to {recorder.directory}")
            screen = stack.enter_context(recorded.screen())
            follow(recorder, screen.show, until_end=until_end)
        gaps = recorder.statistics().received.gaps
        if until_end and gaps:
            lose(f"{count(gaps)} messages never came")
