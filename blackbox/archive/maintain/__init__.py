"""Check, compact, repair and delete recorded days."""
