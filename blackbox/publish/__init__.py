"""From `publish` to the socket: publisher, ring, batcher, slice sender, send loop.

In: messages, from any thread of the user. Out: blocks on the XPUB sockets of each slice. Publishing threads write the
ring under its lock; each slice has a sender thread that reads its ring and owns its sockets. While that thread sleeps,
a publishing thread may send for it.
"""
