"""Watch an installation: its state from heartbeats and status pages, and rules that name what is wrong."""
