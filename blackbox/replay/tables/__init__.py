"""List the blocks to play, in their order."""
