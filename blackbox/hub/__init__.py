"""Put and get: a hub takes what clients put, stores it once, numbers and publishes it; durable clients get it.

In: requests of clients, columns of puts each. Out: answers that say where each put is; blocks of a publisher with an
outbox, which is the feed's archive. A thread of the hub, one of each client, and those of publisher and subscribers.
"""
