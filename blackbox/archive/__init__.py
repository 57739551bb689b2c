"""Recorded days on disk: the format, the recorder that appends to it, and what reads it.

In: the blocks of each slice, appended in its slice thread. Out: segments, an index, a manifest; `Recording` reads them.
"""
