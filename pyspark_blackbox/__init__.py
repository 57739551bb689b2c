"""Module in which Spark finds the data source `blackbox`: it searches top-level modules named `pyspark_*`."""

from blackbox.analysis.spark.python_engine import DefaultSource

__all__ = ["DefaultSource"]
