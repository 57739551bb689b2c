"""Commands for recorded days."""
