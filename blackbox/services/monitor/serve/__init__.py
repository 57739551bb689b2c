"""Serve the state of a process to monitors: its status and health by HTTP, and to systemd."""
