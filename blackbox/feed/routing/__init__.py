"""From a topic to its slice, key and symbol; and the same rules in compiled code."""
