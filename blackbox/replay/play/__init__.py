"""Play blocks to callbacks or to a publisher."""
