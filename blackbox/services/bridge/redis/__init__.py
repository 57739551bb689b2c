"""Bridges from and to Redis."""
