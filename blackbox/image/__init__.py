"""Tables: the newest payload of each topic, kept current.

In: the image of each slice, then the messages after it. Out: a mapping of topics to payloads. The workers that deliver
a table's messages update it; any thread may read it.
"""
