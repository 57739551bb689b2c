"""Recorded days played again: onto the wire or to callbacks in this process, and what steers it while it runs."""
