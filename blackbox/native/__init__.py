"""The compiled floor: memory, atomics, hashes, tries, name tables and POSIX calls, for use inside `@njit` functions.

In: addresses and numbers. Out: the same. Nothing here knows a block or a socket, and nothing here starts a thread.
"""
