"""Registered functions: which topics they match, and how they are called."""
