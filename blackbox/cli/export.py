"""`blackbox export`: a recording in the venue's own file format, or as Parquet."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blackbox.cli.ui.days import RecordingArgument, StartOption, StopOption, days_of, lose_damage, open_day, time_ns
from blackbox.cli.ui.progress import counting
from blackbox.cli.ui.status import exit_statuses, warn
from blackbox.cli.ui.terminal import stderr, stdout, titled, values_table
from blackbox.errors import ConfigError
from blackbox.report.numbers import byte_rate, count, rate

if TYPE_CHECKING:
    from blackbox.archive.export.parquet import ParquetDay
    from blackbox.archive.recording import Recording


class Prices(StrEnum):
    """How prices of records are written."""

    DECIMAL = "decimal"
    FLOAT = "float"
    INTEGER = "integer"


class Order(StrEnum):
    """How messages stand in a Parquet file."""

    CAPTURE = "capture"
    TOPIC = "topic"


def export(
    recording: RecordingArgument,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The file to write; packed if it ends in .gz or .zst.", show_default=False),
    ] = None,
    start: StartOption = None,
    stop: StopOption = None,
    parquet: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Write Parquet below this directory, in place of FILE. RECORDING may then be a feed with its days.",
            show_default=False,
        ),
    ] = None,
    records: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="Parquet: only messages of this type, with their fields as columns."),
    ] = None,
    prices: Annotated[
        Prices,
        typer.Option(help="Parquet with --records: prices as exact decimals, as floats, or as the venue's integers."),
    ] = Prices.DECIMAL,
    order: Annotated[
        Order, typer.Option(help="Parquet: as captured; or by topic, within each million messages.")
    ] = Order.CAPTURE,
) -> None:
    """Write a recorded day back to the venue's own file format, or as Parquet.

    ITCH 5.0 becomes a file of messages, each behind its length (2 bytes, big-endian), as NASDAQ gives it away: the very
    bytes that were published. IEX becomes message blocks of IEX-TP (2 bytes of length, little-endian), without headers.
    Tape becomes a zip archive of the CSV files that were published, DBN the same stream of metadata and records,
    Binance the same lines of frames.

    The messages of one slice keep their order. Those of several slices are merged by market time; messages of equal
    times in different slices stand in an order that is always the same, but may not be that of the venue.

    As Parquet a day becomes OUT/date=DATE/slice=SLICE/part-00000.parquet, which polars, DuckDB, pandas and Spark read.

    For example:

    blackbox export recordings/nasdaq/2026-11-20 20261120.itch

    blackbox export recordings/nasdaq/2026-11-20 20261120.itch.gz

    blackbox export recordings/nasdaq/2026-11-20 open.itch --start 09:30 --stop 09:35

    blackbox export recordings/nasdaq --parquet lake/nasdaq                      all its days

    blackbox export recordings/nasdaq/2026-11-20 --parquet lake/trades --records P
    """
    if (file is None) == (parquet is None):
        given = "both" if file is not None else "neither"
        raise typer.BadParameter(f"{given} was given, expected either FILE or --parquet", param_hint="FILE")
    if records is not None and parquet is None:
        raise typer.BadParameter(f"was given as {records!r} without --parquet", param_hint="--records")
    with exit_statuses():
        if file is not None:
            _write_file(recording, file, start, stop)
        elif parquet is not None:
            paths = days_of(recording) or [recording]
            written = [_write_parquet(path, parquet, start, stop, records, prices, order) for path in paths]
            lose_damage(recording, [each for day in written for each in day.damage], parquet)


def _write_parquet(
    path: Path, out: Path, start: str | None, stop: str | None, kind: str | None, prices: Prices, order: Order
) -> Recording:
    day = open_day(path)
    first, end = time_ns(day, start, "--start"), time_ns(day, stop, "--stop")
    began = time.monotonic()
    whole = first is None and end is None and kind is None
    with counting(f"writing {path} to {out}", day.summary().messages if whole else None) as progress:
        try:
            done: ParquetDay = day.to_parquet(
                out, start=first, stop=end, kind=kind, prices=prices.value, order=order.value, progress=progress
            )
        except ImportError as error:
            raise ConfigError(str(error)) from error
    elapsed_s = time.monotonic() - began
    stdout.print(
        titled(
            f"exported {path} to {done.path}",
            values_table(
                [
                    ("records", kind or "all, as payloads"),
                    ("messages", count(done.messages)),
                    ("files", count(done.files), "one a slice"),
                    ("row groups", count(done.row_groups)),
                    ("bytes", count(done.file_bytes), _per_message(done)),
                    ("rate", rate(done.messages, elapsed_s)),
                ]
            ),
        )
    )
    return day


def _per_message(done: ParquetDay) -> str:
    return f"of the files, {done.file_bytes / done.messages:.1f} a message" if done.messages else "of the files"


def _write_file(recording: Path, file: Path, start: str | None, stop: str | None) -> None:
    from blackbox.archive.export.source_file import export as write

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
                    ("schema", day.feed.schema_name),
                    ("messages", count(done.messages)),
                    ("bytes", count(done.file_bytes), "of the file"),
                    ("rate", rate(done.messages, elapsed_s)),
                    ("file", byte_rate(done.file_bytes, elapsed_s)),
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
    lose_damage(recording, day.damage, file)
