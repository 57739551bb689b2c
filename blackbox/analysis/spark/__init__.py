"""Recorded days in PySpark: a configured session and the data source. Requires the extra `spark`.

In: directories of recorded days. Out: data frames, batch or streaming. The Java connector reads batches in Spark's
tasks. Python reads streams, and batches of sessions without the connector's jar, in Spark's Python workers.
"""

from blackbox.analysis.spark.session import session

__all__ = ["session"]
