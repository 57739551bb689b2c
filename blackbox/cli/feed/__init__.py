"""Commands for feed files, keys, and the machine."""
