"""Forward a feed to more subscribers than one publisher can serve: blocks down, merged subscriptions up.

In: blocks of a publisher or another relay; filters of the subscribers below. Out: the same blocks, byte by byte; the
smallest set of filters that covers those below. Threads: one per slice, which owns its sockets, and a guard.

For clients that cannot read blocks: a subscriber's batches in, single messages out, from the one thread of `plain`.
"""
