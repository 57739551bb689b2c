"""A day's messages as rows of a Delta Lake table, with the columns of Parquet files."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import pyarrow
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from blackbox.archive.export.parquet import Content, ParquetColumns
from blackbox.archive.export.table import parts_of
from blackbox.block.batch.batch import Batch
from blackbox.errors import JournalError

_PARTITIONS: Final = (pyarrow.field("date", pyarrow.date32(), False), pyarrow.field("slice", pyarrow.int32(), False))
"""Columns by which the table is partitioned."""
_WIDER: Final = {
    pyarrow.uint8(): pyarrow.int16(),
    pyarrow.uint16(): pyarrow.int32(),
    pyarrow.uint32(): pyarrow.int64(),
}
"""Delta tables have no unsigned integers."""


def append_day(
    table: str,
    content: Content,
    slices: Mapping[int, Iterable[Batch]],
    progress: Callable[[int], object] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> int:
    """Append a day to a table in one commit: see `Recording.to_delta`. Return the number of messages."""
    content.check()
    options = None if storage_options is None else dict(storage_options)
    keys = [field.name for field in _PARTITIONS]
    try:
        if DeltaTable.is_deltatable(table, options):
            there = DeltaTable(table, storage_options=options)
            if (columns := there.metadata().partition_columns) != keys:
                raise JournalError(f"{table} is partitioned by {columns}, expected {keys}")
            if content.date in {str(part["date"]) for part in there.partitions()}:
                raise JournalError(f"{table} has rows of {content.date}, expected a day that is not there yet")
        day = _Day(content, progress)
        reader = pyarrow.RecordBatchReader.from_batches(day.schema, day.batches(slices))
        write_deltalake(table, reader, mode="append", partition_by=keys, storage_options=options)
    except (DeltaError, OSError) as error:
        raise JournalError(f"{table} cannot be written: {error}") from error
    return day.messages


class _Day:
    """Makes the rows of a day and counts them. Attributes: `schema`, `messages`."""

    def __init__(self, content: Content, progress: Callable[[int], object] | None) -> None:
        self._columns = ParquetColumns(content)
        self._date = datetime.date.fromisoformat(content.date)
        self._progress = progress
        self.schema = pyarrow.schema([*_PARTITIONS, *map(_own_field, self._columns.schema)])
        self.messages = 0

    def batches(self, slices: Mapping[int, Iterable[Batch]]) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows slice by slice."""
        for slice_id, batches in slices.items():
            for part, topics in parts_of(batches, self._columns.picks):
                rows = self._columns.batch(part, topics)
                keys = [pyarrow.repeat(self._date, len(rows)), pyarrow.repeat(slice_id, len(rows))]
                columns = [*keys, *rows.columns]
                yield pyarrow.RecordBatch.from_arrays(
                    [column.cast(field.type) for column, field in zip(columns, self.schema, strict=True)],
                    schema=self.schema,
                )
                self.messages += len(rows)
                if self._progress is not None:
                    self._progress(self.messages)


def _own_field(field: pyarrow.Field) -> pyarrow.Field:
    kind = field.type.value_type if pyarrow.types.is_dictionary(field.type) else field.type
    return pyarrow.field(field.name, _WIDER.get(kind, kind), field.nullable)
