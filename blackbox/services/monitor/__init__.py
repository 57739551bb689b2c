"""Watch a running feed from outside.

In: the heartbeats of its publishers, on plain SUB sockets. Out: the state, rate and lag of each line of each slice.
Starts no thread: the caller's thread owns the sockets and listens.
"""
