"""Compiled primitives for use inside `@njit` functions: memory, atomics, hashes, tries, name tables, POSIX calls.

In: addresses and integers. Out: the same. No blocks, no sockets, no threads.
"""
