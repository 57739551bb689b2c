"""Record layouts of payloads, and values of their fields."""
