"""Export recordings: the venue's own files, Parquet, tables.

In: a `Recording`. Out: files, or Arrow tables. Runs in the caller's thread.
"""
