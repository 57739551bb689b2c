"""CURVE keys, and the gate that admits them."""
