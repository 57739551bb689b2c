"""`blackbox export`: write a recording in the venue's own file format, as Parquet, or to a Delta Lake table."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from blackbox.cli.ui.days import RecordingArgument, StartOption, StopOption, days_of, lose_damage, open_day, time_ns
from blackbox.cli.ui.options import JsonLinesOption, SymbolOption, symbols_of
from blackbox.cli.ui.progress import counting
from blackbox.cli.ui.status import exit_statuses, warn
from blackbox.cli.ui.terminal import print_json, stderr, stdout, titled, values_table
from blackbox.errors import ConfigError
from blackbox.numbers import byte_rate, count, rate

if TYPE_CHECKING:
    from blackbox.archive.export.parquet import ParquetDay
    from blackbox.archive.recording import Recording


class Prices(StrEnum):
    """Form of prices in records."""

    DECIMAL = "decimal"
    FLOAT = "float"
    INTEGER = "integer"


class Order(StrEnum):
    """Order of messages in a Parquet file."""

    CAPTURE = "capture"
    TOPIC = "topic"


def export(
    recording: RecordingArgument,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="PATH",
            help="File to write, compressed if it ends in .gz or .zst. With --parquet or --delta: the directory.",
        ),
    ],
    start: StartOption = None,
    stop: StopOption = None,
    symbol: SymbolOption = None,
    parquet: Annotated[
        bool,
        typer.Option(
            "--parquet", help="Write Parquet instead of the venue's format. RECORDING may be a feed with its days."
        ),
    ] = False,
    delta: Annotated[
        bool,
        typer.Option(
            "--delta", help="Append to a Delta Lake table, one commit a day. RECORDING may be a feed with its days."
        ),
    ] = False,
    message_type: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="Parquet, Delta: only messages of this type, with their fields as columns."),
    ] = None,
    prices: Annotated[
        Prices,
        typer.Option(help="With --message-type: prices as exact decimals, floats or the venue's integers."),
    ] = Prices.DECIMAL,
    order: Annotated[
        Order, typer.Option(help="Parquet: as captured; or by topic, within each million messages.")
    ] = Order.CAPTURE,
    as_json: JsonLinesOption = False,
) -> None:
    """Write a recorded day in the venue's own file format, as Parquet, or to a Delta Lake table.

    ITCH 5.0 becomes a file of messages, each after its length (2 bytes, big-endian), as NASDAQ publishes it. IEX
    becomes message blocks of IEX-TP (2 bytes of length, little-endian), without headers. Tape becomes a zip archive of
    CSV files, DBN a stream of metadata and records, Binance the lines of frames. The bytes are those that were
    published.

    The messages of a slice keep their order. Messages of several slices are merged by market time. The order of
    messages with equal times in different slices is always the same, but can differ from the order of the venue.

    With --parquet a day becomes PATH/date=DATE/slice=SLICE/part-00000.parquet, for polars, DuckDB, pandas and Spark.

    With --delta a day is appended to the table in one commit: readers see all of it or nothing. It is an error if the
    table has the day.

    JSON is one object per day, with `recording`, `out`, `messages` and `file_bytes`, which is null with --delta.

    For example:

    blackbox export recordings/nasdaq/2026-11-20 --out 20261120.itch

    blackbox export recordings/nasdaq/2026-11-20 --out 20261120.itch.gz

    blackbox export recordings/nasdaq/2026-11-20 --out open.itch --start 09:30 --stop 09:35

    blackbox export recordings/nasdaq/2026-11-20 --out two.itch --symbol AAPL --symbol BRK.B

    blackbox export recordings/nasdaq --parquet --out lake/nasdaq                      all its days

    blackbox export recordings/nasdaq/2026-11-20 --parquet --out lake/trades --message-type P

    blackbox export recordings/nasdaq --delta --out lake/delta/trades --message-type P
    """
    if message_type is not None and not (parquet or delta):
        raise typer.BadParameter(
            f"was given as {message_type!r} without --parquet or --delta", param_hint="--message-type"
        )
    if delta and (parquet or order is not Order.CAPTURE):
        raise typer.BadParameter(
            "was given with --parquet or --order, expected neither: rows keep their order", param_hint="--delta"
        )
    with exit_statuses():
        wanted = _Wanted(start, stop, symbols_of(symbol))
        if parquet or delta:
            paths, columns = days_of(recording) or [recording], _Columns(message_type, prices, order)
            written = [_write_day(path, out, wanted, columns, to_delta=delta, as_json=as_json) for path in paths]
            lose_damage(recording, [each for day in written for each in day.damage], out)
        else:
            _write_file(recording, out, wanted, as_json)


class _Wanted(NamedTuple):
    """Part of a day to export."""

    start: str | None
    stop: str | None
    symbols: list[bytes] | None

    def times(self, day: Recording) -> tuple[int | None, int | None]:
        """Return start and stop, ns since 1970."""
        return time_ns(day, self.start, "--start"), time_ns(day, self.stop, "--stop")


class _Columns(NamedTuple):
    """Columns and order of rows."""

    message_type: str | None
    prices: Prices
    order: Order


def _write_day(
    path: Path, out: Path, wanted: _Wanted, columns: _Columns, *, to_delta: bool, as_json: bool
) -> Recording:
    """Write a day as Parquet, or append it to a Delta Lake table. Return it."""
    day = open_day(path)
    first, end = wanted.times(day)
    began = time.monotonic()
    whole = wanted == (None, None, None) and columns.message_type is None
    with counting(f"writing {path} to {out}", day.summary().messages if whole else None) as progress:
        options: dict[str, Any] = {
            "start": first,
            "stop": end,
            "symbols": wanted.symbols,
            "message_type": columns.message_type,
            "prices": columns.prices.value,
            "progress": progress,
        }
        try:
            done = None if to_delta else day.to_parquet(out, order=columns.order.value, **options)
            messages = day.to_delta(out, **options) if done is None else done.messages
        except ImportError as error:
            raise ConfigError(str(error)) from error
    elapsed_s = time.monotonic() - began
    if as_json:
        print_json(_object(path, done.path if done else out, messages, done.file_bytes if done else None))
        return day
    title = f"exported {path} to {done.path}" if done else f"appended {path} to the table {out}"
    rows: list[tuple[str, str] | tuple[str, str, str]]
    rows = [("message type", columns.message_type or "all, as payloads"), ("messages", count(messages))]
    if done:
        rows += [
            ("files", count(done.files), "one per slice"),
            ("row groups", count(done.row_groups)),
            ("bytes", count(done.file_bytes), _per_message(done)),
        ]
    stdout.print(titled(title, values_table([*rows, ("rate", rate(messages, elapsed_s))])))
    return day


def _per_message(done: ParquetDay) -> str:
    return f"of the files, {done.file_bytes / done.messages:.1f} per message" if done.messages else "of the files"


def _object(recording: Path, out: Path, messages: int, file_bytes: int | None) -> dict[str, Any]:
    return {"recording": str(recording), "out": str(out), "messages": messages, "file_bytes": file_bytes}


def _write_file(recording: Path, file: Path, wanted: _Wanted, as_json: bool) -> None:
    from blackbox.archive.export.source_file import export as write

    day = open_day(recording)
    first, end = wanted.times(day)
    began = time.monotonic()
    with stderr.status("writing") as shown:
        done = write(
            day, file, first, end, wanted.symbols, lambda many: shown.update(f"written {count(many)} messages")
        )
    elapsed_s = time.monotonic() - began
    if as_json:
        print_json(_object(recording, file, done.messages, done.file_bytes))
    else:
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
    if day.feed.key_rule:
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
