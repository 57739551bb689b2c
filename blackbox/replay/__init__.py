<<<<<<< HEAD
"""Recorded days played again: at what time each message is due, and what steers it while it runs."""
=======
"""Recorded days played again: onto the wire, or to callbacks in this process."""
>>>>>>> d213cd8 (Play blocks to callbacks without sockets)
