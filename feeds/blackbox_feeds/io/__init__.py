"""Shared by several formats: windows on files, packet captures, sequence numbers, dates, topics by template."""
