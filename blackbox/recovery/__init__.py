"""Start positions of subscribers, and positions of named consumers.

In: positions from checkpoints. Out: where each slice starts. Threads: the caller's; a named consumer adds up to two.
"""
