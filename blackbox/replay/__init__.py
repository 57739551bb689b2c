"""Recorded days played again: at what time each message is due, and what steers it while it runs."""
