"""The archive that answers: recorded blocks for who asks, with their original headers; see docs/archive-protocol.md.

In: requests for blocks of a slice, from a position or a time on. Out: pieces of them, each for one request.

A request holds all that is needed to answer it, so the server keeps nothing of its readers: `server` owns one ROUTER
socket and one thread, `pieces` reads days and `piece_reading` one piece, `client` asks and gets what is in `fetched`,
`protocol` is what they say to each other.
"""
