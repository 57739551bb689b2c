"""`blackbox instruments`: the instruments of a recorded day as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from blackbox.cli.ui.days import (
    RecordingArgument,
    StopOption,
    damage_text,
    lose_what_is_wrong,
    open_day,
    time_ns,
)
from blackbox.cli.ui.options import JsonOption, SymbolOption, symbols_of
from blackbox.cli.ui.progress import reading
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import columns_table, print_json, stdout, titled
from blackbox.errors import ConfigError
from blackbox.notebook import escaped
from blackbox.numbers import NOTHING, counted
from blackbox.timestamps import date_of

if TYPE_CHECKING:
    from blackbox.archive.recording import Recording

_TEXTS: Final = ("symbol", "venue", "instrument_id", "name", "instrument_class")
_VALUES: Final = ("lot_size", "tick_size", "currency", "strike_price", "expiration", "status")


def instruments(
    recording: RecordingArgument,
    symbol: SymbolOption = None,
    stop: StopOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the instruments of a recorded day: classes, lots, ticks, expirations, strikes, statuses.

    The values are those of the newest definition and status, before --stop if given. Columns without values are not
    printed. Reads the whole day.

    JSON is an array with one object per instrument, with all columns of `Recording.instruments`: prices as texts with
    all their decimals, times in ns since 1970, null if unknown.

    For example:

    blackbox instruments recordings/nasdaq/2026-11-20

    blackbox instruments recordings/nasdaq/2026-11-20 --symbol AAPL --symbol BRK.B --stop 09:30

    blackbox instruments recordings/nasdaq/2026-11-20 --json | jq '.[] | select(.status == "halted")'
    """
    with exit_statuses():
        day = open_day(recording)
        before = time_ns(day, stop, "--stop")
        with reading(f"reading {recording}", day.file_bytes):
            try:
                table = day.instruments.to_arrow(
                    symbols=symbols_of(symbol), stop=before, prices="decimal", times="integer"
                )
            except ImportError as error:
                raise ConfigError(str(error)) from error
        rows = table.to_pylist()
        if as_json:
            print_json(rows)
        else:
            _print(day, rows)
        lose_what_is_wrong(recording, damage_text(day.damage), [])


def _print(day: Recording, rows: list[dict[str, Any]]) -> None:
    names = [name for name in (*_TEXTS, *_VALUES) if any(row[name] is not None for row in rows)]
    if all(row["name"] in (None, row["symbol"]) for row in rows):
        names = [name for name in names if name != "name"]
    shown = columns_table(names, left=sum(name in _TEXTS for name in names))
    for row in rows:
        shown.add_row(*(_shown(day, name, row[name]) for name in names))
    stdout.print(titled(f"{day.path}: {counted(len(rows), 'instrument')}", shown))


def _shown(day: Recording, name: str, value: Any) -> str:
    if value is None:
        return NOTHING
    if name == "expiration":
        return str(date_of(value, day.feed.time_zone))
    return f"{value.normalize():f}" if name in ("tick_size", "strike_price") else escaped(str(value))
