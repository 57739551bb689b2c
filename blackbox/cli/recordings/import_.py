"""`blackbox import`: write sources into dated recordings, without publisher and recorder."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blackbox.cli.ui.days import Compression, RecordingsOption
from blackbox.cli.ui.feeds import FeedOption, SourceOptions, feed_for, load_feed, open_with_options
from blackbox.cli.ui.options import JsonOption
from blackbox.cli.ui.status import exit_statuses, lose, warn
from blackbox.cli.ui.terminal import print_json, say, stderr, stdout, titled, values_table
from blackbox.numbers import byte_rate, count, counted, duration, rate

if TYPE_CHECKING:
    from blackbox.archive.importing.import_days import ImportedDay


def import_(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="Sources to import: NAME:ARGUMENT.")],
    out: RecordingsOption = Path("recordings"),
    feed: FeedOption = None,
    date: Annotated[
        str | None,
        typer.Option(
            metavar="DATE",
            help="The day of all sources, YYYY-MM-DD. Default: the date in the file name for ITCH and tape, and the "
            "dates of the messages for other sources.",
            show_default=False,
        ),
    ] = None,
    compression: Annotated[
        Compression,
        typer.Option(help="Compression of blocks: `none` for fast replays, `zstd` for small size."),
    ] = Compression.NONE,
    block_kib: Annotated[int, typer.Option(metavar="KIB", min=1, max=65_536, help="Size of blocks.")] = 256,
    replace: Annotated[bool, typer.Option("--replace", help="Replace days that exist.")] = False,
    threads: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Days to import at a time. Default: one per core.", show_default=False),
    ] = None,
    option: SourceOptions = None,
    as_json: JsonOption = False,
) -> None:
    """Write sources straight into dated recordings, without publisher and recorder.

    SOURCE has the form that `blackbox publish` takes. Sources of one date become one day; a source that runs over
    midnight, or a directory of tape files, becomes several days. A day gets its name after it was read again and is
    complete. A day that exists is an error unless --replace is given. An import that was killed leaves its unfinished
    days in DIR/FEED/importing, and the next import removes them. Status 4 if messages are missing in the sources.

    JSON is an array with one object per day, with `date`, `path`, `messages`, `file_bytes`, `missing` and `truncated`.

    For example:

    blackbox import itch50:12302019.NASDAQ_ITCH50.gz --feed configs/nasdaq.toml --compression zstd

    blackbox import tape:equity/usa/tick --feed configs/tape.toml             all its days

    blackbox import dbn:20231225.mbo.dbn.zst dbn:20231226.mbo.dbn.zst --feed configs/dbn.toml

    blackbox import iex:DEEP10.pcap.gz --out /data/recordings --date 2017-04-25 --replace
    """
    day = _date_of(date)
    with exit_statuses():
        from blackbox.archive.importing.import_days import import_days
        from blackbox.native.compile.compiling import compiled_seconds
        from blackbox.native.system.cgroup import usable_cpus

        shape = load_feed(feed)
        opened = [open_with_options(each, option, shape, date) for each in sources]
        for source, spec in zip(opened, sources, strict=True):
            shape = feed_for(shape, source, spec)
        began, compiled = time.monotonic(), compiled_seconds()
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
        if as_json:
            print_json(done)
        else:
            _print_summary(out / shape.name, done, time.monotonic() - began, compiled_seconds() - compiled)
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


def _print_summary(directory: Path, done: list[ImportedDay], elapsed_s: float, compiled_s: float) -> None:
    messages, octets = sum(day.messages for day in done), sum(day.file_bytes for day in done)
    table = values_table(
        [
            ("days", count(len(done)), ", ".join(str(day.date) for day in done[:4]) + " ..." * (len(done) > 4)),
            ("messages", count(messages), "read again and found whole"),
            ("bytes", count(octets), "on disk, indexes included"),
            ("elapsed", duration(elapsed_s * 1e9), f"{duration(compiled_s * 1e9)} of it compiling and loading kernels"),
            ("rate", rate(messages, elapsed_s - compiled_s), "while not compiling"),
            ("written", byte_rate(octets, elapsed_s - compiled_s), "while not compiling"),
        ]
    )
    stdout.print(titled(f"imported to {directory}", table))
