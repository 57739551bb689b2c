"""The bytes of a block: layout, encoding, validation."""
