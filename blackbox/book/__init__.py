"""Order books in compiled code: what a feed declares of its messages, and the levels that follow from them.

In: a symbol's messages in order. Out: price levels. Runs in the thread of whoever calls it.
"""
