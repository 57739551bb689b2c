"""Files of a recorded day: journals, indexes, marks, manifests."""
