"""The feed file, its slices and endpoints, the routing of topics, schemas and sources.

In: a TOML file, or a source's own format. Out: immutable settings, and messages in columns. No thread, no socket.
"""
