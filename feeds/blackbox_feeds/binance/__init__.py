"""Binance's WebSocket frames, spot and futures, as collectors write them: a line is receive time and JSON frame.

Read: text files, plain, gzip or zstd. Described in Binance's "WebSocket Streams" (raw and combined streams).
"""

from blackbox_feeds.binance.source import SCHEMA, Binance, export_binance, split

__all__ = ["SCHEMA", "Binance", "export_binance", "split"]
