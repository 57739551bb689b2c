"""The publishers of a slice: connections, filters and their confirmation, refusals, floods."""
