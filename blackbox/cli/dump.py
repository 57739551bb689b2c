"""`blackbox dump`: the messages of a recording as text."""

from __future__ import annotations

import os
import sys
from base64 import b64encode
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy
import typer

from blackbox.cli.days import RecordingArgument, StartOption, StopOption, open_day, time_ns
from blackbox.cli.shown import describe
from blackbox.cli.status import exit_statuses
from blackbox.schema import DECIMALS, RAW, Schema

if TYPE_CHECKING:
    from blackbox.batch import Batch, Message
    from blackbox.recording import Recording


def dump(
    recording: RecordingArgument,
    prefix: Annotated[
        list[str] | None,
        typer.Argument(metavar="PREFIX", help="Topics that start with one of these. Default: all.", show_default=False),
    ] = None,
    start: StartOption = None,
    stop: StopOption = None,
    slices: Annotated[
        str | None, typer.Option(metavar="N,N", help="Only these slices, e.g. 0,2. Default: all.", show_default=False)
    ] = None,
    enough: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="End after N messages.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    """Print the messages of a recorded day, decoded by their schema.

    As text: market time, topic, fields. As JSON: `topic`, `ts_event`, `ts_out`, `ts_recv` (ns since 1970), `slice`,
    `epoch`, `sequence`, and `record`, the fields by name, prices as texts with all their decimals; or `payload`, in
    base64, where the schema knows no such record.

    For example:

    blackbox dump recordings/nasdaq/2026-11-20 --count 10

    blackbox dump recordings/nasdaq/2026-11-20 AAPL. MSFT. --start 09:30 --stop 09:30:01.5

    blackbox dump recordings/nasdaq/2026-11-20 AAPL.P --json | jq .record.price
    """
    with exit_statuses():
        day = open_day(recording)
        chosen = _slices_of(slices, len(day.feed.slices))
        first, end = time_ns(day, start, "--start"), time_ns(day, stop, "--stop")
        prefixes = tuple(dict.fromkeys(text.encode() for text in prefix or ("",)))
        lines = _lines(day, prefixes, first, end, chosen, as_json)
        try:
            # Without a count every batch is written at once; a count ends within one.
            for line in lines if enough is None else islice(lines, enough):
                sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            # Whoever read has enough. What is still in the buffer must not be tried again at the exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _slices_of(text: str | None, many: int) -> list[int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) < many for part in parts):
        raise typer.BadParameter(f"slices were {text!r}, expected some of 0 to {many - 1}", param_hint="--slices")
    return [int(part) for part in parts]


def _lines(
    day: Recording,
    prefixes: tuple[bytes, ...],
    start: int | None,
    stop: int | None,
    slices: list[int] | None,
    as_json: bool,
) -> Iterator[bytes]:
    narrow = len(prefixes) > 1
    encode = msgspec.json.Encoder().encode
    known: dict[str, Record] = {}
    for batch in day.batches(_common(prefixes), start, stop, slices):
        schema = batch.schema or RAW
        sequences = batch.sequence.tolist() if as_json else ()
        for message in batch:
            if narrow and not message.topic.startswith(prefixes):
                continue
            if as_json:
                yield encode(_as_object(message, sequences[message.index], batch, schema, known)) + b"\n"
            else:
                yield describe(message, schema).encode(errors="backslashreplace") + b"\n"


def _common(prefixes: tuple[bytes, ...]) -> bytes:
    """With what all of them begin."""
    low, high = min(prefixes), max(prefixes)
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return low[:same]


class Record:
    """One message type: its layout, and the fields as JSON has them."""

    def __init__(self, dtype: numpy.dtype[Any]) -> None:
        self.dtype = dtype
        self._names = dtype.names or ()
        self._decimals = [dict(dtype[name].metadata or {}).get(DECIMALS) for name in self._names]

    def fields(self, payload: bytes) -> dict[str, Any]:
        """A payload's fields by name."""
        values = numpy.frombuffer(payload, self.dtype, 1)[0]
        return {
            name: _plain(values[name], decimals) for name, decimals in zip(self._names, self._decimals, strict=True)
        }


def _plain(value: Any, decimals: int | None) -> int | str:
    if decimals is not None:
        return decimal_text(int(value), decimals)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace").rstrip()
    if isinstance(value, numpy.ndarray):
        return int.from_bytes(value.tobytes(), "big")
    return int(value)


def decimal_text(value: int, decimals: int) -> str:
    """A scaled integer, exactly: 123450, 4 is 12.3450."""
    digits = f"{abs(value):0{decimals + 1}d}"
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[: len(digits) - decimals]}.{digits[len(digits) - decimals :]}" if decimals else sign + digits


def _as_object(
    message: Message, sequence: int, batch: Batch, schema: Schema, known: dict[str, Record]
) -> dict[str, Any]:
    block, payload = batch.block, message.payload
    line: dict[str, Any] = {
        "topic": message.topic.decode(errors="backslashreplace"),
        "ts_event": message.ts_event,
        "ts_out": batch.ts_out,
        "ts_recv": batch.ts_recv,
        "slice": block.slice_id,
        "epoch": block.epoch,
        "sequence": sequence,
    }
    kind = chr(payload[schema.type_offset]) if len(payload) > schema.type_offset else ""
    if kind in schema.records and kind not in known:
        known[kind] = Record(schema.records[kind])
    record = known.get(kind)
    if record is not None and record.dtype.itemsize == len(payload):
        line["record"] = record.fields(payload)
    else:
        line["payload"] = b64encode(payload).decode()
    return line
