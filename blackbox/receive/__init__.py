"""From the socket to the callback: slice thread, arbitration, slow-subscriber policy, match, worker, delivery.

In: blocks on the SUB socket of each slice. Out: calls of the user's callbacks, counters. The slice thread owns the
sockets and never takes the GIL while it receives. Python callbacks run in the slice's workers, compiled ones in the
slice thread unless they asked for a worker; with `workers=0` all of them run there.
"""
