"""Sources of market data, one folder per format: bytes to topics, times, payloads and records."""
