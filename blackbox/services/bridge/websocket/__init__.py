"""Browsers and other WebSocket clients."""
