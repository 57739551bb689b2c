"""The Python engine of the data source `blackbox`, which Spark finds through the module `pyspark_blackbox`.

Spark prefers the connector if its jar is on the classpath. The connector passes streams on to this engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.types import StructType

# Spark imports this module for every Python data source, so large modules are imported where they are used.
if TYPE_CHECKING:
    import pyarrow

    from blackbox.analysis.spark.options import Options
    from blackbox.analysis.spark.read import Reading


OF_ONE_SCAN: Final = "__scan"
"""Option that the connector sets if a source serves a single scan."""


class DefaultSource(DataSource):
    """Recorded days as a table. See `spark` in the docs for columns and options."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "blackbox"

    def schema(self) -> StructType:
        """Return all columns of a load with these options."""
        from blackbox.analysis.spark.columns import table_schema

        options, days = self._found()
        fields = self._reading(options, days, None).fields
        return table_schema(list(fields) if options.message_type is not None else None)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of these columns."""
        options, days = self._found()
        return Reader(options, days, self._reading(options, days, schema), OF_ONE_SCAN in self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader of these columns that follows a growing recording."""
        from blackbox.analysis.spark.stream import StreamReader

        options, days = self._found()
        return StreamReader(options, self._reading(options, days, schema))

    def _found(self) -> tuple[Options, list[Path]]:
        from blackbox.analysis.spark.days import days_of
        from blackbox.analysis.spark.options import Options

        options = Options.of(self.options)
        return options, days_of(options.paths)

    def _reading(self, options: Options, days: list[Path], asked: StructType | None) -> Reading:
        """Return how to read. Raises ConfigError if a day lacks a requested column."""
        from blackbox.analysis.spark.columns import columns_of, record_fields, table_schema
        from blackbox.analysis.spark.days import schema_of_days
        from blackbox.analysis.spark.filters import Pushed
        from blackbox.analysis.spark.read import Reading

        schema = None if options.message_type is None else schema_of_days(days, options.message_type)
        fields = character = None
        if schema is not None and options.message_type is not None:
            fields = record_fields(schema, options.message_type, options.prices)
            character = schema.character(options.message_type)
        whole = table_schema(fields)
        names = () if asked is None else columns_of(asked, whole)
        skip = options.on_damage == "skip"
        return Reading(asked or whole, Pushed(), skip, options.metrics, character, schema, tuple(fields or ()), names)


class _Pushing:
    """A `Reader.pushFilters` that does not look overridden.

    Spark raises an error if a reader overrides `pushFilters` while pushdown is off, the default in other sessions.
    Pushdown only makes our queries faster, so this imitates the method of the base class.
    """

    def __init__(self, take: Callable[[list[Filter]], Iterable[Filter]]) -> None:
        self._take = take
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._take(filters)


class Reader(DataSourceReader):
    """Plan the partitions of a query, and read them."""

    def __init__(self, options: Options, days: list[Path], reading: Reading, of_one_scan: bool = False) -> None:
        self._options, self._days, self._reading, self._of_one_scan = options, days, reading, of_one_scan

    @property
    def pushFilters(self) -> Any:  # noqa: N802
        """Store filters, and return all of them, so that Spark filters every row again.

        Only a reader of a single scan uses them. Spark plans a Python table once, with the filters of its first query,
        and reuses that plan for later queries of the same frame or view, which would then lack rows.
        """
        return _Pushing(self._push)

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        from blackbox.analysis.spark.filters import Pushed

        if self._of_one_scan:
            self._reading = self._reading._replace(pushed=Pushed.of(filters))
        return filters

    def partitions(self) -> list[InputPartition]:
        """Return the partitions that may hold wanted messages."""
        from blackbox.analysis.spark.metrics import write_metrics
        from blackbox.analysis.spark.plan import plan

        options, reading = self._options, self._reading
        planned = plan(self._days, reading.pushed, options.partition_bytes, reading.skip_damage)
        if options.metrics is not None:
            write_metrics(
                options.metrics,
                "plan",
                entries=planned.entries,
                chosen=planned.chosen,
                partitions=len(planned.partitions),
                damaged=len(planned.damage),
            )
        return list(planned.partitions)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Yield the messages of a partition."""
        from blackbox.analysis.spark.plan import Partition

        # For an empty plan Spark creates its own partition.
        return self._reading.batches(partition) if isinstance(partition, Partition) else iter(())
