"""The hub: judges requests, stores puts, remembers clients."""
