"""Bridges between a feed and other systems.

In: a feed, and subscriptions of the other system's clients. Out: messages in its format, with slice, epoch and
sequence.
"""
