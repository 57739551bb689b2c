"""From a topic to its slice, key and symbol; compiled twins of these rules."""
