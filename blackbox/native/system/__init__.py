"""The operating system: clocks, limits, locks, signals, waits."""
