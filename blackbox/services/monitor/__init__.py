"""Watch running feeds and processes.

In: the heartbeats of a feed's publishers, on plain SUB sockets; or the objects of this process. Out: the state, rate
and lag of each line of each slice; or metrics, status and health by HTTP. The thread that uses `heartbeats` owns its
sockets; a server in `serve` has its thread.
"""
