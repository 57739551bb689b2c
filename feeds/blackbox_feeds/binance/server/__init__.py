"""Binance's own protocol as a server, for recorded days: streams over WebSocket, order books over REST."""
