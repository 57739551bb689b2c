"""Handmade orders, and a synthetic session."""

from __future__ import annotations

import struct

from blackbox_feeds.synthetic import Synthetic

ITCH = 1
"""Number of the schema."""


def order(reference: int, side: bytes, price: int, shares: int = 1) -> bytes:
    return struct.pack(">cHH6xQcI8sI", b"A", 1, 0, reference, side, shares, b"", price)


def gone(reference: int) -> bytes:
    return struct.pack(">cHH6xQ", b"D", 1, 0, reference)


def made_up() -> Synthetic:
    return Synthetic(30_000, symbols=25)
