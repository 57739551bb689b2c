"""Binance's WebSocket streams, live: subscription, connection, sequence rules, snapshots of order books."""
