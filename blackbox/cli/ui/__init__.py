"""Shared parts of commands: arguments, consoles, tables, live screens and exit statuses."""
