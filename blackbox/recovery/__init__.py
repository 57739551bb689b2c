"""Where a subscriber begins, and what a named consumer has done up to: it goes on from there.

In: positions, from checkpoints of a subscriber. Out: where it begins. The caller's thread; one that keeps by itself.
"""
