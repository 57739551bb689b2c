"""Decide the order of a slice's messages: sequence, gaps, repair, epochs."""
