"""`blackbox record`: append a feed to journals on disk, until it ends or is interrupted."""

from __future__ import annotations

from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Group, RenderableType

from blackbox.cli.ui.days import Compression, RecordingsOption
from blackbox.cli.ui.feeds import ConfirmTimeout, FeedOption, SilenceTimeout, feed_text, load_feed
from blackbox.cli.ui.live import Rates, follow, live_screen
from blackbox.cli.ui.monitored import MetricsOption, monitored
from blackbox.cli.ui.options import JsonOption
from blackbox.cli.ui.status import exit_statuses, lose
from blackbox.cli.ui.terminal import bad_if, columns_table, print_json, say, stdout, titled, values_table
from blackbox.numbers import byte_rate, byte_size, count, counted, duration, rate

if TYPE_CHECKING:
    from blackbox.archive.record.recorder import Recorder, RecorderStatistics

_LAG: Final = "lag: time from the publisher's sending to the recorder, of the last block"


class Fsync(StrEnum):
    """When a recorder syncs what it wrote."""

    NEVER = "never"
    INTERVAL = "interval"
    BLOCK = "block"


def record(
    feed: FeedOption = None,
    out: RecordingsOption = Path("recordings"),
    fsync: Annotated[
        Fsync,
        typer.Option(
            help="Messages that a crash of the machine costs: with `interval` the last second; with `block` none, but "
            "each block waits for the disk; with `never` about the last 30 s. A crash of the recorder alone costs less "
            "than 1 MiB per slice."
        ),
    ] = Fsync.INTERVAL,
    compression: Annotated[
        Compression,
        typer.Option(
            help="Compression of blocks. `none` is fastest to record and replay; the others need lz4 or zstandard."
        ),
    ] = Compression.NONE,
    segment_mib: Annotated[
        int, typer.Option(metavar="N", min=1, max=1 << 20, help="Begin a new file at this size, in MiB.")
    ] = 256,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="Also answer readers of recorded blocks, at the first of the feed's `archives`; see `serve`.",
        ),
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Fetch missing messages, and after a restart those since the last recorded one, from the feed's other "
            "`archives`.",
        ),
    ] = False,
    keep_days: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Keep the last N days, including today, and days that named consumers need. Default: keep all days.",
            show_default=False,
        ),
    ] = None,
    keep_gib: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0.001,
            help="Delete the oldest days above N GiB, unless a named consumer needs them.",
            show_default=False,
        ),
    ] = None,
    most_days: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Delete days before the last N, even if a consumer needs them.", show_default=False
        ),
    ] = None,
    most_gib: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0.001,
            help="Delete the oldest days above N GiB, even if a consumer needs them.",
            show_default=False,
        ),
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="End when every publisher has closed and all its messages are recorded.")
    ] = False,
    timeout: ConfirmTimeout = None,
    silence_timeout: SilenceTimeout = None,
    metrics: MetricsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Record a feed: every block as received, one directory per day, one journal per slice.

    Messages that arrive on both lines are recorded once. A day can be read while it is being written. After a crash
    start the recorder again: it cuts the half-written end, logs the number of bytes, and continues in a new file. Only
    one recorder at a time can record a feed into a directory. Ctrl-C records all received messages, prints the totals,
    and ends.

    JSON is printed at the end: `directory` and `statistics`.

    For example:

    blackbox record                             the feed `local` to recordings/local, until Ctrl-C

    blackbox record --until-end                 end with the publisher; status 4 if anything was lost

    blackbox record --feed configs/nasdaq.toml --out /data/recordings --fsync block

    blackbox record --feed feed.toml --serve --repair       one of two recorders, which repair each other

    blackbox record --compression zstd --segment-mib 1024
    """
    with exit_statuses():
        from blackbox.archive.maintain.retention import Retention
        from blackbox.archive.record.recorder import Recorder

        shape = load_feed(feed)
        recorder = Recorder(
            shape,
            out,
            fsync=fsync.value,
            compression=compression.value,
            segment_bytes=segment_mib << 20,
            serve=serve,
            on_gap="repair" if repair else "tell",
            retention=Retention(keep_days, _bytes_of(keep_gib), most_days, _bytes_of(most_gib)),
        )
        say(f"waiting for the publishers of {feed_text(shape)}")
        with ExitStack() as stack:
            stack.enter_context(monitored(metrics, recorder))
            recorder.start(timeout)
            stack.callback(_print_totals, recorder, as_json)
            say(f"recording to {recorder.directory}")
            show = stack.enter_context(live_screen(_RecorderView(recorder)))
            follow(recorder, show, until_end=until_end, silence_timeout=silence_timeout)
        gaps = recorder.statistics().received.gaps
        if until_end and gaps:
            lose(f"{counted(gaps, 'message')} were lost")


def _bytes_of(gib: float | None) -> int | None:
    return None if gib is None else round(gib * (1 << 30))


class _RecorderView:
    """Received messages by slice, and stored data."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def line(self, rates: Rates) -> str:
        now = self._recorder.statistics()
        return (
            f"recorded {counted(now.messages, 'message')}, {rate(rates.per_second('messages', now.messages))}, "
            f"{byte_rate(rates.per_second('bytes', now.stored_bytes))}, lost {count(now.lost)}, "
            f"gaps {count(now.received.gaps)}, not heard {count(now.unheard)}, lag {duration(now.lag.last_ns)}"
        )

    def tables(self, rates: Rates) -> RenderableType:
        now = self._recorder.statistics()
        return Group(self._slices(now, rates), self._disk(now, rates))

    def _slices(self, now: RecorderStatistics, rates: Rates) -> RenderableType:
        table = columns_table(("slice", "received", "rate", "gaps", "duplicated", "malformed", "lag"))
        for feed_slice in now.slices:
            table.add_row(
                str(feed_slice.slice_id),
                count(feed_slice.received.messages),
                rate(rates.per_second(feed_slice.slice_id, feed_slice.received.messages)),
                bad_if(feed_slice.received.gaps > 0, count(feed_slice.received.gaps)),
                count(feed_slice.received.duplicates),
                bad_if(feed_slice.received.malformed > 0, count(feed_slice.received.malformed)),
                duration(feed_slice.lag.last_ns),
            )
        table.caption = _LAG
        return titled("slices", table)

    def _disk(self, now: RecorderStatistics, rates: Rates) -> RenderableType:
        table = columns_table(("recorded", "rate", "stored", "to disk", "segments", "lost"), left=0)
        table.add_row(
            count(now.messages),
            rate(rates.per_second("messages", now.messages)),
            byte_size(now.stored_bytes),
            byte_rate(rates.per_second("bytes", now.stored_bytes)),
            count(now.segments),
            bad_if(now.lost > 0, count(now.lost)),
        )
        return titled(str(self._recorder.directory), table)


def _print_totals(recorder: Recorder, as_json: bool) -> None:
    now = recorder.statistics()
    if as_json:
        print_json({"directory": str(recorder.directory), "statistics": now})
        return
    came = now.received
    stdout.print(
        titled(
            f"recorded from {feed_text(recorder.feed)} to {recorder.directory}",
            values_table(
                [
                    ("received", count(came.messages), "messages; those received on both lines count twice"),
                    ("recorded", count(now.messages), "messages"),
                    ("blocks", count(now.blocks)),
                    ("stored", byte_size(now.stored_bytes)),
                    ("segments", count(now.segments)),
                    ("lost", bad_if(now.lost > 0, count(now.lost)), "received, but could not be written"),
                    ("gaps", bad_if(came.gaps > 0, count(came.gaps)), "lost messages"),
                    ("not heard", count(now.unheard), "published before this recorder received their epoch"),
                    ("duplicated", count(came.duplicates), "received again on the other line: recorded once"),
                    ("malformed", bad_if(came.malformed > 0, count(came.malformed)), "blocks that were not valid"),
                    ("cut", count(now.cut_bytes), "bytes of a half-written end after a kill"),
                    ("lag", duration(now.lag.last_ns), _LAG),
                ]
            ),
        )
    )
