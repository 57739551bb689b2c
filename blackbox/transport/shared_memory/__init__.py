"""Blocks in memory that publisher and subscribers share."""
