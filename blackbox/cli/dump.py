"""`blackbox dump`: the messages of a recording as text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from blackbox.block.plain_message import as_object
from blackbox.cli.ui.days import RecordingArgument, StartOption, StopOption, open_day, time_ns
from blackbox.cli.ui.messages import describe
from blackbox.cli.ui.status import exit_statuses
from blackbox.feed.schema import schema_of

if TYPE_CHECKING:
    from blackbox.archive.recording import Recording


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
    """Print the messages of a recorded day, decoded by the feed's schema, or by the one that their blocks name.

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
        # Without a count every batch is written at once; a count ends within one.
        for line in lines if enough is None else islice(lines, enough):
            sys.stdout.buffer.write(line)


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
    for batch in day.batches(_common(prefixes), start=start, stop=stop, slices=slices):
        schema = batch.schema or schema_of(batch.block.schema_id)
        for message in batch:
            if narrow and not message.topic.startswith(prefixes):
                continue
            if as_json:
                times = {"ts_out": batch.ts_out, "ts_recv": batch.ts_recv}
                yield encode(as_object(message, schema) | times) + b"\n"
            else:
                yield describe(message, schema).encode(errors="backslashreplace") + b"\n"


def _common(prefixes: tuple[bytes, ...]) -> bytes:
    """Return the longest text with which all of them begin."""
    low, high = min(prefixes), max(prefixes)
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return low[:same]
