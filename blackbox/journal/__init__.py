"""Recorded days on disk: the format, what appends to it and what reads it."""
