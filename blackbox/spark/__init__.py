"""Recorded days in PySpark: a session that is set up for them, the data source, analysis. Needs the extra `spark`."""

from blackbox.spark.session import session

__all__ = ["session"]
