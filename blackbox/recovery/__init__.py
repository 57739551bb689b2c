"""What a named consumer has done up to: kept in a file, so that it goes on from there.

In: positions, from checkpoints of a subscriber. Out: where it begins. The caller's thread; one that keeps by itself.
"""
