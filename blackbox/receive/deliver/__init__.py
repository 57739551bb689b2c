"""Judge blocks, and pass those that are due to workers."""
