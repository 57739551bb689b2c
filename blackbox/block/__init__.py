"""The block, the one form in which messages travel, lie on disk and reach callbacks.

In: columns of messages, or the bytes of a received block. Out: an encoded block; a checked block as a `Batch`, a
`Message` or an Arrow record batch on the same memory. No thread: whoever holds the bytes calls.
"""
