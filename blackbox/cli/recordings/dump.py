"""`blackbox dump`: the messages of a recording as text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from blackbox.block.batch.plain_message import as_object
from blackbox.cli.ui.days import RecordingArgument, StartOption, StopOption, check_slices, open_day, time_ns
from blackbox.cli.ui.messages import describe
from blackbox.cli.ui.options import (
    CountOption,
    JsonLinesOption,
    PrefixOption,
    SliceOption,
    SymbolOption,
    prefixes_of,
    symbols_of,
)
from blackbox.cli.ui.status import exit_statuses
from blackbox.feed.routing.prefixes import common_prefix
from blackbox.feed.schema.schema import schema_of

if TYPE_CHECKING:
    from blackbox.archive.recording import Recording


def dump(
    recording: RecordingArgument,
    prefix: PrefixOption = None,
    symbol: SymbolOption = None,
    start: StartOption = None,
    stop: StopOption = None,
    slices: SliceOption = None,
    enough: CountOption = 0,
    as_json: JsonLinesOption = False,
) -> None:
    """Print the messages of a recorded day, decoded by the schema of the feed or of the block.

    As text: market time, topic, fields. As JSON: `topic`, `ts_event`, `ts_out`, `ts_recv` (ns since 1970), `slice`,
    `epoch`, `sequence`, and `record` with the fields by name, prices as texts with all their decimals; or `payload`, in
    base64, if the schema has no such record.

    For example:

    blackbox dump recordings/nasdaq/2026-11-20 --count 10

    blackbox dump recordings/nasdaq/2026-11-20 --prefix AAPL. --prefix MSFT. --start 09:30 --stop 09:30:01.5

    blackbox dump recordings/nasdaq/2026-11-20 --symbol AAPL --symbol BRK.B

    blackbox dump recordings/nasdaq/2026-11-20 --prefix AAPL.P --json | jq .record.price
    """
    with exit_statuses():
        day = open_day(recording)
        check_slices(slices, len(day.feed.slices))
        first, end = time_ns(day, start, "--start"), time_ns(day, stop, "--stop")
        lines = _lines(day, prefixes_of(prefix), symbols_of(symbol), first, end, slices, as_json)
        # Without a count, every batch is written at once. With a count, it may end within a batch.
        for line in islice(lines, enough) if enough else lines:
            sys.stdout.buffer.write(line)


def _lines(
    day: Recording,
    prefixes: tuple[bytes, ...],
    symbols: list[bytes] | None,
    start: int | None,
    stop: int | None,
    slices: list[int] | None,
    as_json: bool,
) -> Iterator[bytes]:
    narrow = len(prefixes) > 1
    encode = msgspec.json.Encoder().encode
    for batch in day.batches(common_prefix(prefixes), start=start, stop=stop, slices=slices, symbols=symbols):
        schema = batch.schema or schema_of(batch.block.schema_id)
        for message in batch:
            if narrow and not message.topic.startswith(prefixes):
                continue
            if as_json:
                times = {"ts_out": batch.ts_out, "ts_recv": batch.ts_recv}
                yield encode(as_object(message, schema) | times) + b"\n"
            else:
                yield describe(message, schema).encode(errors="backslashreplace") + b"\n"
