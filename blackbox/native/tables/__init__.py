"""Data structures and hashes for compiled code."""
