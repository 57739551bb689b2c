"""Recorded days in PySpark: a session that is set up for them, and the data source. Needs the extra `spark`.

In: directories of recorded days. Out: data frames, batch or streaming. The connector in Java reads batches inside of
Spark's tasks; streams and sessions without its jar are read in Python, in Spark's own Python workers.
"""

from blackbox.spark.session import session

__all__ = ["session"]
