"""Recorded days on disk: `recorder` appends to them, `reader` reads them, `recording` is a day for its users.

In: the blocks of each slice, appended in its slice thread. Out: segments, an index, a manifest of each day; checked
blocks again. A thread of the recorder prepares and closes segments, syncs and deletes; readers run in their caller's.
`serve` answers others, `export` writes other forms.
"""
