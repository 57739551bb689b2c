"""From `publish` to the socket: publisher, ring, batcher, slice sender, send loop.

In: messages, from any thread of the user. Out: blocks on the XPUB sockets of each slice. Publishing threads write the
ring under its lock; the sender's thread of each slice reads it and owns the sockets. While it sleeps, one of theirs may
send in its place.
"""
