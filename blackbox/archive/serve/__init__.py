"""The archive server: recorded blocks for readers, with their original headers; see `archive-protocol` in the docs.

In: requests for blocks of a slice, from a position or time on. Out: pieces of them, one for each request.

Each request is self-contained, so the server keeps no state of its readers. `server` owns one ROUTER socket and one
thread, `pieces` reads days and `piece_reading` one piece, `client` sends requests and passes their blocks on,
`protocol` has the messages between them.
"""
