"""ZeroMQ below Python: libzmq's functions for compiled code, contexts, wake-ups, connections, CURVE; shared memory.

In: sockets and messages as addresses. Out: libzmq's own results. A socket belongs to the thread that created it.
"""
