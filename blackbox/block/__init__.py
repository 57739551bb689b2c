"""The block: the form of messages on the wire, on disk and in callbacks.

In: columns of messages, or the bytes of a received block. Out: an encoded block; a checked block as a `Batch`, a
`Message` or an Arrow record batch on the same memory. Threads: the caller's.
"""
