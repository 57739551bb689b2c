"""Times of sampled messages at each hop: noted by slice threads and workers, read as traces."""
