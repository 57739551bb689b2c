"""Tables: the newest payload of each topic, kept current.

In: the image of each slice, then what follows it. Out: a mapping of topics to payloads. Each is kept by the workers
that deliver to it; any thread may read it.
"""
