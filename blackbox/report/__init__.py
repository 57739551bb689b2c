"""A recorded day as one page for a person: what is on it, and how it is drawn. `blackbox.spark.report` computes it."""
