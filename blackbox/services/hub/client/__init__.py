"""Clients of a hub: puts, gets, durable subscriptions."""
