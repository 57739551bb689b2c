"""Recorded days on disk: `recorder` appends to them, `reader` reads them, `recording` is the public class of a day.

In: the blocks of each slice, appended in its slice thread. Out: segments, indexes, a manifest for each day; checked
blocks. One thread of the recorder prepares, closes, syncs and deletes segments; readers run in the caller's thread.
`serve` answers remote readers, `export` writes other formats.
"""
