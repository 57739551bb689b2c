"""Compile kernels, cache them on the disk, and load them late."""
