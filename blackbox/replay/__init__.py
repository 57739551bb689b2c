"""Replay recorded days to a publisher, or to callbacks in this process.

In: recordings. Out: blocks through a publisher, or callback calls, at the times that `controls` grant. A table lists
the blocks to play, in order.

The caller's thread plays. If all callbacks are compiled, worker threads play slices in parallel. If Python does not run
for every message, another thread reads ahead. Any thread may pause, step, seek or stop the replay.
"""
