"""Find missing sequence numbers: numpy finds the runs of each partition, Spark the gaps between them.

rows ==numpy, batch by batch==> runs (first, last) ==shuffle by stream==> sorted runs ==> gaps
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray
from pyspark.sql import Window, functions
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructType

from blackbox.analysis.measures.inputs import require

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STREAM: Final = ("feed", "date", "epoch", "slice")
"""Columns within which sequence numbers count up."""


def sequence_gaps(messages: DataFrame, ts_recv: str = "ts_recv") -> DataFrame:
    """Find the sequence numbers missing between the first and the last recorded one of each epoch and slice.

    Duplicate numbers are not gaps. Losses before the first and after the last recorded message are not visible here.
    Each epoch has its own numbers.

    Pass all messages: a filter would create gaps.

    Columns: `feed`, `date`, `epoch`, `slice`, `first` and `last` (the missing numbers), `missing` (how many),
    `recv_before` and `recv_after` (bigint ns: when the messages before and after them were received).

    Raises ConfigError if a column is missing.
    """
    require(messages, [*STREAM, "sequence", ts_recv], "messages")
    rows = messages.select(*STREAM, "sequence", functions.col(ts_recv).cast("bigint").alias("_recv"))
    made = StructType([*rows.schema.fields[:-2]])
    for name in ("_first", "_last", "_recv_first", "_recv_last"):
        made = made.add(name, LongType())
    runs = rows.mapInArrow(_Runs(to_arrow_schema(made)).batches, made)
    ordered = Window.partitionBy(*STREAM).orderBy("_first", "_last")
    earlier = ordered.rowsBetween(Window.unboundedPreceding, -1)
    # Runs may overlap: compare with the furthest end of all earlier runs, and its receive time.
    reach = functions.max(functions.struct("_last", "_recv_last")).over(earlier)
    first, last = functions.col("_reach._last") + 1, functions.col("_first") - 1
    return (
        runs.withColumn("_reach", reach)
        .where(last >= first)
        .select(
            *STREAM,
            first.alias("first"),
            last.alias("last"),
            (last - first + 1).alias("missing"),
            functions.col("_reach._recv_last").alias("recv_before"),
            functions.col("_recv_first").alias("recv_after"),
        )
    )


class _Runs(NamedTuple):
    """The pass over one partition."""

    schema: pyarrow.Schema

    def batches(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield self._runs(batch)

    def _runs(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        """Return a row for each run of consecutive numbers of a stream."""
        codes = _codes(batch.select(list(STREAM)))
        sequence = _numbers(batch, "sequence")
        order = numpy.lexsort((sequence, codes))
        codes, sequence, recv = codes[order], sequence[order], _numbers(batch, "_recv")[order]
        breaks = (numpy.diff(codes) != 0) | (numpy.diff(sequence) > 1)
        starts = numpy.concatenate(([0], numpy.flatnonzero(breaks) + 1))
        ends = numpy.concatenate((starts[1:] - 1, [len(codes) - 1]))
        named = batch.select(list(STREAM)).take(pyarrow.array(order[starts])).columns
        runs = [pyarrow.array(column) for column in (sequence[starts], sequence[ends], recv[starts], recv[ends])]
        return pyarrow.RecordBatch.from_arrays([*named, *runs], schema=self.schema)


def _codes(batch: pyarrow.RecordBatch) -> NDArray[numpy.int64]:
    codes = numpy.zeros(batch.num_rows, numpy.int64)
    for column in batch.columns:
        encoded = column.dictionary_encode()
        codes = codes * (len(encoded.dictionary) + 1) + encoded.indices.fill_null(len(encoded.dictionary)).to_numpy()
    return codes


def _numbers(batch: pyarrow.RecordBatch, name: str) -> NDArray[Any]:
    numbers: NDArray[Any] = batch.column(name).fill_null(0).to_numpy(zero_copy_only=False)
    return numbers
