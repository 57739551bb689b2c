"""Two hubs of a feed: one leads, the other follows."""
