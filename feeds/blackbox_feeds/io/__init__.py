"""Shared by several formats: files, packet captures, sockets, sequence numbers, dates, topics by template."""
