"""`blackbox import`: write sources into dated recordings, without publisher and recorder."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blackbox.cli.ui.days import Compression
from blackbox.cli.ui.feeds import FeedOption, SourceOptions, feed_for, load_feed, open_with_options
from blackbox.cli.ui.status import exit_statuses, lose, warn
from blackbox.cli.ui.terminal import say, stderr, stdout, titled, values_table
from blackbox.report.numbers import byte_rate, count, counted, duration, rate

if TYPE_CHECKING:
    from blackbox.archive.import_days import ImportedDay


def import_(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="What to import: NAME:ARGUMENT.")],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Directory of all recordings: a day is written to OUT/FEED/DATE.")
    ],
    feed: FeedOption = None,
    date: Annotated[
        str | None,
        typer.Option(
            metavar="DATE",
            help="The day of all sources, YYYY-MM-DD. Default: of ITCH and tape the one that the file's name tells, of "
            "other sources those of the messages' times.",
            show_default=False,
        ),
    ] = None,
    compression: Annotated[
        Compression,
        typer.Option(help="Of the blocks' bodies: `none` for fast replays, `zstd` for small size."),
    ] = Compression.NONE,
    block_kib: Annotated[int, typer.Option(metavar="KIB", min=1, max=65_536, help="Size of blocks.")] = 256,
    replace: Annotated[bool, typer.Option("--replace", help="Write days anew that are there already.")] = False,
    threads: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Days to import at a time. Default: one a core.", show_default=False),
    ] = None,
    option: SourceOptions = None,
) -> None:
    """Write sources straight into dated recordings: what publishing, recording and compacting them would make.

    SOURCE is as for `blackbox publish`. A directory of tape files is as many days as its files have, and a file that
    runs over midnight is two; sources of one date become one day. A day gets its name only once it was read again and
    is whole. One that is there already is refused. What an import that was killed has left unfinished is in
    OUT/FEED/importing, and the next one removes it.

    For example:

    blackbox import itch50:12302019.NASDAQ_ITCH50.gz recordings --feed configs/nasdaq.toml --compression zstd

    blackbox import tape:equity/usa/tick recordings --feed configs/tape.toml             all its days

    blackbox import dbn:20231225.mbo.dbn.zst dbn:20231226.mbo.dbn.zst recordings --feed configs/dbn.toml

    blackbox import iex:DEEP10.pcap.gz recordings --date 2017-04-25 --replace
    """
    day = _date_of(date)
    with exit_statuses():
        from blackbox.archive.import_days import import_days
        from blackbox.native.cgroup import usable_cpus

        shape = load_feed(feed)
        opened = [open_with_options(each, option, shape, date) for each in sources]
        for source, spec in zip(opened, sources, strict=True):
            shape = feed_for(shape, source, spec)
        began = time.monotonic()
        with stderr.status(f"importing to {out / shape.name}"):
            done = import_days(
                shape,
                out,
                opened,
                date=day,
                compression=compression.value,
                block_bytes=block_kib << 10,
                replace=replace,
                threads=threads or usable_cpus(),
                imported=lambda each: say(f"{each.path}: {counted(each.messages, 'message')}"),
            )
        _print_summary(out / shape.name, done, time.monotonic() - began)
        for each in done:
            for note in each.notes:
                warn(f"{each.date}: {note}")
            if each.outside:
                warn(
                    f"{each.date}: {counted(each.outside, 'message')} with a time outside of this session date in "
                    f"{shape.time_zone}, from {shape.day_start}"
                )
        lost = [f"a source is incomplete: {text}" for each in done for text in each.truncated]
        lost += [
            f"{each.date}: {counted(each.missing, 'message')} missing in the sources, kept as gaps"
            for each in done
            if each.missing
        ]
        if lost:
            lose("; ".join(lost))


def _date_of(text: str | None) -> datetime.date | None:
    try:
        return None if text is None else datetime.date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"was {text!r}, expected YYYY-MM-DD", param_hint="--date") from None


def _print_summary(directory: Path, done: list[ImportedDay], elapsed_s: float) -> None:
    messages, octets = sum(day.messages for day in done), sum(day.file_bytes for day in done)
    table = values_table(
        [
            ("days", count(len(done)), ", ".join(str(day.date) for day in done[:4]) + " ..." * (len(done) > 4)),
            ("messages", count(messages), "read again and found whole"),
            ("bytes", count(octets), "on disk, indexes included"),
            ("elapsed", duration(elapsed_s * 1e9)),
            ("rate", rate(messages, elapsed_s)),
            ("written", byte_rate(octets, elapsed_s)),
        ]
    )
    stdout.print(titled(f"imported to {directory}", table))
