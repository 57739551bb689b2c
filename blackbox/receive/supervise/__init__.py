"""Start, watch, share and end the slices of subscribers."""
