"""Long-running services between publishers and subscribers: relays, hubs, bridges, monitors.

In: a feed, or requests of clients. Out: the same feed elsewhere, stored puts, or messages in another system's form.
"""
