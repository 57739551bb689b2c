"""From the ring to the sockets of a slice."""
