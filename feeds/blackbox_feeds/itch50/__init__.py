"""NASDAQ TotalView-ITCH 5.0: messages, sections 1.1 to 1.8 of its specification, and the order book of a symbol.

Read: files of length-prefixed messages, plain or gzip, and packet captures of MoldUDP64.
"""

from typing import TYPE_CHECKING, Any

from blackbox_feeds.itch50.source import MWCB_PRICE_SCALE, PRICE_SCALE, SCHEMA, Itch50, export_itch50, timestamps_ns

if TYPE_CHECKING:
    from blackbox_feeds.itch50.book import Itch50Book

__all__ = ["MWCB_PRICE_SCALE", "PRICE_SCALE", "SCHEMA", "Itch50", "Itch50Book", "export_itch50", "timestamps_ns"]


def __getattr__(name: str) -> Any:
    if name != "Itch50Book":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from blackbox_feeds.itch50.book import Itch50Book  # compiled: not loaded with the rest

    return Itch50Book
