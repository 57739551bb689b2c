"""A received block for callbacks: batches, messages, their rows."""
