"""Bridges between a feed and other systems: what is wanted there is subscribed to here, and carried over.

In: a feed, and what clients of the other system ask for. Out: messages in its form, with slice, epoch and sequence.
"""
