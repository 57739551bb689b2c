"""Recorded days in an S3-compatible object store.

In: the directory of a day. Out: its objects, and back: a copy of the day in the user's cache. Runs in the caller's
thread. The library pyarrow has more threads.
"""
