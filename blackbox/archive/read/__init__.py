"""Read recorded days: in order, filtered and checked."""
