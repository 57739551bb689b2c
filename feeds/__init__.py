"""Sources of market data, one module per format: bytes to topics, times, payloads and records."""
