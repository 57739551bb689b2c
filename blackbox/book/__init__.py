"""Order books in compiled code: a feed's declaration of its messages, and the price levels that result from them.

In: a symbol's messages in order. Out: price levels. Runs in the caller's thread.
"""
