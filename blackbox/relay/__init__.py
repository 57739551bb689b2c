"""Forward a feed to more subscribers than one publisher can serve: blocks down, merged subscriptions up.

In: the blocks of a publisher or of another relay; filters of those below. Out: the same blocks, byte by byte; the
smallest set of filters that covers those below. A thread for each slice, which owns its sockets, and a guard beside it.

For clients that know nothing of blocks: a subscriber's batches in, messages out, from the one thread of `plain`.
"""
