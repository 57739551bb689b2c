"""Where Spark looks for the data source `blackbox`: in top-level modules whose names begin with `pyspark_`."""

from blackbox.spark.source import DefaultSource

__all__ = ["DefaultSource"]
