"""Parts of the venue servers: the messages sent so far, and datagrams."""
