"""Where Spark looks for the data source `blackbox`: in top-level modules whose names begin with `pyspark_`."""

from blackbox.spark.python_engine import DefaultSource

__all__ = ["DefaultSource"]
