"""Rows that cannot be converted: found by halving a table until a row fails alone, and reported."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

import pyarrow

from blackbox.errors import ConfigError

T = TypeVar("T")

_MOST_KEPT: Final = 1_000
_COLUMN: Final = re.compile(r"column '([^']*)'")


class Rejected(NamedTuple):
    """A row that was left out."""

    row: int
    """Number of the row in the file, from 1 on, without the header and empty lines."""
    column: str
    """Name in the file; empty if the whole row is wrong."""
    value: str
    reason: str

    def __str__(self) -> str:
        what = f"column {self.column!r} had {self.value}" if self.column else f"it was {self.value}"
        return f"row {self.row}: {what}: {self.reason}"


class RejectedRows:
    """The rejected rows of a file. Attributes: `count` of all; `rows`, the first 1,000."""

    def __init__(self) -> None:
        self.count = 0
        self.rows: list[Rejected] = []

    def __repr__(self) -> str:
        first = f", the first: {self.rows[0]}" if self.rows else ""
        return f"<RejectedRows: {self.count}{first}>"

    def add(self, described: Callable[[], Rejected]) -> None:
        """Count a row, and keep it if it is one of the first."""
        self.count += 1
        if len(self.rows) < _MOST_KEPT:
            self.rows.append(described())


def convertible(
    table: pyarrow.RecordBatch, convert: Callable[[pyarrow.RecordBatch], T], reject: Callable[[int, str], None]
) -> Iterator[T]:
    """Yield what `convert` returns for the parts of a table without the rows for which it raises ConfigError.

    `reject` is called with the index of each such row, and the error's text.
    """
    pending = [(0, len(table))]
    while pending:
        start, stop = pending.pop()
        try:
            converted = convert(table.slice(start, stop - start))
        except ConfigError as error:
            if stop - start == 1:
                reject(start, str(error))
            else:
                middle = (start + stop) // 2
                pending += [(middle, stop), (start, middle)]
        else:
            yield converted


def rejected(row: int, one: pyarrow.RecordBatch, names: Mapping[str, str], error: str) -> Rejected:
    """Return a rejected row, by a batch of this row alone and the text of an error.

    `names` are those in the file by those in the error.
    """
    values = dict(zip(one.schema.names, map(_value_of, one.columns), strict=True))
    match = _COLUMN.search(error)
    column = "" if match is None else names.get(match[1], match[1])
    value = values.get(column, values)
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
    return Rejected(row, column, repr(text)[:80], error.removeprefix(match[0] if match else "").lstrip(": "))


def _value_of(column: pyarrow.Array) -> object:
    """Return the one value of a column; as Arrow's text if Python has no such value, such as a time of year 14645."""
    try:
        return column[0].as_py()
    except (OverflowError, ValueError):
        return " ".join(column.to_string().split())
