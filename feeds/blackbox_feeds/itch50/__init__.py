"""NASDAQ TotalView-ITCH 5.0: messages and order books, sections 1.1 to 1.8 of its specification.

Read: files of length-prefixed messages, plain or gzip, and packet captures of MoldUDP64.
"""

from blackbox_feeds.itch50.source import MWCB_PRICE_SCALE, PRICE_SCALE, SCHEMA, Itch50, export_itch50, timestamps_ns

__all__ = ["MWCB_PRICE_SCALE", "PRICE_SCALE", "SCHEMA", "Itch50", "export_itch50", "timestamps_ns"]
