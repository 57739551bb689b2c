"""What the peers of a slice subscribe to, acknowledge, and may send."""
