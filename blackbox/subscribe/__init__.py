"""From the socket to the callback: receiver, gaps, slow subscriber, dispatch, worker, delivery.

In: blocks, on the SUB socket of each slice. Out: calls of the user's callbacks, counters. The slice thread owns the
sockets and never takes the GIL while it receives; callbacks run in the slice's workers.
"""
