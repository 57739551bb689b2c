"""Commands for hubs and their clients."""
