"""Your own CSV and Parquet files, with columns named by options.

Read: files of one message type. The records are those of a registered schema.
"""

from blackbox_feeds.table.source import Csv, Parquet

__all__ = ["Csv", "Parquet"]
