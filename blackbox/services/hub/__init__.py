"""Put and get: a hub stores each put of its clients once, numbers it and publishes it; durable clients get it.

In: requests of clients, each with columns of puts. Out: answers with the place of each put; blocks of a publisher with
an outbox, which is the feed's archive. Threads: the hub's, one per client, and those of publisher and subscribers.
"""
