"""Play recorded days again: to a publisher, or to callbacks in this process.

In: recordings. Out: blocks through a publisher, or calls of callbacks, when `controls` say that they are due. What is
played, and in which order, stands in a table of blocks.

The caller's thread plays. Where only compiled callbacks want it, threads of its own play slices in parallel; where
Python does not run for every message, another thread reads ahead. Any thread may pause, step, seek or stop it.
"""
