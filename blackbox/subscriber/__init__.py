"""The public face of receiving: subscribers, their registrations, tables and named consumers.

In: registered callbacks, start positions. Out: running slices of `receive`; a mapping of topics to payloads; stored
positions. The workers that deliver a table's messages update it; any thread may read it.
"""
