"""One slice of a running subscriber: its thread, sockets and filters."""
