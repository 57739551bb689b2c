"""Append blocks to journals, and recover after a kill."""
