"""Subscriptions, acknowledgements and rights of the peers of a slice."""
